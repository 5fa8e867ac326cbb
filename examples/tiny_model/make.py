#!/usr/bin/env python3
"""Writes a tiny Qwen-Image model with random weights, in the layout of the published folder.

    python3 make.py FOLDER [--seed N]

Needs nothing but Python's standard library and takes a few seconds. The names and shapes of all
tensors are those of diffusers' and transformers' classes at the sizes below, stored as bfloat16. It
paints noise, of course; it is there to try the program, the formats and one's own code.
"""

import argparse
import array
import collections
import json
import math
import pathlib
import random
import re
import struct
import sys

# The denoiser: heads of 32 channels, of which rotary positions take 8 + 12 + 12.
HEADS, HEAD_DIM, AXES, DENOISER_BLOCKS = 4, 32, [8, 12, 12], 2
# The text encoder, and the vision tower that its file carries along.
HIDDEN, TEXT_HEADS, TEXT_KV_HEADS, TEXT_BLOCKS, TEXT_MLP = 64, 4, 2, 2, 160
VISION_HIDDEN, VISION_HEADS, VISION_BLOCKS, VISION_MLP = 32, 2, 2, 64
# The VAE: an eighth of a picture's sides, 16 latent channels, 8 channels at full size.
LATENT_CHANNELS, BASE_CHANNELS, MULTIPLIERS = 16, 8, [1, 2, 4, 4]
TEMPORAL_DOWNSAMPLE = [False, True, True]

LATENTS_MEAN = [
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517,
    -0.3632, -0.1922, -0.9497, 0.2503, -0.2921
]
LATENTS_STD = [
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
    1.6382, 1.1253, 2.8251, 1.9160
]

# Text that the vocabulary is learned from. The first entry is what the pipeline puts around every
# prompt; each of its words becomes one token, as in the public vocabulary.
TEMPLATE = ("system\nDescribe the image by detailing the color, shape, size, texture, quantity, "
            "text, spatial relationships of the objects and background:\nuser\nassistant\n")
CORPUS = [
    "A photo of a cat sitting on a red sofa beside the window, soft morning light.",
    "An oil painting of a green hill under a blue sky with white clouds and a small house.",
    "A coffee shop entrance with a chalkboard sign, people walking in the rain at night.",
    "A portrait of an old man with a hat, black and white, highly detailed, sharp focus.",
    "A dog running on the beach near the sea, golden hour, cinematic lighting, 4k.",
    "A bowl of fruit on a wooden table: apples, oranges, and yellow lemons.",
    "A futuristic city with neon signs, flying cars, reflections in the wet street.",
    "The quick brown fox jumps over the lazy dog near the river bank.",
]
NUM_MERGES = 400

# What the public tokenizer adds behind its vocabulary; the flag is "special".
ADDED_TOKENS = [(f"<|{name}|>", True) for name in (
    "endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end",
    "quad_start", "quad_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad")]
ADDED_TOKENS += [("<tool_call>", False), ("</tool_call>", False)]
ADDED_TOKENS += [(f"<|{name}|>", False) for name in ("fim_prefix", "fim_middle", "fim_suffix",
                                                     "fim_pad", "repo_name", "file_sep")]

SPLIT_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# --- tokenizer ---


