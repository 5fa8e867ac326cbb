"""Files without values give the same model in the program and in diffusers: the numbers of their seed."""

import json
import pathlib
import sys
import tempfile
import unittest

import torch

import atelier
import compare

sys.path.insert(0, str(atelier.REPOSITORY / "bench"))
import random_models  # noqa: E402
from families import FAMILIES, WAN, WAN_14B  # noqa: E402


class RandomWeightsParityTest(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="atelier_random_")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def inputs(self, family, folder):
        width = json.loads((folder / "transformer/config.json").read_text())[family.text_width_name]
        generator = torch.Generator().manual_seed(1)
        return {
            "latents": torch.randn((1, 16, 1, 8, 10), generator=generator),
            "sigma": torch.full((1,), 0.6),
            "prompt_embeds": torch.randn((1, 7, width), generator=generator)
        }

    def test_holes_are_filled_alike(self):
        for family in (*FAMILIES.values(), WAN):
            with self.subTest(family.plugin):
                folder = self.folder / family.plugin
                folder.mkdir()
                random_models.write_model(folder, family, is_published=False)
                inputs = self.inputs(family, folder)
                got = atelier.probe("dit", folder / "transformer", inputs, plugin=family.plugin)["velocity"]
                model = random_models.diffusers_model(family, folder, "cpu", torch.float32)
                with torch.no_grad():
                    expected = family.velocity()(model, inputs["latents"], inputs["sigma"], inputs["prompt_embeds"])
                compare.assert_close("files without values", got, expected)

    def test_a_seed_that_is_no_number_is_named(self):
        family = FAMILIES["qwen_image"]
        random_models.write_model(self.folder, family, is_published=False)
        file = self.folder / "transformer/model.safetensors"
        random_models.published_sizes.write_holes(file, random_models.shapes_of(file.parent),
                                                  {"atelier.random_weights": "seven"})
        with self.assertRaisesRegex(atelier.ProgramFailed, "exit code 2.*(\n.*)*'?seven'?.*no number"):
            atelier.probe("dit", self.folder / "transformer", self.inputs(family, self.folder))

    def test_published_shapes_are_those_of_the_lists(self):
        for family in (*FAMILIES.values(), WAN, WAN_14B):
            for keys, _ in family.published.values():
                with self.subTest(keys):
                    first = (random_models.DATA / "keys" / keys).read_text().splitlines()[0]
                    shapes = random_models.published_shapes(keys)
                    count = sum(torch.Size(shape).numel() for shape in shapes.values())
                    self.assertEqual(first, f"# {len(shapes)} tensors, {count} parameters")


if __name__ == "__main__":
    unittest.main()
