#!/usr/bin/env python3
"""Lets `atelier generate` draw prompts that were not learnt, and counts what is right.

    python3 score.py --program build/release/bin/atelier --model examples/shapes/model [--count 200]

prints one JSON object: the part of the pictures in which the colours, the shapes, both of each
thing, the positions and the ground are those of the prompt. Needs numpy and Pillow.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import tempfile
import time

import numpy as np
from PIL import Image

import classify
import pictures

LEARNT = ((1, 8000, True), (1, 6000, False))  # seed, count and wideness of training sets
SEED = 1000
STEPS, CFG_SCALE = 20, 4.0


def learnt_prompts():
    return {pictures.numbered_scene(seed, number, wide).prompt()
            for seed, count, wide in LEARNT for number in range(count)}


def unseen_scenes(count, seed=SEED):
    """Scenes whose prompts are not among those that were learnt."""
    learnt = learnt_prompts()
    scenes, number = [], 0
    while len(scenes) < count:
        scene = pictures.numbered_scene(seed, number)
        number += 1
        if scene.prompt() not in learnt:
            learnt.add(scene.prompt())
            scenes.append(scene)
    return scenes


def run(program, command, model, *arguments):
    """Runs a command of the program with a model of this example: its folder, or a list of paths."""
    # Threads that wait for one another give the core away, so that other work delays them little.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    paths = model if isinstance(model, list) else [model]
    words = [program, command, "--plugin", "qwen_image", "--model_paths",
             json.dumps([str(path) for path in paths]), *map(str, arguments)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment)
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the program is interrupted as well, and saves what it has
        process.wait()
        raise
    if code != 0:
        raise subprocess.CalledProcessError(code, words)


def generate(program, model, prompts, folder, steps=STEPS, cfg_scale=CFG_SCALE, seed=SEED,
             extra=()):
    """Draws prompts with one run of the program; returns the pictures' paths."""
    paths = [folder / f"{number:03d}.png" for number in range(len(prompts))]
    jobs = "".join(
        json.dumps({"prompt": prompt, "seed": seed + number, "output": str(path)}) + "\n"
        for number, (prompt, path) in enumerate(zip(prompts, paths)))
    file = folder / "prompts.jsonl"
    file.write_text(jobs, encoding="utf-8")
    run(program, "generate", model, "--prompts_file", file, "--height", pictures.SIZE, "--width",
        pictures.SIZE, "--num_inference_steps", steps, "--cfg_scale", cfg_scale, "--quiet", *extra)
    return paths


def read(path):
    return np.asarray(Image.open(path).convert("RGB"))


def rates(scenes, paths):
    """Of each thing that classify.judge() looks at, the part of the pictures that have it right."""
    right = collections.Counter()
    for scene, path in zip(scenes, paths):
        right.update(classify.judge(classify.classify(read(path)), scene))
    return {name: right[name] / len(scenes) for name in sorted(right)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/release/bin/atelier")
    parser.add_argument("--model", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent / "model")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--cfg_scale", type=float, default=CFG_SCALE)
    parser.add_argument("--output", type=pathlib.Path, help="keeps the pictures in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.output or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        scenes = unseen_scenes(arguments.count, arguments.seed)
        begin = time.time()
        paths = generate(arguments.program, arguments.model, [scene.prompt() for scene in scenes],
                         folder, arguments.steps, arguments.cfg_scale, arguments.seed)
        seconds = time.time() - begin
        print(json.dumps({"count": len(scenes), "seconds": round(seconds, 1),
                          **rates(scenes, paths)}))


if __name__ == "__main__":
    main()
