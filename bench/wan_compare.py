#!/usr/bin/env python3
"""Times Wan beside diffusers: the VAE on clips, a denoising step without and with a LoRA, and a VACE.

    .deps/venv/bin/python bench/wan_compare.py [decode] [encode] [dit] [vace] [--threads 1] [--rounds 5]

README.md, beside this file, says what each row is and how it is measured.
"""

import argparse
import json
import os
import pathlib
import sys

import diffusers_compare as base
from families import REPOSITORY, WAN
from train_compare import RANK, write_lora

SIDE = 128  # pixels of a clip
FRAMES, MORE_FRAMES = 17, 81
TEXT_TOKENS = 512
GRID = (5, 32, 32)  # latents: 1,280 tokens
WIDTH = 1536


# --- weights and inputs ---


def make_dit(folder):
    import torch
    arguments, _ = WAN.models["middle"]
    WAN.make_denoiser(folder, torch.float32, **arguments)


def make_vace(folder):
    """Two blocks of a VACE, and the denoiser beside it."""
    import torch
    from diffusers import WanVACETransformer3DModel
    arguments, _ = WAN.models["middle"]
    torch.manual_seed(5)
    WanVACETransformer3DModel(**{**arguments, "num_layers": 2}, vace_layers=[0, 1]).save_pretrained(folder)


