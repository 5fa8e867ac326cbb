#!/usr/bin/env python3
"""Times Atelier beside diffusers: same weights, inputs and threads, in turns, and prints a table.

    .deps/venv/bin/python bench/diffusers_compare.py [dit] [vae] [load] [--dtype float32 bfloat16]
        [--family lumina2] [--model tiny middle]

README.md, beside this file, says what each row is and how it is measured.
"""

import argparse
import json
import mmap
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

from families import FAMILIES, REPOSITORY

PROGRAM = REPOSITORY / "build/release/bin/atelier"
BENCH_PROGRAM = REPOSITORY / "build/release/bin/atelier-bench"

# Blocks of the model that is loaded, which make its files 2 GiB in bfloat16.
LOAD_BLOCKS = 28
# Runs of a round: those of a tiny model are short, and differ more.
TURNS = {"tiny": 4, "middle": 1}
# Largest difference between the two sides' outputs, relative to the largest value. The bound for
# bfloat16 is loose: it is there to catch another computation, not another order of sums.
AGREEMENT = {"float32": 1e-3, "bfloat16": 0.15}


def proc_status(field):
    """A size out of /proc/self/status, in bytes."""
    for line in open("/proc/self/status"):
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


# --- weights and inputs ---


def make_vae(folder, dtype, name="AutoencoderKLQwenImage"):
    """Of the class `name` of diffusers, as it is published."""
    import diffusers
    import torch
    torch.manual_seed(2)
    model = getattr(diffusers, name)()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 4 and parameter.numel() > parameter.shape[0]:
                parameter.normal_(0, 1.3 / parameter[0].numel()**0.5)
    model.to(dtype).save_pretrained(folder)


def prepare(work, name, make):
    """Makes the folder `name` once; a folder that was left half written is made again."""
    folder = work / name
    done = folder / "complete"
    if not done.is_file():
        print(f"making {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        done.touch()
    return folder


def dit_inputs(family, side, lengths):
    """Latents, and what leads with and against the prompt, of so many tokens each."""
    import torch
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn((1, 16, 1, side, side), generator=generator)
    prompt, negative = (torch.randn((1, length, family.text_width), generator=generator)
                        for length in lengths)
    return {
        "latents": latents,
        "sigma": torch.full((1,), 0.75),
        "prompt_embeds": prompt,
        "negative_prompt_embeds": negative
    }


def dit_folder(options, family, model_name, dtype_name):
    """The denoiser's folder, made once."""
    import torch
    arguments, _ = family.models[model_name]
    dtype = getattr(torch, dtype_name)
    return prepare(options.work, f"dit_{family.plugin}_{model_name}_{dtype_name}",
                   lambda path: family.make_denoiser(path, dtype, **arguments))


def vae_inputs():
    import torch
    return {"latents": torch.randn((1, 16, 1, 32, 32), generator=torch.Generator().manual_seed(4))}


# --- the two sides ---


class DiffusersDit:
    """One denoising step; `calls` is 1 for one batch of two, 2 for the way of the pipeline."""

    def __init__(self, family, folder, dtype, inputs):
        import torch
        self.torch, self.velocity = torch, family.velocity()
        self.model = family.denoiser_class().from_pretrained(folder, dtype=dtype).eval()
        self.latents, self.sigma = inputs["latents"].to(dtype), inputs["sigma"].to(dtype)
        self.prompts = [
            inputs[name].to(dtype) for name in ("prompt_embeds", "negative_prompt_embeds")
        ]

    def batch(self, prompts):
        """One call: prompts of different lengths are padded, with a mask."""
        lengths = [prompt.shape[1] for prompt in prompts]
        embeds = self.torch.nn.utils.rnn.pad_sequence([prompt[0] for prompt in prompts],
                                                      batch_first=True)
        return self.velocity(self.model, self.latents.repeat(len(prompts), 1, 1, 1, 1),
                             self.sigma.repeat(len(prompts)), embeds,
                             self.torch.tensor(lengths) if len(set(lengths)) > 1 else None)

    def run(self, calls=1):
        with self.torch.no_grad():
            if calls == 1:
                return self.batch(self.prompts)
            return self.torch.cat([self.batch([prompt]) for prompt in self.prompts])


def serve_dit(family, folder, dtype_name, inputs):
    """Answers lines as atelier-bench does; {"calls": 2} is a step in two calls."""
    import torch
    from safetensors.torch import load_file, save_file
    diffusers = DiffusersDit(family, folder, getattr(torch, dtype_name), load_file(inputs))
    for line in sys.stdin:
        order = json.loads(line) if line.strip() else {}
        elapsed = timed(lambda: diffusers.run(order.get("calls", 1)))
        if "output" in order:
            save_file({"output": diffusers.run()}, order["output"])
        answer = {"runs_ms": [elapsed], "peak_rss_bytes": proc_status("VmHWM")}
        print(json.dumps(answer), flush=True)


class DiffusersVae:

    def __init__(self, folder, dtype):
        import torch
        from diffusers import AutoencoderKLQwenImage
        self.torch = torch
        self.model = AutoencoderKLQwenImage.from_pretrained(folder, dtype=dtype).eval()
        config = self.model.config
        mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1)
                     for values in (config.latents_mean, config.latents_std))
        self.latents = (vae_inputs()["latents"] * std + mean).to(dtype)

    def output(self):
        with self.torch.no_grad():
            return self.model.decode(self.latents).sample[:, :, 0]


