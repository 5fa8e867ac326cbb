"""The generating lines of plugins/wan/README.md, as they stand, on tiny weights of every published model: all of them make
the clips that the page says, of fewer steps and small pictures."""

import functools
import json
import sys
import unittest
import wave

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

import atelier
import longcat_models
import tiny_models
import wan_animate2_models
import wan_animate_parity_test as animate
import wan_checks
import wan_dancer_models
import wan_fun_models
import wan_models
import wan_s2v_models
import wan_speed_parity_test as speed
import wan_vace_parity_test as vace
import wan_vap_models
from pages import generating_lines

SMALL = dict(height=32, width=32, num_inference_steps=1)
BEATS = dict(SMALL, height=64)  # a latent frame of a dancer is cut into eight
SECONDS = 1
# Frames of what the lines name, and of clips that they name beside others.
LONG, SHORT, BEFORE, KEYS = 81, 9, 13, 149

plain, shown = wan_models.make_transformer, wan_models.make_image_transformer
wide = functools.partial(plain, in_channels=36)


def fun(kind):
    return lambda seed=110: wan_fun_models.make_transformer(kind, seed)


# What makes the denoiser of each model: of both experts with a seed.
DENOISERS = {
    **dict.fromkeys(("Wan2.1-T2V-1.3B", "Wan2.1-T2V-14B"), plain),
    **dict.fromkeys(("Wan2.1-I2V-14B-480P", "Wan2.1-I2V-14B-720P", "Wan2.1-Fun-1.3B-InP", "Wan2.1-Fun-14B-InP",
                     "Wan2.1-Fun-V1.1-1.3B-InP", "Wan2.1-Fun-V1.1-14B-InP"), shown),
    "Wan2.1-FLF2V-14B-720P": functools.partial(shown, 2),
    "Wan2.2-T2V-A14B": plain,
    **dict.fromkeys(("Wan2.2-I2V-A14B", "Wan2.2-Fun-A14B-InP"), wide),
    "Wan2.2-TI2V-5B": wan_models.make_wide_transformer,
    **dict.fromkeys(("Wan2.1-Fun-1.3B-Control", "Wan2.1-Fun-14B-Control"), fun("control")),
    **dict.fromkeys(("Wan2.1-Fun-V1.1-1.3B-Control", "Wan2.1-Fun-V1.1-14B-Control"), fun("control_v1.1")),
    **dict.fromkeys(("Wan2.1-Fun-V1.1-1.3B-Control-Camera", "Wan2.1-Fun-V1.1-14B-Control-Camera"), fun("camera")),
    "Wan2.2-Fun-A14B-Control": fun("control_a14b"),
    "Wan2.2-Fun-A14B-Control-Camera": fun("camera_a14b"),
    **dict.fromkeys(("VACE-Wan2.1-1.3B-Preview", "Wan2.1-VACE-1.3B", "Wan2.1-VACE-14B", "Wan2.2-VACE-Fun-A14B"),
                    vace.make_vace),
    "Wan2.2-Animate-14B": animate.make_transformer,
}
# What is told by widths that tiny weights do not have.
VARIANTS = dict.fromkeys(("Wan2.1-I2V-14B-480P", "Wan2.1-I2V-14B-720P", "Wan2.1-Fun-14B-InP", "Wan2.1-Fun-V1.1-14B-InP"),
                         "wan2.1-i2v-14b")
# Files of the original repositories, and the components in diffusers' folders that stand for them.
FILES = {"Wan2.1_VAE.pth": "vae", "models_t5_umt5-xxl-enc-bf16.pth": "text_encoder", "google/umt5-xxl": "tokenizer",
         "models_clip_open-clip-xlm-roberta-large-vit-huge-14.pth": "image_encoder"}
