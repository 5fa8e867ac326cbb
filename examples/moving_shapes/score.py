#!/usr/bin/env python3
"""Lets `atelier generate` make clips of prompts that were not learnt, and counts what is right.

    python3 score.py --program build/release/bin/atelier --model examples/moving_shapes/model

prints one JSON object: the part of the clips in which the thing's colour, its shape, where it goes
and the ground are those of the prompt; "all" is the first three together. Needs numpy and Pillow.
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import tempfile
import time

import clips
import judge

STEPS, CFG_SCALE, SEED = 20, 4.0, 1000
NOTHING = " "  # an empty negative prompt is the published one, whose words this model does not know


def generate(program, model, prompts, folder, steps=STEPS, cfg_scale=CFG_SCALE, seed=SEED):
    """Makes a clip of each prompt with one run of the program; returns the clips' paths."""
    paths = [folder / f"{number:03d}.gif" for number in range(len(prompts))]
    jobs = "".join(
        json.dumps({"prompt": prompt, "seed": seed + number, "output": str(path)}) + "\n"
        for number, (prompt, path) in enumerate(zip(prompts, paths)))
    file = folder / "prompts.jsonl"
    file.write_text(jobs, encoding="utf-8")
    command = [program, "generate", "--plugin", "wan", "--model_paths", json.dumps([str(model)]),
               "--prompts_file", file, "--height", clips.SIZE, "--width", clips.SIZE,
               "--num_frames", clips.FRAMES, "--num_inference_steps", steps,
               "--negative_prompt", NOTHING, "--cfg_scale", cfg_scale, "--quiet"]
    # Threads that wait for one another give the core away, so that other work delays them little.
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL,
                   env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ})
    return paths


def rates(scenes, paths):
    """Of each thing that judge.judge() looks at, the part of the clips that have it right."""
    right = collections.Counter()
    for scene, path in zip(scenes, paths):
        right.update(judge.judge(judge.classify(judge.read(path)), scene))
    return {name: right[name] / len(scenes) for name in sorted(right)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/release/bin/atelier")
    parser.add_argument("--model", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent / "model")
    parser.add_argument("--count", type=int, default=clips.UNSEEN)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--cfg_scale", type=float, default=CFG_SCALE)
    parser.add_argument("--output", type=pathlib.Path, help="keeps the clips in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.output or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        _, unseen = clips.split_scenes()
        scenes = unseen[:arguments.count]
        begin = time.time()
        paths = generate(arguments.program, arguments.model, [scene.prompt() for scene in scenes],
                         folder, arguments.steps, arguments.cfg_scale, arguments.seed)
        seconds = time.time() - begin
        print(json.dumps({"count": len(scenes), "seconds": round(seconds, 1),
                          **rates(scenes, paths)}))


if __name__ == "__main__":
    main()
