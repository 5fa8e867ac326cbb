"""Speech to video of Wan 2.2: its denoiser beside the published maths, its audio encoder beside
transformers, and whole clips of several pieces."""

import sys
import unittest
import wave

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

import atelier
import compare
import references
import tiny_models
import training
import wan_checks
import wan_models
import wan_s2v_models as s2v
from wan_checks import probe
from wan_train_parity_test import level_of, table, weights

PROMPT, NEGATIVE = "a person is singing", "blurry"
EXACT, GRADIENT_TOLERANCE, FLOOR = 1e-5, 1e-4, 1e-3


def write_sound(path, samples, rate=16000):
    """samples: float [n] or [n, channels], as 16 bits. Returns them as they are read."""
    whole = np.round(np.asarray(samples) * 32767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setparams((1 if whole.ndim == 1 else whole.shape[1], 2, rate, 0, "NONE", ""))
        file.writeframes(whole.tobytes())
    return torch.from_numpy(whole / 32768).float()


def a_sound(seconds, seed=3, rate=16000):
    """Something that swells."""
    times = np.arange(int(seconds * rate)) / rate
    noise = np.random.default_rng(seed).standard_normal(len(times))
    return 0.3 * np.sin(2 * np.pi * 220 * times) * np.sin(3 * times) ** 2 + 0.02 * noise


def a_clip(frames, side, seed=1):
    """Smooth pictures that pass into each other, uint8 [T, H, W, 3]."""
    ends = [wan_checks.picture(side, side, seed + i).astype(float) for i in range(2)]
    shares = np.linspace(0, 1, frames)[:, None, None, None]
    return np.round(ends[0] * (1 - shares) + ends[1] * shares).astype(np.uint8)


def write_clip(folder, clip):
    folder.mkdir(exist_ok=True)
    for number, frame in enumerate(clip):
        Image.fromarray(frame).save(folder / f"{number:03}.png")
    return folder


def pixels(clip):
    """[3, T, H, W] in [-1, 1]."""
    return torch.from_numpy(clip.copy()).permute(3, 0, 1, 2) / 127.5 - 1


class Models(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.model_dit = s2v.make_dit()
        cls.dit = s2v.save(cls.model_dit, cls.dir / "dit")
        cls.encoder = s2v.make_sound_encoder()
        cls.sound_folder = cls.dir / "wav2vec2-large-xlsr-53-english"
        cls.encoder.save_pretrained(cls.sound_folder)
        cls.paths = [cls.dit, cls.sound_folder, *(cls.models.model / name for name in ("text_encoder", "vae", "tokenizer"))]


class SpeechDitTest(Models):

    def inputs(self, frames=3, batch=2, pose=True, motion=True, height=8, width=12):
        generator = torch.Generator().manual_seed(6)

        def draw(*shape):
            return torch.randn((batch, *shape), generator=generator)
        inputs = {"latents": draw(16, 1 + frames, height, width), "sigma": torch.rand((batch,), generator=generator),
                  "prompt_embeds": draw(9, wan_models.TEXT_WIDTH),
                  "audio_states": draw(s2v.STATES, 4 * frames + 5, s2v.SOUND_WIDTH)}
        # The first ones are before the sound, the last ones behind it.
        inputs["audio_frames"] = torch.stack([torch.arange(-3, 4 * frames - 3), torch.arange(7, 4 * frames + 7)][:batch])
        inputs["first_frame"] = inputs["latents"][:, :, :1].clone()
        if pose:
            inputs["pose"] = draw(16, frames, height, width)
        if motion:
            inputs["motion_latents"] = draw(16, 19, height, width)
        return inputs

    def expected(self, inputs, dit=None):
        made = []
        for b, latents in enumerate(inputs["latents"]):
            frames = inputs["audio_frames"][b]
            states = inputs["audio_states"][b]
            heard = states[:, frames.clamp(0, states.shape[1] - 1)] * (frames < states.shape[1])[None, :, None]
            made.append((dit or self.model_dit)(latents, inputs["sigma"][b], inputs["prompt_embeds"][b], heard,
                                       *(inputs[name][b] if name in inputs else None
                                         for name in ("pose", "motion_latents"))))
        return torch.stack(made)

    def test_velocities_are_those_of_the_published_maths(self):
        for pose in (True, False):
            for motion in (True, False):
                inputs = self.inputs(pose=pose, motion=motion)
                with self.subTest(pose=pose, motion=motion), torch.no_grad():
                    compare.assert_close("wan, S2V, denoiser", probe("dit", self.dit, inputs)["velocity"],
                                         self.expected(inputs), EXACT)

    def test_gradients_are_those_of_the_published_maths(self):
        inputs = self.inputs(batch=1)
        got = probe("dit", self.dit, inputs, gradients=True, trainable="*")
        floating = wan_checks.with_gradients(inputs)
        expected = self.expected(floating | {"audio_frames": inputs["audio_frames"]})
        compare.assert_close("wan, S2V, denoiser", got["velocity"], expected, EXACT)
        compare.assert_gradients("wan, S2V, denoiser, gradients", got,
                                 references.gradients(expected, floating, dict(self.model_dit.named_parameters())))

    def test_what_is_absent_is_silent(self):
        inputs = self.inputs(pose=False, motion=False)
        inputs["audio_states"] = torch.zeros_like(inputs["audio_states"])
        silent = probe("dit", self.dit, inputs)["velocity"]
        del inputs["audio_states"], inputs["audio_frames"]
        compare.assert_close("wan, S2V, no sound", probe("dit", self.dit, inputs)["velocity"], silent, 1e-6)

    def test_frames_before_of_another_size_are_told(self):
        inputs = self.inputs()
        inputs["motion_latents"] = inputs["motion_latents"][:, :, :17]
        with self.assertRaisesRegex(atelier.ProgramFailed, "motion_latents of shape .* do not fit"):
            probe("dit", self.dit, inputs)


class SoundTest(Models):

    def test_states_are_those_of_transformers(self):
        samples = torch.from_numpy(a_sound(0.7)).float()
        with torch.no_grad():
            compare.assert_close("wan, S2V, audio encoder",
                                 probe("audio_encoder", self.sound_folder, {"samples": samples})["states"],
                                 s2v.states_of(self.encoder, samples), EXACT)


class Clips(Models):
    """Whole clips on both sides."""
    SIDE, STEPS = 64, 2

    def reference(self, samples, image, seed, frames, dit, scale=4.5, pose=None, start=None, fps=16):
        """A clip [3, frames, H, W] in [-1, 1]: pieces of 80 frames, as the published program makes them, heard and
        posed at their own times. `start`: frames that it follows on."""
        pipeline, vae = self.models.pipeline, self.models.vae
        texts = [text[0] for text in pipeline.encode_prompt(PROMPT, NEGATIVE, max_sequence_length=512)]
        states = s2v.states_of(self.encoder, samples)
        shown = wan_models.encode(vae, image[None, :, None])[0]
        made, before = [], start
        while sum(clip.shape[1] for clip in made) < frames:
            done = sum(clip.shape[1] for clip in made)
            lost = s2v.DROPPED if before is None else 0
            count = min(s2v.NEW, -(-(frames - done + lost) // 4) * 4) if not made else s2v.NEW
            numbers = np.arange(done - lost, done - lost + count)
            motion = None if before is None else wan_models.encode(vae, before[None])[0]
            heard = s2v.at_frames(states, numbers, fps)
            posed = None
            if pose is not None:
                clip = torch.cat([pose, -torch.ones_like(pose[:, :1])], 1)[:, np.clip(numbers, 0, pose.shape[1])]
                posed = wan_models.encode(vae, torch.cat([clip[:, :1], clip], 1)[None])[0, :, 1:]
            scheduler = self.models.scheduler_with(3.0)
            scheduler.set_timesteps(self.STEPS)
            latents = training.normal_noise(seed + len(made), 0, 0, (16, 1 + count // 4, *shown.shape[2:]))[:, 1:]
            for t in scheduler.timesteps:
                both = [dit(torch.cat([shown, latents], 1), t / 1000, text, sound, posed, motion)[:, 1:]
                        for text, sound in zip(texts, (heard, torch.zeros_like(heard)))]
                latents = scheduler.step(both[1] + scale * (both[0] - both[1]), t, latents, return_dict=False)[0]
            decoded = wan_models.decode(vae, torch.cat([shown if motion is None else motion, latents], 1)[None])[0]
            made.append(decoded[:, -count:][:, lost:])
            before = made[-1][:, -s2v.MOTION:] if before is None else torch.cat([before, made[-1]], 1)[:, -s2v.MOTION:]
        return torch.cat(made, 1)[:, :frames]

    def generate(self, sound, image, seed=5, side=SIDE, **flags):
        return atelier.generate(self.paths, None, plugin=wan_checks.PLUGIN, **dict(
            schedule="diffusers", dtype="float32", prompt=PROMPT, negative_prompt=NEGATIVE, seed=seed, cfg_scale=4.5,
            num_inference_steps=self.STEPS, height=side, width=side, input_audio=sound, input_image=image) | flags)

    def check(self, name, frames, seconds, seed=5, side=SIDE, pose=None, start=None, dit=None, **flags):
        """`pose` and `start`: uint8 clips [T, H, W, 3]."""
        samples = write_sound(self.dir / "sound.wav", a_sound(seconds))
        picture = wan_checks.picture(side, side, 8)
        for key, clip in (("s2v_pose_video", pose), ("motion_video", start)):
            if clip is not None:
                flags[key] = write_clip(self.dir / key, clip)
        got = self.generate(self.dir / "sound.wav", picture, seed, side, **flags)
        image = pixels(picture[None])[:, 0]
        if flags.get("init_first_frame"):
            before = torch.zeros(3, s2v.MOTION, side, side)
            before[:, -6:] = image[:, None]
        else:
            before = None if start is None else pixels(start)[:, -s2v.MOTION:]
        with torch.no_grad():
            clip = self.reference(samples, image, seed, frames, dit or self.model_dit, start=before, fps=flags.get("fps", 16),
                                  pose=None if pose is None else pixels(pose))
        clip = (clip / 2 + 0.5).clamp(0, 1).permute(1, 2, 3, 0).numpy()
        compare.assert_images(name, got, wan_models.rounded(clip), tolerance=0.01)
        return got


class ClipsTest(Clips):

    def test_a_clip_is_as_long_as_its_sound_and_made_in_pieces(self):
        self.assertEqual(82, len(self.check("wan, S2V, clips of two pieces", 82, 5.1)))

    def test_a_clip_of_another_rate_hears_what_sounds_while_it_is_seen(self):
        """0.9 s are 15 frames of 16 a second, 23 of 24 and 8 of 8."""
        for fps, frames in ((24, 23), (8, 8)):
            self.assertEqual(frames, len(self.check("wan, S2V, clips of another rate", frames, 0.9, side=48, fps=fps)))

    def test_a_clip_that_is_shorter_than_a_piece_follows_poses(self):
        with_poses = self.check("wan, S2V, clips with poses", 9, 2.0, side=48, num_frames=9, pose=a_clip(5, 48))
        without = self.check("wan, S2V, short clips", 9, 2.0, side=48, num_frames=9)
        self.assertGreater(wan_checks.difference(with_poses, without), 0.5)

    def test_a_clip_goes_on_where_another_one_ended(self):
        self.check("wan, S2V, clips behind others", 6, 1.0, num_frames=6, start=a_clip(75, self.SIDE))

    def test_a_clip_may_begin_with_the_image(self):
        self.check("wan, S2V, clips from the image on", 4, 1.0, num_frames=4, init_first_frame=True)

    def test_ranks_that_share_the_rows_make_the_same_clip(self):
        write_sound(self.dir / "shared.wav", a_sound(1.0))
        Image.fromarray(wan_checks.picture(64, 64, 8)).save(self.dir / "shared.png")
        wan_checks.assert_ranks_agree(
            "wan, S2V", self.paths, prompt=PROMPT, height=64, width=64, num_frames=6, input_audio=self.dir / "shared.wav",
            input_image=self.dir / "shared.png", s2v_pose_video=write_clip(self.dir / "poses", a_clip(6, 64)),
            motion_video=write_clip(self.dir / "before", a_clip(75, 64)))

    def test_sounds_of_all_kinds_are_heard(self):
        def make(name, samples, rate, **flags):
            write_sound(self.dir / name, samples, rate)
            return self.generate(self.dir / name, wan_checks.picture(48, 48, 8), side=48, **flags)
        # 0.9 s: 15 frames, of a piece of 17.
        plain = make("plain.wav", a_sound(0.9), 16000)
        self.assertEqual(15, len(plain))
        silent = make("silent.wav", np.zeros(14400), 16000)
        self.assertGreater(wan_checks.difference(plain, silent), 0.5)
        smooth = np.sin(2 * np.pi * 300 * np.arange(86400) / 96000)
        stereo = make("stereo.wav", np.stack([0.6 * smooth, 0.2 * smooth], 1), 96000)
        mono = make("mono.wav", 0.4 * smooth[::6], 16000)
        self.assertEqual(15, len(stereo))
        self.assertLess(wan_checks.difference(stereo, mono), 0.2 * wan_checks.difference(stereo, silent))
        # A sound that is cut off is silent behind its end.
        cut = make("cut.wav", a_sound(0.9)[:8000], 16000, num_frames=13)
        self.assertEqual(13, len(cut))

    def test_what_cannot_be_made_is_told_at_once(self):
        picture = wan_checks.picture(48, 48, 8)
        write_sound(self.dir / "click.wav", np.zeros(500))
        write_sound(self.dir / "long.wav", a_sound(5.1))
        for what, told in ((dict(sound="click.wav"), "500 samples at 16 kHz, 720 are the fewest"),
                           (dict(sound="long.wav"), "48x48 pixels follows on no other frames"),
                           (dict(sound="long.wav", motion_video=write_clip(self.dir / "few", a_clip(3, 48))),
                            "motion_video: 3 frames at the rate of the clip, which follows on 73")):
            with self.assertRaisesRegex(atelier.ProgramFailed, told):
                self.generate(self.dir / what.pop("sound"), picture, side=48, **what)
        with self.assertRaisesRegex(atelier.ProgramFailed, "nothing is heard in a single frame"):
            self.generate(self.dir / "long.wav", picture, side=48, num_frames=1)
        with self.assertRaisesRegex(atelier.ProgramFailed, "input_audio"):
            self.generate(None, picture, side=48)


def name_here(name):
    """The program's name of a parameter, which holds what hears behind a block together."""
    parts = name.split(".")
    return ".".join([parts[0], parts[2], parts[1], *parts[3:]]) if parts[0] == "audio_injector" else name


def write_data(folder, rows):
    """Clips with sounds and poses, and their table. Returns each as a reference sees it."""
    folder.mkdir()
    lines, seen = ["video,input_audio,s2v_pose_video,prompt"], []
    for number in range(rows):
        clip, pose = (a_clip(TrainTest.FRAMES, TrainTest.LEARNT_SIDE, seed) for seed in (number, number + 50))
        write_clip(folder / f"{number}", clip)
        write_clip(folder / f"pose{number}", pose)
        samples = write_sound(folder / f"{number}.wav", a_sound(1.2, number))
        lines.append(f"{number},{number}.wav,pose{number},a person is singing {number}")
        seen.append((pixels(clip), pixels(pose), samples))
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return seen


class TrainTest(Clips):
    """As the published scripts do it: the reference stays clean and does not count, and no frames are before."""
    FRAMES, LEARNT_SIDE, ROWS, SEED, RATE, BETA1, EPS = 9, 32, 2, 42, 1e-3, 0.9, 1e-3
    INPUTS = dict(data_file_keys="video,input_audio,s2v_pose_video", extra_inputs="input_image,input_audio,s2v_pose_video")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.dir / "data"
        cls.rows = write_data(cls.data, cls.ROWS)
        cls.flags = dict(plugin=wan_checks.PLUGIN, model_paths=atelier.paths_argument(cls.paths), dtype="float32",
                         dataset_base_path=cls.data, dataset_metadata_path=cls.data / "rows.csv",
                         num_frames=cls.FRAMES, **cls.INPUTS)
        cls.run_program("cache", output_path=cls.dir / "encoded", **cls.flags)

    @classmethod
    def run_program(cls, command, **flags):
        words = [command]
        for name, value in flags.items():
            words += ["--" + name] if value is True else ["--" + name, value]
        atelier.run(words, cls.dir)

    def train(self, name, **flags):
        out = self.dir / name
        cached = self.flags | dict(task="sft:train", dataset_base_path=self.dir / "encoded" / "cache")
        del cached["dataset_metadata_path"]
        self.run_program("train", **cached | dict(
            output_path=out, seed=self.SEED, threads=1, learning_rate=self.RATE, adam_epsilon=self.EPS, max_grad_norm=0,
            save_steps=1, checkpoints_total_limit=0, enable_csv_log=True, max_train_steps=2, num_epochs=2) | flags)
        return atelier.Run(out)

    def sample(self, row):
        """Latents of the clip with the reference, text, states and poses of a row."""
        clip, pose, samples = self.rows[row]
        vae = self.models.vae
        text = self.models.pipeline.encode_prompt(f"{PROMPT} {row}", None, False, max_sequence_length=512)[0][0]
        states = s2v.at_frames(s2v.states_of(self.encoder, samples), np.arange(1, self.FRAMES))
        return (wan_models.encode(vae, clip[None])[0], text, states, wan_models.encode(vae, pose[None])[0][:, 1:])

    def steps_of(self, dit, steps):
        """Trains; returns the losses and the first step's gradients."""
        optimizer = torch.optim.AdamW(dit.parameters(), lr=self.RATE, betas=(self.BETA1, 0.999), eps=self.EPS,
                                      weight_decay=0.01)
        losses, first = [], None
        for step, ((batch,),) in zip(range(steps), training.plan(self.ROWS, self.SEED, batch_size=1, accumulation=1)):
            (row, slot), = [batch] if isinstance(batch[0], int) else batch
            with torch.no_grad():
                clean, *beside = self.sample(row)
            level = level_of(self.SEED, slot, step, (0, 1000))
            sigma = torch.tensor(table()[level], dtype=torch.float32)
            noise = training.normal_noise(training.stream_seed(self.SEED, training.NOISE), slot, step, tuple(clean.shape))
            noisy = (1 - sigma) * clean + sigma * noise
            noisy[:, :1] = clean[:, :1]
            error = (dit(noisy, sigma, *beside) - (noise - clean))[:, 1:]
            loss = weights()[level] * error.square().mean()
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.item())
            if first is None:
                first = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                         for name, p in dit.named_parameters()}
            optimizer.step()
        return losses, first

    def test_full_training_moves_as_the_maths_does(self):
        dit = s2v.make_dit()
        losses, first = self.steps_of(dit, 2)
        run = self.train("full", trainable_models="dit", remove_prefix_in_ckpt="pipe.dit.", use_gradient_checkpointing=True)
        compare.assert_close("wan, S2V, training, losses", torch.tensor(run.losses()), torch.tensor(losses), EXACT)
        state = run.state(1, "optimizer")
        got = {name: state[f"dit.{name_here(name)}.exp_avg"] / (1 - self.BETA1) for name in first}
        compare.assert_all_close("wan, S2V, training, gradients", got, first, GRADIENT_TOLERANCE, FLOOR)
        saved = load_file(run.weights(2))
        for name, parameter in dit.named_parameters():
            compare.assert_close("wan, S2V, training, saved weights", saved[name], parameter.detach(), EXACT)
        inputs = SpeechDitTest.inputs(self, batch=1)
        with torch.no_grad():
            compare.assert_close("wan, S2V, denoiser that was trained", probe("dit", run.weights(2), inputs)["velocity"],
                                 SpeechDitTest.expected(self, inputs, dit), EXACT)
        # Blocks that are computed again have the gradients of those that are kept: what hears behind a block is
        # that block's own.
        kept = self.train("kept", trainable_models="dit").state(1, "optimizer")
        for name, value in state.items():
            compare.assert_close("wan, S2V, training, computed again", value, kept[name], 1e-6, floor=1e-6)

    def test_a_lora_is_trained_on_all_that_is_named(self):
        run = self.train("lora", lora_base_model="dit", lora_target_modules="q,k,v,o,ffn.0,ffn.2", lora_rank=4,
                         remove_prefix_in_ckpt="pipe.dit.", use_gradient_checkpointing_offload=True)
        # Ten layers of each of three blocks, and four of each of two that hear.
        tensors = load_file(run.weights(2))
        self.assertEqual(2 * (3 * 10 + 2 * 4), len(tensors))
        dit = s2v.make_dit()
        with torch.no_grad():
            for name in tensors:
                if name.endswith(".lora_A.weight"):
                    layer = name.removesuffix(".lora_A.weight")
                    path, = wan_models.renamed({layer.removeprefix("transformer.") + ".weight": None},
                                               wan_models.ORIGINAL_DIT)
                    dit.get_parameter(path).add_(tensors[layer + ".lora_B.weight"] @ tensors[name])
        self.check("wan, S2V, clips with a LoRA", 5, 1.0, side=48, num_frames=5, dit=dit, lora=run.weights(2))

    def test_pieces_of_clips_that_begin_later_are_refused(self):
        with self.assertRaisesRegex(atelier.ProgramFailed, "heard from its beginning, and the piece begins at frame 4"):
            self.run_program("cache", output_path=self.dir / "pieces", **self.flags | dict(
                num_frames=5, frame_extraction="uniform", frame_sample=2))


if __name__ == "__main__":
    sys.exit(unittest.main())
