"""A part of an image made anew gives the images of diffusers' pipelines, from the same noise; the
rest of the latents is the image's own."""

import sys
import unittest
from unittest import mock

import numpy as np
import torch
from diffusers import QwenImageEditInpaintPipeline, QwenImageInpaintPipeline
from diffusers.pipelines.qwenimage import (pipeline_qwenimage_edit_inpaint,
                                           pipeline_qwenimage_inpaint)
from PIL import Image

import atelier
import compare
import edit_models
import tiny_models
from tiny_run import FolderTest

PROMPT = "A chalkboard sign, 一只可爱的猫"
NEGATIVE = "blurry, 低画质"


def mask_of(height, width):
    """Of every brightness, with an edge that is in the middle of latent cells."""
    mask = np.zeros((height, width), np.uint8)
    mask[13:height - 21, 30:] = 255
    mask[-11:, :40] = np.linspace(100, 160, 40).astype(np.uint8)
    return Image.fromarray(mask)


def levels(images):
    return list((images * 255).round().astype(np.uint8))


class InpaintParityTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = tiny_models.get()

    def write(self, picture, mask):
        picture.save(self.root / "picture.png")
        mask.save(self.root / "mask.png")

    def check(self, name, module, pipeline, folder, picture, steps, strength, count, **flags):
        """diffusers samples the image's latents; both sides take their mode, so that the pipeline
        draws nothing but the noise, [N, 1, 16, h, w]."""
        pipeline.set_progress_bar_config(disable=True)
        mask = mask_of(picture.height, picture.width)
        self.write(picture, mask)
        drawn = torch.randn((count, 1, 16, picture.height // 8, picture.width // 8),
                            generator=torch.Generator().manual_seed(44))
        with mock.patch.object(module, "retrieve_latents",
                               lambda out, **_: out.latent_dist.mode()):
            expected, anew = (levels(
                pipeline(image=picture, mask_image=area, prompt=PROMPT, negative_prompt=NEGATIVE,
                         true_cfg_scale=3.0, strength=strength, height=picture.height,
                         width=picture.width, num_inference_steps=steps,
                         num_images_per_prompt=count, output_type="np",
                         generator=torch.Generator().manual_seed(44)).images)
                              for area in (mask, Image.new("L", mask.size, 255)))
        effect = np.abs(np.asarray(expected, np.float64) - np.asarray(anew, np.float64)).mean()
        self.assertGreater(effect, 3, "the mask changes too little for the test to prove anything")
        got = atelier.generate(folder, drawn.transpose(1, 2), prompt=PROMPT,
                               negative_prompt=NEGATIVE, cfg_scale=3.0, height=picture.height,
                               width=picture.width, num_inference_steps=steps, num_images=count,
                               batch_size=count, denoising_strength=strength, seed=0,
                               dtype="float32", input_image=np.asarray(picture),
                               inpaint_mask=self.root / "mask.png", **flags)
        compare.assert_images(name, got, expected)

    def test_a_part_of_an_image_is_made_anew(self):
        pipeline = QwenImageInpaintPipeline(**self.tiny.pipeline.components)
        picture = edit_models.smooth_picture(64, 96, 5)
        for steps, strength, count in ((5, 0.6, 2), (3, 1.0, 1)):
            with self.subTest(steps=steps, strength=strength):
                self.check("inpainting", pipeline_qwenimage_inpaint, pipeline, self.tiny.model,
                           picture, steps, strength, count)

    def test_a_part_of_a_picture_is_edited(self):
        """Pictures are small, and both sides leave them as they are."""
        models = edit_models.EditModels(self.root)
        folder = models.variant("Qwen-Image-Edit")
        edits = models.pipeline(folder)
        pipeline = QwenImageEditInpaintPipeline(**edits.components)
        pipeline.prompt_template_encode_start_idx = edits.prompt_template_encode_start_idx
        picture = edit_models.smooth_picture(96, 160, 6)
        with mock.patch.object(pipeline_qwenimage_edit_inpaint, "calculate_dimensions",
                               lambda area, ratio: (160, 96, None)):
            self.check("inpainting of a picture", pipeline_qwenimage_edit_inpaint, pipeline, folder,
                       picture, 4, 0.8, 1, edit_image=self.root / "picture.png",
                       edit_image_auto_resize="false")


if __name__ == "__main__":
    sys.exit(unittest.main())
