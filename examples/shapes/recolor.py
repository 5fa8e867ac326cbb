#!/usr/bin/env python3
"""Trains a LoRA that recolours a thing of a picture, or counts how often it does what was asked.

    python3 recolor.py train FOLDER RUN     # FOLDER/pairs, pairs2, pairs3: what pictures.py --edit wrote
    python3 recolor.py score [--lora FILE] [--count 100] [--output FOLDER] [--edges]

A picture is right when all of this is true:

- of the pixels of the thing that was to be recoloured, at least 90 % are nearest to the asked colour;
- everywhere else, 3 pixels around the thing left out, the mean difference from the picture before
  is at most 10 of 255 levels;
- classify.py sees the things, shapes, places and ground of the picture before, but for that colour.

Pixels of the thing at its edge are left out: the VAE blends them with the ground. --edges counts
them; of pictures that are recoloured rightly and only went through the VAE, 90 of 100 are right then.

No picture that is scored has the scene and the words of a pair that was learnt. score prints one
JSON object, and with --output leaves sheet.png: pictures before and after. Needs numpy and Pillow.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import tempfile
import time

import numpy as np
from PIL import Image

import classify
import pictures
import plot
import score

HERE = pathlib.Path(__file__).resolve().parent
LORA = HERE / "recolor.safetensors"
# Count and seed of the pairs that LORA was made from.
LEARNT = ((4000, 21), (4000, 22), (6000, 23))
SEED = 4000
STEPS, CFG_SCALE = 20, 2.5
LEAST_RECOLORED, MOST_CHANGED, MARGIN = 0.9, 10.0, 3  # part, levels of 255, pixels
# The text-to-image model becomes one that edits: files cannot tell. Pictures keep their 128 pixels.
EDITS = ("--model_hints", json.dumps({"*": {"variant": "qwen-image-edit"}}),
         "--edit_image_auto_resize", "false")
LAYERS = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj",
          "to_add_out", "img_mlp.net.0.proj", "img_mlp.net.2", "img_mod.1", "txt_mlp.net.0.proj",
          "txt_mlp.net.2", "txt_mod.1")
TRAINING = {
    "lora_base_model": "dit", "lora_rank": 16, "lora_target_modules": ",".join(LAYERS),
    "adam_beta2": 0.99, "lr_scheduler": "cosine", "lr_warmup_steps": 50, "batch_size": 16,
    "num_epochs": 1000, "weighting_scheme": "none", "caption_dropout_rate": 0.1, "dtype": "float32",
    "save_dtype": "bfloat16", "save_steps": 500, "threads": 1, "resume": "latest",
}
# The first run learns to look at the picture before, the others from pairs that are new to them.
RUNS = (TRAINING | {"learning_rate": 2e-3, "max_train_steps": 6000},
        TRAINING | {"learning_rate": 1.5e-3, "max_train_steps": 2000, "seed": 43},
        TRAINING | {"learning_rate": 1.5e-3, "max_train_steps": 3500, "seed": 44})


@dataclasses.dataclass(frozen=True)
class Pair:
    before: pictures.Scene
    after: pictures.Scene
    words: str

    def recolored(self):
        """The thing that has another colour, as it is after."""
        return next(after for before, after in zip(self.before.things, self.after.things)
                    if before != after)

    def said(self):
        return self.before.prompt(), self.words


def pairs(count, seed):
    for scenes, words in pictures.rows(count, seed, editing=True, wide=False):
        yield Pair(scenes["edit_image"], scenes["image"], words)


def unseen_pairs(count, seed=SEED):
    """Pairs of scenes and words that were not learnt, and of which no two are the same."""
    said = {pair.said() for learnt in LEARNT for pair in pairs(*learnt)}
    unseen = []
    for pair in pairs(10 * count, seed):
        if pair.said() not in said:
            said.add(pair.said())
            unseen.append(pair)
    return unseen[:count]


def train(program, model, data, folder, settings):
    """Returns the LoRA's file."""
    score.run(program, "train", model, *EDITS, "--dataset_base_path", data,
              "--dataset_metadata_path", data / "metadata.csv", "--data_file_keys",
              "image,edit_image", "--extra_inputs", "edit_image", "--output_path", folder,
              *(text for name, value in settings.items() for text in (f"--{name}", value)))
    return folder / f"step-{settings['max_train_steps']}.safetensors"


