#!/usr/bin/env python3
"""Counts what ranks send each other, and times their steps beside one rank and beside torchrun.

    .deps/venv/bin/python bench/dist_compare.py [tiny] [middle] [--what lora full] [--ranks 2]
        [--mode ddp zero1 ...] [--side 512] [--no_torch]

README.md, beside this file, says what each row is and how it is measured.
"""

import argparse
import collections
import json
import os
import pathlib
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time

import diffusers_compare as base
import train_compare as training

# Of what is trained, of its values, of blocks and of one of them: bytes. Of a batch: rows in
# attention, on average. Of attention: numbers of a row of queries, and of keys.
Sizes = collections.namedtuple("Sizes", "trained values blocks last layers rows queries keys key_heads")


def divided(ranks, batches, sizes):
    """What each rank of `ranks` that divide blocks that are trained sends, in parts of all of it.

    With one place for blocks, the last one of each pass over them is still there, unless it was
    moved in between.
    """
    passes = batches * (2 * sizes.blocks - sizes.last) - (batches - 1) * sizes.last
    return (ranks - 1) / ranks * (batches * sizes.trained + sizes.values - sizes.blocks + passes)


def in_pairs(ranks, sent, sizes):
    """All ranks in groups of two: `sent` is what each sends in its own."""
    pairs = ranks / 2
    return ranks * (sent + 2 * (pairs - 1) / pairs * sizes.trained / 2)


def exchanged(ranks, sizes):
    """Ulysses, in both passes, and gradients."""
    of_pass = (ranks - 1) * sizes.rows / ranks * 2 * (sizes.queries + sizes.keys) * 4
    return 2 * (ranks - 1) * sizes.trained + 2 * sizes.layers * of_pass


def passed_on(ranks, sizes):
    """Ring, once forward and twice backward, and gradients."""
    return 2 * (ranks - 1) * sizes.trained + 3 * sizes.layers * 2 * (ranks - 1) * sizes.rows * sizes.keys * 4


def first_that(divides):
    """The fewest ranks that divide the key heads, or that do not."""
    return lambda options, sizes: next(
        ranks for ranks in range(2, 99) if (sizes.key_heads % ranks == 0) == divides)


# Of a mode: what is trained with it, the flags of `atelier train`, the bytes that all W ranks together
# send in a step, and how many ranks, where that is not --ranks.
Mode = collections.namedtuple("Mode", "what flags sent ranks", defaults=[lambda options, sizes: options.ranks])
TWICE = {"gradient_accumulation_steps": 2, "dataset_repeat": 2}
FOUR = {"ranks": lambda options, sizes: 4}
MODES = {
    "ddp": Mode(("lora", "full"), {"zero_stage": 0}, lambda W, s: 2 * (W - 1) * s.trained),
    "zero1": Mode(("full",), {"zero_stage": 1}, lambda W, s: (W - 1) * (s.trained + s.values)),
    "zero2": Mode(("full",), {"zero_stage": 2}, lambda W, s: (W - 1) * (s.trained + s.values)),
    "zero3": Mode(("lora",), {"zero_stage": 3, "prefetch": 0},
                  lambda W, s: (W - 1) * (2 * s.trained + 2 * (s.blocks - s.last))),
    "zero3_full": Mode(("full",), {"zero_stage": 3, "prefetch": 0}, lambda W, s: W * divided(W, 1, s)),
    "ddp_twice": Mode(("full",), {"zero_stage": 0, **TWICE}, lambda W, s: 2 * (W - 1) * s.trained),
    "zero2_twice": Mode(("full",), {"zero_stage": 2, **TWICE}, lambda W, s: (W - 1) * (2 * s.trained + s.values)),
    "zero3_twice": Mode(("lora",), {"zero_stage": 3, "prefetch": 0, **TWICE},
                        lambda W, s: (W - 1) * (2 * s.trained + 4 * (s.blocks - s.last))),
    "zero3_full_twice": Mode(("full",), {"zero_stage": 3, "prefetch": 0, **TWICE}, lambda W, s: W * divided(W, 2, s)),
    "pairs_zero1": Mode(("full",), {"zero_stage": 1, "zero_group": 2},
                        lambda W, s: in_pairs(W, (s.trained + s.values) / 2, s), **FOUR),
    "pairs_zero2": Mode(("full",), {"zero_stage": 2, "zero_group": 2},
                        lambda W, s: in_pairs(W, (s.trained + s.values) / 2, s), **FOUR),
    "pairs_zero3": Mode(("full",), {"zero_stage": 3, "prefetch": 0, "zero_group": 2},
                        lambda W, s: in_pairs(W, divided(2, 1, s), s), **FOUR),
    "ulysses": Mode(("full",), {"zero_stage": 0}, exchanged, first_that(True)),
    "ring": Mode(("full",), {"zero_stage": 0}, passed_on, first_that(False)),
}
# PyTorch's way to do the same.
TORCH = {"ddp": "ddp", "zero3": "fsdp2", "zero3_full": "fsdp2"}
SIDE = 512  # pixels, where a step of the tiny model computes longer than an exchange takes
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
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_ranks([str(word) for word in words], ranks)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    columns, times = training.read_log(output)
    shutil.rmtree(output)
    return {
        "times": times,
        "losses": columns["train/loss"],
        "cpu_ms": 1000 * (after.ru_utime - used.ru_utime + after.ru_stime - used.ru_stime)
    }


