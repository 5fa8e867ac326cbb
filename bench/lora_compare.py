#!/usr/bin/env python3
"""Times LoRAs in Atelier beside diffusers with PEFT and prints two tables.

    .deps/venv/bin/python bench/lora_compare.py [tiny] [middle] [--dtype float32 bfloat16]

README.md, beside this file, says what each row is and how it is measured.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import warnings

import diffusers_compare as base

RANK, ADAPTERS = 32, 4
FAMILY = base.FAMILIES["qwen_image"]
# Of the model: the side of the latents.
SIDES = {"tiny": 16, "middle": 32}
TEXT_TOKENS = 64
# The linear layers of a block that trainers of these models choose.
TARGETS = ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0",
           "to_add_out", "net.0.proj", "net.2", "img_mod.1", "txt_mod.1")


def write_lora(path, model, seed, dtype):
    """A LoRA as diffusers writes it, whose alpha is its rank."""
    import torch
    from safetensors.torch import save_file
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or not name.endswith(TARGETS):
            continue
        down = torch.randn((RANK, module.in_features), generator=generator)
        up = torch.randn((module.out_features, RANK), generator=generator)
        tensors[f"transformer.{name}.lora_A.weight"] = down * module.in_features**-0.5
        tensors[f"transformer.{name}.lora_B.weight"] = up * 0.1
    save_file({name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}, path)
    return len(tensors) // 2


class Peft:
    """diffusers' denoiser, once as it is and once with adapters."""

    def __init__(self, folder, dtype, inputs):
        self.plain = base.DiffusersDit(FAMILY, folder, dtype, inputs)
        self.adapted = base.DiffusersDit(FAMILY, folder, dtype, inputs)
        self.model, self.dtype = self.adapted.model, dtype

    def load(self, path, name):
        self.model.load_lora_adapter(str(path), adapter_name=name)
        self.model.set_adapters([name])

    def choose(self, names, strength=1.0):
        self.model.set_adapters(names, [strength] * len(names))

    def step(self, names):
        if not names:
            return base.timed(self.plain.run)
        self.choose(names)
        return base.timed(self.adapted.run)


class Atelier:
    """A bench program whose LoRAs are files of one folder, by name."""

    def __init__(self, bench, folder):
        self.bench, self.folder = bench, folder

    def choose(self, names, strength=1.0):
        """Returns the milliseconds until these are the LoRAs."""
        paths = [f"{self.folder / name}.safetensors:{strength}" for name in names]
        return self.bench.ask(json.dumps({"loras": paths}))["lora_ms"]

    def step(self, names):
        self.choose(names)
        return self.bench.run()

    def output(self, path):
        return self.bench.output(path)


def assert_agreement(theirs, ours, names, dtype_name, work):
    """Compares the outputs with all adapters, which must differ from those without."""
    theirs.choose(names)
    ours.choose(names)
    expected, plain = theirs.adapted.run().double(), theirs.plain.run().double()
    got = ours.output(work / "output.safetensors").double()
    scale = expected.abs().max()
    error = float((got - expected).abs().max() / scale)
    effect = float((plain - expected).abs().max() / scale)
    if not error <= base.AGREEMENT[dtype_name] < effect:
        raise SystemExit(f"error: {dtype_name}: outputs with LoRAs differ by {error:.3g} of their "
                         f"scale, and by {effect:.3g} from those without")
    return error


def in_turns_of(rounds, theirs, ours):
    return base.in_turns(rounds, {"diffusers + PEFT": theirs, "Atelier": ours}).values()


