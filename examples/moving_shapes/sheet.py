#!/usr/bin/env python3
"""Puts clips with their prompts into one picture.

    python3 sheet.py sheet.png FOLDER [--count 16]
    python3 sheet.py clips.gif FOLDER [--count 24]

FOLDER holds 000.gif … and prompts.jsonl, as score.py --output leaves them. A PNG has a row for each clip,
and every fourth frame in it; a GIF plays the clips side by side. Needs numpy and Pillow.
"""

import argparse
import json
import math
import pathlib
import textwrap

import numpy as np
from PIL import Image, ImageDraw

import clips
import judge

GAP, CAPTION = 4, 40  # pixels between things, and of a caption's height
COLUMNS = 6  # of the clips in a GIF
STRIPS = 2  # clips in a row of a PNG


def grid(tiles, captions, columns):
    """Pictures of one size, uint8 [height, width, 3], with their captions below them."""
    height, width = tiles[0].shape[:2]
    rows = math.ceil(len(tiles) / columns)
    result = Image.new("RGB", (columns * (width + GAP), rows * (height + CAPTION)), "white")
    pen = ImageDraw.Draw(result)
    for number, (tile, caption) in enumerate(zip(tiles, captions)):
        left, top = number % columns * (width + GAP), number // columns * (height + CAPTION)
        result.paste(Image.fromarray(tile), (left, top))
        pen.multiline_text((left, top + height + 1), "\n".join(textwrap.wrap(caption, width // 6)),
                           fill="black", spacing=0, font_size=9)
    return result


def strip(clip):
    """Every fourth frame, side by side."""
    return np.concatenate([np.pad(frame, ((0, 0), (0, GAP), (0, 0)), constant_values=255)
                           for frame in clip[::4]], 1)


def save_playing(path, read, captions):
    frames = [grid([clip[number] for clip in read], captions, COLUMNS).quantize(
        64, dither=Image.Dither.NONE) for number in range(clips.FRAMES)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=2 * clips.FRAME_TIME,
                   loop=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=24)
    arguments = parser.parse_args()
    read = [judge.read(path) for path in sorted(arguments.source.glob("*.gif"))[:arguments.count]]
    lines = (arguments.source / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    captions = [json.loads(line)["prompt"] for line in lines]
    if arguments.output.suffix == ".gif":
        save_playing(arguments.output, read, captions)
    else:
        grid([strip(clip) for clip in read], captions, STRIPS).quantize(256).save(
            arguments.output, optimize=True)


if __name__ == "__main__":
    main()
