#!/usr/bin/env python3
"""Trains the VAE of this example with diffusers, on clips drawn as it goes.

    python3 train_clip_vae.py FOLDER [--steps 1200] [--seed 7]
    python3 train_clip_vae.py FOLDER --clips --steps 200 --seed 8

The first command begins with the VAE of ../shapes, whose architecture is the same, goes on with single
frames, and writes FOLDER/config.json and FOLDER/diffusion_pytorch_model.safetensors, float32 numbers
that fit bfloat16. Its latents are those of every fourth frame, and its decoder shows each of them four
times. The second command teaches the decoder what is seen between them; latents stay as they are, so
that a denoiser may learn them meanwhile. Both print how well the VAE repeats what it has not seen.
Latents are kept near mean 0 and deviation 1, and the decoder learns to read them through noise, so
that small errors of a denoiser stay small. Needs numpy, Pillow, torch and diffusers.
"""

import argparse
import contextlib
import math
import pathlib
import unittest.mock

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage, AutoencoderKLWan
from diffusers.models.autoencoders import autoencoder_kl_wan
from torch.nn import functional

import clips

import train_vae as still  # ../shapes/train_vae.py, which clips.py has made known

BEGIN = pathlib.Path(__file__).resolve().parent.parent / "shapes" / "model" / "vae"
NOISE = 0.15  # deviation of what is added to latents
STILLS, STILLS_BATCH, STILLS_RATE = 1024, 24, 2e-3  # frames that are drawn at first
CLIPS, CLIPS_BATCH, CLIPS_RATE = 256, 3, 8e-4
ANYWHERE = dict(aside=3, reach=(8, 10), radius=(13, 16))  # where the thing of a single frame may be
FRESH = 2  # of the drawn frames, which each batch replaces; of clips it is one
LARGEST_IN_TIME = 16  # pixels of the widest picture in which the decoder looks at frames before


def resample(self, x, feat_cache=None, feat_idx=None):
    """What a step between levels does to a whole clip: diffusers computes piece after piece."""
    if self.mode == "upsample3d":
        later = self.time_conv(x[:, :, 1:]).unflatten(1, (2, -1)) if x.shape[2] > 1 else None
        if later is not None:
            later = torch.stack([later[:, 0], later[:, 1]], 3).flatten(2, 3)
            x = torch.cat([x[:, :, :1], later], 2)
    batch = x.shape[0]
    x = self.resample(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (batch, -1)).transpose(1, 2)
    if self.mode == "downsample3d" and x.shape[2] > 1:
        x = torch.cat([x[:, :, :1], self.time_conv(x)], 2)
    return x


def convolve(layer, x, cache_x=None):
    """A causal convolution of a whole clip. Where pictures are large it sees one frame at a time."""
    before, taps = layer._padding[4], layer.weight
    if before and x.shape[-1] > LARGEST_IN_TIME:
        before, taps = 0, taps[:, :, -1:]
    if before:
        x = functional.pad(x, (0, 0, 0, 0, before, 0))
    padding = (0, layer._padding[2], layer._padding[0])
    return functional.conv3d(x, taps, layer.bias, layer.stride, padding)


@contextlib.contextmanager
def whole_clips():
    """Within it, encoder and decoder take a whole clip at once, and more quickly."""
    patch = unittest.mock.patch.object
    with patch(autoencoder_kl_wan.WanResample, "forward", resample), \
            patch(autoencoder_kl_wan.WanCausalConv3d, "forward", convolve), \
            patch(autoencoder_kl_wan.WanRMS_norm, "forward", still.normalise):
        yield


def check_whole(vae, x):
    """Clips at once are what diffusers computes."""
    with torch.no_grad():
        theirs = vae.encode(x).latent_dist.mode()
        theirs_back = vae.decode(theirs).sample
        with whole_clips():
            mine = still.encode(vae, x)
            back = still.decode(vae, mine).clamp(-1, 1)
    assert torch.allclose(mine, theirs, atol=1e-4) and torch.allclose(back, theirs_back, atol=1e-4)


def draw(rng, count, single=False):
    """Clips of random scenes, also of those that no denoiser learns, or single frames of them; uint8
    [count, 3, T, SIZE, SIZE]."""
    scenes = clips.every_scene()
    drawn = []
    for _ in range(count):
        scene = scenes[rng.integers(len(scenes))]
        if single:
            times = [rng.random()]
            drawn.append(clips.paint(scene, clips.path(rng, scene.direction, **ANYWHERE), times))
        else:
            drawn.append(clips.paint(scene, clips.path(rng, scene.direction)))
    return torch.from_numpy(np.stack(drawn)).permute(0, 4, 1, 2, 3)