def run_ranks(words, ranks):
    """Each process on a core of its own, as far as there are cores; PyTorch's are placed alike."""
    cores = sorted(os.sched_getaffinity(0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(ranks):
        places = {} if ranks == 1 else {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port
        }
        environment = {**base.environment(1), **{name: str(value) for name, value in places.items()}}
        processes.append(subprocess.Popen(["taskset", "-c", str(cores[rank % len(cores)]), *words],
                                          env=environment, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.PIPE, text=True))
    said = [process.communicate()[1] for process in processes]
    for process, text in zip(processes, said):
        if process.returncode != 0:
            raise SystemExit(f"error: exit code {process.returncode}: {text[-6000:]}")


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


# --- rows ---


def sizes_of(options, family, folder, what):
    from safetensors import safe_open
    transformer = family.denoiser_class().from_pretrained(folder / "model/transformer")
    layers = transformer.transformer_blocks
    blocks = 4 * sum(p.numel() for p in layers.parameters())
    trained = 4 * sum(p.numel() for p in transformer.parameters())
    if what == "lora":
        with safe_open(folder / "start_own_names.safetensors", "pt") as file:
            trained = 4 * sum(file.get_tensor(name).numel() for name in file.keys())
    texts = []
    for path in (folder / training.of_side("cache", options.side) / "text").glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            texts.append(max(file.get_slice(name).get_shape()[0] for name in file.keys()))
    config = transformer.config  # of Qwen-Image, which has as many key heads as others
    heads, width = config.num_attention_heads, config.attention_head_dim
    return Sizes(trained, trained, blocks, blocks // len(layers), len(layers),
                 (options.side // 16)**2 + statistics.mean(texts), heads * width, heads * width, heads)


def compare(options, model_name, what, name):
    family, steps = training.TRAINED[options.family], options.steps or training.STEPS[model_name]
    folder = training.prepare(options, family, model_name, options.side)
    mode, sizes = MODES[name], sizes_of(options, family, folder, what)
    ranks = mode.ranks(options, sizes)
    flags = dict(mode.flags)
    if mode.sent in (exchanged, passed_on):
        flags["sequence_parallel"] = ranks
    row = {"model": model_name, "what": what, "mode": name, "side": options.side, "count": ranks}
    row["table_bytes"] = mode.sent(ranks, sizes)
    row["lo_bytes"], of_ranks = a_step(options, folder, what, ranks, flags, steps)
    if options.bytes:
        return row
    _, of_one = a_step(options, folder, what, 1, {}, steps)
    walls = {"one": [], "ranks": [], "torchrun": []}
    computed = {"one": [of_one], "ranks": [of_ranks], "torchrun": []}
    for _ in range(options.rounds):
        walls["one"] += run_atelier(options, folder, what, 1, 1 + steps, {})["times"][1:]
        ours = run_atelier(options, folder, what, ranks, 1 + steps, flags)
        walls["ranks"] += ours["times"][1:]
        if name in TORCH and not options.no_torch:
            answer = run_torch(options, folder, what, TORCH[name], 1 + steps)
            agree(answer["losses"], ours["losses"], f"{model_name}, {what}, {name}")
            walls["torchrun"] += [wall for wall, _ in answer["times"][1:]]
            computed["torchrun"] += [cpu for _, cpu in answer["times"][1:]]
    for side, times in walls.items():
        if times:
            row[side] = {"quickest": min(times), "cpu": statistics.median(computed[side])}
    return row


def agree(theirs, ours, title):
    error = max(abs(a - b) / b for a, b in zip(ours, theirs))
    if not error <= training.AGREEMENT:
        raise SystemExit(f"error: {title}: the losses {ours} are not {theirs}")


def table(rows):
    columns = ["model", "side", "trained", "mode", "processes", "MB on lo a step", "over the table"]
    if any("one" in row for row in rows):
        columns += ["one rank, quickest", "CPU", "ranks, quickest", "CPU", "of one rank", "CPU",
                    "torchrun, quickest", "CPU", "of torchrun", "CPU"]
    lines = ["| " + " | ".join(columns) + " |",
             "|" + "".join(" --- |" if name in ("model", "trained", "mode") else " ---: |" for name in columns)]
    for row in rows:
        cells = [row["model"], str(row["side"]), row["what"], row["mode"], str(row["count"])]
        cells.append(f"{row['lo_bytes'] / 1e6:.3f}")
        cells.append(f"{row['lo_bytes'] / row['table_bytes'] - 1:+.1%}")
        if "one" in row:
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
    if row["mode"] == "ddp" and "one" in row and row["ranks"]["quickest"] > RANKS_BOUND * row["one"]["quickest"]:
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
                        default=SIDE,
                        help=f"pixels of an image's edge (default {SIDE})")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side (default 3)")
    parser.add_argument("--steps", type=int, help="of a turn, beside one that does not count")
    parser.add_argument("--no_torch", action="store_true", help="without torchrun")
    parser.add_argument("--bytes", action="store_true", help="bytes alone, for which other work does not matter")
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
    for mode in options.mode or MODES:
        for model_name in options.model or training.STEPS:
            for what in filter(options.what.__contains__, MODES[mode].what):
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
