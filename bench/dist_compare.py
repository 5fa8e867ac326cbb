#!/usr/bin/env python3
"""Counts what ranks send each other, and times their steps beside one rank and beside torchrun.

    .deps/venv/bin/python bench/dist_compare.py [tiny] [middle] [--what lora full] [--ranks 2]
        [--mode ddp zero1 ...] [--side 512] [--no_torch]

README.md, beside this file, says what each row is and how it is measured.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import time

import diffusers_compare as base
import train_compare as training

# Of a mode: what is trained with it, the flags of `atelier train`, and the bytes that all ranks
# together send in a step: of what is trained (t), of its values (v) and of the blocks (f), by W
# ranks. With one place for blocks, the last one of each pass over them is still there, unless it
# was moved in between.
MODES = {
    "ddp": (("lora", "full"), {"zero_stage": 0}, lambda W, t, v, f, last: 2 * (W - 1) * t),
    "zero1": (("full",), {"zero_stage": 1}, lambda W, t, v, f, last: (W - 1) * (t + v)),
    "zero2": (("full",), {"zero_stage": 2}, lambda W, t, v, f, last: (W - 1) * (t + v)),
    "zero3": (("lora",), {"zero_stage": 3, "prefetch": 0},
              lambda W, t, v, f, last: (W - 1) * (2 * t + 2 * (f - last))),
    "zero3_full": (("full",), {"zero_stage": 3, "prefetch": 0},
                   lambda W, t, v, f, last: (W - 1) * (t + v + f - last)),
}
# PyTorch's way to do the same.
TORCH = {"ddp": "ddp", "zero3": "fsdp2", "zero3_full": "fsdp2"}
FEW = 2  # steps of the run whose bytes are taken off: what starting and ending sends
BYTES_BOUND, RANKS_BOUND, TORCH_BOUND = 0.03, 1.10, 1.05

# --- torchrun ---


def torch_rank(plugin, folder, what, kind, steps, side):
    """One rank of PyTorch's side: each step is a sample of each rank, as Atelier deals them out."""
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})
    torch.set_num_threads(1)
    family = training.TRAINED[plugin]
    transformer = family.denoiser_class().from_pretrained(folder / "model/transformer")
    if what == "lora":
        training.add_adapters(transformer, family, training.RANK, folder / "start.safetensors")
    shared = share(transformer, kind)
    reference = training.Reference(family, transformer, folder / training.of_side("cache", side),
                                   batch_size=size)
    reference.draw_ahead(steps)
    times, losses = [], []
    for step in range(steps):
        (batch,) = next(reference.plan)
        dist.barrier()
        begin, used = time.perf_counter(), cpu_seconds()
        row, slot = batch[rank % len(batch)]
        loss = reference.training.batch_loss(shared, [reference.samples[row]], [slot],
                                             training.SEED, step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters, training.MAX_NORM)
        reference.optimizer.step()
        reference.optimizer.zero_grad()
        times.append((1000 * (time.perf_counter() - begin), 1000 * (cpu_seconds() - used)))
        dist.all_reduce(mean := loss.detach().double() / size)
        losses.append(mean.item())
    if rank == 0:
        print(json.dumps({"times": times, "losses": losses}), flush=True)
    dist.barrier()  # none goes while another one still waits for it
    dist.destroy_process_group()


def share(transformer, kind):
    import torch
    if kind == "ddp":
        class Shared(torch.nn.parallel.DistributedDataParallel):
            dtype = transformer.dtype  # which the loss asks for

        return Shared(transformer, find_unused_parameters=True)  # the last block has some
    from torch.distributed.fsdp import fully_shard
    for block in transformer.transformer_blocks:
        fully_shard(block)
    return fully_shard(transformer)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run_torch(options, folder, what, kind, steps):
    words = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node",
        options.ranks, __file__, "--rank", options.family, folder, what, kind, steps, options.side
    ]
    (answer,) = base.call(words, 1)
    return answer

# --- Atelier ---


