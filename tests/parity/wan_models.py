"""Tiny random Wan models in every published file layout, and diffusers' answers.

`get()` makes them with diffusers and transformers and writes, below its `root`:
  model/                      a diffusers directory: transformer/, text_encoder/, vae/, scheduler/ and
                              tokenizer/
  original/{dit,text_encoder,vae}.safetensors  the same weights as the original repositories spell
                              them, with the config in the metadata
"""

import contextlib
import functools
import io
import json
import pathlib
import re
import tempfile
import unittest.mock

import numpy as np
import sentencepiece
import torch
from diffusers import (AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline,
                       WanTransformer3DModel, WanVideoToVideoPipeline)
from diffusers.models.autoencoders import autoencoder_kl_wan
from PIL import Image
from safetensors.torch import save_file
from transformers import (CLIPImageProcessorPil, CLIPVisionConfig, CLIPVisionModel, T5Tokenizer,
                          UMT5Config, UMT5EncoderModel)

import tiny_models

TEXT_WIDTH = 48
TEXT_ROWS = 512  # that the transformer sees of every prompt

ORIGINAL_DIT = ((r"^condition_embedder\.time_embedder\.linear_1", "time_embedding.0"),
                (r"^condition_embedder\.time_embedder\.linear_2", "time_embedding.2"),
                (r"^condition_embedder\.text_embedder\.linear_1", "text_embedding.0"),
                (r"^condition_embedder\.text_embedder\.linear_2", "text_embedding.2"),
                (r"^condition_embedder\.time_proj", "time_projection.1"),
                (r"^condition_embedder\.image_embedder\.norm1", "img_emb.proj.0"),
                (r"^condition_embedder\.image_embedder\.ff\.net\.0\.proj", "img_emb.proj.1"),
                (r"^condition_embedder\.image_embedder\.ff\.net\.2", "img_emb.proj.3"),
                (r"^condition_embedder\.image_embedder\.norm2", "img_emb.proj.4"),
                (r"^condition_embedder\.image_embedder\.pos_embed", "img_emb.emb_pos"),
                (r"\.add_([kv])_proj\.", r".\1_img."), (r"\.norm_added_k\.", ".norm_k_img."),
                (r"^scale_shift_table", "head.modulation"), (r"^proj_out", "head.head"),
                (r"\.scale_shift_table", ".modulation"), (r"\.norm2\.", ".norm3."),
                (r"\.ffn\.net\.0\.proj", ".ffn.0"), (r"\.ffn\.net\.2", ".ffn.2"),
                (r"\.attn1\.", ".self_attn."), (r"\.attn2\.", ".cross_attn."),
                (r"\.to_out\.0", ".o"), (r"\.to_([qkv])\.", r".\1."))

ORIGINAL_TEXT = ((r"^shared\.", "token_embedding."), (r"^encoder\.final_layer_norm", "norm"),
                 (r"^encoder\.block\.", "blocks."), (r"layer\.0\.layer_norm", "norm1"),
                 (r"layer\.1\.layer_norm", "norm2"),
                 (r"layer\.0\.SelfAttention\.relative_attention_bias", "pos_embedding.embedding"),
                 (r"layer\.0\.SelfAttention", "attn"),
                 (r"layer\.1\.DenseReluDense\.wi_0", "ffn.gate.0"),
                 (r"layer\.1\.DenseReluDense\.wi_1", "ffn.fc1"),
                 (r"layer\.1\.DenseReluDense\.wo", "ffn.fc2"))


# The VAE of Wan 2.2, with two residual blocks a level.
ORIGINAL_VAE_2 = ((r"\.norm1\.", ".residual.0."), (r"\.conv1\.", ".residual.2."),
                  (r"\.norm2\.", ".residual.3."), (r"\.conv2\.", ".residual.6."),
                  (r"\.conv_shortcut\.", ".shortcut."), (r"mid_block\.resnets\.0", "middle.0"),
                  (r"mid_block\.attentions\.0", "middle.1"), (r"mid_block\.resnets\.1", "middle.2"),
                  (r"down_blocks\.(\d+)\.resnets\.", r"downsamples.\1.downsamples."),
                  (r"down_blocks\.(\d+)\.downsampler\.", r"downsamples.\1.downsamples.2."),
                  (r"up_blocks\.(\d+)\.resnets\.", r"upsamples.\1.upsamples."),
                  (r"up_blocks\.(\d+)\.upsampler\.", r"upsamples.\1.upsamples.3."),
                  (r"coder\.conv_in\.", "coder.conv1."), (r"coder\.norm_out\.", "coder.head.0."),
                  (r"coder\.conv_out\.", "coder.head.2."), (r"^quant_conv\.", "conv1."),
                  (r"^post_quant_conv\.", "conv2."))


