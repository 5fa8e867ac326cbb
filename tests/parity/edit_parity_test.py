"""Qwen-Image-Edit: pictures become pixels, tokens, positions and references as transformers and
diffusers make them, and whole runs give the same images."""

import os
import sys
import unittest
from unittest import mock

import numpy as np
import torch
from diffusers import QwenImagePipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus
from PIL import Image
from transformers import AutoTokenizer

import atelier
import compare
import edit_models
import references
from edit_models import shown, smooth_picture
from tiny_run import FolderTest

# Height and width: odd ones, long ones, small ones, and some that need no scaling at all.
SIZES = [(384, 384), (333, 517), (40, 30), (1080, 1920), (1000, 3000), (90, 1700), (7, 9)]


def pixels(picture):
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255 * 2 - 1


class Models(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = edit_models.EditModels(cls.root)
        cls.tiny = cls.models.tiny


class VisionTest(Models):

    def check_pixels(self, size, area, *paths):
        noise = np.random.default_rng(3).integers(0, 256, (*size, 3), np.uint8)
        picture = Image.fromarray(noise)
        expected = edit_models.image_processor()(images=[shown(picture, area)],
                                                 return_tensors="pt")
        got = atelier.probe("vision_tower", [self.tiny.model / "text_encoder", *paths],
                            {"image": pixels(picture)})
        self.assertTrue(torch.equal(got["grid"], expected["image_grid_thw"]))
        self.assertTrue(torch.equal(got["pixel_values"], expected["pixel_values"]))

    def test_pictures_become_the_same_pixels(self):
        for size in SIZES:
            with self.subTest(size):
                self.check_pixels(size, 384 * 384)

    def test_one_picture_is_shown_in_the_size_that_the_vae_encodes(self):
        folder = self.models.variant("Qwen-Image-Edit")
        for size in [(333, 517), (90, 1700)]:
            with self.subTest(size):
                self.check_pixels(size, 1024 * 1024, folder / "transformer")

    def inputs(self, sizes=((300, 400), (250, 130))):
        images = [shown(smooth_picture(*size, seed)) for seed, size in enumerate(sizes)]
        seen = edit_models.image_processor()(images=images, return_tensors="pt")
        return seen["pixel_values"], seen["image_grid_thw"]

    def test_the_tower_and_its_gradients_are_the_same_in_both_spellings(self):
        values, grid = self.inputs()
        leaf = values.clone().requires_grad_(True)
        tower = self.models.encoder.model.visual
        expected = tower(leaf, grid_thw=grid).pooler_output
        gradients = references.gradients(
            expected, {"pixel_values": leaf},
            {"visual." + name: value for name, value in tower.named_parameters()})
        for folder in (self.tiny.model / "text_encoder", self.tiny.root / "text_encoder_memory"):
            with self.subTest(folder.name):
                got = atelier.probe("vision_tower", folder, {"pixel_values": values, "grid": grid},
                                    gradients=True, trainable="*")
                compare.assert_close("vision tower", got["picture_embeds"], expected)
                got = {key.replace("grad.model.", "grad."): value for key, value in got.items()}
                compare.assert_gradients("vision tower, gradients", got, gradients)

    def test_the_language_model_reads_pictures_where_they_stand(self):
        values, grid = self.inputs()
        encoder = self.models.encoder
        text = edit_models.EDIT_PREFIX + "".join(
            f"Picture {i + 1}: <|vision_start|>" + "<|image_pad|>" *
            (int(grid[i].prod()) // 4) + "<|vision_end|>" for i in range(2)) + "a cat<|im_end|>\n"
        ids = self.tiny.tokenizer(text, return_tensors="pt").input_ids
        kinds = (ids == encoder.config.image_token_id).int()
        starts = torch.nonzero(torch.diff(kinds[0], prepend=torch.zeros(1).int()) == 1)[:, 0]
        embeds = encoder.model.visual(values, grid_thw=grid).pooler_output.detach()
        places, _ = encoder.model.get_rope_index(ids, kinds, image_grid_thw=grid)
        leaf = embeds.clone().requires_grad_(True)
        tokens = encoder.model.language_model.embed_tokens(ids)
        merged = tokens.masked_scatter(kinds.bool()[..., None], leaf)
        expected = encoder.model.language_model(inputs_embeds=merged,
                                                position_ids=places).last_hidden_state
        got = atelier.probe("text_encoder", self.tiny.model / "text_encoder", {
            "input_ids": ids,
            "picture_embeds": embeds,
            "grid": grid,
            "picture_starts": starts
        }, gradients=True, trainable="*")
        self.assertTrue(torch.equal(got["places"], places[:, 0]))
        compare.assert_close("text encoder with pictures", got["hidden"], expected)
        parameters = {
            "model." + name: value for name, value in encoder.model.language_model.named_parameters()
        }
        compare.assert_gradients(
            "text encoder with pictures, gradients", got,
            references.gradients(expected, {"picture_embeds": leaf}, parameters))
        whole = encoder(input_ids=ids, pixel_values=values, image_grid_thw=grid,
                        output_hidden_states=True).hidden_states[-1]
        compare.assert_close("text encoder with pictures", got["hidden"], whole)


class StillVaeTest(Models):

    def test_the_vae_of_the_references_gives_what_the_published_one_gives(self):
        image = pixels(smooth_picture(96, 160, 8))[None]
        latents = torch.randn((1, 16, 1, 12, 20), generator=torch.Generator().manual_seed(6))
        for call, given in ((references.encode, image), (references.decode, latents)):
            compare.assert_close("VAE of single frames", call(self.models.vae, given),
                                 call(self.models.moving_vae, given))


class TemplateTest(unittest.TestCase):

    def test_published_tokenizers_give_the_same_ids(self):
        folders = [
            path for path in os.environ.get("ATELIER_TEST_TOKENIZERS", "").split(":") if path
        ]
        if not folders:
            self.skipTest("ATELIER_TEST_TOKENIZERS names no folder")
        picture = "<|vision_start|><|image_pad|><|vision_end|>"
        end = "<|im_end|>\n<|im_start|>assistant\n"
        texts = [edit_models.EDIT_PREFIX] + [
            edit_models.EDIT_PREFIX + pictures + prompt + end
            for pictures in (picture, f"Picture 1: {picture}", f"Picture 1: {picture}Picture 2: {picture}")
            for prompt in (" ", "Make it blue", "\n把猫变成蓝色", "  the cat of picture 1, 4K")
        ]
        for folder in folders:
            with self.subTest(folder=folder):
                tokenizer = AutoTokenizer.from_pretrained(folder)
                got = atelier.tokenize(folder, texts)
                self.assertEqual(got, [tokenizer(text).input_ids for text in texts])
                self.assertEqual(len(got[0]), 64)


class EditDitTest(Models):

    SIZES = [(6, 10), (8, 4), (2, 14)]  # of references, in latent cells

    def check(self, name, folder, count, batch=2, gradients=False, stretches=False):
        transformer = self.models.pipeline(folder).transformer
        if stretches:
            edit_models.stretch_references(transformer)
        generator = torch.Generator().manual_seed(7)

        def draw(*shape):
            return torch.randn(shape, generator=generator)

        sizes = self.SIZES[:count]
        inputs = {
            "latents": draw(batch, 16, 1, 8, 6),
            "sigma": torch.rand((batch,), generator=generator) * 0.9 + 0.05,
            "prompt_embeds": draw(batch, 9, 96),
            **{f"reference_{i + 1}": draw(batch, 16, 1, *size) for i, size in enumerate(sizes)}
        }
        floating = {key: value.clone().requires_grad_(True) for key, value in inputs.items()}
        packed = [
            references.pack(value)
            for key, value in floating.items()
            if key == "latents" or key.startswith("reference_")
        ]
        shapes = [(1, height // 2, width // 2) for height, width in [(8, 6), *sizes]]
        tokens = transformer(hidden_states=torch.cat(packed, 1),
                             encoder_hidden_states=floating["prompt_embeds"],
                             timestep=floating["sigma"],
                             img_shapes=[shapes] * batch,
                             return_dict=False)[0][:, :packed[0].shape[1]]
        output = QwenImagePipeline._unpack_latents(tokens, 64, 48, 8)
        if stretches:
            inputs["stretched_places"] = torch.ones(batch, 1)
        got = atelier.probe("dit", folder / "transformer", inputs, gradients=gradients,
                            trainable="*" if gradients else None)
        compare.assert_close(name, got["velocity"], output)
        if gradients:
            compare.assert_gradients(
                name + ", gradients", got,
                references.gradients(output, floating, dict(transformer.named_parameters())))

    def test_references_of_any_size_are_seen_in_their_places(self):
        folder = self.models.variant("Qwen-Image-Edit-2509")
        for count in (1, 3):
            with self.subTest(count):
                self.check(f"denoiser, {count} references", folder, count, gradients=True)

    def test_references_may_be_stretched_to_the_image(self):
        folder = self.models.variant("Qwen-Image-Edit")
        self.check("denoiser, stretched references", folder, 3, stretches=True)

    def test_clean_references_have_a_level_of_their_own(self):
        folder = self.models.variant("Qwen-Image-Edit-2511", zero_cond_t=True)
        self.check("denoiser, clean references", folder, 2, gradients=True)


class EditPipelineTest(Models):

    PROMPT, NEGATIVE = "Turn the cat of picture 1 blue, 超清", "blurry, 低画质"

    def check(self, name, folder, pictures, height=None, width=None, cfg=3.0, stretches=False,
              **more):
        pipeline = self.models.pipeline(folder)
        if stretches:
            edit_models.stretch_references(pipeline.transformer)
        own = edit_models.size_of_area(1024 * 1024, pictures[-1])
        shape = (height or own[1], width or own[0])
        latents = torch.randn((1, 16, 1, shape[0] // 8, shape[1] // 8),
                              generator=torch.Generator().manual_seed(9))
        expected = pipeline(image=pictures if len(pictures) > 1 else pictures[0],
                            prompt=self.PROMPT, negative_prompt=self.NEGATIVE, true_cfg_scale=cfg,
                            height=height, width=width, num_inference_steps=2,
                            latents=references.pack(latents), output_type="np").images
        expected = [(image * 255).round().astype(np.uint8) for image in expected]
        files = []
        for number, picture in enumerate(pictures):
            files.append(self.root / f"{folder.name}_{number}.png")
            picture.save(files[-1])
        flags = dict(prompt=self.PROMPT, negative_prompt=self.NEGATIVE, cfg_scale=cfg, seed=0,
                     num_inference_steps=2, dtype="float32", edit_image=files)
        flags |= more
        if height:
            flags |= dict(height=height, width=width)
        got = atelier.generate(folder, latents, **flags)
        compare.assert_images(name, got, expected, tolerance=0.5)

    def test_one_picture_is_changed(self):
        folder = self.models.variant("Qwen-Image-Edit")
        self.check("edit, one picture", folder, [smooth_picture(300, 500, 1)], 64, 96)

    def test_pictures_are_changed_together(self):
        folder = self.models.variant("Qwen-Image-Edit-2509")
        pictures = [smooth_picture(333, 517, 2), smooth_picture(700, 200, 3)]
        self.check("edit, two pictures", folder, pictures, 96, 64)

    def test_three_pictures_of_extreme_shapes_are_changed_together(self):
        folder = self.models.variant("FireRed-Image-Edit-1.0")
        pictures = [smooth_picture(60, 900, 5), smooth_picture(7, 9, 6), smooth_picture(500, 41, 7)]
        self.check("edit, three pictures", folder, pictures, 64, 64, cfg=1)

    def check_in_own_size(self, name, folder, picture, *size, **more):
        def own_size(area, ratio):
            return picture.size if area == 1024 * 1024 else plain(area, ratio)

        plain = pipeline_qwenimage_edit_plus.calculate_dimensions
        with mock.patch.object(pipeline_qwenimage_edit_plus, "calculate_dimensions", own_size):
            self.check(name, folder, [picture], *size, edit_image_auto_resize="false", **more)

    def test_a_picture_may_keep_its_size_and_be_stretched(self):
        folder = self.models.variant("Qwen-Image-Edit-2509-Lowres")
        self.check_in_own_size("edit, a picture in its own size", folder, smooth_picture(96, 160, 8),
                               192, 224, cfg=1, stretches=True, edit_rope_interpolation=True)

    def test_what_a_folder_says_of_pictures_and_is_not_computed_is_refused_by_its_name(self):
        picture = self.root / "refused.png"
        smooth_picture(40, 90, 4).save(picture)
        for name, value in dict(max_pixels=1003520, patch_size=16, image_mean=[0.5, 0.5, 0.5],
                                resample=2, do_normalize=False, unheard_of=1).items():
            folder = self.models.variant(f"Qwen-Image-Edit-2509-{name}", processor={name: value})
            with self.subTest(name), self.assertRaisesRegex(
                    atelier.ProgramFailed,
                    f'preprocessor_config.json: config field "{name}"'):
                atelier.generate(folder, torch.zeros(1, 16, 1, 8, 8), prompt=self.PROMPT, seed=0,
                                 num_inference_steps=1, dtype="float32", edit_image=[picture],
                                 height=64, width=64)
        saved = self.models.variant("Qwen-Image-Edit-2509-saved") / "processor"
        edit_models.image_processor().save_pretrained(saved)  # as this version writes it
        self.check_in_own_size("edit, a processor saved anew", saved.parent,
                               smooth_picture(304, 496, 1), 64, 96)

    def test_the_image_is_as_large_as_the_last_picture(self):
        folder = self.models.variant("Qwen-Image-Edit-2511", zero_cond_t=True)
        self.check("edit, clean references", folder, [smooth_picture(40, 90, 4)], cfg=1)


if __name__ == "__main__":
    sys.exit(unittest.main())
