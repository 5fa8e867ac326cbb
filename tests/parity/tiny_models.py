"""Tiny random Qwen-Image models in every published file layout.

`build(root)` makes them with diffusers and transformers and writes, below `root`:
  model/                a diffusers directory: transformer/ and text_encoder/ in shards with index
                        (the encoder in the hub's spelling: `visual.*`, `model.*`,
                        `lm_head.weight`), vae/, tokenizer/ (vocab.json, merges.txt), scheduler/
  text_encoder_memory/  the same text encoder, one file, as transformers spells it in memory:
                        `model.language_model.*`, `model.visual.*`
  tokenizer_json/       the same tokenizer as tokenizer.json
  vae_original.safetensors               the same VAE in the original spelling, ComfyUI's too
  single/{dit,text_encoder}.safetensors  another pair, with the published head width of 128, as
                        ComfyUI spells it: `model.diffusion_model.*`, and `model.*` with `visual.*`
                        but without the head; no config beside them
  reference/            that pair as diffusers and transformers save it, for the reference side
"""

import functools
import json
import os
import pathlib
import re
import tempfile
import zlib

import torch
from diffusers import (AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImagePipeline,
                       QwenImageTransformer2DModel)
from safetensors.torch import save_file
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        trainers)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

TEMPLATE_PREFIX = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
    "quantity, text, spatial relationships of the objects and background:<|im_end|>\n"
    "<|im_start|>user\n")
TEMPLATE_PREFIX_TOKENS = 34

# The tokens that the public tokenizer adds behind its vocabulary, in order; the flag is "special".
ADDED_TOKENS = [
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<|object_ref_start|>", True),
    ("<|object_ref_end|>", True),
    ("<|box_start|>", True),
    ("<|box_end|>", True),
    ("<|quad_start|>", True),
    ("<|quad_end|>", True),
    ("<|vision_start|>", True),
    ("<|vision_end|>", True),
    ("<|vision_pad|>", True),
    ("<|image_pad|>", True),
    ("<|video_pad|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<|fim_prefix|>", False),
    ("<|fim_middle|>", False),
    ("<|fim_suffix|>", False),
    ("<|fim_pad|>", False),
    ("<|repo_name|>", False),
    ("<|file_sep|>", False),
]

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+")

CORPUS = [
    "A coffee shop entrance features a chalkboard sign reading \"Qwen Coffee $2 per cup.\"",
    "It's a photo they've taken; we'll see what you're doing, I'd say. DON'T! I'M here.",
    "一只可爱的猫坐在窗台上，窗外是黄昏的城市。超清，4K，电影级构图。低分辨率，低画质，画面具有AI感。",
    "昔々、あるところに、おじいさんとおばあさんが住んでいました。カタカナとひらがな。",
    "안녕하세요, 오늘 날씨가 좋네요. 고양이 그림을 그려 주세요.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ελληνικά γράμματα και λέξεις.",
    "تصميم داخلي حديث مع نافذة كبيرة. मेरी बिल्ली खिड़की पर बैठी है। ภาพถ่ายแมวบนหน้าต่าง",
    "Crème brûlée, naïve façade, Ångström, Straße, İstanbul, smørrebrød, čeština, ﬁnancial Ⅷ ½ ²",
    "Emoji: 🐱🏙️👩‍👩‍👧‍👦🇩🇪👍🏽 ❤️ 🎨✨ and 1234567890, 3.14159, ٣٤٥, 四十二",
    "def main():\n    return {'a': [1, 2]}  # a comment\n\tif (x != y) && z:\r\n\r\n  pass\n\n\n",
    "  two spaces,   three,\t\ttabs \u3000ideographic\u00a0no-break   \n   mixed \n\n end   ",
    "red green blue yellow circle square triangle oil painting, cinematic lighting, detailed, 8k",
]

# The numbers of the public scheduler_config.json.
SCHEDULER_CONFIG = {
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "invert_sigmas": False,
    "max_image_seq_len": 8192,
    "max_shift": 0.9,
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "shift_terminal": 0.02,
    "stochastic_sampling": False,
    "time_shift_type": "exponential",
    "use_beta_sigmas": False,
    "use_dynamic_shifting": True,
    "use_exponential_sigmas": False,
    "use_karras_sigmas": False,
}


