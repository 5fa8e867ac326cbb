"""LongCat-Video as its published formulas say: the denoiser, its guidance and its sampler, in plain PyTorch.

The parameters are called as the published files call them.
"""

import json

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

import tiny_models
import wan_models

EPS = 1e-6
TEXT_ROWS = wan_models.TEXT_ROWS
CHANNELS = 16
# Tiny numbers, as config.json has them, and the width between the layers of a block's MLP.
CONFIG = dict(in_channels=CHANNELS, out_channels=CHANNELS, hidden_size=64, depth=2, num_heads=4,
              caption_channels=wan_models.TEXT_WIDTH, adaln_tembed_dim=24, frequency_embedding_size=32,
              patch_size=[1, 2, 2], text_tokens_zero_pad=True)
MLP_WIDTH = 96
LINEARS = ("adaLN_modulation.1", "attn.qkv", "attn.proj", "cross_attn.q_linear", "cross_attn.kv_linear",
           "cross_attn.proj", "ffn.w1", "ffn.w2", "ffn.w3")


def rms(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def attend(q, k, v):
    """[rows, heads, channels] each, all keys for every query; [rows, heads * channels]."""
    scores = torch.einsum("qhc,khc->hqk", q, k) / q.shape[-1]**0.5
    return torch.einsum("hqk,khc->qhc", scores.softmax(-1), v).flatten(1)


def turned(x, angles):
    """Pairs of neighbouring channels, [rows, heads, channels], by angles [rows, channels / 2]."""
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def angles_of(frames, height, width, channels):
    """By the place of a token: its frame, its row and its column, one part of the channels each."""
    side = 2 * (channels // 6)
    grid = torch.meshgrid(torch.arange(frames), torch.arange(height), torch.arange(width), indexing="ij")
    parts = []
    for places, count in zip(grid, (channels - 2 * side, side, side)):
        rates = 10000.0 ** (-torch.arange(0, count, 2, dtype=torch.float64) / count)
        parts.append(places.flatten().double()[:, None] * rates)
    return torch.cat(parts, 1).float()


class Block(torch.nn.Module):

    def __init__(self, width, heads, mlp_width, told):
        super().__init__()
        head = width // heads
        self.heads = heads
        self.adaLN_modulation = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(told, 6 * width))
        self.attn = torch.nn.Module()
        self.attn.qkv, self.attn.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.cross_attn = torch.nn.Module()
        self.cross_attn.q_linear = torch.nn.Linear(width, width)
        self.cross_attn.kv_linear = torch.nn.Linear(width, 2 * width)
        self.cross_attn.proj = torch.nn.Linear(width, width)
        for part in (self.attn, self.cross_attn):
            for norm in ("q_norm", "k_norm"):
                setattr(part, norm, torch.nn.Module())
                getattr(part, norm).weight = torch.nn.Parameter(torch.empty(head))
        self.pre_crs_attn_norm = torch.nn.LayerNorm(width, eps=EPS)
        self.ffn = torch.nn.Module()
        self.ffn.w1 = torch.nn.Linear(width, mlp_width, bias=False)
        self.ffn.w2 = torch.nn.Linear(mlp_width, width, bias=False)
        self.ffn.w3 = torch.nn.Linear(width, mlp_width, bias=False)

    def forward(self, x, told, text, angles, known):
        """x: the rows of one sample, the first `known` of which are known; told: [rows, ...]."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.adaLN_modulation(told).chunk(6, -1)
        h = F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.attn.qkv(h).chunk(3, -1))
        q = turned(rms(q, self.attn.q_norm.weight), angles)
        k = turned(rms(k, self.attn.k_norm.weight), angles)
        seen = torch.cat([attend(q[:known], k[:known], v[:known]), attend(q[known:], k, v)])
        x = x + gate * self.attn.proj(seen)
        cross = self.cross_attn
        q = cross.q_linear(self.pre_crs_attn_norm(x[known:])).unflatten(-1, (self.heads, -1))
        k, v = (part.unflatten(-1, (self.heads, -1)) for part in cross.kv_linear(text).chunk(2, -1))
        read = cross.proj(attend(rms(q, cross.q_norm.weight), rms(k, cross.k_norm.weight), v))
        x = torch.cat([x[:known], x[known:] + read])
        h = F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + mlp_scale) + mlp_shift
        return x + mlp_gate * self.ffn.w2(F.silu(self.ffn.w1(h)) * self.ffn.w3(h))


class LongCat(torch.nn.Module):

    def __init__(self):
        super().__init__()
        width, told = CONFIG["hidden_size"], CONFIG["adaln_tembed_dim"]
        self.x_embedder = torch.nn.Module()
        self.x_embedder.proj = torch.nn.Conv3d(CHANNELS, width, (1, 2, 2), stride=(1, 2, 2))
        self.t_embedder = torch.nn.Module()
        self.t_embedder.mlp = torch.nn.Sequential(torch.nn.Linear(CONFIG["frequency_embedding_size"], told),
                                                  torch.nn.SiLU(), torch.nn.Linear(told, told))
        self.y_embedder = torch.nn.Module()
        self.y_embedder.y_proj = torch.nn.Sequential(torch.nn.Linear(wan_models.TEXT_WIDTH, width),
                                                     torch.nn.GELU(approximate="tanh"), torch.nn.Linear(width, width))
        self.blocks = torch.nn.ModuleList(
            Block(width, CONFIG["num_heads"], MLP_WIDTH, told) for _ in range(CONFIG["depth"]))
        self.final_layer = torch.nn.Module()
        self.final_layer.adaLN_modulation = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(told, 2 * width))
        self.final_layer.linear = torch.nn.Linear(width, 4 * CHANNELS)

    def time(self, sigma, frames, known):
        """What is told of the level of each frame, [frames, ...]: 0 of known ones."""
        half = CONFIG["frequency_embedding_size"] // 2
        rates = torch.exp(-torch.log(torch.tensor(10000.0)) * torch.arange(half) / half)
        levels = torch.cat([torch.zeros(known), (1000 * sigma).expand(frames - known)])
        waves = levels[:, None] * rates
        return self.t_embedder.mlp(torch.cat([waves.cos(), waves.sin()], 1))

    def one(self, latents, sigma, text, known):
        """The velocity of one sample, [C, T, h, w]; `text` without rows behind it."""
        _, frames, height, width = latents.shape
        x = self.x_embedder.proj(latents[None])[0].permute(1, 2, 3, 0).flatten(0, 2)
        in_a_frame = height * width // 4
        told = self.time(sigma, frames, known).repeat_interleave(in_a_frame, 0)
        rows = F.pad(self.y_embedder.y_proj(text), (0, 0, 0, TEXT_ROWS - len(text)))
        angles = angles_of(frames, height // 2, width // 2, CONFIG["hidden_size"] // CONFIG["num_heads"])
        for block in self.blocks:
            x = block(x, told, rows, angles, known * in_a_frame)
        shift, scale = self.final_layer.adaLN_modulation(told).chunk(2, -1)
        x = self.final_layer.linear(F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift)
        x = x.unflatten(0, (frames, height // 2, width // 2)).unflatten(-1, (2, 2, CHANNELS))
        return -x.permute(5, 0, 1, 3, 2, 4).reshape(latents.shape)  # it is trained to give clean - noise

    def forward(self, latents, sigma, prompt_embeds, known_clip=None, lengths=None):
        """Where there is a known clip, [B, C, n, h, w], latents begin with it."""
        known = 0 if known_clip is None else known_clip.shape[2]
        counts = [prompt_embeds.shape[1]] * len(latents) if lengths is None else lengths.tolist()
        return torch.stack([self.one(x, s, text[:count], known)
                            for x, s, text, count in zip(latents, sigma, prompt_embeds, counts)])


def make(seed=131):
    return tiny_models.randomize_(LongCat(), seed)


def save(dit, folder):
    """As published: the files of a folder `dit`, with its config."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tiny_models.contiguous(dit.state_dict()), folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text(json.dumps(
        {**CONFIG, "_class_name": "LongCatVideoTransformer3DModel", "_diffusers_version": "0.35.1", "mlp_ratio": 4,
         "enable_bsa": False, "enable_flashattn2": True, "cp_split_hw": [1, 1],
         "bsa_params": {"sparsity": 0.9375, "chunk_3d_shape_q": [4, 4, 4], "chunk_3d_shape_k": [4, 4, 4]}}))
    return folder


