"""The reference side of Qwen-Image-Edit: the tiny models of tiny_models.py as the editing pipelines
take them."""

import copy
import functools
import json
import pathlib
import re

import numpy as np
import torch
from diffusers import (AutoencoderKLQwenImage, QwenImageEditPipeline, QwenImageEditPlusPipeline,
                       QwenImageTransformer2DModel)
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from PIL import Image
from transformers import BatchFeature, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import tiny_models

EDIT_SYSTEM = (
    "Describe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. "
    "Generate a new image that meets the user's requirements while maintaining consistency with "
    "the original input where appropriate.")
EDIT_PREFIX = f"<|im_start|>system\n{EDIT_SYSTEM}<|im_end|>\n<|im_start|>user\n"

# The numbers of the published preprocessor_config.json.
SIZE = {"shortest_edge": 3136, "longest_edge": 12845056}
PUBLISHED_PROCESSOR = {
    "crop_size": None,
    "data_format": "channels_first",
    "default_to_square": True,
    "device": None,
    "disable_grouping": None,
    "do_center_crop": None,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "input_data_format": None,
    "max_pixels": 12845056,
    "merge_size": 2,
    "min_pixels": 3136,
    "patch_size": 14,
    "processor_class": "Qwen2_5_VLProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "return_tensors": None,
    "size": SIZE,
    "temporal_patch_size": 2,
}


def image_processor():
    return Qwen2VLImageProcessorPil(size=SIZE)


def smooth_picture(height, width, seed):
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def size_of_area(area, picture):
    """Width and height as the editing pipelines choose them."""
    ratio = picture.width / picture.height
    width = (area * ratio)**0.5
    return round(width / 32) * 32, round(width / ratio / 32) * 32


def shown(picture, area=384 * 384):
    """The picture as the pipelines show it to the vision tower; the preset is that of several."""
    return picture.resize(size_of_area(area, picture), Image.Resampling.LANCZOS)


def stretch_references(transformer):
    """References take their places from the image's, as DiffSynth-Studio's pipeline has it with
    `edit_rope_interpolation`; those of its size have them anyway."""
    rope = transformer.pos_embed
    plain = rope.forward

    def forward(video_fhw, **given):
        places, text = plain(video_fhw, **given)
        sizes = [(height, width) for _, height, width in video_fhw[0]]
        first, *others = places.split([height * width for height, width in sizes])
        frames = rope.axes_dim[0] // 2
        stretched = [first]
        for size, own in zip(sizes[1:], others):
            if size != sizes[0]:
                rows, columns = (torch.linspace(0, whole - 1, part).long()
                                 for whole, part in zip(sizes[0], size))
                grid = first.view(*sizes[0], -1)[rows][:, columns].flatten(0, 1)
                own = torch.cat([own[:, :frames], grid[:, frames:]], 1)
            stretched.append(own)
        return torch.cat(stretched), text

    rope.forward = forward


