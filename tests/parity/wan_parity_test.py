"""Wan: every component, whole images and clips give what diffusers and transformers give, whichever
way the files are spelled."""

import contextlib
import json
import pathlib
import sys
import tempfile
import unittest

import numpy as np
import torch
from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler
from safetensors.torch import load_file

import atelier
import compare
import references
import wan_checks
import wan_models
from wan_checks import probe

# As people paste them: the pipelines clean prompts.
PROMPT = "A coffee shop entrance with a “chalkboard” sign &amp;amp; lamps,  cinematic lighting"
PUBLISHED_NEGATIVE = (
    "色调艳丽，过曝，静态，细节模糊不清，字幕，风格，作品，画作，画面，静止，整体发灰，最差质量，低质量，JPEG压缩残留，"
    "丑陋的，残缺的，多余的手指，画得不好的手部，画得不好的脸部，畸形的，毁容的，形态畸形的肢体，手指融合，"
    "静止不动的画面，杂乱的背景，三条腿，背景人很多，倒着走")
NEGATIVE = "blurry, 低画质"


class WanDitTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = wan_models.get()
        cls.transformer = cls.models.transformer
        cls.folder = cls.models.folder_of("dit")

    @staticmethod
    def inputs(batch, frames, height, width, length, seed=31, channels=16):
        """Random inputs for a grid of frames x height x width tokens, each 2 x 2 latents."""
        generator = torch.Generator().manual_seed(seed)
        shape = (batch, channels, frames, 2 * height, 2 * width)
        return {
            "latents":
                torch.randn(shape, generator=generator),
            "sigma":
                torch.rand((batch,), generator=generator) * 0.9 + 0.05,
            "prompt_embeds":
                torch.randn((batch, length, wan_models.TEXT_WIDTH), generator=generator)
        }

    def batch(self):
        """Three samples with prompts of different lengths; what is behind a prompt must not
        matter."""
        inputs = self.inputs(3, 2, 3, 5, 17)
        inputs["prompt_lengths"] = torch.tensor([17, 4, 9])
        return inputs

    def expected(self, inputs, transformer=None):
        with torch.no_grad():
            return wan_models.velocity(transformer or self.transformer, inputs["latents"],
                                       inputs["sigma"], inputs["prompt_embeds"],
                                       inputs.get("prompt_lengths"))

    def check(self, name, inputs, paths=None):
        got = probe("dit", paths or self.folder, inputs)["velocity"]
        compare.assert_close("wan, " + name, got, self.expected(inputs))
        return got

    def test_sizes_and_lengths_give_the_same_velocity(self):
        for frames, height, width, length in ((1, 4, 4, 13), (3, 3, 7, 1), (2, 1, 1, 512),
                                              (5, 5, 2, 256)):
            with self.subTest(frames=frames, height=height, width=width, length=length):
                self.check("denoiser", self.inputs(1, frames, height, width, length))

    def test_the_ends_of_the_schedule_give_the_same_velocity(self):
        for sigma in (0.0, 1.0):
            inputs = self.inputs(1, 2, 4, 5, 13)
            inputs["sigma"] = torch.tensor([sigma])
            self.check("denoiser, ends of the schedule", inputs)

    def test_every_spelling_gives_the_same_velocity(self):
        for spelling, paths in self.models.layout_of("dit").items():
            with self.subTest(spelling=spelling):
                self.check("denoiser, " + spelling, self.inputs(1, 2, 4, 5, 13), paths)

    def test_a_batch_of_different_prompts_gives_the_same_velocity(self):
        self.check("denoiser, batch of different prompts", self.batch())

    def test_a_batch_equals_its_samples(self):
        inputs = self.batch()
        together = probe("dit", self.folder, inputs)["velocity"]
        for row, length in enumerate(inputs["prompt_lengths"].tolist()):
            alone = self.check(
                "denoiser, each sample alone", {
                    "latents": inputs["latents"][row:row + 1],
                    "sigma": inputs["sigma"][row:row + 1],
                    "prompt_embeds": inputs["prompt_embeds"][row:row + 1, :length]
                })
            compare.assert_close("wan, batch against its samples", together[row:row + 1], alone)

    def test_what_configs_say_counts(self):
        for changes in (dict(num_attention_heads=4, attention_head_dim=8),
                        dict(num_attention_heads=1, attention_head_dim=26),
                        dict(eps=1e-3, freq_dim=32), dict(patch_size=(1, 1, 1)),
                        dict(in_channels=6, out_channels=6, num_layers=3)):
            transformer = wan_models.make_transformer(seed=94, **changes)
            inputs = self.inputs(1, 2, 4, 6, 13, channels=transformer.config.in_channels)
            with self.subTest(**changes), tempfile.TemporaryDirectory() as folder:
                for path in wan_checks.save_spellings(transformer, folder):
                    compare.assert_close(f"wan, denoiser, {changes}",
                                         probe("dit", path, inputs)["velocity"],
                                         self.expected(inputs, transformer))

    def test_all_gradients_are_the_same(self):
        for name, inputs in (("one sample", self.inputs(1, 3, 5, 6, 13)), ("a batch", self.batch())):
            got = probe("dit", self.folder, inputs, gradients=True, trainable="*")
            floating = wan_checks.with_gradients(inputs)
            output = wan_models.velocity(self.transformer, floating["latents"], floating["sigma"],
                                         floating["prompt_embeds"], inputs.get("prompt_lengths"))
            expected = references.gradients(output, floating,
                                            dict(self.transformer.named_parameters()))
            compare.assert_gradients(f"wan, denoiser, gradients of {name}", got, expected)
            compare.assert_close("wan, denoiser, values with gradients", got["velocity"], output)

    def test_bfloat16_is_as_exact_as_diffusers(self):
        inputs = self.inputs(1, 3, 6, 6, 20)
        exact = wan_models.make_transformer().double()
        with torch.no_grad():
            expected = wan_models.velocity(
                exact, *(inputs[name].double() for name in ("latents", "sigma", "prompt_embeds")))
            # As diffusers loads it: some weights stay float32.
            half = type(exact).from_pretrained(self.folder, torch_dtype=torch.bfloat16)
            theirs = wan_models.velocity(half, inputs["latents"].bfloat16(), inputs["sigma"],
                                         inputs["prompt_embeds"].bfloat16())
        ours = probe("dit", self.folder, inputs, dtype="bfloat16")["velocity"]
        error = [float((v.double() - expected).norm() / expected.norm()) for v in (ours, theirs)]
        compare.record("wan, denoiser, bfloat16 error of ours by theirs", error[0] / error[1])
        self.assertLess(error[0], 1.05 * error[1])


