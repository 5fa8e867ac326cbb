"""Compares whole samples with what Pillow makes of the same files, bit by bit.

usage: dataset_images_test.py DATASET_TOOL
"""
import struct
import tempfile
import unittest

import numpy as np
from dataset_tool import DatasetTest  # first: it makes image_test importable
from PIL import Image, ImageOps
from image_test import noise, over_white, png_bytes


def cut(picture, width, height):
    """Scales until width x height are covered and cuts the middle out."""
    if picture.size == (width, height):
        return picture
    scale = max(width / picture.width, height / picture.height)
    scaled = picture.resize((round(picture.width * scale), round(picture.height * scale)),
                            Image.Resampling.BILINEAR)
    left = int(round((scaled.width - width) / 2.0))
    top = int(round((scaled.height - height) / 2.0))
    return scaled.crop((left, top, left + width, top + height))


def target_size(picture, max_pixels):
    width, height = picture.size
    if width * height > max_pixels:
        scale = (width * height / max_pixels)**0.5
        width, height = int(width / scale), int(height / scale)
    return width // 16 * 16, height // 16 * 16


def pixels(picture):
    values = np.asarray(picture.convert("RGB"), np.float32).transpose(2, 0, 1)
    return values / np.float32(255) * np.float32(2) - np.float32(1)