def compare(options, model_name, dtype_name):
    """Returns rows of times, and of overheads."""
    import torch
    from safetensors.torch import save_file
    dtype, side = getattr(torch, dtype_name), SIDES[model_name]
    rounds = base.TURNS[model_name] * options.rounds
    folder = base.dit_folder(options, FAMILY, model_name, dtype_name)
    work = options.work / "loras"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    inputs = base.dit_inputs(FAMILY, side, (TEXT_TOKENS, TEXT_TOKENS))
    save_file(inputs, work / "inputs.safetensors")
    theirs = Peft(folder, dtype, inputs)
    names = [f"lora{i}" for i in range(ADAPTERS)]
    for seed, name in enumerate(names):
        layers = write_lora(work / f"{name}.safetensors", theirs.plain.model, seed, dtype)
        theirs.load(work / f"{name}.safetensors", name)
    theirs.model.to(dtype)

    def bench(mode):
        return base.atelier_bench("dit", folder, work / "inputs.safetensors", dtype_name,
                                  options.threads, "--lora_mode", mode)

    rows, overheads = [], []

    def add(name, their_times, our_times, note=""):
        rows.append(
            base.row(f"{model_name}: {name}", dtype_name, their_times, our_times, note=note))

    with bench("hot") as program:
        ours = Atelier(program, work)
        error = assert_agreement(theirs, ours, names, dtype_name, work)
        sets = {"no LoRA": [], "one LoRA": names[:1], "four LoRAs": names}
        sides = {}
        for label, chosen in sets.items():
            sides[f"diffusers, {label}"] = lambda chosen=chosen: theirs.step(chosen)
            sides[f"Atelier, {label}"] = lambda chosen=chosen: ours.step(chosen)
        times = base.in_turns(rounds, sides)
        for label in sets:
            add(f"step, {label}", times[f"diffusers, {label}"], times[f"Atelier, {label}"],
                f"outputs agree to {error:.1e}" if label == "four LoRAs" else "")
        for label in ("one LoRA", "four LoRAs"):
            overheads.append((model_name, dtype_name, label, *[
                choose(times[f"{who}, {label}"]) / choose(times[f"{who}, no LoRA"]) - 1
                for choose in (statistics.median, min) for who in ("diffusers", "Atelier")
            ]))
        for i in range(rounds + 1):
            shutil.copyfile(work / "lora0.safetensors", work / f"new{i}.safetensors")
        new = {who: iter(range(rounds + 1)) for who in ("theirs", "ours")}

        def load_theirs():
            name = f"new{next(new['theirs'])}"
            elapsed = base.timed(lambda: theirs.load(work / f"{name}.safetensors", name))
            theirs.model.delete_adapters([name])
            return elapsed

        add("load a file", *in_turns_of(rounds, load_theirs,
                                        lambda: ours.choose([f"new{next(new['ours'])}"])),
            f"{layers} layers, {(work / 'lora0.safetensors').stat().st_size / 1e6:.1f} MB")

        def switch(choose):
            choose(names[:1])
            return choose(names[1:2])

        add(
            "switch to another in memory",
            *in_turns_of(rounds, lambda: switch(lambda chosen: base.timed(
                lambda: theirs.choose(chosen))), lambda: switch(ours.choose)))
        add(
            "another strength",
            *in_turns_of(rounds, lambda: base.timed(lambda: theirs.choose(names[:1], 0.5)),
                         lambda: (ours.choose(names[:1]), ours.choose(names[:1], 0.5))[1]))

    with bench("merge") as program:
        ours = Atelier(program, work)
        theirs.choose(names[:1])

        def merge_theirs():
            elapsed = base.timed(lambda: theirs.model.fuse_lora(adapter_names=names[:1]))
            theirs.model.unfuse_lora()
            return elapsed

        add("merge one into the weights",
            *in_turns_of(rounds, merge_theirs,
                         lambda: (ours.choose([]), ours.choose(names[:1]))[1]))
    return rows, overheads


def overhead_table(overheads):
    lines = [
        "| model | dtype | adapters | diffusers + PEFT | Atelier | diffusers + PEFT, quickest | "
        "Atelier, quickest |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |"
    ]
    for model, dtype, label, *values in overheads:
        lines.append(f"| {model} | {dtype} | {label} | " +
                     " | ".join(f"{value:+.0%}" for value in values) + " |")
    return "\n".join(lines)


def time_table(rows):
    lines = [
        "| row | dtype | diffusers + PEFT | Atelier | Atelier / diffusers | of the best | spread | "
        "note |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"
    ]
    for entry in rows:
        least = min(entry["atelier"], entry["diffusers"])
        digits = 0 if least >= 100 else 1 if least >= 1 else 3
        lines.append(f"| {entry['row']} | {entry['dtype']} | {entry['diffusers']:.{digits}f} ms | "
                     f"{entry['atelier']:.{digits}f} ms | {entry['ratio']:.2f} | "
                     f"{entry['ratio_of_best']:.2f} | {entry['spread']:.0%} | {entry['note']} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", help="any of tiny, middle; both without one")
    parser.add_argument("--dtype",
                        nargs="+",
                        choices=["float32", "bfloat16"],
                        default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (default 5)")
    parser.add_argument("--threads",
                        type=int,
                        default=os.cpu_count(),
                        help="threads of each side (default: all)")
    parser.add_argument("--work",
                        type=pathlib.Path,
                        default=base.REPOSITORY / "build/bench_models",
                        help="where the weights are made and kept")
    parser.add_argument("--json", type=pathlib.Path, help="also write every run to this file")
    options = parser.parse_args()
    unknown = set(options.model) - set(SIDES)
    if unknown:
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are tiny, middle")
    if not base.BENCH_PROGRAM.is_file():
        print(f"error: {base.BENCH_PROGRAM}: not built; run tools/build", file=sys.stderr)
        return 3

    # The libraries read these when they are imported, in this process too.
    os.environ.update(OMP_NUM_THREADS=str(options.threads), HF_HUB_OFFLINE="1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    import torch
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", module="peft")
    options.work.mkdir(parents=True, exist_ok=True)
    rows, overheads = [], []
    for model_name in options.model or SIDES:
        for dtype_name in options.dtype:
            print(f"{model_name}, {dtype_name}", file=sys.stderr)
            times, more = compare(options, model_name, dtype_name)
            rows += times
            overheads += more
    print(overhead_table(overheads) + "\n\n" + time_table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
