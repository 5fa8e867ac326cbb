#!/usr/bin/env python3
"""Draws the clips of this example and says them in words.

    python3 clips.py FOLDER --count 4000 --seed 1

writes FOLDER/00000.gif … and FOLDER/metadata.csv with the columns video and prompt. One thing of
plain colour crosses a plain ground in a straight line. Every clip is a function of seed and number,
and none has a prompt that score.py draws. Needs numpy and Pillow.
"""

import argparse
import csv
import dataclasses
import pathlib
import sys

import numpy as np
from PIL import Image

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "shapes"))
import pictures  # noqa: E402

SIZE, FRAMES = 64, 17  # pixels of a side; frames
FRAME_TIME = 60  # milliseconds
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
UNSEEN, UNSEEN_SEED = 200, 1000  # prompts that are never learnt


@dataclasses.dataclass(frozen=True)
class Scene:
    color: str
    shape: str
    direction: str
    ground: str

    def prompt(self):
        """"a red circle moves right on a white ground"."""
        thing = pictures.with_article(f"{self.color} {self.shape}")
        return f"{thing} moves {self.direction} on {pictures.with_article(self.ground)} ground"


@dataclasses.dataclass(frozen=True)
class Path:
    """Where the thing is: at `start` in the first frame, at `end` in the last one, in pixels."""
    start: np.ndarray
    end: np.ndarray
    radius: float


def every_scene():
    return [Scene(color, shape, direction, ground) for color in pictures.COLORS
            for shape in pictures.SHAPES for direction in DIRECTIONS for ground in pictures.COLORS
            if ground != color]


def split_scenes():
    """The scenes that are learnt, and those that are not."""
    scenes = every_scene()
    order = np.random.default_rng(UNSEEN_SEED).permutation(len(scenes))
    return [scenes[i] for i in order[UNSEEN:]], [scenes[i] for i in order[:UNSEEN]]


def path(rng, direction, aside=1, reach=(14, 15), radius=(13.5, 14.5)):
    """A path through the middle, up to `aside` pixels beside it, of lengths and radii between two."""
    along = np.array(DIRECTIONS[direction], float)
    middle = SIZE / 2 + rng.uniform(-aside, aside, 2)
    half = along * rng.uniform(*reach)
    return Path(middle - half, middle + half, rng.uniform(*radius))


def paint(scene, path, times=np.linspace(0, 1, FRAMES)):
    """The clip, uint8 [FRAMES, SIZE, SIZE, 3], or its frames at other times from 0 to 1."""
    fine = pictures.OVERSAMPLING
    axis = (np.arange(SIZE * fine) + 0.5) / fine
    frames = []
    for t in times:
        x, y = path.start + t * (path.end - path.start)
        inside = pictures.covers(scene.shape, axis[None, :] - x, axis[:, None] - y, path.radius)
        part = inside.reshape(SIZE, fine, SIZE, fine).mean((1, 3))[..., None]
        color, ground = (np.array(pictures.COLORS[name], float)
                         for name in (scene.color, scene.ground))
        frames.append(np.round(ground + part * (color - ground)).astype(np.uint8))
    return np.stack(frames)


def numbered_clip(seed, number):
    """A scene that is learnt, and a clip of it."""
    rng = np.random.default_rng([seed, number])
    learnt, _ = split_scenes()
    scene = learnt[rng.integers(len(learnt))]
    return scene, paint(scene, path(rng, scene.direction))


def save(clip, file):
    """A GIF with the very colours of the clip, which are few."""
    frames = [Image.fromarray(frame).quantize(256, dither=Image.Dither.NONE) for frame in clip]
    frames[0].save(file, save_all=True, append_images=frames[1:], duration=FRAME_TIME, loop=0)


def write(folder, count, seed):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "metadata.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["video", "prompt"])
        for number in range(count):
            scene, clip = numbered_clip(seed, number)
            save(clip, folder / f"{number:05d}.gif")
            table.writerow([f"{number:05d}.gif", scene.prompt()])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    write(arguments.folder, arguments.count, arguments.seed)


if __name__ == "__main__":
    main()