class PicturesTest(DatasetTest):

    def setUp(self):
        super().setUp()
        self.out = tempfile.TemporaryDirectory()
        self.addCleanup(self.out.cleanup)
        self.references = {}

    def save(self, name, picture, reference=None, **options):
        """Writes an image; `reference` is what it shows, by default what Pillow reads."""
        path = self.dir / name
        if isinstance(picture, bytes):
            path.write_bytes(picture)
        else:
            picture.save(path, **options)
        path.with_suffix(".txt").write_text("a caption")
        if reference is None:
            shown = ImageOps.exif_transpose(Image.open(path))
            has_alpha = shown.mode in ("RGBA", "LA", "PA") or "transparency" in shown.info
            reference = over_white(shown) if has_alpha else shown.convert("RGB")
        self.references[str(path)] = reference

    def load(self, **request):
        result = self.tool.open(self.dir, out=self.out.name + "/", **request)
        self.assertEqual(result["problems"], [])
        return {
            sample["file"]: {
                name: tensor and np.fromfile(tensor["path"], np.float32).reshape(tensor["shape"])
                for name, tensor in sample.items()
                if name != "file"
            }
            for sample in result["samples"]
        }

    def check(self):
        """Compares every file at a fixed size, at its own shape and in a bucket."""
        for request in [{"height": 48, "width": 80}, {"max_pixels": 3000}, {"max_pixels": 1 << 20}]:
            samples = self.load(**request)
            self.assertEqual(sorted(samples), sorted(self.references))
            for path, reference in self.references.items():
                size = ((request["width"], request["height"]) if "height" in request else
                        target_size(reference, request["max_pixels"]))
                np.testing.assert_array_equal(samples[path]["image"],
                                              pixels(cut(reference, *size)), f"{path} {request}")

    def test_every_exif_orientation(self):
        picture = Image.fromarray(noise(150, 90))
        for orientation in range(1, 9):
            exif = Image.Exif()
            exif[0x0112] = orientation
            self.save(f"{orientation}.jpg", picture, exif=exif, quality=90)
            self.save(f"p{orientation}.png", picture, exif=exif)
            self.save(f"w{orientation}.webp", picture, exif=exif, lossless=True)
        self.assertEqual(self.references[str(self.dir / "6.jpg")].size, (90, 150))
        self.check()

    def test_transparency_is_laid_over_white(self):
        rgba = Image.fromarray(noise(90, 120, 4), "RGBA")
        self.save("rgba.png", rgba)
        self.save("la.png", rgba.convert("LA"))
        self.save("rgba.webp", rgba, lossless=True)
        self.save("key.png", rgba.convert("RGB"), transparency=rgba.convert("RGB").getpixel((3, 3)))
        palette = rgba.convert("RGB").quantize(32)
        self.save("palette.png", palette, transparency=bytes(range(0, 256, 8)))
        self.check()

    def test_palettes_grays_and_single_bits(self):
        rgb = Image.fromarray(noise(101, 67))
        self.save("palette.png", rgb.quantize(16))
        self.save("gray.png", rgb.convert("L"))
        self.save("gray.jpg", rgb.convert("L"))
        self.save("bits.png", rgb.convert("1"))
        self.check()

    def test_sixteen_bits_are_rounded_to_eight(self):
        rng = np.random.default_rng(5)
        gray = rng.integers(0, 65536, (70, 66)).astype(np.uint16)
        rgb = rng.integers(0, 65536, (70, 66, 3)).astype(np.uint16)
        for name, values, color_type in [("g.png", gray, 0), ("c.png", rgb, 2)]:
            rounded = np.floor(values * (255.0 / 65535.0) + 0.5).astype(np.uint8)
            rows = [struct.pack(f">{row.size}H", *row.flatten()) for row in values]
            self.save(name, png_bytes(66, 70, 16, color_type, rows),
                      Image.fromarray(rounded).convert("RGB"))
        self.check()

    def test_inks_become_colors(self):
        self.save("noise.jpg", Image.fromarray(noise(80, 96, 4), "CMYK"), quality=95)
        self.save("red.jpg", Image.new("RGB", (64, 64), (230, 20, 30)).convert("CMYK"))
        self.check()
        red = self.load(height=32, width=32)[str(self.dir / "red.jpg")]["image"].mean((1, 2))
        np.testing.assert_allclose((red + 1) * 127.5, [230, 20, 30], atol=4)

    def test_the_first_frame_of_an_animation(self):
        frames = [Image.fromarray(noise(64, 80, seed=seed)) for seed in range(3)]
        self.save("a.webp", frames[0], save_all=True, append_images=frames[1:], lossless=True)
        self.check()
        warnings = self.tool.open(self.dir)["warnings"]
        self.assertIn("its first frame is learnt", " ".join(warnings))

    def test_alpha_and_gray_pictures_make_masks(self):
        rgba = Image.fromarray(noise(90, 120, 4), "RGBA")
        exif = Image.Exif()
        exif[0x0112] = 6
        self.save("rgba.png", rgba)
        self.save("turned.png", rgba, exif=exif)
        self.save("opaque.png", rgba.convert("RGB"))
        self.save("given.png", rgba)
        gray = Image.fromarray(noise(45, 60, 3)).convert("L")
        gray.save(self.dir / "given-masklabel.png")
        samples = self.load(height=48, width=48, alpha_mask=True)
        alpha = {
            "rgba.png": rgba.getchannel("A"),
            "turned.png": ImageOps.exif_transpose(Image.open(self.dir / "turned.png")).getchannel("A"),
            "given.png": gray,
        }
        for name, mask in alpha.items():
            got = samples[str(self.dir / name)]["mask"]
            want = np.asarray(cut(mask, 48, 48), np.float32)[None] / np.float32(255)
            np.testing.assert_array_equal(got, want, name)
            np.testing.assert_array_equal(samples[str(self.dir / name)]["image"],
                                          pixels(cut(self.references[str(self.dir / name)], 48, 48)))
        self.assertIsNone(samples[str(self.dir / "opaque.png")]["mask"])
        del samples
        without = self.load(height=48, width=48)
        self.assertIsNone(without[str(self.dir / "rgba.png")]["mask"])

    def test_sizes_are_those_of_the_formula(self):
        rng = np.random.default_rng(6)
        for i in range(12):
            width, height = (int(v) for v in rng.integers(32, 300, 2))
            self.save(f"{i}.png", Image.fromarray(noise(width, height, seed=i)))
        self.check()


if __name__ == "__main__":
    unittest.main()
