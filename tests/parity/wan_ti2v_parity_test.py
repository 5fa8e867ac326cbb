"""Wan 2.2 TI2V: its VAE, its denoiser with a clean first frame, and clips from texts and images give
what diffusers gives."""

import sys
import tempfile
import unittest

import torch
from diffusers import WanImageToVideoPipeline, WanPipeline
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify, unpatchify
from PIL import Image
from safetensors.torch import save_file

import atelier
import compare
import tiny_models
import wan_checks
import wan_models
from wan_checks import probe

PROMPT, NEGATIVE = "A cat walks along a wall", "blurry"
CHANNELS = wan_models.WIDE_CHANNELS


class WideVaeTest(wan_checks.VaeChecks, wan_checks.FolderTest):
    channels = CHANNELS

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.vae = wan_models.make_wide_vae()
        cls.folder = cls.dir / "vae"
        cls.vae.save_pretrained(cls.folder)
        cls.original = cls.dir / "original.safetensors"
        save_file(
            tiny_models.contiguous(
                wan_models.renamed(cls.vae.state_dict(), wan_models.ORIGINAL_VAE_2)),
            cls.original,
            metadata=tiny_models.config_metadata(cls.folder))

    def test_clips_encode_the_same(self):
        for frames, height, width in ((1, 48, 80), (5, 32, 48), (9, 48, 16), (13, 16, 32)):
            with self.subTest(frames=frames, height=height, width=width):
                self.check("wan 2.2, VAE, encode", self.clip(1, frames, height, width))

    def test_clips_decode_the_same(self):
        for frames, height, width in ((1, 3, 5), (2, 3, 5), (3, 3, 1), (4, 2, 3)):
            with self.subTest(frames=frames, height=height, width=width):
                self.check("wan 2.2, VAE, decode", latents=self.latents(1, frames, height, width))

    def test_a_batch_is_the_same(self):
        self.check("wan 2.2, VAE, encode, batch", self.clip(2, 9, 32, 16))
        self.check("wan 2.2, VAE, decode, batch", latents=self.latents(2, 3, 3, 2))

    def test_the_original_spelling_gives_the_same(self):
        self.check("wan 2.2, VAE, encode, original spelling", self.clip(1, 5, 32, 16),
                   paths=self.original)
        self.check("wan 2.2, VAE, decode, original spelling", latents=self.latents(1, 2, 3, 2),
                   paths=self.original)

    def test_other_levels_give_the_same(self):
        for number, changes in enumerate(
            (dict(base_dim=6, dim_mult=[1, 2, 2], temperal_downsample=[True, True], z_dim=6),
             dict(num_res_blocks=1, decoder_base_dim=8),
             dict(patch_size=None, in_channels=3, out_channels=3),
             dict(is_residual=False, decoder_base_dim=None))):
            vae = wan_models.make_wide_vae(seed=110 + number, **changes)
            with self.subTest(**changes), tempfile.TemporaryDirectory() as folder:
                vae.save_pretrained(folder)
                self.check("wan 2.2, VAE, encode, other levels", self.clip(1, 9, 32, 16),
                           paths=folder, vae=vae)
                self.check("wan 2.2, VAE, decode, other levels",
                           latents=self.latents(1, 3, 3, 2, channels=vae.config.z_dim),
                           paths=folder, vae=vae)

    def test_pieces_give_what_the_whole_clip_gives_at_once(self):
        clip, latents = self.clip(1, 13, 32, 16), self.latents(1, 4, 3, 2)
        with wan_models.whole_clips(), torch.no_grad():
            mean, std = wan_models.constants(self.vae, clip)
            moments = self.vae.quant_conv(self.vae.encoder(patchify(clip, 2)))
            encoded = (moments[:, :CHANNELS] - mean) / std
            patches = self.vae.decoder(self.vae.post_quant_conv(latents * std + mean),
                                       first_chunk=True)
        compare.assert_close("wan 2.2, VAE, encode, pieces against the whole", self.ours(clip),
                             encoded, tolerance=1e-5)
        compare.assert_close("wan 2.2, VAE, decode, pieces against the whole",
                             self.ours(latents=latents), unpatchify(patches, 2).clamp(-1, 1),
                             tolerance=1e-5)

    def test_gradients_are_the_same(self):
        self.check_gradients("wan 2.2, VAE", self.clip(1, 9, 16, 32), self.latents(1, 3, 2, 3))


