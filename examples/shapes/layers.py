#!/usr/bin/env python3
"""Makes of this example's model one of layers, and takes pictures apart with it.

    python3 layers.py FOLDER

writes FOLDER/begin (a Qwen-Image-Layered model that has learnt nothing new but transparency),
FOLDER/data (pictures, their grounds and their things), FOLDER/run (the training of its denoiser),
FOLDER/drawn (pictures) and FOLDER/sheet.png: pictures, above the layers that they are taken apart
into, ground and things. Prints means of how the layers differ from those that the pictures were
drawn of. A run that was interrupted goes on. Needs numpy, Pillow, torch, diffusers
and safetensors.
"""

import argparse
import dataclasses
import json
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional

import controls
import pictures
import plot
import recolor
import score
import train_vae

HERE = pathlib.Path(__file__).resolve().parent
WEIGHTS = "diffusion_pytorch_model.safetensors"
LEARNT_SEED, LEARNT, SEED, COUNT, SHOWN = 32, 3000, 7071, 24, 6
VAE_STEPS, VAE_RATE, VAE_SEED = 400, 1e-3, 9
LEAST_SEEN = 0.1  # part of the error of colors that counts where nothing is seen
LAYERS = 2  # ground and things
SETTINGS = controls.LEARNING | {
    "trainable_models": "dit", "learning_rate": 1.5e-3, "batch_size": 8, "max_train_steps": 1100,
    "caption_dropout_rate": 0,
}


# ---- Pictures ----


def layers_of(scene):
    """The picture of them all, the ground and the things."""
    return (pictures.paint(scene), pictures.paint(dataclasses.replace(scene, things=())),
            pictures.paint_things(scene))


def layered_row(rng):
    scene = pictures.scene(rng, wide=True)
    picture, *layers = layers_of(scene)
    return controls.Row([picture, *layers], scene.prompt(), {"layer_input_image": picture})


# ---- The model to begin with ----


def draw(rng, count):
    """Pictures and things over nothing, uint8 [count, 4, SIZE, SIZE]."""
    drawn = []
    for _ in range(count):
        layers = layers_of(pictures.scene(rng, wide=True))
        layer = layers[rng.choice(len(layers), p=(0.35, 0.15, 0.5))]
        opaque = np.full((*layer.shape[:2], 1), 255, np.uint8)
        drawn.append(layer if layer.shape[2] == 4 else np.concatenate([layer, opaque], 2))
    return torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2)


def widened(folder):
    """The VAE of the model with a fourth channel, which it does not see yet and gives as opaque."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = {name: value for name, value in config.items() if not name.startswith("_")}
    vae = AutoencoderKLQwenImage(**config | {"input_channels": 4})
    weights = {name: value.float() for name, value in load_file(folder / WEIGHTS).items()}
    first, last = "encoder.conv_in.weight", "decoder.conv_out."
    weights[first] = functional.pad(weights[first], (0, 0) * 3 + (0, 1))
    weights[last + "weight"] = torch.cat([weights[last + "weight"],
                                          torch.zeros_like(weights[last + "weight"][:1])])
    weights[last + "bias"] = torch.cat([weights[last + "bias"], torch.ones(1)])
    vae.load_state_dict(weights)
    return vae


def difference(back, x):
    """Colors count by how much is seen of them."""
    seen = LEAST_SEEN + (1 - LEAST_SEEN) * (x[:, 3:] + 1) / 2
    error = (back - x) * torch.cat([seen.expand(-1, 3, -1, -1, -1), torch.ones_like(seen)], 1)
    return error.abs().mean() + error.square().mean()


def make_vae(folder):
    torch.manual_seed(VAE_SEED)
    rng = np.random.default_rng(VAE_SEED)
    vae = widened(HERE / "model" / "vae")
    pool = draw(rng, train_vae.POOL)

    def loss_of_batch():
        pool[rng.integers(0, len(pool), train_vae.FRESH)] = draw(rng, train_vae.FRESH)
        x = train_vae.to_input(pool[rng.integers(0, len(pool), train_vae.BATCH)])
        z = train_vae.encode(vae, x)
        back = train_vae.decode(vae, z + train_vae.REFINED_NOISE * torch.randn_like(z))
        return difference(back, x), 0.1 * train_vae.moments_loss(z)

    with train_vae.quick_frames():
        average = train_vae.averages(vae.state_dict())
        train_vae.optimize(list(vae.parameters()), VAE_STEPS, VAE_RATE, loss_of_batch, average)
        train_vae.take_average(average)
        unseen = train_vae.to_input(draw(np.random.default_rng(VAE_SEED + 1), 64))
        moments = train_vae.finish(vae, unseen)
        print(f"{train_vae.psnr(vae, unseen):.1f} dB on pictures not seen", flush=True)
    train_vae.save(vae, folder, moments)


def make_denoiser(program, folder):
    """The model's denoiser with the LoRA that changes pictures in it, and what layers need more."""
    source = HERE / "model" / "transformer"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        merged = pathlib.Path(scratch) / "merged.safetensors"
        subprocess.run([program, "lora", "merge", recolor.LORA, "--plugin", "qwen_image",
                        "--model_paths", source, "--output", merged], check=True)
        weights = load_file(merged)
    width = weights["img_in.bias"].numel()
    weights["time_text_embed.addition_t_embedding.weight"] = torch.zeros(2, width, dtype=torch.bfloat16)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"use_additional_t_cond": True, "use_layer3d_rope": True}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_scheduler(path):
    """The published one of layers: noise levels follow the root of the size, and end at 0."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"shift_terminal": None, "time_shift_type": "linear"}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def make(program, folder):
    """The folder of the model to begin with, unless it is there."""
    if not folder.exists():
        aside = folder.with_name(folder.name + ".part")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(HERE / "model", aside, ignore=shutil.ignore_patterns("transformer", "vae"))
        make_vae(aside / "vae")
        make_denoiser(program, aside / "transformer")
        write_scheduler(aside / "scheduler" / "scheduler_config.json")
        aside.rename(folder)
    return folder


# ---- What is trained and drawn ----


def train(program, model, data, folder):
    """Returns the file of the denoiser that has learnt layers."""
    if not (data / "metadata.jsonl").exists():
        controls.write(data, layered_row, LEARNT, LEARNT_SEED)
    score.run(program, "train", model, "--dataset_base_path", data, "--dataset_metadata_path",
              data / "metadata.jsonl", "--data_file_keys", "image,layer_input_image",
              "--extra_inputs", "layer_input_image", "--output_path", folder,
              *(text for name, value in SETTINGS.items() for text in (f"--{name}", value)))
    return folder / f"step-{SETTINGS['max_train_steps']}.safetensors"


def take_apart(program, model, denoiser, folder):
    """Takes pictures apart that were not learnt. Returns rows, and of each the layers."""
    rows = controls.write(folder, layered_row, COUNT, SEED)
    jobs = [{"prompt": row.prompt, "layer_input_image": str(folder / f"{number:06d}_0.png"),
             "layer_num": LAYERS, "seed": SEED + number,
             "output": str(folder / f"{number:03d}.png")} for number, row in enumerate(rows)]
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(job) + "\n" for job in jobs), encoding="utf-8")
    score.run(program, "generate", [model, denoiser], "--prompts_file", file, "--height",
              pictures.SIZE, "--width", pictures.SIZE, "--num_inference_steps", score.STEPS,
              "--cfg_scale", 1, "--quiet")
    return rows, [[Image.open(folder / f"{number:03d}_{layer:04d}.png").convert("RGBA")
                   for layer in range(1, LAYERS + 1)] for number in range(COUNT)]


def over_checkers(layer):
    """A layer over grey checkers, which show where it is transparent."""
    axis = np.arange(pictures.SIZE) // 8
    under = Image.fromarray(np.uint8(np.where((axis[:, None] + axis) % 2, 200, 240))).convert("RGBA")
    return Image.alpha_composite(under, layer).convert("RGB")


def measure(row, apart):
    """How much of things, drawn or wanted, is both, and levels of 255 by which the ground differs."""
    ground, things = map(np.asarray, apart)
    drawn, wanted = things[..., 3] > 127, row.image[2][..., 3] > 127
    return ((drawn & wanted).sum() / (drawn | wanted).sum(),
            np.abs(ground[..., :3].astype(float) - row.image[1]).mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="build/release/bin/atelier")
    arguments = parser.parse_args()
    folder = arguments.folder
    model = make(arguments.program, folder / "begin")
    denoiser = train(arguments.program, model, folder / "data", folder / "run")
    rows, layers = take_apart(arguments.program, model, denoiser, folder / "drawn")
    stacks = [Image.fromarray(np.concatenate([row.image[0], *map(over_checkers, apart)]))
              for row, apart in zip(rows[:SHOWN], layers)]
    sheet = plot.sheet(stacks, [row.prompt for row in rows]).quantize(64, kmeans=2)
    sheet.save(folder / "sheet.png", optimize=True)
    overlap, levels = np.mean([measure(*one) for one in zip(rows, layers)], axis=0)
    print(json.dumps({"count": COUNT, "overlap_of_things": round(float(overlap), 3),
                      "levels_of_ground": round(float(levels), 2)}))


if __name__ == "__main__":
    main()
