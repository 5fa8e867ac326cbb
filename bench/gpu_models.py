#!/usr/bin/env python3
"""Times and memory of published models with random weights, for tools/gpu: one JSON object for each row.

    bench/gpu_models.py [--device cpu] --list
    bench/gpu_models.py [--device cpu] --row NAME

With --device cpu models are tiny, and the times mean nothing.
"""

import argparse
import csv
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import diffusers_compare as base
import random_models
from families import FAMILIES

TEXT_TOKENS, RUNS, TURNS, RANK, LORAS = 64, 5, 2, 32, 4
# By the name of a row: flags of atelier-bench.
PLACES = {
    "resident": (),
    "fp8": ("--storage", "dit=fp8"),
    "w8a8": ("--storage", "dit=fp8", "--compute", "dit=w8a8"),
    "from the host": ("--offload", "dit=host"),
    "half from the host": ("--offload", "dit=host", "--resident_blocks", "HALF"),
}
SIZES = {"512x512": 64, "1024x1024": 128, "1328x1328": 166}  # and the side of their latents
TRAINED_STEPS, SKIPPED_STEPS = 8, 3
# The largest difference of outputs in bfloat16, as in diffusers_compare.py.
AGREEMENT = base.AGREEMENT["bfloat16"]


class Models:
    """Where models of a device are, made once."""

    def __init__(self, device, work):
        self.device, self.work, self.is_published = device, work, device != "cpu"

    def folder(self, family):
        name = f"{family.plugin}_{'published' if self.is_published else 'tiny'}"
        return base.prepare(self.work, name,
                            lambda path: random_models.write_model(path, family, self.is_published))

    def side(self, size):
        return SIZES[size] if self.is_published else SIZES[size] // 16 * 2

    def text_width(self, family):
        config = json.loads((self.folder(family) / "transformer/config.json").read_text())
        return config[family.text_width_name]

    def blocks(self, family):
        return json.loads((self.folder(family) / "transformer/config.json").read_text())["num_layers"]


class DoesNotFit(Exception):
    """In the program's words; a finding of a row, not a fault."""


def call(command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                            env=dict(os.environ, HF_HUB_OFFLINE="1"))
    if re.search(r"\[(PLAN_DOES_NOT_FIT|OUT_OF_MEMORY)\]", result.stderr):
        raise DoesNotFit(result.stderr.strip().splitlines()[-1])
    if result.returncode != 0:
        raise SystemExit(f"exit code {result.returncode}: {' '.join(map(str, command))}\n{result.stderr[-2500:]}")
    return result


# --- steps with guidance ---


def write_inputs(models, family, folder):
    """By size, a file of what both sides are given."""
    import torch
    from safetensors.torch import save_file
    files = {}
    for size in SIZES:
        generator, side = torch.Generator().manual_seed(3), models.side(size)
        width = models.text_width(family)
        files[size] = folder / f"{size}.safetensors"
        save_file({
            "latents": torch.randn((1, 16, 1, side, side), generator=generator),
            "sigma": torch.full((1,), 0.75),
            "prompt_embeds": torch.randn((1, TEXT_TOKENS, width), generator=generator),
            "negative_prompt_embeds": torch.randn((1, TEXT_TOKENS, width), generator=generator)
        }, files[size])
    return files


def lora_paths(folder, count):
    return [folder / f"lora{number}.safetensors" for number in range(count)]


def reference_steps(device, family, folder, work):
    """diffusers' side, in a process of its own: outputs to files, and times by row."""
    import torch
    from safetensors.torch import load_file, save_file

    import lora_compare
    model = random_models.diffusers_model(family, folder, device, torch.bfloat16)
    paths = lora_paths(work, LORAS)
    for seed, path in enumerate(paths):
        if not path.exists():
            lora_compare.write_lora(path, model, seed, torch.bfloat16)
    velocity, times = family.velocity(), {}

    def wait():
        if device != "cpu":
            torch.cuda.synchronize()

    def time_all(label):
        for size in SIZES:
            inputs = {name: tensor.to(device, torch.bfloat16)
                      for name, tensor in load_file(work / f"{size}.safetensors").items()}
            prompts = torch.cat([inputs["prompt_embeds"], inputs["negative_prompt_embeds"]])

            def run(inputs=inputs, prompts=prompts):
                with torch.no_grad():
                    output = velocity(model, inputs["latents"].repeat(2, 1, 1, 1, 1), inputs["sigma"].repeat(2), prompts)
                wait()
                return output

            save_file({"output": run().float().cpu()}, work / f"theirs_{label}_{size}.safetensors")
            times[f"{size}, {label}"] = [base.timed(run) for _ in range(RUNS)]

    time_all("resident")
    for count in (1, LORAS):
        for path in paths[:count]:
            if path.stem not in getattr(model, "peft_config", {}):
                model.load_lora_adapter(str(path), adapter_name=path.stem)
        model.set_adapters([path.stem for path in paths[:count]])
        model.to(torch.bfloat16)
        time_all(f"LoRAs: {count}")
    print(json.dumps(times))


