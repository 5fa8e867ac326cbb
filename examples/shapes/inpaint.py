#!/usr/bin/env python3
"""Lets the program make one of two things of a picture anew, and counts how often that is right.

    python3 inpaint.py [--count 100] [--output FOLDER]

The mask is a square around the thing, and the prompt says the whole picture with another thing
there. A picture is right when both is true:

- classify.py sees the things, shapes, places and ground that the prompt says;
- where the mask is black, the mean difference from the picture before is at most 10 of 255 levels.

Prints one JSON object, and with --output leaves the pictures, their masks and sheet.png: pictures
before, masks, and pictures after. Needs numpy and Pillow.
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
SEED = 6000
MARGIN, CELL = 3, 8  # pixels around the thing, and the side of a cell of the latents
MOST_CHANGED = 10.0  # levels of 255
SHOWN = 8  # pictures of the sheet


@dataclasses.dataclass(frozen=True)
class Task:
    before: pictures.Scene
    after: pictures.Scene  # one of the two things is another one

    def place(self):
        """The number of the thing that is made anew."""
        return next(number for number, both in enumerate(zip(self.before.things, self.after.things))
                    if both[0] != both[1])

    def mask(self):
        return mask_around(self.before.things[self.place()])


def mask_around(thing):
    """bool [SIZE, SIZE]: the cells that the thing touches."""
    low = [int(middle - thing.radius - MARGIN) // CELL * CELL for middle in (thing.x, thing.y)]
    high = [-int(-(middle + thing.radius + MARGIN) // CELL) * CELL
            for middle in (thing.x, thing.y)]
    mask = np.zeros((pictures.SIZE, pictures.SIZE), bool)
    mask[max(low[1], 0):high[1], max(low[0], 0):high[0]] = True
    return mask


def another(thing, others, ground, rng):
    """A thing of another colour and shape at the same place, unlike the others and the ground."""
    taken = {ground, thing.color, *(other.color for other in others)}
    colors = [name for name in pictures.COLORS if name not in taken]
    shapes = [shape for shape in pictures.SHAPES if shape != thing.shape]
    return dataclasses.replace(thing, color=colors[rng.integers(len(colors))],
                               shape=shapes[rng.integers(len(shapes))])


def tasks(count, seed=SEED):
    """Scenes of two things whose prompts, before and after, were not learnt."""
    learnt, found = score.learnt_prompts(), []
    for number, before in enumerate(score.unseen_scenes(4 * count, seed)):
        if len(before.things) < 2:
            continue
        rng = np.random.default_rng([seed, number, 2])
        things, place = list(before.things), rng.integers(2)
        others = [things[1 - place]]
        things[place] = another(things[place], others, before.ground, rng)
        after = dataclasses.replace(before, things=tuple(things))
        if after.prompt() not in learnt:
            found.append(Task(before, after))
    return found[:count]


def inpaint(program, model, asked, folder, seed=SEED):
    """Makes the things anew. Returns the pictures before and after."""
    before, jobs = [pictures.paint(task.before) for task in asked], []
    for number, (task, picture) in enumerate(zip(asked, before)):
        names = [str(folder / f"{number:03d}{end}.png") for end in ("_before", "_mask", "")]
        Image.fromarray(picture).save(names[0])
        Image.fromarray(task.mask()).save(names[1])
        jobs.append({"prompt": task.after.prompt(), "input_image": names[0],
                     "inpaint_mask": names[1], "seed": seed + number, "output": names[2]})
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(job) + "\n" for job in jobs), encoding="utf-8")
    score.run(program, "generate", model, "--prompts_file", file, "--height", pictures.SIZE,
              "--width", pictures.SIZE, "--denoising_strength", 1, "--num_inference_steps",
              score.STEPS, "--cfg_scale", score.CFG_SCALE, "--quiet")
    return before, [score.read(job["output"]) for job in jobs]


def levels_elsewhere(task, before, after):
    """How many levels of 255 change where the mask is black."""
    return float(np.abs(after.astype(float) - before)[~task.mask()].mean())


def judge(task, before, after):
    """What is right in a picture: a dict of bools."""
    seen = classify.judge(classify.classify(after), task.after)
    right = {"as_the_prompt": all(seen.values()),
             "unchanged_elsewhere": levels_elsewhere(task, before, after) <= MOST_CHANGED}
    return right | {"right": all(right.values())}


def counts(asked, before, after):
    """How many pictures have each thing right, and the mean of what changes elsewhere."""
    judged = [judge(*one) for one in zip(asked, before, after)]
    right = sum(map(collections.Counter, judged), collections.Counter())
    levels = np.mean([levels_elsewhere(*one) for one in zip(asked, before, after)])
    return {"count": len(asked), **{name: right[name] for name in judged[0]},
            "levels_elsewhere": round(float(levels), 2)}


def sheet(asked, before, after):
    """Each picture before, its mask, what was made of it, and the prompt."""
    masks = [np.repeat(np.uint8(255 * task.mask())[:, :, None], 3, axis=2) for task in asked]
    stacks = [Image.fromarray(np.concatenate(three)) for three in zip(before, masks, after)]
    return plot.sheet(stacks, [task.after.prompt() for task in asked]).quantize(128)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/release/bin/atelier")
    parser.add_argument("--model", type=pathlib.Path, default=HERE / "model")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--output", type=pathlib.Path, help="keeps the pictures in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.output or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        asked, begin = tasks(arguments.count), time.time()
        before, after = inpaint(arguments.program, arguments.model, asked, folder)
        seconds = round(time.time() - begin, 1)
        sheet(asked[:SHOWN], before, after).save(folder / "sheet.png", optimize=True)
        print(json.dumps({**counts(asked, before, after), "seconds": seconds}))


if __name__ == "__main__":
    main()
