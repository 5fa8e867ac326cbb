"""Compares the picture code with Pillow, bit by bit, on pictures made here.

usage: picture_test.py PICTURE_TOOL
"""
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, PngImagePlugin

TOOL = None
FILTERS = {
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS
}


class Tool:

    def __init__(self, path):
        self.process = subprocess.Popen([path],
                                        stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE,
                                        text=True)

    def ask(self, *words):
        self.process.stdin.write("\t".join(str(w) for w in words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the tool died on {words}")
        return answer.rstrip("\n")

    def close(self):
        self.process.stdin.close()
        code = self.process.wait()
        self.process.stdout.close()
        return code


def noise(width, height, channels=3, seed=0):
    """Smooth gradients and noise, so that both chroma and edges matter."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [np.sin(x / (3 + c)) * 60 + np.cos(y / (4 + c)) * 60 + 128 for c in range(channels)]
    picture = np.stack(planes, -1) + rng.normal(0, 25, (height, width, channels))
    return np.clip(picture, 0, 255).astype(np.uint8)


def over_white(picture):
    white = Image.new("RGB", picture.size, "white")
    rgba = picture.convert("RGBA")
    white.paste(rgba.convert("RGB"), mask=rgba.getchannel("A"))
    return white


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bytes(width, height, bits, color_type, rows):
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    raw = b"".join(b"\0" + row for row in rows)
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) +
            png_chunk(b"IDAT", zlib.compress(raw)) + png_chunk(b"IEND", b""))


class PictureTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.tool = Tool(TOOL)
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = Path(cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        code = cls.tool.close()
        cls.folder.cleanup()
        assert code == 0, f"the tool ended with {code}"

    def ask(self, *words):
        answer = self.tool.ask(*words)
        self.assertTrue(answer.startswith("ok"), answer)
        return answer[3:]

    def refused(self, *words):
        answer = self.tool.ask(*words)
        self.assertTrue(answer.startswith("error "), answer)
        return answer

    def decoded(self, path):
        self.ask("decode", path, self.dir / "out.ppm")
        return np.asarray(Image.open(self.dir / "out.ppm"))

    def check(self, path, reference):
        np.testing.assert_array_equal(self.decoded(path), np.asarray(reference.convert("RGB")),
                                      str(path))

    def save(self, name, picture, **options):
        path = self.dir / name
        picture.save(path, **options)
        return path

    def test_jpegs_equal_pillow(self):
        picture = Image.fromarray(noise(67, 45))
        for i, options in enumerate([{
                "subsampling": 0
        }, {
                "subsampling": 1
        }, {
                "subsampling": 2
        }, {
                "progressive": True,
                "subsampling": 2
        }, {
                "quality": 30
        }, {
                "quality": 100
        }]):
            path = self.save(f"a{i}.jpg", picture, **options)
            self.check(path, Image.open(path))
        gray = self.save("gray.jpg", picture.convert("L"))
        self.check(gray, Image.open(gray))
        self.assertTrue(self.ask("probe", gray).startswith("jpeg 67 45 1 8"))

    def test_cmyk_jpegs_have_pillows_colors(self):
        picture = Image.fromarray(noise(40, 30, 4), "CMYK")
        path = self.save("cmyk.jpg", picture, quality=95)
        self.check(path, Image.open(path))
        red = self.save("red.jpg", Image.new("RGB", (16, 16), (230, 20, 30)).convert("CMYK"))
        mean = self.decoded(red).reshape(-1, 3).mean(0)
        np.testing.assert_allclose(mean, [230, 20, 30], atol=4)

    def test_pngs_of_every_kind_equal_pillow(self):
        rgb = Image.fromarray(noise(31, 23))
        for name, picture in {
                "rgb": rgb,
                "l": rgb.convert("L"),
                "one": rgb.convert("1"),
                "palette": rgb.quantize(16),
                "palette256": rgb.quantize(256)
        }.items():
            path = self.save(f"{name}.png", picture)
            self.check(path, Image.open(path))
        self.assertEqual(self.ask("probe", self.dir / "rgb.png"), "png 31 23 3 8 0 0 1")

    def test_interlaced_png_is_read(self):
        picture = Image.fromarray(noise(31, 23))
        plain = self.save("plain.png", picture)
        # Pillow writes no interlaced files: seven passes, each a picture, are put together here.
        pixels = np.asarray(picture)
        rows = []
        for x0, y0, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
                               (1, 0, 2, 2), (0, 1, 1, 2)]:
            rows += [b"\0" + row.tobytes() for row in pixels[y0::dy, x0::dx]]
        header = struct.pack(">IIBBBBB", 31, 23, 8, 2, 0, 0, 1)
        path = self.dir / "interlaced.png"
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) +
                         png_chunk(b"IDAT", zlib.compress(b"".join(rows))) +
                         png_chunk(b"IEND", b""))
        np.testing.assert_array_equal(self.decoded(path), self.decoded(plain))

    def test_alpha_is_laid_over_white(self):
        rgba = Image.fromarray(noise(31, 23, 4), "RGBA")
        path = self.save("rgba.png", rgba)
        self.check(path, over_white(rgba))
        gray = rgba.convert("LA")
        self.check(self.save("la.png", gray), over_white(gray))
        palette = Image.fromarray(noise(31, 23)).quantize(8)
        path = self.save("trns.png", palette, transparency=3)
        self.check(path, over_white(Image.open(path)))
        lossless = self.save("rgba.webp", rgba, lossless=True, exact=True)
        self.check(lossless, over_white(rgba))

    def test_sixteen_bits_are_rounded_to_eight(self):
        values = np.random.default_rng(1).integers(0, 65536, (9, 13, 3), dtype=np.uint16)
        path = self.dir / "deep.png"
        path.write_bytes(png_bytes(13, 9, 16, 2, [row.astype(">u2").tobytes() for row in values]))
        want = np.floor(values / 257.0 + 0.5).astype(np.uint8)
        np.testing.assert_array_equal(self.decoded(path), want)
        path.write_bytes(
            png_bytes(13, 9, 16, 0, [row.astype(">u2").tobytes() for row in values[..., 0]]))
        np.testing.assert_array_equal(self.decoded(path), np.repeat(want[..., :1], 3, -1))

    def test_webps_equal_pillow(self):
        picture = Image.fromarray(noise(67, 45))
        for i, options in enumerate([{"quality": 80}, {"quality": 20}, {"lossless": True}]):
            path = self.save(f"b{i}.webp", picture, **options)
            self.check(path, Image.open(path))

    def test_the_first_frame_of_an_animation_is_read(self):
        frames = [Image.fromarray(noise(20, 16, seed=s)) for s in range(3)]
        path = self.save("c.webp",
                         frames[0],
                         save_all=True,
                         append_images=frames[1:],
                         lossless=True)
        self.check(path, frames[0])
        self.assertEqual(self.ask("probe", path).split()[6], "1")
        path = self.save("c.png", frames[0], save_all=True, append_images=frames[1:])
        self.check(path, frames[0])

    def test_exif_turns_pictures_upright(self):
        picture = Image.fromarray(noise(29, 17))
        for orientation in range(1, 9):
            exif = Image.Exif()
            exif[0x0112] = orientation
            for name, options in {"jpg": {}, "png": {}, "webp": {"lossless": True}}.items():
                path = self.save(f"turn{orientation}.{name}", picture, exif=exif, **options)
                want = ImageOps.exif_transpose(Image.open(path))
                self.check(path, want)
                info = self.ask("probe", path).split()
                self.assertEqual(
                    info[1:3] + info[7:],
                    [str(want.width), str(want.height),
                     str(orientation)])

    def test_resizing_equals_pillow(self):
        rng = np.random.default_rng(2)
        for i in range(240):
            width, height = (int(v) for v in rng.integers(1, 200, 2))
            to_width, to_height = (int(v) for v in rng.integers(1, 200, 2))
            if i % 8 == 0:
                to_width = width
            if i % 8 == 1:
                to_height = height
            picture = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
            path = self.save("in.png", picture)
            name = list(FILTERS)[i % 4]
            self.ask("resize", path, self.dir / "out.ppm", to_width, to_height, name)
            want = picture.resize((to_width, to_height), FILTERS[name])
            np.testing.assert_array_equal(np.asarray(Image.open(self.dir / "out.ppm")),
                                          np.asarray(want),
                                          f"{width}x{height} to {to_width}x{to_height} {name}")

    def test_cover_and_crop_is_as_described(self):
        rng = np.random.default_rng(3)
        for _ in range(60):
            width, height, to_width, to_height = (int(v) for v in rng.integers(8, 160, 4))
            picture = Image.fromarray(noise(width, height))
            path = self.save("in.png", picture)
            self.ask("cover", path, self.dir / "out.ppm", to_width, to_height)
            scale = max(to_width / width, to_height / height)
            scaled = picture.resize((round(width * scale), round(height * scale)),
                                    Image.Resampling.BILINEAR)
            left = int(round((scaled.width - to_width) / 2.0))
            top = int(round((scaled.height - to_height) / 2.0))
            want = picture if (width, height) == (to_width, to_height) else scaled.crop(
                (left, top, left + to_width, top + to_height))
            np.testing.assert_array_equal(np.asarray(Image.open(self.dir / "out.ppm")),
                                          np.asarray(want))

    def test_written_pngs_carry_text_for_pillow(self):
        picture = Image.fromarray(noise(31, 23))
        path = self.save("in.png", picture)
        out = self.dir / "written.png"
        texts = {"parameters": "a cat, Steps: 4", "atelier": '{"prompt": "一只猫 🐱"}', "empty": ""}
        self.ask("encode", path, out, *[w for pair in texts.items() for w in pair], "last", "x")
        read = Image.open(out)
        np.testing.assert_array_equal(np.asarray(read), np.asarray(picture))
        self.assertEqual(dict(read.text), {**texts, "last": "x"})
        want = "".join(f"{k}={v}\t" for k, v in {**texts, "last": "x"}.items())
        self.assertEqual(self.ask("text", out), want)

    def test_text_that_pillow_wrote_is_read(self):
        info = PngImagePlugin.PngInfo()
        info.add_text("parameters", "café")
        info.add_text("long", "x" * 5000, zip=True)
        info.add_itxt("itxt", "日本", zip=True)
        path = self.save("pillow.png", Image.new("RGB", (4, 4)), pnginfo=info)
        self.assertEqual(self.ask("text", path), f"parameters=café\tlong={'x' * 5000}\titxt=日本\t")

    def test_every_truncation_is_an_error_that_names_the_file(self):
        picture = Image.fromarray(noise(24, 18, 4), "RGBA")
        files = {
            "t.png": picture,
            "t.webp": picture,
            "t.jpg": picture.convert("RGB"),
            "lossy.webp": picture.convert("RGB")
        }
        for name, image in files.items():
            whole = self.save(name, image, **({
                "lossless": True
            } if name == "t.webp" else {})).read_bytes()
            cut = self.dir / ("cut_" + name)
            for size in list(range(0, min(64, len(whole)))) + list(range(64, len(whole) - 13, 17)):
                cut.write_bytes(whole[:size])
                with self.subTest(name=name, size=size):
                    self.assertIn(str(cut), self.refused("decode", cut, self.dir / "out.ppm"))

    def test_damaged_bytes_never_crash(self):
        rng = np.random.default_rng(4)
        picture = Image.fromarray(noise(24, 18))
        for name in ["d.png", "d.webp", "d.jpg"]:
            whole = bytearray(self.save(name, picture).read_bytes())
            for _ in range(150):
                broken = bytearray(whole)
                for _ in range(int(rng.integers(1, 6))):
                    broken[int(rng.integers(len(broken)))] = int(rng.integers(256))
                path = self.dir / ("damaged_" + name)
                path.write_bytes(broken)
                self.assertRegex(self.tool.ask("decode", path, self.dir / "out.ppm"),
                                 "^(ok|error )")

    def test_a_huge_size_is_refused_by_its_header(self):
        path = self.dir / "huge.png"
        path.write_bytes(png_bytes(20000, 20000, 8, 2, []))
        self.assertIn("more than the limit", self.refused("decode", path, self.dir / "out.ppm"))

    def test_other_files_are_named_for_what_they_are(self):
        gif = self.save("x.gif", Image.new("RGB", (4, 4)))
        self.assertIn("not a PNG, JPEG or WebP", self.refused("decode", gif, self.dir / "out.ppm"))
        empty = self.dir / "empty.png"
        empty.write_bytes(b"")
        self.assertIn("the file is empty", self.refused("decode", empty, self.dir / "out.ppm"))
        self.assertIn("NOT_FOUND",
                      self.refused("decode", self.dir / "absent.png", self.dir / "out.ppm"))
        self.assertIn("a folder", self.refused("probe", self.dir))
        picture = self.save("ok.png", Image.new("RGB", (4, 4)))
        self.assertIn("cannot write", self.refused("encode", picture, self.dir / "no" / "out.png"))


if __name__ == "__main__":
    TOOL = sys.argv.pop(1)
    unittest.main()
