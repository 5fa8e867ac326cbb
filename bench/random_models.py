"""Models whose files have names and shapes and no values; both sides fill them with the same random numbers.

The files are holes with `atelier.random_weights` in their metadata, a seed. Atelier makes the values when it loads them
(host/model/random_weights.h), and random_tensor() here the same ones on the same device.
"""

import json
import math
import re
import shutil
import sys

from families import REPOSITORY

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
    tiny = folder / "parts/model"
    for part, (keys, config) in family.published.items():
        (folder / part).mkdir()
        shapes = published_shapes(keys) if is_published else shapes_of(tiny / part)
        published_sizes.write_holes(folder / part / "model.safetensors", shapes, {"atelier.random_weights": str(SEED)})
        shutil.copy(DATA / "configs" / config if is_published else tiny / part / "config.json",
                    folder / part / "config.json")
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
    from accelerate import init_empty_weights
    from accelerate.utils import set_module_tensor_to_device
    config = json.loads((folder / "transformer/config.json").read_text())
    with init_empty_weights(include_buffers=False):
        model = family.denoiser_class().from_config(config)
    for name, parameter in list(model.named_parameters()):
        set_module_tensor_to_device(model, name, device, value=random_tensor(name, parameter.shape, device).to(dtype),
                                    dtype=dtype)
    return model.to(device).eval().requires_grad_(False)
