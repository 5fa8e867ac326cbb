"""Compares what inputs are read as with Pillow and NumPy, bit by bit.

    read_test.py INPUTS_TOOL
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from PIL import Image
from sounds import sine, wav

TOOL = sys.argv.pop(1)
SIZES = ((64, 48), (40, 40), (31, 77), (96, 20))  # width and height of images
TARGETS = ((48, 64), (40, 40), (16, 96))  # height and width of what is made


def noise(width, height, channels, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


class Reading(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(tempfile.mkdtemp(prefix="atelier_inputs_"))
        cls.addClassCleanup(shutil.rmtree, cls.dir)
        cls.tool = subprocess.Popen([TOOL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @classmethod
    def tearDownClass(cls):
        cls.tool.stdin.close()
        cls.tool.wait()
        cls.tool.stdout.close()

    def ask_for(self, path, target, **how):
        """`target`: frames, height and width of what is made."""
        request = {**how, "file": str(path), "target": target, "out": str(self.dir / "out")}
        self.tool.stdin.write(json.dumps(request) + "\n")
        self.tool.stdin.flush()
        return self.tool.stdout.readline().strip()

    def ask(self, kind, channels, fit, target, path, **how):
        return self.ask_for(path, [1, *target], kind=kind, channels=channels, fit=fit, **how)

    def values(self, said):
        self.assertTrue(said.startswith("ok "), said)
        shape, told = said[3:].split()
        self.assertEqual(shape, told)
        return np.fromfile(self.dir / "out", np.float32).reshape(json.loads(shape))

    def read(self, kind, channels, fit, target, path, **how):
        return self.values(self.ask(kind, channels, fit, target, path, **how)).transpose(1, 2, 0)

    def save(self, picture):
        path = self.dir / "in.png"
        picture.save(path)
        return path

    def fitted(self, picture, fit, target):
        """What Pillow makes of it."""
        height, width = target
        if fit == "as_is" or (fit == "crop" and picture.size == (width, height)):
            return picture
        if fit == "stretch":
            return picture.resize((width, height), Image.Resampling.BICUBIC)
        scale = max(width / picture.width, height / picture.height)
        scaled = picture.resize((round(picture.width * scale), round(picture.height * scale)),
                                Image.Resampling.BILINEAR)
        left, top = round((scaled.width - width) / 2), round((scaled.height - height) / 2)
        return scaled.crop((left, top, left + width, top + height))

    def cases(self, channels):
        for size in SIZES:
            for target in TARGETS:
                for fit in ("crop", "stretch", "as_is"):
                    self.case = f"{size} for {target}, {fit}"
                    picture = Image.fromarray(noise(*size, channels))
                    yield fit, target, self.save(picture), self.fitted(picture, fit, target)

    def check_pixels(self, values, picture):
        bytes_of = np.round((values.astype(np.float64) + 1) / 2 * 255)
        np.testing.assert_array_equal(bytes_of, np.asarray(picture), self.case)

    def test_pictures_are_cropped_stretched_or_left(self):
        for fit, target, path, want in self.cases(3):
            self.check_pixels(self.read("image", 3, fit, target, path), want)

    def test_transparency_is_kept_in_a_fourth_channel(self):
        for fit, target, path, want in self.cases(4):
            self.check_pixels(self.read("image", 4, fit, target, path), want)

    def test_a_picture_without_transparency_is_opaque(self):
        self.case = "opaque"
        picture = Image.fromarray(noise(24, 16, 3))
        values = self.read("image", 4, "as_is", (8, 8), self.save(picture))
        self.check_pixels(values, picture.convert("RGBA"))

    def test_masks_have_the_brightness_that_pillow_gives(self):
        for fit, target, path, want in self.cases(3):
            values = self.read("mask", 3, fit, target, path)
            want = np.asarray(want.convert("L"), np.float32)[..., None] / np.float32(255)
            np.testing.assert_array_equal(values, want, self.case)

    def test_a_file_that_is_no_picture_is_named(self):
        path = self.dir / "text.png"
        path.write_text("no image")
        self.assertRegex(self.ask("image", 3, "crop", (8, 8), path), r"^error .*text\.png.*not a PNG")
        self.assertRegex(self.ask("mask", 3, "crop", (8, 8), self.dir / "none.png"), r"^error .*none\.png")

    FILTERS = {"box": Image.Resampling.BOX, "bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC,
               "lanczos": Image.Resampling.LANCZOS}

    def padded(self, picture, size, resampling, color):
        """What Pillow makes of a picture that is scaled to lie within height and width, in the middle."""
        height, width = size
        if picture.width * height >= picture.height * width:
            inner = (width, max(1, picture.height * width // picture.width))
        else:
            inner = (max(1, picture.width * height // picture.height), height)
        whole = Image.new(picture.mode, (width, height), color)
        scaled = picture if picture.size == inner else picture.resize(inner, resampling)
        whole.paste(scaled, ((width - inner[0]) // 2, (height - inner[1]) // 2))
        return whole

    def test_pictures_are_padded_with_any_gray(self):
        for size in (*SIZES, (200, 1)):
            for target in TARGETS:
                for name, resampling in self.FILTERS.items():
                    self.case = f"{size} for {target}, {name}"
                    for channels, level in ((3, 127), (4, 255)):
                        picture = Image.fromarray(noise(*size, channels))
                        want = self.padded(picture, target, resampling, (level,) * 3 + (255,) * (channels - 3))
                        self.check_pixels(self.read("image", channels, "pad", target, self.save(picture), filter=name,
                                                    level=level), want)
        # Without a name it is bilinear; a mask has black beside it.
        picture = Image.fromarray(noise(31, 77, 3))
        path = self.save(picture)
        self.check_pixels(self.read("image", 3, "pad", (40, 40), path), self.padded(picture, (40, 40), Image.Resampling.BILINEAR, 0))
        mask = self.read("mask", 3, "pad", (40, 40), path, level=200)
        want = self.padded(picture, (40, 40), Image.Resampling.BILINEAR, 0).convert("L")
        np.testing.assert_array_equal(mask[..., 0], np.asarray(want, np.float32) / np.float32(255))

    def test_an_input_may_have_a_size_and_a_filter_of_its_own(self):
        picture = Image.fromarray(noise(31, 77, 3))
        path = self.save(picture)
        self.case = "own size"
        self.check_pixels(self.read("image", 3, "stretch", (40, 40), path, size=[20, 24], filter="lanczos"),
                          picture.resize((24, 20), Image.Resampling.LANCZOS))
        scaled = picture.resize((40, round(77 * 40 / 31)), Image.Resampling.BICUBIC)
        top = round((scaled.height - 40) / 2)
        self.check_pixels(self.read("image", 3, "crop", (40, 40), path, filter="bicubic"), scaled.crop((0, top, 40, top + 40)))

    def write_clip(self, count, milliseconds=250):
        """A clip each of whose frames has a level of its own."""
        frames = [Image.new("RGB", (8, 6), (40 * i,) * 3) for i in range(count)]
        path = self.dir / "clip.webp"
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=milliseconds, lossless=True)
        return path

    def levels(self, said, is_mask=False):
        values = self.values(said)[0, :, 0, 0].astype(np.float64)
        return np.round(values * 255 if is_mask else (values + 1) / 2 * 255).tolist()

    def test_clips_run_beside_what_is_made(self):
        path, target = self.write_clip(3), [5, 6, 8]
        beside = {"kind": "video", "made_fps": 8}
        for tail, want in (("mirror", [0, 40, 80, 40, 0]), ("repeat", [0, 40, 80, 80, 80]), ("minus_one", [0, 40, 80, 0, 0])):
            self.assertEqual(want, self.levels(self.ask_for(path, target, tail=tail, **beside)), tail)
        gray = self.values(self.ask_for(path, target, tail="zero", **beside))
        self.assertFalse(gray[:, 3:].any())
        np.testing.assert_allclose(gray[0, :3, 0, 0], np.array([0, 40, 80]) / 127.5 - 1, atol=1e-6)
        self.assertEqual([0, 40, 80, 0, 0], self.levels(
            self.ask_for(path, target, tail="zero", kind="video_mask", made_fps=8), is_mask=True))
        # Longer ones are cut, and those that do not run beside are whole.
        self.assertEqual([0, 40], self.levels(self.ask_for(path, [2, 6, 8], **beside)))
        self.assertEqual([0, 40, 80], self.levels(self.ask_for(path, target, kind="video")))
        # Four frames a second at 8 and at 2: the rate of what is made counts, where it has one.
        for fps in (8, 2):
            self.assertEqual([0, 40, 40, 80, 80], self.levels(self.ask_for(path, target, fps=fps, **beside)))
        self.assertEqual([0] * 5, self.levels(
            self.ask_for(path, target, fps=8, tail="repeat", kind="video", made_fps=2)))

    def test_sounds_run_beside_what_is_made(self):
        path = self.dir / "sound.wav"
        values = np.round(sine(440, 0.25) * 2**15) / 2**15
        path.write_bytes(wav(values))
        said = self.ask_for(path, [2, 8, 8], kind="audio", channels=1)
        if "libatelier_video" in said:
            self.skipTest("built without FFmpeg")
        np.testing.assert_array_equal(values, self.values(said)[0])
        beside = {"kind": "audio", "channels": 1, "made_fps": 16}
        np.testing.assert_array_equal(values[:2000], self.values(self.ask_for(path, [2, 8, 8], **beside))[0])
        for tail, rest in (("zero", np.zeros(4000)), ("repeat", np.full(4000, values[-1])), ("minus_one", np.full(4000, -1)),
                           ("mirror", np.concatenate([values[-2::-1], values[1:2]]))):
            read = self.values(self.ask_for(path, [8, 8, 8], tail=tail, **beside))[0]
            np.testing.assert_array_equal(np.concatenate([values, rest]), read, tail)
        self.assertRegex(self.ask_for(path, [8, 8, 8], **beside), "sound.wav: lasts 0.25 s, and 0.5 s are needed")
        self.assertEqual((2, 2757), self.values(self.ask_for(path, [1, 8, 8], kind="audio", channels=2, rate=11025)).shape[:2])


if __name__ == "__main__":
    unittest.main()
