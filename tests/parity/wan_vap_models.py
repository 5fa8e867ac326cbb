"""A tiny random Video-As-Prompt: a denoiser of diffusers, a branch of its blocks, and the passage of both through
blocks that see each other, written down anew."""

import contextlib
import json
import re
from unittest import mock

import torch
from safetensors.torch import save_file

import tiny_models
import wan_models

STRIDE = 4  # blocks of the denoiser for one of the branch


def angles(frames, height, width, channels):
    """[T h w, channels / 2], of the positions `frames` and of rows and columns from 0."""
    side = channels // 6 * 2

    def axis(positions, count):
        rates = 10000.0 ** (-torch.arange(0, count, 2, dtype=torch.float64) / count)
        return positions.double()[:, None] * rates

    grid = (len(frames), height, width, -1)
    return torch.cat([
        axis(frames, channels - 2 * side)[:, None, None].expand(grid),
        axis(torch.arange(height), side)[None, :, None].expand(grid),
        axis(torch.arange(width), side)[None, None].expand(grid)
    ], 3).flatten(0, 2)


def turned(x, turns):
    """[B, L, H, d], neighbouring channels turned by [L, d / 2]."""
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(turns), turns)[:, None]).flatten(-2).float()


class Stream:
    """Rows that pass through the blocks of one model."""

    def __init__(self, model, clip, timestep, text, image, frames):
        height, width = clip.shape[3] // 2, clip.shape[4] // 2
        self.heads = model.config.num_attention_heads
        self.turns = angles(frames, height, width, model.config.attention_head_dim)
        self.rows = model.patch_embedding(clip).flatten(2).transpose(1, 2)
        self.time, projected, text, image = model.condition_embedder(timestep, text, image)
        self.projected = projected.unflatten(1, (6, -1))
        self.context = torch.cat([image, text], 1)

    def project(self, block):
        self.modulation = (block.scale_shift_table + self.projected.float()).chunk(6, 1)
        shift, scale = self.modulation[:2]
        x, attention = block.norm1(self.rows) * (1 + scale) + shift, block.attn1
        q, k, v = (layer(x) for layer in (attention.to_q, attention.to_k, attention.to_v))
        q, k, v = (y.unflatten(2, (self.heads, -1)) for y in (attention.norm_q(q), attention.norm_k(k), v))
        return turned(q, self.turns), turned(k, self.turns), v

    def finish(self, block, seen):
        _, _, gate, shift, scale, last_gate = self.modulation
        x = self.rows + block.attn1.to_out[0](seen.flatten(2)) * gate
        x = x + block.attn2(block.norm2(x), self.context, None, None)
        self.rows = x + block.ffn(block.norm3(x) * (1 + scale) + shift) * last_gate


def attend(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def velocity(base, branch, latents, timestep, text, image, vap):
    """`latents`: with what is known beside them; `vap`: the branch's clip, text and image."""
    frames = latents.shape[2]
    x = Stream(base, latents, timestep, text, image, torch.arange(frames))
    r = Stream(branch, vap["vap_clip"], torch.ones_like(timestep, dtype=torch.float32), vap["vap_embeds"],
               vap["vap_image_embeds"], torch.arange(-frames, 0))
    for index, block in enumerate(base.blocks):
        own = x.project(block)
        if index % STRIDE or index // STRIDE >= len(branch.blocks):
            x.finish(block, attend(*own))
            continue
        beside = branch.blocks[index // STRIDE]
        both = [torch.cat(pair, 1) for pair in zip(own, r.project(beside))]
        seen, of_branch = attend(*both).split([own[0].shape[1], r.rows.shape[1]], 1)
        x.finish(block, seen)
        r.finish(beside, of_branch)
    shift, scale = (base.scale_shift_table + x.time.unsqueeze(1)).chunk(2, 1)
    rows = base.proj_out(base.norm_out(x.rows) * (1 + scale) + shift)
    height, width = latents.shape[3] // 2, latents.shape[4] // 2
    return rows.unflatten(1, (frames, height, width)).unflatten(4, (2, 2, -1)).permute(
        0, 6, 1, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)


def published_name(name):
    """That of a weight of the branch."""
    block = re.match(r"blocks\.(\d+)\.([^.]+)(.*)", name)
    if block:
        return f"blocks.{STRIDE * int(block[1])}.{block[2]}_mot_ref{block[3]}"
    first, rest = name.split(".", 1)
    return f"{first}_mot_ref.{rest}"


def branch_parameters(branch):
    return {name: p for name, p in branch.named_parameters() if not name.startswith(("proj_out", "scale_shift_table"))}


def make(**changes):
    """The denoiser and its branch."""
    return (wan_models.make_image_transformer(seed=131, num_layers=6, **changes),
            wan_models.make_image_transformer(seed=132, num_layers=2, **changes))


def save(base, branch, folder):
    """One file of both, as it is published."""
    base.save_pretrained(folder)
    file = folder / "diffusion_pytorch_model.safetensors"
    tensors = base.state_dict() | {published_name(name): p.detach() for name, p in branch_parameters(branch).items()}
    save_file(tiny_models.contiguous(tensors), file)
    config = json.loads((folder / "config.json").read_text())
    config.update(_class_name="WanTransformer3DMOTModel", block_idx_with_mot_ref=[0, STRIDE],
                  attention_head_dim_mot_ref=None, supported_effect_types=None, num_ref_embeddings=None,
                  reference_train_mode=None)
    (folder / "config.json").write_text(json.dumps(config))


@contextlib.contextmanager
def beside(base, branch, vap, negative, negative_vap):
    """While it holds, calls of diffusers' denoiser run with the branch; `negative`: texts that are told apart."""

    def forward(hidden_states, timestep, encoder_hidden_states, encoder_hidden_states_image, **_):
        of_branch = negative_vap if torch.allclose(encoder_hidden_states, negative, atol=1e-4) else vap
        return (velocity(base, branch, hidden_states, timestep, encoder_hidden_states, encoder_hidden_states_image,
                         of_branch),)

    with mock.patch.object(base, "forward", forward):
        yield
