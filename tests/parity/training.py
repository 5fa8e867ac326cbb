"""The reference side of training: steps written with diffusers, peft and torch.optim.

Random numbers, order, noise levels and weights are written again here from their definitions, so
that both sides see the same ones without one asking the other.
"""

import dataclasses
import functools
import itertools

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift

import references
import tiny_models

# What a stream of random numbers is for.
NOISE, TIMESTEP, ORDER, DENOISER = 1, 2, 3, 10
LEVELS = 1000
# The shift of Qwen-Image's training schedule, in the exponential form.
TRAINING_MU = 0.8


def philox4x32(counter, key):
    """Ten rounds of Philox4x32 (Salmon et al. 2011) for arrays of counters, words as uint64."""
    low = np.uint64(0xFFFFFFFF)
    a, b, c, d = (np.asarray(word, np.uint64) for word in counter)
    key_a, key_b = key
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (second >> np.uint64(32)) ^ b ^ np.uint64(key_a), second & low, \
            (first >> np.uint64(32)) ^ d ^ np.uint64(key_b), first & low
        key_a, key_b = (key_a + 0x9E3779B9) % 2**32, (key_b + 0xBB67AE85) % 2**32
    return a, b, c, d


def _key(seed):
    return seed % 2**32, seed >> 32


def stream_seed(seed, stream):
    low, high, _, _ = philox4x32((0, 0, stream, 2), _key(seed))
    return int(high) << 32 | int(low)


def _bits(seed, sample, step):
    low, high, _, _ = philox4x32((0, sample, step, 1), _key(seed))
    return int(high) << 32 | int(low)