def diffusers_load(folder, small):
    """Loads in this process, a fresh one, and prints what it took. Called through `--worker`.

    The folder `small` is loaded first: what diffusers imports on its first load is not counted.
    """
    import torch
    from diffusers import QwenImageTransformer2DModel
    QwenImageTransformer2DModel.from_pretrained(small, dtype=torch.bfloat16)
    started = time.perf_counter()
    model = QwenImageTransformer2DModel.from_pretrained(folder, dtype=torch.bfloat16)
    # safetensors maps the files and reads them when they are touched: one value of every page.
    total = sum(
        float(parameter.detach().flatten()[::2048].sum()) for parameter in model.parameters())
    elapsed = (time.perf_counter() - started) * 1000
    assert total == total
    print(
        json.dumps({
            "what": "load",
            "dtype": "bfloat16",
            "median_ms": elapsed,
            "runs_ms": [elapsed],
            "peak_rss_bytes": proc_status("VmHWM")
        }))


def plain_read(folder):
    """Reads the files into new memory and prints how long that took: what this machine allows."""
    files = sorted(folder.glob("*.safetensors"))
    memory = memoryview(mmap.mmap(-1, sum(path.stat().st_size for path in files)))
    started, end = time.perf_counter(), 0
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while got := file.readinto(memory[end:end + (16 << 20)]):
                end += got
    print(
        json.dumps({
            "runs_ms": [(time.perf_counter() - started) * 1000],
            "peak_rss_bytes": proc_status("VmHWM")
        }))


def command_line(command):
    """Runs the command below a shell, which is small.

    A process counts the size of the one that starts it towards its own peak.
    """
    return ["/bin/sh", "-c", '"$@"; exit $?', "sh", *map(str, command)]


def environment(threads):
    return dict(os.environ, OMP_NUM_THREADS=str(threads), HF_HUB_OFFLINE="1")


def call(command, threads):
    """Runs the command and returns the JSON objects that it prints."""
    result = subprocess.run(command_line(command),
                            env=environment(threads),
                            capture_output=True,
                            text=True)
    if result.returncode != 0:
        raise SystemExit(f"error: exit code {result.returncode}: {' '.join(map(str, command))}\n"
                         f"{result.stderr[-2000:]}")
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def whole_run(command, threads):
    """Runs the command: what it says of its progress, milliseconds of its processors and bytes at its peak."""
    process = subprocess.Popen(command_line(command), env=environment(threads), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"error: exit code {process.returncode}: {said[-2000:]}")
    return said, 1000 * (used.ru_utime + used.ru_stime), used.ru_maxrss * 1024