class WideDitTest(wan_checks.FolderTest):

    def inputs(self, frames, pinned, batch=2):
        generator = torch.Generator().manual_seed(7)

        def draw(*shape):
            return torch.randn((batch, *shape), generator=generator)

        inputs = {
            "latents": draw(CHANNELS, frames, 6, 10),
            "sigma": torch.rand((batch,), generator=generator) * 0.9 + 0.05,
            "prompt_embeds": draw(13, wan_models.TEXT_WIDTH)
        }
        if pinned:
            inputs["first_frame"] = inputs["latents"][:, :, :1].clone()
        return inputs

    def test_velocities_and_gradients_are_the_same_in_every_spelling(self):
        transformer = wan_models.make_wide_transformer()
        results = {}
        for pinned, what in ((False, "no given frame"), (True, "a clean first frame")):
            with self.subTest(pinned=pinned):
                results[pinned] = wan_checks.check_denoiser("wan 2.2, TI2V, denoiser", what,
                                                            transformer, self.dir / "transformer",
                                                            self.inputs(3, pinned))
        effect = compare.relative_error(results[True], results[False])
        self.assertGreater(effect, 0.01, "the clean frame's timestep proves nothing")

    def test_a_frame_that_is_given_alone_is_told_to_be_clean(self):
        transformer = wan_models.make_wide_transformer()
        transformer.save_pretrained(self.dir / "alone")
        inputs = self.inputs(1, pinned=True)
        with torch.no_grad():
            expected = wan_models.velocity(transformer, **inputs)
        compare.assert_close("wan 2.2, TI2V, denoiser, one given frame",
                             probe("dit", self.dir / "alone", inputs)["velocity"], expected)


class WidePipelineTest(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.parts = dict(transformer=wan_models.make_wide_transformer(),
                         vae=wan_models.make_wide_vae())
        cls.folder = cls.models.folder_with(cls.dir / "model", **cls.parts)

    @staticmethod
    def noise(frames, height, width, seed):
        return wan_checks.noise(frames, height, width, seed, channels=CHANNELS, cell=16)

    def check(self, name, frames, height, width, image=None, steps=4):
        kind = WanPipeline if image is None else WanImageToVideoPipeline
        pipeline = self.models.make_pipeline(kind, shift=5.0, expand_timesteps=True, **self.parts)
        latents = self.noise(frames, height, width, seed=8)
        options = dict(prompt=PROMPT, negative_prompt=NEGATIVE, height=height, width=width,
                       num_frames=frames, num_inference_steps=steps)
        shown = {} if image is None else dict(image=Image.fromarray(image))
        video = pipeline(latents=latents, output_type="np", **shown, **options).frames[0]
        got = wan_checks.generate(self.folder, latents, input_image=image, **options)
        compare.assert_images(name, got, wan_models.rounded(video), tolerance=0.5)

    def test_clips_and_images_from_texts_are_those_of_diffusers(self):
        self.check("wan 2.2, TI2V, clips from texts", 5, 64, 96)
        self.check("wan 2.2, TI2V, images", 1, 64, 64, steps=3)

    def test_clips_from_an_image_are_those_of_diffusers(self):
        self.check("wan 2.2, TI2V, clips from an image", 9, 64, 96,
                   image=wan_checks.picture(64, 96, seed=3))

    def test_clips_from_a_clip_are_those_of_diffusers(self):
        asked = dict(prompt=PROMPT, negative_prompt=NEGATIVE, num_inference_steps=5)
        with wan_models.clip_folder(5, 64, 96) as (folder, clip):
            expected = wan_models.changed_clip(self.models, clip, 9, self.parts, shift=5.0,
                                               strength=0.6, guidance_scale=5.0, **asked)
            got = wan_checks.generate(self.folder, self.noise(5, 64, 96, seed=9),
                                      input_video=folder, denoising_strength=0.6, **asked)
        compare.assert_images("wan 2.2, TI2V, clips from a clip", got, expected)

    def test_a_size_that_does_not_fit_is_told(self):
        latents = torch.randn((1, CHANNELS, 2, 4, 5))
        with self.assertRaisesRegex(atelier.ProgramFailed, "80.*multiple of 32"):
            wan_checks.generate(self.folder, latents, prompt=PROMPT, height=64, width=80,
                                num_frames=5)


if __name__ == "__main__":
    sys.exit(unittest.main())