def vace_inputs():
    import torch
    generator = torch.Generator().manual_seed(6)
    T, H, W = GRID
    shapes = {"rows": (1, T * H * W // 4, WIDTH), "control": (1, 96, T, H, W), "time": (1, 6 * WIDTH),
              "text": (1, TEXT_TOKENS, WIDTH)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def clip_inputs(what, frames):
    import torch
    generator = torch.Generator().manual_seed(4)
    if what == "encode":
        return {"clip": torch.rand((1, 3, frames, SIDE, SIDE), generator=generator) * 2 - 1}
    shape = (1, 16, (frames - 1) // 4 + 1, SIDE // 8, SIDE // 8)
    return {"latents": torch.randn(shape, generator=generator)}


def step_inputs():
    import torch
    generator = torch.Generator().manual_seed(3)
    prompts = torch.randn((2, 1, TEXT_TOKENS, 4096), generator=generator)
    return {
        "latents": torch.randn((1, 16, *GRID), generator=generator),
        "sigma": torch.full((1,), 0.75),
        "prompt_embeds": prompts[0].contiguous(),
        "negative_prompt_embeds": prompts[1].contiguous()
    }


# --- diffusers' side, in a process of its own ---


def vae_worker(folder, inputs):
    import wan_models
    from diffusers import AutoencoderKLWan
    model = AutoencoderKLWan.from_pretrained(folder).eval()
    if "clip" in inputs:
        return lambda order: wan_models.encode(model, inputs["clip"])
    return lambda order: wan_models.decode(model, inputs["latents"])


def dit_worker(folder, inputs):
    import torch
    import wan_models
    from diffusers import WanTransformer3DModel
    model = WanTransformer3DModel.from_pretrained(folder).eval()
    adapted = {}

    def of(order):
        """The model with the LoRA that is asked for."""
        lora = order.get("lora")
        if lora is None:
            return model
        if lora not in adapted:
            adapted[lora] = WanTransformer3DModel.from_pretrained(folder).eval()
            adapted[lora].load_lora_adapter(lora)
        return adapted[lora]

    def run(order):
        prompts = [inputs["prompt_embeds"], inputs["negative_prompt_embeds"]]
        if order.get("calls", 1) == 1:
            prompts = [torch.cat(prompts)]
        return torch.cat([
            wan_models.velocity(of(order), inputs["latents"].repeat(len(prompt), 1, 1, 1, 1),
                                inputs["sigma"].repeat(len(prompt)), prompt) for prompt in prompts
        ])

    return run


def vace_worker(folder, inputs):
    import wan_models
    from diffusers import WanVACETransformer3DModel
    model = WanVACETransformer3DModel.from_pretrained(folder).eval()
    return lambda order: wan_models.vace_hints(model, **inputs)


WORKERS = {"decode": vae_worker, "encode": vae_worker, "dit": dit_worker, "vace": vace_worker}


def serve(worker, folder, path):
    """Answers lines as atelier-bench does; `worker` makes what runs of a folder and inputs."""
    import torch
    from safetensors.torch import load_file, save_file
    sys.path.insert(0, str(REPOSITORY / "tests/parity"))
    run = worker(folder, load_file(path))
    with torch.no_grad():
        for line in sys.stdin:
            order, output = json.loads(line) if line.strip() else {}, []
            elapsed = base.timed(lambda: output.append(run(order)))
            if "output" in order:
                save_file({"output": output[0].contiguous()}, order["output"])
            answer = {"runs_ms": [elapsed], "peak_rss_bytes": base.proc_status("VmHWM")}
            print(json.dumps(answer), flush=True)


# --- rows ---


def sides(options, what, folder, inputs):
    theirs = base.Bench([sys.executable, __file__, "--worker", what, folder, inputs],
                        options.threads)
    component = what if what in ("dit", "vace") else "vae"
    ours = base.atelier_bench(component, folder, inputs, "float32", options.threads, plugin="wan")
    return theirs, ours


def agreement(theirs, ours, what, work):
    path = work / "wan_output.safetensors"
    return base.difference(ours.output(path), theirs.output(path), what, "float32")


def in_turns(rounds, sides):
    """Times and CPU times of every side, which is a program and what it is asked."""
    cpu = {name: [] for name in sides}

    def run(name):
        program, order = sides[name]
        begin = program.cpu_ms()
        elapsed = program.run(**order)
        cpu[name].append(program.cpu_ms() - begin)
        return elapsed

    times = base.in_turns(rounds, {name: lambda name=name: run(name) for name in sides})
    return times, {name: values[1:] for name, values in cpu.items()}


def time_rows(name, timed, side="theirs", note=""):
    """The time and the CPU time of a side beside ours."""
    for kind, values in zip(("", ", CPU time"), timed):
        yield base.row(name + kind, "float32", values[side], values["ours"], note=note)


def compare_vae(options, what):
    import torch
    from safetensors.torch import save_file
    folder = base.prepare(options.work, "wan_vae",
                          lambda path: base.make_vae(path, torch.float32, "AutoencoderKLWan"))
    for frames in (FRAMES, MORE_FRAMES):
        name = f"VAE {what}, {frames} frames of {SIDE} x {SIDE}"
        inputs = options.work / f"wan_{what}_{frames}.safetensors"
        save_file(clip_inputs(what, frames), inputs)
        theirs, ours = sides(options, what, folder, inputs)
        with theirs, ours:
            error = agreement(theirs, ours, name, options.work)
            peaks = theirs.peak_bytes / 1e9, ours.peak_bytes / 1e9
            if frames == FRAMES:
                timed = in_turns(options.rounds, {"theirs": (theirs, {}), "ours": (ours, {})})
                yield from time_rows(name, timed)
        yield base.row(f"{name}, peak", "float32", [peaks[0]], [peaks[1]], unit="GB",
                       note=f"outputs agree to {error:.1e}")


def compare_dit(options):
    from diffusers import WanTransformer3DModel
    from safetensors.torch import save_file
    folder = base.prepare(options.work, "wan_dit", make_dit)
    inputs, lora = options.work / "wan_dit.safetensors", options.work / "wan_lora.safetensors"
    save_file(step_inputs(), inputs)
    write_lora(lora, WAN, WanTransformer3DModel.from_pretrained(folder))
    theirs, ours = sides(options, "dit", folder, inputs)
    with theirs, ours:
        error = agreement(theirs, ours, "DiT", options.work)
        peaks = theirs.peak_bytes / 1e9, ours.peak_bytes / 1e9
        timed = in_turns(
            options.rounds, {
                "theirs": (theirs, {}),
                "ours": (ours, {}),
                "in two calls": (theirs, {"calls": 2})
            })
        name = f"DiT step, four blocks of 1536, 1,280 tokens, {TEXT_TOKENS} of text"
        yield from time_rows(name, timed, note=f"outputs agree to {error:.1e}")
        yield from time_rows("the same, diffusers in two calls", timed, "in two calls",
                             note="as its pipeline does")
        yield base.row("DiT step, peak", "float32", [peaks[0]], [peaks[1]], unit="GB",
                       note="whole process")
        ours.ask(json.dumps({"loras": [f"{lora}:1"]}))
        result = options.work / "wan_output.safetensors"
        error = base.difference(ours.output(result), theirs.output(result, lora=str(lora)),
                                "DiT with a LoRA", "float32")
        timed = in_turns(options.rounds, {
            "theirs": (theirs, {"lora": str(lora)}),
            "ours": (ours, {})
        })
        yield from time_rows(f"DiT step with a LoRA of rank {RANK}", timed,
                             note=f"outputs agree to {error:.1e}")


def compare_vace(options):
    from safetensors.torch import save_file
    folder = base.prepare(options.work, "wan_vace", make_vace)
    inputs = options.work / "wan_vace.safetensors"
    save_file(vace_inputs(), inputs)
    theirs, ours = sides(options, "vace", folder, inputs)
    with theirs, ours:
        error = agreement(theirs, ours, "VACE", options.work)
        timed = in_turns(options.rounds, {"theirs": (theirs, {}), "ours": (ours, {})})
        yield from time_rows(f"VACE, two blocks of {WIDTH}, 1,280 tokens, {TEXT_TOKENS} of text", timed,
                             note=f"outputs agree to {error:.1e}")


ROWS = {
    "decode": lambda options: compare_vae(options, "decode"),
    "encode": lambda options: compare_vae(options, "encode"),
    "dit": compare_dit,
    "vace": compare_vace
}


def run(description, rows):
    """Prints the table of what the command line names of `rows`, which give the rows of each by its name."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"any of {', '.join(rows)}; all without one")
    parser.add_argument("--threads", type=int, default=1, help="of each side (default 1)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each side (default 5)")
    parser.add_argument("--work",
                        type=pathlib.Path,
                        default=REPOSITORY / "build/bench_models",
                        help="where the weights are made and kept, about 1.5 GB")
    options = parser.parse_args()
    unknown = set(options.what) - set(rows)
    if unknown:
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}; there are "
                     f"{', '.join(rows)}")
    if not base.BENCH_PROGRAM.is_file():
        print(f"error: {base.BENCH_PROGRAM}: not built; run tools/build", file=sys.stderr)
        return 3
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    options.work.mkdir(parents=True, exist_ok=True)
    print("| | diffusers | Atelier | Atelier / diffusers | of the best | |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for what in options.what or rows:
        for row in rows[what](options):
            print("| {row} | {diffusers:.4g} {unit} | {atelier:.4g} {unit} | {ratio:.2f} | "
                  "{ratio_of_best:.2f} | {note} |".format(**row), flush=True)
    return 0


def main():
    if sys.argv[1:2] == ["--worker"]:
        what, folder, inputs = sys.argv[2:]
        return serve(WORKERS[what], folder, inputs)
    return run(__doc__, ROWS)


if __name__ == "__main__":
    sys.exit(main())
