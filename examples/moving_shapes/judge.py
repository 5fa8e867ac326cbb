#!/usr/bin/env python3
"""Says what is in a clip: the thing's colour and shape, where it goes, and the ground.

    python3 judge.py CLIP.gif...

prints a JSON object for each. Nothing is learnt: see ../shapes/classify.py, whose measure of a
shape this is. Needs numpy and Pillow.
"""

import collections
import dataclasses
import json
import sys

import numpy as np
from PIL import Image, ImageSequence

import clips

import classify as still  # ../shapes/classify.py, which clips.py has made known

EDGE = 3  # pixels from the edge in which the ground is looked for
SMALLEST = 60  # pixels of a thing
LEAST_MOVED = 12  # pixels from the first frame to the last
LEAST_STRAIGHT = 3  # times as far along as across
LEAST_FRAMES = 0.8  # part of the frames in which the thing is seen

AXIS = np.arange(clips.SIZE) + 0.5


@dataclasses.dataclass(frozen=True)
class Seen:
    """What is not seen is ""."""
    color: str
    shape: str
    direction: str
    ground: str


def ground_color(clip):
    edge = np.ones(clip.shape[1:3], bool)
    edge[EDGE:-EDGE, EDGE:-EDGE] = False
    nearest = still.distances(clip, still.PALETTE).argmin(-1)[:, edge]
    return int(np.bincount(nearest.ravel(), minlength=len(still.NAMES)).argmax())


def thing(frame, ground):
    """Colour, shape and place of the largest thing in a frame; None where there is none."""
    nearest = still.distances(frame, still.PALETTE).argmin(-1)
    parts = still.components(nearest != ground)
    if not parts or parts[0].sum() < SMALLEST:
        return None
    mask = parts[0]
    fits = {shape: still.fit(mask, AXIS[None, :], AXIS[:, None], shape)
            for shape in clips.pictures.SHAPES}
    shape = max(fits, key=fits.get)
    overlap, x, y = fits[shape]
    color = still.NAMES[np.bincount(nearest[mask]).argmax()]
    return color, shape if overlap >= still.LEAST_COVERED else "", np.array([x, y])


def direction(places):
    """Where a line through the places goes, by frames; "" when it is short or bent."""
    frames = np.array([number for number, _ in places], float)
    points = np.array([place for _, place in places])
    slope = np.polyfit(frames, points, 1)[0] * (clips.FRAMES - 1)
    best = max(clips.DIRECTIONS, key=lambda name: slope @ clips.DIRECTIONS[name])
    along = np.array(clips.DIRECTIONS[best], float)
    far, aside = slope @ along, abs(slope @ along[::-1])
    return best if far >= LEAST_MOVED and far >= LEAST_STRAIGHT * aside else ""


def classify(clip):
    """What is seen in a clip, uint8 [T, SIZE, SIZE, 3]."""
    ground = ground_color(clip)
    seen = [(number, thing(frame, ground)) for number, frame in enumerate(clip)]
    seen = [(number, what) for number, what in seen if what]
    if len(seen) < LEAST_FRAMES * len(clip):
        return Seen("", "", "", still.NAMES[ground])
    most = lambda values: collections.Counter(values).most_common(1)[0][0]
    return Seen(most(what[0] for _, what in seen), most(what[1] for _, what in seen),
                direction([(number, what[2]) for number, what in seen]), still.NAMES[ground])


def read(file):
    """The frames of a GIF or an animated WebP."""
    with Image.open(file) as image:
        return np.stack([np.asarray(frame.convert("RGB"))
                         for frame in ImageSequence.Iterator(image)])


def judge(seen, scene):
    """What of a scene is right in a clip of it: a dict of bools."""
    right = {name: getattr(seen, name) == getattr(scene, name)
             for name in ("color", "shape", "direction", "ground")}
    return {**right, "all": right["color"] and right["shape"] and right["direction"]}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    for file in sys.argv[1:]:
        print(json.dumps({"clip": file, **dataclasses.asdict(classify(read(file)))}))


if __name__ == "__main__":
    main()