def bench_command(what, folder, dtype, threads, plugin="qwen_image"):
    return [
        BENCH_PROGRAM, what, "--plugin", plugin, "--model_paths",
        json.dumps([str(folder)]), "--dtype", dtype, "--threads", threads
    ]


class Program:
    """A program that answers each line with a JSON object."""

    def __init__(self, command, threads):
        self.name = command[0]
        self.process = subprocess.Popen(command_line(command),
                                        env=environment(threads),
                                        stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE,
                                        text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"error: {self.name} ended with exit code {self.process.wait()}")
        return json.loads(line)

    def cpu_ms(self):
        """What the command's threads have computed so far."""
        shell = self.process.pid
        command = pathlib.Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0]
        fields = pathlib.Path(f"/proc/{command}/stat").read_text().rpartition(")")[2].split()
        return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench(Program):
    """A side that has its model loaded and times one run whenever it is told to."""

    peak_bytes = 0

    def run(self, **order):
        answer = self.ask(json.dumps(order) if order else "")
        self.peak_bytes = answer["peak_rss_bytes"]
        return answer["runs_ms"][0]

    def output(self, path, **order):
        from safetensors.torch import load_file
        self.run(output=str(path), **order)
        return load_file(path)["output"]


def atelier_bench(what, folder, inputs, dtype, threads, *more, plugin="qwen_image"):
    return Bench(
        bench_command(what, folder, dtype, threads, plugin) +
        ["--inputs", inputs, "--pipe", *more], threads)


def diffusers_bench(family, folder, inputs, dtype, threads):
    return Bench(
        [sys.executable, __file__, "--dit_worker", family.plugin, folder, dtype, inputs], threads)


def difference(got, expected, what, dtype):
    """The largest, relative to the largest value; no more than runs that compare may have."""
    got, expected = got.double(), expected.double()
    error = float((got - expected).abs().max() / expected.abs().max())
    if not error <= AGREEMENT[dtype]:
        raise SystemExit(f"error: {what}, {dtype}: the outputs differ by {error:.3g} of their "
                         "scale, so their times do not compare")
    return error


def assert_agreement(component, folder, inputs, output, expected, dtype, work, threads):
    """Runs the component through `atelier probe` once and compares it with diffusers' output."""
    from safetensors.torch import load_file
    result = work / "probe.safetensors"
    call([
        PROGRAM, "probe", "--plugin", "qwen_image", "--component", component, "--model_paths",
        json.dumps([str(folder)]), "--inputs", inputs, "--output", result, "--dtype", dtype
    ], threads)
    return difference(load_file(result)[output], expected, component, dtype)


# --- rows ---


def timed(function):
    started = time.perf_counter()
    function()
    return (time.perf_counter() - started) * 1000


def in_turns(rounds, sides):
    """Runs every side once a round and returns each side's times in milliseconds.

    The first round is not counted: it warms up caches, and waits for programs that still load.
    """
    times = {name: [] for name in sides}
    for number in range(rounds + 1):
        latest = {name: side() for name, side in sides.items()}
        label = f"round {number} of {rounds}" if number else "warm-up"
        print(f"  {label}: " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in latest.items()),
              file=sys.stderr)
        if number:
            for name, ms in latest.items():
                times[name].append(ms)
    return times


def row(name, dtype, theirs, ours, unit="ms", note=""):
    theirs_median, ours_median = statistics.median(theirs), statistics.median(ours)
    spread = max(
        (max(values) - min(values)) / statistics.median(values) for values in (theirs, ours))
    return {
        "row": name,
        "dtype": dtype,
        "unit": unit,
        "diffusers": theirs_median,
        "atelier": ours_median,
        "ratio": ours_median / theirs_median,
        "ratio_of_best": min(ours) / min(theirs),
        "spread": spread,
        "note": note,
        "diffusers_runs": theirs,
        "atelier_runs": ours
    }