def guided(c, u, scale, known=0):
    """CFG-Zero*: `u` is first brought as near to `c` as one factor can, frames of a known clip left out."""
    first = known if known > 1 else 0  # the published pipeline counts the frame of an image
    factor = (c[:, first:] * u[:, first:]).sum() / (u[:, first:].square().sum() + 1e-8)
    return factor * u + scale * (c - factor * u)


def sample(dit, noise, prompt, negative, sigmas, scale, known=None):
    """Latents [C, T, h, w] by straight steps. `known`, [C, n, h, w], stays as it is; `prompt`: [L, D]."""
    count = 0 if known is None else known.shape[1]
    x = noise.clone()
    if count:
        x[:, :count] = known
    for sigma, next_sigma in zip(sigmas[:-1], sigmas[1:]):
        level = torch.tensor(sigma, dtype=torch.float32)
        velocity = dit.one(x, level, prompt, count)
        if scale != 1:
            velocity = guided(velocity, dit.one(x, level, negative, count), scale, count)
        x = torch.cat([x[:, :count], x[:, count:] + (next_sigma - sigma) * velocity[:, count:]], 1)
    return x


def published_sigmas(steps):
    return [*torch.linspace(1, 0.001, steps).tolist(), 0.0]


def distilled_sigmas(steps):
    """Levels of 50 steps, each the last that the published sampler has passed."""
    return [(50 - 50 * i // steps) / 50 for i in range(steps)] + [0.0]
