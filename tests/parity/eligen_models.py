"""The reference side of EliGen: diffusers' denoiser with a dense mask, which its attention is given from outside."""

import contextlib
from unittest import mock

import numpy as np
import torch
from diffusers.models.transformers import transformer_qwenimage
from PIL import Image

import references


def shown(path, height, width):
    """Which tokens of an image of that size a mask shows, bool [N]: by the nearest pixel of each latent cell, and any of a
    token's cells."""
    mask = Image.open(path).convert("RGB").resize((width // 8, height // 8), Image.NEAREST)
    return any_of_cells(torch.from_numpy(np.asarray(mask, np.float64).mean(-1) > 127.5))


def any_of_cells(cells):
    height, width = cells.shape
    return cells.view(height // 2, 2, width // 2, 2).any(3).any(1).flatten()


def dense_mask(lengths, regions, rows):
    """Who sees whom among texts of `lengths`, entities and then the prompt, and `rows` of the image and its references: bool
    [L, L]. regions: bool [n, N], of the image that is made."""
    starts = np.cumsum([0, *lengths])
    text = int(starts[-1])
    seen = torch.zeros(text + rows, text + rows, dtype=torch.bool)
    seen[text:, text:] = True
    for number, (begin, end) in enumerate(zip(starts, starts[1:])):
        own = torch.ones(rows, dtype=torch.bool)
        if number < len(regions):
            own[:] = False
            own[:len(regions[number])] = regions[number]
        seen[begin:end, begin:end] = True
        seen[begin:end, text:] = own
        seen[text:, begin:end] = own[:, None]
    return seen


@contextlib.contextmanager
def regional(transformer, lengths, regions, rows):
    """The denoiser sees texts of `lengths`, one behind the other: each of them has places of its own."""
    mask = dense_mask(lengths, regions, rows)
    rope, attend = transformer.pos_embed.forward, transformer_qwenimage.dispatch_attention_fn

    def places(shapes, max_txt_seq_len, device=None):
        each = [rope(shapes, max_txt_seq_len=length, device=device) for length in lengths]
        return each[0][0], torch.cat([text for _, text in each])

    def masked(*qkv, **options):
        return attend(*qkv, **{**options, "attn_mask": mask[None, None]})

    with mock.patch.object(transformer.pos_embed, "forward", places), \
            mock.patch.object(transformer_qwenimage, "dispatch_attention_fn", masked):
        yield


def velocity(transformer, latents, sigma, prompt, entities, regions, pictures=()):
    """As references.velocity(), of one sample. entities: [L, D] each; regions: bool [n, N]."""
    rows = sum(part.shape[-2] * part.shape[-1] // 4 for part in (latents, *pictures))
    words = torch.cat([*entities, prompt[0]])[None]
    with regional(transformer, [len(entity) for entity in entities] + [prompt.shape[1]], regions, rows):
        return references.velocity(transformer, latents, sigma, words, pictures=pictures)


def bits(regions, height, width):
    """Regions as the program has them: int64 [1, height, width] of tokens."""
    values = sum(region.long() << number for number, region in enumerate(regions))
    return values.view(1, height, width)