def compare_dit(options, dtype_name):
    family = FAMILIES[options.family]
    return [
        entry for model_name in options.model for lengths in family.prompts
        for entry in compare_step(options, family, model_name, lengths, dtype_name)
    ]


def compare_step(options, family, model_name, lengths, dtype_name):
    from safetensors.torch import save_file
    folder = dit_folder(options, family, model_name, dtype_name)
    inputs, output = options.work / "dit.safetensors", options.work / "output.safetensors"
    _, side = family.models[model_name]
    save_file(dit_inputs(family, side, lengths), inputs)
    arguments = (folder, inputs, dtype_name, options.threads)
    with diffusers_bench(family, *arguments) as theirs, \
            atelier_bench("dit", *arguments, plugin=family.plugin) as ours:
        error = difference(ours.output(output), theirs.output(output), f"{model_name} dit",
                           dtype_name)
        peaks = {"diffusers": theirs.peak_bytes / 1e9, "Atelier": ours.peak_bytes / 1e9}
        times = in_turns(
            TURNS[model_name] * options.rounds, {
                "diffusers": theirs.run,
                "Atelier": ours.run,
                "diffusers in two calls": lambda: theirs.run(calls=2)
            })
    name = f"{model_name}, prompts of {lengths[0]} and {lengths[1]} tokens: "
    return [
        row(name + "denoising step, guidance in one batch",
            dtype_name,
            times["diffusers"],
            times["Atelier"],
            note=f"outputs agree to {error:.1e}"),
        row(name + "denoising step, diffusers in two calls",
            dtype_name,
            times["diffusers in two calls"],
            times["Atelier"],
            note="as its pipeline does"),
        row(name + "peak resident memory",
            dtype_name, [peaks["diffusers"]], [peaks["Atelier"]],
            unit="GB",
            note="whole process, one batch")
    ]


def compare_vae(options, dtype_name):
    import torch
    from safetensors.torch import save_file
    dtype = getattr(torch, dtype_name)
    folder = prepare(options.work, f"vae_{dtype_name}", lambda path: make_vae(path, dtype))
    inputs = options.work / "vae_inputs.safetensors"
    save_file(vae_inputs(), inputs)
    diffusers = DiffusersVae(folder, dtype)
    error = assert_agreement("vae", folder, inputs, "image", diffusers.output(), dtype_name,
                             options.work, options.threads)
    with atelier_bench("vae", folder, inputs, dtype_name, options.threads) as ours:
        times = in_turns(options.rounds, {
            "diffusers": lambda: timed(diffusers.output),
            "Atelier": ours.run
        })
    return [
        row("VAE decode, 256 x 256",
            dtype_name,
            times["diffusers"],
            times["Atelier"],
            note=f"outputs agree to {error:.1e}")
    ]


