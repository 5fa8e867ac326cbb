"""Z-Image as examples/z_image has it: the plugin, built out of tree against an installed Atelier, and tiny random models
with diffusers' answers.

`get()` makes, below its `root`:
  prefix/            an installed Atelier
  z_image/build/     the plugin
  turbo/, base/      diffusers directories that differ in their scheduler alone
  comfy.safetensors  the transformer as ComfyUI's files spell it
"""
import functools
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from safetensors.torch import save_file
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

import atelier
import tiny_models

TEXT_WIDTH = 48
CHAT_TEMPLATE = ("{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + "
                 "'<|im_end|>' + '\\n' }}{%- endfor %}{%- if add_generation_prompt %}"
                 "{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def install(root):
    """Installs the build, and builds the example with what is installed. Returns the plugin's file."""
    prefix, plugin = root / "prefix", root / "z_image"
    shutil.copytree(atelier.REPOSITORY / "examples/z_image", plugin, ignore=shutil.ignore_patterns("build"))
    for line in (["cmake", "--install", atelier.program().parents[1], "--prefix", prefix],
                 [prefix / "bin/atelier", "plugin", "build", plugin]):
        done = subprocess.run(line, stdin=subprocess.DEVNULL, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise AssertionError(f"{line}: exit code {done.returncode}\n{done.stdout[-3000:]}")
    return plugin / "build/z_image.so"


def make_transformer(seed=81):
    transformer = ZImageTransformer2DModel(in_channels=16, dim=96, n_layers=3, n_refiner_layers=1, n_heads=4,
                                           n_kv_heads=4, cap_feat_dim=TEXT_WIDTH, axes_dims=[8, 8, 8],
                                           axes_lens=[1024, 512, 512])
    return tiny_models.randomize_(transformer, seed, overrides=[("final_layer.*linear", 1.5)])


def make_text_encoder(vocabulary, seed=82):
    config = Qwen3Config(vocab_size=vocabulary, hidden_size=TEXT_WIDTH, intermediate_size=96, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
                         tie_word_embeddings=True, rope_theta=1e6, max_position_embeddings=2048)
    return tiny_models.randomize_(Qwen3ForCausalLM(config), seed)


def make_vae(seed=83):
    vae = AutoencoderKL(down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
                        block_out_channels=[8, 16, 32, 32], layers_per_block=1, latent_channels=16, norm_num_groups=4,
                        scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False)
    return tiny_models.randomize_(vae, seed, gain=1.2)


def comfy_dit(state):
    """The original tensors: q, k and v are one, and a norm is there that nothing reads."""
    result = {"norm_final.weight": torch.ones(TEXT_WIDTH)}
    renames = ((r"^all_x_embedder\.2-1", "x_embedder"), (r"^all_final_layer\.2-1", "final_layer"),
               (r"attention\.to_out\.0", "attention.out"), (r"attention\.norm_(q|k)", r"attention.\1_norm"))
    for name, tensor in state.items():
        if re.search(r"attention\.to_[kv]\.", name):
            continue
        if ".attention.to_q." in name:
            parts = [state[name.replace("to_q", "to_" + part)] for part in "qkv"]
            result[name.replace("to_q", "qkv")] = torch.cat(parts)
            continue
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        result[name] = tensor
    return result


class ZImageModels:

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.plugin = install(self.root)
        self.turbo, self.base = self.root / "turbo", self.root / "base"
        tiny_models.save_tokenizer(tiny_models.make_tokenizer(), self.turbo / "tokenizer", as_json=True)
        tokenizer = AutoTokenizer.from_pretrained(self.turbo / "tokenizer")
        tokenizer.chat_template = CHAT_TEMPLATE
        self.transformer = make_transformer()
        self.text_encoder = make_text_encoder(len(tokenizer))
        self.vae = make_vae()
        self.pipeline = ZImagePipeline(FlowMatchEulerDiscreteScheduler(shift=3.0), self.vae, self.text_encoder,
                                       tokenizer, self.transformer)
        self.pipeline.set_progress_bar_config(disable=True)
        for name in ("transformer", "text_encoder", "vae", "scheduler"):
            getattr(self.pipeline, name).save_pretrained(self.turbo / name)
        self.base.mkdir()
        for name in ("transformer", "text_encoder", "vae", "tokenizer"):
            (self.base / name).symlink_to(self.turbo / name)
        FlowMatchEulerDiscreteScheduler(shift=6.0).save_pretrained(self.base / "scheduler")
        save_file(tiny_models.contiguous(comfy_dit(self.transformer.state_dict())), self.root / "comfy.safetensors",
                  metadata=tiny_models.config_metadata(self.turbo / "transformer"))

    def comfy(self):
        """All components, the transformer in ComfyUI's spelling."""
        return [self.root / "comfy.safetensors"] + [self.turbo / name for name in ("text_encoder", "vae", "tokenizer")]

    def pipeline_of(self, shift):
        self.pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
        return self.pipeline


def velocity(transformer, latents, sigma, prompt_embeds, lengths=None):
    """noise - clean, [B, C, 1, h, w], for latents of the same shape."""
    lengths = [prompt_embeds.shape[1]] * len(prompt_embeds) if lengths is None else lengths.tolist()
    texts = [row[:length] for row, length in zip(prompt_embeds, lengths)]
    return -torch.stack(transformer(list(latents), 1 - sigma, texts, return_dict=False)[0])


@functools.cache
def get():
    """Builds the models once a process, below ATELIER_PARITY_DIR or in a folder that goes away."""
    kept = os.environ.get("ATELIER_PARITY_DIR")
    if kept:
        return ZImageModels(pathlib.Path(kept) / "z_image")
    folder = tempfile.TemporaryDirectory(prefix="atelier_z_image_")
    result = ZImageModels(folder.name)
    result.folder = folder  # removed with the process
    return result
