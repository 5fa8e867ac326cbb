"""Wan2.2-Animate-2 beside diffusers: the denoiser with its driving clip, on both branches and in the distilled form,
whole clips, in pieces too, and training."""

import json
import re
import sys
import unittest
from unittest import mock

import numpy as np
import torch
from diffusers import DPMSolverMultistepScheduler
from diffusers.modular_pipelines import WanAnimate2Blocks
from diffusers.modular_pipelines.wan_animate_2 import denoise
from PIL import Image
from safetensors.torch import load_file

import atelier
import compare
import references
import training
import wan_animate2_models as animate2
import wan_checks
import wan_models
import wan_train_parity_test
from wan_checks import probe


def inputs_of(batch=2, frames=2, height=4, width=6, seed=3):
    """Of the denoiser, `frames` of the driving clip."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn((batch, *shape), generator=generator)

    return {
        "latents": draw(16, frames + 1, height, width),
        "sigma": torch.linspace(0.9, 0.3, batch),
        "prompt_embeds": draw(7, wan_models.TEXT_WIDTH),
        "image_embeds": draw(5, animate2.IMAGE_WIDTH),
        "given_clip": draw(20, frames + 1, height, width),
        "driving_clip": draw(16, frames, height, width),
        "driving_embeds": draw(4, wan_models.TEXT_WIDTH),
        "driving_image_embeds": draw(5, animate2.IMAGE_WIDTH)
    }


class WanAnimate2DitTest(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.transformer = animate2.make_transformer()
        cls.folder, cls.file = animate2.save_spellings(cls.transformer, cls.dir / "dit")

    def check(self, what, paths, skips, bias=0.0, gradients=False, **sizes):
        inputs = inputs_of(**sizes)
        floating = wan_checks.with_gradients(inputs)
        with animate2.on_cpu(bias):
            expected = animate2.velocity(self.transformer, floating, skips)
        if skips:
            inputs["skips_block"] = torch.ones((inputs["latents"].shape[0], 1), dtype=torch.int64)
        options = dict(gradients=True, trainable="*") if gradients else {}
        got = probe("dit", paths, inputs, **options)
        compare.assert_close(f"wan, animate 2, {what}", got["velocity"], expected, 1e-5)
        if gradients:
            wanted = references.gradients(expected, floating, dict(self.transformer.named_parameters()))
            compare.assert_gradients(f"wan, animate 2, gradients, {what}", got, wanted)
        return expected.detach()

    def test_the_driving_clip_is_seen_frame_by_frame(self):
        with_all = self.check("denoiser", self.folder, skips=False, gradients=True)
        without = self.check("negative branch", self.folder, skips=True, gradients=True)
        self.assertGreater(float((with_all - without).abs().max()), 1e-2, "the block that is skipped proves nothing")

    def test_the_original_spelling_gives_the_same_at_every_size(self):
        """diffusers' offset of columns is that of each size; DiffSynth-Studio's stays that of the first."""
        for sizes in (dict(frames=3, height=6, width=4), dict(batch=1, frames=1, height=4, width=10)):
            self.check("denoiser, original", self.file, skips=False, **sizes)

    def test_the_distilled_form_leans_away_from_its_first_frame(self):
        folder, file = animate2.save_spellings(self.transformer, self.dir / "distilled")
        plain = self.check("denoiser", self.file, skips=False)
        self.check("distilled", file, skips=False, bias=animate2.BIAS)
        biased = self.check("distilled", folder, skips=False, bias=animate2.BIAS, gradients=True)
        self.assertGreater(float((plain - biased).abs().max()), 1e-2, "the bias proves nothing")


PROMPT, NEGATIVE, OF_CLIP = "a red kite over a harbour", "blurry", "a cat walks along a wall"


class WanAnimate2ClipTest(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.transformer = animate2.make_transformer()
        cls.image_encoder = animate2.make_image_encoder()
        cls.folder = cls.models.folder_with(cls.dir / "model", transformer=cls.transformer,
                                            image_encoder=cls.image_encoder)

    def reference(self, image, clip, seed, bias=0.0, cfg_scale=3.0, steps=3, **options):
        """The frames that diffusers makes, bars cut off. Each piece has the noise of its number."""
        scheduler = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True,
                                                flow_shift=5.0)
        pipeline = WanAnimate2Blocks().init_pipeline()
        pipeline.update_components(text_encoder=self.models.text_encoder, tokenizer=self.models.tokenizer,
                                   vae=self.models.vae, transformer=self.transformer,
                                   image_encoder=self.image_encoder, scheduler=scheduler)
        pipeline.guider.guidance_scale = cfg_scale
        seeds = iter(range(seed, seed + 9))

        def noise(shape, **_):
            return training.normal_noise(next(seeds), 0, 0, shape)

        with animate2.on_cpu(bias), mock.patch.object(denoise, "randn_tensor", noise):
            videos = pipeline(image=image, driving_video=clip, prompt=PROMPT, negative_prompt=NEGATIVE,
                              prompt_ref=OF_CLIP, num_inference_steps=steps, output="videos", **options)
        return wan_models.rounded(videos[0])

    def ours(self, image, clip, seed, paths=None, cfg_scale=3.0, steps=3, **flags):
        image.save(self.dir / "reference.png")
        return wan_checks.generate(paths or self.folder, None, prompt=PROMPT, negative_prompt=NEGATIVE,
                                   animate2_reference_image=self.dir / "reference.png",
                                   animate2_reference_video=clip, animate2_prompt_ref=OF_CLIP, seed=seed,
                                   num_inference_steps=steps, cfg_scale=cfg_scale, flow_shift=5, solver="dpm++", **flags)

    def test_clips_are_those_of_diffusers(self):
        """The distilled form runs without guidance, and leans away from the clip's first frame."""
        image = Image.fromarray(wan_checks.picture(64, 48, 5))
        sizes = dict(height=64, width=48)
        paths = [self.models.model / part for part in ("text_encoder", "vae", "tokenizer")]
        paths += [self.folder / "image_encoder",
                  animate2.save_spellings(self.transformer, self.dir / "distilled",
                                          "wan_animate_2_bf16_distillation")[1]]
        with wan_models.clip_folder(9, 40, 56) as (folder, clip):
            for what, ours, theirs in (("clips", dict(), dict()),
                                       ("distilled clips", dict(paths=paths, cfg_scale=1.0),
                                        dict(bias=animate2.BIAS, cfg_scale=1.0))):
                expected = self.reference(image, clip, seed=3, segment_frame_length=9, **sizes, **theirs)
                got = self.ours(image, folder, seed=3, **sizes, **ours)
                compare.assert_images(f"wan, animate 2, {what}", got, expected, 0.01)
            # The other way to compute a step: both branches at once, and the driving clip in each.
            other = self.ours(image, folder, seed=3, cfg_batch="on", animate2_offload_kv=True, **sizes,
                              paths=paths, cfg_scale=2)
            kept = self.ours(image, folder, seed=3, cfg_batch="off", paths=paths, cfg_scale=2, **sizes)
        compare.assert_images("wan, animate 2, keys that are not kept", other, kept, 0.01)
        self.assertGreater(wan_checks.difference(kept, got), 1)

    def test_pictures_of_other_shapes_have_bars(self):
        """Those of the reference image are cut off."""
        image = Image.fromarray(wan_checks.picture(80, 48, 6))
        with wan_models.clip_folder(5, 40, 56) as (folder, clip):
            expected = self.reference(image, clip, seed=4, height=64, width=48, segment_frame_length=5)
            got = self.ours(image, folder, seed=4, height=64, width=32)
        self.assertEqual((53, 32, 3), expected[0].shape)
        compare.assert_images("wan, animate 2, clips with bars", got, expected, 0.01)

    def test_ranks_that_share_the_rows_make_the_same_clip(self):
        Image.fromarray(wan_checks.picture(64, 48, 5)).save(self.dir / "shared.png")
        with wan_models.clip_folder(9, 40, 56) as (folder, _):
            wan_checks.assert_ranks_agree("wan, animate 2", self.folder, prompt=PROMPT, height=64, width=48, num_frames=9,
                                          animate2_reference_image=self.dir / "shared.png", animate2_reference_video=folder)

    def test_long_clips_are_made_in_pieces(self):
        """The second of two begins with the last frame of the first; what is missing at its end is mirrored."""
        image = Image.fromarray(wan_checks.picture(32, 32, 7))
        with wan_models.clip_folder(90, 32, 32) as (folder, clip):
            clip[80] = clip[0]  # the image encoder of diffusers sees the first frame of all, here that of a piece
            clip[80].save(f"{folder}/80.png")
            mirrored = clip + clip[-2:-2 - 71:-1]
            expected = self.reference(image, mirrored, seed=5, steps=2, height=32, width=32)[:90]
            got = self.ours(image, folder, seed=5, steps=2, height=32, width=32)
        self.assertEqual(161, len(mirrored))
        compare.assert_images("wan, animate 2, clips in pieces", got, expected, 0.01)


