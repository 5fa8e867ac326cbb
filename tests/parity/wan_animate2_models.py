"""A tiny random Wan2.2-Animate-2, and what diffusers' class answers.

The mask of its attention is a function that diffusers compiles for a GPU. Here the same function makes a mask
of all scores, so that the CPU computes it, with gradients and with a bias that diffusers lacks.
"""

import contextlib
import pathlib
import re
from unittest import mock

import torch
from diffusers.models.transformers import transformer_wan_animate_2 as reference
from safetensors.torch import save_file
from transformers import CLIPVisionConfig, CLIPVisionModel

import tiny_models
import wan_models

IMAGE_WIDTH = 24
BIAS = -1.3  # of the scores of the clip's first frame, in the distilled form

ORIGINAL = ((r"^(blocks\.\d+)\.", r"\1.block."), (r"\.add_([kv])_proj\.", r".\1_img."),
            (r"\.norm_added_k\.", ".norm_k_img."), (r"\.to_out\.0", ".o"), (r"\.to_([qkv])\.", r".\1."))


def make_transformer(seed=121, **changes):
    config = dict(dim=32, ffn_dim=48, freq_dim=64, text_dim=wan_models.TEXT_WIDTH, num_heads=2, num_layers=10)
    projection = reference.MLPProj
    with mock.patch.object(reference, "MLPProj", lambda _, width: projection(IMAGE_WIDTH, width)):
        transformer = reference.WanAnimate2Transformer3DModel(**{**config, **changes})
    return tiny_models.randomize_(transformer, seed, overrides=[(r"modulation", 8.0)])


def make_image_encoder(seed=122):
    config = CLIPVisionConfig(hidden_size=IMAGE_WIDTH, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
                              image_size=224, patch_size=14, hidden_act="gelu")
    return tiny_models.randomize_(CLIPVisionModel(config), seed)


def original(transformer):
    return wan_models.renamed(transformer.state_dict(), ORIGINAL)


def save_spellings(transformer, folder, name="dit"):
    """Writes diffusers' folder, and in it the original spelling; returns both."""
    transformer.save_pretrained(folder)
    file = pathlib.Path(folder) / "original" / f"{name}.safetensors"
    transformer.save_config(file.parent)
    save_file(tiny_models.contiguous(original(transformer)), file)
    return folder, file


def dense_attention(bias):
    """The attention of all scores: `attn_mask` says which are seen, and keys of frame 1 get `bias`."""

    def attend(query, key, value, attn_mask=None, **_):
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        scores = q @ k.transpose(2, 3) / q.shape[-1]**0.5
        if isinstance(attn_mask, tuple):
            seen, first = attn_mask
            scores = scores + bias * first
            scores = scores.masked_fill(~seen, -1e30)
        return (scores.softmax(-1) @ v).transpose(1, 2)

    return attend


def masks(logic, Q_LEN, KV_LEN, **_):
    """Which keys each query sees, and which keys are of the clip's first frame."""
    queries, keys = torch.arange(Q_LEN)[:, None], torch.arange(KV_LEN)[None]
    frame = dict(zip(logic.__code__.co_freevars, (cell.cell_contents for cell in logic.__closure__)))["hw"]
    first = (keys >= frame) & (keys < 2 * frame)
    return logic(0, 0, queries, keys), first.float()


@contextlib.contextmanager
def on_cpu(bias=0.0):
    with mock.patch.object(reference, "create_block_mask", masks), \
            mock.patch.object(reference, "dispatch_attention_fn", dense_attention(bias)):
        yield


def velocity(transformer, inputs, skips):
    """[B, 16, T + 1, h, w], sample by sample, as diffusers calls it: the driving clip, then the one that is made."""
    made = []
    for b in range(inputs["latents"].shape[0]):
        sample = {name: tensor[b] for name, tensor in inputs.items()}
        clip, latents = sample["driving_clip"], sample["latents"]
        frames, height, width = clip.shape[1:]
        grid = torch.tensor([[frames, height // 2, width // 2]])
        cache = reference.WanAnimate2KVCache(len(transformer.blocks))
        timestep = 1000 * sample["sigma"][None]
        known = torch.ones((4, frames, height, width))
        transformer([clip], timestep, [sample["driving_embeds"]], [torch.cat([known, clip])], cache, "extract",
                    seq_len=frames * height * width // 4,
                    encoder_hidden_states_image=sample["driving_image_embeds"][None], offset_grid_sizes=grid)
        made.append(transformer([latents], timestep, [sample["prompt_embeds"]], [sample["given_clip"]], cache, "cached",
                                seq_len=(frames + 1) * height * width // 4,
                                encoder_hidden_states_image=sample["image_embeds"][None], reference_grid_sizes=grid,
                                origin_len=4 * frames - 3, origin_area=[8 * height, 8 * width],
                                is_uncondtion=skips).sample[0])
    transformer.block_masks.clear()  # kept for every size
    return torch.stack(made)