def renamed(state, renames):
    result = {}
    for name, tensor in state.items():
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        result[name] = tensor
    return result


def make_transformer(seed=91, **changes):
    config = dict(num_attention_heads=2,
                  attention_head_dim=16,
                  in_channels=16,
                  out_channels=16,
                  text_dim=TEXT_WIDTH,
                  freq_dim=64,
                  ffn_dim=80,
                  num_layers=2)
    transformer = WanTransformer3DModel(**{**config, **changes})
    return tiny_models.randomize_(transformer, seed, overrides=[(r"scale_shift_table", 8.0)])


IMAGE_WIDTH, IMAGE_SIDE, IMAGE_ROWS = 32, 56, 17


def make_image_transformer(images=1, seed=96, **changes):
    """Of image to video, or of first and last frame to video."""
    config = dict(in_channels=36,
                  image_dim=IMAGE_WIDTH,
                  added_kv_proj_dim=32,
                  pos_embed_seq_len=2 * IMAGE_ROWS if images == 2 else None)
    transformer = make_transformer(seed, **{**config, **changes})
    if images == 2:
        with torch.no_grad():
            transformer.condition_embedder.image_embedder.pos_embed.mul_(5)
    return transformer


def make_image_encoder(seed=97):
    config = CLIPVisionConfig(hidden_size=IMAGE_WIDTH,
                              intermediate_size=48,
                              num_hidden_layers=3,
                              num_attention_heads=4,
                              image_size=IMAGE_SIDE,
                              patch_size=14,
                              hidden_act="gelu")
    return tiny_models.randomize_(CLIPVisionModel(config), seed)


def make_image_processor():
    # By name: where torchvision is installed the short one resamples otherwise.
    return CLIPImageProcessorPil(size={"shortest_edge": IMAGE_SIDE},
                                 crop_size={
                                     "height": IMAGE_SIDE,
                                     "width": IMAGE_SIDE
                                 })


def make_vae(seed=92, **changes):
    config = dict(base_dim=4, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2)
    return tiny_models.randomize_(AutoencoderKLWan(**{**config, **changes}), seed, gain=1.3,
                                  overrides=[(r"decoder\.conv_out", 1.6),
                                             (r"to_qkv|proj", 1.0)])


WIDE_CHANNELS = 48  # of the latents of Wan 2.2 TI2V


def make_wide_vae(seed=99, **changes):
    """The VAE of Wan 2.2: patches, levels with a way around them, a decoder of other widths."""
    channels = changes.get("z_dim", WIDE_CHANNELS)
    generator = torch.Generator().manual_seed(seed)
    config = dict(z_dim=channels,
                  decoder_base_dim=12,
                  is_residual=True,
                  patch_size=2,
                  in_channels=12,
                  out_channels=12,
                  scale_factor_spatial=16,
                  latents_mean=(0.4 * torch.randn(channels, generator=generator)).tolist(),
                  latents_std=(0.5 + torch.rand(channels, generator=generator)).tolist())
    return make_vae(seed, **{**config, **changes})


def make_wide_transformer(seed=100, **changes):
    return make_transformer(seed, **{
        **dict(in_channels=WIDE_CHANNELS, out_channels=WIDE_CHANNELS),
        **changes
    })


def make_text_encoder(vocabulary, seed=93):
    config = UMT5Config(vocab_size=vocabulary,
                        d_model=TEXT_WIDTH,
                        d_kv=16,
                        d_ff=80,
                        num_layers=2,
                        num_heads=3,
                        feed_forward_proj="gated-gelu",
                        dropout_rate=0.0)
    return tiny_models.randomize_(UMT5EncoderModel(config),
                                  seed,
                                  overrides=[(r"relative_attention_bias", 2.0),
                                             (r"SelfAttention\.[qk]", 0.5), (r"shared", 7.0)])


