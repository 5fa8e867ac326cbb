"""Wan-Dancer written again from its published code: a tiny random denoiser, its maths, its sampler,
and a music whose features librosa has told."""

import json
import math
import pathlib
import wave

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

import wan_models

WIDTH, HEADS, LAYERS, MLP = 32, 2, 10, 48
MUSIC, MUSIC_WIDTH, MUSIC_MLP, MUSIC_HEADS = 35, 16, 24, 4
INJECTED = [block for block in (0, 4, 8, 12, 16, 20, 24, 27) if block < LAYERS]
SKIPPED = 9
MUSIC_ROWS, MUSIC_COLUMNS, BEATS = 149, 4800, 8
TIME_WIDTH = 64
EPS = 1e-6


def shapes():
    """Published name -> shape."""
    D, W = WIDTH, MUSIC_WIDTH

    def linear(name, out, into):
        return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}

    def norm(name, width):
        return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

    result = {}
    for suffix in ("", "_global"):
        result[f"patch_embedding{suffix}.weight"] = (D, 36, 1, 2, 2)
        result[f"patch_embedding{suffix}.bias"] = (D,)
        result[f"head{suffix}.modulation"] = (1, 2, D)
        result |= linear(f"head{suffix}.head", 64, D)
    result |= {"ref_conv.weight": (D, 16, 2, 2), "ref_conv.bias": (D,)}
    result |= linear("text_embedding.0", D, wan_models.TEXT_WIDTH) | linear("text_embedding.2", D, D)
    result |= linear("time_embedding.0", D, TIME_WIDTH) | linear("time_embedding.2", D, D)
    result |= linear("time_projection.1", 6 * D, D)
    for name in ("img_emb", "img_emb_refimage"):
        I = wan_models.IMAGE_WIDTH
        result |= norm(f"{name}.proj.0", I) | linear(f"{name}.proj.1", I, I)
        result |= linear(f"{name}.proj.3", D, I) | norm(f"{name}.proj.4", D)
    result |= linear("music_projection", W, MUSIC)
    for i in range(2):
        layer = f"music_encoder.{i}."
        result |= norm(layer + "norm1", W) | norm(layer + "norm2", W)
        result |= {layer + "self_attn.in_proj_weight": (3 * W, W), layer + "self_attn.in_proj_bias": (3 * W,)}
        result |= linear(layer + "self_attn.out_proj", W, W)
        result |= linear(layer + "linear1", MUSIC_MLP, W) | linear(layer + "linear2", W, MUSIC_MLP)
    attentions = [f"music_injector.injector.{i}" for i in range(len(INJECTED))]
    for i in range(LAYERS):
        block = f"blocks.{i}."
        result |= {block + "modulation": (1, 6, D)} | norm(block + "norm3", D)
        result |= linear(block + "ffn.0", MLP, D) | linear(block + "ffn.2", D, MLP)
        attentions += [block + "self_attn", block + "cross_attn"]
        result |= linear(block + "cross_attn.k_img", D, D) | linear(block + "cross_attn.v_img", D, D)
        result[block + "cross_attn.norm_k_img.weight"] = (D,)
    for name in attentions:
        for part in "qkvo":
            result |= linear(f"{name}.{part}", D, D)
        result |= {f"{name}.norm_q.weight": (D,), f"{name}.norm_k.weight": (D,)}
    return result


def make_tensors(seed=131):
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes().items():
        values = torch.randn(shape, generator=generator)
        if "modulation" in name:
            values *= 0.3
        elif name.endswith("weight") and len(shape) > 1:
            values /= math.prod(shape[1:])**0.5
        else:
            values *= 0.1
            if "norm" in name or ".proj.0." in name or ".proj.4." in name:
                values += 1.0 if name.endswith("weight") else 0.0
        if name == "music_projection.weight":
            values *= 0.02  # features are as large as 400
        tensors[name] = values
    return tensors


def save(tensors, file):
    """The file, with the config that other than the published widths need."""
    file.parent.mkdir(parents=True, exist_ok=True)
    config = json.dumps({"num_heads": HEADS, "eps": EPS})
    save_file(tensors, file, metadata={"atelier.config": config})
    return file


# ---- The maths ----


def linear(t, name, x):
    return F.linear(x, t[name + ".weight"], t[name + ".bias"])


def layer_norm(t, name, x, eps):
    return F.layer_norm(x, x.shape[-1:], t[name + ".weight"], t[name + ".bias"], eps)


def rms(t, name, x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * t[name + ".weight"]


def attend(q, k, v, heads):
    parts = [x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v)]
    return F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


def turned(x, freqs, heads):
    """Pairs of channels as complex numbers times `freqs`, [L, d / 2], which may not be of length 1."""
    pairs = torch.view_as_complex(x.double().unflatten(-1, (heads, -1, 2)))
    return torch.view_as_real(pairs * freqs[:, None]).flatten(2).float()