def byte_alphabet():
    """The printable character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    for number, byte in enumerate(byte for byte in range(256) if byte not in letters):
        letters[byte] = chr(256 + number)
    return letters


def learn_merges(texts, count):
    """Byte-pair encoding: joins the most frequent neighbours, `count` times; ties by spelling."""
    letters = byte_alphabet()
    # SPLIT_PATTERN for ASCII, which `re` can read.
    pattern = re.compile(r"[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|"
                         r"\s+(?!\S)|\s+")
    words = collections.Counter()
    for text, weight in texts:
        for word in pattern.findall(text):
            words[tuple(letters[byte] for byte in word.encode())] += weight
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, weight in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += weight
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        joined = collections.Counter()
        for word, weight in words.items():
            parts, at = [], 0
            while at < len(word):
                both = word[at:at + 2] == best
                parts.append(word[at] + word[at + 1] if both else word[at])
                at += 2 if both else 1
            joined[tuple(parts)] += weight
        words = joined
    return merges


def write_tokenizer(folder):
    """Writes all files of a tokenizer; returns the id of each added token and the number of ids."""
    folder.mkdir(parents=True, exist_ok=True)
    merges = learn_merges([(TEMPLATE, 50)] + [(text, 1) for text in CORPUS], NUM_MERGES)
    vocabulary = {letter: number for number, letter in enumerate(sorted(byte_alphabet().values()))}
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    ids = {text: len(vocabulary) + number for number, (text, _) in enumerate(ADDED_TOKENS)}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = [{"id": ids[text], "content": text, **flags, "special": special}
             for text, special in ADDED_TOKENS]
    specials = [text for text, special in ADDED_TOKENS[1:] if special]

    write_json(folder / "vocab.json", vocabulary)
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges),
        encoding="utf-8")
    write_json(folder / "added_tokens.json", ids)
    write_json(folder / "special_tokens_map.json", {
        "additional_special_tokens": specials,
        "eos_token": {"content": "<|im_end|>", **flags},
        "pad_token": {"content": "<|endoftext|>", **flags}})
    write_json(folder / "tokenizer_config.json", {
        "add_bos_token": False, "add_prefix_space": False,
        "added_tokens_decoder": {str(entry["id"]): {key: value for key, value in entry.items()
                                                    if key != "id"} for entry in added},
        "additional_special_tokens": specials, "bos_token": None,
        "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
        "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer", "unk_token": None})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": False}
    write_json(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated",
             "invert": False}, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary,
                  "merges": [f"{left} {right}" for left, right in merges]}})
    return ids, len(vocabulary) + len(added)


# --- tensors: a dict of name -> (shape, gain) ---
#
# A weight of two or more dimensions gets the standard deviation gain / sqrt(inputs). Vectors are
# norm scales, around 1, and biases, around 0. The gains keep every activation near 1.


def linear(name, inputs, outputs, bias=True, gain=1.0):
    tensors = {name + ".weight": ([outputs, inputs], gain)}
    if bias:
        tensors[name + ".bias"] = ([outputs], gain)
    return tensors


def denoiser_tensors():
    dim = HEADS * HEAD_DIM
    tensors = {
        **linear("time_text_embed.timestep_embedder.linear_1", 256, dim),
        **linear("time_text_embed.timestep_embedder.linear_2", dim, dim),
        "txt_norm.weight": ([HIDDEN], 1.0),
        **linear("img_in", 4 * LATENT_CHANNELS, dim),
        **linear("txt_in", HIDDEN, dim),
    }
    for number in range(DENOISER_BLOCKS):
        block = f"transformer_blocks.{number}."
        for stream in ("img", "txt"):
            tensors.update(linear(f"{block}{stream}_mod.1", dim, 6 * dim))
            tensors.update(linear(f"{block}{stream}_mlp.net.0.proj", dim, 4 * dim))
            tensors.update(linear(f"{block}{stream}_mlp.net.2", 4 * dim, dim))
        for norm in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            tensors[f"{block}attn.{norm}.weight"] = ([HEAD_DIM], 1.0)
        # Strong text values and image outputs let the prompt show in the picture.
        for layer in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0",
                      "to_add_out"):
            gain = 4.0 if layer in ("add_v_proj", "to_out.0") else 1.0
            tensors.update(linear(f"{block}attn.{layer}", dim, dim, gain=gain))
    tensors.update(linear("norm_out.linear", dim, 2 * dim))
    tensors.update(linear("proj_out", dim, 4 * LATENT_CHANNELS, gain=1.3))
    return tensors


def text_encoder_tensors(rows):
    kv_dim = HIDDEN // TEXT_HEADS * TEXT_KV_HEADS
    tensors = {"visual.patch_embed.proj.weight": ([VISION_HIDDEN, 3, 2, 14, 14], 1.0)}
    for number in range(VISION_BLOCKS):
        block = f"visual.blocks.{number}."
        tensors.update({
            block + "norm1.weight": ([VISION_HIDDEN], 1.0),
            block + "norm2.weight": ([VISION_HIDDEN], 1.0),
            **linear(block + "attn.qkv", VISION_HIDDEN, 3 * VISION_HIDDEN),
            **linear(block + "attn.proj", VISION_HIDDEN, VISION_HIDDEN),
            **linear(block + "mlp.gate_proj", VISION_HIDDEN, VISION_MLP),
            **linear(block + "mlp.up_proj", VISION_HIDDEN, VISION_MLP),
            **linear(block + "mlp.down_proj", VISION_MLP, VISION_HIDDEN),
        })
    tensors["visual.merger.ln_q.weight"] = ([VISION_HIDDEN], 1.0)
    tensors.update(linear("visual.merger.mlp.0", 4 * VISION_HIDDEN, 4 * VISION_HIDDEN))
    tensors.update(linear("visual.merger.mlp.2", 4 * VISION_HIDDEN, HIDDEN))
    tensors["model.embed_tokens.weight"] = ([rows, HIDDEN], HIDDEN**0.5)
    for number in range(TEXT_BLOCKS):
        block = f"model.layers.{number}."
        tensors.update({
            block + "input_layernorm.weight": ([HIDDEN], 1.0),
            **linear(block + "self_attn.q_proj", HIDDEN, HIDDEN),
            **linear(block + "self_attn.k_proj", HIDDEN, kv_dim),
            **linear(block + "self_attn.v_proj", HIDDEN, kv_dim),
            **linear(block + "self_attn.o_proj", HIDDEN, HIDDEN, bias=False),
            block + "post_attention_layernorm.weight": ([HIDDEN], 1.0),
            **linear(block + "mlp.gate_proj", HIDDEN, TEXT_MLP, bias=False),
            **linear(block + "mlp.up_proj", HIDDEN, TEXT_MLP, bias=False),
            **linear(block + "mlp.down_proj", TEXT_MLP, HIDDEN, bias=False),
        })
    tensors["model.norm.weight"] = ([HIDDEN], 1.0)
    tensors["lm_head.weight"] = ([rows, HIDDEN], 1.0)
    return tensors


def convolution(name, inputs, outputs, kernel, gain=1.3):
    return {name + ".weight": ([outputs, inputs, *kernel], gain), name + ".bias": ([outputs], gain)}


def residual_block(name, inputs, outputs):
    tensors = {
        name + ".norm1.gamma": ([inputs, 1, 1, 1], 1.0),
        **convolution(name + ".conv1", inputs, outputs, (3, 3, 3)),
        name + ".norm2.gamma": ([outputs, 1, 1, 1], 1.0),
        **convolution(name + ".conv2", outputs, outputs, (3, 3, 3)),
    }
    if inputs != outputs:
        tensors.update(convolution(name + ".conv_shortcut", inputs, outputs, (1, 1, 1)))
    return tensors


def middle_blocks(name, channels):
    return {
        name + ".attentions.0.norm.gamma": ([channels, 1, 1], 1.0),
        **convolution(name + ".attentions.0.to_qkv", channels, 3 * channels, (1, 1), gain=1.0),
        **convolution(name + ".attentions.0.proj", channels, channels, (1, 1), gain=1.0),
        **residual_block(name + ".resnets.0", channels, channels),
        **residual_block(name + ".resnets.1", channels, channels),
    }


def vae_tensors():
    widths = [BASE_CHANNELS * factor for factor in MULTIPLIERS]
    last = len(widths) - 1
    tensors = convolution("encoder.conv_in", 3, BASE_CHANNELS, (3, 3, 3))
    channels, number = BASE_CHANNELS, 0
    for level, width in enumerate(widths):
        for inputs in (channels, width):
            tensors.update(residual_block(f"encoder.down_blocks.{number}", inputs, width))
            number += 1
        channels = width
        if level < last:
            name = f"encoder.down_blocks.{number}"
            tensors.update(convolution(name + ".resample.1", width, width, (3, 3)))
            if TEMPORAL_DOWNSAMPLE[level]:
                tensors.update(convolution(name + ".time_conv", width, width, (3, 1, 1)))
            number += 1
    tensors.update(middle_blocks("encoder.mid_block", channels))
    tensors["encoder.norm_out.gamma"] = ([channels, 1, 1, 1], 1.0)
    tensors.update(convolution("encoder.conv_out", channels, 2 * LATENT_CHANNELS, (3, 3, 3)))
    tensors.update(convolution("quant_conv", 2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, (1, 1, 1)))

    tensors.update(convolution("post_quant_conv", LATENT_CHANNELS, LATENT_CHANNELS, (1, 1, 1)))
    tensors.update(convolution("decoder.conv_in", LATENT_CHANNELS, channels, (3, 3, 3)))
    tensors.update(middle_blocks("decoder.mid_block", channels))
    for level, width in enumerate(reversed(widths)):
        block = f"decoder.up_blocks.{level}"
        for resnet, inputs in enumerate((channels, width, width)):
            tensors.update(residual_block(f"{block}.resnets.{resnet}", inputs, width))
        channels = width
        if level < last:
            name = block + ".upsamplers.0"
            tensors.update(convolution(name + ".resample.1", width, width // 2, (3, 3)))
            if TEMPORAL_DOWNSAMPLE[last - 1 - level]:
                tensors.update(convolution(name + ".time_conv", width, 2 * width, (3, 1, 1)))
            channels = width // 2
    tensors["decoder.norm_out.gamma"] = ([channels, 1, 1, 1], 1.0)
    tensors.update(convolution("decoder.conv_out", channels, 3, (3, 3, 3), gain=1.6))
    return tensors


# --- files ---


def bfloat16_values(name, shape, gain, seed):
    """Random values as little-endian bfloat16: uniform, from a generator of this tensor's own."""
    count = math.prod(shape)
    draw = random.Random(f"{seed} {name}").random
    vector = len(shape) == 1 or name.endswith("gamma")
    scale = name.endswith("gamma") or (vector and name.endswith("weight"))
    deviation = 0.15 if scale else 0.1 if vector else gain / math.sqrt(count / shape[0])
    width, center = deviation * math.sqrt(12), 1.0 if scale else 0.0
    values = array.array("f", (center + width * (draw() - 0.5) for _ in range(count)))
    if sys.byteorder == "big":
        values.byteswap()
    raw = values.tobytes()
    result = bytearray(2 * count)  # the upper half of each float32
    result[0::2], result[1::2] = raw[2::4], raw[3::4]
    return bytes(result)