def run_reference(models, family, work):
    result = call([sys.executable, __file__, "--worker", family.plugin, models.device, models.folder(family), work])
    return json.loads(result.stdout.splitlines()[-1])


class Atelier(base.Program):
    """atelier-bench with one denoiser."""

    def __init__(self, models, family, inputs, flags):
        half = str(models.blocks(family) // 2)
        flags = [half if flag == "HALF" else flag for flag in flags]
        folder = models.folder(family) / "transformer"
        super().__init__([
            base.BENCH_PROGRAM, "dit", "--plugin", family.plugin, "--model_paths", json.dumps([str(folder)]), "--dtype",
            "bfloat16", "--device", models.device, "--inputs", next(iter(inputs.values())), "--prepare_levels", "--pipe",
            *flags
        ], os.cpu_count())
        self.inputs = inputs

    def time_all(self, label, work):
        times = {}
        for size, file in self.inputs.items():
            output = work / f"ours_{label}_{size}.safetensors"
            self.ask(json.dumps({"inputs": str(file), "output": str(output)}))
            runs = [self.ask("") for _ in range(RUNS)]
            times[f"{size}, {label}"] = [run["runs_ms"][0] for run in runs]
            self.reserved = runs[-1]["peak_reserved_bytes"]
        return times

    def use(self, paths):
        self.ask(json.dumps({"loras": [f"{path}:1" for path in paths]}))


def difference(work, label, size, other):
    """Of an output from another one, relative to the largest value."""
    from safetensors.torch import load_file
    ours, theirs = (load_file(work / f"{who}_{size}.safetensors")["output"].double()
                    for who in (f"ours_{label}", other))
    return float((ours - theirs).abs().max() / theirs.abs().max())


def step_row(family, name, times, reserved, **details):
    return {"row": f"CFG step, {title(family)}, {name}", "ms": statistics.median(times), "quickest_ms": min(times),
            "slowest_ms": max(times),
            "details": {**({"reserved_gib": reserved / 2**30} if reserved else {}), **details}}


def step_rows(models, family, place, work):
    """The rows of one place; those that are resident take turns with diffusers'."""
    inputs = write_inputs(models, family, work)
    if place != "resident":
        with Atelier(models, family, inputs, PLACES[place]) as ours:
            times = ours.time_all(place, work)
            return [step_row(family, name, runs, ours.reserved) for name, runs in times.items()]
    theirs, mine, reserved = {}, {}, 0
    for _ in range(TURNS):
        for name, runs in run_reference(models, family, work).items():
            theirs.setdefault(name, []).extend(runs)
        with Atelier(models, family, inputs, ()) as ours:
            turn = ours.time_all("resident", work)
            for count in (1, LORAS):
                ours.use(lora_paths(work, count))
                turn |= ours.time_all(f"LoRAs: {count}", work)
            reserved = ours.reserved
        for name, runs in turn.items():
            mine.setdefault(name, []).extend(runs)
    rows = []
    for name, runs in mine.items():
        size, label = name.split(", ", 1)
        error = difference(work, label, size, f"theirs_{label}")
        entry = step_row(family, name, runs, reserved, diffusers_ms=statistics.median(theirs[name]), differs_by=error)
        if not error <= AGREEMENT:
            entry["error"] = f"differs from diffusers by {error:.3g} of the scale: their times do not compare"
        rows.append(entry)
    return rows


# --- training ---


def write_images(folder, side, count):
    import numpy as np
    from PIL import Image
    random = np.random.default_rng(5)
    folder.mkdir()
    lines = ["image,prompt"]
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(folder / f"{number}.png")
        lines.append(f'{number}.png,"image number {number}, a photo of blue and green shapes on a wooden table"')
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")


def train_row(models, family, name, side, batch, flags, work):
    side = side if models.is_published else 64
    write_images(work / "data", side, batch * 2)
    device = models.device if models.is_published else "simulated:2GiB"
    command = [
        base.PROGRAM, "train", "--plugin", family.plugin, "--model_paths", json.dumps([str(models.folder(family))]),
        "--device", device, "--dtype", "bfloat16", "--dataset_base_path", work / "data", "--dataset_metadata_path",
        work / "data/metadata.csv", "--output_path", work / "out", "--lora_base_model", "dit", "--lora_rank", "16",
        "--batch_size", batch, "--height", side, "--width", side, "--num_epochs", "100", "--max_train_steps",
        TRAINED_STEPS, "--save_steps", "1000", "--save_state", "false", "--enable_csv_log", "true", *flags
    ]
    if not models.is_published:
        command += ["--vram", "2GiB"]
    if family.lora_layers:
        command += ["--lora_target_modules", ",".join(family.lora_layers)]
    said = call(command).stderr
    columns = {}
    with open(work / "out/loss.csv", newline="") as file:
        for row in csv.DictReader(file):
            columns.setdefault(row["key"], []).append(float(row["value"]))
    # The log has the mean up to each step.
    ends = [1000 * mean * (number + 1) for number, mean in enumerate(columns["perf/seconds_per_step"])]
    times = [end - begin for begin, end in zip(ends, ends[1:])][SKIPPED_STEPS - 1:]
    if not all(abs(loss) < 100 for loss in columns["train/loss"]):
        raise SystemExit(f"the losses are {columns['train/loss']}")
    details = {"loss": columns["train/loss"][0]}
    memory = re.search(r"memory: predicted (\S+ \S+), measured (\S+ \S+)", said)
    if memory:
        details |= {"predicted": memory[1], "reserved": memory[2]}
    return {"row": name, "ms": statistics.median(times), "quickest_ms": min(times), "slowest_ms": max(times),
            "details": details}


# --- which rows there are ---


def title(family):
    return {"qwen_image": "Qwen-Image", "lumina2": "Lumina-Image 2.0"}[family.plugin]


def trainings():
    """By name: family, side of the images, batch and flags."""
    lumina, qwen = FAMILIES["lumina2"], FAMILIES["qwen_image"]
    rows = {f"train a LoRA, {title(lumina)}, 1024x1024, batch {batch}": (lumina, 1024, batch, []) for batch in (2, 6)}
    for budget in ("1", "0.5", "0.25", "0", "none"):
        rows[f"train a LoRA, {title(qwen)}, 1328x1328, budget {budget}"] = (
            qwen, 1328, 1, ["--activation_memory_budget", budget])
    return rows


def all_rows():
    """Names with limits, the most telling ones first. A place has a row for each size."""
    steps = {f"CFG step, {title(FAMILIES['qwen_image'])}, {place}": 240 if place == "resident" else 60
             for place in PLACES}
    trained = {name: 100 for name in trainings()}
    return dict(list(steps.items())[:1] + list(trained.items())[:3] + list(steps.items())[1:] +
                list(trained.items())[3:])


def run_row(name, models, work):
    if name in trainings():
        family, side, batch, flags = trainings()[name]
        try:
            return [train_row(models, family, name, side, batch, flags, work)]
        except DoesNotFit as problem:
            return [{"row": name, "details": {"does_not_fit": str(problem)}}]
    family = FAMILIES["qwen_image"]
    return step_rows(models, family, name.rsplit(", ", 1)[1], work)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for tiny models")
    parser.add_argument("--list", action="store_true", help="print the names of rows, and seconds that each may take")
    parser.add_argument("--row", help="measure one")
    parser.add_argument("--work", type=pathlib.Path, default=base.REPOSITORY / "build/bench_models",
                        help="where models are kept; their files are holes")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    if options.worker:
        plugin, device, folder, work = options.worker
        reference_steps(device, FAMILIES[plugin], pathlib.Path(folder), pathlib.Path(work))
        return 0
    if options.list:
        for name, limit_s in all_rows().items():
            print(json.dumps({"row": name, "limit_s": limit_s}))
        return 0
    if options.row not in all_rows():
        parser.error(f"no such row: {options.row}; --list prints them")
    options.work.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="gpu_models_", dir=options.work))
    try:
        for row in run_row(options.row, Models(options.device, options.work), work):
            print(json.dumps(row), flush=True)
    finally:
        shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
