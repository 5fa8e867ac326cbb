"""The training scripts that DiffSynth-Studio publishes for Wan, on files of the published names, shapes and places.

Their command lines are pasted behind `atelier`, and what comes back is planned, which checks everything that a training
checks. The files have no values, and the rows name clips. The tokenizer is where a repository has it, and not named.
"""

import csv
import dataclasses
import json
import shlex
import struct
import unittest
import wave

import program
import published_sizes
from published_scripts import ScriptTest, write_published
from tiny_run import write_png

TEXT_ENCODER = "models_t5_umt5-xxl-enc-bf16.pth"
IMAGE_ENCODER = "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth"
VAE, WIDE_VAE = "Wan2.1_VAE.pth", "Wan2.2_VAE.pth"
DIT = "diffusion_pytorch_model*.safetensors"
CONFIG = "examples/wanvideo/model_training/full/accelerate_config_14B.yaml"
KEYS = {TEXT_ENCODER: "umt5_original", IMAGE_ENCODER: "clip_original", VAE: "vae_original", WIDE_VAE: "wan22_vae_original"}
ON_CPU, OFFLOAD = "--initialize_model_on_cpu", "--use_gradient_checkpointing_offload"
LORA_LAYERS = "q,k,v,o,ffn.0,ffn.2"


@dataclasses.dataclass(frozen=True)
class Model:
    """What the two scripts of a model say, of the whole model and of a LoRA."""
    keys: str  # of its denoiser, in tests/data/keys
    company: str = "Wan-AI"
    dit: str = DIT  # where its folder has that
    files: tuple = (TEXT_ENCODER, VAE)  # beside that; those of another model with its name, before a colon
    more: dict = dataclasses.field(default_factory=dict)  # files of other companies, with their keys
    asked: tuple = ()  # --extra_inputs
    columns: tuple = ()  # of files of the data, beside the clip
    trained: str = "dit"
    boundary: str = ""  # of two experts
    size: tuple = (480, 832)
    frames: tuple = (None, None)  # of the whole model and of a LoRA
    rates: tuple = ("1e-5", "1e-4")
    flags: tuple = ((), ())
    one_process: tuple = (False, True)  # without the launcher's file
    lora_base: str = "dit"
    layers: str = LORA_LAYERS
    repeats: tuple = ("100", "100")
    epochs: tuple = ("2", "5")
    table: str = "csv"


IMAGES = (TEXT_ENCODER, VAE, IMAGE_ENCODER)
ENDS = ("input_image", "end_image")
CAMERA = ("input_image", "camera_control_direction", "camera_control_speed")
REFERENCE = ("control_video", "reference_image")
VACE = dict(asked=("vace_video", "vace_reference_image"), columns=("vace_video", "vace_reference_image"), trained="vace",
            lora_base="vace", rates=("5e-5", "1e-4"), flags=((OFFLOAD,), (OFFLOAD,)))
