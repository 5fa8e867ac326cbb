#!/usr/bin/env python3
"""Trains the VAE of this example with diffusers, on pictures drawn as it goes.

    python3 train_vae.py FOLDER [--steps 900] [--seed 7]
    python3 train_vae.py FOLDER --refine --steps 1000 --seed 8

The first command writes FOLDER/config.json and FOLDER/diffusion_pytorch_model.safetensors, float32
numbers that fit bfloat16, and prints how well it repeats pictures that it has not seen. Latents are
kept near mean 0 and deviation 1, and the decoder learns to read them through noise, so that small
errors of a denoiser stay small. The second goes on with the decoder alone. Needs numpy, Pillow,
torch and diffusers.
"""

import argparse
import contextlib
import json
import math
import pathlib
import time

import numpy as np
import torch
from diffusers import AutoencoderKLQwenImage
from diffusers.models.autoencoders import autoencoder_kl_qwenimage
from torch.nn import functional

import pictures

CONFIG = dict(base_dim=8, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=1, attn_scales=[],
              temperal_downsample=[False, True, True])
BATCH = 8
RATE = 3e-3
NOISE, REFINED_NOISE = 0.2, 0.1  # deviation of what is added to latents
POOL = 768  # pictures that are drawn at first; each batch replaces a few of them
FRESH = 2
HATCHED = 0.25  # part of the pictures


def convolve_frame(layer, x, cache_x=None):
    """A causal convolution of one frame: before it lie zeros, so only the last slice counts."""
    assert cache_x is None and x.shape[2] == 1
    padding = (layer._padding[2], layer._padding[0])
    weight = layer.weight[:, :, -1]
    return functional.conv2d(x[:, :, 0], weight, layer.bias, padding=padding)[:, :, None]


def normalise(norm, x):
    """QwenImageRMS_norm in fewer passes over memory."""
    return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-12) * norm.gamma


@contextlib.contextmanager
def quick_frames():
    """Within it, diffusers computes single frames as above, about twice as quickly."""
    convolution, norm = (autoencoder_kl_qwenimage.QwenImageCausalConv3d,
                         autoencoder_kl_qwenimage.QwenImageRMS_norm)
    before = convolution.forward, norm.forward
    convolution.forward, norm.forward = convolve_frame, normalise
    try:
        yield
    finally:
        convolution.forward, norm.forward = before


def encode(vae, x):
    """The means of pictures' latents, [B, 16, 1, H / 8, W / 8], before they are normalised."""
    return vae.quant_conv(vae.encoder(x)).chunk(2, dim=1)[0]


def decode(vae, z):
    return vae.decoder(vae.post_quant_conv(z))


def check_shortcut(vae, x):
    """Single frames are what diffusers computes."""
    with torch.no_grad():
        theirs = vae.encode(x).latent_dist.mode()
        theirs_back = vae.decode(theirs).sample
        with quick_frames():
            mine = encode(vae, x)
            mine_back = decode(vae, mine).clamp(-1, 1)
    assert torch.allclose(mine, theirs, atol=1e-4) and torch.allclose(
        mine_back, theirs_back, atol=1e-4)


def draw(rng, count):
    """Pictures of random scenes, uint8 [count, 3, 128, 128]."""
    drawn = [pictures.paint(pictures.scene(rng, wide=True),
                            "hatched" if rng.random() < HATCHED else "plain")
             for _ in range(count)]
    return torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2)


def to_input(pool):
    return (pool.float() / 127.5 - 1)[:, :, None]


def initialise(vae, x):
    """Weights for single frames that keep the size of activations, and latents of deviation 1."""
    with torch.no_grad():
        for name, weight in vae.named_parameters():
            if weight.dim() >= 4 and "gamma" not in name:
                taps = weight[:, :, -1] if weight.dim() == 5 else weight
                taps.normal_(std=(1.5 / taps[0].numel())**0.5)
            elif name.endswith("bias"):
                weight.zero_()
        vae.decoder.conv_out.weight.mul_(0.3)
        for _ in range(2):
            z = encode(vae, x)
            last = vae.quant_conv
            last.weight[:CONFIG["z_dim"]] /= z.std((0, 2, 3, 4))[:, None, None, None, None]
            last.bias[:CONFIG["z_dim"]] -= encode(vae, x).mean((0, 2, 3, 4))


def moments_loss(z):
    """How far the latents' channels are from mean 0 and deviation 1."""
    mean = z.mean((0, 2, 3, 4))
    deviation = z.std((0, 2, 3, 4))
    return (mean**2).mean() + ((deviation - 1)**2).mean()


def psnr(vae, x):
    with torch.no_grad():
        back = decode(vae, encode(vae, x)).clamp(-1, 1)
    return -10 * math.log10(((back - x)**2).mean().item() / 4)


