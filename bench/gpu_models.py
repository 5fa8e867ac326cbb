#!/usr/bin/env python3
"""Times and memory of published models with random weights, for tools/gpu: one JSON object for each row.

    bench/gpu_models.py [--device cpu] --list
    bench/gpu_models.py [--device cpu] --row NAME

With --device cpu models are tiny, and the times mean nothing.
"""

import argparse
import dataclasses
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
import train_compare
from families import FAMILIES, QWEN_EDIT, WAN, WAN_14B

TEXT_TOKENS, LORAS = 64, 4
CLIP = {"832x480x81": (21, 60, 104)}  # and the frames, rows and columns of its latents


@dataclasses.dataclass(frozen=True)
class Steps:
    """What is timed of the denoising steps of a family."""
    family: object
    sizes: dict  # and the frames, rows and columns of their latents
    runs: int
    turns: int  # of each side
    loras: tuple  # how many at once
    references: int = 0  # pictures of the image's size that lead it


STEPS = {
    steps.family.title: steps for steps in (
        Steps(FAMILIES["qwen_image"], {"512x512": (1, 64, 64), "1024x1024": (1, 128, 128), "1328x1328": (1, 166, 166)},
              runs=5, turns=2, loras=(1, LORAS)),
        Steps(QWEN_EDIT, {"1024x1024": (1, 128, 128)}, runs=3, turns=2, loras=(), references=2),
        Steps(WAN, CLIP, runs=3, turns=1, loras=()),
        Steps(WAN_14B, CLIP, runs=2, turns=1, loras=()))
}
# By the name of a row: flags of atelier-bench.
PLACES = {
    "resident": (),
    "fp8": ("--storage", "dit=fp8"),
    "w8a8": ("--storage", "dit=fp8", "--compute", "dit=w8a8"),
    "from the host": ("--offload", "dit=host"),
    "half from the host": ("--offload", "dit=host", "--resident_blocks", "HALF"),
    "CUDA graphs": ("--cuda_graphs",),
}
SKIPPED = 77  # exit code
TRAINED_RANK, TRAINED_STEPS, SKIPPED_STEPS = 16, 8, 3
# The largest difference of outputs in bfloat16, as in diffusers_compare.py, and of the losses of the first step,
# relative to the loss.
AGREEMENT, LOSS_AGREEMENT = base.AGREEMENT["bfloat16"], 0.02


class Models:
    """Where models of a device are, made once."""

    def __init__(self, device, work):
        self.device, self.work, self.is_published = device, work, device != "cpu"

    def folder(self, family):
        name = f"{re.sub(r'[^a-z0-9]+', '_', family.title.lower())}_{'published' if self.is_published else 'tiny'}"
        return base.prepare(self.work, name,
                            lambda path: random_models.write_model(path, family, self.is_published))

    def latents(self, frames, rows, columns):
        """Their sizes, those of tiny ones on the CPU."""
        if self.is_published:
            return frames, rows, columns
        return min(frames, 3), rows // 16 * 2, columns // 16 * 2

    def text_width(self, family):
        config = json.loads((self.folder(family) / "transformer/config.json").read_text())
        return config[family.text_width_name]

    def encodings(self, family, side, rows, clips=None):
        """A folder with a dataset and its encodings, in data and cache; `clips`: the size of the latents in their place."""
        def make(folder):
            (folder / "data").mkdir()
            train_compare.make_dataset(folder / "data", side, rows)
            call(train_compare.train_command({
                **self.train_flags(family, folder, side), "task": "sft:data_process", "device": self.device,
                "output_path": folder / "run"
            }))
            if clips:
                import clip_cache
                clip_cache.put_clips(folder / "cache", [clip_cache.CHANNELS, *self.latents(*clips)])
        name = f"{self.folder(family).name}_{side}x{rows}"
        return base.prepare(self.work, name + "_clips" if clips else name, make)

    def train_flags(self, family, encodings, side):
        flags = train_compare.run_flags(family, self.folder(family), encodings / "data", encodings / "cache")
        return {**flags, "dtype": "bfloat16", "height": side, "width": side}

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


