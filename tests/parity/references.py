"""The reference side of each comparison: diffusers' and transformers' models called with the
program's own inputs."""

import torch
from diffusers import QwenImagePipeline


def pack(latents):
    batch, channels, _, height, width = latents.shape
    return QwenImagePipeline._pack_latents(latents, batch, channels, height, width)


def velocity(transformer, latents, sigma, prompt_embeds, lengths=None, pictures=()):
    """The transformer's output, [B, 16, 1, h, w], for latents of the same shape; `pictures`: the
    latents of what leads it, [1, 16, 1, h, w] of any size."""
    batch, _, _, height, width = latents.shape
    rows = [pack(latents), *(pack(picture).expand(batch, -1, -1) for picture in pictures)]
    shapes = [(1, part.shape[-2] // 2, part.shape[-1] // 2) for part in (latents, *pictures)]
    mask = None
    if lengths is not None:
        mask = torch.arange(prompt_embeds.shape[1])[None] < lengths[:, None]
    tokens = transformer(hidden_states=torch.cat(rows, 1),
                         encoder_hidden_states=prompt_embeds,
                         encoder_hidden_states_mask=mask,
                         timestep=sigma,
                         img_shapes=[shapes] * batch,
                         return_dict=False)[0][:, :rows[0].shape[1]]
    return QwenImagePipeline._unpack_latents(tokens, height * 8, width * 8, 8)


def hidden(text_encoder, input_ids, lengths=None):
    """The language model's output behind its last norm, [B, L, D], zero on padding.

    A prompt of text alone needs no `mm_token_type_ids`: its positions count up in all three axes
    either way.
    """
    if lengths is None:
        lengths = torch.full((input_ids.shape[0],), input_ids.shape[1])
    mask = torch.arange(input_ids.shape[1])[None] < lengths[:, None]
    states = text_encoder(input_ids=input_ids,
                          attention_mask=mask.long(),
                          output_hidden_states=True)
    return states.hidden_states[-1] * mask[..., None]


def _constants(vae, like):
    shape = (1, vae.config.z_dim, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean, dtype=torch.float64).view(shape).to(like.dtype)
    std = torch.tensor(vae.config.latents_std, dtype=torch.float64).view(shape).to(like.dtype)
    return mean, std


def encode(vae, image):
    """Normalised latents, [B, 16, 1, H/8, W/8], of an image [B, 3, H, W] in [-1, 1]."""
    latents = vae.encode(image[:, :, None]).latent_dist.mode()
    mean, std = _constants(vae, latents)
    return (latents - mean) / std


def decode(vae, latents):
    """The image [B, 3, H, W] in [-1, 1] of normalised latents [B, 16, 1, h, w]."""
    mean, std = _constants(vae, latents)
    return vae.decode(latents * std + mean).sample[:, :, 0]


def gradients(output, inputs, parameters):
    """The gradients of half the sum of squares of `output`, named as the program names them.

    `inputs` and `parameters` are dicts; None stands for a tensor that the output does not depend
    on.
    """
    tensors = {**inputs, **parameters}
    found = torch.autograd.grad(0.5 * output.square().sum(),
                                list(tensors.values()),
                                allow_unused=True)
    return {"grad." + name: gradient for name, gradient in zip(tensors, found)}
