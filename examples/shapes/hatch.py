#!/usr/bin/env python3
"""Trains a LoRA that hatches things, and measures what it changes at strengths 0, 0.5 and 1.

    python3 hatch.py OUTPUT --program build/release/bin/atelier [--count 16]

writes OUTPUT/lora (the run), OUTPUT/base, OUTPUT/0, OUTPUT/0.5 and OUTPUT/1 (pictures of the same
prompts and seeds) and OUTPUT/sheet.png, and prints one JSON object. Needs numpy and Pillow.
"""

import argparse
import json
import pathlib
import time

import numpy as np
from PIL import Image

import classify
import score

HERE = pathlib.Path(__file__).resolve().parent
STRENGTHS = (0, 0.5, 1)
TRAINING = {
    "lora_base_model": "dit", "lora_rank": 16, "learning_rate": 2e-3, "batch_size": 8,
    "num_epochs": 1000, "max_train_steps": 200, "lr_scheduler": "cosine", "lr_warmup_steps": 10,
    "weighting_scheme": "none", "save_steps": 200, "seed": 42,
}


def train(program, model, folder, settings=TRAINING):
    """Returns the LoRA's file."""
    data = HERE / "hatched"
    score.run(program, "train", model, "--dataset_base_path", data, "--dataset_metadata_path",
              data / "metadata.csv", "--output_path", folder,
              *(text for name, value in settings.items() for text in (f"--{name}", value)))
    return folder / f"step-{settings['max_train_steps']}.safetensors"


def compare(program, model, lora, folder, count):
    """Pictures without the LoRA and at each strength, by name, each an array [count, H, W, 3]."""
    prompts = [scene.prompt() for scene in score.unseen_scenes(count)]
    drawn = {}
    for name, extra in [("base", ())] + [(f"{strength:g}", ("--lora", f"{lora}:{strength}"))
                                         for strength in STRENGTHS]:
        (folder / name).mkdir(parents=True, exist_ok=True)
        paths = score.generate(program, model, prompts, folder / name, extra=extra)
        drawn[name] = np.stack([score.read(path) for path in paths])
    return drawn


def measure(drawn):
    amounts = {name: np.array([classify.hatching(picture) for picture in pictures])
               for name, pictures in drawn.items()}
    base = amounts["base"]
    return {
        "hatching": {name: round(float(amount.mean()), 3) for name, amount in amounts.items()},
        "deviations_at_1": round(float((amounts["1"].mean() - base.mean()) / base.std()), 1),
        "equal_at_0": bool((drawn["0"] == drawn["base"]).all()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--program", default="build/release/bin/atelier")
    parser.add_argument("--model", type=pathlib.Path, default=HERE / "model")
    parser.add_argument("--count", type=int, default=16)
    arguments = parser.parse_args()
    begin = time.time()
    lora = train(arguments.program, arguments.model, arguments.output / "lora")
    seconds = time.time() - begin
    drawn = compare(arguments.program, arguments.model, lora, arguments.output, arguments.count)
    rows = [np.concatenate(list(drawn[name][:8]), 1) for name in ("0", "0.5", "1")]
    sheet = Image.fromarray(np.concatenate(rows)).quantize(256)
    sheet.save(arguments.output / "sheet.png", optimize=True)
    print(json.dumps({"training_seconds": round(seconds, 1), **measure(drawn)}))


if __name__ == "__main__":
    main()