def make_tokenizer(folder):
    """A unigram model with umT5's settings, in both published forms."""
    folder.mkdir(parents=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(tiny_models.CORPUS * 4),
                                             model_writer=model,
                                             vocab_size=700,
                                             hard_vocab_limit=False,
                                             model_type="unigram",
                                             byte_fallback=True,
                                             pad_id=0,
                                             eos_id=1,
                                             unk_id=2,
                                             bos_id=-1,
                                             character_coverage=1.0,
                                             minloglevel=2)
    (folder / "spiece.model").write_bytes(model.getvalue())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 0}))
    tokenizer = T5Tokenizer.from_pretrained(folder, extra_ids=0)
    tokenizer.save_pretrained(folder)
    return tokenizer


class WanModels:

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.model = self.root / "model"
        self.tokenizer = make_tokenizer(self.model / "tokenizer")
        self.transformer = make_transformer()
        self.text_encoder = make_text_encoder(len(self.tokenizer))
        self.vae = make_vae()
        self.scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction",
                                                 use_flow_sigmas=True,
                                                 num_train_timesteps=1000,
                                                 flow_shift=3.0)
        self.pipeline = self.make_pipeline(WanPipeline)
        self.transformer.save_pretrained(self.model / "transformer")
        self.text_encoder.save_pretrained(self.model / "text_encoder")
        self.vae.save_pretrained(self.model / "vae")
        self.scheduler.save_pretrained(self.model / "scheduler")

        parts = {
            "dit": renamed(self.transformer.state_dict(), ORIGINAL_DIT),
            "text_encoder": renamed(
                {
                    name: tensor
                    for name, tensor in self.text_encoder.state_dict().items()
                    if name != "encoder.embed_tokens.weight"
                }, ORIGINAL_TEXT),
            "vae": {
                tiny_models.original_vae_name(name): tensor
                for name, tensor in self.vae.state_dict().items()
            }
        }
        (self.root / "original").mkdir()
        for name, tensors in parts.items():
            save_file(tiny_models.contiguous(tensors),
                      self.root / "original" / f"{name}.safetensors",
                      metadata=tiny_models.config_metadata(self.folder_of(name)))

    def scheduler_with(self, shift):
        return UniPCMultistepScheduler.from_config(self.scheduler.config, flow_shift=shift)

    def make_pipeline(self, kind, shift=3.0, **parts):
        """One of diffusers' pipelines, of these parts and of this model's where they are not among
        them."""
        mine = dict(tokenizer=self.tokenizer, text_encoder=self.text_encoder, vae=self.vae,
                    transformer=self.transformer, scheduler=self.scheduler_with(shift))
        pipeline = kind(**mine | parts)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def folder_of(self, component):
        return self.model / {"dit": "transformer"}.get(component, component)

    def folder_with(self, folder, **parts):
        """A diffusers folder of these modules, with the text encoder, the VAE and the tokenizer of this
        model where they are not among them."""
        folder.mkdir(parents=True)
        for name in ("text_encoder", "vae", "tokenizer"):
            if name not in parts:
                (folder / name).symlink_to(self.model / name)
        for name, part in parts.items():
            part.save_pretrained(folder / name)
        return folder

    def layouts(self):
        """Name -> files of all components, with the tokenizer."""
        files = [self.root / "original" / f"{n}.safetensors" for n in ("dit", "text_encoder", "vae")]
        return {
            "diffusers": [self.model],
            "original": [*files, self.model / "tokenizer" / "spiece.model"]
        }

    def layout_of(self, component):
        """Spelling -> the file or folder of one component."""
        return {
            "diffusers": self.folder_of(component),
            "original": self.root / "original" / f"{component}.safetensors"
        }


def pad_prompts(prompt_embeds, lengths=None):
    """Prompts [B, L, D] as the pipeline gives them: TEXT_ROWS rows, zero behind each length."""
    count, rows, _ = prompt_embeds.shape
    if lengths is None:
        lengths = torch.full((count,), rows)
    mask = (torch.arange(rows)[None] < lengths[:, None]).to(prompt_embeds.dtype)
    return torch.nn.functional.pad(prompt_embeds * mask[..., None], (0, 0, 0, TEXT_ROWS - rows))


