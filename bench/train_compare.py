#!/usr/bin/env python3
"""Times training steps beside diffusers, PEFT and torch's AdamW, in turns, and prints a table.

    .deps/venv/bin/python bench/train_compare.py [tiny] [middle] [--what lora full]
        [--family lumina2|wan]

README.md, beside this file, says what each row is and how it is measured.
"""

import argparse
import csv
import functools
import json
import os
import pathlib
import shutil
import statistics
import sys

import diffusers_compare as base
from families import FAMILIES, WAN

SIDE, ROWS, SEED, RATE, MAX_NORM = 256, 4, 42, 1e-4, 1.0
# Of the model: how many steps of a turn count, behind one that does not.
STEPS = {"tiny": 20, "middle": 3}
RANK = 32
TRAINED = {**FAMILIES, WAN.plugin: WAN}
# Largest difference between the losses of the two sides, relative to the loss.
AGREEMENT = 1e-4


# --- what is trained ---


def make_dataset(folder, side=SIDE, rows=ROWS):
    import numpy as np
    from PIL import Image
    random = np.random.default_rng(5)
    lines = ["image,prompt"]
    for number in range(rows):
        coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8))
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(folder / f"{number}.png")
        lines.append(f'{number}.png,"image number {number}, a photo of blue and green shapes"')
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")


def write_lora(path, family, transformer):
    """A LoRA that both sides begin with."""
    import torch
    from safetensors.torch import save_file
    generator = torch.Generator().manual_seed(6)
    tensors, shared = {}, {}
    for name, module in transformer.named_modules():
        if not isinstance(module, torch.nn.Linear) or not name.endswith(family.lora_targets):
            continue
        down = torch.randn((RANK, module.in_features), generator=generator)
        up = torch.randn((module.out_features, RANK), generator=generator)
        down *= module.in_features**-0.5
        if name.endswith(family.fused):
            down = shared.setdefault(name.rsplit(".", 1)[0], down).clone()
        tensors[f"transformer.{name}.lora_A.weight"] = down
        tensors[f"transformer.{name}.lora_B.weight"] = up * 0.01
    save_file(tensors, path)


def run_flags(family, model, data, cache):
    """Of a run of `model` on the dataset, whose encodings are kept in `cache`."""
    return {
        "plugin": family.plugin,
        "model_paths": json.dumps([str(model)]),
        "dataset_base_path": data,
        "dataset_metadata_path": data / "metadata.csv",
        "cache_path": cache,
        "seed": SEED,
        "learning_rate": RATE,
        "max_grad_norm": MAX_NORM,
        "num_epochs": 1000,
        "save_state": "false",
        "enable_csv_log": "true"
    }


def lora_flags(family, rank):
    flags = {"lora_base_model": "dit", "lora_rank": rank}
    if family.lora_layers:
        flags["lora_target_modules"] = ",".join(family.lora_layers)
    return flags


def of_side(name, side):
    return name if side == SIDE else f"{name}_{side}"


def train_flags(family, folder, what, side=SIDE):
    flags = {
        **run_flags(family, folder / "model", folder.parent / of_side("train_data", side),
                    folder / of_side("cache", side)),
        "device": "cpu",
        "dtype": "float32"
    }
    if what == "full":
        return {**flags, "trainable_models": "dit"}
    return {
        **flags,
        **lora_flags(family, RANK), "lora_checkpoint": folder / "start_own_names.safetensors"
    }


def train_command(flags, *more):
    words = [base.PROGRAM, "train", *more]
    for name, value in flags.items():
        words += ["--" + name, value]
    return words


def read_log(folder):
    """The columns of a run's loss.csv, and the milliseconds of its steps."""
    columns = {}
    with open(folder / "loss.csv", newline="") as file:
        for row in csv.DictReader(file):
            columns.setdefault(row["key"], []).append(float(row["value"]))
    # The log has the mean up to each step.
    ends = [1000 * mean * (n + 1) for n, mean in enumerate(columns["perf/seconds_per_step"])]
    return columns, [end - begin for begin, end in zip([0, *ends], ends)]


# --- the two sides ---


