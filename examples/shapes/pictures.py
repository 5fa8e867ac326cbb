#!/usr/bin/env python3
"""Draws the pictures of this example and says them in words.

    python3 pictures.py FOLDER --count 6000 --seed 1 [--style plain|hatched] [--edit] [--wide]

writes FOLDER/000000.png … and FOLDER/metadata.csv with the columns image and prompt. With --edit
there are two pictures a row, edit_image and image, and the prompt says what is made of the first.
Every picture is a function of seed, number and style. Needs numpy and Pillow.
"""

import argparse
import csv
import dataclasses
import pathlib

import numpy as np
from PIL import Image

SIZE = 128  # pixels
OVERSAMPLING = 3  # along each side, for smooth edges
COLORS = {
    "red": (214, 40, 40), "green": (46, 160, 67), "blue": (38, 84, 214), "yellow": (245, 205, 40),
    "purple": (142, 56, 190), "orange": (242, 124, 26), "white": (245, 245, 245),
    "black": (24, 24, 28)
}
SHAPES = ("circle", "square", "triangle", "star")
PATTERNS = ("", "striped ", "checkered ")
DARKER = (0.72, 20)  # factor and addition that make the second shade of a ground
HATCH_PERIOD, HATCH_WIDTH = 16, 7  # pixels along either axis, of hatched things' lines
RELATIONS = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}


@dataclasses.dataclass(frozen=True)
class Thing:
    color: str
    shape: str
    x: float  # of the middle, in pixels
    y: float
    radius: float


@dataclasses.dataclass(frozen=True)
class Scene:
    things: tuple  # one, or two: the first is `relation` the second
    relation: str  # empty for one thing
    ground: str
    pattern: str

    def prompt(self):
        """"a red circle left of an orange square on a striped green ground"."""
        first = self.things[0]
        words = with_article(f"{first.color} {first.shape}")
        if len(self.things) == 2:
            second = self.things[1]
            words += f" {self.relation} " + with_article(f"{second.color} {second.shape}")
        return words + " on " + with_article(f"{self.pattern}{self.ground} ground")


def with_article(words):
    return ("an " if words[0] in "aeiou" else "a ") + words


def lone_place(rng, wide):
    """x, y and the ends of the radius of a thing that is alone, in pixels."""
    if wide:
        radius = rng.uniform(24, 36)
        return *rng.uniform(radius + 6, SIZE - radius - 6, 2), (radius, radius)
    return *(SIZE / 2 + rng.uniform(-5, 5, 2)), (27, 33)


def pair_places(rng, along, wide):
    """x, y and the ends of the radius of two things, the first in the direction `along`."""
    middle = SIZE / 2 + (rng.uniform(-4, 4, 2) if wide else rng.uniform(-3, 3, 2))
    if wide:
        middle += along[::-1] * rng.uniform(-22, 22)
    for side in (1, -1):
        apart = rng.uniform(28, 33) if wide else rng.uniform(29, 32)
        yield *(middle + side * along * apart), (20, 25) if wide else (21.5, 24.5)


def scene(rng, wide=False):
    """A scene drawn at random by `rng`, numpy's Generator. Things are near the middle, or, in a
    wide one, anywhere that fits."""
    pick = lambda names: names[rng.integers(len(names))]
    ground = pick(list(COLORS))
    colors = [name for name in COLORS if name != ground]
    pattern = pick(PATTERNS)
    relation = ""
    if rng.random() < 0.4:
        places = [lone_place(rng, wide)]
    else:
        relation = pick(list(RELATIONS))
        places = pair_places(rng, np.array(RELATIONS[relation], float), wide)
    things = tuple(
        Thing(pick(colors), pick(SHAPES), x, y, low if low == high else rng.uniform(low, high))
        for x, y, (low, high) in places)
    return Scene(things, relation, ground, pattern)


def covers(shape, x, y, radius):
    """Where the shape of that radius around the origin covers points x, y."""
    x, y = x / radius, y / radius
    if shape == "circle":
        return x * x + y * y < 1
    if shape == "square":
        return np.maximum(abs(x), abs(y)) < 0.86
    if shape == "triangle":
        return (y < 0.7) & (y > -0.9) & (abs(x) < (y + 0.9) * 0.6)
    angle = np.arctan2(x, -y)
    point = abs((angle * 5 / (2 * np.pi) + 0.5) % 1 - 0.5) * 2  # 0 at a point, 1 between two
    return np.hypot(x, y) < 1.08 - 0.62 * point