class WanAnimate2TrainTest(wan_train_parity_test.Steps):
    """As published: one command encodes, and one trains queries, keys and values, or LoRAs of them."""

    SIZES = dict(num_frames=9, height=32, width=48)
    INPUTS = "animate2_prompt_ref,animate2_reference_image,animate2_reference_video"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder, cls.file = animate2.save_spellings(animate2.make_transformer(), cls.dir / "dit")
        animate2.make_image_encoder().save_pretrained(cls.dir / "image_encoder")
        cls.rows = [(wan_checks.picture(32, 48, 1), [wan_checks.picture(32, 48, 10 + i) for i in range(9)],
                     [wan_checks.picture(32, 48, 20 + i) for i in range(9)])]
        data = cls.dir / "data"
        for name, frames in zip(("reference", "video", "driving"), ([cls.rows[0][0]], *cls.rows[0][1:])):
            (data / name).mkdir(parents=True)
            for i, frame in enumerate(frames):
                Image.fromarray(frame).save(data / name / f"{i}.png")
        (data / "metadata.json").write_text(json.dumps([
            dict(video="video", prompt=PROMPT, animate2_prompt_ref=OF_CLIP, animate2_reference_video="driving",
                 animate2_reference_image="reference/0.png")]))
        encoders = [cls.models.model / part for part in ("text_encoder", "vae", "tokenizer")]
        cls.call("train", encoders + [cls.dir / "image_encoder"], task="sft:data_process",
                 dataset_base_path=data, dataset_metadata_path=data / "metadata.json", output_path=cls.dir / "encoded",
                 model_hints=json.dumps({"*": {"variant": "wan2.2-animate2-14b"}}))
        cls.cache = cls.dir / "encoded/cache"
        item, = json.loads((cls.cache / "manifest.json").read_text())["items"]
        cls.encoded = {}
        for stage in ("text", "driving_text", "driven_image", "driving_frame", "driving", "latents"):
            cls.encoded |= load_file(cls.cache / stage / f"{item[stage]}.safetensors")
        cls.samples = [None]

    @classmethod
    def call(cls, command, paths, **flags):
        flags = dict(plugin="wan", model_paths=atelier.paths_argument(paths), threads=1, dtype="float32",
                     data_file_keys="video,animate2_reference_image,animate2_reference_video",
                     extra_inputs=cls.INPUTS, **cls.SIZES) | flags
        atelier.run([command, *(word for name, value in flags.items() for word in ("--" + name, value))], cls.dir)

    @staticmethod
    def pixels(frames):
        return torch.from_numpy(np.stack(frames)).permute(3, 0, 1, 2)[None].float() / 127.5 - 1

    def test_the_clip_stands_behind_its_reference_image(self):
        reference, video, driving = self.rows[0]
        with torch.no_grad():
            first, clip, other, nothing = (
                wan_models.encode(self.models.vae, pixels)[0] for pixels in
                (self.pixels([reference]), self.pixels(video), self.pixels(driving), torch.zeros((1, 3, 9, 32, 48))))
        known = torch.zeros((4, 4, 4, 6))
        known[:, 0] = 1
        for name, expected in (("latents", torch.cat([first, clip], 1)), ("driving_clip", other),
                               ("given_clip", torch.cat([known, torch.cat([first, nothing], 1)]))):
            compare.assert_close(f"wan, animate 2, {name}", self.encoded[name], expected, 1e-5)

    # --- the reference side, see Steps ---

    @staticmethod
    def parameters(transformers):
        return {
            f"dit.{name}": parameter
            for name, parameter in zip(animate2.original(transformers["dit"]), transformers["dit"].parameters())
            if re.search(r"self_attn\.[qkv]\.", name)
        }

    def loss(self, transformer, batch, seed, step, part):
        (_, slot), = batch
        level = wan_train_parity_test.level_of(seed, slot, step, part)
        sigma = torch.tensor(wan_train_parity_test.table()[[level]], dtype=torch.float32)
        clean = self.encoded["latents"]
        noise = training.normal_noise(training.stream_seed(seed, training.NOISE), slot, step, tuple(clean.shape))
        inputs = {name: self.encoded[name][None] for name in inputs_of() if name not in ("latents", "sigma")}
        with animate2.on_cpu():
            velocity = animate2.velocity(
                transformer, {"latents": ((1 - sigma) * clean + sigma * noise)[None], "sigma": sigma, **inputs}, False)
        weight = float(wan_train_parity_test.weights()[level])
        return weight * (velocity[0] - (noise - clean)).square().mean()

    def test_queries_keys_and_values_learn_as_in_diffusers(self):
        transformer = animate2.make_transformer()
        names = [f"dit.blocks.{i}.block.self_attn.{part}" for i in range(10) for part in "qkv"]
        with self.both("wan, animate 2, training", {"dit": transformer}, wan_train_parity_test.WHOLE, self.file, steps=2,
                       accumulation=1, extra_inputs=self.INPUTS, trainable_models=",".join(names),
                       **self.SIZES) as (run, _):
            saved = load_file(run.weights(2))
            self.assertIn("blocks.3.block.self_attn.q.weight", saved)
            inputs = inputs_of(batch=1)
            with torch.no_grad(), animate2.on_cpu():
                expected = animate2.velocity(transformer, inputs, False)
            got = probe("dit", run.weights(2), inputs)["velocity"]
            compare.assert_close("wan, animate 2, what was trained", got, expected, 1e-5)

    def test_a_lora_of_them_is_read_again(self):
        self.call("train", self.file, task="sft:train", dataset_base_path=self.cache, output_path=self.dir / "lora",
                  lora_base_model="dit", lora_target_modules="self_attn.q,self_attn.k,self_attn.v", lora_rank=2,
                  max_train_steps=2, learning_rate=0.01, dataset_repeat=8)
        lora = load_file(self.dir / "lora/step-2.safetensors")
        self.assertEqual(60, len(lora))
        paths = [self.models.model / part for part in ("text_encoder", "vae", "tokenizer")]
        flags = dict(prompt=PROMPT, num_inference_steps=1, cfg_scale=1, seed=1, **self.SIZES,
                     animate2_reference_image=self.dir / "data/reference/0.png",
                     animate2_reference_video=self.dir / "data/driving")
        paths += [self.dir / "image_encoder", self.file]
        plain = wan_checks.generate(paths, None, **flags)
        learnt = wan_checks.generate(paths, None, lora=self.dir / "lora/step-2.safetensors", **flags)
        self.assertGreater(wan_checks.difference(plain, learnt), 0.1)


if __name__ == "__main__":
    sys.exit(unittest.main())