def add_adapters(transformer, family, rank, start=None):
    """PEFT's, in float32, in place of training the weights; `start` is a file of their factors."""
    import torch
    from peft import LoraConfig
    from peft.utils import set_peft_model_state_dict
    from safetensors.torch import load_file
    transformer.requires_grad_(False)
    transformer.add_adapter(
        LoraConfig(r=rank, lora_alpha=rank, target_modules=list(family.lora_targets)))
    if start is not None:
        set_peft_model_state_dict(transformer, {
            name.removeprefix("transformer."): tensor for name, tensor in load_file(start).items()
        })
    # Layers that are one layer for Atelier have one lora_A, and it is trained once.
    first = {}
    for name, module in transformer.named_modules():
        if name.endswith(family.fused):
            lora_A = module.lora_A["default"]
            lora_A.weight = first.setdefault(name.rsplit(".", 1)[0], lora_A.weight)
    for parameter in transformer.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)


class Reference:
    """Training with diffusers, in this process, of what wants gradients.

    `cache` is the folder of Atelier's encodings.
    """

    def __init__(self, family, transformer, cache, batch_size=1):
        import torch
        import training
        self.torch, self.training = torch, training
        self.transformer, self.device = transformer.train(), transformer.device
        draw_noise = training.normal_noise
        training.normal_noise = lambda *arguments: draw_noise(*arguments).to(self.device)
        # What is drawn ahead is not timed: this side has the numbers of the other, at no cost.
        for name in ("stream_seed", "draw_level", "normal_noise"):
            setattr(training, name, functools.cache(getattr(training, name)))
        training.references.velocity = family.velocity()
        levels = family.training_sigmas()
        training.sigmas = lambda: levels
        self.parameters = [p for p in transformer.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=RATE, weight_decay=0.01, fused=True)
        self.samples = self.read_cache(cache)
        self.plan = training.plan(len(self.samples), SEED, batch_size=batch_size)
        self.batch_size, self.done = batch_size, 0

    def read_cache(self, folder):
        """The encodings that Atelier trains on, in the order of the rows."""
        from safetensors.torch import load_file
        items = json.loads((folder / "manifest.json").read_text())["items"]
        files = {path.stem: path for path in folder.rglob("*.safetensors")}
        samples = []
        for item in items:
            latents = load_file(files[item["latents"]])["latents"].to(self.device)
            embeds = load_file(files[item["text"]])["prompt_embeds"].to(self.device)
            samples.append(self.training.Sample(latents, embeds.view(-1, embeds.shape[-1])))
        return samples

    def draw_ahead(self, steps):
        seed = self.training.stream_seed(SEED, self.training.NOISE)
        for step in range(self.done, self.done + steps):
            for slot in range(self.batch_size):
                self.training.draw_level(SEED, slot, step)
                self.training.normal_noise(seed, slot, step, tuple(self.samples[0].latents.shape))

    def step(self):
        (batch,) = next(self.plan)
        rows, slots = zip(*batch)
        # What the loss makes anew is made where the samples are.
        with self.torch.device(self.device):
            loss = self.training.batch_loss(self.transformer, [self.samples[row] for row in rows],
                                            list(slots), SEED, self.done) / len(batch)
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.parameters, MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1
        return loss.item()


def serve(family, folder, what):
    """Makes as many steps as each line says and answers with their times and losses."""
    transformer = family.denoiser_class().from_pretrained(folder / "model/transformer")
    if what == "lora":
        add_adapters(transformer, family, RANK, folder / "start.safetensors")
    reference = Reference(family, transformer, folder / "cache")
    for line in sys.stdin:
        losses = []
        reference.draw_ahead(int(line))
        times = [base.timed(lambda: losses.append(reference.step())) for _ in range(int(line))]
        print(json.dumps({
            "times": times,
            "losses": losses,
            "peak": base.proc_status("VmHWM")
        }),
              flush=True)


def diffusers_side(family, folder, what, threads):
    return base.Program([sys.executable, __file__, "--worker", family.plugin, folder, what],
                        threads)


def run_program(family, folder, what, steps, threads):
    """The same of `atelier train`, a whole run, out of its loss.csv."""
    output = folder / "run"
    shutil.rmtree(output, ignore_errors=True)
    flags = {**train_flags(family, folder, what), "output_path": output, "max_train_steps": steps}
    base.call(
        train_command({**flags, "task": "sft:train", "save_steps": steps}, "--quiet", "--threads",
                      threads), threads)
    columns, times = read_log(output)
    shutil.rmtree(output)
    return {
        "times": times,
        "losses": columns["train/loss"],
        "waited": columns["perf/data_wait_share"][-1],
        "peak": columns["perf/peak_host_gb"][-1] * 1e9
    }


# --- rows ---


