"""Wan's models that are shown images, a first one or a first and a last one: image encoder, denoiser
and whole clips give what diffusers and transformers give."""

import contextlib
import sys
import unittest
from unittest import mock

import torch
from diffusers import WanImageToVideoPipeline
from PIL import Image

import compare
import wan_checks
import wan_models
from wan_checks import picture, probe

PROMPT, NEGATIVE = "A cat walks along a wall", "blurry"


class WanImageEncoderTest(wan_checks.FolderTest):

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


class WanImageDitTest(wan_checks.FolderTest):

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
            with self.subTest(images=images):
                wan_checks.check_denoiser("wan, denoiser", f"{images} images",
                                          wan_models.make_image_transformer(images),
                                          self.dir / f"images_{images}", self.inputs(images))


class WanImagePipelineTest(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.pipelines = {}
        for images in (1, 2):
            cls.pipelines[images] = cls.models.make_pipeline(
                WanImageToVideoPipeline,
                image_encoder=wan_models.make_image_encoder(),
                image_processor=wan_models.make_image_processor(),
                transformer=wan_models.make_image_transformer(images))
            cls.pipelines[images].save_pretrained(cls.dir / str(images))

    def check(self, images, frames, height, width, has_last=None):
        """`images`: those that the image encoder sees; `has_last`: a last one is given."""
        has_last = images == 2 if has_last is None else has_last
        latents = wan_checks.noise(frames, height, width, seed=8)
        asked = dict(prompt=PROMPT, negative_prompt=NEGATIVE, height=height, width=width,
                     num_frames=frames, num_inference_steps=3)
        first, last = picture(height, width, 3), picture(height, width, 4)
        options = dict(last_image=Image.fromarray(last)) if has_last else {}
        pipeline = self.pipelines[images]
        with contextlib.ExitStack() as stack:
            if has_last and images == 1:
                # diffusers would encode both, which its denoiser cannot take without positions.
                rows = pipeline.encode_image(Image.fromarray(first), "cpu")
                stack.enter_context(mock.patch.object(pipeline, "encode_image", lambda *_: rows))
            video = pipeline(image=Image.fromarray(first), latents=latents, output_type="np",
                             **asked, **options).frames[0]
        flags = {}
        if has_last:
            Image.fromarray(last).save(self.dir / "last.png")
            flags["end_image"] = self.dir / "last.png"
        got = wan_checks.generate(self.dir / str(images), latents, input_image=first, **asked,
                                  **flags)
        # The image encoder sees an image that was scaled in other steps.
        compare.assert_images(f"wan, clips from {images} images", got, wan_models.rounded(video),
                              tolerance=0.5)
        return got

    def test_clips_from_a_first_image_are_those_of_diffusers(self):
        self.check(1, frames=9, height=48, width=64)

    def test_clips_from_a_first_and_a_last_image_are_those_of_diffusers(self):
        self.check(2, frames=5, height=64, width=48)

    def test_models_whose_encoder_sees_one_image_take_a_last_one_too(self):
        sizes = dict(frames=9, height=48, width=64)
        effect = wan_checks.difference(self.check(1, has_last=True, **sizes), self.check(1, **sizes))
        self.assertGreater(effect, 1, "the last image proves nothing")


class WanExpertsPipelineTest(wan_checks.FolderTest):
    """Image to video of Wan 2.2: two experts, and no image encoder."""

    def test_clips_of_two_experts_are_those_of_diffusers(self):
        models = wan_models.get()
        experts = [wan_models.make_transformer(seed, in_channels=36) for seed in (101, 102)]
        pipeline = models.make_pipeline(WanImageToVideoPipeline, shift=5.0, transformer=experts[0],
                                        transformer_2=experts[1], boundary_ratio=0.9)
        folder = models.folder_with(self.dir / "experts", transformer=experts[0],
                                    transformer_2=experts[1])
        latents, first = wan_checks.noise(5, 48, 64, seed=9), picture(48, 64, 5)
        asked = dict(prompt=PROMPT, negative_prompt=NEGATIVE, height=48, width=64, num_frames=5,
                     num_inference_steps=5)
        clips = {}
        for scales in ((3.5, 3.5), (3.5, 1.5)):
            clips[scales] = wan_models.rounded(
                pipeline(image=Image.fromarray(first), guidance_scale=scales[0],
                         guidance_scale_2=scales[1], latents=latents, output_type="np",
                         **asked).frames[0])
            got = wan_checks.generate(folder, latents, input_image=first, flow_shift=5,
                                      cfg_scale=scales[0], cfg_scale_2=scales[1], **asked)
            with self.subTest(scales=scales):
                compare.assert_images("wan, clips of two experts from an image", got, clips[scales],
                                      tolerance=0.5)
        effect = wan_checks.difference(clips[3.5, 3.5], clips[3.5, 1.5])
        self.assertGreater(effect, 1, "the second expert's guidance proves nothing")

        last = picture(48, 64, 6)
        Image.fromarray(last).save(self.dir / "last.png")
        clip = wan_models.rounded(
            pipeline(image=Image.fromarray(first), last_image=Image.fromarray(last),
                     guidance_scale=3.5, latents=latents, output_type="np", **asked).frames[0])
        got = wan_checks.generate(folder, latents, input_image=first, flow_shift=5, cfg_scale=3.5,
                                  end_image=self.dir / "last.png", **asked)
        compare.assert_images("wan, clips of two experts from two images", got, clip, tolerance=0.5)
        effect = wan_checks.difference(clips[3.5, 3.5], clip)
        self.assertGreater(effect, 1, "the last image proves nothing")


if __name__ == "__main__":
    sys.exit(unittest.main())
