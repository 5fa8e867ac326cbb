"""Compares what inputs are read as with Pillow, bit by bit.

    read_test.py INPUTS_TOOL
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from PIL import Image

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

    def ask(self, kind, channels, fit, target, path):
        self.tool.stdin.write("\t".join(map(str, (kind, channels, fit, *target, path, self.dir / "out"))) + "\n")
        self.tool.stdin.flush()
        return self.tool.stdout.readline().strip()

    def read(self, kind, channels, fit, target, path):
        said = self.ask(kind, channels, fit, target, path).split()
        self.assertEqual("ok", said[0], said)
        values = np.fromfile(self.dir / "out", np.float32).reshape([int(n) for n in said[1:]])
        return values.transpose(1, 2, 0)

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


if __name__ == "__main__":
    unittest.main()
