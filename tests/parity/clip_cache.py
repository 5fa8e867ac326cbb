"""Caches of clips: of folders of random frames; and for benchmarks random latents, which no VAE made."""

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


def make(folder, plugin, model, prompts, frames, height, width, *flags, columns={}):
    """Returns the folder of a cache with a clip for each prompt, in float32. `columns`: a cell for each of
    them, by name; the frames of clip N are files N/*.png."""
    folder.mkdir(parents=True)
    rows = []
    for number, prompt in enumerate(prompts):
        clip = folder / str(number)
        clip.mkdir()
        pixels = np.random.default_rng(number).integers(0, 256, (frames, height, width, 3), np.uint8)
        for i, frame in enumerate(pixels):
            Image.fromarray(frame).save(clip / f"{i}.png")
        more = {name: cells[number] for name, cells in columns.items()}
        rows.append(json.dumps({"video": clip.name, "prompt": prompt, **more}))
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    atelier.run([
        "cache", "--plugin", plugin, "--model_paths",
        atelier.paths_argument(model), "--dataset_base_path", folder, "--dataset_metadata_path",
        folder / "rows.jsonl", "--num_frames", frames, "--dtype", "float32", "--output_path", folder,
        *flags
    ], folder)
    return folder / "cache"


def put_clips(cache, shape):
    """Puts random latents of clips in place of those of the images that a cache is of."""
    manifest = json.loads((cache / "manifest.json").read_text())
    frames = (shape[1] - 1) * FRAME_STRIDE + 1
    for number, item in enumerate(manifest["items"]):
        latents = torch.randn(shape, generator=torch.Generator().manual_seed(70 + number))
        write_latents(cache / "latents" / (item["latents"] + ".safetensors"), latents)
        item.update(frames=frames, height=shape[2] * STRIDE, width=shape[3] * STRIDE,
                    latents_shape=shape)
    (cache / "manifest.json").write_text(json.dumps(manifest))


def read(cache, *stages):
    """Latents and text of each row, and what further stages of one tensor give."""
    for item in json.loads((cache / "manifest.json").read_text())["items"]:
        yield tuple(
            load_file(cache / stage / (item[stage] + ".safetensors"))[name]
            for stage, name in (("latents", "latents"), ("text", "prompt_embeds"),
                                *((stage, stage) for stage in stages)))
