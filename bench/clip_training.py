#!/usr/bin/env python3
"""Peaks of training on clips beside what is planned, over frames and budgets of activations.

    .deps/venv/bin/python bench/clip_training.py [--blocks 8] [--width 512] [--side 160]

README.md, beside this file, says what is counted.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "tests/parity"))
import clip_cache  # noqa: E402
import wan_models  # noqa: E402

PROGRAM = REPOSITORY / "build/release/bin/atelier"
FRAMES, BUDGETS = (17, 33, 49, 81), ("0", "0.25", "0.5", "0.75", "1", "none")
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ROOM = "64GiB"
HINTS = {"*/transformer/*": {"variant": "wan2.2-t2v-a14b"}}
STEPS = 2


def bytes_of(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


class Bench:

    def __init__(self, folder, options):
        self.folder, self.options = folder, options
        self.model = wan_models.WanModels(folder / "tiny").model
        wan_models.make_transformer(1, num_attention_heads=options.width // 128, attention_head_dim=128,
                                    ffn_dim=4 * options.width,
                                    num_layers=options.blocks).save_pretrained(self.model / "transformer")
        self.caches, self.runs = {}, 0

    def cache(self, frames):
        if frames not in self.caches:
            self.caches[frames] = clip_cache.make(self.folder / f"cache_{frames}", "wan", self.encoders(),
                                                  ["a red fox in the snow"], frames, self.options.side,
                                                  self.options.side)
        return self.caches[frames]

    def encoders(self):
        return [self.model / name for name in ("transformer", "text_encoder", "vae", "tokenizer")]

    def train(self, frames, budget):
        """Planned and measured bytes."""
        self.runs += 1
        flags = dict(plugin="wan", task="sft:train", dataset_base_path=self.cache(frames), dtype="float32",
                     model_paths=json.dumps([str(self.model / "transformer")]), model_hints=json.dumps(HINTS),
                     lora_base_model="dit", lora_rank=16, num_epochs=STEPS, max_train_steps=STEPS,
                     device="simulated:" + ROOM, vram=ROOM, activation_memory_budget=budget,
                     output_path=self.folder / f"run_{self.runs}", save_state="false")
        words = [str(word) for name, value in flags.items() for word in ("--" + name, value)]
        done = subprocess.run([PROGRAM, "train", *words], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode}: {' '.join(words)}\n{done.stderr[-2000:]}")
        planned, measured = re.search(r"memory: predicted (\S+ \S+), measured (\S+ \S+)", done.stderr).groups()
        return bytes_of(planned), bytes_of(measured)


def compare_peaks(bench):
    """Rows of frames and budgets; returns whether all are as they should be."""
    print("| frames | budget | planned MiB | measured MiB | planned over measured |\n| ---: | --- | ---: | ---: | ---: |")
    is_right = True
    for frames in FRAMES:
        before = 0.0
        for budget in BUDGETS:
            planned, measured = bench.train(frames, budget)
            print(f"| {frames} | {budget} | {planned / 2**20:.1f} | {measured / 2**20:.1f} | {planned / measured:.3f} |",
                  flush=True)
            is_right &= abs(planned / measured - 1) <= 0.1 and measured >= before
            before = measured
    return is_right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=512, help="a multiple of 128")
    parser.add_argument("--side", type=int, default=160, help="of the clips, in pixels, a multiple of 16")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="atelier_clips_") as folder:
        return 0 if compare_peaks(Bench(pathlib.Path(folder), options)) else 1


if __name__ == "__main__":
    sys.exit(main())
