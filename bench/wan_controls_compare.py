#!/usr/bin/env python3
"""Times whole denoising steps of Wan with what stands beside them: a VACE, Animate's adapter, and what hears.

    .deps/venv/bin/python bench/wan_controls_compare.py [vace] [animate] [s2v] [inactive] [--threads 1] [--rounds 5]

README.md, beside this file, says what each row is and how it is measured.
"""

import functools
import json
import re
import shutil
import sys

import diffusers_compare as base
import wan_compare
from families import REPOSITORY, WAN

GRID = (5, 32, 32)  # latents: 1,280 tokens
TEXT_TOKENS = wan_compare.TEXT_TOKENS
IMAGE_ROWS, FACE_SIDE = 257, 512
STATES, SOUND_WIDTH, MOTION_FRAMES = 25, 1024, 19
STEPS = 3  # of a clip whose steps nothing is added to


def arguments():
    return WAN.models["middle"][0]


# --- weights ---


def make_vace(folder):
    """As many blocks beside the denoiser's as the model of 1.3 billion has: one for each two."""
    import torch
    from diffusers import WanVACETransformer3DModel
    torch.manual_seed(5)
    WanVACETransformer3DModel(**arguments(), vace_layers=[0, 2]).save_pretrained(folder)


def make_animate(folder):
    """Five blocks, behind the first of which there is an adapter, as of the published 40."""
    import torch
    from diffusers import WanAnimateTransformer3DModel
    torch.manual_seed(6)
    sizes = {**arguments(), "num_layers": 5}
    WanAnimateTransformer3DModel(**sizes, added_kv_proj_dim=wan_compare.WIDTH).save_pretrained(folder)


def speech_models():
    """The published maths, of the sizes that are timed: a block of four is followed by one that hears."""
    import wan_models
    import wan_s2v_models as s2v
    wan_models.TEXT_WIDTH = 4096
    s2v.STATES, s2v.SOUND_WIDTH, s2v.WIDTH, s2v.HEADS = STATES, SOUND_WIDTH, wan_compare.WIDTH, 12
    s2v.LAYERS, s2v.HEARS, s2v.AXES, s2v.MLP, s2v.WAVES = 4, (0,), (44, 42, 42), 8960, 256
    return s2v


def make_speech(folder):
    import torch
    torch.manual_seed(7)
    s2v = speech_models()
    s2v.save(s2v.SpeechDit(), folder)


# --- inputs ---


def step_inputs(draw):
    """Those of every step, with the prompt and without."""
    import torch
    inputs = {"latents": draw(16, *GRID), "sigma": torch.full((1,), 0.75)}
    return inputs, {name + "prompt_embeds": draw(TEXT_TOKENS, 4096) for name in ("", "negative_")}


def with_both(inputs, beside, prompts):
    """`beside` is the same on both branches."""
    return {**inputs, **prompts, **beside, **{"negative_" + name: value.clone() for name, value in beside.items()}}


def vace_inputs(draw):
    inputs, prompts = step_inputs(draw)
    return with_both(inputs, {"vace_clip": draw(96, *GRID)}, prompts)


def animate_inputs(draw):
    T, H, W = GRID
    inputs, prompts = step_inputs(draw)
    beside = {"given_clip": draw(20, *GRID), "image_embeds": draw(IMAGE_ROWS, 1280), "animate_pose": draw(16, T - 1, H, W),
              "animate_faces": draw(3, 4 * (T - 2) + 1, FACE_SIDE, FACE_SIDE).clamp(-1, 1)}
    return with_both(inputs, beside, prompts)


def speech_inputs(draw):
    import torch
    T, H, W = GRID
    inputs, prompts = step_inputs(draw)
    frames = 4 * (T - 1)
    beside = {"first_frame": inputs["latents"][:, :, :1].clone(), "audio_states": draw(STATES, frames, SOUND_WIDTH),
              "audio_frames": torch.arange(frames)[None], "pose": draw(16, T - 1, H, W),
              "motion_latents": draw(16, MOTION_FRAMES, H, W)}
    return with_both(inputs, beside, prompts)


# --- the other side, in a process of its own ---


def repeated(inputs, count, name):
    value = inputs[name]
    return value.repeat(count, *[1] * (value.dim() - 1))


def vace_step(prompts, count, inputs, model):
    get = functools.partial(repeated, inputs, count)
    return model(hidden_states=get("latents"), timestep=1000 * get("sigma"), encoder_hidden_states=prompts,
                 control_hidden_states=get("vace_clip"), return_dict=False)[0]


def animate_step(prompts, count, inputs, model):
    import torch
    get = functools.partial(repeated, inputs, count)
    return model(hidden_states=torch.cat([get("latents"), get("given_clip")], 1), timestep=1000 * get("sigma"),
                 encoder_hidden_states=prompts, encoder_hidden_states_image=get("image_embeds"),
                 pose_hidden_states=get("animate_pose"), face_pixel_values=get("animate_faces"), return_dict=False)[0]


def speech_step(prompts, count, inputs, model):
    import torch
    names = ("audio_states", "pose", "motion_latents")
    return torch.stack([model(inputs["latents"][0], inputs["sigma"][0], prompt, *(inputs[name][0] for name in names))
                        for prompt in prompts])


def worker_of(step, load):
    """`step` in one batch of both branches, or in two calls, as pipelines do."""
    def worker(folder, inputs):
        import torch
        model = load(folder)
        prompts = [inputs[name] for name in ("prompt_embeds", "negative_prompt_embeds")]

        def run(order):
            if order.get("calls") == 2:
                return torch.cat([step(prompt, 1, inputs, model) for prompt in prompts])
            return step(torch.cat(prompts), 2, inputs, model)
        return run
    return worker


def load_of(name):
    def load(folder):
        import diffusers
        return getattr(diffusers, name).from_pretrained(folder).eval()
    return load


def load_speech(folder):
    from safetensors.torch import load_file
    model = speech_models().SpeechDit()
    model.load_state_dict(load_file(folder + "/diffusion_pytorch_model.safetensors"))
    return model.eval()


SIZES = f"1,280 tokens, {TEXT_TOKENS} of text"
# What is timed: components beside the denoiser, weights, inputs, the other side, and what a row says of it.
PARTS = {
    "vace": ("vace", make_vace, vace_inputs, worker_of(vace_step, load_of("WanVACETransformer3DModel")),
             f"VACE, a step: four blocks and two of the VACE, {SIZES}"),
    "animate": ("animate_adapter", make_animate, animate_inputs,
                worker_of(animate_step, load_of("WanAnimateTransformer3DModel")),
                f"Animate, a step: five blocks, one adapter, 13 pictures of a face, {SIZES}"),
    "s2v": ("", make_speech, speech_inputs, worker_of(speech_step, load_speech),
            f"speech to video, a step: four blocks, one that hears, frames before, {SIZES}"),
}


def compare(options, what):
    import torch
    from safetensors.torch import save_file
    beside, make, make_inputs, _, name = PARTS[what]
    folder = base.prepare(options.work, f"wan_{what}_step", make)
    generator = torch.Generator().manual_seed(3)
    inputs = options.work / f"wan_{what}_step.safetensors"
    save_file(make_inputs(lambda *shape: torch.randn((1, *shape), generator=generator)), inputs)
    theirs = base.Bench([sys.executable, __file__, "--worker", what, folder, inputs], options.threads)
    ours = base.atelier_bench("dit", folder, inputs, "float32", options.threads, "--beside", beside, plugin="wan")
    sides = {"theirs": (theirs, {}), "ours": (ours, {}), "in two calls": (theirs, {"calls": 2})}
    with theirs, ours:
        error = wan_compare.agreement(theirs, ours, name, options.work)
        peaks = theirs.peak_bytes / 1e9, ours.peak_bytes / 1e9
        timed = wan_compare.in_turns(options.rounds, sides)
    yield from wan_compare.time_rows(name, timed, note=f"outputs agree to {error:.1e}")
    yield from wan_compare.time_rows("the same, the other side in two calls", timed, "in two calls")
    yield base.row(name + ", peak", "float32", [peaks[0]], [peaks[1]], unit="GB", note="whole process")


# --- adapters that nothing is given to ---


def make_inactive(folder):
    """Whole models: of a denoiser, and of the same one with a VACE in its file."""
    import torch
    from diffusers import WanVACETransformer3DModel
    from wan_vace_parity_test import without_vace
    text_width = WAN.make_tiny_model(folder / "parts")
    torch.manual_seed(5)
    vace = WanVACETransformer3DModel(**{**arguments(), "text_dim": text_width}, vace_layers=[0, 2])
    for name, denoiser in (("plain", without_vace(vace)), ("vace", vace)):
        shutil.copytree(folder / "parts/model", folder / name)
        shutil.rmtree(folder / name / "transformer")
        denoiser.save_pretrained(folder / name / "transformer")
    shutil.rmtree(folder / "parts")


def make_clip(folder):
    import numpy
    from PIL import Image
    folder.mkdir(exist_ok=True)
    for i in range(5):
        pixels = numpy.random.default_rng(i).integers(0, 256, (256, 256, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    return folder


def generate(options, folder, *more):
    """Milliseconds of a step, bytes at the peak and the pixels of a clip's last picture."""
    import numpy
    from PIL import Image
    picture = options.work / "inactive.png"
    line = [base.PROGRAM, "generate", "--plugin", "wan", "--model_paths", json.dumps([str(folder)]), "--prompt", "a cat",
            "--height", 256, "--width", 256, "--num_frames", 5, "--num_inference_steps", STEPS, "--seed", 3,
            "--schedule", "diffusers", "--dtype", "float32", "--device", "cpu", "--threads", options.threads,
            "--output", picture, *more]
    said, _, peak = base.whole_run(line, options.threads)
    minutes, seconds = re.search(rf"denoise: {STEPS} steps in (?:(\d+):)?([\d.]+)", said).groups()
    pixels = numpy.asarray(Image.open(picture.with_name("inactive_0004.png")))
    return 1000 * (60 * int(minutes or 0) + float(seconds)) / STEPS, peak, pixels


def compare_inactive(options):
    folder = base.prepare(options.work, "wan_inactive", make_inactive)
    clip = make_clip(options.work / "inactive_clip")
    kinds = {"alone": (folder / "plain",), "nothing to follow": (folder / "vace",),
             "--vace_scale 0": (folder / "vace", "--vace_video", clip, "--vace_scale", 0)}
    made = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, words in kinds.items():
            made[name].append(generate(options, *words))
    plain = made.pop("alone")
    for name, runs in made.items():
        if (runs[0][2] != plain[0][2]).any():
            raise SystemExit(f"error: a VACE with {name} changes the clip")
        title = f"a VACE with {name}, beside the denoiser alone: "
        yield base.row(title + "step", "float32", [run[0] for run in plain], [run[0] for run in runs],
                       note="the same pictures")
        yield base.row(title + "peak", "float32", [min(run[1] for run in plain) / 1e9], [min(run[1] for run in runs) / 1e9],
                       unit="GB", note="whole process")


def main():
    if sys.argv[1:2] == ["--worker"]:
        sys.path.insert(0, str(REPOSITORY / "tests/parity"))
        what, folder, inputs = sys.argv[2:]
        return wan_compare.serve(PARTS[what][3], folder, inputs)
    rows = {what: lambda options, what=what: compare(options, what) for what in PARTS}
    return wan_compare.run(__doc__, {**rows, "inactive": compare_inactive})


if __name__ == "__main__":
    sys.exit(main())
