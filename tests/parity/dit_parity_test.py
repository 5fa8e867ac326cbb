"""The denoiser predicts diffusers' velocity, with the same gradients, for every size and length of
prompt."""

import sys
import tempfile
import unittest

import torch

import atelier
import compare
import references
import tiny_models

# A GPU's exp differs from the CPU's in the last bit of a frequency, 6e-8 of it, which is 6e-5 of a wave at a position of 1000 sigma:
# of its slope, which is all that the gradient of sigma has, twice as much. Nothing else is as steep.
TOLERANCES = {} if atelier.DEVICE == "cpu" else {"grad.sigma": 3e-4}


class DitParityTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = tiny_models.get()
        cls.folder = cls.models.model / "transformer"
        cls.transformer = cls.models.transformer

    @staticmethod
    def inputs(batch, height, width, length, dim=96, seed=31):
        """Random inputs for a grid of height x width tokens, each 2 x 2 latents."""
        generator = torch.Generator().manual_seed(seed)
        return {
            "latents": torch.randn((batch, 16, 1, 2 * height, 2 * width), generator=generator),
            "sigma": torch.rand((batch,), generator=generator) * 0.9 + 0.05,
            "prompt_embeds": torch.randn((batch, length, dim), generator=generator)
        }

    def check(self, name, inputs, paths=None, transformer=None):
        got = atelier.probe("dit", paths or self.folder, inputs)["velocity"]
        with torch.no_grad():
            expected = references.velocity(transformer or self.transformer, inputs["latents"],
                                           inputs["sigma"], inputs["prompt_embeds"],
                                           inputs.get("prompt_lengths"))
        compare.assert_close(name, got, expected)
        return got

    def test_every_token_grid_gives_the_same_velocity(self):
        for height, width in ((4, 4), (5, 6), (3, 7), (1, 9), (2, 1), (1, 1)):
            with self.subTest(height=height, width=width):
                self.check("denoiser, odd and even grids", self.inputs(1, height, width, 13))

    def test_prompts_of_any_length_give_the_same_velocity(self):
        for length in (1, 2, 64, 257):
            with self.subTest(length=length):
                self.check("denoiser, lengths of prompt", self.inputs(1, 4, 5, length))

    def test_the_ends_of_the_schedule_give_the_same_velocity(self):
        for sigma in (0.0, 0.02, 1.0):
            with self.subTest(sigma=sigma):
                inputs = self.inputs(1, 4, 5, 13)
                inputs["sigma"] = torch.tensor([sigma])
                self.check("denoiser, ends of the schedule", inputs)

    def batch(self):
        """Three samples with prompts of different lengths; what is behind a prompt must not
        matter."""
        inputs = self.inputs(3, 3, 5, 17)
        inputs["prompt_lengths"] = torch.tensor([17, 4, 9])
        return inputs

    def test_a_batch_of_different_prompts_gives_the_same_velocity(self):
        self.check("denoiser, batch of different prompts", self.batch())

    def test_a_batch_equals_its_samples(self):
        inputs = self.batch()
        together = atelier.probe("dit", self.folder, inputs)["velocity"]
        for row, length in enumerate(inputs["prompt_lengths"].tolist()):
            single = {
                "latents": inputs["latents"][row:row + 1],
                "sigma": inputs["sigma"][row:row + 1],
                "prompt_embeds": inputs["prompt_embeds"][row:row + 1, :length]
            }
            alone = self.check("denoiser, each sample alone", single)
            compare.assert_close("denoiser, batch against its samples", together[row:row + 1],
                                 alone)

    def test_a_batch_of_equal_prompts_gives_the_same_velocity(self):
        self.check("denoiser, batch of equal prompts", self.inputs(2, 5, 4, 11))

    def test_a_prefixed_single_file_gives_the_same_velocity(self):
        for height, width in ((5, 6), (3, 3)):
            with self.subTest(height=height, width=width):
                self.check("denoiser, ComfyUI file", self.inputs(1, height, width, 13, dim=256),
                           self.models.root / "single" / "dit.safetensors",
                           self.models.wide_transformer)

    def test_a_config_with_guidance_gives_the_same_velocity(self):
        """No weights embed it, and the reference's denoiser computes none."""
        transformer = tiny_models.make_transformer(joint_dim=96, heads=3, head_dim=32,
                                                   axes=(8, 12, 12), seed=6, guidance_embeds=True)
        with tempfile.TemporaryDirectory() as folder:
            transformer.save_pretrained(folder)
            self.check("denoiser, guidance in its config", self.inputs(1, 3, 4, 7), folder,
                       transformer)

    def test_all_gradients_are_the_same(self):
        self.check_gradients("denoiser, all gradients", self.inputs(1, 5, 6, 13), "*",
                             lambda name: True)

    def test_gradients_of_a_batch_of_different_prompts_are_the_same(self):
        self.check_gradients("denoiser, gradients of a batch", self.batch(), "*", lambda name: True)

    def test_only_matching_parameters_get_gradients(self):
        self.check_gradients("denoiser, some gradients", self.inputs(1, 4, 3, 5),
                             "transformer_blocks.1.attn.*",
                             lambda name: name.startswith("transformer_blocks.1.attn."))

    def check_gradients(self, name, inputs, glob, matches):
        got = atelier.probe("dit", self.folder, inputs, gradients=True, trainable=glob)
        floating = {
            key: value.clone().requires_grad_(True)
            for key, value in inputs.items()
            if value.is_floating_point()
        }
        output = references.velocity(self.transformer, floating["latents"], floating["sigma"],
                                     floating["prompt_embeds"], inputs.get("prompt_lengths"))
        parameters = {
            key: value for key, value in self.transformer.named_parameters() if matches(key)
        }
        compare.assert_gradients(name, got, references.gradients(output, floating, parameters), TOLERANCES)
        compare.assert_close(name + ", values", got["velocity"], output)


if __name__ == "__main__":
    sys.exit(unittest.main())
