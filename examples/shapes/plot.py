#!/usr/bin/env python3
"""Draws the losses of runs as SVG, or pictures with their prompts as one PNG.

    python3 plot.py loss.svg RUN/loss.csv
    python3 plot.py sheet.png FOLDER [--count 32]

FOLDER holds 000.png … and prompts.jsonl, as score.py --output leaves them. The sheet needs numpy
and Pillow.
"""

import argparse
import csv
import json
import math
import pathlib
import textwrap

WIDTH, HEIGHT, MARGIN = 640, 320, 48  # of the curve, in pixels
POINTS = 200
COLUMNS, CAPTION = 8, 48  # of a sheet; height of a caption in pixels


def read_losses(path):
    with open(path, newline="", encoding="utf-8") as file:
        return [(int(row["step"]), float(row["value"])) for row in csv.DictReader(file)
                if row["key"] == "train/loss"]


def averaged(losses):
    """About POINTS points, each the mean of its neighbours."""
    length = max(1, len(losses) // POINTS)
    parts = [losses[at:at + length] for at in range(0, len(losses), length)]
    return [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in parts]


def curve(losses):
    """The SVG of a curve, its loss axis logarithmic."""
    points = averaged(losses)
    last = points[-1][0]
    low = math.floor(10 * min(loss for _, loss in points)) / 10
    high = math.ceil(10 * max(loss for _, loss in points)) / 10
    scale = (HEIGHT - 2 * MARGIN) / math.log(high / max(low, 0.1))
    x = lambda step: MARGIN + (WIDTH - 2 * MARGIN) * step / last
    y = lambda loss: HEIGHT - MARGIN - scale * math.log(loss / max(low, 0.1))
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0):
        if max(low, 0.1) <= tick <= high:
            lines.append(f'<path d="M{MARGIN} {y(tick):.1f}H{WIDTH - MARGIN}" stroke="#ddd"/>'
                         f'<text x="{MARGIN - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for part in range(5):
        step = round(last * part / 4)
        lines.append(f'<text x="{x(step):.1f}" y="{HEIGHT - MARGIN + 18}" '
                     f'text-anchor="middle">{step}</text>')
    path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)
    lines += [f'<polyline points="{path}" fill="none" stroke="#2654d6" stroke-width="1.5"/>',
              f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">step</text>',
              f'<text x="{MARGIN}" y="{MARGIN - 16}">loss</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def sheet(pictures, captions):
    """Pictures with their captions below them, up to COLUMNS in a row."""
    from PIL import Image, ImageDraw
    width, height = pictures[0].size
    rows, columns = math.ceil(len(pictures) / COLUMNS), min(len(pictures), COLUMNS)
    result = Image.new("RGB", (columns * (width + 8), rows * (height + CAPTION + 8)), "white")
    pen = ImageDraw.Draw(result)
    for number, (picture, caption) in enumerate(zip(pictures, captions)):
        left = (number % COLUMNS) * (width + 8) + 4
        top = (number // COLUMNS) * (height + CAPTION + 8) + 4
        result.paste(picture, (left, top))
        pen.multiline_text((left, top + height + 2), "\n".join(textwrap.wrap(caption, 22)),
                           fill="black", spacing=1)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=32)
    arguments = parser.parse_args()
    if arguments.output.suffix == ".svg":
        arguments.output.write_text(curve(read_losses(arguments.source)), encoding="utf-8")
        return
    from PIL import Image
    paths = sorted(arguments.source.glob("*.png"))[:arguments.count]
    lines = (arguments.source / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    captions = [json.loads(line)["prompt"] for line in lines]
    image = sheet([Image.open(path) for path in paths], captions)
    image.quantize(256).save(arguments.output, optimize=True)


if __name__ == "__main__":
    main()