class WanVaeTest(wan_checks.VaeChecks, unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = wan_models.get()
        cls.vae, cls.folder = cls.models.vae, cls.models.folder_of("vae")

    def test_clips_encode_the_same(self):
        for frames, height, width in ((1, 40, 56), (5, 40, 56), (9, 24, 8), (13, 16, 24), (17, 8, 8)):
            with self.subTest(frames=frames, height=height, width=width):
                self.check("wan, VAE, encode", self.clip(1, frames, height, width))

    def test_clips_decode_the_same(self):
        for frames, height, width in ((1, 5, 7), (2, 5, 7), (3, 3, 1), (4, 2, 3), (5, 1, 1)):
            with self.subTest(frames=frames, height=height, width=width):
                self.check("wan, VAE, decode", latents=self.latents(1, frames, height, width))

    def test_a_batch_is_the_same_and_equals_its_samples(self):
        clip, latents = self.clip(2, 9, 24, 16), self.latents(2, 3, 3, 2)
        self.check("wan, VAE, encode, batch", clip)
        self.check("wan, VAE, decode, batch", latents=latents)
        compare.assert_close("wan, VAE, encode, batch against its samples", self.ours(clip)[1:],
                             self.ours(clip[1:]))
        compare.assert_close("wan, VAE, decode, batch against its samples",
                             self.ours(latents=latents)[1:], self.ours(latents=latents[1:]))

    def test_the_original_spelling_gives_the_same(self):
        paths = self.models.layout_of("vae")["original"]
        self.check("wan, VAE, encode, original spelling", self.clip(1, 5, 24, 16), paths=paths)
        self.check("wan, VAE, decode, original spelling", latents=self.latents(1, 2, 3, 2),
                   paths=paths)

    def test_other_levels_give_the_same(self):
        for number, changes in enumerate((dict(base_dim=5, dim_mult=[1, 3, 3],
                                               temperal_downsample=[False, True]),
                                          dict(dim_mult=[1, 2], temperal_downsample=[True],
                                               num_res_blocks=1),
                                          dict(dim_mult=[1, 2, 2],
                                               temperal_downsample=[True, False]))):
            vae = wan_models.make_vae(seed=95 + number, **changes)
            step = 2**sum(changes["temperal_downsample"])
            with self.subTest(**changes), tempfile.TemporaryDirectory() as folder:
                vae.save_pretrained(folder)
                # diffusers encodes four frames at a time, whatever a latent frame stands for.
                frames = 1 if step != 4 else 9
                self.check(f"wan, VAE, encode, {changes}", self.clip(1, frames, 24, 16),
                           paths=folder, vae=vae)
                self.check(f"wan, VAE, decode, {changes}", latents=self.latents(1, 3, 3, 2),
                           paths=folder, vae=vae)

    def test_pieces_give_what_the_whole_clip_gives_at_once(self):
        clip, latents = self.clip(1, 13, 24, 16), self.latents(1, 4, 3, 2)
        with wan_models.whole_clips(), torch.no_grad():
            mean, std = wan_models.constants(self.vae, clip)
            moments = self.vae.quant_conv(self.vae.encoder(clip))
            encoded = (moments[:, :16] - mean) / std
            decoded = self.vae.decoder(self.vae.post_quant_conv(latents * std + mean))
        compare.assert_close("wan, VAE, encode, pieces against the whole", self.ours(clip), encoded,
                             tolerance=1e-5)
        compare.assert_close("wan, VAE, decode, pieces against the whole",
                             self.ours(latents=latents), decoded.clamp(-1, 1), tolerance=1e-5)

    def test_frames_that_do_not_fit_are_refused(self):
        with self.assertRaisesRegex(atelier.ProgramFailed, "4 frames.*multiple of 4"):
            self.ours(self.clip(1, 4, 16, 16))

    def test_gradients_are_the_same(self):
        self.check_gradients("wan, VAE", self.clip(1, 9, 16, 24), self.latents(1, 3, 2, 3))


class WanPipelineTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = wan_models.get()
        cls.pipeline = cls.models.pipeline

    def tearDown(self):
        self.pipeline.unload_lora_weights()

    def reference(self, latents, shift=3.0, scheduler=None, **options):
        """The frames of all clips."""
        self.pipeline.scheduler = scheduler or self.models.scheduler_with(shift)
        options.setdefault("prompt", PROMPT)
        options.setdefault("negative_prompt", NEGATIVE)
        options["prompt"] = [options["prompt"]] * latents.shape[0]
        options["negative_prompt"] = [options["negative_prompt"]] * latents.shape[0]
        clips = self.pipeline(height=8 * latents.shape[3],
                              width=8 * latents.shape[4],
                              num_frames=4 * latents.shape[2] - 3,
                              latents=latents,
                              output_type="np",
                              **options).frames
        return [frame for clip in clips for frame in wan_models.rounded(clip)]

    def ours(self, latents, paths=None, **flags):
        flags = dict(prompt=PROMPT,
                     negative_prompt=NEGATIVE,
                     height=8 * latents.shape[3],
                     width=8 * latents.shape[4],
                     num_frames=4 * latents.shape[2] - 3,
                     num_images=latents.shape[0],
                     seed=0) | flags
        return wan_checks.generate(paths or self.models.model, latents, **flags)

    def test_clips_are_those_of_diffusers_in_every_spelling(self):
        latents = wan_checks.noise(5, 48, 64, seed=41)
        expected = self.reference(latents, num_inference_steps=4)
        self.assertEqual(len(expected), 5)
        other = self.reference(latents, num_inference_steps=4, prompt="red")
        effect = wan_checks.difference(expected, other)
        self.assertGreater(effect, 2, "the prompt changes too little to prove anything")
        for layout, paths in self.models.layouts().items():
            with self.subTest(layout=layout):
                compare.assert_images("wan, clips, " + layout,
                                      self.ours(latents, paths, num_inference_steps=4), expected)

    def test_images_are_those_of_diffusers(self):
        latents = wan_checks.noise(1, 64, 48, seed=42, count=2)
        compare.assert_images("wan, images", self.ours(latents, num_inference_steps=3),
                              self.reference(latents, num_inference_steps=3))

    def test_clips_in_tiles_have_no_seams(self):
        """What tiles change of a clip changes at their edges as it does between them."""
        latents = wan_checks.noise(9, 96, 128, seed=48)
        whole, tiled = (np.stack(self.ours(latents, num_inference_steps=2, **flags)).astype(np.float64)
                        for flags in ({}, dict(tiled=True, tile_size=64, tile_stride=48)))
        for axis, edges in ((1, (32, 64)), (2, (32, 64, 96))):
            jumps = np.abs(np.diff(tiled - whole, axis=axis)).mean(
                axis=tuple(i for i in range(4) if i != axis))
            at_edges = jumps[[edge - 1 for edge in edges]].mean()
            compare.record("wan, clips in tiles, jumps at edges over those elsewhere",
                           at_edges / jumps.mean())
            self.assertLess(at_edges, 1.25 * jumps.mean())
        compare.record("wan, clips in tiles, mean difference to the whole",
                       np.abs(tiled - whole).mean())

    def test_shift_and_guidance_are_those_of_diffusers(self):
        latents = wan_checks.noise(9, 32, 48, seed=43)
        for shift, scale, steps in ((5, 5, 6), (8, 1, 5), (3, 7, 2)):
            with self.subTest(shift=shift, scale=scale, steps=steps):
                compare.assert_images(
                    "wan, clips, other shift and guidance",
                    self.ours(latents, num_inference_steps=steps, flow_shift=shift,
                              cfg_scale=scale),
                    self.reference(latents, shift=shift, guidance_scale=float(scale),
                                   num_inference_steps=steps))

    def test_an_empty_negative_prompt_is_the_published_one(self):
        latents = wan_checks.noise(1, 32, 48, seed=46)
        compare.assert_images(
            "wan, images, published negative prompt",
            self.ours(latents, num_inference_steps=2, negative_prompt=""),
            self.reference(latents, num_inference_steps=2, negative_prompt=PUBLISHED_NEGATIVE))

    def test_clips_in_bfloat16_are_as_exact_as_those_of_diffusers(self):
        """Over several clips, since one alone lies anywhere between 0.7 and 1.4 times the other's error."""
        parts = {name: type(module).from_pretrained(self.models.model / name, torch_dtype=torch.bfloat16)
                 for name, module in (("transformer", self.models.transformer),
                                      ("text_encoder", self.models.text_encoder))}
        half = self.models.make_pipeline(type(self.pipeline), **parts)
        errors = np.zeros(2)
        for seed in range(8):
            latents = wan_checks.noise(9, 32, 48, seed=500 + seed)
            exact = self.reference(latents, num_inference_steps=2)
            ours = self.ours(latents, num_inference_steps=2, dtype="bfloat16,vae=float32")
            theirs = half(PROMPT, NEGATIVE, height=32, width=48, num_frames=9, latents=latents,
                          num_inference_steps=2, output_type="np").frames[0]
            errors += [wan_checks.difference(got, exact) for got in (ours, wan_models.rounded(theirs))]
        compare.record("wan, clips in bfloat16, error of ours by theirs", errors[0] / errors[1])
        self.assertLess(errors[0], 1.15 * errors[1])

    def test_dpm_solver_has_its_levels_in_diffusers(self):
        latents = wan_checks.noise(5, 32, 48, seed=48)
        flow = dict(prediction_type="flow_prediction", use_flow_sigmas=True)
        for steps, shift in ((4, 3.0), (7, 5.0)):
            scheduler = DPMSolverMultistepScheduler(**flow, flow_shift=shift)
            compare.assert_images(
                "wan, clips of DPM-Solver++",
                self.ours(latents, solver="dpm++", num_inference_steps=steps, flow_shift=shift),
                self.reference(latents, scheduler=scheduler, num_inference_steps=steps))

    @contextlib.contextmanager
    def scheduler_of(self, **changes):
        """While it holds, the model's folder has a scheduler that says something else, or leaves out what is None."""
        path = self.models.model / "scheduler/scheduler_config.json"
        text = path.read_text()
        fields = json.loads(text) | changes
        path.write_text(json.dumps({name: value for name, value in fields.items()
                                    if name not in changes or value is not None}))
        try:
            yield
        finally:
            path.write_text(text)

    def test_the_shift_of_the_folder_is_taken(self):
        latents = wan_checks.noise(5, 32, 48, seed=50)
        with self.scheduler_of(flow_shift=8.0):
            got = self.ours(latents, num_inference_steps=4)
            said = self.ours(latents, num_inference_steps=4, flow_shift=3)
        compare.assert_images("wan, clips shifted by the folder", got,
                              self.reference(latents, shift=8.0, num_inference_steps=4))
        compare.assert_images("wan, clips shifted by the user", said,
                              self.reference(latents, num_inference_steps=4))
        self.assertGreater(wan_checks.difference(got, said), 2, "the shift proves nothing")

    def test_what_a_folder_says_and_is_not_computed_is_refused_by_its_name(self):
        latents = wan_checks.noise(1, 32, 48, seed=51)
        for name, value in dict(prediction_type="epsilon", num_train_timesteps=2000, solver_order=1,
                                disable_corrector=[0], thresholding=True, shift_terminal=0.1,
                                final_sigmas_type="sigma_min", lower_order_final=False,
                                solver_type="bh1", _class_name="DDIMScheduler",
                                unheard_of=1).items():
            with self.subTest(name), self.scheduler_of(**{name: value}), \
                    self.assertRaisesRegex(Exception, f'scheduler_config.json: config field "{name}"'):
                self.ours(latents, num_inference_steps=2)

    def test_what_a_folder_has_to_say_and_does_not_is_refused_by_its_name(self):
        latents = wan_checks.noise(1, 32, 48, seed=51)
        for name in ("prediction_type", "use_flow_sigmas"):
            with self.subTest(name), self.scheduler_of(**{name: None}), \
                    self.assertRaisesRegex(Exception, f'scheduler_config.json: config field "{name}" is missing'):
                self.ours(latents, num_inference_steps=2)

    def test_an_empty_prompt_is_that_of_diffusers(self):
        latents = wan_checks.noise(5, 32, 48, seed=49)
        compare.assert_images("wan, clips of an empty prompt",
                              self.ours(latents, num_inference_steps=3, prompt=""),
                              self.reference(latents, num_inference_steps=3, prompt=""))

    @contextlib.contextmanager
    def second_expert(self, boundary):
        """While it holds, the pipeline has a second expert for what is below `boundary`. Yields the
        paths of both."""
        other = wan_models.make_transformer(seed=98)
        with tempfile.TemporaryDirectory(prefix="atelier_experts_") as folder:
            paths = self.models.folder_with(pathlib.Path(folder) / "model",
                                            transformer=self.models.transformer,
                                            transformer_2=other)
            self.pipeline.register_modules(transformer_2=other)
            self.pipeline.register_to_config(boundary_ratio=boundary)
            try:
                yield paths
            finally:
                self.pipeline.register_modules(transformer_2=None)
                self.pipeline.register_to_config(boundary_ratio=None)

    def test_two_experts_share_the_levels_as_in_diffusers(self):
        latents = wan_checks.noise(5, 32, 48, seed=45)
        steps = dict(num_inference_steps=5)
        alone = self.reference(latents, shift=12.0, guidance_scale=4.0, **steps)
        for scales in ((4, 3), (4, None), (1, None)):
            names = ("guidance_scale", "guidance_scale_2")
            theirs = {name: float(v) for name, v in zip(names, scales) if v is not None}
            ours = {name: v for name, v in zip(("cfg_scale", "cfg_scale_2"), scales)
                    if v is not None}
            with self.subTest(scales=scales), self.second_expert(0.875) as paths:
                expected = self.reference(latents, shift=12.0, **theirs, **steps)
                effect = wan_checks.difference(expected, alone)
                self.assertGreater(effect, 2, "the second expert proves nothing")
                compare.assert_images("wan, clips of two experts",
                                      self.ours(latents, paths, flow_shift=12, **ours, **steps),
                                      expected)

    def test_solvers_go_on_over_any_border_of_two_experts_as_in_diffusers(self):
        latents = wan_checks.noise(5, 32, 48, seed=47, count=2)
        flow = dict(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0)
        # diffusers' Euler makes levels of its own: ours is told them.
        cases = (("unipc", None, 0.6, {}), ("unipc", None, 0.97, dict(cfg_batch="off", batch_size=2)),
                 ("unipc", None, 0.8, dict(cfg_scale=1)),
                 ("dpm++", DPMSolverMultistepScheduler(**flow), 0.7, {}),
                 ("euler", FlowMatchEulerDiscreteScheduler(shift=5.0), 0.5, dict(schedule="euler")))
        for solver, scheduler, boundary, more in cases:
            with self.subTest(solver=solver, boundary=boundary), \
                    self.second_expert(boundary) as paths:
                scale = more.get("cfg_scale", 4)
                expected = self.reference(latents, shift=5.0, scheduler=scheduler,
                                          guidance_scale=float(scale), num_inference_steps=6)
                flags = dict(cfg_scale=scale, num_inference_steps=6)
                if solver == "euler":
                    flags["sigmas"] = ",".join(repr(float(s)) for s in scheduler.sigmas)
                flags |= more
                compare.assert_images(
                    f"wan, clips of two experts, {solver}, another border",
                    self.ours(latents, paths, solver=solver, flow_shift=5,
                              switch_boundary=boundary, **flags), expected)

    def test_clips_from_a_clip_are_those_of_diffusers(self):
        cases = ((5, 5, 0.6, {}), (9, 6, 0.55, dict(cfg_scale=1)), (1, 4, 1.0, {}))
        for frames, steps, strength, more in cases:
            latents = wan_checks.noise(frames, 32, 48, seed=49)
            with self.subTest(frames=frames, strength=strength), \
                    wan_models.clip_folder(frames, 32, 48) as (folder, clip):
                expected = wan_models.changed_clip(
                    self.models, clip, 49, {}, strength=strength, num_inference_steps=steps,
                    guidance_scale=float(more.get("cfg_scale", 5)), prompt=PROMPT,
                    negative_prompt=NEGATIVE)
                self.assertEqual(len(expected), frames)
                got = self.ours(latents, input_video=folder, denoising_strength=strength,
                                num_inference_steps=steps, **more)
                compare.assert_images("wan, clips from a clip", got, expected)

    def test_a_clip_may_begin_with_the_second_expert(self):
        latents = wan_checks.noise(5, 32, 48, seed=50)
        asked = dict(num_inference_steps=5, prompt=PROMPT, negative_prompt=NEGATIVE)
        with self.second_expert(0.875) as paths, wan_models.clip_folder(5, 32, 48) as (folder, clip):
            low = dict(transformer=self.pipeline.transformer_2)
            expected = wan_models.changed_clip(self.models, clip, 50, low, strength=0.4,
                                               guidance_scale=4.0, **asked)
            got = self.ours(latents, paths, input_video=folder, denoising_strength=0.4,
                            cfg_scale=4, flow_shift=3, **asked)
            compare.assert_images("wan, clips from a clip, the second expert alone", got, expected)

    def test_a_lora_that_was_trained_on_images_is_read_by_diffusers(self):
        rng = np.random.default_rng(5)
        rows = [(rng.integers(0, 256, (32, 48, 3), dtype=np.uint8), text)
                for text in ("a red cat", "a blue circle")]
        latents = wan_checks.noise(5, 32, 48, seed=44)
        plain = self.reference(latents, num_inference_steps=3)
        with atelier.train(self.models.model,
                           rows,
                           plugin=wan_checks.PLUGIN,
                           height=32,
                           width=48,
                           learning_rate=0.05,
                           num_epochs=3,
                           lora_base_model="dit",
                           lora_target_modules="q,k,v,o,ffn.0,ffn.2",
                           lora_rank=4) as run:
            self.assertEqual(len(run.losses()), 6)
            file = run.weights(6)
            layers = {name.rsplit(".lora_", 1)[0] for name in load_file(file)}
            self.assertEqual(len(layers), 20)  # ten in each block
            self.pipeline.load_lora_weights(file)
            expected = self.reference(latents, num_inference_steps=3)
            effect = wan_checks.difference(expected, plain)
            self.assertGreater(effect, 2, "the LoRA changes too little to prove anything")
            compare.assert_images("wan, clips with a LoRA",
                                  self.ours(latents, num_inference_steps=3, lora=file), expected)


if __name__ == "__main__":
    sys.exit(unittest.main())