def prepare(options, family, model_name, side=SIDE):
    """The model and the encoded dataset of images of that side, made once."""
    base.prepare(options.work, of_side("train_data", side), lambda path: make_dataset(path, side))
    folder = base.prepare(options.work, f"train_{family.plugin}_{model_name}",
                          lambda path: family.make_model(path, model_name))
    write_lora(folder / "start.safetensors", family,
               family.denoiser_class().from_pretrained(folder / "model/transformer"))
    (folder / "start_own_names.safetensors").unlink(missing_ok=True)
    base.call([
        base.PROGRAM, "lora", "convert", folder / "start.safetensors",
        folder / "start_own_names.safetensors", "--lora_format", family.lora_format, "--plugin",
        family.plugin, "--model_paths",
        json.dumps([str(folder / "model/transformer")])
    ], options.threads)
    flags = train_flags(family, folder, "full", side)
    base.call(
        train_command({**flags, "task": "sft:data_process", "output_path": folder / "run"},
                      "--quiet", "--threads", options.threads), options.threads)
    return folder


def compare(options, model_name, what):
    family, steps = TRAINED[options.family], STEPS[model_name]
    folder = prepare(options, family, model_name)
    sides = {"diffusers": [], "Atelier": []}
    with diffusers_side(family, folder, what, options.threads) as worker:
        for number in range(options.rounds):
            sides["diffusers"].append(worker.ask(str(1 + steps)))
            sides["Atelier"].append(run_program(family, folder, what, 1 + steps, options.threads))
            for name, turns in sides.items():
                print(f"  turn {number + 1}, {name}: " +
                      " ".join(f"{ms:.0f}" for ms in turns[-1]["times"]) + " ms",
                      file=sys.stderr)
    theirs, ours = sides["diffusers"][0]["losses"], sides["Atelier"][0]["losses"]
    error = max(abs(a - b) / b for a, b in zip(ours, theirs))
    if not error <= AGREEMENT:
        raise SystemExit(f"error: {model_name}, {what}: the losses {ours} are not {theirs}")
    result = {"model": model_name, "what": what, "loss_error": error}
    for name, turns in sides.items():
        # The first step of a turn is not counted: it maps files and fills caches.
        times = [ms for turn in turns for ms in turn["times"][1:]]
        result[name] = {
            "median": statistics.median(times),
            "best": min(times),
            "runs_ms": times,
            "peak_gb": max(turn["peak"] for turn in turns) / 1e9
        }
    result["waited"] = statistics.median(turn["waited"] for turn in sides["Atelier"])
    return result


def table(rows):
    lines = [
        "| model | trained | diffusers, median | quickest | Atelier, median | quickest | "
        "Atelier / diffusers | of the quickest | waiting for data | peak memory, diffusers | "
        "Atelier |", "| --- | --- |" + " ---: |" * 9
    ]
    for row in rows:
        theirs, ours = row["diffusers"], row["Atelier"]
        lines.append(f"| {row['model']} | {row['what']} | {theirs['median']:.0f} ms | "
                     f"{theirs['best']:.0f} ms | {ours['median']:.0f} ms | {ours['best']:.0f} ms | "
                     f"{ours['median'] / theirs['median']:.2f} | "
                     f"{ours['best'] / theirs['best']:.2f} | {row['waited']:.1%} | "
                     f"{theirs['peak_gb']:.2f} GB | {ours['peak_gb']:.2f} GB |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", help="any of tiny, middle; both without one")
    parser.add_argument("--family", choices=list(TRAINED), default="qwen_image")
    parser.add_argument("--what", nargs="+", choices=["lora", "full"], default=["lora", "full"])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side (default 3)")
    parser.add_argument("--threads",
                        type=int,
                        default=os.cpu_count(),
                        help="threads of each side (default: all)")
    parser.add_argument("--work",
                        type=pathlib.Path,
                        default=base.REPOSITORY / "build/bench_models",
                        help="where models and data are made and kept, about 2 GB")
    parser.add_argument("--json", type=pathlib.Path, help="also write every run to this file")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        plugin, folder, what = options.worker
        serve(TRAINED[plugin], pathlib.Path(folder), what)
        return 0
    unknown = set(options.model) - set(STEPS)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    if not base.PROGRAM.is_file():
        print(f"error: {base.PROGRAM}: not built; run tools/build", file=sys.stderr)
        return 3
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for model_name in options.model or STEPS:
        for what in options.what:
            print(f"{model_name}, {what}", file=sys.stderr)
            rows.append(compare(options, model_name, what))
            if options.json:
                options.json.write_text(json.dumps(rows, indent=2) + "\n")
    print(table(rows))
    print(f"\nlosses agree to {max(row['loss_error'] for row in rows):.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