def averages(tensors):
    """Pairs of each tensor that is learnt and its running average."""
    return [(value, value.detach().clone()) for value in tensors.values()]


def take_average(average):
    with torch.no_grad():
        for value, kept in average:
            value.copy_(kept)


def optimize(parameters, steps, rate, loss_of_batch, average):
    """Adam with a warm-up and a cosine; `average`, from averages(), follows what is learnt."""
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.99), weight_decay=1e-4)
    begin, total = time.time(), 0.0
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, step / 50) * (0.5 + 0.5 * math.cos(math.pi * step / steps))
        error, penalty = loss_of_batch()
        optimizer.zero_grad()
        (error + penalty).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        decay = min(0.995, 1 - 10 / (10 + step))
        with torch.no_grad():
            for value, kept in average:
                kept.lerp_(value, 1 - decay)
        total += error.item()
        if step % 50 == 0:
            print(f"{time.time() - begin:6.0f} s  step {step}  loss {total / 50:.4f}", flush=True)
            total = 0.0


def difference(back, x):
    return functional.l1_loss(back, x) + functional.mse_loss(back, x)


def train(vae, rng, steps):
    pool = draw(rng, POOL)
    initialise(vae, to_input(pool[:64]))

    def loss_of_batch():
        pool[rng.integers(0, POOL, FRESH)] = draw(rng, FRESH)
        x = to_input(pool[rng.integers(0, POOL, BATCH)])
        z = encode(vae, x)
        back = decode(vae, z + NOISE * torch.randn_like(z))
        return difference(back, x), 0.1 * moments_loss(z)

    average = averages(vae.state_dict())
    optimize(list(vae.parameters()), steps, RATE, loss_of_batch, average)
    take_average(average)


def refine(vae, rng, steps):
    """Trains the decoder alone: latents stay what a denoiser has learnt."""
    pool = draw(rng, POOL)
    with torch.no_grad():
        latents = torch.cat([encode(vae, to_input(part)) for part in pool.split(BATCH)])

    def loss_of_batch():
        fresh = rng.integers(0, POOL, FRESH)
        pool[fresh] = draw(rng, FRESH)
        with torch.no_grad():
            latents[fresh] = encode(vae, to_input(pool[fresh]))
        chosen = rng.integers(0, POOL, BATCH)
        z = latents[chosen]
        back = decode(vae, z + REFINED_NOISE * torch.randn_like(z))
        return difference(back, to_input(pool[chosen])), 0.0

    parameters = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
    average = averages(dict(enumerate(parameters)))
    optimize(parameters, steps, RATE, loss_of_batch, average)
    take_average(average)


def round_weights(vae):
    """To the bfloat16 that the model is kept in: latents must not change any more."""
    with torch.no_grad():
        for weight in vae.parameters():
            weight.copy_(weight.bfloat16())


def finish(vae, x):
    """Clears what no frame reads and writes NOISE as the latents' deviation. Returns the moments
    of their means, for the config."""
    with torch.no_grad():
        vae.quant_conv.weight[CONFIG["z_dim"]:] = 0
        vae.quant_conv.bias[CONFIG["z_dim"]:] = 2 * math.log(NOISE)
        for name, weight in vae.named_parameters():
            if weight.dim() == 5 and weight.shape[2] > 1:
                weight[:, :, :-1] = 0  # a single frame never reads them
        round_weights(vae)
        z = encode(vae, x)
    return {"latents_mean": [round(value, 6) for value in z.mean((0, 2, 3, 4)).tolist()],
            "latents_std": [round(value, 6) for value in z.std((0, 2, 3, 4)).tolist()]}


def save(vae, folder, changes):
    """Writes the VAE with `changes` in its configuration, which names no folder."""
    vae.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | changes
    config.pop("_name_or_path", None)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--refine", action="store_true", help="goes on with FOLDER's decoder")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    rng = np.random.default_rng(arguments.seed)
    unseen = to_input(draw(np.random.default_rng(arguments.seed + 1), 128))
    if arguments.refine:
        vae = AutoencoderKLQwenImage.from_pretrained(arguments.folder)
        check_shortcut(vae, unseen[:2])
        with quick_frames():
            refine(vae, rng, arguments.steps)
            round_weights(vae)
            print(f"{psnr(vae, unseen):.1f} dB on pictures not seen")
        save(vae, arguments.folder, {})
        return
    vae = AutoencoderKLQwenImage(**CONFIG)
    check_shortcut(vae, unseen[:2])
    with quick_frames():
        train(vae, rng, arguments.steps)
        moments = finish(vae, unseen)
        print(f"{psnr(vae, unseen):.1f} dB on pictures not seen")
    check_shortcut(vae, unseen[:2])
    save(vae, arguments.folder, moments)


if __name__ == "__main__":
    main()
