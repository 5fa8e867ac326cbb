#!/usr/bin/env python3
"""Says what is in a picture: things with colour, shape and place, and the ground.

    python3 classify.py PICTURE...

prints a JSON object for each. Nothing is learnt: things are what does not have a colour of the
ground, and their shape is the one that pictures.py would cover them with best. Needs numpy and
Pillow.
"""

import dataclasses
import json
import sys

import numpy as np
from PIL import Image

import pictures

NAMES = list(pictures.COLORS)
PALETTE = np.array([pictures.COLORS[name] for name in NAMES], np.float32)
DARKER = PALETTE * pictures.DARKER[0] + pictures.DARKER[1]
SMALLEST = 150  # pixels of a thing
FRAME = 6  # pixels from the edge in which the ground is looked for
LEAST_COVERED = 0.7  # overlap of a thing with its shape, over their union

AXIS = np.arange(pictures.SIZE) + 0.5


@dataclasses.dataclass(frozen=True)
class Found:
    """A thing; shape is "" when nothing fits."""
    color: str
    shape: str
    x: float  # of the middle, in pixels
    y: float
    overlap: float  # with the shape, over their union


@dataclasses.dataclass(frozen=True)
class Seen:
    things: tuple  # the largest first
    ground: str
    pattern: str


def distances(picture, colors):
    """Squared distance of each pixel to each colour, [H, W, colours]."""
    picture = picture.astype(np.float32)
    return (picture**2).sum(-1, keepdims=True) - 2 * picture @ colors.T + (colors**2).sum(-1)


def ground_color(picture):
    frame = np.ones(picture.shape[:2], bool)
    frame[FRAME:-FRAME, FRAME:-FRAME] = False
    nearest = distances(picture, np.concatenate([PALETTE, DARKER])).argmin(-1)[frame]
    return int(np.bincount(nearest % len(NAMES), minlength=len(NAMES)).argmax())


def components(mask):
    """Masks of the parts of `mask` that hang together, the largest first."""
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        padded = np.pad(labels, 1)
        highest = np.max([labels, padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2],
                          padded[1:-1, 2:]], axis=0) * mask
        if (highest == labels).all():
            break
        # A label is also the place of a pixel; what that one has been told is told on.
        labels = np.where(mask, highest.ravel()[highest - 1], 0)
    parts = [labels == label for label in np.unique(labels[mask])]
    return sorted(parts, key=lambda part: -part.sum())


def unit_moments(shape):
    """Area and middle of mass, downwards, of the shape of radius 1."""
    axis = np.linspace(-1.2, 1.2, 601)
    inside = pictures.covers(shape, axis[None, :], axis[:, None], 1.0)
    return inside.sum() * (axis[1] - axis[0])**2, (inside * axis[:, None]).sum() / inside.sum()


MOMENTS = {shape: unit_moments(shape) for shape in pictures.SHAPES}


def fit(mask, columns, rows, shape):
    """The best overlap of the shape with a mask, whose pixels are at those places: (overlap, x, y).
    """
    area, low = MOMENTS[shape]
    count = mask.sum()
    radius = np.sqrt(count / area)
    x = (mask * columns).sum() / count
    y = (mask * rows).sum() / count - low * radius
    best = (0.0, x, y)
    for down in (-1.0, 0.0, 1.0):
        inside = pictures.covers(shape, columns - x, rows - (y + down), radius)
        overlap = (inside & mask).sum() / (inside | mask).sum()
        best = max(best, (float(overlap), float(x), float(y + down)))
    return best


def describe(mask, nearest):
    # The surroundings of the thing, with room for shapes that stand out of it.
    middle_y, middle_x = (int(np.flatnonzero(mask.any(axis)).mean()) for axis in (1, 0))
    reach = int(max(mask.any(0).sum(), mask.any(1).sum()) * 0.75) + 2
    part = (slice(max(0, middle_y - reach), middle_y + reach),
            slice(max(0, middle_x - reach), middle_x + reach))
    columns, rows = AXIS[None, part[1]], AXIS[part[0], None]
    fits = {shape: fit(mask[part], columns, rows, shape) for shape in pictures.SHAPES}
    shape = max(fits, key=fits.get)
    overlap, x, y = fits[shape]
    color = NAMES[np.bincount(nearest[mask]).argmax()]
    return Found(color, shape if overlap >= LEAST_COVERED else "", x, y, overlap)


def ground_pattern(picture, ground, free):
    """Which pattern the pixels in `free` have, by which are nearer to the darker shade."""
    shades = distances(picture, np.stack([PALETTE[ground], DARKER[ground]]))
    dark = shades[..., 1] < shades[..., 0]
    x, y = AXIS[None, :], AXIS[:, None]
    return max(pictures.PATTERNS,
               key=lambda pattern: (dark == pictures.is_dark(pattern, x, y))[free].mean())


def classify(picture):
    """What is seen in a picture, uint8 [128, 128, 3]."""
    ground = ground_color(picture)
    to_things = distances(picture, PALETTE)
    to_things[..., ground] = np.inf
    to_ground = distances(picture, np.stack([PALETTE[ground], DARKER[ground]])).min(-1)
    mask = to_things.min(-1) < to_ground
    nearest = to_things.argmin(-1)
    things = [describe(part, nearest) for part in components(mask) if part.sum() >= SMALLEST]
    return Seen(tuple(things), NAMES[ground], ground_pattern(picture, ground, ~mask))


def hatching(picture):
    """How strongly a picture, uint8 [128, 128, 3], has the diagonal lines of "hatched" things:
    the amplitude of their wave in its brightness, 0 to about 20. No ground has that wave."""
    wave = np.exp(2j * np.pi * (AXIS[None, :] + AXIS[:, None]) / pictures.HATCH_PERIOD)
    brightness = picture.astype(float).mean(-1)
    return float(abs(((brightness - brightness.mean()) * wave).mean()))


def is_placed(first, second, relation):
    along = np.array(pictures.RELATIONS[relation], float)
    offset = np.array([first.x - second.x, first.y - second.y])
    return offset @ along > abs(offset @ along[::-1])


def judge(seen, scene):
    """What of a scene is right in a picture of it: a dict of bools."""
    wanted = [(thing.color, thing.shape) for thing in scene.things]
    there = [(thing.color, thing.shape) for thing in seen.things]
    right = {
        "colors": sorted(color for color, _ in wanted) == sorted(color for color, _ in there),
        "shapes": sorted(shape for _, shape in wanted) == sorted(shape for _, shape in there),
        "things": sorted(wanted) == sorted(there),
        "ground": (seen.ground, seen.pattern) == (scene.ground, scene.pattern),
    }
    placed = right["things"]
    if placed and len(wanted) == 2:
        pairs = [seen.things, seen.things[::-1]]
        placed = any(is_placed(first, second, scene.relation) for first, second in pairs
                     if (first.color, first.shape) == wanted[0])
    right["positions"] = placed
    return right


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    for path in sys.argv[1:]:
        picture = np.asarray(Image.open(path).convert("RGB"))
        print(json.dumps({"picture": path, **dataclasses.asdict(classify(picture))}))


if __name__ == "__main__":
    main()
