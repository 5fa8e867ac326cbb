"""LongCat-Video: the denoiser gives what its formulas say, with known frames and without; whole clips
are those of a plain sampler with its guidance, and frames that are known stay as they are."""

import contextlib
import sys
import tempfile
import unittest
import unittest.mock

import numpy as np
import torch
from peft import LoraConfig, inject_adapter_in_model
from PIL import Image
from safetensors.torch import load_file, save_file

import atelier
import clip_cache
import compare
import longcat_models
import references
import training
import wan_checks
import wan_models
import wan_train_parity_test as wan_train
from wan_checks import probe

PROMPT, NEGATIVE = "A cat walks along a wall", "blurry, 低画质"
TOLERANCE = 1e-5  # of the scale


class LongCatDitTest(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.dit = longcat_models.make()
        cls.folder = longcat_models.save(cls.dit, cls.dir / "dit")

    @staticmethod
    def inputs(frames=3, known=0, batch=2, height=4, width=6, length=13):
        generator = torch.Generator().manual_seed(7)

        def draw(*shape):
            return torch.randn((batch, *shape), generator=generator)

        inputs = {"latents": draw(16, frames, height, width),
                  "sigma": torch.rand((batch,), generator=generator) * 0.9 + 0.05,
                  "prompt_embeds": draw(length, wan_models.TEXT_WIDTH)}
        if known:
            inputs["known_clip"] = inputs["latents"][:, :, :known].clone()
        return inputs

    def test_velocities_and_gradients_are_those_of_the_formulas(self):
        results = {}
        for known in (0, 1, 2):
            inputs = self.inputs(known=known)
            floating = wan_checks.with_gradients(inputs)
            output = self.dit(**floating)
            expected = references.gradients(output, floating, dict(self.dit.named_parameters()))
            got = probe("dit", self.folder, inputs, gradients=True, trainable="*")
            name = f"longcat, denoiser, {known} known frames"
            compare.assert_close(name, got["velocity"], output, TOLERANCE)
            compare.assert_gradients(name + ", gradients", got, expected,
                                     {key: TOLERANCE for key in expected})
            results[known] = output.detach()
        self.assertGreater(compare.relative_error(results[1], results[0]), 0.01)
        self.assertGreater(compare.relative_error(results[2], results[1]), 0.01)

    def test_known_frames_see_neither_text_nor_noise_nor_level(self):
        inputs = self.inputs(known=2)
        before = probe("dit", self.folder, inputs)["velocity"]
        others = self.inputs(known=2, length=5)
        others["prompt_embeds"] = others["prompt_embeds"] + 1
        others["sigma"] = torch.tensor([0.2, 0.7])
        others["known_clip"] = inputs["known_clip"]
        others["latents"] = torch.cat([inputs["known_clip"], 2 * inputs["latents"][:, :, 2:]], 2)
        after = probe("dit", self.folder, others)["velocity"]
        compare.assert_close("longcat, known frames alone", after[:, :, :2], before[:, :, :2], TOLERANCE)
        self.assertGreater(compare.relative_error(after[:, :, 2:], before[:, :, 2:]), 0.1)

    def test_sizes_and_lengths_give_the_same_velocity(self):
        for frames, height, width, length in ((1, 2, 2, 1), (5, 6, 2, 512), (2, 8, 10, 77)):
            inputs = self.inputs(frames, 0, 1, height, width, length)
            with torch.no_grad():
                expected = self.dit(**inputs)
            compare.assert_close("longcat, denoiser, sizes", probe("dit", self.folder, inputs)["velocity"],
                                 expected, TOLERANCE)
        inputs = self.inputs(known=1)
        inputs["prompt_lengths"] = torch.tensor([13, 4])
        with torch.no_grad():
            expected = self.dit(inputs["latents"], inputs["sigma"], inputs["prompt_embeds"], inputs["known_clip"],
                                inputs["prompt_lengths"])
        compare.assert_close("longcat, denoiser, lengths", probe("dit", self.folder, inputs)["velocity"], expected,
                             TOLERANCE)

    def test_a_clip_that_is_all_known_is_refused(self):
        with self.assertRaisesRegex(atelier.ProgramFailed, "have no frame behind it"):
            probe("dit", self.folder, self.inputs(frames=2, known=2))


class LongCatClipsTest(wan_checks.FolderTest):

    size = dict(height=32, width=48)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.dit = longcat_models.make()
        cls.paths = [longcat_models.save(cls.dit, cls.dir / "dit"),
                     *(cls.models.model / part for part in ("text_encoder", "vae", "tokenizer"))]
        with torch.no_grad():
            cls.prompt, cls.negative = (embeds[0] for embeds in cls.models.pipeline.encode_prompt(
                PROMPT, NEGATIVE, max_sequence_length=512))
        cls.prompt, cls.negative = (rows[rows.any(1)] for rows in (cls.prompt, cls.negative))

    def noise(self, frames, seed=8):
        return wan_checks.noise(frames, **self.size, seed=seed)

    def ours(self, latents, paths=None, **flags):
        return wan_checks.generate(paths or self.paths, latents, **{
            **dict(schedule="default", prompt=PROMPT, negative_prompt=NEGATIVE, **self.size), **flags})

    @torch.no_grad()
    def sample(self, noise, steps, scale=4.0, known=None, sigmas=None, dit=None):
        return longcat_models.sample(dit or self.dit, noise, self.prompt, self.negative,
                                     sigmas or longcat_models.published_sigmas(steps), scale, known)

    @torch.no_grad()
    def frames(self, latents):
        clip = wan_models.decode(self.models.vae, latents[None])[0].permute(1, 2, 3, 0)
        return wan_models.rounded((clip / 2 + 0.5).clamp(0, 1).numpy())

    @torch.no_grad()
    def known(self, pictures):
        """Latents of pictures, uint8 [H, W, 3] each."""
        clip = torch.tensor(np.stack(pictures)).permute(3, 0, 1, 2)[None] / 127.5 - 1
        return wan_models.encode(self.models.vae, clip)[0]

    @contextlib.contextmanager
    def clip(self, frames):
        with tempfile.TemporaryDirectory(prefix="atelier_longcat_") as folder:
            pictures = [wan_checks.picture(**self.size, seed=60 + i) for i in range(frames)]
            for i, picture in enumerate(pictures):
                Image.fromarray(picture).save(f"{folder}/{i}.png")
            yield folder, pictures

    def test_clips_from_texts_are_those_of_the_published_sampler(self):
        noise = self.noise(9)
        expected = self.frames(self.sample(noise[0], 4))
        compare.assert_images("longcat, clips from texts", self.ours(noise, num_frames=9, num_inference_steps=4),
                              expected, tolerance=0.01)
        # Plain guidance, as peers have it, makes another clip.
        with unittest.mock.patch.object(longcat_models, "guided", lambda c, u, scale, known: u + scale * (c - u)):
            plain = self.frames(self.sample(noise[0], 4))
        self.assertGreater(wan_checks.difference(plain, expected), 0.05)

    def test_the_negative_prompt_is_the_published_one_where_it_is_empty(self):
        noise = self.noise(5)
        published = (
            "Bright tones, overexposed, static, blurred details, subtitles, style, works, paintings, images, static, "
            "overall gray, worst quality, low quality, JPEG compression residue, ugly, incomplete, extra fingers, "
            "poorly drawn hands, poorly drawn faces, deformed, disfigured, misshapen limbs, fused fingers, still "
            "picture, messy background, three legs, many people in the background, walking backwards")
        got = self.ours(noise, num_frames=5, num_inference_steps=2, negative_prompt="")
        said = self.ours(noise, num_frames=5, num_inference_steps=2, negative_prompt=published)
        self.assertEqual(0, wan_checks.difference(got, said))
        self.assertGreater(wan_checks.difference(got, self.ours(noise, num_frames=5, num_inference_steps=2)), 0)

    def test_the_distilled_schedule_has_levels_of_fifty_steps(self):
        noise = self.noise(5)
        expected = self.frames(self.sample(noise[0], 16, 1, sigmas=longcat_models.distilled_sigmas(16)))
        compare.assert_images("longcat, distilled schedule",
                              self.ours(noise, num_frames=5, schedule="distill"), expected, tolerance=0.01)

    def test_clips_go_on_from_an_image_and_from_a_clip(self):
        noise = self.noise(13)
        steps = 3
        for frames, flag in ((1, "input_image"), (5, "longcat_video"), (9, "longcat_video")):
            with self.subTest(frames=frames), self.clip(frames) as (folder, pictures):
                known = self.known(pictures)
                latents = self.sample(noise[0], steps, known=known)
                shown = pictures[0] if flag == "input_image" else folder
                got = self.ours(noise, num_frames=13, num_inference_steps=steps, **{flag: shown})
                compare.assert_images("longcat, clips from " + flag, got, self.frames(latents), tolerance=0.01)
                # No step moves what is known: the first frames are those of its latents alone.
                compare.assert_images("longcat, known frames", got[:frames], self.frames(known), tolerance=0.01)

    def test_long_clips_go_on_from_their_last_frames(self):
        size = dict(height=16, width=16)
        steps, seed = 2, 5
        sigmas = longcat_models.published_sigmas(steps)

        def piece(number, frames, before=None):
            noise = training.normal_noise(seed + number, 0, 0, (16, (frames - 1) // 4 + 1, 2, 2))
            known = None if before is None else wan_models.encode(self.models.vae, before[None])[0]
            latents = longcat_models.sample(self.dit, noise, self.prompt, None, sigmas, 1, known)
            return wan_models.decode(self.models.vae, latents[None])[0]
        with torch.no_grad():
            first = piece(0, 93)
            second = piece(1, 17, first[:, -13:].clamp(-1, 1))
        clip = torch.cat([first, second[:, 13:]], 1).permute(1, 2, 3, 0)
        expected = wan_models.rounded((clip / 2 + 0.5).clamp(0, 1).numpy())
        with atelier.call_folder("generate") as folder:
            atelier.run(["generate", "--plugin", "wan", "--model_paths", atelier.paths_argument(self.paths), "--output",
                         folder / "out.png", "--prompt", PROMPT, "--num_frames", 97, "--height", 16, "--width", 16,
                         "--seed", seed, "--num_inference_steps", steps, "--cfg_scale", 1, "--dtype", "float32"],
                        folder)
            got = atelier.read_pictures(sorted(folder.glob("out*.png")))
        compare.assert_images("longcat, long clips", got, expected, tolerance=0.01)

    def test_ranks_that_share_the_rows_make_the_same_clip(self):
        with self.clip(5) as (start, _):
            wan_checks.assert_ranks_agree("longcat", self.paths, prompt=PROMPT, longcat_video=start, num_frames=13,
                                          **self.size)

    def test_what_does_not_go_before_a_clip_is_refused(self):
        noise = self.noise(9)
        with self.clip(6) as (folder, pictures):
            for problem, flags in (("cut it to 5 frames", dict(longcat_video=folder)),
                                   ("leave one of them out", dict(longcat_video=folder, input_image=pictures[0]))):
                with self.assertRaisesRegex(atelier.ProgramFailed, problem):
                    self.ours(noise, num_frames=9, **flags)
        with self.clip(9) as (folder, _):
            with self.assertRaisesRegex(atelier.ProgramFailed, "9 frames before a clip of 9 in all"):
                self.ours(noise, num_frames=9, longcat_video=folder)

    def loras(self, folder):
        """The same LoRA on every layer, as the program and peers write it and as the published one is written, and
        what it adds."""
        rank, alpha = 4, 2.0
        plain, published, added = {}, {}, {}
        for number, (name, weight) in enumerate(self.dit.named_parameters()):
            layer = name.removesuffix(".weight")
            if not name.startswith("blocks.") or layer.split(".", 2)[2] not in longcat_models.LINEARS:
                continue
            pieces = {"attn.qkv": 3, "cross_attn.kv_linear": 2}.get(layer.split(".", 2)[2], 1)
            generator = torch.Generator().manual_seed(number)
            down = 0.3 * torch.randn((pieces * rank, weight.shape[1]), generator=generator)
            ups = (0.3 * torch.randn((weight.shape[0], rank), generator=generator)).chunk(pieces)
            flat = "lora." + layer
            flat = flat.replace(".", "___lorahyphen___")
            published |= {f"{flat}.lora_down.weight": down, f"{flat}.alpha_scale": torch.tensor(alpha / rank)}
            if pieces == 1:
                published[f"{flat}.lora_up.weight"] = ups[0].clone()
            else:
                published |= {f"{flat}.lora_up.blocks.{i}.weight": up.clone() for i, up in enumerate(ups)}
            up = torch.block_diag(*ups) * (alpha / rank)
            plain |= {f"{layer}.lora_A.default.weight": down, f"{layer}.lora_B.default.weight": up.contiguous()}
            added[name] = up @ down
        for name, tensors in (("plain", plain), ("published", published)):
            save_file(tensors, folder / f"{name}.safetensors")
        return [folder / "plain.safetensors", folder / "published.safetensors"], added

    def test_loras_in_every_spelling_change_clips(self):
        noise, steps = self.noise(5), 2
        files, added = self.loras(self.dir)
        changed = longcat_models.make()
        with torch.no_grad():
            for name, parameter in changed.named_parameters():
                parameter += added.get(name, 0)
        expected = self.frames(self.sample(noise[0], steps, dit=changed))
        self.assertGreater(wan_checks.difference(expected, self.frames(self.sample(noise[0], steps))), 1)
        for file in files:
            got = self.ours(noise, num_frames=5, num_inference_steps=steps, lora=file)
            compare.assert_images("longcat, LoRA, " + file.stem, got, expected, tolerance=0.01)
        got = self.ours(noise, num_frames=5, num_inference_steps=steps, lora=files[1], lora_mode="merge")
        compare.assert_images("longcat, LoRA, merged", got, expected, tolerance=0.01)


class LongCatTrainTest(wan_train.Steps):
    """Steps as the published scripts take them, and those with frames that are known."""

    paths = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.paths = [longcat_models.save(longcat_models.make(), cls.dir / "dit"),
                     *(cls.models.model / part for part in ("text_encoder", "vae", "tokenizer"))]

    def velocity(self, transformer, samples, noisy, sigma, embeds, lengths, first):
        return transformer(noisy, sigma, embeds, first, lengths)

    def encode(self, name, *flags):
        """Makes what the steps learn from."""
        stages = ["known_clip"] if flags else []
        self.cache = clip_cache.make(self.dir / name, "wan", self.paths, wan_train.PROMPTS, wan_train.FRAMES,
                                     wan_train.HEIGHT, wan_train.WIDTH, *flags)
        self.samples = [wan_train.Sample(*values) for values in clip_cache.read(self.cache, *stages)]

    def test_full_steps_with_known_frames_and_without(self):
        for name, flags, asked in (("texts", [], {}),
                                   ("image", ["--extra_inputs", "input_image"], dict(extra_inputs="input_image"))):
            self.encode(name, *flags)
            dit = longcat_models.make()
            with self.subTest(name), self.both("longcat, training, " + name, {"dit": dit}, wan_train.WHOLE, self.paths,
                                               steps=2, trainable_models="dit", **asked) as (run, _):
                again = load_file(run.folder / "step-2.safetensors")
                self.assertEqual(set(dit.state_dict()), set(again))
                inputs = LongCatDitTest.inputs()
                with torch.no_grad():
                    expected = dit(**inputs)
                saved = [run.folder / "step-2.safetensors", *self.paths[1:]]
                compare.assert_close("longcat, training, saved", probe("dit", saved, inputs)["velocity"], expected,
                                     TOLERANCE)

    def test_steps_of_a_lora_on_the_published_layers(self):
        self.encode("lora")
        dit = longcat_models.make().requires_grad_(False)
        inject_adapter_in_model(LoraConfig(r=4, lora_alpha=8, target_modules=list(longcat_models.LINEARS)), dit)
        start = {}
        with torch.no_grad():
            for number, (name, parameter) in enumerate(self.parameters({"dit": dit}).items()):
                generator = torch.Generator().manual_seed(number)
                parameter.copy_(0.08 * torch.randn(parameter.shape, generator=generator))
                start[name.removeprefix("dit.") + ".weight"] = parameter.clone()
                start[name.removeprefix("dit.").rsplit(".", 1)[0] + ".alpha"] = torch.tensor(8.0)
        # The published names are those of the last layer's modulation, too.
        self.assertEqual(3 * (2 * 9 + 1), len(start))
        save_file(start, self.dir / "start.safetensors")
        with self.both("longcat, training, LoRA", {"dit": dit}, wan_train.WHOLE, self.paths, steps=2, batch_size=2,
                       accumulation=1, lora_base_model="dit", lora_target_modules=",".join(longcat_models.LINEARS),
                       lora_rank=4, lora_alpha=8, lora_checkpoint=self.dir / "start.safetensors"):
            pass


if __name__ == "__main__":
    sys.exit(unittest.main())