FUN = dict(company="PAI", files=IMAGES)
FUN_EXPERTS = dict(company="PAI", boundary="0.358", rates=("1e-4", "1e-4"), epochs=("5", "5"))
SMALL = dict(one_process=(True, True))
MODELS = {
    "Wan2.1-T2V-1.3B": Model("wan_t2v_1_3b_original", **SMALL),
    "Wan2.1-T2V-14B": Model("wan_t2v_14b_original"),
    "Wan2.1-I2V-14B-480P": Model("wan_i2v_14b_original", files=IMAGES, asked=ENDS[:1], flags=((ON_CPU,), ())),
    "Wan2.1-I2V-14B-720P": Model("wan_i2v_14b_original", files=IMAGES, asked=ENDS[:1], size=(720, 1280), frames=(49, None),
                                 flags=((OFFLOAD, ON_CPU), (OFFLOAD, ON_CPU)), one_process=(False, False)),
    "Wan2.1-FLF2V-14B-720P": Model("wan_flf2v_14b_original", files=IMAGES, asked=ENDS, flags=((ON_CPU,), ())),
    "Wan2.2-T2V-A14B": Model("wan_t2v_14b_original", boundary="0.417", frames=(49, 49)),
    "Wan2.2-I2V-A14B": Model("wan22_i2v_a14b_original", boundary="0.358", asked=ENDS[:1], frames=(49, 49),
                             flags=((OFFLOAD,), ())),
    "Wan2.2-TI2V-5B": Model("wan22_ti2v_5b_original", files=(TEXT_ENCODER, WIDE_VAE), asked=ENDS[:1], frames=(49, 49), **SMALL),
    "krea-realtime-video": Model("wan_t2v_14b_original", company="krea", dit="krea-realtime-video-14b.safetensors",
                                 files=("Wan2.1-T2V-14B:" + TEXT_ENCODER, "Wan2.1-T2V-14B:" + VAE)),
    "Wan2.1-1.3b-speedcontrol-v1": Model(
        "wan_t2v_1_3b_original", dit="Wan2.1-T2V-1.3B:" + DIT,
        files=("Wan2.1-T2V-1.3B:" + TEXT_ENCODER, "Wan2.1-T2V-1.3B:" + VAE), asked=("motion_bucket_id",),
        more={"DiffSynth-Studio/Wan2.1-1.3b-speedcontrol-v1:model.safetensors": "wan_speed_controller"},
        trained="motion_controller", **SMALL),
    "Wan2.1-Fun-1.3B-InP": Model("wan_fun_1_3b_inp_original", asked=ENDS, **FUN, **SMALL),
    "Wan2.1-Fun-14B-InP": Model("wan_i2v_14b_original", asked=ENDS, **FUN),
    "Wan2.1-Fun-V1.1-1.3B-InP": Model("wan_fun_1_3b_inp_original", asked=ENDS, **FUN, **SMALL),
    "Wan2.1-Fun-V1.1-14B-InP": Model("wan_i2v_14b_original", asked=ENDS, **FUN),
    "Wan2.2-Fun-A14B-InP": Model("wan22_i2v_a14b_original", asked=ENDS, **FUN_EXPERTS),
    "Wan2.1-Fun-1.3B-Control": Model("wan_fun_1_3b_control_original", asked=REFERENCE[:1], columns=REFERENCE[:1], **FUN, **SMALL),
    "Wan2.1-Fun-14B-Control": Model("wan_fun_14b_control_original", asked=REFERENCE[:1], columns=REFERENCE[:1], **FUN),
    "Wan2.1-Fun-V1.1-1.3B-Control": Model("wan_fun_v11_1_3b_control_original", asked=REFERENCE, columns=REFERENCE, **FUN, **SMALL),
    "Wan2.1-Fun-V1.1-14B-Control": Model("wan_fun_v11_14b_control_original", asked=REFERENCE, columns=REFERENCE, **FUN),
    "Wan2.2-Fun-A14B-Control": Model("wan22_fun_a14b_control_original", asked=REFERENCE, columns=REFERENCE, **FUN_EXPERTS),
    "Wan2.1-Fun-V1.1-1.3B-Control-Camera": Model("wan_fun_v11_1_3b_camera_original", asked=CAMERA, rates=("1e-5", "1e-5"), **FUN,
                                                 **SMALL),
    "Wan2.1-Fun-V1.1-14B-Control-Camera": Model("wan_fun_v11_14b_camera_original", asked=CAMERA, rates=("1e-5", "1e-5"), **FUN),
    "Wan2.2-Fun-A14B-Control-Camera": Model("wan22_fun_a14b_camera_original", asked=CAMERA, columns=REFERENCE, **FUN_EXPERTS),
    "VACE-Wan2.1-1.3B-Preview": Model("wan_vace_1_3b_original", company="iic", frames=(49, None), **VACE, **SMALL),
    "Wan2.1-VACE-1.3B": Model("wan_vace_1_3b_original", frames=(49, None), **VACE, **SMALL),
    "Wan2.1-VACE-14B": Model("wan_vace_14b_original", frames=(17, 17), **VACE),
    "Wan2.2-VACE-Fun-A14B": Model("wan_vace_14b_original", company="PAI", boundary="0.358", frames=(17, 17),
                                  **{**VACE, "flags": ((OFFLOAD, ON_CPU), (OFFLOAD,))}),
    "Wan2.2-Animate-14B": Model(
        "wan22_animate_original", files=IMAGES, asked=("input_image", "animate_pose_video", "animate_face_video"),
        columns=("animate_pose_video", "animate_face_video"), trained="animate_adapter", frames=(81, 81),
        flags=((OFFLOAD,), (OFFLOAD,)), one_process=(False, False)),
    "Wan2.2-S2V-14B": Model(
        "wan22_s2v_original", files=("wav2vec2-large-xlsr-53-english/model.safetensors", TEXT_ENCODER, VAE),
        asked=("input_image", "input_audio", "s2v_pose_video"), columns=("input_audio", "s2v_pose_video"), size=(448, 832),
        frames=(81, 81), epochs=("1", "5"), one_process=(False, False),
        flags=((OFFLOAD, "--audio_processor_path", "Wan-AI/Wan2.2-S2V-14B:wav2vec2-large-xlsr-53-english/"),) * 2),
    "Video-As-Prompt-Wan2.1-14B": Model(
        "wan_vap_14b", company="ByteDance", dit="transformer/" + DIT,
        files=tuple("Wan2.1-I2V-14B-720P:" + file for file in IMAGES), asked=("vap_video", "input_image"),
        columns=("vap_video",), trained="vap", frames=(49, 49), flags=((OFFLOAD,), (OFFLOAD,)), repeats=("100", "10")),
    "LongCat-Video": Model(
        "longcat_video", company="meituan-longcat", dit="dit/" + DIT,
        files=("Wan2.1-T2V-14B:" + TEXT_ENCODER, "Wan2.1-T2V-14B:" + VAE),
        layers="adaLN_modulation.1,attn.qkv,attn.proj,cross_attn.q_linear,cross_attn.kv_linear,cross_attn.proj,ffn.w1,ffn.w2,ffn.w3"),
    **{f"Wan-Dancer-14B-{part}": Model(
        "wan_dancer_14b", dit=f"Wan-Dancer-14B:{part}_model.safetensors", files=tuple("Wan-Dancer-14B:" + file for file in IMAGES),
        asked=("wantodance_music_path", "wantodance_reference_image", "wantodance_fps", "wantodance_keyframes",
               "wantodance_keyframes_mask", *(["framewise_decoding"] if part == "global" else [])),
        columns=("wantodance_reference_image", "wantodance_keyframes", "wantodance_music_path"), size=(1280, 720),
        frames=(149, 149), flags=((OFFLOAD, *(["--framewise_decoding"] if part == "global" else [])),) * 2,
        one_process=(False, False), table="json")
       for part in ("global", "local")},
}