def write_inputs(models, steps, folder):
    """By size, a file of what both sides are given."""
    import torch
    from safetensors.torch import save_file
    files = {}
    for size, latents in steps.sizes.items():
        generator = torch.Generator().manual_seed(3)
        width = models.text_width(steps.family)
        files[size] = folder / f"{size}.safetensors"
        pictures = [torch.randn((1, 16, *models.latents(*latents)), generator=generator)
                    for _ in range(1 + steps.references)]
        save_file({
            "latents": pictures[0],
            "sigma": torch.full((1,), 0.75),
            "prompt_embeds": torch.randn((1, TEXT_TOKENS, width), generator=generator),
            "negative_prompt_embeds": torch.randn((1, TEXT_TOKENS, width), generator=generator),
            **{f"{side}reference_{number}": picture.clone() for side in ("", "negative_")
               for number, picture in enumerate(pictures) if number > 0}
        }, files[size])
    return files


def lora_paths(folder, count):
    return [folder / f"lora{number}.safetensors" for number in range(count)]


def reference_steps(device, family, folder, work):
    """diffusers' side: outputs to files, and times by row."""
    import torch
    from safetensors.torch import load_file, save_file

    import lora_compare
    steps = STEPS[family.title]
    model = random_models.diffusers_model(family, folder, device, torch.bfloat16)
    paths = lora_paths(work, max(steps.loras, default=0))
    for seed, path in enumerate(paths):
        if not path.exists():
            lora_compare.write_lora(path, model, seed, torch.bfloat16)
    velocity, times = family.velocity(), {}

    def wait():
        if device != "cpu":
            torch.cuda.synchronize()

    def time_all(label):
        for size in steps.sizes:
            # The noise level keeps its precision, as with us.
            inputs = {name: tensor.to(device, torch.float32 if name == "sigma" else torch.bfloat16)
                      for name, tensor in load_file(work / f"{size}.safetensors").items()}
            prompts = torch.cat([inputs["prompt_embeds"], inputs["negative_prompt_embeds"]])

            pictures = [inputs[f"reference_{number + 1}"] for number in range(steps.references)]
            led = {"pictures": pictures} if pictures else {}

            def run(inputs=inputs, prompts=prompts, led=led):
                with torch.device(device), torch.no_grad():
                    output = velocity(model, inputs["latents"].repeat(2, 1, 1, 1, 1), inputs["sigma"].repeat(2), prompts,
                                      **led)
                wait()
                return output

            save_file({"output": run().float().cpu()}, work / f"theirs_{label}_{size}.safetensors")
            times[f"{size}, {label}"] = [base.timed(run) for _ in range(steps.runs)]

    time_all("resident")
    for count in steps.loras:
        for path in paths[:count]:
            if path.stem not in getattr(model, "peft_config", {}):
                model.load_lora_adapter(str(path), adapter_name=path.stem)
        model.set_adapters([path.stem for path in paths[:count]])
        model.to(torch.bfloat16)
        time_all(f"LoRAs: {count}")
    print(json.dumps(times))


def run_worker(what, models, family, folder, *more):
    """The other side, in a process of its own."""
    result = call([
        sys.executable, __file__, "--device", models.device, "--worker", what, family.title, models.folder(family),
        folder, *more
    ])
    return json.loads(result.stdout.splitlines()[-1])


