"""Caches of clips that never were: rows are encoded as images, and random latents of clips take the
place of theirs, with the signatures that the program looks at."""

import ctypes
import json

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import atelier

CHANNELS, FRAME_STRIDE, STRIDE = 16, 4, 8


def content_hash(data):
    """XXH3 of 128 bits, by which a cache tells contents apart."""

    class Hash(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    function = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_size_t], Hash
    value = function(data, len(data))
    return f"{value.high:016x}{value.low:016x}"


def write_latents(path, latents):
    """Writes an entry with other latents than those that were encoded."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    name = b"latents"
    float32 = 6  # LibTorch's number of it
    shape = np.array([float32, latents.dim(), *latents.shape], np.int64)
    data = np.int64(len(name)).tobytes() + name + shape.tobytes() + latents.numpy().tobytes()
    save_file({"latents": latents}, path, {**metadata, "atelier.content": content_hash(data)})


def make(folder, plugin, model, prompts, frames, height, width):
    """Returns the folder of a cache with a clip for each prompt, in float32."""
    folder.mkdir(parents=True)
    rows = []
    for number, prompt in enumerate(prompts):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append(json.dumps({"image": f"{number}.png", "prompt": prompt}))
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    atelier.run([
        "cache", "--plugin", plugin, "--model_paths",
        atelier.paths_argument(model), "--dataset_base_path", folder, "--dataset_metadata_path",
        folder / "rows.jsonl", "--dtype", "float32", "--output_path", folder
    ], folder)
    cache = folder / "cache"
    manifest = json.loads((cache / "manifest.json").read_text())
    shape = [CHANNELS, (frames - 1) // FRAME_STRIDE + 1, height // STRIDE, width // STRIDE]
    for number, item in enumerate(manifest["items"]):
        latents = torch.randn(shape, generator=torch.Generator().manual_seed(70 + number))
        write_latents(cache / "latents" / (item["latents"] + ".safetensors"), latents)
        item.update(frames=frames, latents_shape=shape)
    (cache / "manifest.json").write_text(json.dumps(manifest))
    return cache


def read(cache):
    """Latents and text of each row."""
    for item in json.loads((cache / "manifest.json").read_text())["items"]:
        yield tuple(
            load_file(cache / stage / (item[stage] + ".safetensors"))[name]
            for stage, name in (("latents", "latents"), ("text", "prompt_embeds")))
