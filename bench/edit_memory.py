#!/usr/bin/env python3
"""Peaks of generating and training with references beside what is planned, over how many there are.

    .deps/venv/bin/python bench/edit_memory.py [--blocks 2] [--width 512] [--side 512]

README.md, beside this file, says what is counted.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from clip_training import PROGRAM, ROOM, bytes_of
from families import FAMILIES

FAMILY, NAME = FAMILIES["qwen_image"], "Qwen-Image-Edit-2511"
REFERENCES, BUDGETS = (1, 2, 3), ("0", "none")
RANK, STEPS = 16, 2


class Bench:

    def __init__(self, folder, options):
        import torch
        from edit_models import smooth_picture
        self.folder, self.side, self.runs = folder, options.side, 0
        text_width = FAMILY.make_tiny_model(folder / "tiny")
        self.model = folder / NAME
        self.model.mkdir()
        for part in ("text_encoder", "tokenizer", "vae"):
            (self.model / part).symlink_to(folder / "tiny/model" / part)
        FAMILY.make_denoiser(self.model / "transformer", torch.float32, zero_cond_t=True, num_layers=options.blocks,
                             num_attention_heads=options.width // 128, attention_head_dim=128,
                             **{FAMILY.text_width_name: text_width})
        self.pictures = [folder / f"{number}.png" for number in range(max(REFERENCES) + 1)]
        for number, path in enumerate(self.pictures):
            smooth_picture(self.side, self.side, number).save(path)

    def run(self, command, flags):
        """Planned and measured bytes."""
        flags = dict(plugin="qwen_image", model_paths=json.dumps([str(self.model)]), dtype="float32",
                     device="simulated:" + ROOM, vram=ROOM) | flags
        words = [str(word) for name, value in flags.items() for one in (value if isinstance(value, list) else [value])
                 for word in ("--" + name, one)]
        done = subprocess.run([PROGRAM, command, *words], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode}: {' '.join(words)}\n{done.stderr[-2000:]}")
        planned, measured = re.search(r"memory: predicted (\S+ \S+), measured (\S+ \S+)", done.stderr).groups()
        return bytes_of(planned), bytes_of(measured)

    def generate(self, count):
        """Pictures keep their size."""
        return self.run("generate", dict(prompt="a red fox", num_inference_steps=1, cfg_scale=4, seed=1,
                                         height=self.side, width=self.side, edit_image=self.pictures[:count],
                                         edit_image_auto_resize="false", output=self.folder / "out.png"))

    def train(self, count, budget):
        """The references of a dataset have the area of 1024 x 1024 pixels."""
        self.runs += 1
        data = self.folder / f"data_{count}.json"
        row = {"image": str(self.pictures[-1]), "prompt": "a red fox",
               "edit_image": [str(path) for path in self.pictures[:count]]}
        data.write_text(json.dumps([row]))
        return self.run("train", dict(dataset_base_path=self.folder, dataset_metadata_path=data,
                                      data_file_keys="image,edit_image", extra_inputs="edit_image",
                                      cache_path=self.folder / f"cache_{count}", lora_base_model="dit", lora_rank=RANK,
                                      num_epochs=STEPS, max_train_steps=STEPS, activation_memory_budget=budget,
                                      output_path=self.folder / f"run_{self.runs}", save_state="false"))


def compare_peaks(bench):
    """Rows of runs and numbers of references; returns whether all are as they should be."""
    runs = {"generate": bench.generate}
    runs |= {f"train, budget {budget}": lambda count, budget=budget: bench.train(count, budget) for budget in BUDGETS}
    print("| | references | planned MiB | measured MiB | planned over measured |\n| --- | ---: | ---: | ---: | ---: |")
    is_right = True
    for name, run in runs.items():
        for count in REFERENCES:
            planned, measured = run(count)
            print(f"| {name} | {count} | {planned / 2**20:.1f} | {measured / 2**20:.1f} | {planned / measured:.3f} |",
                  flush=True)
            is_right &= abs(planned / measured - 1) <= 0.1
    return is_right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--width", type=int, default=512, help="a multiple of 128")
    parser.add_argument("--side", type=int, default=512, help="of images, in pixels, a multiple of 32")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with tempfile.TemporaryDirectory(prefix="atelier_edits_") as folder:
        return 0 if compare_peaks(Bench(pathlib.Path(folder), options)) else 1


if __name__ == "__main__":
    sys.exit(main())
