"""Tiny random Lumina-Image 2.0 models in every published file layout, and diffusers' answers.

`get()` makes them with diffusers and transformers and writes, below its `root`:
  model/                   a diffusers directory: transformer/, text_encoder/, vae/, scheduler/ and
                           tokenizer/ (tokenizer.json and tokenizer.model)
  split/{dit,text_encoder,vae}.safetensors  the same weights as ComfyUI's single files and the
                           original checkpoint spell them, with the config in the metadata
  bundle.safetensors       all three in one file, as ComfyUI's checkpoints hold them
  blank/                   a diffusers directory with other weights, whose configs the bundle takes
"""

import copy
import functools
import io
import json
import pathlib
import re

import sentencepiece
import torch
from diffusers import (AutoencoderKL, FlowMatchEulerDiscreteScheduler, Lumina2Pipeline,
                       Lumina2Transformer2DModel)
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from transformers import Gemma2Config, Gemma2Model, GemmaTokenizer

import tiny_models

SYSTEM_PROMPT = ("You are an assistant designed to generate superior images with the superior "
                 "degree of image-text alignment based on textual prompts or user prompts.")
TEXT_WIDTH = 48
HEAD_ROWS = {"q": 96, "k": 48, "v": 48}  # of the tiny transformer's attention


def make_tokenizer(folder):
    """A SentencePiece model with Gemma's settings, in both published forms."""
    folder.mkdir(parents=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(
        [SYSTEM_PROMPT + " <Prompt Start> "] * 50 + tiny_models.CORPUS * 4),
                                             model_writer=model,
                                             vocab_size=700,
                                             hard_vocab_limit=False,
                                             model_type="bpe",
                                             byte_fallback=True,
                                             pad_id=0,
                                             eos_id=1,
                                             bos_id=2,
                                             unk_id=3,
                                             pad_piece="<pad>",
                                             eos_piece="<eos>",
                                             bos_piece="<bos>",
                                             user_defined_symbols=["<mask>"],
                                             add_dummy_prefix=False,
                                             normalization_rule_name="identity",
                                             remove_extra_whitespaces=False,
                                             split_digits=True,
                                             character_coverage=1.0,
                                             minloglevel=2)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GemmaTokenizer"}))
    tokenizer = GemmaTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos>:0 $A:0",
        pair="<bos>:0 $A:0 <bos>:1 $B:1",
        special_tokens=[("<bos>", tokenizer.bos_token_id)])
    tokenizer.save_pretrained(folder)
    return tokenizer, model.getvalue()


def make_transformer(seed=71, **changes):
    config = dict(patch_size=2,
                  in_channels=16,
                  hidden_size=96,
                  num_layers=2,
                  num_refiner_layers=1,
                  num_attention_heads=4,
                  num_kv_heads=2,
                  multiple_of=32,
                  axes_dim_rope=(8, 8, 8),
                  axes_lens=(300, 512, 512),
                  cap_feat_dim=TEXT_WIDTH)
    transformer = Lumina2Transformer2DModel(**{**config, **changes})
    return tiny_models.randomize_(transformer,
                                  seed,
                                  overrides=[(r"norm1\.linear", 1.5), (r"norm_out\.linear_2", 1.5)])


def make_text_encoder(vocabulary, seed=72):
    config = Gemma2Config(vocab_size=vocabulary,
                          hidden_size=TEXT_WIDTH,
                          intermediate_size=80,
                          num_hidden_layers=3,
                          num_attention_heads=2,
                          num_key_value_heads=1,
                          head_dim=256,
                          query_pre_attn_scalar=256,
                          attn_implementation="eager")
    encoder = tiny_models.randomize_(Gemma2Model(config), seed)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith("norm.weight"):
                parameter.sub_(1)  # these norms add 1
    return encoder


