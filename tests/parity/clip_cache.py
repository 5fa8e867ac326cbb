"""Caches of clips, which are folders of random frames."""

import json

import numpy as np
from PIL import Image
from safetensors.torch import load_file

import atelier


def make(folder, plugin, model, prompts, frames, height, width, *flags):
    """Returns the folder of a cache with a clip for each prompt, in float32."""
    folder.mkdir(parents=True)
    rows = []
    for number, prompt in enumerate(prompts):
        clip = folder / str(number)
        clip.mkdir()
        pixels = np.random.default_rng(number).integers(0, 256, (frames, height, width, 3), np.uint8)
        for i, frame in enumerate(pixels):
            Image.fromarray(frame).save(clip / f"{i}.png")
        rows.append(json.dumps({"video": clip.name, "prompt": prompt}))
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    atelier.run([
        "cache", "--plugin", plugin, "--model_paths",
        atelier.paths_argument(model), "--dataset_base_path", folder, "--dataset_metadata_path",
        folder / "rows.jsonl", "--num_frames", frames, "--dtype", "float32", "--output_path", folder,
        *flags
    ], folder)
    return folder / "cache"


def read(cache, *stages):
    """Latents and text of each row, and what further stages of one tensor give."""
    for item in json.loads((cache / "manifest.json").read_text())["items"]:
        yield tuple(
            load_file(cache / stage / (item[stage] + ".safetensors"))[name]
            for stage, name in (("latents", "latents"), ("text", "prompt_embeds"),
                                *((stage, stage) for stage in stages)))
