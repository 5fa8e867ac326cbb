"""Wan-Dancer: music, reference and key frames change velocities, gradients and whole clips as its published
code says, which is written again in wan_dancer_models.py."""

import json
import sys
import unittest
import wave

import torch
from PIL import Image
from safetensors.torch import load_file

import atelier
import compare
import lora_readers
import references
import training
import wan_checks
import wan_dancer_models as dancer
import wan_models
import wan_train_parity_test as steps
from wan_checks import picture, probe

PROMPT, NEGATIVE = "someone dances on a harbour wall, 30 frames a second", "blurry"
HEIGHT, WIDTH = 64, 32  # of which a latent frame has eight tokens


def inputs_of(batch=2, frames=3, height=8, width=8, length=11, rows=40, seed=17):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn((batch, *shape), generator=generator)
    return {"latents": draw(16, frames, height, width),
            "sigma": torch.rand((batch,), generator=generator) * 0.9 + 0.05,
            "prompt_embeds": draw(length, wan_models.TEXT_WIDTH),
            "image_embeds": draw(wan_models.IMAGE_ROWS, wan_models.IMAGE_WIDTH),
            "reference_embeds": draw(wan_models.IMAGE_ROWS, wan_models.IMAGE_WIDTH),
            "given_clip": draw(20, frames, height, width),
            "music": 30 * draw(rows, dancer.MUSIC)}


