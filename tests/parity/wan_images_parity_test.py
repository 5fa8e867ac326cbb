"""Wan's models that are shown images, a first one or a first and a last one: image encoder, denoiser
and whole clips give what diffusers and transformers give."""

import pathlib
import sys
import tempfile
import unittest

import numpy as np
import torch
from diffusers import UniPCMultistepScheduler, WanImageToVideoPipeline
from PIL import Image
from safetensors.torch import save_file

import atelier
import compare
import references
import tiny_models
import wan_models

PLUGIN = "wan"
PROMPT, NEGATIVE = "A cat walks along a wall", "blurry"


def probe(component, paths, inputs, **options):
    return atelier.probe(component, paths, inputs, plugin=PLUGIN, **options)


def picture(height, width, seed):
    """A smooth random image, uint8 [H, W, 3]."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


class Folder(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory(prefix="atelier_wan_images_")
        cls.dir = pathlib.Path(cls.holder.name)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()


class WanImageEncoderTest(Folder):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.encoder = wan_models.make_image_encoder()
        cls.encoder.save_pretrained(cls.dir)

    def check(self, name, image):
        pixels = wan_models.make_image_processor()(images=Image.fromarray(image),
                                                   return_tensors="pt").pixel_values
        with torch.no_grad():
            expected = self.encoder(pixels, output_hidden_states=True).hidden_states[-2]
        given = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
        got = probe("image_encoder", self.dir, {"image": given})["image_embeds"]
        return compare.relative_error(got, expected), name

    def test_images_of_its_size_give_the_same(self):
        error, name = self.check("wan, image encoder", picture(56, 56, 1))
        compare.record(name, error)
        self.assertLess(error, compare.TOLERANCE)

    def test_other_images_are_scaled_and_cut_as_published(self):
        """Within what whole levels of 255 leave open: Pillow scales in whole numbers."""
        for height, width in ((64, 96), (200, 120), (40, 30)):
            with self.subTest(height=height, width=width):
                error, name = self.check("wan, image encoder, scaled", picture(height, width, 2))
                compare.record(name, error)
                self.assertLess(error, 0.02)


class WanImageDitTest(Folder):

    def inputs(self, images, length=13, batch=2):
        generator = torch.Generator().manual_seed(7)

        def draw(*shape):
            return torch.randn((batch, *shape), generator=generator)

        return {
            "latents": draw(16, 3, 6, 10),
            "sigma": torch.rand((batch,), generator=generator) * 0.9 + 0.05,
            "prompt_embeds": draw(length, wan_models.TEXT_WIDTH),
            "image_embeds": draw(images * wan_models.IMAGE_ROWS, wan_models.IMAGE_WIDTH),
            "given_clip": draw(20, 3, 6, 10)
        }

    def test_velocities_and_gradients_are_the_same_in_every_spelling(self):
        for images in (1, 2):
            transformer = wan_models.make_image_transformer(images)
            folder = self.dir / f"images_{images}"
            transformer.save_pretrained(folder)
            file = folder / "original" / "dit.safetensors"
            transformer.save_config(file.parent)
            save_file(
                tiny_models.contiguous(
                    wan_models.renamed(transformer.state_dict(), wan_models.ORIGINAL_DIT)), file)
            inputs = self.inputs(images)
            floating = {key: value.clone().requires_grad_(True) for key, value in inputs.items()}
            output = wan_models.velocity(transformer, **floating)
            expected = references.gradients(output, floating, dict(transformer.named_parameters()))
            with self.subTest(images=images):
                got = probe("dit", folder, inputs, gradients=True, trainable="*")
                compare.assert_close(f"wan, denoiser, {images} images", got["velocity"], output)
                compare.assert_gradients(f"wan, denoiser, gradients with {images} images", got,
                                         expected)
                compare.assert_close(f"wan, denoiser, {images} images, original",
                                     probe("dit", file, inputs)["velocity"], output)


class WanImagePipelineTest(Folder):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.pipelines = {}
        for images in (1, 2):
            cls.pipelines[images] = WanImageToVideoPipeline(
                tokenizer=cls.models.tokenizer,
                text_encoder=cls.models.text_encoder,
                image_encoder=wan_models.make_image_encoder(),
                image_processor=wan_models.make_image_processor(),
                transformer=wan_models.make_image_transformer(images),
                vae=cls.models.vae,
                scheduler=UniPCMultistepScheduler.from_config(cls.models.scheduler.config))
            cls.pipelines[images].set_progress_bar_config(disable=True)
            cls.pipelines[images].save_pretrained(cls.dir / str(images))

    def check(self, images, frames, height, width):
        generator = torch.Generator().manual_seed(8)
        latents = torch.randn((1, 16, (frames - 1) // 4 + 1, height // 8, width // 8),
                              generator=generator)
        first, last = picture(height, width, 3), picture(height, width, 4)
        options = {} if images == 1 else dict(last_image=Image.fromarray(last))
        video = self.pipelines[images](image=Image.fromarray(first),
                                       prompt=PROMPT,
                                       negative_prompt=NEGATIVE,
                                       height=height,
                                       width=width,
                                       num_frames=frames,
                                       num_inference_steps=3,
                                       latents=latents,
                                       output_type="np",
                                       **options).frames[0]
        flags = {}
        if images == 2:
            Image.fromarray(last).save(self.dir / "last.png")
            flags["end_image"] = self.dir / "last.png"
        got = atelier.generate(self.dir / str(images),
                               latents,
                               input_image=first,
                               plugin=PLUGIN,
                               prompt=PROMPT,
                               negative_prompt=NEGATIVE,
                               height=height,
                               width=width,
                               num_frames=frames,
                               num_inference_steps=3,
                               schedule="diffusers",
                               dtype="float32",
                               **flags)
        # The image encoder sees an image that was scaled in other steps.
        compare.assert_images(f"wan, clips from {images} images", got,
                              [(frame * 255).round().astype(np.uint8) for frame in video],
                              tolerance=0.5)

    def test_clips_from_a_first_image_are_those_of_diffusers(self):
        self.check(1, frames=9, height=48, width=64)

    def test_clips_from_a_first_and_a_last_image_are_those_of_diffusers(self):
        self.check(2, frames=5, height=64, width=48)


class WanExpertsPipelineTest(Folder):
    """Image to video of Wan 2.2: two experts, and no image encoder."""

    def test_clips_of_two_experts_are_those_of_diffusers(self):
        models = wan_models.get()
        experts = [wan_models.make_transformer(seed, in_channels=36) for seed in (101, 102)]
        pipeline = WanImageToVideoPipeline(
            tokenizer=models.tokenizer,
            text_encoder=models.text_encoder,
            transformer=experts[0],
            transformer_2=experts[1],
            boundary_ratio=0.9,
            vae=models.vae,
            scheduler=UniPCMultistepScheduler.from_config(models.scheduler.config, flow_shift=5.0))
        pipeline.set_progress_bar_config(disable=True)
        folder = models.folder_with(self.dir / "experts", transformer=experts[0],
                                    transformer_2=experts[1])
        latents = torch.randn((1, 16, 2, 6, 8), generator=torch.Generator().manual_seed(9))
        first = picture(48, 64, 5)
        clips = {}
        for scales in ((3.5, 3.5), (3.5, 1.5)):
            video = pipeline(image=Image.fromarray(first), prompt=PROMPT, negative_prompt=NEGATIVE,
                             height=48, width=64, num_frames=5, num_inference_steps=5,
                             guidance_scale=scales[0], guidance_scale_2=scales[1], latents=latents,
                             output_type="np").frames[0]
            clips[scales] = [(frame * 255).round().astype(np.uint8) for frame in video]
            got = atelier.generate(folder, latents, input_image=first, plugin=PLUGIN, prompt=PROMPT,
                                   negative_prompt=NEGATIVE, height=48, width=64, num_frames=5,
                                   num_inference_steps=5, schedule="diffusers", flow_shift=5,
                                   cfg_scale=scales[0], cfg_scale_2=scales[1], dtype="float32")
            with self.subTest(scales=scales):
                compare.assert_images("wan, clips of two experts from an image", got, clips[scales],
                                      tolerance=0.5)
        effect = np.abs(np.asarray(clips[3.5, 3.5], np.float64) - np.asarray(clips[3.5, 1.5])).mean()
        self.assertGreater(effect, 1, "the second expert's guidance proves nothing")


if __name__ == "__main__":
    sys.exit(unittest.main())
