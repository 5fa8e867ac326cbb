"""Wan-Fun as VideoX-Fun runs it, written down on top of diffusers' denoiser, with tiny random weights.

What stands beside the latents, the reference frame and the camera's rows enter where patches become
tokens; the rest of the denoiser is diffusers'.
"""

import contextlib
from unittest import mock

import numpy as np
import torch

import tiny_models
import wan_models

SHOWN_SIDE = 112  # of the image encoder here: that of the clips, so that nothing is scaled
SHOWN_ROWS = (SHOWN_SIDE // 14)**2 + 1
LENS = (0.532139961, 0.946026558, 0.5, 0.5)
RAYS, CELL = 24, 8  # of the frames of a latent frame, and pixels of a latent cell

# The published models: channels beside the latents, and what else they have.
KINDS = {
    "control": dict(beside=32, shown=True),
    "control_v1.1": dict(beside=32, shown=True, reference=True),
    "control_a14b": dict(beside=36, reference=True),
    "camera": dict(beside=16, shown=True, camera=True),
    "camera_a14b": dict(beside=20, camera=True)
}


class Adapter(torch.nn.Module):
    """What becomes of a camera's rays, [B, 24, T, H, W]: rows of the tokens, [B, D, T, h, w]."""

    def __init__(self, width):
        super().__init__()
        self.conv = torch.nn.Conv2d(RAYS * CELL**2, width, 2, stride=2)
        block = torch.nn.Module()
        block.conv1 = torch.nn.Conv2d(width, width, 3, padding=1)
        block.conv2 = torch.nn.Conv2d(width, width, 3, padding=1)
        self.residual_blocks = torch.nn.ModuleList([block])

    def forward(self, rays):
        batch = rays.shape[0]
        x = self.conv(torch.nn.functional.pixel_unshuffle(rays.transpose(1, 2).flatten(0, 1), CELL))
        block = self.residual_blocks[0]
        x = x + block.conv2(block.conv1(x).relu())
        return x.unflatten(0, (batch, -1)).transpose(1, 2)


def make_transformer(kind, seed=110):
    """diffusers' denoiser of one of KINDS, with the modules that it has beside others."""
    about = KINDS[kind]
    shown = dict(image_dim=wan_models.IMAGE_WIDTH, added_kv_proj_dim=32) if about.get("shown") else {}
    transformer = wan_models.make_transformer(seed, in_channels=16 + about["beside"], **shown)
    width = transformer.patch_embedding.weight.shape[0]
    if about.get("reference"):
        transformer.ref_conv = tiny_models.randomize_(torch.nn.Conv2d(16, width, 2, stride=2), seed + 1)
    if about.get("camera"):
        transformer.control_adapter = tiny_models.randomize_(Adapter(width), seed + 2)
    return transformer


def velocity(transformer, latents, sigma, prompt_embeds, lengths=None, control_clip=None,
             reference_latents=None, image_embeds=None, given_clip=None, rays=None):
    """noise - clean, of the shape of latents [B, C, T, h, w]. What is None is absent: zeros, but rays."""
    batch, channels, frames, height, width = latents.shape
    beside = transformer.config.in_channels - channels
    values = [] if hasattr(transformer, "control_adapter") else [
        torch.zeros_like(latents) if control_clip is None else control_clip]
    beside -= channels * len(values)
    values.append(latents.new_zeros(batch, beside, frames, height, width) if given_clip is None else given_clip)
    x = torch.cat([latents, *values], 1)
    has_reference = hasattr(transformer, "ref_conv")
    if has_reference and reference_latents is None:
        reference_latents = torch.zeros_like(latents[:, :, 0])

    def entering(module, inputs, tokens):
        if rays is not None:
            tokens = tokens + transformer.control_adapter(rays)
        if has_reference:  # in place of a frame that is not there
            tokens = torch.cat([transformer.ref_conv(reference_latents)[:, :, None], tokens[:, :, 1:]], 2)
        return tokens

    if transformer.config.image_dim and image_embeds is None:
        image_embeds = latents.new_zeros(batch, SHOWN_ROWS, transformer.config.image_dim)
    hook = transformer.patch_embedding.register_forward_hook(entering)
    try:
        forward = type(transformer).forward  # that of the class, where a pipeline's is another
        output = forward(transformer, torch.cat([x[:, :, :1], x], 2) if has_reference else x, 1000 * sigma,
                         wan_models.pad_prompts(prompt_embeds, lengths), image_embeds, return_dict=False)[0]
    finally:
        hook.remove()
    return output[:, :, 1:] if has_reference else output


@contextlib.contextmanager
def in_pipeline(transformers, **given):
    """While it holds, pipelines of texts show these denoisers what is given of one sample."""
    def forward_of(transformer):
        def forward(hidden_states, timestep, encoder_hidden_states, **_):
            return (velocity(transformer, hidden_states, timestep / 1000, encoder_hidden_states,
                             **{name: value.expand(hidden_states.shape[0], *value.shape[1:])
                                for name, value in given.items()}),)
        return forward
    with contextlib.ExitStack() as stack:
        for transformer in transformers:
            stack.enter_context(mock.patch.object(transformer, "forward", forward_of(transformer)))
        yield


# --- The camera ---


def poses(direction, speed, frames, translations=(10, 14, 18), lens=LENS):
    """The rows of a pose file, float64: a number of the matrix of 3 x 4 grows with each frame."""
    rows = []
    for k in range(frames):
        row = [0.0, *lens, 0.0, 0.0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
        for (word, sign), number in zip((("Left", 1), ("Right", -1), ("Up", 1), ("Down", -1), ("In", -1), ("Out", 1)),
                                        np.repeat(translations, 2)):
            if word in direction:
                row[number] += sign * k * speed
        rows.append(row)
    return np.array(rows, np.float64)


def pluecker(rows, height, width):
    """[F, 6, H, W] of pose rows: what each pixel's ray turns around, and where it goes to."""
    fx, fy = rows[:, 1].copy(), rows[:, 2].copy()
    if 16 / 9 > width / height:
        fx = height * (16 / 9) * fx / width
    else:
        fy = width / (16 / 9) * fy / height
    lens = np.stack([fx * width, fy * height, rows[:, 3] * width, rows[:, 4] * height], 1).astype(np.float32)
    to_camera = np.tile(np.eye(4), (len(rows), 1, 1))
    to_camera[:, :3] = rows[:, 7:].reshape(-1, 3, 4)
    to_world = to_camera[0] @ np.linalg.inv(to_camera)
    to_world[0] = np.eye(4)
    to_world = torch.from_numpy(to_world.astype(np.float32))
    fx, fy, cx, cy = torch.from_numpy(lens).view(-1, 4, 1, 1).unbind(1)
    x = (torch.arange(width)[None, None] + 0.5 - cx) / fx
    y = (torch.arange(height)[None, :, None] + 0.5 - cy) / fy
    x, y = torch.broadcast_tensors(x, y)
    rays = torch.stack([x, y, torch.ones_like(x)], -1)
    rays = rays / rays.norm(dim=-1, keepdim=True)
    rays = torch.einsum("fij,fhwj->fhwi", to_world[:, :3, :3], rays)
    places = to_world[:, None, None, :3, 3].expand_as(rays)
    return torch.cat([torch.linalg.cross(places, rays), rays], -1).permute(0, 3, 1, 2)


def latent_rays(coordinates):
    """[24, T, H, W] of Plücker coordinates [F, 6, H, W]: four frames a latent frame, the first one four times."""
    frames = torch.cat([coordinates[:1].repeat(3, 1, 1, 1), coordinates])
    return frames.unflatten(0, (-1, 4)).permute(2, 1, 0, 3, 4).flatten(0, 1)