class Processor:
    """What Qwen2VLProcessor does with texts and pictures; the published one needs torchvision."""

    def __init__(self, tokenizer):
        self.tokenizer, self.images = tokenizer, image_processor()

    def __call__(self, text, images, padding=True, return_tensors="pt"):
        images = images if isinstance(images, list) else [images]
        seen = self.images(images=images, return_tensors="pt")
        grids = iter(seen["image_grid_thw"].tolist())

        def spread(_):
            _, rows, columns = next(grids)
            return "<|image_pad|>" * (rows * columns // 4)

        text = [re.sub(r"<\|image_pad\|>", spread, one) for one in text]
        return BatchFeature({
            **self.tokenizer(text, padding=padding, return_tensors=return_tensors),
            **seen
        })


class Encoder(Qwen2_5_VLForConditionalGeneration):
    """Says which tokens are pictures, as weights were trained and diffusers does not."""

    def forward(self, input_ids=None, **given):
        kinds = (input_ids == self.config.image_token_id).int()
        return super().forward(input_ids=input_ids, mm_token_type_ids=kinds, **given)


def convolve_still(conv, x, cache_x=None):
    """A causal convolution, stride and padding in height and width alone, of the first frame."""
    assert cache_x is None and x.shape[2] == 1
    left, right, top, bottom, *_ = conv._padding
    still = torch.nn.functional.pad(x[:, :, 0], (left, right, top, bottom))
    return torch.nn.functional.conv2d(still, conv.weight[:, :, -1], conv.bias, conv.stride[1:])[:, :, None]


def still_vae(vae):
    """A VAE of single frames. Before them are zeros, so the last plane of a kernel makes the whole sum: a picture of the
    published area takes a fifth of the time."""
    vae = copy.deepcopy(vae)
    for module in vae.modules():
        if isinstance(module, QwenImageCausalConv3d):
            module.forward = functools.partial(convolve_still, module)
    return vae


def write_narrow_parts(folder):
    """A denoiser and a VAE that compute pictures of the published area in a third of the time of those of tiny_models."""
    tiny_models.make_transformer(joint_dim=96, heads=2, head_dim=16, axes=(4, 6, 6),
                                 seed=2).save_pretrained(folder / "transformer")
    tiny_models.make_vae(seed=3, base_dim=4, num_res_blocks=1).save_pretrained(folder / "vae")
    return folder


class EditModels:
    """Model folders below `folder`, with the denoiser and the VAE of `parts`: narrow ones where it is None."""

    def __init__(self, folder, parts=None):
        self.tiny = tiny_models.get()
        self.folder = pathlib.Path(folder)
        self.parts = parts or write_narrow_parts(self.folder / "narrow")

    def variant(self, name, processor=None, **changes):
        """A model folder called as the published one; its denoiser's config with `changes`, what it
        says of pictures with those of `processor`."""
        folder = self.folder / name
        folder.mkdir()
        for part in ("text_encoder", "tokenizer"):
            (folder / part).symlink_to(self.tiny.model / part)
        (folder / "vae").symlink_to(self.parts / "vae")
        (folder / "processor").mkdir()
        (folder / "processor/preprocessor_config.json").write_text(
            json.dumps({**PUBLISHED_PROCESSOR, **(processor or {})}))
        if changes:
            transformer = self.load_transformer(self.parts)
            changed = QwenImageTransformer2DModel.from_config({**transformer.config, **changes})
            changed.load_state_dict(transformer.state_dict())
            changed.save_pretrained(folder / "transformer")
        else:
            (folder / "transformer").symlink_to(self.parts / "transformer")
        return folder

    @staticmethod
    def load_transformer(folder):
        return QwenImageTransformer2DModel.from_pretrained(folder / "transformer").eval()

    @functools.cached_property
    def moving_vae(self):
        return AutoencoderKLQwenImage.from_pretrained(self.parts / "vae").eval()

    @functools.cached_property
    def vae(self):
        return still_vae(self.moving_vae)

    @functools.cached_property
    def encoder(self):
        encoder = Qwen2_5_VLForConditionalGeneration.from_pretrained(self.tiny.model /
                                                                     "text_encoder").eval()
        encoder.__class__ = Encoder  # the names in files are translated for the published class
        return encoder

    def pipeline(self, folder):
        one = folder.name == "Qwen-Image-Edit"
        kind = QwenImageEditPipeline if one else QwenImageEditPlusPipeline
        pipeline = kind(scheduler=self.tiny.pipeline.scheduler,
                        vae=self.vae,
                        text_encoder=self.encoder,
                        tokenizer=self.tiny.tokenizer,
                        processor=Processor(self.tiny.tokenizer),
                        transformer=self.load_transformer(folder))
        prefix = self.tiny.tokenizer(EDIT_PREFIX).input_ids
        pipeline.prompt_template_encode_start_idx = len(prefix)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline
