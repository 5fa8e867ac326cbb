#!/usr/bin/env python3
"""Times Qwen-Image-Edit beside diffusers and transformers: a denoising step with two references, and what
encodes a picture; a step with regions beside the same one without; and runs with ControlNets that do nothing.

    .deps/venv/bin/python bench/edit_compare.py [dit] [vision] [encode] [entities] [inactive] [--threads 1] [--rounds 5]

README.md, beside this file, says what each row is and how it is measured.
"""

import json
import sys

import diffusers_compare as base
import wan_compare
from families import FAMILIES

FAMILY = FAMILIES["qwen_image"]
TEXT_TOKENS = 256
# Of the image and of its references, in latent cells.
IMAGE, REFERENCES = (48, 48), ((48, 48), (32, 72))
SIDE = 512  # pixels of the picture that the VAE encodes
PATCHES = (28, 28)  # of a square picture as Edit-2509 shows it
VISION_BLOCKS = 8  # a quarter of the published tower
# Side of an image in latent cells, and rows of text: of its prompt, and of each entity.
WHOLE, PROMPT_TOKENS, ENTITY_TOKENS, ENTITIES = 128, 128, 64, 6
STEPS = 4  # of an image beside which ControlNets do nothing


# --- weights and inputs ---


def make_dit(folder):
    import torch
    arguments, _ = FAMILY.models["middle"]
    FAMILY.make_denoiser(folder, torch.float32, **arguments)


def vision_config():
    return dict(depth=VISION_BLOCKS, hidden_size=1280, num_heads=16, intermediate_size=3420, out_hidden_size=3584,
                window_size=112, fullatt_block_indexes=[VISION_BLOCKS - 1])


def vision_tower(seed=5):
    import torch
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import \
        Qwen2_5_VisionTransformerPretrainedModel
    torch.manual_seed(seed)
    return Qwen2_5_VisionTransformerPretrainedModel(Qwen2_5_VLVisionConfig(**vision_config())).eval()


def make_vision(folder):
    from safetensors.torch import save_file
    tensors = {"visual." + name: value.contiguous() for name, value in vision_tower().state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(
        json.dumps({"model_type": "qwen2_5_vl", "vision_config": vision_config()}))


def make_vae(folder):
    import torch
    base.make_vae(folder, torch.float32)


def dit_inputs(generator):
    import torch
    latents = {
        "latents": IMAGE,
        **{f"reference_{number + 1}": size for number, size in enumerate(REFERENCES)}
    }
    inputs = {name: torch.randn((1, 16, 1, *size), generator=generator) for name, size in latents.items()}
    inputs |= {"sigma": torch.full((1,), 0.75)}
    inputs["prompt_embeds"] = torch.randn((1, TEXT_TOKENS, FAMILY.text_width), generator=generator)
    negative = {"prompt_embeds": torch.randn((1, TEXT_TOKENS, FAMILY.text_width), generator=generator)}
    negative |= {name: inputs[name].clone() for name in inputs if name.startswith("reference_")}
    return inputs | {"negative_" + name: value for name, value in negative.items()}


def vision_inputs(generator):
    import torch
    rows, columns = PATCHES
    return {
        "pixel_values": torch.randn((rows * columns, 1176), generator=generator),
        "grid": torch.tensor([[1, rows, columns]])
    }


def encode_inputs(generator):
    import torch
    return {"clip": torch.rand((1, 3, 1, SIDE, SIDE), generator=generator) * 2 - 1}


# --- the other side, in a process of its own ---


def dit_worker(folder, inputs):
    import torch
    from references import velocity
    model = FAMILY.denoiser_class().from_pretrained(folder).eval()
    pictures = [inputs[f"reference_{number + 1}"] for number in range(len(REFERENCES))]

    def batch(prompts):
        return velocity(model, inputs["latents"].repeat(len(prompts), 1, 1, 1, 1),
                        inputs["sigma"].repeat(len(prompts)), prompts, pictures=pictures)

    def run(order):
        prompts = [inputs["prompt_embeds"], inputs["negative_prompt_embeds"]]
        return torch.cat([batch(one) for one in prompts]) if order.get("calls") == 2 else batch(torch.cat(prompts))

    return run


def vision_worker(folder, inputs):
    from safetensors.torch import load_file
    model = vision_tower()
    model.load_state_dict({
        name.removeprefix("visual."): value for name, value in load_file(folder + "/model.safetensors").items()
    })
    return lambda order: model(inputs["pixel_values"], grid_thw=inputs["grid"]).pooler_output


def encode_worker(folder, inputs):
    import references
    from diffusers import AutoencoderKLQwenImage
    model = AutoencoderKLQwenImage.from_pretrained(folder).eval()
    return lambda order: references.encode(model, inputs["clip"][:, :, 0])


# What is timed: our component, weights, inputs, the other side, and what a row says of it.
PARTS = {
    "dit": ("dit", make_dit, dit_inputs, dit_worker,
            f"DiT step, {len(REFERENCES)} references, 576 tokens each, {TEXT_TOKENS} of text"),
    "vision": ("vision_tower", make_vision, vision_inputs, vision_worker,
               f"vision tower, {VISION_BLOCKS} blocks, {PATCHES[0]} x {PATCHES[1]} patches"),
    "encode": ("vae", make_vae, encode_inputs, encode_worker, f"VAE encode of a picture, {SIDE} x {SIDE}"),
}


def compare(options, what):
    import torch
    from safetensors.torch import save_file
    component, make, make_inputs, _, name = PARTS[what]
    folder = base.prepare(options.work, f"edit_{what}", make)
    inputs = options.work / f"edit_{what}.safetensors"
    save_file(make_inputs(torch.Generator().manual_seed(3)), inputs)
    theirs = base.Bench([sys.executable, __file__, "--worker", what, folder, inputs], options.threads)
    ours = base.atelier_bench(component, folder, inputs, "float32", options.threads)
    sides = {"theirs": (theirs, {}), "ours": (ours, {})}
    with theirs, ours:
        error = wan_compare.agreement(theirs, ours, name, options.work)
        peaks = theirs.peak_bytes / 1e9, ours.peak_bytes / 1e9
        if what == "dit":
            sides["in two calls"] = (theirs, {"calls": 2})
        timed = wan_compare.in_turns(options.rounds, sides)
    yield from wan_compare.time_rows(name, timed, note=f"outputs agree to {error:.1e}")
    if what == "dit":
        yield from wan_compare.time_rows("the same, diffusers in two calls", timed, "in two calls",
                                         note="as its pipeline does")
    yield base.row(name + ", peak", "float32", [peaks[0]], [peaks[1]], unit="GB", note="whole process")


# --- regions ---


def make_blocks(folder):
    """Two of the blocks, for an image of 4,096 tokens."""
    import torch
    arguments, _ = FAMILY.models["middle"]
    FAMILY.make_denoiser(folder, torch.float32, **{**arguments, "num_layers": 2})


def entity_inputs(has_regions):
    """A step of guidance whose two branches have as many rows of text, all for the prompt or most of them for regions, which
    overlap and have a third of the image each."""
    import torch
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn((1, *shape), generator=generator)
    inputs = {"latents": draw(16, 1, WHOLE, WHOLE), "sigma": torch.full((1,), 0.75)}
    entities = ENTITIES if has_regions else 0
    prompt = PROMPT_TOKENS + (0 if has_regions else ENTITIES * ENTITY_TOKENS)
    for branch in ("", "negative_"):
        inputs[branch + "prompt_embeds"] = draw(prompt, FAMILY.text_width)
        for number in range(entities):
            inputs[f"{branch}entity_{number + 1}"] = draw(ENTITY_TOKENS, FAMILY.text_width)
        if entities:
            shown = torch.rand((entities, 1, WHOLE // 2, WHOLE // 2), generator=torch.Generator().manual_seed(4)) < 1 / 3
            inputs[branch + "regions"] = sum(region.long() << number for number, region in enumerate(shown))[None]
    return inputs


def compare_entities(options):
    from safetensors.torch import save_file
    folder, sides = base.prepare(options.work, "entities", make_blocks), {}
    for side, has_regions in (("theirs", False), ("ours", True)):
        sides[side] = options.work / f"entities_{side}.safetensors"
        save_file(entity_inputs(has_regions), sides[side])
    with base.atelier_bench("dit", folder, sides["ours"], "float32", options.threads) as bench:
        bench.run()
        timed = wan_compare.in_turns(options.rounds, {side: (bench, {"inputs": str(path)}) for side, path in sides.items()})
    name = (f"DiT step, {ENTITIES} regions, {WHOLE * WHOLE // 4} tokens of an image, "
            f"{PROMPT_TOKENS + ENTITIES * ENTITY_TOKENS} of text")
    yield from wan_compare.time_rows(name, timed, note="in place of diffusers: the prompt alone, as long as all texts")


# --- ControlNets that do nothing ---


def make_inactive(folder):
    """A whole model, and a ControlNet of each kind that is made for it."""
    import controls_parity_test as controls
    import torch
    from diffusers import QwenImageTransformer2DModel
    from safetensors.torch import save_file
    FAMILY.make_model(folder, "middle")
    transformer = QwenImageTransformer2DModel.from_pretrained(folder / "model/transformer")
    controls.make_instantx(transformer, folder / "union", 71, layers=2)
    torch.manual_seed(7)
    net = controls.BlockwiseNet(len(transformer.transformer_blocks), transformer.inner_dim, 16)
    save_file(net.state_dict(), folder / "blockwise.safetensors")


def generate(options, paths, *more):
    """Milliseconds of processors, bytes at the peak and the pixels of an image."""
    import numpy
    from PIL import Image
    picture = options.work / "inactive_controls.png"
    line = [base.PROGRAM, "generate", "--plugin", "qwen_image", "--model_paths", json.dumps([str(path) for path in paths]),
            "--prompt", "a cat", "--height", 256, "--width", 256, "--num_inference_steps", STEPS, "--seed", 3, "--dtype",
            "float32", "--device", "cpu", "--threads", options.threads, "--output", picture, *more]
    _, spent, peak = base.whole_run(line, options.threads)
    return spent, peak, numpy.asarray(Image.open(picture))


def compare_inactive(options):
    import numpy
    from PIL import Image
    folder = base.prepare(options.work, "inactive_controls", make_inactive)
    followed = options.work / "followed.png"
    pixels = numpy.random.default_rng(1).integers(0, 256, (256, 256, 3), dtype=numpy.uint8)
    Image.fromarray(pixels).save(followed)
    union, blockwise = ("--control_image", followed), ("--blockwise_controlnet_image", followed)
    kinds = {
        "alone": ("model",),
        "InstantX's, nothing to follow": ("union",),
        "InstantX's, scale 0": ("union", *union, "--controlnet_conditioning_scale", 0),
        "InstantX's, a window without a step": ("union", *union, "--control_guidance_start", 0.9),
        "blockwise, a window without a step": ("blockwise.safetensors", *blockwise, "--blockwise_controlnet_start", 0.6,
                                               "--blockwise_controlnet_end", 0.4),
    }
    made = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, (file, *more) in kinds.items():
            paths = dict.fromkeys([folder / "model", folder / file])
            made[name].append(generate(options, paths, *more))
    plain = made.pop("alone")
    for name, runs in made.items():
        if (runs[0][2] != plain[0][2]).any():
            raise SystemExit(f"error: a ControlNet, {name}, changes the image")
        title = f"a ControlNet, {name}, beside none: "
        yield base.row(title + "CPU time", "float32", [run[0] for run in plain], [run[0] for run in runs],
                       note="the same image")
        yield base.row(title + "peak", "float32", [min(run[1] for run in plain) / 1e9],
                       [min(run[1] for run in runs) / 1e9], unit="GB", note="whole process")


def main():
    if sys.argv[1:2] == ["--worker"]:
        what, folder, inputs = sys.argv[2:]
        return wan_compare.serve(PARTS[what][3], folder, inputs)
    rows = {what: lambda options, what=what: compare(options, what) for what in PARTS}
    return wan_compare.run(__doc__, {**rows, "entities": compare_entities, "inactive": compare_inactive})


if __name__ == "__main__":
    sys.exit(main())
