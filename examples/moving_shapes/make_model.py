#!/usr/bin/env python3
"""Writes this example's model in the layout of the published folder of Wan2.2-T2V-A14B.

    python3 make_model.py FOLDER --vae VAE [--denoisers HIGH LOW] [--seed 11]

VAE is what train_clip_vae.py wrote. The text encoder is drawn at random and stays as it is; heads of
its first layer look 1, 2, 3 and 4 tokens back, so that the row of "ground" also tells "a white". The
denoisers are what `atelier train` begins with, or what it saved. Needs numpy, Pillow, torch,
diffusers, transformers and sentencepiece.
"""

import argparse
import io
import json
import pathlib
import shutil
import string

import sentencepiece
import torch
from diffusers import UniPCMultistepScheduler, WanTransformer3DModel
from safetensors.torch import load_file, save_file
from transformers import T5Tokenizer, UMT5Config, UMT5EncoderModel

import clips

DENOISER = dict(patch_size=(1, 2, 2), num_attention_heads=4, attention_head_dim=32, in_channels=16,
                out_channels=16, freq_dim=64, ffn_dim=384, num_layers=4)
TEXT = dict(d_model=128, d_kv=32, num_heads=4, d_ff=64, num_layers=2)
BOUNDARY = 0.875  # of the noise levels of the two denoisers
SHARPNESS = 10.0  # of the heads' look at one token
WEIGHTS = "diffusion_pytorch_model.safetensors"


def write_tokenizer(folder):
    """A unigram model whose pieces are the words of the prompts."""
    words = sorted({word for scene in clips.every_scene() for word in scene.prompt().split()})
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(string.ascii_lowercase * 4), model_writer=model, vocab_size=200,
        hard_vocab_limit=False, model_type="unigram",
        user_defined_symbols=["▁" + word for word in words], pad_id=0, eos_id=1, unk_id=2,
        bos_id=-1, minloglevel=2)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(model.getvalue())
    tokenizer = T5Tokenizer.from_pretrained(folder, extra_ids=0)
    tokenizer.save_pretrained(folder)
    return tokenizer


def look_back(layer):
    """Queries and keys are nothing: what a head looks at is a place."""
    attention = layer.layer[0].SelfAttention
    attention.q.weight.zero_()
    attention.k.weight.zero_()
    bias = attention.relative_attention_bias.weight.zero_()
    for head in range(bias.shape[1]):
        bias[head + 1, head] = SHARPNESS  # the first rows are tokens before, by their distance


def text_encoder(rows, seed):
    torch.manual_seed(seed)
    model = UMT5EncoderModel(UMT5Config(vocab_size=rows, feed_forward_proj="gated-gelu",
                                        dropout_rate=0.0, **TEXT))
    width, inner = TEXT["d_model"], TEXT["d_kv"] * TEXT["num_heads"]
    with torch.no_grad():
        model.shared.weight.normal_()
        for number, layer in enumerate(model.encoder.block):
            look_back(layer)
            strength = 1.0 if number == 0 else 0.2
            layer.layer[0].SelfAttention.v.weight.normal_(std=width**-0.5)
            layer.layer[0].SelfAttention.o.weight.normal_(std=strength * inner**-0.5)
            dense = layer.layer[1].DenseReluDense
            dense.wi_0.weight.normal_(std=width**-0.5)
            dense.wi_1.weight.normal_(std=width**-0.5)
            dense.wo.weight.normal_(std=0.2 * TEXT["d_ff"]**-0.5)
    return model


def denoiser(seed):
    """diffusers' own initialisation, with an output of zeros. What a prompt's few words say is made strong:
    it is to be heard among the rows behind them, 512 in all, which say nothing."""
    torch.manual_seed(seed)
    model = WanTransformer3DModel(**DENOISER, text_dim=TEXT["d_model"])
    with torch.no_grad():
        model.condition_embedder.time_proj.weight.zero_()
        model.condition_embedder.time_proj.bias.zero_()
        text = model.condition_embedder.text_embedder
        for layer, strength in ((text.linear_1, 1.7), (text.linear_2, 3.0)):
            layer.weight.mul_(strength)
            layer.bias.zero_()
        for block in model.blocks:
            block.scale_shift_table.zero_()
            block.scale_shift_table[:, [2, 5]] = 0.3  # what attention and the products add
            block.attn2.to_v.weight.mul_(4)
            block.attn2.to_v.bias.zero_()
            block.attn2.to_k.bias.zero_()
        model.proj_out.weight.zero_()
        model.proj_out.bias.zero_()
    return model


def write_bfloat16(path, tensors):
    save_file({name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()},
              path, metadata={"format": "pt"})


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_index(folder):
    """The scheduler, and what the folder's parts are."""
    UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True,
                            num_train_timesteps=1000, flow_shift=5.0).save_pretrained(
                                folder / "scheduler")
    write_json(folder / "model_index.json", {
        "_class_name": "WanPipeline",
        "_media_defaults": {"height": 64, "width": 64, "num_frames": 17},
        "boundary_ratio": BOUNDARY,
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "T5TokenizerFast"],
        "transformer": ["diffusers", "WanTransformer3DModel"],
        "transformer_2": ["diffusers", "WanTransformer3DModel"],
        "vae": ["diffusers", "AutoencoderKLWan"]})


def make(folder, vae, trained, seed):
    tokenizer = write_tokenizer(folder / "tokenizer")
    write_index(folder)
    text_encoder(len(tokenizer), seed).to(torch.bfloat16).save_pretrained(folder / "text_encoder")
    for number, part in enumerate(("transformer", "transformer_2")):
        denoiser(seed).to(torch.bfloat16).save_pretrained(folder / part)
        if trained:
            write_bfloat16(folder / part / WEIGHTS, load_file(trained[number]))
    (folder / "vae").mkdir(exist_ok=True)
    shutil.copy(vae / "config.json", folder / "vae")
    write_bfloat16(folder / "vae" / WEIGHTS, load_file(vae / WEIGHTS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--vae", type=pathlib.Path, required=True)
    parser.add_argument("--denoisers", type=pathlib.Path, nargs=2,
                        help="weights that take their place: of much noise, and of little")
    parser.add_argument("--seed", type=int, default=11)
    arguments = parser.parse_args()
    make(arguments.folder, arguments.vae, arguments.denoisers, arguments.seed)
    for path in sorted(arguments.folder.rglob("*.safetensors")):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