def normal_noise(seed, sample, step, shape):
    """Float32 by Box and Muller in double: each counter gives four values."""
    count = int(np.prod(shape))
    words = philox4x32((np.arange((count + 3) // 4), sample, step, 0), _key(seed))

    def pair(a, b):
        radius = np.sqrt(-2 * np.log((a + 0.5) / 2**32))
        angle = 2 * np.pi * (b + 0.5) / 2**32
        return radius * np.cos(angle), radius * np.sin(angle)

    values = np.stack([*pair(words[0], words[1]), *pair(words[2], words[3])], axis=1)
    return torch.from_numpy(values.astype(np.float32).flatten()[:count].reshape(shape))


@functools.cache
def sigmas():
    """The 1,000 levels, from pure noise on: shifted, then stretched to end at 0.02."""
    u = 1 - np.arange(LEVELS) / LEVELS
    levels = np.exp(TRAINING_MU) / (np.exp(TRAINING_MU) + 1 / u - 1)
    return 1 - (1 - levels) * (1 - 0.02) / (1 - levels[-1])


def sigmas_of_diffusers():
    """The same table, by diffusers' scheduler."""
    scheduler = FlowMatchEulerDiscreteScheduler(**tiny_models.SCHEDULER_CONFIG)
    scheduler.set_timesteps(sigmas=1 - np.arange(LEVELS) / LEVELS, mu=TRAINING_MU)
    return scheduler.sigmas[:-1].double().numpy()


@functools.cache
def weights():
    """By level: a bell around the timestep 500, 0 at its lowest, 1 on average."""
    bell = np.exp(-2 * ((1000 * sigmas() - 500) / 1000)**2)
    bell -= bell.min()
    return bell * LEVELS / bell.sum()


def weight_of_level(level):
    return weights()[level]


def draw_uniform(seed, slot, step, stream=TIMESTEP):
    return (_bits(stream_seed(seed, stream), slot, step) >> 11) / 2**53


def draw_level(seed, slot, step):
    """The number of a level, uniform in the table."""
    return min(int(draw_uniform(seed, slot, step) * LEVELS), LEVELS - 1)


def draw_shifted(seed, slot, step, tokens, scheduler, sigmoid=False):
    """A sigma that is shifted as `scheduler`, published settings, shifts an image of so many
    tokens; before, it is uniform or the sigmoid of a normal value."""
    sigma = torch.tensor(draw_uniform(seed, slot, step), dtype=torch.float64)
    if sigmoid:
        sigma = torch.special.ndtri(sigma).sigmoid()
    names = ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift")
    mu = calculate_shift(tokens, *(scheduler[name] for name in names))
    return FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True).time_shift(mu, 1.0, sigma)


def permutation(seed, epoch, count):
    """The order of the rows in an epoch (Fisher and Yates)."""
    rows, key = list(range(count)), stream_seed(seed, ORDER)
    for i in range(count - 1, 0, -1):
        j = _bits(key, i, epoch) * (i + 1) >> 64
        rows[i], rows[j] = rows[j], rows[i]
    return rows


@dataclasses.dataclass
class Sample:
    """A row as the denoiser sees it: float32 [16, 1, h, w], [L, D], and where the loss counts."""
    latents: torch.Tensor
    prompt_embeds: torch.Tensor
    mask: torch.Tensor | None = None


def encode(models, image, prompt, mask=None):
    """A row of the dataset: uint8 [H, W, 3], text, uint8 [H, W] or None."""
    pixels = torch.from_numpy(image).permute(2, 0, 1)[None] / 255 * 2 - 1
    with torch.no_grad():
        latents = references.encode(models.vae, pixels)[0]
    prompt_embeds, _ = models.pipeline.encode_prompt(prompt, device="cpu")
    if mask is not None:
        # The mean of the 8 x 8 pixels of each latent.
        mask = torch.from_numpy(mask) / 255
        height, width = latents.shape[-2:]
        mask = mask.view(height, 8, width, 8).mean(dim=(1, 3))
    return Sample(latents, prompt_embeds[0], mask)


def plan(count, seed, repeat=1, batch_size=1, accumulation=1):
    """The steps of a run: each a list of batches, each a list of (row, place in the step).

    All rows have one size. A step ends with its epoch, with fewer samples than the others if need
    be.
    """
    for epoch in itertools.count():
        rows = [
            row for turn in range(repeat)
            for row in permutation(seed, epoch * repeat + turn, count)
        ]
        for begin in range(0, len(rows), batch_size * accumulation):
            places = list(enumerate(rows[begin:begin + batch_size * accumulation]))
            yield [[(row, slot)
                    for slot, row in places[at:at + batch_size]]
                   for at in range(0, len(places), batch_size)]


def batch_loss(transformer, samples, slots, seed, step, weight_of=weight_of_level, draw_sigma=None):
    """The sum over the samples of weight * mean(error^2), the velocity computed in one call.
    draw_sigma(seed, slot, step), without weights, stands in for the table."""
    dtype = transformer.dtype
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    if draw_sigma is None:
        levels = [draw_level(seed, slot, step) for slot in slots]
        drawn = sigmas()[levels]
        weight = torch.tensor([weight_of(level) for level in levels], dtype=exact)
    else:
        drawn = [draw_sigma(seed, slot, step) for slot in slots]
        weight = torch.ones(len(slots), dtype=exact)
    # The levels and the noise are of single precision, also where the rest is not.
    sigma = torch.tensor(drawn, dtype=torch.float32).to(exact)
    clean = torch.stack([sample.latents for sample in samples]).to(exact)
    noise = torch.stack([
        normal_noise(stream_seed(seed, NOISE), slot, step, tuple(clean.shape[1:])) for slot in slots
    ]).to(exact)
    at = sigma.view(-1, 1, 1, 1, 1)
    noisy = (1 - at) * clean + at * noise
    embeds = torch.nn.utils.rnn.pad_sequence([sample.prompt_embeds for sample in samples],
                                             batch_first=True)
    lengths = torch.tensor([len(sample.prompt_embeds) for sample in samples])
    velocity = references.velocity(transformer, noisy.to(dtype), sigma, embeds.to(dtype),
                                   lengths if len(set(lengths.tolist())) > 1 else None)
    error = (velocity.to(exact) - (noise - clean)).square()
    masks = [sample.mask for sample in samples]
    if masks[0] is not None:
        error = error * torch.stack(masks)[:, None, None]
    return (weight * error.flatten(1).mean(dim=1)).sum()


def train(transformer,
          optimizer,
          encode_rows,
          steps=1,
          seed=42,
          max_grad_norm=0.0,
          schedule=None,
          weight_of=weight_of_level,
          draw_sigma=None,
          **shape):
    """Trains for `steps` optimizer steps; `encode_rows` gives the samples, and is called again for
    each batch, as encoders may be trained too. `shape` is plan()'s.

    Returns the losses of the steps, and the gradients of the first one in the optimizer's order,
    None where the loss does not depend on a parameter.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    losses, first = [], None
    planned = plan(len(encode_rows()), seed, **shape)
    for step, batches in zip(range(steps), planned):
        optimizer.zero_grad()
        count = sum(map(len, batches))
        losses.append(0.0)
        for batch in batches:
            samples = encode_rows()
            loss = batch_loss(transformer, [samples[row] for row, _ in batch],
                              [slot for _, slot in batch], seed, step, weight_of, draw_sigma) / count
            loss.backward()
            losses[-1] += loss.item()
        if max_grad_norm > 0:
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
            assert norm > max_grad_norm, f"nothing is clipped at a norm of {norm:g}"
        if first is None:
            first = [None if p.grad is None else p.grad.clone() for p in parameters]
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return losses, first