class Atelier(base.Program):
    """atelier-bench with one denoiser."""

    def __init__(self, models, steps, inputs, flags):
        family = steps.family
        half = str(models.blocks(family) // 2)
        flags = [half if flag == "HALF" else flag for flag in flags]
        folder = models.folder(family) / "transformer"
        super().__init__([
            base.BENCH_PROGRAM, "dit", "--plugin", family.plugin, "--model_paths", json.dumps([str(folder)]), "--dtype",
            "bfloat16", "--device", models.device, "--inputs", next(iter(inputs.values())), "--prepare_levels", "--pipe",
            *flags
        ], os.cpu_count())
        self.inputs, self.num_runs = inputs, steps.runs

    def time_all(self, label, work):
        times = {}
        for size, file in self.inputs.items():
            output = work / f"ours_{label}_{size}.safetensors"
            self.ask(json.dumps({"inputs": str(file), "output": str(output)}))
            self.ask("")  # graphs are recorded in the second run of a size
            runs = [self.ask("") for _ in range(self.num_runs)]
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
    return {"row": f"CFG step, {family.title}, {name}", "ms": statistics.median(times), "quickest_ms": min(times),
            "slowest_ms": max(times),
            "details": {**({"reserved_gib": reserved / 2**30} if reserved else {}), **details}}


def step_rows(models, steps, place, work):
    """The rows of one place; those that are resident take turns with diffusers'."""
    family, inputs = steps.family, write_inputs(models, steps, work)
    if place != "resident":
        with Atelier(models, steps, inputs, PLACES[place]) as ours:
            times = ours.time_all(place, work)
            return [step_row(family, name, runs, ours.reserved) for name, runs in times.items()]
    theirs, mine, reserved = {}, {}, 0
    for _ in range(steps.turns):
        for name, runs in run_worker("steps", models, family, work).items():
            theirs.setdefault(name, []).extend(runs)
        with Atelier(models, steps, inputs, ()) as ours:
            turn = ours.time_all("resident", work)
            for count in steps.loras:
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


def train_reference(device, family, folder, cache, batch):
    """PEFT's side, with checkpointing: times and losses."""
    import torch
    model = random_models.diffusers_model(family, folder, device, torch.bfloat16)
    train_compare.add_adapters(model, family, TRAINED_RANK)
    model.enable_gradient_checkpointing()
    reference = train_compare.Reference(family, model, cache, batch)
    reference.draw_ahead(TRAINED_STEPS)
    losses = []
    with torch.autocast(model.device.type, torch.bfloat16):
        times = [base.timed(lambda: losses.append(reference.step())) for _ in range(TRAINED_STEPS)]
    reserved = torch.cuda.max_memory_reserved() if model.device.type == "cuda" else 0
    print(json.dumps({"times": times, "losses": losses, "reserved": reserved}))


def beside_peft(entry, models, family, encodings, batch):
    """Adds what PEFT's side took for the same steps; an error where they are not the same."""
    theirs = run_worker("train", models, family, encodings / "cache", batch)
    loss = theirs["losses"][0]
    error = abs(entry["details"]["loss"] - loss) / loss
    entry["details"] |= {"diffusers_ms": statistics.median(theirs["times"][SKIPPED_STEPS:]),
                         "loss_differs_by": error}
    if theirs["reserved"]:
        entry["details"]["diffusers_reserved_gib"] = theirs["reserved"] / 2**30
    if not error <= LOSS_AGREEMENT:
        entry["error"] = f"the first loss differs from diffusers' by {error:.3g}: their times do not compare"


def without_dataset(flags):
    """The same of encodings alone."""
    kept = {name: value for name, value in flags.items() if name not in ("dataset_metadata_path", "cache_path")}
    return {**kept, "dataset_base_path": flags["cache_path"]}


def train_row(models, family, name, side, batch, flags, work):
    """`side`: of images, or the sizes of a clip's latents."""
    clips = side if isinstance(side, tuple) else None
    side = side if models.is_published and not clips else 64
    encodings = models.encodings(family, side, 2 * batch, clips)
    common = models.train_flags(family, encodings, side)
    flags = {
        **(without_dataset(common) if clips else common),
        **train_compare.lora_flags(family, TRAINED_RANK), "task": "sft:train", "output_path": work / "out",
        "batch_size": batch, "max_train_steps": TRAINED_STEPS, "save_steps": 1000, "device": models.device,
        **flags
    }
    if not models.is_published:
        flags |= {"device": "simulated:2GiB", "vram": "2GiB"}
    said = call(train_compare.train_command(flags)).stderr
    columns, times = train_compare.read_log(work / "out")
    times = times[SKIPPED_STEPS:]
    if not all(abs(loss) < 100 for loss in columns["train/loss"]):
        raise SystemExit(f"the losses are {columns['train/loss']}")
    details = {"loss": columns["train/loss"][0]}
    memory = re.search(r"memory: predicted (\S+ \S+), measured (\S+ \S+)", said)
    if memory:
        details |= {"predicted": memory[1], "reserved": memory[2]}
    entry = {"row": name, "ms": statistics.median(times), "quickest_ms": min(times), "slowest_ms": max(times),
             "details": details}
    if name in BESIDE_PEFT:
        beside_peft(entry, models, family, encodings, batch)
    return entry


# --- which rows there are ---


def trainings():
    """By name: family, side of the images or sizes of the clips' latents, batch and flags."""
    lumina, qwen = FAMILIES["lumina2"], FAMILIES["qwen_image"]
    rows = {f"train a LoRA, {lumina.title}, 1024x1024, batch {batch}": (lumina, 1024, batch, {}) for batch in (2, 6)}
    for budget in ("1", "0.5", "0.25", "0", "none"):
        rows[f"train a LoRA, {qwen.title}, 1328x1328, budget {budget}"] = (
            qwen, 1328, 1, {"activation_memory_budget": budget})
    for family in (WAN, WAN_14B):
        for budget in ("1", "0.5", "0.25", "0"):
            for size, latents in CLIP.items():
                rows[f"train a LoRA, {family.title}, {size}, budget {budget}"] = (
                    family, latents, 1, {"activation_memory_budget": budget})
    return rows


# Rows that are timed on the other side, too.
BESIDE_PEFT = (*list(trainings())[:2], f"train a LoRA, {FAMILIES['qwen_image'].title}, 1328x1328, budget 0")


def all_rows():
    """Names with limits, the most telling ones first. A place has a row for each size."""
    steps = {f"CFG step, {FAMILIES['qwen_image'].title}, {place}": 240 if place == "resident" else 60
             for place in PLACES}
    others = {f"CFG step, {family.title}, resident": 150 for family in (WAN, QWEN_EDIT, WAN_14B)}
    trained = {name: 240 if WAN_14B.title in name else 200 if name in BESIDE_PEFT else 100 for name in trainings()}
    return dict(list(steps.items())[:1] + list(trained.items())[:3] + list(others.items()) + list(steps.items())[1:] +
                list(trained.items())[3:])


def measured_by(name):
    """The names of what a row prints."""
    if name in trainings():
        return [name]
    _, title, place = name.split(", ")
    places = [place] + [f"LoRAs: {count}" for count in STEPS[title].loras if place == "resident"]
    return [f"CFG step, {title}, {size}, {place}" for place in places for size in STEPS[title].sizes]


def run_row(name, models, work):
    if name in trainings():
        family, side, batch, flags = trainings()[name]
        try:
            return [train_row(models, family, name, side, batch, flags, work)]
        except DoesNotFit as problem:
            return [{"row": name, "details": {"does_not_fit": str(problem)}}]
    _, title, place = name.split(", ")
    if place == "CUDA graphs" and not models.is_published:
        print("skipped: the CPU has no CUDA graphs")
        return []
    return step_rows(models, STEPS[title], place, work)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for tiny models")
    parser.add_argument("--list", action="store_true", help="print the names of rows, and seconds that each may take")
    parser.add_argument("--row", help="measure one")
    parser.add_argument("--work", type=pathlib.Path, default=base.REPOSITORY / "build/bench_models",
                        help="where models are kept; their files are holes")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    if options.worker:
        what, title, model, folder, *more = options.worker
        side = {"steps": reference_steps, "train": train_reference}[what]
        family = next(family for family in (*FAMILIES.values(), QWEN_EDIT, WAN, WAN_14B) if family.title == title)
        side(options.device, family, pathlib.Path(model), pathlib.Path(folder), *map(int, more))
        return 0
    if options.list:
        for name, limit_s in all_rows().items():
            print(json.dumps({"row": name, "limit_s": limit_s, "measures": measured_by(name)}))
        return 0
    if options.row not in all_rows():
        parser.error(f"no such row: {options.row}; --list prints them")
    options.work.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix="gpu_models_", dir=options.work))
    try:
        rows = run_row(options.row, Models(options.device, options.work), work)
        for row in rows:
            print(json.dumps(row), flush=True)
    finally:
        shutil.rmtree(work)
    return 0 if rows else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