def run_atelier(options, folder, what, ranks, steps, flags):
    """A whole run: the milliseconds of its steps, its losses, and what its processes computed."""
    output = folder / "run"
    shutil.rmtree(output, ignore_errors=True)
    flags = {
        **training.train_flags(training.TRAINED[options.family], folder, what, options.side),
        **flags, "output_path": output,
        "max_train_steps": steps,
        "task": "sft:train",
        "save_steps": steps
    }
    words = training.train_command(flags, "--quiet", "--threads", 1)
    if ranks > 1:
        words = [base.PROGRAM, "launch", "--nproc_per_node", ranks, "--", *words[1:]]
    else:
        words = ["taskset", "-c", 0, *words]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([str(word) for word in words],
                            env=base.environment(1),
                            capture_output=True,
                            text=True)
    if result.returncode != 0:
        raise SystemExit(f"error: exit code {result.returncode}: {result.stderr[-6000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    columns, times = training.read_log(output)
    shutil.rmtree(output)
    return {
        "times": times,
        "losses": columns["train/loss"],
        "cpu_ms": 1000 * (after.ru_utime - used.ru_utime + after.ru_stime - used.ru_stime)
    }


def bytes_on_lo():
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        name, _, fields = line.partition(":")
        if name.strip() == "lo":
            return int(fields.split()[0])
    raise SystemExit("error: /proc/net/dev has no lo")


def a_step(options, folder, what, ranks, flags, steps):
    """Bytes of all ranks on lo, headers too, and milliseconds that a rank's threads compute.

    Both are of a step: what starting and ending takes is in a run of few steps, too.
    """
    sent, computed = [], []
    for number in (FEW, FEW + steps):
        before = bytes_on_lo()
        computed.append(run_atelier(options, folder, what, ranks, number, flags)["cpu_ms"])
        sent.append(bytes_on_lo() - before)
    return (sent[1] - sent[0]) / steps, (computed[1] - computed[0]) / steps / ranks


def is_there(mode):
    """Whether this program has the mode."""
    words = [base.PROGRAM, "train", "--help"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    line = next(line for line in told.splitlines() if line.strip().startswith("--zero_stage"))
    return str(MODES[mode][1]["zero_stage"]) in line.split()[1].split("|")

# --- rows ---


def trained_bytes(family, folder, what):
    """Of what is trained, of its values, of blocks and of one of them, in float32."""
    transformer = family.denoiser_class().from_pretrained(folder / "model/transformer")
    blocks = 4 * sum(p.numel() for p in transformer.transformer_blocks.parameters())
    if what == "full":
        trained = 4 * sum(p.numel() for p in transformer.parameters())
        return trained, trained, blocks, blocks // len(transformer.transformer_blocks)
    from safetensors import safe_open
    with safe_open(folder / "start_own_names.safetensors", "pt") as file:
        factors = 4 * sum(file.get_tensor(name).numel() for name in file.keys())
    return factors, factors, blocks, blocks // len(transformer.transformer_blocks)


def compare(options, model_name, what, mode):
    family, steps = training.TRAINED[options.family], options.steps or training.STEPS[model_name]
    folder = training.prepare(options, family, model_name, options.side)
    _, flags, formula = MODES[mode]
    row = {"model": model_name, "what": what, "mode": mode, "side": options.side}
    row["table_bytes"] = formula(options.ranks, *trained_bytes(family, folder, what))
    _, of_one = a_step(options, folder, what, 1, {}, steps)
    row["lo_bytes"], of_ranks = a_step(options, folder, what, options.ranks, flags, steps)
    walls = {"one": [], "ranks": [], "torchrun": []}
    computed = {"one": [of_one], "ranks": [of_ranks], "torchrun": []}
    for _ in range(options.rounds):
        walls["one"] += run_atelier(options, folder, what, 1, 1 + steps, {})["times"][1:]
        ours = run_atelier(options, folder, what, options.ranks, 1 + steps, flags)
        walls["ranks"] += ours["times"][1:]
        if mode in TORCH and not options.no_torch:
            answer = run_torch(options, folder, what, TORCH[mode], 1 + steps)
            agree(answer["losses"], ours["losses"], f"{model_name}, {what}, {mode}")
            walls["torchrun"] += [wall for wall, _ in answer["times"][1:]]
            computed["torchrun"] += [cpu for _, cpu in answer["times"][1:]]
    for name, times in walls.items():
        if times:
            row[name] = {"quickest": min(times), "cpu": statistics.median(computed[name])}
    return row


def agree(theirs, ours, title):
    error = max(abs(a - b) / b for a, b in zip(ours, theirs))
    if not error <= training.AGREEMENT:
        raise SystemExit(f"error: {title}: the losses {ours} are not {theirs}")


def table(rows):
    lines = [
        "| model | side | trained | mode | MB on lo a step | over the table | one rank, quickest | CPU | "
        "ranks, quickest | CPU | of one rank | CPU | torchrun, quickest | CPU | of torchrun | CPU |",
        "| --- | ---: | --- | --- |" + " ---: |" * 12
    ]
    for row in rows:
        cells = [row["model"], str(row["side"]), row["what"], row["mode"]]
        cells.append(f"{row['lo_bytes'] / 1e6:.3f}")
        cells.append(f"{row['lo_bytes'] / row['table_bytes'] - 1:+.1%}")
        cells += times(row, "one") + times(row, "ranks") + ratios(row, "one")
        cells += times(row, "torchrun") + ratios(row, "torchrun") if "torchrun" in row else [""] * 4
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def times(row, side):
    return [f"{row[side][key]:.1f} ms" for key in ("quickest", "cpu")]


def ratios(row, side):
    return [f"{row['ranks'][key] / row[side][key]:.2f}" for key in ("quickest", "cpu")]


def missed(row):
    """The bounds that a row does not keep. The quickest steps count: other work slows down."""
    found = []
    if abs(row["lo_bytes"] / row["table_bytes"] - 1) > BYTES_BOUND:
        found.append(f"bytes are not within {BYTES_BOUND:.0%} of the table")
    if row["mode"] == "ddp" and row["ranks"]["quickest"] > RANKS_BOUND * row["one"]["quickest"]:
        found.append(f"a step of the ranks takes more than {RANKS_BOUND} of one rank's")
    if "torchrun" in row and row["ranks"]["quickest"] > TORCH_BOUND * row["torchrun"]["quickest"]:
        found.append(f"a step takes more than {TORCH_BOUND} of torchrun's")
    return [f"{row['model']}, {row['what']}, {row['mode']}: {text}" for text in found]


def in_own_network():
    """Starts over where no one else uses lo, as far as that is allowed."""
    if "ATELIER_OWN_NETWORK" in os.environ:
        return
    os.environ["ATELIER_OWN_NETWORK"] = "1"
    words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if subprocess.run([*words, "true"], capture_output=True).returncode == 0:
        os.execvp(words[0], [*words, sys.executable, *sys.argv])
    print("note: others may use lo as well: no network of its own is allowed", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", help="any of tiny, middle; both without one")
    parser.add_argument("--family", choices=list(training.TRAINED), default="qwen_image")
    parser.add_argument("--what", nargs="+", choices=["lora", "full"], default=["lora", "full"])
    parser.add_argument("--mode", nargs="+", choices=list(MODES), help="all that there are without")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--side",
                        type=int,
                        default=training.SIDE,
                        help=f"pixels of an image's edge (default {training.SIDE})")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side (default 3)")
    parser.add_argument("--steps", type=int, help="of a turn, beside one that does not count")
    parser.add_argument("--no_torch", action="store_true", help="without torchrun")
    parser.add_argument("--work",
                        type=pathlib.Path,
                        default=base.REPOSITORY / "build/bench_models",
                        help="where models and data are made and kept, about 2 GB")
    parser.add_argument("--json", type=pathlib.Path, help="also write every row to this file")
    parser.add_argument("--rank", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        plugin, folder, what, kind, steps, side = options.rank
        torch_rank(plugin, pathlib.Path(folder), what, kind, int(steps), int(side))
        return 0
    in_own_network()
    options.threads = 1
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for mode in options.mode or filter(is_there, MODES):
        for model_name in options.model or training.STEPS:
            for what in filter(options.what.__contains__, MODES[mode][0]):
                print(f"{model_name}, {what}, {mode}", file=sys.stderr)
                rows.append(compare(options, model_name, what, mode))
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=2) + "\n")
    print(table(rows))
    bad = [text for row in rows for text in missed(row)]
    print("\n" + "\n".join(bad or ["all bounds are kept"]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