class DancerDenoiserTest(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tensors = dancer.make_tensors()
        cls.file = dancer.save(cls.tensors, cls.dir / "local_model.safetensors")

    def expected(self, inputs, **options):
        with torch.no_grad():
            return dancer.velocity(self.tensors, **inputs, **options)

    def check(self, what, inputs, more=None, **options):
        """Velocities and gradients; `more`: what the program is told beside the inputs."""
        given = inputs | (more or {})
        got = probe("dit", self.file, given, gradients=True, trainable="*")
        floating = wan_checks.with_gradients(inputs)
        tensors = {name: tensor.clone().requires_grad_(True) for name, tensor in self.tensors.items()}
        output = dancer.velocity(tensors, **floating, **options)
        compare.assert_close(f"wan dancer, denoiser, {what}", got["velocity"], output, tolerance=1e-5)
        wanted = references.gradients(output, floating, tensors)
        given_only = {name: value for name, value in got.items() if name.removeprefix("grad.") not in (more or {})}
        compare.assert_gradients(f"wan dancer, gradients, {what}", given_only, wanted)
        return got, wanted

    def test_velocities_and_gradients_at_30_frames_a_second(self):
        got, wanted = self.check("30 frames a second", inputs_of())
        # Softmax over one key: queries and keys of the music have no gradient.
        for part in ("q.weight", "k.weight", "norm_q.weight", "norm_k.weight"):
            name = f"grad.music_injector.injector.0.{part}"
            self.assertLess(float(wanted[name].abs().max()), 1e-4)
            self.assertEqual(0, float(got[name].abs().max()) if name in got else 0)
        self.assertGreater(float(got["grad.music_injector.injector.2.v.weight"].abs().max()), 1e-2)

    def test_another_rate_has_a_way_in_and_out_of_its_own(self):
        inputs = inputs_of(frames=4)
        for fps in (7.5, 4.2857):
            with self.subTest(fps=fps):
                places = dancer.places_of(4, fps).expand(2, -1, -1)
                self.check(f"{fps} frames a second", inputs, {"frame_places": places}, fps=fps)
        effect = self.expected(inputs, fps=7.5) - self.expected(inputs, fps=4.2857)
        self.assertGreater(float(effect.abs().max()), 1e-2, "the rate proves nothing")

    def test_the_branch_without_the_prompt_skips_a_block(self):
        inputs = inputs_of()
        self.check("skipped block", inputs, {"skips_block": torch.ones(2, 1)}, skips=True)
        effect = self.expected(inputs, skips=True) - self.expected(inputs)
        self.assertGreater(float(effect.abs().max()), 1e-2, "the block proves nothing")

    def test_samples_have_prompts_and_music_of_their_own_lengths(self):
        inputs = inputs_of(rows=160)
        lengths, heard = torch.tensor([11, 5]), torch.tensor([160, 31])
        got = probe("dit", self.file, inputs | {"prompt_lengths": lengths, "music_lengths": heard})
        expected = self.expected(inputs, lengths=lengths.tolist(), music_lengths=heard.tolist())
        compare.assert_close("wan dancer, lengths", got["velocity"], expected, tolerance=1e-5)

    def test_frames_that_cannot_be_cut_into_beats_are_refused(self):
        with self.assertRaisesRegex(Exception, "cannot be cut into 8 beats of music"):
            probe("dit", self.file, inputs_of(height=6))


class DancerPipeline:
    """The published programs' steps, with modules of diffusers and transformers for the encoders."""

    def __init__(self, models, image_encoder, tensors, is_global, heard):
        """`heard`: the features of the music."""
        self.models, self.image_encoder, self.tensors, self.is_global = models, image_encoder, tensors, is_global
        self.heard = heard

    def look_at(self, image):
        """[17, 32] of an image [1, 3, H, W] in [-1, 1], brought to a square whatever its shape is."""
        processor = wan_models.make_image_processor()
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (processor.image_mean, processor.image_std))
        side = wan_models.IMAGE_SIDE
        square = torch.nn.functional.interpolate(image, (side, side), mode="bicubic", align_corners=False)
        return self.image_encoder((square / 2 + 0.5 - mean) / std, output_hidden_states=True).hidden_states[-2][0]

    def given(self, clip, mask):
        """The mask of frames, the first four times, and the latents of a clip [1, 3, F, H, W]."""
        known = torch.cat([mask[:1].repeat(3), mask]).view(-1, 4, 1, 1).transpose(0, 1)
        latents = wan_models.encode(self.models.vae, clip)[0]
        return torch.cat([known.expand(-1, -1, *latents.shape[2:]), latents])

    def decode(self, latents):
        if not self.is_global:
            return wan_models.decode(self.models.vae, latents)
        return torch.cat([wan_models.decode(self.models.vae, one) for one in latents.split(1, 2)], 2)

    @torch.no_grad()
    def __call__(self, latents, reference, keys, mask, fps, steps=3, cfg=5.0, shift=5.0):
        """The frames, uint8 [H, W, 3], from a reference [1, 3, H, W] and a clip of keys."""
        prompts = self.models.pipeline.encode_prompt(PROMPT, NEGATIVE, max_sequence_length=wan_models.TEXT_ROWS)
        shown = dict(image=self.look_at(keys[:, :, 0]), given=self.given(keys, mask),
                     reference=self.look_at(reference), music=self.heard, fps=fps)
        sigmas = torch.linspace(1, 0, steps + 1)
        sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
        x = latents
        for now, then in zip(sigmas, sigmas[1:]):
            positive, negative = (
                dancer.velocity_of_one(self.tensors, x, now, prompt[0], skips=skips, **shown)
                for prompt, skips in zip(prompts, (False, True)))
            x = x + (negative + cfg * (positive - negative)) * (then - now)
        clip = self.decode(x)[0].permute(1, 2, 3, 0).clamp(-1, 1) / 2 + 0.5
        return wan_models.rounded(clip.numpy())


def tensor_of(image):
    """[1, 3, H, W] in [-1, 1] of pixels [H, W, 3]."""
    return torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1