def is_dark(pattern, x, y):
    """Where the ground has its darker shade."""
    if pattern == "striped ":
        return (y + 0 * x) % 16 < 8
    if pattern == "checkered ":
        return (x // 16 + y // 16) % 2 < 1
    return np.zeros(np.broadcast_shapes(np.shape(x), np.shape(y)), bool)


def paint(scene, style="plain"):
    """The picture of a scene, uint8 [SIZE, SIZE, 3]. "hatched" things have dark diagonal lines."""
    axis = (np.arange(SIZE * OVERSAMPLING) + 0.5) / OVERSAMPLING
    x, y = axis[None, :], axis[:, None]
    ground = np.array(COLORS[scene.ground], float)
    picture = np.broadcast_to(ground, (axis.size, axis.size, 3)).copy()
    picture[is_dark(scene.pattern, x, y)] = ground * DARKER[0] + DARKER[1]
    for thing in scene.things:
        inside = covers(thing.shape, x - thing.x, y - thing.y, thing.radius)
        picture[inside] = COLORS[thing.color]
        if style == "hatched":
            color = np.array(COLORS[thing.color], float)
            line = 235 - 0.3 * color if color.mean() < 90 else color * 0.35
            picture[inside & ((x + y) % HATCH_PERIOD < HATCH_WIDTH)] = line
    return np.round(smaller(picture)).astype(np.uint8)


def paint_things(scene):
    """The things of a scene over nothing, uint8 [SIZE, SIZE, 4], black where nothing is seen."""
    axis = (np.arange(SIZE * OVERSAMPLING) + 0.5) / OVERSAMPLING
    layer = np.zeros((axis.size, axis.size, 4))
    for thing in scene.things:
        inside = covers(thing.shape, axis[None, :] - thing.x, axis[:, None] - thing.y, thing.radius)
        layer[inside] = (*COLORS[thing.color], 255)
    layer = smaller(layer)
    layer[..., :3] *= 255 / np.maximum(layer[..., 3:], 1)  # the color of what is seen of a pixel
    return np.round(layer.clip(0, 255)).astype(np.uint8)


def smaller(picture):
    """Means of OVERSAMPLING x OVERSAMPLING pixels."""
    return picture.reshape(SIZE, OVERSAMPLING, SIZE, OVERSAMPLING, -1).mean((1, 3))


def numbered_scene(seed, number, wide=False):
    return scene(np.random.default_rng([seed, number]), wide)


def edit(before, seed, number):
    """A scene with one thing in another colour, and the words that ask for it."""
    rng = np.random.default_rng([seed, number, 1])
    place = rng.integers(len(before.things))
    thing = before.things[place]
    taken = {before.ground, *(other.color for other in before.things)}
    colors = [name for name in COLORS if name not in taken]
    color = colors[rng.integers(len(colors))]
    things = list(before.things)
    things[place] = dataclasses.replace(thing, color=color)
    words = f"make the {thing.color} {thing.shape} {color}"
    return dataclasses.replace(before, things=tuple(things)), words


def rows(count, seed, editing, wide):
    """Of each row: the columns with pictures, and the prompt."""
    number = written = 0
    while written < count:
        drawn = numbered_scene(seed, number, wide)
        number += 1
        if not editing:
            yield {"image": drawn}, drawn.prompt()
        else:
            kinds = {(thing.color, thing.shape) for thing in drawn.things}
            if len(kinds) < len(drawn.things):
                continue  # words could not tell the two apart
            after, words = edit(drawn, seed, number)
            yield {"edit_image": drawn, "image": after}, words
        written += 1


def write(folder, count, seed, style="plain", editing=False, wide=False):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "metadata.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        for number, (scenes, prompt) in enumerate(rows(count, seed, editing, wide)):
            if number == 0:
                table.writerow([*scenes, "prompt"])
            names = []
            for column, drawn in scenes.items():
                suffix = "_before" if column == "edit_image" else ""
                names.append(f"{number:06d}{suffix}.png")
                Image.fromarray(paint(drawn, style)).save(folder / names[-1])
            table.writerow([*names, prompt])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--style", choices=("plain", "hatched"), default="plain")
    parser.add_argument("--edit", action="store_true", help="pairs of pictures, one recoloured")
    parser.add_argument("--wide", action="store_true", help="things anywhere, and of more sizes")
    arguments = parser.parse_args()
    write(arguments.folder, arguments.count, arguments.seed, arguments.style, arguments.edit,
          arguments.wide)


if __name__ == "__main__":
    main()
