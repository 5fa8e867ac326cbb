"""In bfloat16 the error is no larger than that of diffusers and transformers in bfloat16.

All sides start from the same weights and inputs, rounded to bfloat16, so that only the arithmetic
is compared. The error is the root mean square of the difference from the float64 reference, in
units of that reference's own root mean square.
"""

import copy
import pathlib
import sys
import tempfile
import unittest

import torch
from safetensors.torch import save_file

import atelier
import compare
import controls_parity_test as controls
import references
import tiny_models

ALLOWED = 1.05  # our error in units of theirs


class Bf16ParityTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = tiny_models.get()

    def check(self, name, component, folder, model, inputs, output, reference):
        """`reference` takes a model and a dict of inputs; the floating inputs come in the model's
        dtype."""
        inputs = {
            key: value.bfloat16().float() if value.is_floating_point() else value
            for key, value in inputs.items()
        }
        rounded = copy.deepcopy(model).bfloat16()

        def run_reference(dtype):
            with torch.no_grad():
                return reference(
                    copy.deepcopy(rounded).to(dtype), {
                        key: value.to(dtype) if value.is_floating_point() else value
                        for key, value in inputs.items()
                    }).double()

        exact, theirs = run_reference(torch.float64), run_reference(torch.bfloat16)
        ours = atelier.probe(component, folder, inputs, dtype="bfloat16")[output].double()
        self.assertEqual(ours.shape, exact.shape)
        scale = exact.square().mean().sqrt()
        our_error = float((ours - exact).square().mean().sqrt() / scale)
        their_error = float((theirs - exact).square().mean().sqrt() / scale)
        compare.record(f"bfloat16, {name}: our error", our_error)
        compare.record(f"bfloat16, {name}: their error", their_error)
        compare.record(f"bfloat16, {name}: ratio", our_error / their_error)
        self.assertGreater(their_error, 1e-4, "the reference did not run in bfloat16")
        self.assertLessEqual(our_error, ALLOWED * their_error,
                             f"{name}: error {our_error:.4g}, theirs {their_error:.4g}")

    def test_the_text_encoder_is_as_exact(self):
        generator = torch.Generator().manual_seed(51)
        input_ids = torch.randint(0, self.models.tokenizer.vocab_size, (8, 64), generator=generator)
        self.check("text encoder", "text_encoder", self.models.model / "text_encoder",
                   self.models.text_encoder, {"input_ids": input_ids}, "hidden",
                   lambda model, inputs: references.hidden(model, inputs["input_ids"]))

    def test_encoding_an_image_is_as_exact(self):
        image = torch.rand((4, 3, 96, 72), generator=torch.Generator().manual_seed(52)) * 2 - 1
        self.check("VAE, encode", "vae", self.models.model / "vae", self.models.vae,
                   {"image": image}, "latents",
                   lambda model, inputs: references.encode(model, inputs["image"]))

    def test_decoding_latents_is_as_exact(self):
        latents = torch.randn((4, 16, 1, 12, 9), generator=torch.Generator().manual_seed(53))
        self.check("VAE, decode", "vae", self.models.model / "vae", self.models.vae,
                   {"latents": latents}, "image",
                   lambda model, inputs: references.decode(model, inputs["latents"]))

    def test_the_denoiser_is_as_exact(self):
        """At sigma 0 the time embedding is exact in any dtype: elsewhere diffusers rounds its
        frequencies as well."""
        generator = torch.Generator().manual_seed(54)
        latents = torch.randn((4, 16, 1, 12, 20), generator=generator)
        prompt_embeds = torch.randn((4, 40, 96), generator=generator)
        for sigma in (0.0, 0.75):
            with self.subTest(sigma=sigma):
                inputs = {
                    "latents": latents,
                    "sigma": torch.full((4,), sigma),
                    "prompt_embeds": prompt_embeds
                }
                self.check(
                    f"denoiser at sigma {sigma:g}", "dit", self.models.model / "transformer",
                    self.models.transformer, inputs,
                    "velocity", lambda model, inputs: references.velocity(
                        model, inputs["latents"], inputs["sigma"], inputs["prompt_embeds"]))

    def test_controlnets_are_as_exact(self):
        transformer = self.models.transformer
        width = transformer.config.joint_attention_dim
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            net = controls.make_instantx(transformer, folder / "net", 78, layers=2)
            inputs = controls.instantx_inputs(16, width)
            for sigma in (0.0, 0.75):
                with self.subTest(sigma=sigma):
                    inputs["sigma"] = torch.full((2,), sigma)
                    self.check(f"ControlNet at sigma {sigma:g}", "controlnet", folder / "net", net, inputs, "hints",
                               lambda model, given: controls.instantx_hints(model, **given))
            blocks = tiny_models.randomize_(controls.BlockwiseNet(3, 64, 16), 88)
            save_file(blocks.state_dict(), folder / "blocks.safetensors")
            self.check("blockwise ControlNet", "blockwise_controlnet", folder / "blocks.safetensors", blocks,
                       controls.blockwise_inputs(16, 64), "hints",
                       lambda model, given: controls.blockwise_hints(model, **given))


if __name__ == "__main__":
    sys.exit(unittest.main())