def velocity(transformer, latents, sigma, prompt_embeds, lengths=None, image_embeds=None,
             given_clip=None, first_frame=None):
    """noise - clean, of the shape of latents [B, C, T, h, w]."""
    timestep = 1000 * sigma
    if first_frame is not None:  # a timestep for every token
        grid = [n // p for n, p in zip(latents.shape[2:], transformer.config.patch_size)]
        timestep = timestep[:, None, None, None].repeat(1, *grid)
        timestep[:, 0] = 0
        timestep = timestep.flatten(1)
    if given_clip is not None:
        latents = torch.cat([latents, given_clip], 1)
    if transformer.config.pos_embed_seq_len:  # diffusers takes the images of a sample one by one
        image_embeds = image_embeds.unflatten(1, (2, -1)).flatten(0, 1)
    return transformer(hidden_states=latents,
                       timestep=timestep,
                       encoder_hidden_states=pad_prompts(prompt_embeds, lengths),
                       encoder_hidden_states_image=image_embeds,
                       return_dict=False)[0]


def vace_hints(model, rows, control, time, text):
    """What the blocks of diffusers' VACE give, [blocks, B, L, D], for the tensors of `atelier probe`."""
    rotary = model.rope(control)
    x = model.vace_patch_embedding(control).flatten(2).transpose(1, 2)
    hints = []
    for block in model.vace_blocks:
        hint, x = block(rows, text, x, time.unflatten(1, (6, -1)), rotary)
        hints.append(hint)
    return torch.stack(hints)


def constants(vae, like):
    shape = (1, -1, 1, 1, 1)
    return [
        torch.tensor(values, dtype=torch.float64).to(like.dtype).view(shape)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    ]


def encode(vae, clip):
    """Normalised latents [B, C, T', h, w] of a clip [B, 3, T, H, W] in [-1, 1]."""
    mean, std = constants(vae, clip)
    return (vae.encode(clip).latent_dist.mode() - mean) / std


def decode(vae, latents):
    """The clip [B, 3, T, H, W] in [-1, 1] of normalised latents."""
    mean, std = constants(vae, latents)
    return vae.decode(latents * std + mean).sample


def _resample_whole(self, x, feat_cache=None, feat_idx=None):
    """What a step between levels does to a whole clip: nothing is kept from piece to piece."""
    if self.mode == "upsample3d":
        later = self.time_conv(x[:, :, 1:]).unflatten(1, (2, -1))
        x = torch.cat([x[:, :, :1], torch.stack([later[:, 0], later[:, 1]], 3).flatten(2, 3)], 2)
    batch = x.shape[0]
    x = self.resample(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (batch, -1)).transpose(1, 2)
    if self.mode == "downsample3d":
        x = torch.cat([x[:, :, :1], self.time_conv(x)], 2)
    return x


def whole_clips():
    """While it holds, the VAE's encoder and decoder take a whole clip at once."""
    return unittest.mock.patch.object(autoencoder_kl_wan.WanResample, "forward", _resample_whole)


@contextlib.contextmanager
def clip_folder(frames, height, width):
    """Yields a folder of frames, in which a square moves, and the frames as images."""
    clip = []
    for i in range(frames):
        pixels = np.full((height, width, 3), (30, 40 + 10 * i, 90), np.uint8)
        pixels[4 + i:16 + i, 2 + 3 * i:14 + 3 * i] = (240, 200, 60)
        clip.append(Image.fromarray(pixels))
    with tempfile.TemporaryDirectory(prefix="atelier_clip_") as folder:
        for i, frame in enumerate(clip):
            frame.save(f"{folder}/{i}.png")
        yield folder, clip


def rounded(video):
    """The frames of a clip of floating values, uint8 [H, W, 3] each, rounded the way diffusers does."""
    return [(frame * 255).round().astype(np.uint8) for frame in video]


def changed_clip(models, clip, seed, parts, shift=3.0, **options):
    """The frames that diffusers makes of a clip; `parts` in place of the model's."""
    pipeline = models.make_pipeline(WanVideoToVideoPipeline, shift, **parts)
    # It takes every VAE for one of eight pixels a cell.
    pipeline.vae_scale_factor_spatial = pipeline.vae.config.scale_factor_spatial
    video = pipeline(video=clip, width=clip[0].width, height=clip[0].height, output_type="np",
                     generator=torch.Generator().manual_seed(seed), **options).frames[0]
    return rounded(video)


@functools.cache
def get():
    """Builds the models once a process."""
    return tiny_models.build_below(WanModels, "wan")