# Frames that the page says are made where a line does not say it: as many as a clip has that is given, or others.
FRAMES = {"Wan2.2-TI2V-5B": 121, "LongCat-Video": 93, "Wan2.2-Animate-14B": SHORT, "Wan2.2-Animate-2-14B": SHORT,
          "Wan2.2-S2V-14B": 16 * SECONDS, "Video-As-Prompt-Wan2.1-14B": 49, "Wan-Dancer-14B": 149}


class Models:
    """The folders that the page names, filled with tiny weights when a line names them."""

    def __init__(self, root):
        self.root = root
        self.models = wan_models.get()
        wan_models.make_image_encoder().save_pretrained(root / "image_encoder")

    def path(self, named):
        """Of files or folders that a line names: what stands for them."""
        _, model, *rest = named.split("/", 2)
        if rest and rest[0] in FILES:
            part = FILES[rest[0]]
            return self.root / part if part == "image_encoder" else self.models.model / part
        return self.folder(model).joinpath(*rest)

    def folder(self, model):
        folder = self.root / "models" / model
        if not folder.exists():
            own = self.OWN.get(model)
            own(self, folder) if own else self.fill(folder, DENOISERS[model])
        return folder

    def fill(self, folder, make):
        """A folder in diffusers' layout."""
        parts = {"transformer": make()}
        if "A14B" in folder.name:
            parts["transformer_2"] = make(seed=7)
        if folder.name == "Wan2.2-TI2V-5B":
            parts["vae"] = wan_models.make_wide_vae()
        self.models.folder_with(folder, **parts)
        if "A14B" not in folder.name:
            (folder / "image_encoder").symlink_to(self.root / "image_encoder")

    def animate(self, folder):
        """With a LoRA that lights what is made anew."""
        self.fill(folder, DENOISERS[folder.name])
        (folder / "model_index.json").write_text("{}")
        layer = "blocks.0.self_attn.q"
        torch.save({"state_dict": {f"{layer}.lora_A.weight": torch.ones(2, 32), f"{layer}.lora_B.weight": torch.ones(32, 2)}},
                   folder / "relighting_lora.ckpt")

    def animate2(self, folder):
        transformer = wan_animate2_models.make_transformer()
        wan_animate2_models.make_image_encoder().save_pretrained(folder / "videomodel/Wan-AI/image_encoder")
        for name in ("text_encoder", "tokenizer"):
            (folder / "videomodel/Wan-AI" / name).symlink_to(self.models.model / name)
        (folder / "wan_animate_2").mkdir()
        for name in ("wan_animate_2_bf16", "wan_animate_2_bf16_distillation"):
            save_file(tiny_models.contiguous(wan_animate2_models.original(transformer)),
                      folder / f"wan_animate_2/{name}.safetensors",
                      metadata={"atelier.config": json.dumps(dict(transformer.config))})

    def krea(self, folder):
        folder.mkdir(parents=True)
        (folder / "krea-realtime-video-14b.safetensors").symlink_to(self.models.layout_of("dit")["original"])

    def speed_control(self, folder):
        folder.mkdir(parents=True)
        save_file(speed.make_controller(32), folder / "model.safetensors")

    def vap(self, folder):
        self.models.folder_with(folder)
        (folder / "image_encoder").symlink_to(self.root / "image_encoder")
        wan_vap_models.save(*wan_vap_models.make(), folder / "transformer")

    def longcat(self, folder):
        self.models.folder_with(folder)
        longcat_models.save(longcat_models.make(), folder / "dit")

    def s2v(self, folder):
        self.models.folder_with(folder)
        wan_s2v_models.save(wan_s2v_models.make_dit(), folder / "dit")
        wan_s2v_models.make_sound_encoder().save_pretrained(folder / "wav2vec2-large-xlsr-53-english")

    def dancer(self, folder):
        tensors = wan_dancer_models.make_tensors()
        for part in ("global", "local"):
            wan_dancer_models.save(tensors, folder / f"{part}_model.safetensors")

    OWN = {"Wan2.2-Animate-14B": animate, "Wan2.2-Animate-2-14B": animate2, "krea-realtime-video": krea,
           "Wan2.1-1.3b-speedcontrol-v1": speed_control, "Video-As-Prompt-Wan2.1-14B": vap, "LongCat-Video": longcat,
           "Wan2.2-S2V-14B": s2v, "Wan-Dancer-14B": dancer}