def randomize_(module, seed, gain=1.0, overrides=()):
    """Draws every parameter anew, from its name and `seed`.

    Weights get the standard deviation gain / sqrt(fan in), norm scales are around 1, biases small.
    `overrides` are (regular expression, gain) pairs; the first that matches a name wins.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            generator = torch.Generator().manual_seed(seed * 1000003 + zlib.crc32(name.encode()))
            noise = torch.randn(parameter.shape, generator=generator)
            factor = next((g for pattern, g in overrides if re.search(pattern, name)), gain)
            if name.endswith("gamma") or (parameter.dim() == 1 and name.endswith("weight")):
                parameter.copy_(1 + 0.15 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.1 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(noise)
            else:
                fan_in = parameter[0].numel()
                parameter.copy_(noise * factor / fan_in**0.5)
    return module.eval()


def make_tokenizer():
    """Trains a byte-level BPE with the public normaliser, split pattern and added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1500,
                                  min_frequency=2,
                                  show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    template_words = re.sub(r"<\|im_\w+\|>", "", TEMPLATE_PREFIX) + "assistant\n"
    tokenizer.train_from_iterator([template_words] * 50 + CORPUS * 4, trainer)
    tokenizer.add_tokens(
        [AddedToken(text, special=special, normalized=False) for text, special in ADDED_TOKENS])
    length = len(tokenizer.encode(TEMPLATE_PREFIX, add_special_tokens=False).ids)
    assert length == TEMPLATE_PREFIX_TOKENS, f"the template's prefix has {length} tokens, not 34"
    return tokenizer


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save_tokenizer(tokenizer, folder, as_json):
    """Writes tokenizer.json, or vocab.json and merges.txt in the layout of the public folder."""
    folder.mkdir(parents=True)
    state = json.loads(tokenizer.to_str())
    added = {
        str(entry["id"]): {
            k: entry[k]
            for k in ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
        } for entry in state["added_tokens"]
    }
    specials = [text for text, special in ADDED_TOKENS[1:] if special]
    write_json(
        folder / "tokenizer_config.json", {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": added,
            "additional_special_tokens": specials,
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": "<|endoftext|>",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None
        })
    if as_json:
        tokenizer.save(str(folder / "tokenizer.json"))
        return
    write_json(folder / "added_tokens.json", {
        entry["content"]: int(number) for number, entry in added.items()
    })
    write_json(
        folder / "special_tokens_map.json", {
            "additional_special_tokens": specials,
            "eos_token": {
                "content": "<|im_end|>",
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False
            },
            "pad_token": {
                "content": "<|endoftext|>",
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False
            }
        })
    write_json(folder / "vocab.json", state["model"]["vocab"])
    merges = [
        pair if isinstance(pair, str) else " ".join(pair) for pair in state["model"]["merges"]
    ]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n",
                                       encoding="utf-8")


def make_transformer(joint_dim, heads, head_dim, axes, seed, layers=2, guidance_embeds=False):
    transformer = QwenImageTransformer2DModel(patch_size=2,
                                              in_channels=64,
                                              out_channels=16,
                                              num_layers=layers,
                                              attention_head_dim=head_dim,
                                              num_attention_heads=heads,
                                              joint_attention_dim=joint_dim,
                                              guidance_embeds=guidance_embeds,
                                              axes_dims_rope=axes)
    # Strong attention outputs and text values let the prompt show in the image.
    return randomize_(transformer,
                      seed,
                      overrides=[(r"attn\.to_out\.0|add_v_proj", 4.0), (r"proj_out", 1.3)])


def make_text_encoder(vocabulary, hidden, heads, kv_heads, sections, ids, seed, **changes):
    text = dict(vocab_size=vocabulary,
                hidden_size=hidden,
                intermediate_size=hidden + 24,
                num_hidden_layers=3,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                rms_norm_eps=1e-6,
                max_position_embeddings=4096,
                max_window_layers=3,
                bos_token_id=ids["<|endoftext|>"],
                eos_token_id=ids["<|im_end|>"],
                rope_parameters=dict(rope_type="default", mrope_section=sections, rope_theta=1e6))
    config = Qwen2_5_VLConfig(text_config={**text, **changes},
                              vision_config=dict(depth=2,
                                                 hidden_size=32,
                                                 num_heads=2,
                                                 intermediate_size=44,
                                                 out_hidden_size=hidden,
                                                 fullatt_block_indexes=[1]),
                              image_token_id=ids["<|image_pad|>"],
                              video_token_id=ids["<|video_pad|>"],
                              vision_start_token_id=ids["<|vision_start|>"],
                              vision_end_token_id=ids["<|vision_end|>"])
    return randomize_(Qwen2_5_VLForConditionalGeneration(config), seed)


