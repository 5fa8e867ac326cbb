"""Models whose files have names and shapes and no values; both sides fill them with the same random numbers.

    bench/random_models.py "Wan 2.1 14B" FOLDER     a model of published size in FOLDER/model, and encoded clips of 81
                                                    frames of 832 x 480 in FOLDER/encoded: for `atelier plan`

The files are holes with `atelier.random_weights` in their metadata, a seed. Atelier makes the values when it loads them
(host/model/random_weights.h), and random_tensor() here the same ones on the same device.
"""

import argparse
import json
import math
import pathlib
import re
import shutil
import sys

from families import REPOSITORY, WAN, WAN_14B

sys.path.insert(0, str(REPOSITORY / "tests/support"))
import published_sizes  # noqa: E402

SEED = 1
DATA = REPOSITORY / "tests/data"


def published_shapes(keys):
    """The tensors of a published file, block ranges written out."""
    shapes = {}
    for line in (DATA / "keys" / keys).read_text().splitlines():
        if line.startswith("#"):
            continue
        name, shape = line.split("\t")
        blocks = re.search(r"\{(\d+)\.\.(\d+)\}", name)
        names = [name] if not blocks else [
            name.replace(blocks[0], str(number)) for number in range(int(blocks[1]), int(blocks[2]) + 1)
        ]
        shapes.update({each: [int(size) for size in shape.split("x")] for each in names})
    return shapes


def shapes_of(folder):
    """The tensors of a folder's files."""
    shapes = {}
    for file in sorted(folder.glob("*.safetensors")):
        shapes.update({name: entry["shape"] for name, entry in published_sizes.read_header(file).items()
                       if name != "__metadata__"})
    return shapes


def write_model(folder, family, is_published):
    """A whole model: the tokenizer of the tests' tiny one, and holes of its shapes or of the published ones."""
    family.make_tiny_model(folder / "parts")
    for part, (keys, config) in family.published.items():
        (folder / part).mkdir()
        tiny = folder / "parts/model" / part.removesuffix("_2")  # of two experts there is one tiny model
        shapes = published_shapes(keys) if is_published else shapes_of(tiny)
        published_sizes.write_holes(folder / part / "model.safetensors", shapes, {"atelier.random_weights": str(SEED)})
        source = DATA / "configs" / config if is_published and isinstance(config, str) else tiny / "config.json"
        changes = config if is_published and isinstance(config, dict) else {}
        published_sizes.change_config(source, folder / part / "config.json", **changes)
    tiny = folder / "parts/model"
    for name in ("tokenizer", "scheduler"):
        shutil.copytree(tiny / name, folder / name)
    if (tiny / "model_index.json").exists():
        shutil.copy(tiny / "model_index.json", folder)
    shutil.rmtree(folder / "parts")


def seed_of(name, seed):
    value = 14695981039346656037 ^ seed
    for letter in name.encode():
        value = (value ^ letter) * 1099511628211 % 2**64
    return value & 0x7fffffffffffffff


def random_tensor(name, shape, device, seed=SEED):
    """The values of a tensor, as fill_randomly() makes them there."""
    import torch
    generator = torch.Generator(device).manual_seed(seed_of(name, seed))
    value = torch.randn(tuple(shape), generator=generator, device=device)
    if value.numel() != max(shape, default=1):
        value /= math.sqrt(value.numel() // shape[0])
    elif name.endswith("bias"):
        value *= 0.02
    else:
        value = value * 0.1 + 1.0
    return value.to(torch.bfloat16)


def diffusers_model(family, folder, device, dtype):
    """diffusers' denoiser with the weights of the holes in `folder`."""
    import torch
    from accelerate import init_empty_weights
    from accelerate.utils import set_module_tensor_to_device
    config = json.loads((folder / "transformer/config.json").read_text())
    with init_empty_weights(include_buffers=False):
        model = family.denoiser_class().from_config(config)
    exact = set(model._keep_in_fp32_modules or ())
    for name, parameter in list(model.named_parameters()):
        kept = torch.float32 if exact & set(name.split(".")) else dtype
        set_module_tensor_to_device(model, name, device, value=random_tensor(name, parameter.shape, device), dtype=kept)
    return model.to(device).eval().requires_grad_(False)


def write_clips(folder, family, model):
    """What training reads of encoded clips, by their headers: two of 81 frames of 832 x 480 and 64 tokens.

    `model` is a tiny one, by which Atelier encodes two images; sizes are then those of clips, and values holes.
    """
    import diffusers_compare
    import train_compare
    (folder / "data").mkdir()
    train_compare.make_dataset(folder / "data", side=64, rows=2)
    flags = train_compare.run_flags(family, model, folder / "data", folder / "encoded")
    diffusers_compare.call(train_compare.train_command({
        **flags, "task": "sft:data_process", "device": "cpu", "dtype": "bfloat16", "height": 64, "width": 64,
        "output_path": folder / "run"
    }), threads=1)
    manifest = folder / "encoded/manifest.json"
    content = json.loads(manifest.read_text())
    latents = [16, 21, 60, 104]
    for item in content["items"]:
        item |= {"frames": 81, "height": 480, "width": 832, "latents_shape": latents}
    manifest.write_text(json.dumps(content))
    for path in (folder / "encoded").rglob("*.safetensors"):
        entries = published_sizes.read_header(path)
        metadata = entries.pop("__metadata__")
        shapes = {name: latents if name == "latents" else [64, family.text_width] for name in entries}
        published_sizes.write_holes(path, shapes, metadata)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("title", choices=[WAN.title, WAN_14B.title])
    parser.add_argument("folder", type=pathlib.Path, help="a new one")
    options = parser.parse_args()
    family = WAN_14B if options.title == WAN_14B.title else WAN
    options.folder.mkdir(parents=True)
    for name, is_published in (("model", True), ("tiny", False)):
        (options.folder / name).mkdir()
        write_model(options.folder / name, family, is_published)
    write_clips(options.folder, family, options.folder / "tiny")
    return 0


if __name__ == "__main__":
    sys.exit(main())