def make_vae(seed=73):
    vae = AutoencoderKL(down_block_types=["DownEncoderBlock2D"] * 4,
                        up_block_types=["UpDecoderBlock2D"] * 4,
                        block_out_channels=[32, 32, 64, 64],
                        layers_per_block=1,
                        latent_channels=16,
                        norm_num_groups=32,
                        use_quant_conv=False,
                        use_post_quant_conv=False,
                        scaling_factor=0.3611,
                        shift_factor=0.1159)
    return tiny_models.randomize_(vae, seed, gain=1.2)


def original_dit(state):
    """The original checkpoint's tensors: q, k and v are one, and a norm is there that nothing
    reads."""
    result = {"norm_final.weight": torch.ones(state["x_embedder.weight"].shape[0])}
    renames = ((r"^time_caption_embed\.timestep_embedder\.linear_1",
                "t_embedder.mlp.0"), (r"^time_caption_embed\.timestep_embedder\.linear_2",
                                      "t_embedder.mlp.2"),
               (r"^time_caption_embed\.caption_embedder", "cap_embedder"),
               (r"^norm_out\.linear_1", "final_layer.adaLN_modulation.1"),
               (r"^norm_out\.linear_2", "final_layer.linear"), (r"attn\.to_out\.0",
                                                                 "attention.out"),
               (r"attn\.norm_(q|k)", r"attention.\1_norm"), (r"feed_forward\.linear_",
                                                             "feed_forward.w"),
               (r"\.norm1\.linear", ".adaLN_modulation.1"), (r"\.norm1\.norm\.",
                                                             ".attention_norm1."),
               (r"\.norm1\.weight", ".attention_norm1.weight"), (r"\.norm2\.", ".attention_norm2."))
    for name, tensor in state.items():
        if re.search(r"attn\.to_[kv]\.", name):
            continue
        if ".attn.to_q." in name:
            parts = [state[name.replace("to_q", "to_" + part)] for part in "qkv"]
            result[name.replace("attn.to_q", "attention.qkv")] = torch.cat(parts)
            continue
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        result[name] = tensor
    return result


def original_vae(state):
    last = max(int(name.split(".")[2]) for name in state if name.startswith("decoder.up_blocks."))
    result = {}
    for name, tensor in state.items():
        name = re.sub(r"^encoder\.down_blocks\.", "encoder.down.", name)
        name = re.sub(r"^decoder\.up_blocks\.(\d)", lambda m: f"decoder.up.{last - int(m[1])}", name)
        name = re.sub(r"mid_block\.resnets\.(\d)", lambda m: f"mid.block_{int(m[1]) + 1}", name)
        if ".attentions." in name and tensor.dim() == 2:
            tensor = tensor[:, :, None, None]
        for here, there in (("mid_block.attentions.0.", "mid.attn_1."), (".attentions.", ".attn."),
                            (".group_norm.", ".norm."), (".to_out.0.", ".proj_out."),
                            (".to_", "."), (".resnets.", ".block."),
                            (".downsamplers.0.", ".downsample."),
                            (".upsamplers.0.", ".upsample."), ("conv_shortcut", "nin_shortcut"),
                            ("conv_norm_out", "norm_out")):
            name = name.replace(here, there)
        result[name] = tensor
    return result


