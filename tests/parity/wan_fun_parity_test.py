"""Wan-Fun Control and Camera: denoisers, what their inputs become, whole clips and LoRAs are those of
VideoX-Fun's maths on top of diffusers, and not what other programs make of an absent reference, a start
image or a pose."""

import json
import sys
import unittest

import numpy as np
import torch
from diffusers import WanPipeline
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPVisionConfig, CLIPVisionModel

import atelier
import compare
import references
import tiny_models
import wan_checks
import wan_fun_models as fun
import wan_models
import wan_train_parity_test
from wan_checks import picture, probe

TOLERANCE = 1e-5  # of the scale
PROMPT, NEGATIVE = "a red kite over a harbour", "blurry"
SIDE, FRAMES, STEPS = fun.SHOWN_SIDE, 5, 2
# How far the third frame has gone in VideoX-Fun's Pan_Left.txt, Pan_Up.txt and, at half its speed, Zoom_In.txt, and along
# which axis.
PUBLISHED = {"Left": (0, 0.037037037037037035), "Up": (1, 0.037037037037037035), "In": (2, -0.037037037037037035)}
DIRECTIONS = ("Left", "Right", "Up", "Down", "LeftUp", "LeftDown", "RightUp", "RightDown", "In", "Out")


def make_image_encoder():
    config = CLIPVisionConfig(hidden_size=wan_models.IMAGE_WIDTH, intermediate_size=48, num_hidden_layers=3,
                              num_attention_heads=4, image_size=SIDE, patch_size=14, hidden_act="gelu")
    return tiny_models.randomize_(CLIPVisionModel(config), 97)


def lens_and_places(rows, height, width):
    """What the program keeps of pose rows: the lens in pixels and where the camera stands."""
    fx, fy = rows[:, 1] * height * 16 / 9, rows[:, 2] * height  # of a clip less wide than 16:9
    lens = np.stack([fx, fy, rows[:, 3] * width, rows[:, 4] * height], 1)
    return torch.from_numpy(np.concatenate([lens, -rows[:, [10, 14, 18]]], 1).astype(np.float32))