def axis(count, channels):
    rates = 10000.0 ** (-torch.arange(0, channels, 2, dtype=torch.float64) / channels)
    angles = torch.outer(torch.arange(count, dtype=torch.float64), rates)
    return torch.polar(torch.ones_like(angles), angles)


def frames_at(frames, fps, channels):
    """The temporal table, between whose complex numbers lie those of frames at another rate than 30."""
    if int(fps + 0.5) == 30:
        return axis(frames, channels)
    apart = 30.0 / (fps + 1e-6)
    total = int(apart * frames + 0.5)
    table = axis(total, channels)
    result = torch.zeros((frames, channels // 2), dtype=torch.complex128)
    result[0], result[-1] = table[0], table[total - 1]
    for i in range(1, frames - 1):
        low = int(i * apart)
        high = min(low + 1, total - 1)
        share = i * apart - low
        result[i] = table[low] * (1 - share) + table[high] * share
    return result


def places_of(frames, fps):
    """What the program is told of them: two positions, and how near the second one is."""
    apart = 30.0 / (fps + 1e-6)
    last = int(apart * frames + 0.5) - 1
    rows = [[int(i * apart), min(int(i * apart) + 1, last), i * apart - int(i * apart)] for i in range(frames)]
    rows[-1] = [last, last, 0]
    return torch.tensor(rows)


def rope(frames, height, width, fps):
    d = WIDTH // HEADS
    side = 2 * (d // 6)
    parts = (frames_at(frames, fps, d - 2 * side), axis(height, side), axis(width, side))
    grids = [part.view([-1 if i == j else 1 for j in range(3)] + [part.shape[1]]).expand(frames, height, width, -1)
             for i, part in enumerate(parts)]
    return torch.cat(grids, -1).flatten(0, 2)


def image_rows(t, name, x):
    x = linear(t, f"{name}.proj.1", layer_norm(t, f"{name}.proj.0", x, 1e-5))
    return layer_norm(t, f"{name}.proj.4", linear(t, f"{name}.proj.3", F.gelu(x)), 1e-5)


def music_rows(t, music, frames):
    """[1, 8 frames, D]."""
    x = linear(t, "music_projection", music)
    rates = 10000.0 ** (-torch.arange(0, MUSIC_WIDTH, 2).float() / MUSIC_WIDTH)
    angles = (torch.arange(len(music)).float()[:, None] * rates).repeat_interleave(2, 1)
    for i in range(2):
        layer = f"music_encoder.{i}."
        normed = layer_norm(t, layer + "norm1", x, 1e-5)
        halves = torch.stack([-normed[:, 1::2], normed[:, ::2]], -1).flatten(1)
        qk = normed * angles.cos() + halves * angles.sin()
        weights = t[layer + "self_attn.in_proj_weight"].chunk(3)
        biases = t[layer + "self_attn.in_proj_bias"].chunk(3)
        q, k, v = (F.linear(given, w, b)[None] for given, w, b in zip((qk, qk, normed), weights, biases))
        x = x + linear(t, layer + "self_attn.out_proj", attend(q, k, v, MUSIC_HEADS)[0])
        normed = layer_norm(t, layer + "norm2", x, 1e-5)
        x = x + linear(t, layer + "linear2", F.gelu(linear(t, layer + "linear1", normed)))
    x = F.interpolate(x[None, None], (MUSIC_ROWS, MUSIC_COLUMNS), mode="bilinear")
    return F.interpolate(x, (BEATS * frames, WIDTH), mode="bilinear")[:, 0]


def block(t, name, x, context, images, e, freqs):
    """Rows of one sample, [1, L, D]."""
    shift, scale, gate, shift2, scale2, gate2 = (t[name + "modulation"] + e).unbind(1)
    h = F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift
    q, k = (rms(t, f"{name}self_attn.norm_{p}", linear(t, f"{name}self_attn.{p}", h)) for p in "qk")
    h = attend(turned(q, freqs, HEADS), turned(k, freqs, HEADS), linear(t, name + "self_attn.v", h), HEADS)
    x = x + gate * linear(t, name + "self_attn.o", h)
    cross = name + "cross_attn."
    q = rms(t, cross + "norm_q", linear(t, cross + "q", layer_norm(t, name + "norm3", x, EPS)))
    h = attend(q, rms(t, cross + "norm_k", linear(t, cross + "k", context)), linear(t, cross + "v", context), HEADS)
    h = h + attend(q, rms(t, cross + "norm_k_img", linear(t, cross + "k_img", images)),
                   linear(t, cross + "v_img", images), HEADS)
    x = x + linear(t, cross + "o", h)
    h = F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale2) + shift2
    return x + gate2 * linear(t, name + "ffn.2", F.gelu(linear(t, name + "ffn.0", h), approximate="tanh"))


def injected(t, i, x, music):
    """As published, with the softmax over one key that makes queries and keys count for nothing."""
    name = f"music_injector.injector.{i}."
    beats = music.shape[1]
    rows = x.unflatten(1, (beats, -1))[0]
    q = rms(t, name + "norm_q", linear(t, name + "q", F.layer_norm(rows, rows.shape[-1:], eps=1e-6)))
    one = music[0][:, None]
    h = attend(q, rms(t, name + "norm_k", linear(t, name + "k", one)), linear(t, name + "v", one), HEADS)
    return x + linear(t, name + "o", h).flatten(0, 1)[None]


def velocity_of_one(t, latents, sigma, prompt, image, given, reference, music, fps=30.0, skips=False):
    """One sample, [1, C, T, h, w]; prompt [L, text], image and reference [17, 32], music [n, 35]."""
    is_slow = int(fps + 0.5) != 30
    suffix = "_global" if is_slow else ""
    rates = 10000.0 ** (-torch.arange(TIME_WIDTH // 2, dtype=torch.float64) / (TIME_WIDTH // 2))
    angles = 1000 * sigma.double() * rates
    time = linear(t, "time_embedding.0", torch.cat([angles.cos(), angles.sin()])[None].float())
    time = linear(t, "time_embedding.2", F.silu(time))
    e = linear(t, "time_projection.1", F.silu(time)).unflatten(1, (6, -1))
    prompt = F.pad(prompt, (0, 0, 0, wan_models.TEXT_ROWS - len(prompt)))
    text = linear(t, "text_embedding.2", F.gelu(linear(t, "text_embedding.0", prompt), approximate="tanh"))
    context = torch.cat([image_rows(t, "img_emb", image), text])[None]
    images = image_rows(t, "img_emb_refimage", reference)[None]
    x = F.conv3d(torch.cat([latents, given[None]], 1), t[f"patch_embedding{suffix}.weight"],
                 t[f"patch_embedding{suffix}.bias"], stride=(1, 2, 2))
    frames, height, width = x.shape[2:]
    x = x.flatten(2).transpose(1, 2)
    freqs = rope(frames, height, width, fps)
    music = music_rows(t, music, frames)
    for i in range(LAYERS):
        if i == SKIPPED and skips:
            continue
        x = block(t, f"blocks.{i}.", x, context, images, e, freqs)
        if i in INJECTED:
            x = injected(t, INJECTED.index(i), x, music)
    shift, scale = (t[f"head{suffix}.modulation"] + time[:, None]).unbind(1)
    x = linear(t, f"head{suffix}.head", F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift)
    x = x[0].view(frames, height, width, 2, 2, 16)
    return x.permute(5, 0, 1, 3, 2, 4).reshape(1, 16, frames, 2 * height, 2 * width)


def velocity(t, latents, sigma, prompt_embeds, image_embeds, given_clip, reference_embeds, music, lengths=None,
             music_lengths=None, **options):
    results = []
    for b in range(len(latents)):
        prompt = prompt_embeds[b, :None if lengths is None else lengths[b]]
        heard = music[b, :None if music_lengths is None else music_lengths[b]]
        results.append(velocity_of_one(t, latents[b:b + 1], sigma[b:b + 1], prompt, image_embeds[b], given_clip[b],
                                       reference_embeds[b], heard, **options))
    return torch.cat(results)


# ---- What is heard ----

FEATURES = pathlib.Path(__file__).resolve().parents[1] / "data" / "dancer_music.safetensors"


def features():
    """Those of the music below, float32 [150, 35], as librosa 0.11.0 gave them."""
    return load_file(FEATURES)["music"]


def write_music(file, seconds=149 / 30, rate=22050):
    """A melody of decaying tones over a beat of clicks, 118 a minute."""
    time = np.arange(round(seconds * rate)) / rate
    sound = np.zeros_like(time)
    beat = 60 / 118
    for i in range(math.ceil(seconds / beat)):
        since = time - i * beat
        sounds = (0 <= since) & (since < beat)
        t = since[sounds]
        for n in (0, 4, 7):
            tone = 220 * 2 ** (((5 * i) % 12 + n) / 12)
            for harmonic in (1, 2, 3):
                sound[sounds] += 0.12 / harmonic * np.sin(2 * np.pi * tone * harmonic * t) * np.exp(-4 * t)
        for click in (1730, 2390, 3370, 5210):
            sound[sounds] += 0.1 * np.sin(2 * np.pi * click * t) * np.exp(-90 * t)
    values = np.round(sound / np.abs(sound).max() * 26000).astype("<i2")
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(values.tobytes())
    return file