def edit(program, model, lora, asked, folder, seed=SEED):
    """Lets the program change a picture of each pair. Returns the pictures before and after."""
    before, jobs = [pictures.paint(pair.before) for pair in asked], []
    for number, (pair, picture) in enumerate(zip(asked, before)):
        path = folder / f"{number:03d}_before.png"
        Image.fromarray(picture).save(path)
        jobs.append({"prompt": pair.words, "edit_image": [str(path)], "seed": seed + number,
                     "output": str(folder / f"{number:03d}.png")})
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(job) + "\n" for job in jobs), encoding="utf-8")
    score.run(program, "generate", model, *EDITS, "--prompts_file", file, "--height",
              pictures.SIZE, "--width", pictures.SIZE, "--num_inference_steps", STEPS,
              "--cfg_scale", CFG_SCALE, "--quiet", *(("--lora", lora) if lora else ()))
    return before, [score.read(job["output"]) for job in jobs]


def mask_of(thing, margin=0):
    """Where a picture shows the thing, and `margin` pixels around it."""
    axis = np.arange(pictures.SIZE) + 0.5
    inside = pictures.covers(thing.shape, axis[None, :] - thing.x, axis[:, None] - thing.y,
                             thing.radius)
    for _ in range(margin):
        around = np.pad(inside, 1)
        inside = np.any([around[1:-1, 1:-1], around[:-2, 1:-1], around[2:, 1:-1], around[1:-1, :-2],
                         around[1:-1, 2:]], axis=0)
    return inside


def inside_of(mask):
    """The mask without the pixels at its edge."""
    around = np.pad(mask, 1)
    return np.all([mask, around[2:, 1:-1], around[:-2, 1:-1], around[1:-1, 2:], around[1:-1, :-2]],
                  axis=0)


def measure(pair, before, after, edges=False):
    """The part of the thing that has the asked colour, and how many levels change elsewhere."""
    thing = pair.recolored()
    mask = mask_of(thing) if edges else inside_of(mask_of(thing))
    nearest = classify.distances(after, classify.PALETTE).argmin(-1)[mask]
    changes = np.abs(after.astype(float) - before)[~mask_of(thing, MARGIN)]
    return float((nearest == classify.NAMES.index(thing.color)).mean()), float(changes.mean())


def judge(pair, before, after, edges=False):
    """What is right in a picture that was changed: a dict of bools."""
    part, change = measure(pair, before, after, edges)
    seen = classify.judge(classify.classify(after), pair.after)
    right = {"recolored": part >= LEAST_RECOLORED, "unchanged": change <= MOST_CHANGED,
             "same_scene": all(seen.values())}
    return right | {"right": all(right.values())}


def counts(asked, before, after, edges=False):
    """How many pictures have each thing right, and means of what is measured."""
    judged = [judge(*one, edges) for one in zip(asked, before, after)]
    right = sum(map(collections.Counter, judged), collections.Counter())
    part, change = np.mean([measure(*one, edges) for one in zip(asked, before, after)], axis=0)
    return {"count": len(asked), **{name: right[name] for name in judged[0]},
            "part_recolored": round(float(part), 3), "levels_elsewhere": round(float(change), 2)}


def sheet(asked, before, after):
    """Each picture before, above what was made of it and what was asked."""
    stacks = [Image.fromarray(np.concatenate(both)) for _, *both in zip(asked, before, after)]
    return plot.sheet(stacks, [pair.words for pair in asked]).quantize(256)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    trains = commands.add_parser("train")
    for name in ("pairs", "run"):
        trains.add_argument(name, type=pathlib.Path)
    scores = commands.add_parser("score")
    scores.add_argument("--lora", type=pathlib.Path, default=LORA)
    scores.add_argument("--count", type=int, default=100)
    scores.add_argument("--output", type=pathlib.Path, help="keeps the pictures in this folder")
    scores.add_argument("--edges", action="store_true", help="counts the pixels at a thing's edge")
    for command in (trains, scores):
        command.add_argument("--program", default="build/release/bin/atelier")
        command.add_argument("--model", type=pathlib.Path, default=HERE / "model")
    arguments = parser.parse_args()
    if arguments.command == "train":
        lora = {}
        for number, settings in enumerate(RUNS, 1):
            name = "pairs" + (str(number) if number > 1 else "")
            file = train(arguments.program, arguments.model, arguments.pairs / name,
                         arguments.run / str(number), settings | lora)
            lora = {"lora_checkpoint": file}
        print(file)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.output or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        asked, begin = unseen_pairs(arguments.count), time.time()
        before, after = edit(arguments.program, arguments.model, arguments.lora, asked, folder)
        seconds = round(time.time() - begin, 1)
        sheet(asked[:16], before, after).save(folder / "sheet.png", optimize=True)
        print(json.dumps({**counts(asked, before, after, arguments.edges), "seconds": seconds}))


if __name__ == "__main__":
    main()
