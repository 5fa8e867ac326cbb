"""Every variant of Wan makes the clip of the page's line to the bit wherever its blocks rest, and with a LoRA however that is
spelt."""

import json
import re
import sys
import unittest

import numpy as np
from safetensors.numpy import load_file, save_file

import atelier
import program
import wan_checks
import wan_page_parity_test as page
import wan_variants as variants

DEVICE = "simulated" if atelier.DEVICE == "cpu" else atelier.DEVICE
RANK, ALPHA = 2, 4


def stayed(said):
    """Component -> how many of its blocks stayed on the device, and how many it has."""
    lines = re.findall(r"^(\w+): (\d+) of (\d+) blocks stayed on the device", said, re.M)
    return {name: (int(count), int(whole)) for name, count, whole in lines}


def spelt(factors, name, down, up, alpha):
    """Factors as a file of another program has them. name(layer): what it calls one; alpha: whether it says it."""
    tensors = {}
    for layer, (a, b) in factors.items():
        tensors |= {f"{name(layer)}.{down}.weight": a, f"{name(layer)}.{up}.weight": b if alpha else b * (ALPHA / RANK)}
        if alpha:
            tensors[f"{name(layer)}.alpha"] = np.array(ALPHA, np.float32)
    return tensors


def flat(prefix):
    return lambda layer: prefix + layer.replace(".", "_")


# How programs spell a layer of the original repository.
SPELLINGS = {
    "comfy": (lambda layer: "diffusion_model." + layer, "lora_A", "lora_B", True),
    "kohya": (flat("lora_unet_"), "lora_down", "lora_up", True),
    "videox": (flat("lora_unet__"), "lora_down", "lora_up", True),
    "diffsynth": (lambda layer: layer, "lora_A.default", "lora_B.default", False),
}


class VariantsTest(page.PageRuns):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = cls.dir / "rows"
        variants.write_rows(cls.rows)

    def run_words(self, *words):
        return program.run(*words, code=0, cwd=self.given[page.SHORT])

    def clip(self, words, *more):
        """The frames that a line makes, and what is said."""
        with atelier.call_folder("variant") as folder:
            page.value_of(words, "--output", folder / "out.png")
            said = self.run_words(*words, "--device", DEVICE, *more).stderr
            frames = np.stack(atelier.read_pictures(sorted(folder.glob("out*.png"))))
        self.assertGreater(frames.std(), 1)
        return frames, said

    def plan(self, words):
        file = self.dir / "plan.json"
        self.run_words("plan", *words, "--device", DEVICE, "--vram", "1GiB", "--json", file)
        return json.loads(file.read_text())

    def least(self, words):
        """The smallest --vram, of those with three digits, that has a plan."""
        said = program.run("plan", *words, "--device", DEVICE, "--vram", "1MiB", cwd=self.given[page.SHORT]).stderr
        amount, unit = re.search(r"it needs ([\d.]+) (\w+) at least", said).groups()
        return f"{float(amount) * 1.01:.2f}{unit}"

    def check_streaming(self, variant):
        words = [*variants.generating(self, variant), "--cfg_batch", "off"]  # which a plan chooses otherwise
        resident, _ = self.clip(words)
        blocks = {component["name"]: component["resident_blocks"] for component in self.plan(words)["components"]}
        away = [name for name, count in blocks.items() if count]
        self.assertLessEqual({"dit" + ending for ending in variants.experts_of(variant)}, set(away))
        flags = ["--offload", ",".join(f"{name}=host" for name in away), "--prefetch", 0]
        # What decodes is larger than these denoisers are: the plan is told to stream them, and keeps the blocks that fit.
        for more in ([], ["--vram", self.least([*words, *flags])]):
            streamed, said = self.clip(words, *flags, *more)
            used = stayed(said)
            self.assertLessEqual(set(used), set(away))
            self.assertTrue(used and all(count < blocks[name] if more else not count for name, (count, _) in used.items()), used)
            if not more:
                self.assertLessEqual(set(away) - used.keys(), {"image_encoder"})  # clips of controls alone show it nothing
            self.assertTrue(np.array_equal(resident, streamed))

    def test_blocks_that_come_from_the_host_make_the_same_clip(self):
        for variant in variants.PLACES:
            with self.subTest(variant):
                self.check_streaming(variant)

    def train_lora(self, variant):
        """The files of a LoRA of one step, by component."""
        out = self.dir / f"lora_{variant}"
        flags = dict(variants.learning(self, variant, self.rows), **variants.lora(variant), lora_alpha=ALPHA, device="cpu",
                     max_train_steps=1, save_steps=1, learning_rate=0.3, output_path=out, lora_format="comfy")
        program.run_line(program.command("train", **flags), code=0)
        return sorted(out.glob("step-1*.safetensors"))

    def spellings(self, file, words):
        """Name -> the LoRA of `file`, in ComfyUI's names, as other programs spell it. `words`: a line with its model."""
        tensors = load_file(file)
        layers = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
        factors = {re.sub(r"^(diffusion_model|vace2?)\.", "", layer):
                   tuple(tensors[f"{layer}.lora_{side}.weight"] for side in "AB") for layer in layers}
        files = {"trained": file, "diffusers": file.with_name(f"diffusers_{file.name}")}
        ours = file.with_name(f"ours_{file.name}")
        for made, name in ((files["diffusers"], "diffusers"), (ours, "diffsynth")):
            self.run_words("lora", "convert", file, made, "--lora_format", name, "--plugin", "wan",
                           *(word for flag in ("--model_paths", "--model_hints") if flag in words
                             for word in (flag, page.value_of(words, flag))))
        for name, spelling in SPELLINGS.items():
            files[name] = file.with_name(f"{name}_{file.name}")
            save_file(spelt(factors, *spelling), files[name])
        self.assertEqual(set(load_file(files["diffsynth"])),
                         {re.sub(r"^vace2?\.", "", name) for name in load_file(ours)})
        return files

    def test_loras_make_the_same_clip_in_every_spelling(self):
        for variant in variants.PLACES:
            with self.subTest(variant):
                components = variants.lora(variant)["lora_base_model"].split(",")
                words = variants.generating(self, variant)
                spellings = [self.spellings(file, words) for file in self.train_lora(variant)]
                self.assertEqual(len(components), len(spellings))
                plain, _ = self.clip(words)
                clips = {}
                for name in spellings[0]:
                    given = [word for component, files in zip(components, spellings)
                             for word in ("--lora", f"{files[name]}@{component}")]
                    clips[name], _ = self.clip(words, *given)
                trained = clips.pop("trained")
                self.assertGreater(wan_checks.difference(trained, plain), 1)
                for name, clip in clips.items():
                    with self.subTest(spelling=name):
                        self.assertTrue(np.array_equal(trained, clip))


if __name__ == "__main__":
    sys.exit(unittest.main())