class DancerFilesTest(wan_checks.FolderTest):
    """Has the files of both models, and rows to learn from."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.tensors = dancer.make_tensors()
        encoder = wan_models.make_image_encoder()
        encoder.save_pretrained(cls.dir / "image_encoder")
        cls.music = dancer.write_music(cls.dir / "music.wav")
        cls.reference = picture(HEIGHT, WIDTH, 3)
        Image.fromarray(cls.reference).save(cls.dir / "reference.png")
        cls.keys = []
        for name, count in (("pictures", 3), ("clip", 9), ("keys", 9)):
            (cls.dir / name).mkdir()
            for i in range(count):
                image = picture(HEIGHT, WIDTH, 60 + i)
                Image.fromarray(image).save(cls.dir / name / f"{i}.png")
                cls.keys.append(image)
        cls.keys = cls.keys[-9:]
        cls.encoder = encoder
        for kind in ("global", "local"):
            dancer.save(cls.tensors, cls.dir / f"{kind}_model.safetensors")

    @classmethod
    def paths(cls, kind):
        parts = [cls.models.folder_of(name) for name in ("text_encoder", "vae", "tokenizer")]
        return [cls.dir / f"{kind}_model.safetensors", cls.dir / "image_encoder", *parts]

    MASK = [1, 0, 0, 0, 1, 0, 0, 0, 1]
    EXTRA = ["wantodance_music_path", "wantodance_reference_image", "wantodance_fps", "wantodance_keyframes",
             "wantodance_keyframes_mask"]

    @classmethod
    def learn(cls, kind, output, *flags, command="train", paths=None, mask=MASK):
        """A pasted line on one row. Returns the run."""
        row = {"video": "pictures" if kind == "global" else "clip", "prompt": PROMPT,
               "wantodance_music_path": cls.music.name, "wantodance_reference_image": "reference.png",
               "wantodance_fps": 7.5 if kind == "global" else 30, "wantodance_keyframes": "keys",
               "wantodance_keyframes_mask": mask}
        extra, more = cls.EXTRA, []
        if kind == "global":
            row["framewise_decoding"], extra, more = True, [*cls.EXTRA, "framewise_decoding"], ["--framewise_decoding"]
        table = cls.dir / f"{kind}.json"
        table.write_text(json.dumps([row]))
        with atelier.call_folder(command) as folder:
            atelier.run([command, "--plugin", "wan", "--model_paths",
                         atelier.paths_argument(paths or cls.paths(kind)), "--dataset_base_path", cls.dir,
                         "--dataset_metadata_path", table, "--data_file_keys",
                         "video,wantodance_reference_image,wantodance_keyframes,wantodance_music_path",
                         "--height", HEIGHT, "--width", WIDTH, "--num_frames", 9, "--extra_inputs", ",".join(extra),
                         *more, "--dtype", "float32", "--threads", 1, "--output_path", output, *flags], folder)
        return atelier.Run(output)

    def ours(self, kind, latents, file=None, **flags):
        latent_frames = latents.shape[2]
        asked = dict(prompt=PROMPT, negative_prompt=NEGATIVE, height=HEIGHT, width=WIDTH, num_inference_steps=3,
                     num_frames=latent_frames if kind == "global" else 4 * latent_frames - 3, schedule="default",
                     wantodance_music_path=self.music, wantodance_reference_image=self.dir / "reference.png")
        paths = [file, *self.paths(kind)[1:]] if file else self.paths(kind)
        return wan_checks.generate(paths, latents, **asked | flags)


class DancerClipTest(DancerFilesTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        heard = {kind: cls.learn(kind, cls.dir / f"heard_{kind}", command="cache").encodings("music")[0]["music"]
                 for kind in ("global", "local")}
        cls.pipelines = {kind: DancerPipeline(cls.models, cls.encoder, cls.tensors, kind == "global", heard[kind])
                         for kind in heard}
        cls.heard = heard["global"]

    def test_music_is_heard_as_librosa_hears_it(self):
        """Strength of onsets, coefficients, semitones, and ones at peaks and beats. The program and librosa resample
        in other ways."""
        wanted = dancer.features()
        for name, columns in (("onsets", slice(0, 1)), ("coefficients", slice(1, 21)), ("semitones", slice(21, 33))):
            compare.assert_close(f"wan dancer, music, {name}", self.heard[:, columns], wanted[:, columns],
                                 tolerance=5e-4)
        torch.testing.assert_close(self.heard[:, 33:], wanted[:, 33:], rtol=0, atol=0)
        self.assertGreater(int(wanted[:, 33].sum()), 5)
        self.assertGreater(int(wanted[:, 34].sum()), 5)

    def test_pictures_of_the_global_model_are_those_of_its_pipeline(self):
        latents = wan_checks.noise(9, HEIGHT, WIDTH, seed=41)
        mask = torch.zeros(9)
        mask[0] = 1
        keys = torch.full((1, 3, 9, HEIGHT, WIDTH), -1.0)
        keys[:, :, 0] = tensor_of(self.reference)
        pipeline = self.pipelines["global"]
        wanted = {fps: pipeline(latents, tensor_of(self.reference), keys, mask, fps)
                  for fps in (7.5, 30.0)}
        self.assertEqual(3, len(wanted[7.5]))
        for fps, pictures in wanted.items():
            got = self.ours("global", latents, wantodance_fps=fps, cfg_batch="off")
            compare.assert_images("wan dancer, pictures of the global model", got, pictures, tolerance=0.01)
        self.assertGreater(wan_checks.difference(wanted[7.5], wanted[30.0]), 0.5)
        # Without a rate there are 149 frames for the music, of 30 rows a second here.
        compare.assert_images("wan dancer, pictures at the music's rate", self.ours("global", latents), wanted[30.0],
                              tolerance=0.01)

    def test_clips_of_the_local_model_are_those_of_its_pipeline(self):
        latents = wan_checks.noise(9, HEIGHT, WIDTH, seed=42)
        mask = torch.tensor(self.MASK).float()
        # What is shown where there is no key does not count: it is black, as published.
        keys = [tensor_of(image) if is_key else torch.full((1, 3, HEIGHT, WIDTH), -1.0)
                for image, is_key in zip(self.keys, self.MASK)]
        keys = torch.stack(keys, 2)
        wanted = self.pipelines["local"](latents, tensor_of(self.reference), keys, mask, 30.0)
        got = self.ours("local", latents, wantodance_keyframes=self.dir / "keys", wantodance_keyframes_mask=self.MASK,
                        cfg_batch="on")  # a branch that skips a block, and one that does not
        compare.assert_images("wan dancer, clips of the local model", got, wanted, tolerance=0.01)

    def test_the_local_model_hears_its_part_of_a_song(self):
        """As much of it as the clip lasts, 9 frames; the global one hears all."""
        whole, part = (dancer.write_music(self.dir / f"{name}.wav") for name in ("whole", "part"))
        with wave.open(str(whole)) as song:
            format, seconds = song.getparams(), song.readframes(9 * song.getframerate() // 30)
        with wave.open(str(part), "wb") as song:
            song.setparams(format)
            song.writeframes(seconds)
        keys = dict(wantodance_keyframes=self.dir / "keys", wantodance_keyframes_mask=self.MASK)
        for kind, more in (("local", keys), ("global", dict(wantodance_fps=7.5))):
            latents = wan_checks.noise(9, HEIGHT, WIDTH, seed=43)
            got, alone = (self.ours(kind, latents, wantodance_music_path=song, **more) for song in (whole, part))
            difference = wan_checks.difference(got, alone)
            if kind == "local":
                self.assertEqual(0, difference)
            else:
                self.assertGreater(difference, 0.05)

    def test_ranks_that_share_the_rows_make_the_same_clip(self):
        wan_checks.assert_ranks_agree(
            "wan dancer", self.paths("local"), prompt=PROMPT, height=HEIGHT, width=WIDTH, num_frames=9,
            wantodance_music_path=self.music, wantodance_reference_image=self.dir / "reference.png",
            wantodance_keyframes=self.dir / "keys", wantodance_keyframes_mask=",".join(map(str, self.MASK)))


class DancerTrainingTest(DancerFilesTest):
    """The published training lines, on one row."""

    SEED = 42
    STEPS = ["--max_train_steps", 2, "--save_steps", 1, "--enable_csv_log", "--seed", SEED]

    def loss_of(self, run, kind):
        """That of the first step, from what the run has encoded, as its published maths say."""
        made = {}
        for stage in ("text", "music", "dancer", "keyframes", "latents"):
            (tensors,) = run.encodings(stage)
            made |= tensors
        clean = made["latents"][None].float()
        level = steps.level_of(self.SEED, 0, 0, (0, 1000))
        sigma = torch.tensor([steps.table()[level]]).float()
        noise = training.normal_noise(training.stream_seed(self.SEED, training.NOISE), 0, 0, tuple(clean.shape[1:]))[None]
        given = dict(prompt=made["prompt_embeds"], image=made["image_embeds"], given=made["given_clip"],
                     reference=made["reference_embeds"], music=made["music"], fps=7.5 if kind == "global" else 30.0)
        with torch.no_grad():
            velocity = dancer.velocity_of_one(self.tensors, (1 - sigma) * clean + sigma * noise, sigma, **given)
        return made, float((velocity - (noise - clean)).square().mean()) * steps.weights()[level]

    def test_all_weights_of_both_models_are_trained_and_read_again(self):
        for kind in ("global", "local"):
            with self.subTest(kind):
                output = self.dir / f"{kind}_full"
                run = self.learn(kind, output, "--trainable_models", "dit", "--learning_rate", 1e-3, *self.STEPS)
                made, loss = self.loss_of(run, kind)
                self.assertAlmostEqual(1, run.losses()[0] / loss, delta=2e-5)
                self.assertEqual((16, 3, 8, 4), tuple(made["latents"].shape))
                if kind == "global":  # each picture alone
                    frames = [tensor_of(picture(HEIGHT, WIDTH, 60 + i))[:, :, None] for i in range(3)]
                    with torch.no_grad():
                        alone = torch.cat([wan_models.encode(self.models.vae, frame) for frame in frames], 2)
                    compare.assert_close("wan dancer, latents of pictures", made["latents"], alone[0])
                trained = load_file(run.weights(2))
                self.assertEqual(set(self.tensors), set(trained))
                moved = {name for name in trained if not torch.equal(trained[name], self.tensors[name])}
                way = "_global" if kind == "global" else ""
                self.assertLessEqual({f"patch_embedding{way}.weight", f"head{way}.head.weight", "music_projection.weight",
                                      "music_injector.injector.2.v.weight", "img_emb_refimage.proj.1.weight"}, moved)
                other = "" if way else "_global"
                self.assertFalse({f"patch_embedding{other}.weight", "ref_conv.weight",
                                  "music_injector.injector.0.q.weight"} & moved)
                paths = [run.weights(2), *self.paths(kind)[1:]]
                again = self.learn(kind, self.dir / f"{kind}_again", "--trainable_models", "dit", *self.STEPS, paths=paths)
                self.assertLess(again.losses()[0], run.losses()[0])

    def test_a_lora_is_on_the_layers_of_the_published_line(self):
        run = self.learn("local", self.dir / "lora", "--lora_base_model", "dit", "--lora_target_modules", "q,k,v,o,ffn.0,ffn.2",
                         "--lora_rank", 4, "--learning_rate", 1e-2, "--lora_format", "comfy", *self.STEPS)
        changed = lora_readers.comfyui(run.weights(2), self.tensors)
        layers = {name.removesuffix(".weight") for name in changed}
        self.assertEqual(10 * len(self.tensors_of("blocks.0")) + 3 * 4, len(layers))
        self.assertLess({f"music_injector.injector.{i}.{part}" for i in range(3) for part in "qkvo"}, layers)
        latents = wan_checks.noise(9, HEIGHT, WIDTH, seed=43)
        keys = dict(wantodance_keyframes=self.dir / "keys", wantodance_keyframes_mask=self.MASK)
        merged = dancer.save(self.tensors | changed, self.dir / "merged_local.safetensors")
        got = self.ours("local", latents, lora=run.weights(2), **keys)
        compare.assert_images("wan dancer, clips with a LoRA", got, self.ours("local", latents, merged, **keys),
                              tolerance=0.01)
        self.assertGreater(wan_checks.difference(got, self.ours("local", latents, **keys)), 0.05)

    def tensors_of(self, block):
        """The layers of a block that the published line names."""
        ends = tuple(f"attn.{part}.weight" for part in "qkvo") + ("ffn.0.weight", "ffn.2.weight")
        return [name for name in self.tensors if name.startswith(block + ".") and name.endswith(ends)]

    def test_rows_that_do_not_fit_are_told_before_a_weight_is_read(self):
        with self.assertRaisesRegex(atelier.ProgramFailed, "5 numbers, and 9 are read") as caught:
            self.learn("local", self.dir / "refused", "--trainable_models", "dit", mask=self.MASK[:5])
        self.assertIn("local.json:row 1", str(caught.exception))
        self.assertNotIn("load ", str(caught.exception))

    def test_encoders_alone_encode_for_the_model_that_is_named(self):
        hint = ["--model_hints", json.dumps({"*": {"variant": "wan-dancer-14b-global"}})]
        whole = self.learn("global", self.dir / "whole", command="cache")
        alone = self.learn("global", self.dir / "alone", *hint, command="cache", paths=self.paths("global")[1:])
        for stage in ("music", "dancer", "keyframes", "latents"):
            (wanted,), (got,) = whole.encodings(stage), alone.encodings(stage)
            self.assertEqual(set(wanted), set(got))
            for name in wanted:
                torch.testing.assert_close(got[name], wanted[name], rtol=0, atol=0)


if __name__ == "__main__":
    sys.exit(unittest.main())
