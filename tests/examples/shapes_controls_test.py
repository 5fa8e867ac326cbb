"""What examples/shapes/controls.py draws to learn from: pictures, and what is given beside them."""

import json
import pathlib
import tempfile
import unittest

import example  # first: it skips the test without numpy and Pillow
import numpy as np
from PIL import Image

EXAMPLE = example.use("shapes")
import classify  # noqa: E402
import controls  # noqa: E402
import pictures  # noqa: E402

SEED, COUNT = 78, 12


def rows(make_row, count=COUNT):
    return [make_row(np.random.default_rng([SEED, number])) for number in range(count)]


class Given(unittest.TestCase):

    def test_entities_stand_in_their_masks(self):
        for row in rows(controls.entity_row):
            ground = classify.classify(row.image)
            masks = [mask[:, :, 0] > 0 for mask in row.given["eligen_entity_masks"]]
            self.assertFalse((masks[0] & masks[1]).any())
            for words, mask in zip(row.given["eligen_entity_prompts"], masks):
                color, shape = words.split()[1:]
                inside = [thing for thing in ground.things if mask[int(thing.y), int(thing.x)]]
                self.assertEqual([(color, shape)], [(thing.color, thing.shape) for thing in inside])
                self.assertIn(words, row.prompt)

    def test_edges_are_where_neighbours_differ(self):
        for row in rows(controls.canny_row):
            edges = row.given["blockwise_controlnet_image"][0][:, :, 0] > 0
            self.assertTrue(0.005 < edges.mean() < 0.5)
            for y, x in np.argwhere(edges):
                around = row.image[y:y + 2, x:x + 2].reshape(-1, 3)
                self.assertTrue((around != around[0]).any())

    def test_another_thing_is_asked_behind_the_mask_and_all_else_stays(self):
        for row in rows(lambda rng: controls.inpaint_row(rng, anew=True)):
            given, mask = (row.given[name][0] for name in ("blockwise_controlnet_image",
                                                           "blockwise_controlnet_inpaint_mask"))
            self.assertTrue((given == row.image)[mask == 0].all())
            self.assertFalse((given == row.image).all())

    def test_what_is_learnt_behind_a_mask_is_the_picture(self):
        for row in rows(controls.inpaint_row):
            self.assertTrue((row.image == row.given["blockwise_controlnet_image"][0]).all())

    def test_things_are_nearer_than_the_ground(self):
        for number in range(COUNT):
            scene = pictures.numbered_scene(SEED, number, wide=True)
            near = controls.nearness(scene)[:, :, 0]
            for thing in scene.things:
                self.assertGreater(near[int(thing.y), int(thing.x)], near[0, 0])


class Judging(unittest.TestCase):

    def test_a_picture_is_right_where_it_is_the_wanted_one(self):
        drawn = [row.image for row in rows(controls.canny_row)]
        self.assertTrue(all(controls.is_right(picture, picture) for picture in drawn))
        self.assertFalse(any(map(controls.is_right, drawn, drawn[1:])))

    def test_a_thing_elsewhere_is_wrong(self):
        picture = pictures.paint(pictures.Scene((pictures.Thing("red", "circle", 50, 60, 24),), "", "green", ""))
        self.assertTrue(controls.is_right(np.roll(picture, 4, 1), picture))
        self.assertFalse(controls.is_right(np.roll(picture, 12, 1), picture))


class Files(unittest.TestCase):

    def test_a_table_names_the_files_of_all_kinds(self):
        for name, kind in controls.KINDS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                written = controls.write(folder, kind.make_row, 2, SEED)
                lines = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
                self.assertEqual([row.prompt for row in written], [line["prompt"] for line in lines])
                for row, line in zip(written, lines):
                    self.assertEqual(set(row.given) | {"image", "prompt"}, set(line))
                    self.assertTrue((np.asarray(Image.open(folder / line["image"])) == row.image).all())


class Nets(unittest.TestCase):

    def test_they_begin_with_adding_nothing(self):
        for name, kind in controls.KINDS.items():
            if kind.net:
                ends = {key: value for key, value in kind.net().items()
                        if key.endswith("output_proj.weight") or key.startswith("controlnet_blocks") and
                        key.count(".") == 2 and key.endswith(".weight")}
                self.assertTrue(ends, name)
                self.assertFalse(any(value.any() for value in ends.values()), name)


if __name__ == "__main__":
    unittest.main()