def drop_from_page_cache(folder):
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compare_load(options):
    import torch
    family = FAMILIES["qwen_image"]
    arguments, _ = family.models["middle"]

    def make(path, blocks):
        family.make_denoiser(path, torch.bfloat16, **{**arguments, "num_layers": blocks})

    folder = prepare(options.work, "load_bfloat16", lambda path: make(path, LOAD_BLOCKS))
    small = prepare(options.work, "load_small", lambda path: make(path, 1))
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    commands = {
        "diffusers": [sys.executable, __file__, "--worker", folder, small],
        "Atelier": bench_command("load", folder, "bfloat16", options.threads),
        "plain read": [sys.executable, __file__, "--plain_read", folder]
    }
    peaks = {name: [] for name in commands}

    def load(name):
        if options.cold:
            drop_from_page_cache(folder)
        result, = call(commands[name], options.threads)
        peaks[name].append(result["peak_rss_bytes"] / size)
        return result["runs_ms"][0]

    times = in_turns(options.rounds, {name: lambda name=name: load(name) for name in commands})
    rates = {name: size / 1e6 / statistics.median(values) for name, values in times.items()}
    cache = "cold" if options.cold else "warm"
    return [
        row(f"load {size / 2**30:.2f} GiB, page cache {cache}",
            "bfloat16",
            times["diffusers"],
            times["Atelier"],
            note=f"{rates['diffusers']:.2f} and {rates['Atelier']:.2f} GB/s"),
        row("load, beside a plain read",
            "bfloat16",
            times["plain read"],
            times["Atelier"],
            note=f"{rates['plain read']:.2f} GB/s into new memory"),
        row("load, peak resident memory",
            "bfloat16",
            peaks["diffusers"],
            peaks["Atelier"],
            unit="x file",
            note="whole process")
    ]


def table(rows):
    lines = [
        "| row | dtype | diffusers | Atelier | Atelier / diffusers | of the best | spread | note |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"
    ]
    for entry in rows:
        small = min(entry["diffusers"], entry["atelier"]) < 100
        digits = 2 if entry["unit"] != "ms" else 1 if small else 0
        lines.append(f"| {entry['row']} | {entry['dtype']} | "
                     f"{entry['diffusers']:.{digits}f} {entry['unit']} | "
                     f"{entry['atelier']:.{digits}f} {entry['unit']} | {entry['ratio']:.2f} | "
                     f"{entry['ratio_of_best']:.2f} | {entry['spread']:.0%} | {entry['note']} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="any of dit, vae, load; all without one")
    parser.add_argument("--family", choices=list(FAMILIES), default="qwen_image")
    parser.add_argument("--model",
                        nargs="+",
                        choices=list(TURNS),
                        default=["middle"],
                        help="for dit (default middle)")
    parser.add_argument("--dtype",
                        nargs="+",
                        choices=["float32", "bfloat16"],
                        default=["float32", "bfloat16"],
                        help="for dit and vae; load is bfloat16")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (default 5)")
    parser.add_argument("--threads",
                        type=int,
                        default=os.cpu_count(),
                        help="threads of each side (default: all)")
    parser.add_argument("--work",
                        type=pathlib.Path,
                        default=REPOSITORY / "build/bench_models",
                        help="where the weights are made and kept, about 5 GB")
    parser.add_argument("--cold",
                        action="store_true",
                        help="drop the files from the page cache before each load")
    parser.add_argument("--json", type=pathlib.Path, help="also write every run to this file")
    parser.add_argument("--worker", nargs=2, type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--dit_worker", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--plain_read", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain_read:
        plain_read(options.plain_read)
        return 0
    if options.worker:
        diffusers_load(*options.worker)
        return 0
    if options.dit_worker:
        family, folder, dtype_name, inputs = options.dit_worker
        serve_dit(FAMILIES[family], folder, dtype_name, inputs)
        return 0
    parts = FAMILIES[options.family].parts
    unknown = set(options.what) - set(parts)
    if unknown:
        parser.error(f"no such measurement of {options.family}: {', '.join(sorted(unknown))}; "
                     f"there are {', '.join(parts)}")
    for program in (PROGRAM, BENCH_PROGRAM):
        if not program.is_file():
            print(f"error: {program}: not built; run tools/build", file=sys.stderr)
            return 3

    # The libraries read these when they are imported, in this process too.
    os.environ.update(OMP_NUM_THREADS=str(options.threads), HF_HUB_OFFLINE="1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import torch
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for what in options.what or parts:
        if what == "load":
            print("load", file=sys.stderr)
            rows += compare_load(options)
            continue
        for dtype_name in options.dtype:
            print(f"{what}, {dtype_name}", file=sys.stderr)
            rows += {"dit": compare_dit, "vae": compare_vae}[what](options, dtype_name)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
