"""What examples/shapes draws with numpy, and what its classifier sees in it."""

import collections
import csv
import dataclasses
import pathlib
import tempfile
import unittest

import example  # first: it skips the test without numpy and Pillow
import numpy as np
from PIL import Image, ImageFilter

EXAMPLE = example.use("shapes")
import classify  # noqa: E402
import pictures  # noqa: E402

SEED, COUNT = 77, 300


def spoil(picture, number):
    """A little blur and noise, as a decoder adds them."""
    blurred = np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(0.8)), float)
    noise = np.random.default_rng(number).normal(0, 8, blurred.shape)
    return np.clip(blurred + noise, 0, 255).astype(np.uint8)


class Classifier(unittest.TestCase):

    def test_drawn_pictures_are_understood_also_with_blur_and_noise(self):
        right = collections.Counter()
        for number in range(COUNT):
            scene = pictures.numbered_scene(SEED, number)
            picture = pictures.paint(scene)
            if number % 2:
                picture = spoil(picture, number)
            right.update(classify.judge(classify.classify(picture), scene))
        for what in ("colors", "shapes", "things", "ground", "positions"):
            self.assertGreaterEqual(right[what], 0.99 * COUNT, what)

    def test_wrong_pictures_are_told_from_right_ones(self):
        for number in range(40):
            scene = pictures.numbered_scene(SEED, number)
            other = pictures.numbered_scene(SEED, number + 1)
            judged = classify.judge(classify.classify(pictures.paint(other)), scene)
            self.assertFalse(all(judged.values()), scene.prompt())

    def test_things_that_changed_places_are_in_the_wrong_positions(self):
        tried = 0
        for number in range(40):
            scene = pictures.numbered_scene(SEED, number)
            if len(scene.things) < 2 or len({(t.color, t.shape) for t in scene.things}) < 2:
                continue
            seen = classify.classify(np.ascontiguousarray(
                pictures.paint(scene)[::-1, ::-1]))  # turned by half a circle
            color = scene.things[0].color
            first, second = sorted(seen.things, key=lambda thing: thing.color != color)
            if first.color == second.color:
                continue
            self.assertFalse(classify.is_placed(first, second, scene.relation))
            tried += 1
        self.assertGreater(tried, 5)

    def test_an_empty_ground_has_no_things(self):
        ground = np.full((pictures.SIZE, pictures.SIZE, 3), pictures.COLORS["green"], np.uint8)
        self.assertEqual((), classify.classify(ground).things)

    def test_hatched_things_are_told_from_plain_ones(self):
        scenes = [pictures.numbered_scene(SEED, number) for number in range(40)]
        amounts = {style: [classify.hatching(pictures.paint(scene, style)) for scene in scenes]
                   for style in ("plain", "hatched")}
        self.assertLess(max(amounts["plain"]), min(amounts["hatched"]))


class Drawing(unittest.TestCase):

    def test_a_picture_depends_on_seed_and_number_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            pictures.write(folder / "few", 3, seed=5)
            pictures.write(folder / "more", 5, seed=5)
            for name in ("000000.png", "000002.png"):
                self.assertEqual((folder / "few" / name).read_bytes(),
                                 (folder / "more" / name).read_bytes())

    def test_things_over_the_empty_ground_are_the_picture(self):
        for number in range(20):
            scene = pictures.numbered_scene(SEED, number, wide=True)
            ground = Image.fromarray(pictures.paint(dataclasses.replace(scene, things=()))).convert("RGBA")
            things = Image.fromarray(pictures.paint_things(scene))
            both = np.asarray(Image.alpha_composite(ground, things).convert("RGB"), int)
            self.assertLessEqual(np.abs(both - pictures.paint(scene)).max(), 2)  # rounded twice

    def test_the_committed_pictures_are_those_of_the_commands(self):
        for name, options in (("hatched", dict(count=24, seed=3, style="hatched")),
                              ("edit", dict(count=12, seed=5, editing=True))):
            with tempfile.TemporaryDirectory() as folder:
                pictures.write(pathlib.Path(folder), **options)
                drawn = sorted(path.name for path in pathlib.Path(folder).iterdir())
                self.assertEqual(drawn, sorted(path.name for path in (EXAMPLE / name).iterdir()))
                for file in drawn:
                    if file.endswith(".csv"):
                        self.assertEqual((pathlib.Path(folder) / file).read_text(),
                                         (EXAMPLE / name / file).read_text())
                    else:
                        self.assertTrue((np.asarray(Image.open(pathlib.Path(folder) / file)) ==
                                         np.asarray(Image.open(EXAMPLE / name / file))).all(), file)

    def test_an_edit_changes_the_colour_of_one_thing(self):
        with open(EXAMPLE / "edit" / "metadata.csv", newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                before, after = (
                    classify.classify(np.asarray(Image.open(EXAMPLE / "edit" / row[key])))
                    for key in ("edit_image", "image"))
                color, shape, wanted = row["prompt"].split()[2:]
                changed = [(thing.color, thing.shape) for thing in before.things]
                changed[changed.index((color, shape))] = (wanted, shape)
                self.assertEqual(sorted(changed),
                                 sorted((thing.color, thing.shape) for thing in after.things))


if __name__ == "__main__":
    unittest.main()