def to_input(pool):
    return pool.float() / 127.5 - 1


def train_stills(vae, rng, steps):
    pool = draw(rng, STILLS, single=True)

    def loss_of_batch():
        pool[rng.integers(0, STILLS, FRESH)] = draw(rng, FRESH, single=True)
        x = to_input(pool[rng.integers(0, STILLS, STILLS_BATCH)])
        z = still.encode(vae, x)
        back = still.decode(vae, z + NOISE * torch.randn_like(z))
        return still.difference(back, x), 0.1 * still.moments_loss(z)

    average = still.averages(vae.state_dict())
    still.optimize(list(vae.parameters()), steps, STILLS_RATE, loss_of_batch, average)
    still.take_average(average)


def finish_stills(vae, x):
    """Lets steps in time copy, and writes NOISE as the latents' deviation. Returns the moments of
    their means, for the config."""
    with torch.no_grad():
        vae.quant_conv.weight[16:] = 0
        vae.quant_conv.bias[16:] = 2 * math.log(NOISE)
        for name, weight in vae.named_parameters():
            if weight.dim() == 5:
                weight[:, :, :-1] = 0
            if name.endswith("time_conv.weight"):
                width = weight.shape[1]
                copies = torch.eye(width).repeat(weight.shape[0] // width, 1)
                weight[:, :, -1] = copies[..., None, None]
            elif name.endswith("time_conv.bias"):
                weight.zero_()
        still.round_weights(vae)
        z = still.encode(vae, x)
    return {"latents_mean": [round(value, 6) for value in z.mean((0, 2, 3, 4)).tolist()],
            "latents_std": [round(value, 6) for value in z.std((0, 2, 3, 4)).tolist()]}


def encode_frames(vae, x):
    """Latents of clips: the encoder sees every fourth frame, and each alone."""
    frames = x[:, :, ::4].transpose(1, 2).flatten(0, 1)[:, :, None]
    with torch.no_grad():
        return still.encode(vae, frames)[:, :, 0].unflatten(0, (len(x), -1)).transpose(1, 2)


def check_frames(vae, x):
    with torch.no_grad():
        assert torch.allclose(encode_frames(vae, x), still.encode(vae, x), atol=1e-4)


def train_decoder(vae, rng, steps):
    """Trains the decoder alone, with whole clips."""
    pool = draw(rng, CLIPS)
    latents = torch.cat([encode_frames(vae, to_input(part)) for part in pool.split(16)])

    def loss_of_batch():
        fresh = rng.integers(0, CLIPS, 1)
        pool[fresh] = draw(rng, 1)
        latents[fresh] = encode_frames(vae, to_input(pool[fresh]))
        chosen = rng.integers(0, CLIPS, CLIPS_BATCH)
        z = latents[chosen]
        back = still.decode(vae, z + NOISE * torch.randn_like(z))
        return still.difference(back, to_input(pool[chosen])), 0.0

    parameters = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
    average = still.averages(dict(enumerate(parameters)))
    still.optimize(parameters, steps, CLIPS_RATE, loss_of_batch, average)
    still.take_average(average)
    still.round_weights(vae)


def learn_stills(folder, rng, seed, steps):
    images = AutoencoderKLQwenImage.from_pretrained(BEGIN)
    unseen = to_input(draw(np.random.default_rng(seed + 1), 128, single=True))
    still.check_shortcut(images, unseen[:2])
    with still.quick_frames():
        train_stills(images, rng, steps)
        moments = finish_stills(images, unseen)
        print(f"{still.psnr(images, unseen):.1f} dB on frames not seen")
    config = {name: images.config[name] for name in (
        "base_dim", "z_dim", "dim_mult", "num_res_blocks", "attn_scales", "temperal_downsample")}
    vae = AutoencoderKLWan(**config)
    vae.load_state_dict(images.state_dict())
    still.save(vae, folder, moments)


def learn_clips(folder, rng, seed, steps):
    vae = AutoencoderKLWan.from_pretrained(folder)
    unseen = to_input(draw(np.random.default_rng(seed + 1), 32))
    check_whole(vae, unseen[:2])
    with whole_clips():
        check_frames(vae, unseen[:2])
        train_decoder(vae, rng, steps)
        print(f"{still.psnr(vae, unseen):.1f} dB on clips not seen")
    check_whole(vae, unseen[:2])
    still.save(vae, folder, {})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--clips", action="store_true", help="goes on with FOLDER's decoder")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    learn = learn_clips if arguments.clips else learn_stills
    learn(arguments.folder, np.random.default_rng(arguments.seed), arguments.seed, arguments.steps)


if __name__ == "__main__":
    main()
