"""A Qwen-Image model of published size without values: headers, and files as long as they say that are all holes."""

import json
import pathlib
import re
import shutil
import struct
import sys

BLOCKS, WIDTH, TEXT_WIDTH, MLP, TEXT_MLP, TEXT_LAYERS, KV_WIDTH = 60, 3072, 3584, 12288, 18944, 28, 512
VAE_TIMES = 12  # the widths of the published autoencoder over those of the tiny one


def linear(name, rows, columns, bias=True):
    shapes = {name + ".weight": [rows, columns]}
    if bias:
        shapes[name + ".bias"] = [rows]
    return shapes


def transformer():
    shapes = {"txt_norm.weight": [TEXT_WIDTH]}
    shapes |= linear("time_text_embed.timestep_embedder.linear_1", WIDTH, 256)
    shapes |= linear("time_text_embed.timestep_embedder.linear_2", WIDTH, WIDTH)
    shapes |= linear("img_in", WIDTH, 64) | linear("txt_in", WIDTH, TEXT_WIDTH)
    shapes |= linear("norm_out.linear", 2 * WIDTH, WIDTH) | linear("proj_out", 64, WIDTH)
    for i in range(BLOCKS):
        stem = f"transformer_blocks.{i}."
        for norm in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            shapes[stem + f"attn.{norm}.weight"] = [128]
        for name in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out"):
            shapes |= linear(stem + "attn." + name, WIDTH, WIDTH)
        for half in ("img", "txt"):
            shapes |= linear(stem + f"{half}_mod.1", 6 * WIDTH, WIDTH)
            shapes |= linear(stem + f"{half}_mlp.net.0.proj", MLP, WIDTH)
            shapes |= linear(stem + f"{half}_mlp.net.2", WIDTH, MLP)
    return shapes


def text_encoder():
    shapes = {"model.embed_tokens.weight": [152064, TEXT_WIDTH], "model.norm.weight": [TEXT_WIDTH]}
    for i in range(TEXT_LAYERS):
        stem = f"model.layers.{i}."
        shapes |= linear(stem + "self_attn.q_proj", TEXT_WIDTH, TEXT_WIDTH)
        shapes |= linear(stem + "self_attn.k_proj", KV_WIDTH, TEXT_WIDTH)
        shapes |= linear(stem + "self_attn.v_proj", KV_WIDTH, TEXT_WIDTH)
        shapes |= linear(stem + "self_attn.o_proj", TEXT_WIDTH, TEXT_WIDTH, bias=False)
        shapes |= linear(stem + "mlp.gate_proj", TEXT_MLP, TEXT_WIDTH, bias=False)
        shapes |= linear(stem + "mlp.up_proj", TEXT_MLP, TEXT_WIDTH, bias=False)
        shapes |= linear(stem + "mlp.down_proj", TEXT_WIDTH, TEXT_MLP, bias=False)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[stem + norm + ".weight"] = [TEXT_WIDTH]
    return shapes


def read_header(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length))


def vae(tiny):
    """The tiny one's shapes with wider channels; latents and images keep theirs."""
    shapes = {}
    for name, entry in read_header(tiny).items():
        if name == "__metadata__":
            continue
        shape = list(entry["shape"])
        is_matrix = len(shape) > 1 and not name.endswith("gamma")
        ends = re.match(r"(encoder|decoder)\.conv_(in|out)\.", name)
        if "quant_conv" not in name:
            if not ends or ends[2] == "in":
                shape[0] *= VAE_TIMES
            if is_matrix and (not ends or ends[2] == "out"):
                shape[1] *= VAE_TIMES
        shapes[name] = shape
    return shapes


def write_holes(path, shapes, metadata=None):
    """A safetensors file of bfloat16 tensors that takes no room on the disk."""
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, shape in shapes.items():
        count = 2
        for length in shape:
            count *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + count]}
        end += count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def change_config(source, target, **values):
    config = json.loads(source.read_text())
    config.update(values)
    config.get("text_config", {}).update(values)
    target.write_text(json.dumps(config))


def write_model(tiny, folder):
    """`tiny` is what examples/tiny_model/make.py wrote: tokenizer and configurations come from there."""
    write_holes(folder / "transformer/model.safetensors", transformer())
    write_holes(folder / "text_encoder/model.safetensors", text_encoder())
    write_holes(folder / "vae/model.safetensors", vae(tiny / "vae/diffusion_pytorch_model.safetensors"))
    change_config(tiny / "transformer/config.json", folder / "transformer/config.json", attention_head_dim=128,
                  axes_dims_rope=[16, 56, 56], joint_attention_dim=TEXT_WIDTH, num_attention_heads=24, num_layers=BLOCKS)
    change_config(tiny / "text_encoder/config.json", folder / "text_encoder/config.json", hidden_size=TEXT_WIDTH,
                  intermediate_size=TEXT_MLP, num_attention_heads=28, num_hidden_layers=TEXT_LAYERS,
                  num_key_value_heads=4, vocab_size=152064,
                  rope_scaling={"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"})
    change_config(tiny / "vae/config.json", folder / "vae/config.json", base_dim=96)
    for name in ("tokenizer", "scheduler"):
        shutil.copytree(tiny / name, folder / name)
    shutil.copy(tiny / "model_index.json", folder)


if __name__ == "__main__":
    write_model(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