def write_given(folder, frames):
    """What lines name beside models, of the names on the page: pictures, a sound, and clips of `frames`."""
    folder.mkdir()
    for i in range(4):
        Image.fromarray(wan_checks.picture(64, 32, 40 + i)).save(folder / f"{i}.png")
    lengths = {"before.mp4": BEFORE, "start.mp4": BEFORE, "keys.mp4": KEYS}
    for name in page_words():
        if name.endswith(".mp4"):
            (folder / name).mkdir()
            for i in range(lengths.get(name, frames)):
                (folder / name / f"{i:03}.png").symlink_to(folder / f"{i % 4}.png")
        elif name.endswith((".png", ".jpg")):
            (folder / name).symlink_to(folder / "0.png")
        elif name.endswith((".wav", ".mp3")):
            with wave.open(str(folder / name), "wb") as file:
                file.setparams((1, 2, 16000, 0, "NONE", ""))
                samples = 8000 * np.sin(np.arange(16000 * SECONDS) / 9)
                file.writeframes(samples.astype("<i2").tobytes())


def page_words():
    return {word for _, line in generating_lines("wan") for word in line if not word.startswith("models/")}


def value_of(words, flag, given=None):
    """What follows a flag among the words of a line, or None; `given`: what takes its place."""
    if flag not in words:
        return None
    place = words.index(flag) + 1
    old = words[place]
    if given is not None:
        words[place] = given
    return old


class PageRuns(wan_checks.FolderTest):
    """Runs lines of the page on tiny weights, with small pictures."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = Models(cls.dir)
        cls.given = {frames: cls.dir / f"given_{frames}" for frames in (LONG, SHORT)}
        for frames, folder in cls.given.items():
            write_given(folder, frames)

    @classmethod
    def words_of(cls, line):
        """The words of a line with the paths of tiny weights and small sizes, and how many frames it says."""
        words = list(line)
        named = value_of(words, "--model_paths")
        named = json.loads(named) if named.startswith("[") else [named]
        value_of(words, "--model_paths", atelier.paths_argument([cls.models.path(path) for path in named]))
        if lora := value_of(words, "--lora"):
            value_of(words, "--lora", cls.models.path(lora))
        model = named[0].split("/")[1]
        for flag, small in (BEATS if model == "Wan-Dancer-14B" else SMALL).items():
            if value_of(words, "--" + flag, small) is None:
                words += ["--" + flag, small]
        if model in VARIANTS:
            words += ["--model_hints", json.dumps({"*/transformer/*": {"variant": VARIANTS[model]}})]
        frames = int(value_of(words, "--num_frames") or FRAMES.get(model, LONG))
        return words, 38 if "global" in named[0] else frames


class PageTest(PageRuns):

    def run_line(self, line):
        """Runs a line, and gives how many frames it says and those that were made."""
        words, frames = self.words_of(line)
        with atelier.call_folder("page") as folder:
            value_of(words, "--output", folder / "out.webp")
            atelier.run(words, folder, cwd=self.given[SHORT if frames == SHORT else LONG])
            return frames, Image.open(folder / "out.webp").n_frames

    def test_every_line_makes_a_clip_as_long_as_the_page_says(self):
        sections = {section for section, _ in generating_lines("wan")}
        self.assertLess({"VACE", "Wan-Fun", "Animate", "Wan2.2-Animate-2", "Video-As-Prompt", "Speech to video",
                         "Wan-Dancer", "LongCat-Video"}, sections)
        for section, line in generating_lines("wan"):
            with self.subTest(section, line=" ".join(line)):
                expected, made = self.run_line(line)
                self.assertEqual(expected, made)


if __name__ == "__main__":
    sys.exit(unittest.main())