def write_safetensors(path, tensors, seed):
    header, payload, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        shape, gain = tensors[name]
        data = bfloat16_values(name, shape, gain, seed)
        end = offset + len(data)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
        payload.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(payload)
    return offset


def write_shards(folder, stem, tensors, seed, shards):
    """Cuts the tensors, in order, into `shards` files with an index, as the public folders have."""
    names = list(tensors)
    weight_map, total = {}, 0
    for shard in range(shards):
        file = f"{stem}-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[len(names) * shard // shards:len(names) * (shard + 1) // shards]
        total += write_safetensors(folder / file, {name: tensors[name] for name in part}, seed)
        weight_map.update({name: file for name in part})
    write_json(folder / f"{stem}.safetensors.index.json", {
        "metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})


def text_encoder_config(ids, rows):
    sections = [HIDDEN // TEXT_HEADS // 2 // 4] + [HIDDEN // TEXT_HEADS // 2 * 3 // 8] * 2
    language = {
        "attention_dropout": 0.0, "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"], "hidden_act": "silu", "hidden_size": HIDDEN,
        "initializer_range": 0.02, "intermediate_size": TEXT_MLP, "max_position_embeddings": 128000,
        "max_window_layers": TEXT_BLOCKS, "num_attention_heads": TEXT_HEADS,
        "num_hidden_layers": TEXT_BLOCKS, "num_key_value_heads": TEXT_KV_HEADS,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_section": sections, "rope_type": "default", "type": "default"},
        "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
        "vocab_size": rows}
    return {
        **language, "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "image_token_id": ids["<|image_pad|>"], "model_type": "qwen2_5_vl",
        "text_config": {**language, "model_type": "qwen2_5_vl_text"},
        "transformers_version": "4.53.1", "video_token_id": ids["<|video_pad|>"],
        "vision_config": {
            "depth": VISION_BLOCKS, "fullatt_block_indexes": [VISION_BLOCKS - 1],
            "hidden_act": "silu", "hidden_size": VISION_HIDDEN, "in_channels": 3, "in_chans": 3,
            "initializer_range": 0.02, "intermediate_size": VISION_MLP, "model_type": "qwen2_5_vl",
            "num_heads": VISION_HEADS, "out_hidden_size": HIDDEN, "patch_size": 14,
            "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2,
            "tokens_per_second": 2, "torch_dtype": "bfloat16", "window_size": 112},
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"]}


def make(folder, seed):
    for part in ("transformer", "text_encoder", "vae", "scheduler"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    version = {"_diffusers_version": "0.36.0.dev0"}
    write_json(folder / "model_index.json", {
        "_class_name": "QwenImagePipeline", **version,
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLQwenImage"]})
    write_json(folder / "scheduler" / "scheduler_config.json", {
        "_class_name": "FlowMatchEulerDiscreteScheduler", **version, "base_image_seq_len": 256,
        "base_shift": 0.5, "invert_sigmas": False, "max_image_seq_len": 8192, "max_shift": 0.9,
        "num_train_timesteps": 1000, "shift": 1.0, "shift_terminal": 0.02,
        "stochastic_sampling": False, "time_shift_type": "exponential", "use_beta_sigmas": False,
        "use_dynamic_shifting": True, "use_exponential_sigmas": False, "use_karras_sigmas": False})

    ids, tokens = write_tokenizer(folder / "tokenizer")
    rows = (tokens + 63) // 64 * 64  # the public table has spare rows too
    write_json(folder / "text_encoder" / "config.json", text_encoder_config(ids, rows))
    write_shards(folder / "text_encoder", "model", text_encoder_tensors(rows), seed, shards=2)

    write_json(folder / "transformer" / "config.json", {
        "_class_name": "QwenImageTransformer2DModel", **version, "attention_head_dim": HEAD_DIM,
        "axes_dims_rope": AXES, "guidance_embeds": False, "in_channels": 4 * LATENT_CHANNELS,
        "joint_attention_dim": HIDDEN, "num_attention_heads": HEADS, "num_layers": DENOISER_BLOCKS,
        "out_channels": LATENT_CHANNELS, "patch_size": 2})
    write_shards(folder / "transformer", "diffusion_pytorch_model", denoiser_tensors(), seed,
                 shards=2)

    write_json(folder / "vae" / "config.json", {
        "_class_name": "AutoencoderKLQwenImage", **version, "attn_scales": [],
        "base_dim": BASE_CHANNELS, "dim_mult": MULTIPLIERS, "dropout": 0.0,
        "latents_mean": LATENTS_MEAN, "latents_std": LATENTS_STD, "num_res_blocks": 2,
        "temperal_downsample": TEMPORAL_DOWNSAMPLE, "z_dim": LATENT_CHANNELS})
    write_safetensors(folder / "vae" / "diffusion_pytorch_model.safetensors", vae_tensors(), seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="where to write; made if it is not there")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other weights")
    arguments = parser.parse_args()
    make(arguments.folder, arguments.seed)
    size = sum(path.stat().st_size for path in arguments.folder.rglob("*") if path.is_file())
    print(f"{arguments.folder}: a Qwen-Image model of {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
