"""Whole runs give the images of diffusers' pipelines: text to image and image to image, from the
same noise."""

import sys
import unittest

import numpy as np
import torch
from diffusers import QwenImageImg2ImgPipeline, QwenImagePipeline
from PIL import Image

import atelier
import compare
import references
import tiny_models

PROMPT = "A coffee shop entrance with a chalkboard sign, 一只可爱的猫, cinematic lighting"
NEGATIVE = "blurry, 低画质"


def noise(count, height, width, seed):
    """Noise as the program takes it, [N, 16, 1, h, w]."""
    return torch.randn((count, 16, 1, height // 8, width // 8),
                       generator=torch.Generator().manual_seed(seed))


def levels(images):
    """Images in [0, 1] as uint8, rounded the way diffusers does."""
    return list((images * 255).round().astype(np.uint8))


def smooth_picture(height, width):
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand((1, 3, 5, 6), generator=generator)
    fine = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bicubic").clamp(0, 1)
    return (fine[0].permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()


class PipelineParityTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = tiny_models.get()
        cls.pipeline = cls.models.pipeline
        cls.pipeline.set_progress_bar_config(disable=True)

    def reference(self, pipeline, latents, height, width, steps, cfg, negative):
        return levels(
            pipeline(PROMPT,
                     negative_prompt=negative,
                     true_cfg_scale=cfg,
                     height=height,
                     width=width,
                     num_inference_steps=steps,
                     num_images_per_prompt=latents.shape[0],
                     latents=references.pack(latents),
                     output_type="np").images)

    def ours(self, latents, height, width, steps, cfg, negative=None, paths=None, **extra):
        flags = dict(prompt=PROMPT,
                     height=height,
                     width=width,
                     num_inference_steps=steps,
                     cfg_scale=cfg,
                     seed=0,
                     num_images=latents.shape[0],
                     dtype="float32",
                     **extra)
        if negative is not None:
            flags["negative_prompt"] = negative
        return atelier.generate(paths or self.models.model, latents, **flags)

    def test_text_to_image_with_guidance_gives_the_same_pictures(self):
        for height, width, steps, count in ((64, 96, 4, 2), (80, 48, 3, 1)):
            with self.subTest(height=height, width=width):
                latents = noise(count, height, width, seed=41)
                expected = self.reference(self.pipeline, latents, height, width, steps, 4.0,
                                          NEGATIVE)
                unguided = self.reference(self.pipeline, latents, height, width, steps, 1.0, None)
                effect = np.abs(
                    np.asarray(expected, np.float64) - np.asarray(unguided, np.float64)).mean()
                self.assertGreater(effect, 5,
                                   "guidance changes too little for the test to prove anything")
                got = self.ours(latents, height, width, steps, 4.0, NEGATIVE)
                compare.assert_images("text to image, guided", got, expected)

    def test_text_to_image_without_guidance_gives_the_same_picture(self):
        latents = noise(1, 64, 64, seed=42)
        expected = self.reference(self.pipeline, latents, 64, 64, 4, 1.0, None)
        compare.assert_images("text to image, unguided", self.ours(latents, 64, 64, 4, 1),
                                expected)

    def test_an_empty_negative_prompt_is_a_single_space(self):
        latents = noise(1, 48, 64, seed=43)
        expected = self.reference(self.pipeline, latents, 48, 64, 3, 3.0, " ")
        compare.assert_images("text to image, default negative prompt",
                                self.ours(latents, 48, 64, 3, 3), expected)

    def test_captions_of_too_many_tokens_are_cut_where_the_pipeline_cuts_them(self):
        """The whole template is cut at its end. The letters below are a token each: of 1019 the
        template's five last tokens stay, of 1021 three, of 1025 none."""
        words = "red 一只猫 chalk, "
        captions = [words, words * 1200, "x" * 1019, "x" * 1021, "x" * 1025, "\n" * 3000]
        got = atelier.encode_captions(self.models.model, captions, "--truncate_captions")
        for caption, ours in zip(captions, got):
            with torch.no_grad():
                expected, _ = self.pipeline.encode_prompt(caption, max_sequence_length=1024)
            self.assertEqual(ours.shape, expected[0].shape)
            compare.assert_close(f"cut caption of {len(caption)} letters", ours, expected[0])

    def test_image_to_image_gives_the_same_pictures(self):
        """diffusers samples the image's latents; both sides start here from their mode, and from
        the same noise."""
        height, width, seed = 64, 96, 44
        pipeline = QwenImageImg2ImgPipeline(**self.pipeline.components)
        pipeline.set_progress_bar_config(disable=True)
        picture = smooth_picture(height, width)
        pixels = pipeline.image_processor.preprocess(Image.fromarray(picture),
                                                     height=height,
                                                     width=width)
        with torch.no_grad():
            clean = references.encode(self.models.vae, pixels)
        for steps, strength in ((5, 0.6), (5, 0.5), (4, 1.0)):
            with self.subTest(steps=steps, strength=strength):
                # The pipeline draws [N, 1, 16, h, w]; it is given latents as its image, so it draws
                # nothing else.
                drawn = torch.randn((2, 1, 16, height // 8, width // 8),
                                    generator=torch.Generator().manual_seed(seed))
                expected = levels(
                    pipeline(PROMPT,
                             negative_prompt=NEGATIVE,
                             true_cfg_scale=4.0,
                             image=clean[:, :, 0],
                             strength=strength,
                             height=height,
                             width=width,
                             num_inference_steps=steps,
                             num_images_per_prompt=2,
                             generator=torch.Generator().manual_seed(seed),
                             output_type="np").images)
                got = self.ours(drawn.transpose(1, 2),
                                height,
                                width,
                                steps,
                                4.0,
                                NEGATIVE,
                                input_image=picture,
                                denoising_strength=strength)
                compare.assert_images("image to image", got, expected)

    def test_several_jobs_of_a_file_give_the_same_pictures(self):
        """Sizes, prompts and batches differ, and nothing of a job stays behind for the next."""
        expected, jobs = [], []
        for height, width, steps, cfg, count, prompt in ((64, 48, 3, 4.0, 2,
                                                          PROMPT), (48, 96, 2, 1.0, 1, "red"),
                                                         (64, 48, 4, 2.0, 2, PROMPT + "\n red")):
            latents = noise(count, height, width, seed=46 + len(jobs))
            jobs.append(
                dict(prompt=prompt,
                     negative_prompt=NEGATIVE,
                     height=height,
                     width=width,
                     num_inference_steps=steps,
                     cfg_scale=cfg,
                     num_images=count,
                     batch_size=count,
                     seed=0,
                     latents=latents))
            expected.append(
                levels(
                    self.pipeline(prompt,
                                  negative_prompt=NEGATIVE if cfg > 1 else None,
                                  true_cfg_scale=cfg,
                                  height=height,
                                  width=width,
                                  num_inference_steps=steps,
                                  num_images_per_prompt=count,
                                  latents=references.pack(latents),
                                  output_type="np").images))
        got = atelier.generate_jobs(self.models.model, jobs, dtype="float32")
        for number, pictures in enumerate(expected):
            compare.assert_images("text to image, several jobs", got[number], pictures)

    def test_single_files_give_the_same_picture(self):
        pipeline = QwenImagePipeline(scheduler=self.pipeline.scheduler,
                                     vae=self.models.vae,
                                     text_encoder=self.models.wide_text_encoder,
                                     tokenizer=self.models.tokenizer,
                                     transformer=self.models.wide_transformer)
        pipeline.set_progress_bar_config(disable=True)
        latents = noise(1, 64, 48, seed=45)
        expected = self.reference(pipeline, latents, 64, 48, 3, 2.5, NEGATIVE)
        root = self.models.root
        got = self.ours(latents,
                        64,
                        48,
                        3,
                        2.5,
                        NEGATIVE,
                        paths=[
                            root / "single" / "dit.safetensors",
                            root / "single" / "text_encoder.safetensors",
                            root / "vae_original.safetensors", root / "tokenizer_json"
                        ])
        compare.assert_images("text to image, single files", got, expected)


if __name__ == "__main__":
    sys.exit(unittest.main())