def write_clips(folder, frames=(149, 153)):
    """Rows of clips, folders of frames; a few files, linked."""
    folder.mkdir()
    for number in range(4):
        write_png(folder / f"{number}.png", 96, 64, lambda x, y, number=number: (2 * x, 3 * y, 60 * number))
    for clip, count in enumerate(frames):
        (folder / f"clip_{clip}").mkdir()
        for frame in range(count):
            (folder / f"clip_{clip}" / f"{frame}.png").symlink_to(folder / f"{frame % 4}.png")
    for name, count in (("pictures", 38), ("before", 13), ("keys", 149)):
        (folder / name).mkdir()
        for frame in range(count):
            (folder / name / f"{frame}.png").symlink_to(folder / f"{frame % 4}.png")
    write_rows(folder, len(frames))


def write_rows(folder, clips, values=None):
    """Tables of the clips, as CSV and as JSON; `values`: what every row has beside, by column."""
    rows = [{"video": f"clip_{clip}", "prompt": f"clip number {clip}", **(values or {})} for clip in range(clips)]
    (folder / "metadata.json").write_text(json.dumps(rows))
    with open(folder / "metadata.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: value if isinstance(value, str) else json.dumps(value) for name, value in row.items()}
                         for row in rows)


def write_sound(path, seconds=12, rate=16000):
    """A tone in a WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(b"".join(struct.pack("<h", 8000 * (1 if i % 80 < 40 else -1)) for i in range(seconds * rate)))


def cells(frames, height, width, leading=0):
    """Of a clip's latents, behind `leading` frames of others."""
    return [frames // 4 + 1 + leading, height // 8, width // 8]


def write_cache(folder, stages, frames, height, width, rows=2):
    """What encoding leaves of rows: a manifest, and tensors of these stages without values."""
    items = []
    for row in range(rows):
        keys = {stage: f"{row:032x}" for stage in stages}
        items.append({"place": f"row {row + 1}", "frames": frames, "height": height, "width": width, "values": {}, "files": [],
                      "latents_shape": stages["latents"]["latents"], **keys})
        for stage, key in keys.items():
            published_sizes.write_holes(folder / stage / f"{key}.safetensors", stages[stage],
                                        {"atelier.kind": stage, "atelier.content": key})
    manifest = {"format": "atelier.cache", "version": 1, "complete": True, "family": "wan", "dataset": "", "options": {},
                "files": {}, "cached": dict.fromkeys(stages, True), "items": items,
                **{f"{stage}_encoders": {} for stage in stages}}
    (folder / "manifest.json").write_text(json.dumps(manifest))


TEXT, SHOWN = [12, 4096], [257, 1280]


def write_tokenizer(folder):
    """Letters and the space, in umT5's form."""
    folder.mkdir(parents=True)
    special = ["<pad>", "</s>", "<unk>"]
    vocabulary = [[word, 0.0] for word in special] + [[letter, -3.0] for letter in "\u2581abcdefghijklmnopqrstuvwxyz"]
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": number, "content": word, "special": True} for number, word in enumerate(special)],
        "pre_tokenizer": metaspace,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": vocabulary, "byte_fallback": False}}))


# What the rows have in columns of their own.
VALUES = {
    **dict.fromkeys(("control_video", "vace_video", "animate_pose_video", "s2v_pose_video", "vap_video",
                     "wantodance_keyframes"), "clip_0"),
    "animate_face_video": "clip_0", "motion_bucket_id": 50, "camera_control_direction": "Left", "camera_control_speed": 0.01,
    **dict.fromkeys(("reference_image", "vace_reference_image", "wantodance_reference_image"), "0.png"),
    **dict.fromkeys(("input_audio", "wantodance_music_path"), "sound.wav"),
    "wantodance_keyframes_mask": [1] + 148 * [0], "wantodance_fps": 30, "framewise_decoding": True,
    "animate2_reference_image": "0.png", "animate2_reference_video": "clip_0", "animate2_prompt_ref": "somebody dances",
}
# Pictures of the global dancer, which lie far apart in time: a clip of its own, and their rate.
PICTURES = {"video": "pictures", "wantodance_fps": 7.5}
# The components that a model's own inputs are encoded by or run beside the denoiser, behind the three that all have.
OWN = {"motion_bucket_id": "motion_controller", "vace_video": "vace", "animate_pose_video": "animate_adapter",
       "input_audio": "audio_encoder", "vap_video": "vap"}


class WanScripts(ScriptTest):
    plugin, config = "wan", CONFIG

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.root / "data/diffsynth_example_dataset/wanvideo"
        cls.data.mkdir(parents=True)
        write_clips(cls.root / "rows")
        write_sound(cls.root / "rows/sound.wav")
        for name, model in MODELS.items():
            for file, keys in cls.files(name):
                path = cls.root / "models" / file.replace(":", "/").replace("*", "")
                if not path.exists():
                    write_published(path, keys)
                    if path.name == TEXT_ENCODER:
                        write_tokenizer(path.parent / "google/umt5-xxl")
            cls.write_data(name, model)

    @classmethod
    def write_data(cls, name, model):
        """Rows of a model's own columns, beside links to the files that all have."""
        folder = cls.data / name
        folder.mkdir()
        for path in (cls.root / "rows").iterdir():
            if not path.name.startswith("metadata"):
                (folder / path.name).symlink_to(path)
        names = {*model.asked, *model.columns} & VALUES.keys()
        values = {column: VALUES[column] for column in VALUES if column in names}
        write_rows(folder, 2, values | PICTURES if name.endswith("-global") else values)

    @staticmethod
    def files(name, expert=None):
        """The files that a model's scripts name, with their keys; all experts, or one."""
        model = MODELS[name]

        def place(file, company):
            return f"{company}/{file}" if ":" in file else f"{company}/{name}:{file}"
        experts = [expert] if expert is not None else ["high_noise_model", "low_noise_model"] if model.boundary else [""]
        files = [(place(f"{folder}/{model.dit}" if folder else model.dit, "Wan-AI" if ":" in model.dit else model.company),
                  model.keys) for folder in experts]
        files += [(place(file, "Wan-AI" if ":" in file else model.company), KEYS.get(file.split(":")[-1], "wav2vec2"))
                  for file in model.files]
        return files + list(model.more.items())

    def line(self, name, is_lora, expert=""):
        """A script's command line. `expert`: the folder of one of two."""
        model, lora = MODELS[name], int(is_lora)
        data = f"data/diffsynth_example_dataset/wanvideo/{name}"
        line = ["accelerate", "launch", *([] if model.one_process[lora] else ["--config_file", CONFIG]),
                "examples/wanvideo/model_training/train.py", "--dataset_base_path", data, "--dataset_metadata_path",
                f"{data}/metadata.{model.table}"]
        if model.columns:
            line += ["--data_file_keys", ",".join(("video", *model.columns))]
        line += ["--height", str(model.size[0]), "--width", str(model.size[1])]
        if model.frames[lora]:
            line += ["--num_frames", str(model.frames[lora])]
        line += ["--dataset_repeat", model.repeats[lora], "--model_id_with_origin_paths",
                 ",".join(file for file, _ in self.files(name, expert)), "--learning_rate", model.rates[lora],
                 "--num_epochs", model.epochs[lora], "--remove_prefix_in_ckpt",
                 f"pipe.{model.lora_base if is_lora else model.trained}.", "--output_path",
                 f"./models/train/{name}{'_' + expert if expert else ''}_{'lora' if is_lora else 'full'}"]
        line += ["--lora_base_model", model.lora_base, "--lora_target_modules", model.layers, "--lora_rank",
                 "32"] if is_lora else ["--trainable_models", model.trained]
        if model.asked:
            line += ["--extra_inputs", ",".join(model.asked)]
        line += model.flags[lora]
        if expert:
            low = expert.startswith("low")
            line += ["--max_timestep_boundary", "1" if low else model.boundary, "--min_timestep_boundary",
                     model.boundary if low else "0"]
        return line

    def check(self, name, expert=""):
        model = MODELS[name]
        own = {OWN[column] for column in model.asked if column in OWN}
        own |= {"image_encoder"} if any(IMAGE_ENCODER in file for file in model.files) else set()
        for is_lora in (True, False):
            with self.subTest(model=name, expert=expert, is_lora=is_lora):
                plan = self.plan(self.line(name, is_lora, expert))
                components = {component["name"] for component in plan["components"]}
                self.assertEqual(components, {"dit", "text_encoder", "vae", *own})
                self.assertEqual("train", plan["phases"][-1]["name"])
                passes = 2 * int(model.repeats[is_lora]) * int(model.epochs[is_lora])
                self.assertEqual(passes, plan["phases"][-1]["passes"])

    def test_scripts_are_accepted_and_planned(self):
        for name, model in MODELS.items():
            for expert in ("high_noise_model", "low_noise_model") if model.boundary else ("",):
                self.check(name, expert)

    def test_encoders_of_one_command_and_the_denoiser_of_another(self):
        model = "Wan2.2-Animate-2-14B"
        self.write_driven(model)
        asked = ("animate2_prompt_ref", "animate2_reference_image", "animate2_reference_video")
        self.write_data(model, Model("", asked=asked))
        data = f"data/diffsynth_example_dataset/wanvideo/{model}"
        cache = f"models/train/{model}_full_splited_cache"
        common = ["--data_file_keys", "video,animate2_reference_image,animate2_reference_video", "--height", "640", "--width",
                  "352", "--num_frames", "81", "--learning_rate", "1e-5", "--num_epochs", "2", "--remove_prefix_in_ckpt",
                  "pipe.dit.", "--extra_inputs", ",".join(asked), "--use_gradient_checkpointing"]
        files = [f"Wan-AI/{model}:videomodel/Wan-AI/{file}" for file in (TEXT_ENCODER, IMAGE_ENCODER)]
        start = ["accelerate", "launch", "examples/wanvideo/model_training/train.py", "--dataset_base_path"]
        plan = self.plan([*start, data, "--dataset_metadata_path", f"{data}/metadata.json", "--dataset_repeat", "1",
                          "--model_id_with_origin_paths", ",".join([*files, f"Wan-AI/Wan2.1-T2V-14B:{VAE}"]),
                          "--output_path", f"./{cache}", "--task", "sft:data_process", *common])
        self.assertEqual({"text_encoder", "image_encoder", "vae"}, {component["name"] for component in plan["components"]})
        layers = ",".join(f"dit.blocks.{i}.block.self_attn.{name}" for i in range(40) for name in "qkv")
        size = dict(frames=81, height=640, width=352)
        around = cells(**size, leading=1)
        write_cache(self.root / cache / "cache", {
            "text": {"prompt_embeds": TEXT}, "driving_text": {"driving_embeds": TEXT}, "driven_image": {"image_embeds": SHOWN},
            "driving_frame": {"driving_image_embeds": SHOWN}, "latents": {"latents": [16, *around]},
            "driving": {"driving_clip": [16, *cells(**size)], "given_clip": [20, *around]}}, **size)
        for form in ("bf16", "bf16_distillation"):
            file = f"wan_animate_2/wan_animate_2_{form}.safetensors"
            for trained in (["--trainable_models", layers],
                            ["--lora_base_model", "dit", "--lora_target_modules", "self_attn.q,self_attn.k,self_attn.v",
                             "--lora_rank", "32"]):
                words = [*start, cache, "--dataset_repeat", "100", "--model_id_with_origin_paths", f"Wan-AI/{model}:{file}",
                         "--output_path", "./trained", "--task", "sft:train", *trained, *common]
                plan = self.plan(words)
                self.assertEqual(["dit"], [component["name"] for component in plan["components"]])
                self.assertEqual(2 * 100 * 2, plan["phases"][-1]["passes"])

    def test_special_scripts(self):
        line = self.line("Wan2.1-I2V-14B-480P", is_lora=True)
        files = line[line.index("--model_id_with_origin_paths") + 1]
        dit, _, others = files.partition(",")
        for words in (["--fp8_models", files], ["--task", "sft:data_process", "--offload_models", dit, "--fp8_models", others],
                      ["--task", "sft:data_process", "--offload_models", dit], ["--initialize_model_on_cpu"]):
            with self.subTest(words=words[:2]):
                self.plan(line + words)
        # Those that are split: encoders fill a cache, from which the denoiser learns.
        cache, size = "models/train/split_cache", dict(frames=81, height=480, width=832)
        latents = cells(**size)
        write_cache(self.root / cache / "cache", {
            "text": {"prompt_embeds": TEXT}, "first_image": {"image_embeds": SHOWN}, "latents": {"latents": [16, *latents]},
            "given_clip": {"given_clip": [20, *latents]}}, **size)
        for is_lora in (True, False):
            line = self.line("Wan2.1-I2V-14B-480P", is_lora)
            line[line.index("--model_id_with_origin_paths") + 1] = dit
            at = line.index("--dataset_base_path")
            line[at + 1:at + 4] = [cache]
            plan = self.plan(line + ["--task", "sft:train"])
            self.assertEqual(["dit"], [component["name"] for component in plan["components"]])
        name = "Wan2.1-T2V-1.3B"
        values = {"seed": 1, "rand_device": "cpu", "num_inference_steps": 4, "cfg_scale": 1}
        write_rows(self.data / name, 2, values)
        self.plan(self.line(name, is_lora=False) + ["--task", "direct_distill", "--extra_inputs", ",".join(values)])
        write_rows(self.data / name, 2)

    def test_the_pages_lines_for_each_model_are_planned(self):
        """Lines of plugins/wan/README.md, on files of the published names that lie where they are downloaded to."""
        page = (program.REPOSITORY / "plugins/wan/README.md").read_text(encoding="utf-8")
        block = page.split("## A line for each published model")[1].split("```sh\n")[1].split("```")[0]
        lines = [shlex.split(line) for line in block.splitlines()]
        self.write_driven("Wan2.2-Animate-2-14B")
        for folder in [*(self.root / "models").glob("*/*")]:
            link = self.root / "models" / folder.name
            if not link.exists():
                link.symlink_to(folder)
        for name, source in (("first.png", "0.png"), ("last.png", "1.png"), ("clip.mp4", "clip_0"), ("before.mp4", "before"), ("keys.mp4", "keys"),
                             ("song.wav", "sound.wav")):
            (self.root / name).symlink_to(self.root / "rows" / source)
        models = {model for line in lines for path in json.loads(line[line.index("--model_paths") + 1])
                  for model in [path.split("/")[1]]}
        # The 36 scripts that make clips are of these models, two of them of S2V, and of both forms of Animate-2.
        self.assertLessEqual({name.removesuffix("-global").removesuffix("-local") for name in MODELS}, models)
        for file in ("global_model", "local_model", "wan_animate_2_bf16", "wan_animate_2_bf16_distillation"):
            self.assertTrue(any(f"/{file}.safetensors" in line for line in block.splitlines()), file)
        for line in lines:
            with self.subTest(" ".join(line)):
                line[line.index("--output") + 1] = "new.mp4"  # clip.mp4 stands here, a folder of frames
                said = self.run_program("plan", *line[1:], "--vram", "4000GiB", "--host_memory", "4000GiB",
                                        "--device_profile", "h200")
                self.assertRegex(said.stdout + said.stderr, "denoise")

    def write_driven(self, model):
        """The files of Wan2.2-Animate-2, whose encoders lie in folders of their own."""
        folder = self.root / "models/Wan-AI" / model
        for file in (TEXT_ENCODER, IMAGE_ENCODER):
            if not (folder / "videomodel/Wan-AI" / file).exists():
                write_published(folder / "videomodel/Wan-AI" / file, KEYS[file])
        if not (folder / "videomodel/Wan-AI/google").exists():
            write_tokenizer(folder / "videomodel/Wan-AI/google/umt5-xxl")
        for form in ("bf16", "bf16_distillation"):
            path = folder / f"wan_animate_2/wan_animate_2_{form}.safetensors"
            if not path.exists():
                write_published(path, "wan22_animate2_original")

    def test_the_model_of_five_billion(self):
        model = "Wan2.2-TI2V-5B"
        line = self.line(model, is_lora=True)
        files = line[line.index("--model_id_with_origin_paths") + 1]
        said = self.run_program("plan", "generate", "--plugin", "wan", "--model_id_with_origin_paths", files, "--prompt",
                                "a clip", "--height", 480, "--width", 832, "--num_frames", 49, "--input_image",
                                "rows/0.png", "--output", "clip.webp", "--vram", "4000GiB", "--device_profile", "h200")
        self.assertRegex(said.stdout + said.stderr, "denoise")

    def test_as_many_frames_are_learnt_as_the_line_says(self):
        line = self.line("Wan2.1-T2V-1.3B", is_lora=True)
        working = {}
        for frames in ("49", "81", ""):
            plan = self.plan(line + (["--num_frames", frames] if frames else []))
            working[frames] = plan["phases"][-1]["working_bytes"]
        self.assertEqual(working["81"], working[""])
        latent_frames = 21 / 13
        self.assertAlmostEqual(latent_frames, working["81"] / working["49"], delta=0.1)

    def test_the_models_are_out_of_the_way_while_the_denoiser_trains(self):
        plan = self.plan(self.line("Wan2.1-I2V-14B-480P", is_lora=True))
        bytes_of = {component["name"]: component["device_bytes"] for component in plan["components"]}
        train = plan["phases"][-1]
        driver = 1 << 30
        self.assertLess(train["device_bytes"], bytes_of["dit"] + train["working_bytes"] + driver)
        self.assertGreater(bytes_of["text_encoder"], 10 * driver)


if __name__ == "__main__":
    unittest.main()