def make_vae(seed, base_dim=8, **changes):
    vae = AutoencoderKLQwenImage(base_dim=base_dim, z_dim=16, **changes)
    # The gain gives back the power that SiLU takes; the last convolution sets the contrast.
    return randomize_(vae,
                      seed,
                      gain=1.3,
                      overrides=[(r"decoder\.conv_out", 1.6), (r"to_qkv|proj", 1.0)])


def original_vae_name(name):
    """The name in the original VAE, and in ComfyUI's repack, of diffusers' parameter `name`."""
    name = re.sub(r"^quant_conv\.", "conv1.", name)
    name = re.sub(r"^post_quant_conv\.", "conv2.", name)
    name = re.sub(r"^(encoder|decoder)\.conv_in\.", r"\1.conv1.", name)
    name = re.sub(r"^(encoder|decoder)\.norm_out\.", r"\1.head.0.", name)
    name = re.sub(r"^(encoder|decoder)\.conv_out\.", r"\1.head.2.", name)
    name = name.replace(".mid_block.resnets.0.",
                        ".middle.0.").replace(".mid_block.resnets.1.", ".middle.2.")
    name = name.replace(".mid_block.attentions.0.", ".middle.1.")
    name = re.sub(r"^encoder\.down_blocks\.(\d+)\.", r"encoder.downsamples.\1.", name)
    name = re.sub(r"^decoder\.up_blocks\.(\d+)\.resnets\.(\d+)\.",
                  lambda m: f"decoder.upsamples.{4 * int(m[1]) + int(m[2])}.", name)
    name = re.sub(r"^decoder\.up_blocks\.(\d+)\.upsamplers\.0\.",
                  lambda m: f"decoder.upsamples.{4 * int(m[1]) + 3}.", name)
    if ".downsamples." in name or ".upsamples." in name or ".middle." in name:
        for ours, theirs in (("norm1", "residual.0"), ("conv1", "residual.2"),
                             ("norm2", "residual.3"), ("conv2", "residual.6"), ("conv_shortcut",
                                                                                "shortcut")):
            name = re.sub(rf"\.{ours}\.(weight|bias|gamma)$", rf".{theirs}.\1", name)
    return name


def contiguous(tensors):
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def hub_text_encoder_config(encoder):
    """config.json as the hub's files have it: the language model's fields at the top level."""
    text = encoder.config.text_config
    vision = encoder.config.vision_config
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "attention_dropout": 0.0,
        "bos_token_id": text.bos_token_id,
        "eos_token_id": text.eos_token_id,
        "hidden_act": "silu",
        "hidden_size": text.hidden_size,
        "image_token_id": encoder.config.image_token_id,
        "initializer_range": 0.02,
        "intermediate_size": text.intermediate_size,
        "max_position_embeddings": 4096,
        "max_window_layers": text.num_hidden_layers,
        "model_type": "qwen2_5_vl",
        "num_attention_heads": text.num_attention_heads,
        "num_hidden_layers": text.num_hidden_layers,
        "num_key_value_heads": text.num_key_value_heads,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "mrope_section": text.rope_parameters["mrope_section"],
            "rope_type": "default",
            "type": "default"
        },
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "transformers_version": "4.51.3",
        "use_cache": True,
        "use_sliding_window": False,
        "video_token_id": encoder.config.video_token_id,
        "vision_config": {
            "depth": vision.depth,
            "fullatt_block_indexes": list(vision.fullatt_block_indexes),
            "hidden_act": "silu",
            "hidden_size": vision.hidden_size,
            "in_channels": 3,
            "in_chans": 3,
            "intermediate_size": vision.intermediate_size,
            "model_type": "qwen2_5_vl",
            "num_heads": vision.num_heads,
            "out_hidden_size": vision.out_hidden_size,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 112
        },
        "vision_end_token_id": encoder.config.vision_end_token_id,
        "vision_start_token_id": encoder.config.vision_start_token_id,
        "vision_token_id": encoder.config.image_token_id - 1,
        "vocab_size": text.vocab_size,
    }


def config_metadata(folder):
    """What a file of other than the published widths has to say: see docs/file_formats.md."""
    return {"atelier.config": (folder / "config.json").read_text()}


