"""The reference side of Qwen-Image-Layered: the tiny models of tiny_models.py with layers and transparency."""

import functools
import pathlib
from unittest import mock

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageLayeredPipeline, QwenImageTransformer2DModel
from diffusers.pipelines.qwenimage import pipeline_qwenimage_layered
from PIL import Image
from safetensors.torch import save_file

import edit_models
import references
import tiny_models

# What differs in the published scheduler_config.json.
SCHEDULER_CONFIG = {**tiny_models.SCHEDULER_CONFIG, "shift_terminal": None, "time_shift_type": "linear"}


def make_transformer(seed, layers=2):
    transformer = QwenImageTransformer2DModel(
        patch_size=2, in_channels=64, out_channels=16, num_layers=layers, attention_head_dim=32, num_attention_heads=3,
        joint_attention_dim=96, axes_dims_rope=(8, 12, 12), use_additional_t_cond=True, use_layer3d_rope=True)
    return tiny_models.randomize_(transformer, seed, overrides=[(r"attn\.to_out\.0|add_v_proj", 4.0), (r"proj_out", 1.3),
                                                                (r"addition_t_embedding", 8.0)])


def picture(height, width, seed):
    """A smooth picture with transparency."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 4), dtype=np.uint8)
    return Image.fromarray(small, "RGBA").resize((width, height), Image.Resampling.BICUBIC)


def pixels_of(image):
    """Float32 [1, 4, H, W] in [-1, 1]."""
    return torch.from_numpy(np.asarray(image.convert("RGBA")).copy()).permute(2, 0, 1)[None].float() / 255 * 2 - 1


def pack(latents):
    """[B, 16, T, h, w] to rows, picture by picture."""
    return torch.cat([references.pack(frame) for frame in latents.split(1, 2)], 1)


def unpack(rows, shape):
    batch, channels, frames, height, width = shape
    own = rows[:, :frames * height * width // 4].reshape(batch, frames, height // 2, width // 2, channels, 2, 2)
    return own.permute(0, 4, 1, 2, 5, 3, 6).reshape(shape)


def velocity(transformer, latents, sigma, prompt_embeds, lengths=None, pictures=()):
    """As references.velocity(), of several pictures and with the last of `pictures` in front of them."""
    mask = None if lengths is None else torch.arange(prompt_embeds.shape[1])[None] < lengths[:, None]
    batch = latents.shape[0]
    rows = [pack(latents), *(pack(one).expand(batch, -1, -1) for one in pictures)]
    shapes = [(1, part.shape[-2] // 2, part.shape[-1] // 2) for part in (*latents.split(1, 2), *pictures)]
    tokens, = transformer(hidden_states=torch.cat(rows, 1), encoder_hidden_states=prompt_embeds,
                          encoder_hidden_states_mask=mask, timestep=sigma, img_shapes=[shapes] * batch,
                          additional_t_cond=torch.zeros(batch, dtype=torch.long), return_dict=False)
    return unpack(tokens, latents.shape)


class LayeredModels:
    """The folder of a model, and its pipeline; `name` is that of the published one."""

    def __init__(self, root, name="Qwen-Image-Layered"):
        self.tiny = tiny_models.get()
        self.folder = pathlib.Path(root) / name
        self.folder.mkdir(parents=True)
        self.transformer = make_transformer(seed=12)
        self.transformer.save_pretrained(self.folder / "transformer")
        self.vae = tiny_models.make_vae(seed=13, input_channels=4)
        self.vae.save_pretrained(self.folder / "vae")
        for part in ("text_encoder", "tokenizer"):
            (self.folder / part).symlink_to(self.tiny.model / part)
        FlowMatchEulerDiscreteScheduler(**SCHEDULER_CONFIG).save_pretrained(self.folder / "scheduler")

    def save_original_vae(self, path):
        """As ComfyUI repacks it."""
        save_file(tiny_models.contiguous({
            tiny_models.original_vae_name(name): value for name, value in self.vae.state_dict().items()
        }), path, metadata=tiny_models.config_metadata(self.folder / "vae"))
        return path

    @functools.cached_property
    def pipeline(self):
        pipeline = QwenImageLayeredPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULER_CONFIG), vae=self.vae,
            text_encoder=self.tiny.text_encoder, tokenizer=self.tiny.tokenizer,
            processor=edit_models.Processor(self.tiny.tokenizer), transformer=self.transformer)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def generate(self, image, latents, context=None, **flags):
        """All pictures, uint8 [H, W, 4], that the pipeline makes of the noise `latents`, in its size; `context`: rows that
        stand between noise and picture. The pipeline gives the layers, and the picture of them all is decoded here."""
        height, width = latents.shape[-2] * 8, latents.shape[-1] * 8
        plain = self.transformer.forward

        def beside(hidden_states, img_shapes, **inputs):
            own = latents.shape[2] * height * width // 256
            rows = torch.cat([hidden_states[:, :own], context, hidden_states[:, own:]], 1)
            shapes = [[*one[:-1], one[-1], one[-1]] for one in img_shapes]
            return plain(rows, img_shapes=shapes, **inputs)

        last = {}

        def keep(pipeline, step, level, tensors):
            last.update(tensors)
            return {}

        layers = latents.shape[2] - 1
        decode = self.vae.decode if layers else lambda none, return_dict: [torch.zeros(1, 4, 1, 8, 8)]
        decoding = mock.patch.object(self.vae, "decode", decode)
        size = mock.patch.object(pipeline_qwenimage_layered, "calculate_dimensions", lambda area, ratio: (width, height))
        forward = mock.patch.object(self.transformer, "forward", plain if context is None else beside)
        with size, forward, decoding, torch.no_grad():
            made = self.pipeline(image, layers=layers, latents=pack(latents), output_type="np", callback_on_step_end=keep,
                                 **flags).images
        pictures = self.decode(unpack(last["latents"], latents.shape))
        return pictures[:1] + (layers > 0) * list((made[0] * 255).round().astype(np.uint8))

    def decode(self, latents):
        with torch.no_grad():
            frames = torch.cat([references.decode(self.vae, frame) for frame in latents.split(1, 2)])
        images = (frames / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).numpy()
        return list((images * 255).round().astype(np.uint8))