class Lumina2Models:

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.model = self.root / "model"
        self.tokenizer, tokenizer_bytes = make_tokenizer(self.model / "tokenizer")
        self.transformer = make_transformer()
        self.text_encoder = make_text_encoder(len(self.tokenizer))
        self.vae = make_vae()
        self.pipeline = Lumina2Pipeline(transformer=self.transformer,
                                        scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0),
                                        vae=self.vae,
                                        text_encoder=self.text_encoder,
                                        tokenizer=self.tokenizer)
        self.pipeline.set_progress_bar_config(disable=True)
        self.transformer.save_pretrained(self.model / "transformer")
        self.text_encoder.save_pretrained(self.model / "text_encoder")
        self.vae.save_pretrained(self.model / "vae")
        self.pipeline.scheduler.save_pretrained(self.model / "scheduler")

        parts = {
            "dit": original_dit(self.transformer.state_dict()),
            "text_encoder": {
                "model." + name: tensor for name, tensor in self.text_encoder.state_dict().items()
            },
            "vae": original_vae(self.vae.state_dict())
        }
        (self.root / "split").mkdir()
        for name, tensors in parts.items():
            folder = self.model / {"dit": "transformer"}.get(name, name)
            save_file(tiny_models.contiguous(tensors), self.root / "split" / f"{name}.safetensors",
                      metadata=tiny_models.config_metadata(folder))
        bundle = {"model.diffusion_model." + k: v for k, v in parts["dit"].items()}
        bundle |= {"vae." + k: v for k, v in parts["vae"].items()}
        encoder = "text_encoders.gemma2_2b."
        bundle |= {encoder + "transformer." + k: v for k, v in parts["text_encoder"].items()}
        bundle[encoder + "logit_scale"] = torch.tensor(1.0)
        bundle[encoder + "spiece_model"] = torch.frombuffer(bytearray(tokenizer_bytes),
                                                            dtype=torch.uint8)
        save_file(tiny_models.contiguous(bundle), self.root / "bundle.safetensors")
        for name in ("transformer", "text_encoder", "vae"):
            blank = copy.deepcopy(getattr(self, name))
            for parameter in blank.parameters():
                torch.nn.init.zeros_(parameter)
            blank.save_pretrained(self.root / "blank" / name)

    def layouts(self):
        """Name -> files of all components, with the tokenizer."""
        tokenizer = self.model / "tokenizer"
        names = ("dit", "text_encoder", "vae")
        split = [self.root / "split" / f"{name}.safetensors" for name in names]
        return {
            "diffusers": [self.model],
            "original": [*split, tokenizer / "tokenizer.model"],
            "bundle": [self.root / "bundle.safetensors", self.root / "blank", tokenizer]
        }

    def layout_of(self, component):
        """Spelling -> the file or folder of one component."""
        folder = {"dit": "transformer"}.get(component, component)
        return {
            "diffusers": self.model / folder,
            "original": self.root / "split" / f"{component}.safetensors",
            "bundle": [self.root / "bundle.safetensors", self.root / "blank"]
        }


def velocity(transformer, latents, sigma, prompt_embeds, lengths=None):
    """noise - clean, [B, C, 1, h, w], for latents of the same shape."""
    mask = torch.ones(prompt_embeds.shape[:2], dtype=torch.long)
    if lengths is not None:
        mask = (torch.arange(prompt_embeds.shape[1])[None] < lengths[:, None]).long()
    return -transformer(hidden_states=latents[:, :, 0],
                        timestep=1 - sigma,
                        encoder_hidden_states=prompt_embeds,
                        encoder_attention_mask=mask,
                        return_dict=False)[0][:, :, None]


def hidden(text_encoder, input_ids, lengths=None):
    """The hidden state that the pipeline uses, [B, L, D], zero on padding."""
    if lengths is None:
        lengths = torch.full((input_ids.shape[0],), input_ids.shape[1])
    mask = torch.arange(input_ids.shape[1])[None] < lengths[:, None]
    states = text_encoder(input_ids=input_ids,
                          attention_mask=mask.long(),
                          output_hidden_states=True)
    return states.hidden_states[-2] * mask[..., None]


def encode(vae, image):
    """Normalised latents, [B, 16, 1, H/8, W/8], of an image [B, 3, H, W] in [-1, 1]."""
    mean = vae.encode(image).latent_dist.mode()
    return ((mean - (vae.config.shift_factor or 0)) * vae.config.scaling_factor)[:, :, None]


def decode(vae, latents):
    """The image [B, 3, H, W] in [-1, 1] of normalised latents [B, 16, 1, h, w]."""
    return vae.decode(latents[:, :, 0] / vae.config.scaling_factor +
                      (vae.config.shift_factor or 0)).sample


@functools.cache
def get():
    """Builds the models once a process."""
    return tiny_models.build_below(Lumina2Models, "lumina2")
