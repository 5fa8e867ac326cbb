"""Wan2.2-Animate: its adapter's modules, whole clips in segments and training steps beside diffusers."""

import copy
import json
import pathlib
import sys
import unittest
from unittest import mock

import numpy as np
import torch
from diffusers import WanAnimatePipeline, WanAnimateTransformer3DModel, WanPipeline
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from PIL import Image
from safetensors.torch import load_file, save_file

import atelier
import compare
import references
import tiny_models
import training
import wan_checks
import wan_models
import wan_train_parity_test
from wan_checks import picture, probe

PROMPT, NEGATIVE = "A cat walks along a wall", "blurry"
HEIGHT, WIDTH, FACE = 48, 64, 512
CELLS = (HEIGHT // 8, WIDTH // 8)

# diffusers' names of the adapter, and the original ones.
ORIGINAL_ADAPTER = ((r"motion_encoder\.motion_synthesis_weight", "motion_encoder.dec.direction.weight"),
                    (r"motion_encoder\.conv_in\.weight", "motion_encoder.enc.net_app.convs.0.0.weight"),
                    (r"motion_encoder\.conv_in\.act_fn", "motion_encoder.enc.net_app.convs.0.1"),
                    (r"motion_encoder\.conv_out\.", "motion_encoder.enc.net_app.convs.8."),
                    (r"\.conv1\.weight", ".conv1.0.weight"), (r"\.conv1\.act_fn", ".conv1.1"),
                    (r"\.conv2\.weight", ".conv2.1.weight"), (r"\.conv2\.act_fn", ".conv2.2"),
                    (r"\.conv_skip\.", ".skip.1."), (r"motion_network\.", "enc.fc."),
                    (r"face_encoder\.conv1_local", "face_encoder.conv1_local.conv"),
                    (r"face_encoder\.conv2\.1", "face_encoder.conv2.conv"),
                    (r"face_encoder\.conv3", "face_encoder.conv3.conv"),
                    (r"face_encoder\.conv2\.bias", "face_encoder.conv2.conv.bias"),
                    (r"face_adapter\.(\d+)\.", r"face_adapter.fuser_blocks.\1."),
                    (r"(fuser_blocks\.\d+)\.to_q\.", r"\1.linear1_q."),
                    (r"(fuser_blocks\.\d+)\.to_out\.", r"\1.linear2."),
                    (r"(fuser_blocks\.\d+)\.norm_([qk])\.", r"\1.\2_norm."))
ADAPTER = ("pose_patch_embedding", "motion_encoder", "face_encoder", "face_adapter")


def is_adapters(name):
    return name.startswith(ADAPTER)


def make_transformer(seed=131, **changes):
    sides = ("512", "256", "128", "64", "32", "16", "8", "4")
    config = dict(num_attention_heads=2,
                  attention_head_dim=16,
                  text_dim=wan_models.TEXT_WIDTH,
                  freq_dim=64,
                  ffn_dim=80,
                  num_layers=4,
                  image_dim=wan_models.IMAGE_WIDTH,
                  added_kv_proj_dim=32,
                  motion_encoder_channel_sizes=dict(zip(sides, (2, 3, 4, 5, 6, 6, 8, 8))),
                  motion_style_dim=12,
                  motion_dim=5,
                  motion_encoder_dim=24,
                  face_encoder_hidden_dim=16,
                  face_encoder_num_heads=4,
                  inject_face_latents_blocks=2)
    transformer = WanAnimateTransformer3DModel(**{**config, **changes})
    tiny_models.randomize_(transformer, seed, overrides=[(r"scale_shift_table", 8.0)])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in transformer.motion_encoder.named_parameters():
            if parameter.dim() > 1:  # their scale is that of the fan-in already
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 1.2)
        transformer.face_encoder.padding_tokens.normal_(generator=generator)
    return transformer.eval()


def original(state):
    """The published file: its own names, keys and values in one tensor, biases of convolutions with
    four axes and the kernels of blurs."""
    joined, result = {}, {}
    for name, tensor in state.items():
        if ".to_k." in name and name.startswith("face_adapter"):
            value = state[name.replace(".to_k.", ".to_v.")]
            joined[name.replace(".to_k.", ".linear1_kv.")] = torch.cat([tensor, value])
        elif not (".to_v." in name and name.startswith("face_adapter")):
            joined[name] = tensor
    for name, tensor in joined.items():
        if not is_adapters(name):
            name, = wan_models.renamed({name: None}, wan_models.ORIGINAL_DIT)
            result[name] = tensor
            continue
        name = name.replace("motion_encoder.res_blocks.", "motion_encoder.enc.net_app.convs.+")
        if "convs.+" in name:
            head, number, tail = name.partition("+")[0], *name.partition("+")[2].split(".", 1)
            name = f"{head}{int(number) + 1}.{tail}"
        if name.startswith("face_encoder.conv"):
            stem, kind = name.rsplit(".", 1)
            name = f"{stem}.conv.{kind}"
        else:
            name, = wan_models.renamed({name: None}, ORIGINAL_ADAPTER)
        is_bias = "net_app" in name and name.endswith("bias")
        result[name] = tensor.view(1, -1, 1, 1) if is_bias else tensor
    line = torch.tensor([1.0, 3.0, 3.0, 1.0])
    for level in range(1, 8):
        for part in ("conv2", "skip"):
            kernel = f"motion_encoder.enc.net_app.convs.{level}.{part}.0.kernel"
            result[kernel] = line[:, None] * line / 64
    return result


def save_spellings(transformer, folder):
    transformer.save_pretrained(folder)
    file = pathlib.Path(folder) / "original" / "animate.safetensors"
    transformer.save_config(file.parent)
    save_file(tiny_models.contiguous(original(transformer.state_dict())), file)
    return folder, file


class WanAnimateAdapterTest(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.transformer = make_transformer()
        cls.transformer.requires_grad_(True)
        cls.folder, cls.file = save_spellings(cls.transformer, cls.dir)
        cls.parameters = {name: parameter for name, parameter in cls.transformer.named_parameters()
                          if is_adapters(name)}

    def check(self, what, inputs, output, expected):
        """`expected(floating)`: what diffusers' modules give. Compares values in both spellings and all
        gradients, of which each may be as far off as that of diffusers is from its own in float64, twice."""
        floating = wan_checks.with_gradients(inputs)
        wanted = expected(floating)
        found = references.gradients(wanted, floating, self.parameters)
        got = probe("animate_adapter", self.folder, inputs, gradients=True, trainable="*")
        compare.assert_close(f"wan animate, {what}", got[output], wanted, tolerance=1e-5)
        compare.assert_gradients(f"wan animate, {what}, gradients", got, found, self.own_errors(inputs, expected, found))
        same = probe("animate_adapter", self.file, inputs)[output]
        compare.assert_close(f"wan animate, {what}, original", same, wanted, tolerance=1e-5)

    def own_errors(self, inputs, expected, found):
        """Of gradients of diffusers in float32, those that are further off than the tolerance: the first levels of
        the motion encoder sum up what nearly cancels."""
        single = type(self).transformer
        try:
            type(self).transformer = copy.deepcopy(single).double()
            floating = wan_checks.with_gradients({name: value.double() for name, value in inputs.items()})
            parameters = {name: parameter for name, parameter in self.transformer.named_parameters() if is_adapters(name)}
            exact = references.gradients(expected(floating), floating, parameters)
        finally:
            type(self).transformer = single
        floor = 1e-3 * max(float(value.abs().max()) for value in exact.values() if value is not None)
        errors = {name: 2 * compare.relative_error(found[name].double(), value, floor)
                  for name, value in exact.items() if value is not None}
        return {name: error for name, error in errors.items() if error > compare.TOLERANCE}

    def draw(self, *shape, seed=3):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    def test_poses_become_rows(self):
        self.check("pose", {"pose": self.draw(2, 16, 3, 6, 8)}, "pose_rows",
                   lambda given: self.transformer.pose_patch_embedding(given["pose"]).flatten(2).mT)

    def test_faces_become_rows(self):
        def expected(given):
            faces = given["faces"]
            motion = self.transformer.motion_encoder(faces.transpose(1, 2).flatten(0, 1))
            rows = self.transformer.face_encoder(motion.unflatten(0, (faces.shape[0], -1)))
            return torch.cat([torch.zeros_like(rows[:, :1]), rows], 1)
        self.check("faces", {"faces": self.draw(2, 3, 5, FACE, FACE) / 2}, "face_rows", expected)

    def test_rows_of_a_face_do_not_depend_on_how_many_there_are(self):
        faces = self.draw(2, 3, 5, FACE, FACE) / 2
        both = probe("animate_adapter", self.folder, {"faces": faces})["face_rows"]
        for sample, rows in zip(faces, both):
            alone = probe("animate_adapter", self.folder, {"faces": sample[None].contiguous()})["face_rows"][0]
            compare.assert_close("wan animate, faces of one sample", alone, rows, tolerance=1e-5)

    def test_rows_see_the_face_of_their_frame(self):
        def expected(given):
            rows, faces = given["rows"], given["face_rows"]
            return torch.stack([rows + adapter(rows, faces) for adapter in self.transformer.face_adapter])
        self.check("adapters", {"rows": self.draw(2, 3 * 12, 32), "face_rows": self.draw(2, 3, 5, 32, seed=4)},
                   "adapted", expected)


def clip_of(frames, height, width, seed):
    """Smooth pictures that change, uint8 [H, W, 3] each."""
    one, other = picture(height, width, seed), picture(height, width, seed + 1)
    parts = np.linspace(0, 1, frames) if frames > 1 else [0.0]
    return [(one * (1 - part) + other * part).astype(np.uint8) for part in parts]


def masks_of(frames):
    """White squares that move by half a latent cell, uint8 [H, W, 3] each."""
    masks = np.zeros((frames, HEIGHT, WIDTH, 3), np.uint8)
    for number, mask in enumerate(masks):
        mask[8:36, 4 * number % 24:4 * number % 24 + 20] = 255
    return list(masks)


class WanAnimateClipTest(wan_checks.FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()
        cls.transformer = make_transformer()
        cls.encoder = wan_models.make_image_encoder()
        cls.pipeline = cls.models.make_pipeline(WanAnimatePipeline, 5.0, transformer=cls.transformer,
                                                image_encoder=cls.encoder,
                                                image_processor=wan_models.make_image_processor())
        cls.pipeline.save_pretrained(cls.dir / "model")
        _, cls.file = save_spellings(cls.transformer, cls.dir / "spellings")
        cls.character = picture(HEIGHT, WIDTH, 31)
        Image.fromarray(cls.character).save(cls.dir / "character.png")
        pixels = torch.from_numpy(cls.character.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
        # The same rows on both sides: of how they are made wan_images_parity_test.py tells.
        cls.rows = probe("image_encoder", cls.dir / "model" / "image_encoder", {"image": pixels})["image_embeds"]

    def clips(self, frames):
        return {"pose": clip_of(frames, HEIGHT, WIDTH, 33), "face": clip_of(frames, FACE, FACE, 35),
                "background": clip_of(frames, HEIGHT, WIDTH, 37), "mask": masks_of(frames)}

    def theirs(self, frames, length, shared, replaces, scale, seed=0):
        """diffusers' clip, the noise of each segment that of its number behind the seed."""
        clips = {name: [Image.fromarray(frame) for frame in clip] for name, clip in self.clips(frames).items()}
        options = dict(mode="animate")
        if replaces:
            options = dict(mode="replace", background_video=clips["background"], mask_video=clips["mask"])
        seeds = iter(range(seed, seed + 100))

        def noise(batch, num_channels_latents, height, width, num_frames, **_):
            shape = (num_channels_latents, (num_frames - 1) // 4 + 2, height // 8, width // 8)
            return training.normal_noise(next(seeds), 0, 0, shape)[None]
        with mock.patch.object(self.pipeline, "prepare_latents", noise), \
             mock.patch.object(self.pipeline, "encode_image", lambda *_: self.rows):
            video = self.pipeline(image=Image.fromarray(self.character), pose_video=clips["pose"], face_video=clips["face"],
                                  prompt=PROMPT, negative_prompt=NEGATIVE, height=HEIGHT, width=WIDTH,
                                  segment_frame_length=length, prev_segment_conditioning_frames=shared,
                                  num_inference_steps=2, guidance_scale=scale, output_type="np", **options).frames[0]
        return wan_models.rounded(video)

    def written(self, frames, folder, replaces=False):
        """The clips of a run in folders, by the flag that they are given with."""
        given = {"animate_pose_video": "pose", "animate_face_video": "face"}
        if replaces:
            given |= {"animate_inpaint_video": "background", "animate_mask_video": "mask"}
        clips = self.clips(frames)
        for name in given.values():
            (folder / name).mkdir()
            for number, frame in enumerate(clips[name]):
                Image.fromarray(frame).save(folder / name / f"{number:03d}.png")
        return {flag: folder / name for flag, name in given.items()}

    def ours(self, frames, length, shared, replaces, scale, paths=None, **flags):
        with atelier.call_folder("generate") as folder:
            arguments = ["generate", "--plugin", "wan", "--model_paths", atelier.paths_argument(paths or self.dir / "model"),
                         "--output", folder / "out.png", "--input_image", self.dir / "character.png",
                         "--prompt", PROMPT, "--negative_prompt", NEGATIVE, "--schedule", "diffusers", "--dtype", "float32",
                         "--num_inference_steps", 2, "--cfg_scale", scale, "--seed", 0,
                         "--segment_frame_length", length, "--prev_segment_conditioning_frames", shared]
            for name, value in {**self.written(frames, folder, replaces), **flags}.items():
                arguments += ["--" + name, value]
            atelier.run(arguments, folder)
            return atelier.read_pictures(sorted(folder.glob("out*.png")))

    def check(self, name, frames, length, shared=1, replaces=False, scale=1.0, **options):
        """Sizes are those of the clip of the pose."""
        theirs = self.theirs(frames, length, shared, replaces, scale)
        got = self.ours(frames, length, shared, replaces, scale, **options)
        compare.assert_images(f"wan animate, {name}", got, theirs, tolerance=0.01)
        return got

    def test_a_clip_of_one_segment_is_that_of_diffusers(self):
        plain = self.check("clips", 5, 5)
        guided = self.check("clips, guided without a face", 5, 5, scale=3.0)
        self.assertGreater(wan_checks.difference(plain, guided), 0.5)

    def test_both_spellings_make_the_same_clip(self):
        paths = [self.file, *(self.dir / "model" / name for name in ("text_encoder", "vae", "image_encoder", "tokenizer"))]
        self.check("clips, original spelling", 5, 5, paths=paths, flow_shift=5)

    def test_a_lora_in_a_pickle_lights_the_clip_anew(self):
        """As relighting_lora.ckpt is published: peft's names below state_dict, on every layer of the blocks."""
        generator, factors = torch.Generator().manual_seed(7), {}
        start = {name: value.clone() for name, value in self.transformer.state_dict().items()}
        for name, module in self.transformer.blocks.named_modules():
            if not isinstance(module, torch.nn.Linear):
                continue
            down = 0.1 * torch.randn((2, module.in_features), generator=generator)
            up = 0.1 * torch.randn((module.out_features, 2), generator=generator)
            layer, = wan_models.renamed({f"blocks.{name}.weight": None}, wan_models.ORIGINAL_DIT)
            factors[layer.replace(".weight", ".lora_A.weight")] = down
            factors[layer.replace(".weight", ".lora_B.weight")] = up
            with torch.no_grad():
                module.weight.add_(up @ down)
        torch.save({"state_dict": factors}, self.dir / "relighting_lora.ckpt")
        try:
            lit = self.check("clips with a LoRA", 5, 5, lora=self.dir / "relighting_lora.ckpt")
        finally:
            self.transformer.load_state_dict(start)
        self.assertGreater(wan_checks.difference(lit, self.ours(5, 5, 1, False, 1.0)), 0.5)

    def test_ranks_that_share_the_rows_make_the_same_clip(self):
        with atelier.call_folder("clips") as folder:
            wan_checks.assert_ranks_agree(
                "wan animate", self.dir / "model", prompt=PROMPT, input_image=self.dir / "character.png", cfg_scale=2,
                segment_frame_length=5, **self.written(8, folder, replaces=True))

    def test_segments_go_on_where_the_one_before_ended(self):
        self.check("clips in segments", 8, 5)
        self.check("clips in segments that share 5 frames", 17, 13, shared=5)

    def test_a_character_takes_the_place_of_somebody(self):
        replaced = self.check("clips of replacement in segments", 8, 5, replaces=True)
        self.assertGreater(wan_checks.difference(replaced, self.ours(8, 5, 1, False, 1.0)), 0.5)


FRAMES = 5
EXTRA = "input_image,animate_pose_video,animate_face_video"
ENDS = ("attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "attn2.to_q", "attn2.to_k", "attn2.to_v",
        "attn2.to_out.0", "ffn.net.0.proj", "ffn.net.2")


def pixels_of(clip):
    """[1, 3, T, H, W] in [-1, 1]."""
    return torch.from_numpy(np.stack(clip)).permute(3, 0, 1, 2)[None].float() / 127.5 - 1


class WanAnimateTrainTest(wan_train_parity_test.Steps):
    """From a cache of two rows, of which the second one says whom it shows."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.transformer = make_transformer()
        cls.model = cls.models.folder_with(cls.dir / "model", transformer=cls.transformer,
                                           image_encoder=wan_models.make_image_encoder())
        cls.rows = [{"video": clip_of(FRAMES, HEIGHT, WIDTH, 50 + number),
                     "animate_pose_video": clip_of(FRAMES, HEIGHT, WIDTH, 60 + number),
                     "animate_face_video": clip_of(FRAMES, FACE, FACE, 70 + number)} for number in range(2)]
        cls.rows[1]["input_image"] = [picture(HEIGHT, WIDTH, 80)]
        cls.cache, cls.samples = cls.encode("rows", cls.rows, EXTRA)
        cls.rows[0]["input_image"] = cls.rows[0]["video"][:1]

    @classmethod
    def encode(cls, name, rows, extra):
        """The cache of rows of clips, and what it holds of each."""
        data = cls.dir / name
        lines = []
        for number, clips in enumerate(rows):
            line = {"prompt": PROMPT}
            for column, clip in clips.items():
                line[column] = f"{column}_{number}"
                (data / line[column]).mkdir(parents=True)
                for at, frame in enumerate(clip):
                    Image.fromarray(frame).save(data / line[column] / f"{at}.png")
                if column == "input_image":
                    line[column] += "/0.png"
            lines.append(json.dumps(line) + "\n")
        (data / "rows.jsonl").write_text("".join(lines))
        columns = sorted({column for clips in rows for column in clips})
        with atelier.call_folder("cache") as folder:
            atelier.run(["cache", "--plugin", "wan", "--model_paths", atelier.paths_argument(cls.model), "--dataset_base_path",
                         data, "--dataset_metadata_path", data / "rows.jsonl", "--data_file_keys", ",".join(columns),
                         "--extra_inputs", extra, "--num_frames", FRAMES, "--height", HEIGHT, "--width", WIDTH, "--dtype",
                         "float32", "--output_path", data], folder)
        cache, samples = data / "cache", []
        for item in json.loads((cache / "manifest.json").read_text())["items"]:
            sample = {}
            for stage in ("latents", "text", "first_image", "animate_pose", "animate_faces", "animate_clip"):
                sample |= load_file(cache / stage / (item[stage] + ".safetensors"))
            samples.append(sample)
        return cache, samples

    def test_the_surroundings_of_the_mask_are_known_where_a_row_has_them(self):
        around = {"animate_inpaint_video": clip_of(FRAMES, HEIGHT, WIDTH, 90), "animate_mask_video": masks_of(FRAMES)}
        _, (sample,) = self.encode("around", [self.rows[1] | around], ",".join([EXTRA, *around]))
        with torch.no_grad():
            latents = wan_models.encode(self.models.vae, pixels_of(around["animate_inpaint_video"]))[0]
        known = torch.stack([torch.from_numpy(mask[::8, ::8, 0] == 0) for mask in masks_of(FRAMES)]).float()
        known = torch.cat([known[:1].expand(3, -1, -1), known]).view(-1, 4, *CELLS).transpose(0, 1)
        compare.assert_close("wan animate, what is known around a mask", sample["given_clip"][:, 1:],
                             torch.cat([known, latents]), 1e-5)

    def test_the_pose_lies_beside_the_frames_that_it_is_of(self):
        """DiffSynth-Studio encodes the character and the clip as one clip, whose latent frames then lie four frames off
        those of the pose; here both are encoded alone, as published."""
        for clips, sample in zip(self.rows, self.samples):
            with torch.no_grad():
                latents = {name: wan_models.encode(self.models.vae, pixels_of(clips[name]))[0]
                           for name in ("input_image", "video", "animate_pose_video")}
                grey = wan_models.encode(self.models.vae, torch.zeros(1, 3, FRAMES, HEIGHT, WIDTH))[0]
            both = torch.cat([latents["input_image"], latents["video"]], 1)
            compare.assert_close("wan animate, latents to learn", sample["latents"], both, 1e-5)
            compare.assert_close("wan animate, latents of the pose", sample["animate_pose"], latents["animate_pose_video"], 1e-5)
            known = torch.zeros(4, (FRAMES - 1) // 4 + 2, *CELLS)
            known[:, 0] = 1
            given = torch.cat([known, torch.cat([latents["input_image"], grey], 1)])
            compare.assert_close("wan animate, what is given", sample["given_clip"], given, 1e-5)
            self.assertTrue(torch.equal(sample["animate_faces"].float() / 127.5 - 1,
                                        pixels_of(clips["animate_face_video"])[0]))

    def loss(self, transformer, batch, seed, step, part):
        samples = [self.samples[row] for row, _ in batch]
        levels = [wan_train_parity_test.level_of(seed, slot, step, part) for _, slot in batch]
        sigma = torch.tensor(wan_train_parity_test.table()[levels], dtype=torch.float32)
        weight = torch.tensor(wan_train_parity_test.weights()[levels], dtype=torch.float32)

        def stack(name):
            return torch.stack([sample[name] for sample in samples])
        clean = stack("latents")
        noise = torch.stack([training.normal_noise(training.stream_seed(seed, training.NOISE), slot, step,
                                                   tuple(clean.shape[1:])) for _, slot in batch])
        at = sigma.view(-1, 1, 1, 1, 1)
        noisy = (1 - at) * clean + at * noise
        velocity = transformer(hidden_states=torch.cat([noisy, stack("given_clip")], 1), timestep=1000 * sigma,
                               encoder_hidden_states=wan_models.pad_prompts(stack("prompt_embeds")),
                               encoder_hidden_states_image=stack("image_embeds"), pose_hidden_states=stack("animate_pose"),
                               face_pixel_values=stack("animate_faces").float() / 127.5 - 1, return_dict=False)[0]
        return (weight * (velocity - (noise - clean)).square().flatten(1).mean(dim=1)).sum()

    def test_steps_of_a_lora_are_those_of_peft(self):
        transformer = make_transformer().requires_grad_(False)
        transformer.add_adapter(LoraConfig(r=4, lora_alpha=8, target_modules=list(ENDS)))
        wan_train_parity_test.WanTrainTest.begin_lora(self, transformer)
        metadata = {key: list(value) if isinstance(value, set) else value
                    for key, value in transformer.peft_config["default"].to_dict().items()}
        WanPipeline.save_lora_weights(self.dir, transformer_lora_layers=get_peft_model_state_dict(transformer),
                                      weight_name="start.safetensors", transformer_lora_adapter_metadata=metadata)
        with self.both("wan animate, training, LoRA", {"dit": transformer}, wan_train_parity_test.WHOLE, self.model, steps=2,
                       extra_inputs=EXTRA, lora_base_model="dit", lora_target_modules="q,k,v,o,ffn.0,ffn.2", lora_rank=4,
                       lora_alpha=8, lora_checkpoint=self.dir / "start.safetensors"):
            pass

    def test_steps_of_the_adapter_are_those_of_diffusers(self):
        transformer = make_transformer().requires_grad_(False)
        start = {name: value.clone() for name, value in transformer.state_dict().items()}
        for name, parameter in transformer.named_parameters():
            parameter.requires_grad_(is_adapters(name))
        shape = dict(batch_size=2, accumulation=1)
        losses, *_ = self.reference({"dit": transformer}, wan_train_parity_test.WHOLE, 2, 42, shape)
        rows = [(np.zeros((32, 32, 3), np.uint8), "unused")]
        with atelier.train(self.model, rows, plugin="wan", task="sft:train", dataset_base_path=self.cache,
                           dataset_metadata_path=None, seed=42, batch_size=2, num_epochs=2, max_train_steps=2,
                           learning_rate=wan_train_parity_test.RATE, extra_inputs=EXTRA,
                           trainable_models="animate_adapter", remove_prefix_in_ckpt="pipe.animate_adapter.") as run:
            compare.assert_close("wan animate, training, losses", torch.tensor(run.losses()), torch.tensor(losses), 1e-5)
            trained = load_file(run.weights(2))
            self.assertEqual({name for name in start if is_adapters(name)}, set(trained))
            compare.assert_all_close("wan animate, training, adapter", trained,
                                     {name: transformer.state_dict()[name] for name in trained}, 1e-5, floor=1e-3)
            moved = sum(not torch.equal(value, start[name]) for name, value in trained.items())
            self.assertGreater(moved, 0.9 * len(trained))
            # The trained file stands in for the published adapter.
            probe("animate_adapter", run.weights(2), {"pose": torch.zeros(1, 16, 1, 2, 2)})


if __name__ == "__main__":
    sys.exit(unittest.main())