def build(root):
    root = pathlib.Path(root)
    model = root / "model"
    tokenizer = make_tokenizer()
    save_tokenizer(tokenizer, model / "tokenizer", as_json=False)
    save_tokenizer(tokenizer, root / "tokenizer_json", as_json=True)
    ids = {text: tokenizer.token_to_id(text) for text, _ in ADDED_TOKENS}
    vocabulary = (tokenizer.get_vocab_size() +
                  63) // 64 * 64  # the public table has unused rows too

    # Grouped heads, widths that are no powers of two, three blocks of encoder, two of denoiser.
    encoder = make_text_encoder(vocabulary,
                                hidden=96,
                                heads=6,
                                kv_heads=2,
                                sections=[2, 3, 3],
                                ids=ids,
                                seed=1)
    encoder.save_pretrained(model / "text_encoder", max_shard_size="200KB")
    write_json(model / "text_encoder" / "config.json", hub_text_encoder_config(encoder))
    memory = root / "text_encoder_memory"
    memory.mkdir()
    save_file(contiguous(encoder.state_dict()),
              memory / "model.safetensors",
              metadata={"format": "pt"})
    encoder.config.save_pretrained(memory)

    transformer = make_transformer(joint_dim=96, heads=3, head_dim=32, axes=(8, 12, 12), seed=2)
    transformer.save_pretrained(model / "transformer", max_shard_size="1MB")

    vae = make_vae(seed=3)
    vae.save_pretrained(model / "vae")
    save_file(contiguous({
        original_vae_name(k): v for k, v in vae.state_dict().items()
    }), root / "vae_original.safetensors", metadata=config_metadata(model / "vae"))

    FlowMatchEulerDiscreteScheduler(**SCHEDULER_CONFIG).save_pretrained(model / "scheduler")
    write_json(
        model / "model_index.json", {
            "_class_name": "QwenImagePipeline",
            "_diffusers_version": "0.36.0.dev0",
            "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
            "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
            "tokenizer": ["transformers", "Qwen2Tokenizer"],
            "transformer": ["diffusers", "QwenImageTransformer2DModel"],
            "vae": ["diffusers", "AutoencoderKLQwenImage"]
        })

    # The second pair, of the published head width, as single files.
    (root / "single").mkdir()
    wide_encoder = make_text_encoder(vocabulary,
                                     hidden=256,
                                     heads=2,
                                     kv_heads=1,
                                     sections=[16, 24, 24],
                                     ids=ids,
                                     seed=4)
    wide_encoder.save_pretrained(root / "reference" / "text_encoder")
    spelled = {
        re.sub(r"^model\.language_model\.", "model.", re.sub(r"^model\.visual\.", "visual.", k)): v
        for k, v in wide_encoder.state_dict().items()
        if not k.startswith("lm_head.")
    }
    save_file(contiguous(spelled), root / "single" / "text_encoder.safetensors",
              metadata=config_metadata(root / "reference" / "text_encoder"))
    wide = make_transformer(joint_dim=256, heads=2, head_dim=128, axes=(16, 56, 56), seed=5)
    wide.save_pretrained(root / "reference" / "transformer")
    save_file(contiguous({
        "model.diffusion_model." + k: v for k, v in wide.state_dict().items()
    }), root / "single" / "dit.safetensors",
              metadata=config_metadata(root / "reference" / "transformer"))
    return root


class TinyModels:
    """The files of one run and, loaded from them on demand, the reference models."""

    def __init__(self, root):
        self.root = build(root)
        self.model = self.root / "model"

    @functools.cached_property
    def tokenizer(self):
        return Qwen2Tokenizer.from_pretrained(self.model / "tokenizer")

    @functools.cached_property
    def transformer(self):
        return QwenImageTransformer2DModel.from_pretrained(self.model / "transformer").eval()

    @functools.cached_property
    def text_encoder(self):
        return Qwen2_5_VLForConditionalGeneration.from_pretrained(self.model /
                                                                  "text_encoder").eval()

    @functools.cached_property
    def vae(self):
        return AutoencoderKLQwenImage.from_pretrained(self.model / "vae").eval()

    @functools.cached_property
    def wide_transformer(self):
        return QwenImageTransformer2DModel.from_pretrained(self.root / "reference" /
                                                           "transformer").eval()

    @functools.cached_property
    def wide_text_encoder(self):
        return Qwen2_5_VLForConditionalGeneration.from_pretrained(self.root / "reference" /
                                                                  "text_encoder").eval()

    @functools.cached_property
    def pipeline(self):
        return QwenImagePipeline.from_pretrained(self.model)


def build_below(models, name):
    """Builds models below ATELIER_PARITY_DIR or in a folder that goes away with the process."""
    kept = os.environ.get("ATELIER_PARITY_DIR")
    if kept:
        return models(pathlib.Path(kept) / name)
    folder = tempfile.TemporaryDirectory(prefix=f"atelier_{name}_")
    result = models(folder.name)
    result.folder = folder
    return result


@functools.cache
def get():
    """Builds the models once a process."""
    return build_below(TinyModels, "models")