class WanFunDitTest(wan_checks.FolderTest):
    FRAMES, HEIGHT, WIDTH = 3, 6, 8  # of the latents

    def inputs(self, kind, batch=2, seed=7):
        generator = torch.Generator().manual_seed(seed)
        size = (self.FRAMES, self.HEIGHT, self.WIDTH)

        def draw(*shape):
            return torch.randn((batch, *shape), generator=generator)
        about = fun.KINDS[kind]
        inputs = {"latents": draw(16, *size), "sigma": torch.tensor([0.9, 0.3]),
                  "prompt_embeds": draw(7, wan_models.TEXT_WIDTH)}
        if about.get("shown"):
            inputs["image_embeds"] = draw(fun.SHOWN_ROWS, wan_models.IMAGE_WIDTH)
        given = about["beside"]
        if not about.get("camera"):
            inputs["control_clip"] = draw(16, *size)
            given -= 16
        inputs["given_clip"] = draw(given, *size)
        if about.get("reference"):
            inputs["reference_latents"] = draw(16, *size[1:])
        return inputs

    def with_camera(self, inputs):
        """The same for the program and for the reference."""
        height, width = 8 * self.HEIGHT, 8 * self.WIDTH
        rows = [fun.poses(direction, speed, 4 * self.FRAMES - 3) for direction, speed in (("LeftUp", 0.3), ("In", 0.1))]
        rays = torch.stack([fun.latent_rays(fun.pluecker(each, height, width)) for each in rows])
        camera = torch.stack([lens_and_places(each, height, width) for each in rows])
        return {**inputs, "camera": camera}, {**inputs, "rays": rays}

    def check(self, kind, given, wanted=None, dtype=torch.float32):
        """`wanted`: what the reference is given; `dtype`: in which it computes."""
        transformer = fun.make_transformer(kind)
        folder, file = wan_checks.save_spellings(transformer, self.dir / kind)
        transformer.to(dtype)
        floating = wan_checks.with_gradients({name: value.to(dtype) for name, value in (wanted or given).items()})
        output = fun.velocity(transformer, **floating)
        parameters = dict(transformer.named_parameters())
        inputs = {name: value for name, value in floating.items() if name != "rays"}
        expected = references.gradients(output, inputs, parameters)
        got = probe("dit", folder, given, gradients=True, trainable="*")
        if wanted:
            got.pop("grad.camera")
        compare.assert_close(f"wan, fun, {kind}", got["velocity"], output, TOLERANCE)
        tolerances = {name: TOLERANCE for name in expected}
        compare.assert_gradients(f"wan, fun, {kind}, gradients", got, expected, tolerances)
        compare.assert_close(f"wan, fun, {kind}, original", probe("dit", file, given)["velocity"], output, TOLERANCE)
        return transformer, folder, output.detach()

    def test_velocities_and_gradients_of_those_with_a_control_clip(self):
        for kind in ("control", "control_v1.1", "control_a14b"):
            with self.subTest(kind):
                self.check(kind, self.inputs(kind))

    def test_velocities_and_gradients_of_those_with_a_camera(self):
        for kind in ("camera", "camera_a14b"):
            with self.subTest(kind):
                self.check(kind, *self.with_camera(self.inputs(kind)))

    def test_what_is_absent_is_zero(self):
        for kind in ("control_v1.1", "control_a14b"):
            given = self.inputs(kind)
            bare = {name: given[name] for name in ("latents", "sigma", "prompt_embeds")}
            # In double precision: in single keys that are all alike have gradients of rounding.
            transformer = self.check(kind, bare, dtype=torch.float64)[0].float()
            with self.subTest(kind), torch.no_grad():
                # Without the tokens of its absent reference, as DiffSynth-Studio runs it, it gives something else.
                reference = transformer.ref_conv
                del transformer.ref_conv
                without = fun.velocity(transformer, **bare)
                transformer.ref_conv = reference
                self.assertGreater(compare.relative_error(without, fun.velocity(transformer, **bare)), 0.01)

    def test_what_does_not_fit_is_told(self):
        given = self.inputs("control_v1.1")
        folder = wan_checks.save_spellings(fun.make_transformer("control_v1.1"), self.dir / "refused")[0]
        for name, change in (("control_clip", lambda value: value[:, :, :2]),
                             ("reference_latents", lambda value: value[..., :4]),
                             ("image_embeds", lambda value: value[..., :5])):
            with self.subTest(name), self.assertRaisesRegex(atelier.ProgramFailed, name + " of shape"):
                probe("dit", folder, {**given, name: change(given[name])})
        given, _ = self.with_camera(self.inputs("camera"))
        folder = wan_checks.save_spellings(fun.make_transformer("camera"), self.dir / "refused_camera")[0]
        with self.assertRaisesRegex(atelier.ProgramFailed, "camera of shape"):
            probe("dit", folder, {**given, "camera": given["camera"][:, :4]})
        with self.assertRaisesRegex(atelier.ProgramFailed, "'camera'"):
            probe("dit", folder, {name: value for name, value in given.items() if name != "camera"})


