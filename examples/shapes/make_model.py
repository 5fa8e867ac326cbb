#!/usr/bin/env python3
"""Writes this example's model in the layout of the published folder.

    python3 make_model.py FOLDER --vae VAE [--denoiser FILE] [--seed 11]

VAE is what train_vae.py wrote. The text encoder is drawn at random and stays as it is; heads of
its first layer look 1, 2, 3 and 4 tokens back, so that the row of "square" also tells "a blue" and
"left of". The denoiser is what `atelier train` begins with, or what it saved. Needs numpy, Pillow,
torch, safetensors and diffusers.
"""

import argparse
import json
import math
import pathlib
import shutil
import sys

import torch
from diffusers import QwenImageTransformer2DModel
from safetensors.torch import load_file, save_file

import pictures

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tiny_model"))
import make as layout  # noqa: E402

DENOISER = dict(patch_size=2, in_channels=64, out_channels=16, num_layers=6,
                attention_head_dim=32, num_attention_heads=4, axes_dims_rope=(8, 12, 12))
TEXT_LAYERS, TEXT_WIDTH, TEXT_HEADS, TEXT_MLP = 2, 128, 4, 64
TEXT_ROPE_THETA = 10.0  # all frequencies are high: heads can tell one token from the next
SHARPNESS = 4.0  # of the heads' look at one token


def prompts_of_every_kind():
    """Text with every word of the prompts."""
    grounds = [f"on {pictures.with_article(pattern + color)} ground"
               for pattern in pictures.PATTERNS for color in pictures.COLORS]
    things = [pictures.with_article(f"{color} {shape}")
              for color in pictures.COLORS for shape in pictures.SHAPES]
    return [f"{thing} {relation} {thing} {ground}" for thing in things
            for relation in pictures.RELATIONS for ground in grounds] + ["make the"]


def write_layout(folder, seed):
    """Everything but weights, as tiny_model/make.py writes it for these sizes. Returns the rows of
    the text encoder's table and the vision tower's weights, which no prompt reads."""
    # Words of prompts only: each becomes one token, with and without the space before it.
    words = sorted({word for prompt in prompts_of_every_kind() for word in prompt.split()})
    layout.CORPUS = words + [" " + word for word in words]
    layout.NUM_MERGES = 1000  # more than there are: every word is joined whole
    layout.HIDDEN, layout.TEXT_HEADS, layout.TEXT_KV_HEADS = TEXT_WIDTH, TEXT_HEADS, TEXT_HEADS
    layout.TEXT_BLOCKS, layout.TEXT_MLP = TEXT_LAYERS, TEXT_MLP
    layout.make(folder, seed)
    vision = {}
    for shard in sorted((folder / "text_encoder").glob("*.safetensors*")):
        if shard.suffix == ".safetensors":
            vision |= {name: tensor for name, tensor in load_file(shard).items()
                       if name.startswith("visual.")}
        shard.unlink()
    path = folder / "text_encoder" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for part in (config, config["text_config"]):
        part["rope_theta"] = TEXT_ROPE_THETA
    layout.write_json(path, config)
    return config["vocab_size"], vision


def text_layer(number, generator):
    """Weights of one layer. Queries and keys are biases alone: what a head looks at is a place."""
    name, width, head = f"model.layers.{number}.", TEXT_WIDTH, TEXT_WIDTH // TEXT_HEADS
    normal = lambda *shape: torch.randn(shape, generator=generator)
    angles = TEXT_ROPE_THETA**(-torch.arange(head // 2) * 2 / head)
    back = torch.arange(1, TEXT_HEADS + 1)[:, None] * angles
    strength = 1.0 if number == 0 else 0.2
    zeros = torch.zeros(width, width)
    return {
        name + "input_layernorm.weight": torch.ones(width),
        name + "self_attn.q_proj.weight": zeros,
        name + "self_attn.q_proj.bias": SHARPNESS * torch.cat([back.cos(), -back.sin()], 1).ravel(),
        name + "self_attn.k_proj.weight": zeros.clone(),
        name + "self_attn.k_proj.bias":
            SHARPNESS * (torch.arange(width) % head < head // 2).float(),
        name + "self_attn.v_proj.weight": normal(width, width) / math.sqrt(width),
        name + "self_attn.v_proj.bias": torch.zeros(width),
        name + "self_attn.o_proj.weight": strength * normal(width, width) / math.sqrt(head),
        name + "post_attention_layernorm.weight": torch.ones(width),
        name + "mlp.gate_proj.weight": normal(TEXT_MLP, width) / math.sqrt(width),
        name + "mlp.up_proj.weight": normal(TEXT_MLP, width) / math.sqrt(width),
        name + "mlp.down_proj.weight": 0.2 * normal(width, TEXT_MLP) / math.sqrt(TEXT_MLP),
    }


def text_encoder(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    tensors = {"model.embed_tokens.weight": torch.randn((rows, TEXT_WIDTH), generator=generator),
               "model.norm.weight": torch.ones(TEXT_WIDTH),
               "lm_head.weight": torch.zeros(rows, TEXT_WIDTH)}
    for number in range(TEXT_LAYERS):
        tensors.update(text_layer(number, generator))
    return tensors


def denoiser(seed):
    """diffusers' own initialisation, with blocks that begin as nothing and an output of zeros."""
    torch.manual_seed(seed)
    model = QwenImageTransformer2DModel(**DENOISER, joint_attention_dim=TEXT_WIDTH)
    with torch.no_grad():
        for block in model.transformer_blocks:
            for modulation in (block.img_mod[1], block.txt_mod[1]):
                modulation.weight.zero_()
                modulation.bias.zero_()
        model.norm_out.linear.weight.zero_()
        model.norm_out.linear.bias.zero_()
        model.proj_out.weight.zero_()
        model.proj_out.bias.zero_()
    return model


def write_bfloat16(path, tensors):
    save_file({name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()},
              path, metadata={"format": "pt"})


def write_size(folder):
    """What the model makes where nobody says another size."""
    path = folder / "model_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    size = {"height": pictures.SIZE, "width": pictures.SIZE}
    layout.write_json(path, index | {"_media_defaults": size})


def make(folder, vae, trained, seed):
    rows, vision = write_layout(folder, seed)
    write_size(folder)
    write_bfloat16(folder / "text_encoder" / "model.safetensors", text_encoder(rows, seed) | vision)
    for part in ("transformer", "vae"):
        shutil.rmtree(folder / part)
    denoiser(seed).to(torch.bfloat16).save_pretrained(folder / "transformer")
    weights = "diffusion_pytorch_model.safetensors"
    if trained:
        write_bfloat16(folder / "transformer" / weights, load_file(trained))
    (folder / "vae").mkdir()
    shutil.copy(vae / "config.json", folder / "vae")
    write_bfloat16(folder / "vae" / weights, load_file(vae / weights))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--vae", type=pathlib.Path, required=True)
    parser.add_argument("--denoiser", type=pathlib.Path, help="weights that take its place")
    parser.add_argument("--seed", type=int, default=11)
    arguments = parser.parse_args()
    make(arguments.folder, arguments.vae, arguments.denoiser, arguments.seed)
    for path in sorted(arguments.folder.rglob("*.safetensors")):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
