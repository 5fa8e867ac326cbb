"""The VAE encodes and decodes as diffusers' does, values and gradients, for both spellings of its
files."""

import pathlib
import sys
import tempfile
import unittest

import torch
from safetensors.torch import save_file

import atelier
import compare
import references
import tiny_models


class VaeParityTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = tiny_models.get()
        cls.vae = cls.models.vae
        cls.folder = cls.models.model / "vae"

    @staticmethod
    def image(batch, height, width, seed=21):
        return torch.rand(
            (batch, 3, height, width), generator=torch.Generator().manual_seed(seed)) * 2 - 1

    @staticmethod
    def latents(batch, height, width, seed=22):
        return torch.randn((batch, 16, 1, height, width),
                           generator=torch.Generator().manual_seed(seed))

    def check(self, name, inputs, reference, paths=None, vae=None):
        (key, value), = inputs.items()
        got = atelier.probe("vae", paths or self.folder,
                            inputs)["image" if key == "latents" else "latents"]
        with torch.no_grad():
            compare.assert_close(name, got, reference(vae or self.vae, value))

    def test_images_encode_the_same(self):
        for height, width in ((64, 64), (40, 56), (24, 8), (8, 8)):
            with self.subTest(height=height, width=width):
                self.check("VAE, encode", {"image": self.image(1, height, width)},
                           references.encode)

    def test_latents_decode_the_same(self):
        for height, width in ((8, 8), (5, 7), (3, 1), (1, 1)):
            with self.subTest(height=height, width=width):
                self.check("VAE, decode", {"latents": self.latents(1, height, width)},
                           references.decode)

    def test_large_latents_decode_clamped(self):
        latents = 4 * self.latents(1, 5, 7)
        with torch.no_grad():
            clamped = references.decode(self.vae, latents).abs().eq(1).float().mean()
        self.assertGreater(float(clamped), 0.05,
                           "nothing is clamped, so the test would prove nothing")
        self.check("VAE, decode, clamped", {"latents": latents}, references.decode)

    def test_batches_are_the_same_and_equal_their_samples(self):
        image, latents = self.image(3, 40, 56), self.latents(3, 5, 7)
        self.check("VAE, encode, batch", {"image": image}, references.encode)
        self.check("VAE, decode, batch", {"latents": latents}, references.decode)
        encoded = atelier.probe("vae", self.folder, {"image": image})["latents"]
        decoded = atelier.probe("vae", self.folder, {"latents": latents})["image"]
        single = atelier.probe("vae", self.folder, {"image": image[1:2]})["latents"]
        compare.assert_close("VAE, encode, batch against its samples", encoded[1:2], single)
        single = atelier.probe("vae", self.folder, {"latents": latents[2:3]})["image"]
        compare.assert_close("VAE, decode, batch against its samples", decoded[2:3], single)

    def test_the_original_spelling_gives_the_same(self):
        path = self.models.root / "vae_original.safetensors"
        self.check("VAE, encode, original spelling", {"image": self.image(1, 40, 56)},
                   references.encode, path)
        self.check("VAE, decode, original spelling", {"latents": self.latents(1, 5, 7)},
                   references.decode, path)

    def test_levels_of_odd_widths_give_the_same(self):
        vae = tiny_models.make_vae(seed=9, base_dim=5, dim_mult=[1, 3, 3],
                                   temperal_downsample=[False, True])
        original = {tiny_models.original_vae_name(k): v for k, v in vae.state_dict().items()}
        with tempfile.TemporaryDirectory() as folder:
            vae.save_pretrained(folder)
            file = pathlib.Path(folder) / "original" / "vae.safetensors"
            vae.save_config(file.parent)
            save_file(tiny_models.contiguous(original), file)
            for path in (folder, file):
                self.check("VAE, encode, odd widths", {"image": self.image(1, 20, 28)},
                           references.encode, path, vae)
                self.check("VAE, decode, odd widths", {"latents": self.latents(1, 5, 7)},
                           references.decode, path, vae)

    def test_gradients_of_encoding_are_the_same(self):
        self.check_gradients("VAE, encode, gradients", "image", self.image(2, 40, 56),
                             references.encode, ("encoder.", "quant_conv."), "latents")

    def test_gradients_of_decoding_are_the_same(self):
        self.check_gradients("VAE, decode, gradients", "latents", self.latents(2, 5, 7),
                             references.decode, ("decoder.", "post_quant_conv."), "image")

    def check_gradients(self, name, key, value, reference, halves, output_name):
        """All gradients; the taps of a kernel that see only empty frames get zeros, the other
        half's nothing."""
        got = atelier.probe("vae", self.folder, {key: value}, gradients=True, trainable="*")
        value = value.clone().requires_grad_(True)
        output = reference(self.vae, value)
        expected = references.gradients(output, {key: value}, dict(self.vae.named_parameters()))
        compare.assert_gradients(name, got, expected)
        compare.assert_close(name + ", values", got[output_name], output)
        self.assertTrue(any(
            key.startswith(tuple("grad." + half for half in halves)) for key in got))


if __name__ == "__main__":
    sys.exit(unittest.main())