class WanFunPipelineTest(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.encoder = make_image_encoder()
        cls.encoder.save_pretrained(cls.dir / "image_encoder")
        cls.first, cls.shown = (picture(SIDE, SIDE, seed) for seed in (3, 4))
        cls.clip = [picture(SIDE, SIDE, 20 + i) for i in range(FRAMES)]
        (cls.dir / "clip").mkdir()
        for i, frame in enumerate(cls.clip):
            Image.fromarray(frame).save(cls.dir / f"clip/{i}.png")
        Image.fromarray(cls.shown).save(cls.dir / "shown.png")
        cls.latents = wan_checks.noise(FRAMES, SIDE, SIDE, seed=8)

    # --- the reference side ---

    def encoded(self, *frames):
        """Latents [1, 16, T, h, w] of pictures, or of frames that are zero where they are None."""
        pixels = [torch.zeros(3, SIDE, SIDE) if frame is None else torch.from_numpy(frame.copy()).permute(2, 0, 1) / 127.5 - 1
                  for frame in frames]
        with torch.no_grad():
            return wan_models.encode(self.models.vae, torch.stack(pixels, 1)[None])

    def embeds(self, image):
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in
                     ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)))
        pixels = (torch.from_numpy(image.copy()).permute(2, 0, 1) / 255 - mean) / std
        with torch.no_grad():
            return self.encoder(pixels[None], output_hidden_states=True).hidden_states[-2]

    def start(self, image):
        """The latents of one frame, and zeros behind."""
        return torch.nn.functional.pad(self.encoded(image), (0, 0, 0, 0, 0, (FRAMES - 1) // 4))

    def known(self, *frames):
        """Which frames are known, the first one four times, and the latents of a clip of them."""
        flags = [frames[0] is not None] * 3 + [frame is not None for frame in frames]
        mask = torch.tensor(flags, dtype=torch.float32).view(-1, 4).T[None, :, :, None, None]
        latents = self.encoded(*frames)
        return torch.cat([mask.expand(-1, -1, -1, *latents.shape[3:]), latents], 1)

    def reference(self, transformers, given, shift=3.0, **options):
        pipeline = self.models.make_pipeline(
            WanPipeline, shift, transformer=transformers[0],
            **(dict(transformer_2=transformers[1], boundary_ratio=0.9) if len(transformers) > 1 else {}))
        with fun.in_pipeline(transformers, **given):
            return wan_models.rounded(pipeline(prompt=PROMPT, negative_prompt=NEGATIVE, height=SIDE, width=SIDE,
                                               num_frames=FRAMES, num_inference_steps=STEPS, latents=self.latents,
                                               guidance_scale=6.0, output_type="np", **options).frames[0])

    # --- the program ---

    def folder_of(self, kind, transformers):
        folder = self.dir / kind
        if not folder.is_dir():
            names = ("transformer", "transformer_2")
            self.models.folder_with(folder, **dict(zip(names, transformers)))
            if fun.KINDS[kind].get("shown"):
                (folder / "image_encoder").symlink_to(self.dir / "image_encoder")
        return folder

    def ours(self, kind, transformers, shift=3, **flags):
        return wan_checks.generate(self.folder_of(kind, transformers), self.latents, prompt=PROMPT,
                                   negative_prompt=NEGATIVE, height=SIDE, width=SIDE, num_frames=FRAMES,
                                   num_inference_steps=STEPS, flow_shift=shift, cfg_scale=6, **flags)

    def check(self, kind, transformers, given, flags, shift=3):
        wanted, got = self.reference(transformers, given, shift), self.ours(kind, transformers, shift, **flags)
        compare.assert_images(f"wan, fun, clips, {kind}", got, wanted, tolerance=0.01)
        return got

    def test_clips_follow_a_control_clip(self):
        kind, transformers = "control", [fun.make_transformer("control")]
        control = {"control_clip": self.encoded(*self.clip)}
        bare = self.check(kind, transformers, {}, {})
        led = self.check(kind, transformers, control, dict(control_video=self.dir / "clip"))
        start = {"given_clip": self.start(self.first), "image_embeds": self.embeds(self.first)}
        begun = self.check(kind, transformers, {**control, **start},
                           dict(control_video=self.dir / "clip", input_image=self.first))
        self.assertGreater(wan_checks.difference(bare, led), 1)
        self.assertGreater(wan_checks.difference(led, begun), 1)
        # The tail of an encoded clip of the image and grey frames, which DiffSynth-Studio takes, is something else.
        tail = self.encoded(self.first, *[None] * (FRAMES - 1))
        self.assertGreater(compare.relative_error(tail, start["given_clip"]), 0.1)
        compare.assert_close("wan, fun, start image, first latent frame", tail[:, :, 0], start["given_clip"][:, :, 0])

    def test_clips_show_a_reference(self):
        kind, transformers = "control_v1.1", [fun.make_transformer("control_v1.1")]
        seen = {"reference_latents": self.encoded(self.shown)[:, :, 0], "image_embeds": self.embeds(self.shown)}
        control = {"control_clip": self.encoded(*self.clip)}
        flags = dict(control_video=self.dir / "clip", reference_image=self.dir / "shown.png")
        self.check(kind, transformers, control, dict(control_video=self.dir / "clip"))
        self.check(kind, transformers, {**control, **seen}, flags)
        # Beside a first frame it is the reference that the image encoder sees.
        self.check(kind, transformers, {**control, **seen, "given_clip": self.start(self.first)},
                   {**flags, "input_image": self.first})

    def test_clips_of_two_experts(self):
        kind = "control_a14b"
        transformers = [fun.make_transformer(kind, seed) for seed in (120, 130)]
        control = {"control_clip": self.encoded(*self.clip)}
        seen = {"reference_latents": self.encoded(self.shown)[:, :, 0]}
        flags = dict(control_video=self.dir / "clip", reference_image=self.dir / "shown.png")
        self.check(kind, transformers, {**control, **seen}, flags, shift=5)
        last = {"input_image": self.first, "end_image": self.dir / "shown.png"}
        known = {"given_clip": self.known(self.first, *[None] * (FRAMES - 2), self.shown)}
        self.check(kind, transformers, {**control, **known}, dict(control_video=self.dir / "clip", **last), shift=5)

    def test_clips_of_a_camera(self):
        kind, transformers = "camera", [fun.make_transformer("camera")]
        start = {"given_clip": self.start(self.first), "image_embeds": self.embeds(self.first)}
        flags = dict(input_image=self.first)
        clips = []
        for direction, speed in (("Left", None), ("Out", 0.3)):
            rows = fun.poses(direction, speed or 1 / 54, FRAMES)
            rays = fun.latent_rays(fun.pluecker(rows, SIDE, SIDE))[None]
            more = dict(camera_control_speed=speed) if speed else {}
            clips.append(self.check(kind, transformers, {**start, "rays": rays},
                                    dict(camera_control_direction=direction, **more, **flags)))
        self.assertGreater(wan_checks.difference(*clips), 1)

    def test_clips_of_two_experts_with_a_camera(self):
        kind = "camera_a14b"
        transformers = [fun.make_transformer(kind, seed) for seed in (140, 150)]
        lens = (0.6, 1.1, 0.4, 0.55)
        rays = fun.latent_rays(fun.pluecker(fun.poses("RightDown", 0.2, FRAMES, lens=lens), SIDE, SIDE))[None]
        origin = [0, *lens, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
        self.check(kind, transformers, {"given_clip": self.known(self.first, *[None] * (FRAMES - 1)), "rays": rays},
                   dict(input_image=self.first, camera_control_direction="RightDown", camera_control_speed=0.2,
                        camera_control_origin=origin), shift=5)

    def test_ranks_that_share_the_rows_make_the_same_clip(self):
        Image.fromarray(self.first).save(self.dir / "first.png")
        shared = dict(prompt=PROMPT, num_frames=FRAMES, height=SIDE, width=SIDE)
        for kind, flags in (("control_v1.1", dict(control_video=self.dir / "clip", reference_image=self.dir / "shown.png")),
                            ("camera", dict(input_image=self.dir / "first.png", camera_control_direction="Left"))):
            with self.subTest(kind):
                folder = self.folder_of(kind, [fun.make_transformer(kind)])
                wan_checks.assert_ranks_agree(f"wan, fun, {kind}", folder, **flags, **shared)

    def test_a_lora_is_added_to_its_layers(self):
        kind, transformer = "control_v1.1", fun.make_transformer("control_v1.1")
        generator = torch.Generator().manual_seed(3)
        tensors, layers = {}, {"self_attn.q": "attn1.to_q", "cross_attn.o": "attn2.to_out.0", "ffn.2": "ffn.net.2"}
        changed = fun.make_transformer(kind)
        for block in range(2):
            for name, published in layers.items():
                weight = changed.get_parameter(f"blocks.{block}.{published}.weight")
                down, up = (0.2 * torch.randn(shape, generator=generator)
                            for shape in ((4, weight.shape[1]), (weight.shape[0], 4)))
                tensors[f"blocks.{block}.{name}.lora_A.default.weight"] = down
                tensors[f"blocks.{block}.{name}.lora_B.default.weight"] = up
                weight.data += up @ down
        save_file(tensors, self.dir / "lora.safetensors")
        control = {"control_clip": self.encoded(*self.clip)}
        flags = dict(control_video=self.dir / "clip")
        got = self.ours(kind, [transformer], lora=self.dir / "lora.safetensors", **flags)
        compare.assert_images("wan, fun, clips with a LoRA", got, self.reference([changed], control), tolerance=0.01)
        self.assertGreater(wan_checks.difference(got, self.ours(kind, [transformer], **flags)), 1)


class WanFunCameraTest(wan_checks.FolderTest):
    """What the inputs of the camera become, in a cache of training."""
    FRAMES, HEIGHT, WIDTH = 9, 32, 48

    def test_every_direction_is_that_of_the_published_poses(self):
        models = wan_models.get()
        folder = models.folder_with(self.dir / "model", transformer=fun.make_transformer("camera"))
        make_image_encoder().save_pretrained(folder / "image_encoder")
        with wan_models.clip_folder(self.FRAMES, self.HEIGHT, self.WIDTH) as (clip, _):
            rows = [dict(video=clip, prompt=PROMPT, camera_control_direction=direction, camera_control_speed=1 / 54)
                    for direction in DIRECTIONS]
            (self.dir / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            atelier.run(["cache", "--plugin", "wan", "--model_paths", atelier.paths_argument(folder), "--dataset_base_path",
                         "/", "--dataset_metadata_path", self.dir / "rows.jsonl", "--num_frames", self.FRAMES, "--height",
                         self.HEIGHT, "--width", self.WIDTH, "--dtype", "float32", "--output_path", self.dir,
                         "--extra_inputs", "input_image,camera_control_direction,camera_control_speed"], self.dir)
        cache = self.dir / "cache"
        items = json.loads((cache / "manifest.json").read_text())["items"]
        self.assertEqual(len(DIRECTIONS), len(items))
        for direction, item in zip(DIRECTIONS, items):
            with self.subTest(direction):
                got = load_file(cache / "camera" / (item["camera"] + ".safetensors"))["camera"]
                poses = fun.poses(direction, 1 / 54, self.FRAMES)
                wanted = lens_and_places(poses, self.HEIGHT, self.WIDTH)
                compare.assert_close("wan, fun, lens and places of the camera", got, wanted, 1e-6)
                if direction in PUBLISHED:
                    row, value = PUBLISHED[direction]
                    place = torch.zeros(3)
                    place[row] = -value
                    compare.assert_close("wan, fun, places of published poses", got[2, 4:], place, 1e-6)

    def test_what_shears_the_picture_has_other_rays(self):
        """DiffSynth-Studio changes the rotation beside the place, which is not what the files say."""
        published = fun.pluecker(fun.poses("Left", 1 / 54, 9), 48, 64)
        sheared = fun.pluecker(fun.poses("Left", 1 / 54, 9, translations=(9, 13, 18)), 48, 64)
        self.assertGreater(float((published - sheared).abs().max()), 0.1)


class WanFunTrainTest(wan_train_parity_test.Steps):
    """Whole training and LoRAs, from caches of what the published scripts name."""
    FRAMES, HEIGHT, WIDTH = 5, 32, 32
    KINDS = {"control_v1.1": "control_video,reference_image",
             "camera": "input_image,camera_control_direction,camera_control_speed"}

    def cached(self, kind):
        """The folder of a model; fills a cache of it, and takes its samples."""
        folder = self.dir / kind
        if not folder.is_dir():
            self.fill(kind)
        self.cache = self.dir / f"{kind}_cached/cache"
        rows = map(json.loads, (self.dir / f"{kind}.jsonl").read_text().splitlines())
        items = json.loads((self.cache / "manifest.json").read_text())["items"]
        self.samples = [self.sample(*one) for one in zip(items, rows, strict=True)]
        return folder

    def fill(self, kind):
        folder = self.models.folder_with(self.dir / kind, transformer=fun.make_transformer(kind))
        make_image_encoder().save_pretrained(folder / "image_encoder")
        rows = []
        for number, (prompt, direction) in enumerate((("a walk", "Left"), ("red", "In"))):
            names = {"video": f"{kind}_{number}", "control_video": f"{kind}_control_{number}"}
            for seed, name in enumerate(names.values()):
                (self.dir / name).mkdir()
                for i in range(self.FRAMES):
                    pixels = picture(self.HEIGHT, self.WIDTH, 100 * seed + 10 * number + i)
                    Image.fromarray(pixels).save(self.dir / name / f"{i}.png")
            seen = dict(reference_image=f"{names['control_video']}/0.png", **names)
            moved = dict(camera_control_direction=direction, camera_control_speed=0.3, video=names["video"])
            rows.append(dict(prompt=prompt, **(moved if kind == "camera" else seen)))
        (self.dir / f"{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        atelier.run(["cache", "--plugin", "wan", "--model_paths", atelier.paths_argument(folder), "--dataset_base_path",
                     self.dir, "--dataset_metadata_path", self.dir / f"{kind}.jsonl", "--num_frames", self.FRAMES,
                     "--dtype", "float32", "--output_path", self.dir / f"{kind}_cached", "--extra_inputs", self.KINDS[kind]],
                    self.dir)

    def sample(self, item, row):
        def tensor(stage, name):
            return load_file(self.cache / stage / (item[stage] + ".safetensors"))[name]
        sample = wan_train_parity_test.Sample(tensor("latents", "latents"), tensor("text", "prompt_embeds"))
        stages = {"shown_image": "image_embeds", "start_image": "given_clip", "control_clip": "control_clip",
                  "reference": "reference_latents"}
        sample.given = {name: tensor(stage, name) for stage, name in stages.items() if stage in item}
        if "camera" in item:
            rows = fun.poses(row["camera_control_direction"], row["camera_control_speed"], self.FRAMES)
            sample.given["rays"] = fun.latent_rays(fun.pluecker(rows, self.HEIGHT, self.WIDTH))
        return sample

    def velocity(self, transformer, samples, noisy, sigma, embeds, lengths, first):
        given = {name: torch.stack([sample.given[name] for sample in samples]) for name in samples[0].given}
        return fun.velocity(transformer, noisy, sigma, embeds, lengths, **given)

    def test_steps_of_whole_denoisers_are_those_of_the_reference(self):
        whole = {"dit": (0, 1000)}
        for kind, inputs in self.KINDS.items():
            folder, transformer = self.cached(kind), fun.make_transformer(kind)
            with self.subTest(kind), self.both(f"wan, fun, training, {kind}", {"dit": transformer}, whole, folder, steps=2,
                                               extra_inputs=inputs, trainable_models="dit") as (run, _):
                saved = load_file(run.weights(2))
                self.assertEqual(set(transformer.state_dict()), set(saved))
                given = {"latents": torch.ones(1, 16, 2, 4, 4), "sigma": torch.tensor([0.5]),
                         "prompt_embeds": torch.ones(1, 3, wan_models.TEXT_WIDTH)}
                if kind == "camera":
                    continue
                with torch.no_grad():
                    compare.assert_close("wan, fun, trained file", probe("dit", run.weights(2), given)["velocity"],
                                         fun.velocity(transformer, **given), 1e-4)

    def test_loras_are_trained_and_loaded(self):
        kind = "control_v1.1"
        folder = self.cached(kind)
        rows = [(np.zeros((self.HEIGHT, self.WIDTH, 3), np.uint8), "unused")]
        with atelier.train(folder, rows, plugin="wan", task="sft:train", dataset_base_path=self.cache,
                           dataset_metadata_path=None, extra_inputs=self.KINDS[kind], lora_base_model="dit",
                           lora_target_modules="q,k,v,o,ffn.0,ffn.2", lora_rank=2, max_train_steps=2,
                           learning_rate=0.1) as run:
            latents = wan_checks.noise(self.FRAMES, self.HEIGHT, self.WIDTH, seed=8)
            clips = [wan_checks.generate(folder, latents, prompt="a walk", height=self.HEIGHT, width=self.WIDTH,
                                         num_frames=self.FRAMES, num_inference_steps=1, **lora)
                     for lora in ({}, {"lora": run.weights(2)})]
        self.assertGreater(wan_checks.difference(*clips), 0.1)


if __name__ == "__main__":
    sys.exit(unittest.main())
