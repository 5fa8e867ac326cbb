"""Wan 2.2 TI2V: its VAE, its denoiser with a clean first frame, and clips from texts and images give
what diffusers gives."""

import pathlib
import sys
import tempfile
import unittest

import numpy as np
import torch
from diffusers import UniPCMultistepScheduler, WanImageToVideoPipeline, WanPipeline
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify, unpatchify
from PIL import Image
from safetensors.torch import save_file

import atelier
import compare
import references
import tiny_models
import wan_models

PLUGIN = "wan"
PROMPT, NEGATIVE = "A cat walks along a wall", "blurry"
CHANNELS = wan_models.WIDE_CHANNELS


def probe(component, paths, inputs, **options):
    return atelier.probe(component, paths, inputs, plugin=PLUGIN, **options)


class Folder(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory(prefix="atelier_wan_ti2v_")
        cls.dir = pathlib.Path(cls.holder.name)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()


class WideVaeTest(Folder):

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

    @staticmethod
    def clip(batch, frames, height, width, seed=21):
        return torch.rand((batch, 3, frames, height, width),
                          generator=torch.Generator().manual_seed(seed)) * 2 - 1

    @staticmethod
    def latents(batch, frames, height, width, seed=22, channels=CHANNELS):
        return torch.randn((batch, channels, frames, height, width),
                           generator=torch.Generator().manual_seed(seed))

    def ours(self, clip=None, latents=None, paths=None, **options):
        paths = paths or self.folder
        if latents is None:
            return probe("vae", paths, {"clip": clip}, **options)["latents"]
        got = probe("vae", paths, {"latents": latents}, **options)
        return got["clip"] if "clip" in got else got["image"][:, :, None]

    def check(self, name, clip=None, latents=None, paths=None, vae=None):
        with torch.no_grad():
            if latents is None:
                expected = wan_models.encode(vae or self.vae, clip)
            else:
                expected = wan_models.decode(vae or self.vae, latents)
        compare.assert_close(name, self.ours(clip, latents, paths), expected)

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
        for key, value, call, other in (
            ("clip", self.clip(1, 9, 16, 32), wan_models.encode, "latents"),
            ("latents", self.latents(1, 3, 2, 3), wan_models.decode, "clip")):
            got = probe("vae", self.folder, {key: value}, gradients=True, trainable="*")
            value = value.clone().requires_grad_(True)
            output = call(self.vae, value)
            expected = references.gradients(output, {key: value},
                                            dict(self.vae.named_parameters()))
            compare.assert_gradients(f"wan 2.2, VAE, gradients from {key}", got, expected)
            compare.assert_close(f"wan 2.2, VAE, values with gradients from {key}", got[other],
                                 output)


class WideDitTest(Folder):

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
        folder = self.dir / "transformer"
        transformer.save_pretrained(folder)
        file = folder / "original" / "dit.safetensors"
        transformer.save_config(file.parent)
        save_file(
            tiny_models.contiguous(
                wan_models.renamed(transformer.state_dict(), wan_models.ORIGINAL_DIT)), file)
        results = {}
        for pinned in (False, True):
            inputs = self.inputs(3, pinned)
            floating = {key: value.clone().requires_grad_(True) for key, value in inputs.items()}
            output = wan_models.velocity(transformer, **floating)
            results[pinned] = output.detach()
            expected = references.gradients(output, floating, dict(transformer.named_parameters()))
            what = "a clean first frame" if pinned else "no given frame"
            with self.subTest(pinned=pinned):
                got = probe("dit", folder, inputs, gradients=True, trainable="*")
                compare.assert_close(f"wan 2.2, TI2V, denoiser, {what}", got["velocity"], output)
                compare.assert_gradients(f"wan 2.2, TI2V, denoiser, gradients with {what}", got,
                                         expected)
                compare.assert_close(f"wan 2.2, TI2V, denoiser, {what}, original",
                                     probe("dit", file, inputs)["velocity"], output)
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


class WidePipelineTest(Folder):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.parts = dict(transformer=wan_models.make_wide_transformer(),
                         vae=wan_models.make_wide_vae())
        cls.folder = cls.models.folder_with(cls.dir / "model", **cls.parts)

    def check(self, name, frames, height, width, image=None, steps=4):
        kind = WanPipeline if image is None else WanImageToVideoPipeline
        pipeline = kind(tokenizer=self.models.tokenizer,
                        text_encoder=self.models.text_encoder,
                        scheduler=UniPCMultistepScheduler.from_config(
                            self.models.scheduler.config, flow_shift=5.0),
                        expand_timesteps=True,
                        **self.parts)
        pipeline.set_progress_bar_config(disable=True)
        latents = torch.randn((1, CHANNELS, (frames - 1) // 4 + 1, height // 16, width // 16),
                              generator=torch.Generator().manual_seed(8))
        options = dict(prompt=PROMPT, negative_prompt=NEGATIVE, height=height, width=width,
                       num_frames=frames, num_inference_steps=steps)
        shown = {} if image is None else dict(image=Image.fromarray(image))
        video = pipeline(latents=latents, output_type="np", **shown, **options).frames[0]
        got = atelier.generate(self.folder, latents, input_image=image, plugin=PLUGIN,
                               schedule="diffusers", dtype="float32", **options)
        expected = [(frame * 255).round().astype(np.uint8) for frame in video]
        compare.assert_images(name, got, expected, tolerance=0.5)
        return expected

    def test_clips_and_images_from_texts_are_those_of_diffusers(self):
        self.check("wan 2.2, TI2V, clips from texts", 5, 64, 96)
        self.check("wan 2.2, TI2V, images", 1, 64, 64, steps=3)

    def test_clips_from_an_image_are_those_of_diffusers(self):
        small = np.random.default_rng(3).integers(0, 256, (4, 5, 3), dtype=np.uint8)
        image = np.asarray(Image.fromarray(small).resize((96, 64), Image.Resampling.BICUBIC))
        self.check("wan 2.2, TI2V, clips from an image", 9, 64, 96, image=image)

    def test_clips_from_a_clip_are_those_of_diffusers(self):
        asked = dict(prompt=PROMPT, negative_prompt=NEGATIVE, num_inference_steps=5)
        with wan_models.clip_folder(5, 64, 96) as (folder, clip):
            expected = wan_models.changed_clip(self.models, clip, seed=9, shift=5.0, strength=0.6,
                                               guidance_scale=5.0, **self.parts, **asked)
            latents = torch.randn((1, CHANNELS, 2, 4, 6), generator=torch.Generator().manual_seed(9))
            got = atelier.generate(self.folder, latents, input_video=folder, denoising_strength=0.6,
                                   plugin=PLUGIN, schedule="diffusers", dtype="float32", **asked)
        compare.assert_images("wan 2.2, TI2V, clips from a clip", got, expected)

    def test_a_size_that_does_not_fit_is_told(self):
        latents = torch.randn((1, CHANNELS, 2, 4, 5))
        with self.assertRaisesRegex(atelier.ProgramFailed, "80.*multiple of 32"):
            atelier.generate(self.folder, latents, plugin=PLUGIN, prompt=PROMPT, height=64, width=80,
                             num_frames=5, dtype="float32")


if __name__ == "__main__":
    sys.exit(unittest.main())
