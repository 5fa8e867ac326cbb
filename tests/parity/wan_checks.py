"""What the suites of Wan share: calls of the program with its plugin, what it is given, and the checks
that hold for each of its VAEs and denoisers."""

import pathlib
import tempfile
import unittest

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

import atelier
import compare
import references
import tiny_models
import wan_models

PLUGIN = "wan"


def probe(component, paths, inputs, **options):
    return atelier.probe(component, paths, inputs, plugin=PLUGIN, **options)


def generate(paths, latents, **flags):
    """The frames that the program makes in float32, at diffusers' levels."""
    return atelier.generate(paths, latents, plugin=PLUGIN,
                            **dict(schedule="diffusers", dtype="float32") | flags)


def noise(frames, height, width, seed, count=1, channels=16, cell=8):
    """Noise as the program takes it, [N, C, T, h, w]."""
    return torch.randn((count, channels, (frames - 1) // 4 + 1, height // cell, width // cell),
                       generator=torch.Generator().manual_seed(seed))


def picture(height, width, seed):
    """A smooth random image, uint8 [H, W, 3]."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def difference(images, others):
    """How far they are apart, in levels of 255."""
    return np.abs(np.asarray(images, np.float64) - np.asarray(others, np.float64)).mean()


def assert_ranks_agree(name, paths, **flags):
    """A clip of two ranks, which share the rows of each step, is that of one."""
    flags = dict(seed=3, num_inference_steps=2, dtype="float32", device="cpu") | flags
    words = ["generate", "--plugin", PLUGIN, "--model_paths", atelier.paths_argument(paths)]
    words += [word for flag, value in flags.items() for word in ("--" + flag, value)]
    made = []
    for ranks in (2, 1):
        with atelier.call_folder("launch") as folder:
            atelier.run(["launch", "--nproc_per_node", ranks, "--", *words, "--sequence_parallel", ranks, "--output",
                         folder / "out.png"], folder)
            made.append(atelier.read_pictures(sorted(folder.glob("out*.png"))))
    compare.assert_images(name + ", rows of two ranks", *made, tolerance=0.01)


def save_spellings(transformer, folder):
    """Writes diffusers' folder of a denoiser, and in it its original spelling; returns both."""
    transformer.save_pretrained(folder)
    file = pathlib.Path(folder) / "original" / "dit.safetensors"
    transformer.save_config(file.parent)
    save_file(
        tiny_models.contiguous(wan_models.renamed(transformer.state_dict(),
                                                  wan_models.ORIGINAL_DIT)), file)
    return folder, file


def with_gradients(tensors):
    """Copies of the floating ones, which gradients are asked of."""
    return {
        name: tensor.clone().requires_grad_(True)
        for name, tensor in tensors.items()
        if tensor.is_floating_point()
    }


def check_denoiser(name, what, transformer, folder, inputs):
    """Compares velocities in both spellings, and all gradients. Returns the velocity."""
    folder, file = save_spellings(transformer, folder)
    floating = with_gradients(inputs)
    output = wan_models.velocity(transformer, **floating)
    expected = references.gradients(output, floating, dict(transformer.named_parameters()))
    got = probe("dit", folder, inputs, gradients=True, trainable="*")
    compare.assert_close(f"{name}, {what}", got["velocity"], output)
    compare.assert_gradients(f"{name}, gradients with {what}", got, expected)
    compare.assert_close(f"{name}, {what}, original", probe("dit", file, inputs)["velocity"], output)
    return output.detach()


class FolderTest(unittest.TestCase):
    """Has a folder of its own, `dir`, while its tests run."""

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="atelier_wan_")
        cls.addClassCleanup(holder.cleanup)
        cls.dir = pathlib.Path(holder.name)


class VaeChecks:
    """For tests of a VAE: `vae` is that of diffusers, `folder` the files of the same one."""

    channels = 16

    @staticmethod
    def clip(batch, frames, height, width, seed=21):
        return torch.rand((batch, 3, frames, height, width),
                          generator=torch.Generator().manual_seed(seed)) * 2 - 1

    @classmethod
    def latents(cls, batch, frames, height, width, seed=22, channels=None):
        return torch.randn((batch, channels or cls.channels, frames, height, width),
                           generator=torch.Generator().manual_seed(seed))

    def ours(self, clip=None, latents=None, paths=None, **options):
        paths = paths or self.folder
        if latents is None:
            return probe("vae", paths, {"clip": clip}, **options)["latents"]
        got = probe("vae", paths, {"latents": latents}, **options)
        return got["clip"] if "clip" in got else got["image"][:, :, None]

    def check(self, name, clip=None, latents=None, paths=None, vae=None):
        with torch.no_grad():
            if latents is None:
                expected = wan_models.encode(vae or self.vae, clip)
            else:
                expected = wan_models.decode(vae or self.vae, latents)
        compare.assert_close(name, self.ours(clip, latents, paths), expected)

    def check_gradients(self, name, clip, latents):
        for inputs, call, other in (({"clip": clip}, wan_models.encode, "latents"),
                                    ({"latents": latents}, wan_models.decode, "clip")):
            (key,) = inputs
            got = probe("vae", self.folder, inputs, gradients=True, trainable="*")
            floating = with_gradients(inputs)
            output = call(self.vae, floating[key])
            expected = references.gradients(output, floating, dict(self.vae.named_parameters()))
            compare.assert_gradients(f"{name}, gradients from {key}", got, expected)
            compare.assert_close(f"{name}, values with gradients from {key}", got[other], output)
