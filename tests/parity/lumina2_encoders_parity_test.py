"""The parts of Lumina-Image 2.0 that it shares with other models, beside transformers and diffusers:
Gemma 2 and the autoencoder of other sizes than lumina2_parity_test.py has, values and gradients."""

import copy
import sys
import unittest

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from transformers import Gemma2Config, Gemma2Model

import atelier
import compare
import lumina2_models
import references
import tiny_models
from tiny_run import FolderTest

TOLERANCE = 1e-5

# A window that prompts are longer than, a low cap, every head with its own keys, one key for all.
ENCODERS = {
    "window": dict(sliding_window=5, num_hidden_layers=5),
    "cap": dict(attn_logit_softcapping=1.5, query_pre_attn_scalar=20, num_hidden_layers=4),
    "wide cap": dict(attn_logit_softcapping=1.5, query_pre_attn_scalar=20, hidden_size=64),
    "heads": dict(num_attention_heads=4, num_key_value_heads=4, head_dim=8, hidden_size=36,
                  rope_parameters=dict(rope_type="default", rope_theta=500.0)),
    "one key": dict(num_attention_heads=6, num_key_value_heads=1, head_dim=10, rms_norm_eps=1e-3),
    "no cap": dict(attn_logit_softcapping=None, query_pre_attn_scalar=20),
    "listed windows": dict(sliding_window=3, num_hidden_layers=4,
                           layer_types=["full_attention"] + ["sliding_attention"] * 2 +
                           ["full_attention"]),
    "biases": dict(attention_bias=True),
}  # fmt: skip

AUTOENCODERS = {
    "two levels": dict(block_out_channels=[16, 24], norm_num_groups=8, latent_channels=6),
    "four levels": dict(block_out_channels=[8, 16, 32, 32], norm_num_groups=4, layers_per_block=2),
    "one level": dict(block_out_channels=[12], norm_num_groups=3, layers_per_block=2,
                      scaling_factor=1.5305, shift_factor=0.0609),
    "no shift": dict(block_out_channels=[8, 16], norm_num_groups=4, shift_factor=None),
    "no attention": dict(block_out_channels=[8, 16], norm_num_groups=4,
                         mid_block_add_attention=False),
    "convolved latents": dict(block_out_channels=[8, 16], norm_num_groups=4, use_quant_conv=True,
                              use_post_quant_conv=True),
    "attention in levels": dict(block_out_channels=[8, 16, 16], norm_num_groups=4,
                                down_block_types=["DownEncoderBlock2D", "AttnDownEncoderBlock2D",
                                                  "DownEncoderBlock2D"],
                                up_block_types=["AttnUpDecoderBlock2D", "UpDecoderBlock2D",
                                                "UpDecoderBlock2D"]),
}  # fmt: skip


def make_encoder(seed, **changes):
    config = Gemma2Config(**{
        **dict(vocab_size=300,
               hidden_size=48,
               intermediate_size=56,
               num_hidden_layers=3,
               num_attention_heads=4,
               num_key_value_heads=2,
               head_dim=16,
               query_pre_attn_scalar=16,
               pad_token_id=0,
               attn_implementation="eager"),
        **changes
    })
    # Queries and keys are large, so that the cap bends their products.
    encoder = tiny_models.randomize_(Gemma2Model(config), seed,
                                     overrides=[(r"self_attn\.[qk]_proj", 2.0)])
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith("norm.weight"):
                parameter.sub_(1)  # these norms add 1
    return encoder


def make_autoencoder(seed, block_out_channels, **changes):
    levels = len(block_out_channels)
    vae = AutoencoderKL(
        **{
            **dict(down_block_types=["DownEncoderBlock2D"] * levels,
                   up_block_types=["UpDecoderBlock2D"] * levels,
                   block_out_channels=block_out_channels,
                   layers_per_block=1,
                   latent_channels=16,
                   use_quant_conv=False,
                   use_post_quant_conv=False,
                   scaling_factor=0.3611,
                   shift_factor=0.1159),
            **changes
        })
    return tiny_models.randomize_(vae, seed, gain=1.2)


class EncoderTest(FolderTest):

    def probe(self, component, path, inputs, **extra):
        return atelier.probe(component, path, inputs, plugin="lumina2", **extra)


class Gemma2Test(EncoderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.encoders = {}
        for number, (name, changes) in enumerate(ENCODERS.items()):
            cls.encoders[name] = make_encoder(80 + number, **changes)
            cls.encoders[name].save_pretrained(cls.root / name)
        cls.lengths = torch.tensor([23, 1, 9, 40])
        cls.ids = torch.randint(0, 300, (4, 40), generator=torch.Generator().manual_seed(3))
        for row, length in enumerate(cls.lengths):
            cls.ids[row, length:] = 0

    def expected(self, encoder):
        return lumina2_models.hidden(encoder, self.ids, self.lengths)

    def ours(self, path, **extra):
        return self.probe("text_encoder", path, {"input_ids": self.ids, "lengths": self.lengths},
                          **extra)

    def test_other_sizes_give_the_same_hidden_states(self):
        for name, encoder in self.encoders.items():
            with self.subTest(name), torch.no_grad():
                compare.assert_close("gemma2, " + name, self.ours(self.root / name)["hidden"],
                                     self.expected(encoder), TOLERANCE)

    def test_windows_and_caps_change_the_hidden_states(self):
        """What the comparison above would not see otherwise."""
        for seed, name, changes in ((80, "window", dict(sliding_window=4096)),
                                    (81, "cap", dict(attn_logit_softcapping=None)),
                                    (86, "listed windows", dict(layer_types=None))):
            other = make_encoder(seed, **{**ENCODERS[name], **changes})
            with torch.no_grad():
                far = compare.relative_error(self.expected(other), self.expected(self.encoders[name]))
            self.assertGreater(far, 0.01, name)

    def test_gradients_are_the_same(self):
        for name, encoder in self.encoders.items():
            with self.subTest(name):
                got = self.ours(self.root / name, gradients=True, trainable="*")
                output = self.expected(encoder)
                last = f"layers.{encoder.config.num_hidden_layers - 1}."
                parameters = {
                    key: value for key, value in encoder.named_parameters()
                    if not key.startswith((last, "norm."))
                }
                expected = references.gradients(output, {}, parameters)
                compare.assert_all_close(
                    f"gemma2, {name}, gradients",
                    {key: value for key, value in got.items() if key.startswith("grad.")}, expected,
                    2 * TOLERANCE, 1e-3)

    def test_bfloat16_is_as_exact_as_transformers(self):
        for name in ("wide cap", "heads"):  # widths with a root that bfloat16 has
            with self.subTest(name), torch.no_grad():
                rounded = copy.deepcopy(self.encoders[name]).bfloat16()
                exact = self.expected(copy.deepcopy(rounded).double())
                theirs = self.expected(rounded).double() - exact
                ours = self.ours(self.root / name, dtype="bfloat16")["hidden"].double() - exact
                ratio = float(ours.square().mean().sqrt() / theirs.square().mean().sqrt())
                compare.record(f"gemma2, {name}, bfloat16: error against transformers'", ratio)
                self.assertLess(ratio, 1.05)

    def test_a_file_without_its_last_layer_is_enough(self):
        """config.json says how many layers there are; the last is not run."""
        encoder = self.encoders["cap"]
        last = f"layers.{encoder.config.num_hidden_layers - 1}."
        folder = self.root / "trimmed"
        folder.mkdir()
        save_file({
            name: tensor.contiguous() for name, tensor in encoder.state_dict().items()
            if not name.startswith(last)
        }, folder / "model.safetensors")
        encoder.config.save_pretrained(folder)
        with torch.no_grad():
            compare.assert_close("gemma2, without its last layer", self.ours(folder)["hidden"],
                                 self.expected(encoder), TOLERANCE)


class AutoencoderTest(EncoderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.autoencoders = {}
        for number, (name, changes) in enumerate(AUTOENCODERS.items()):
            cls.autoencoders[name] = make_autoencoder(90 + number, **changes)
            cls.autoencoders[name].save_pretrained(cls.root / name)

    def inputs(self, vae, height=5, width=7):
        generator = torch.Generator().manual_seed(5)
        stride = 2**(len(vae.config.block_out_channels) - 1)
        image = torch.rand((2, 3, height * stride, width * stride), generator=generator) * 2 - 1
        latents = torch.randn((2, vae.config.latent_channels, 1, height, width), generator=generator)

        def decode(vae, latents):
            return lumina2_models.decode(vae, latents).clamp(-1, 1)

        return {"image": (image, lumina2_models.encode), "latents": (latents, decode)}

    def test_other_sizes_encode_and_decode_the_same(self):
        for name, vae in self.autoencoders.items():
            for key, (value, reference) in self.inputs(vae).items():
                with self.subTest(name=name, key=key), torch.no_grad():
                    (got,) = self.probe("vae", self.root / name, {key: value}).values()
                    compare.assert_close(f"autoencoder, {name}, of {key}", got,
                                         reference(vae, value), TOLERANCE)

    def test_gradients_are_the_same(self):
        for name, vae in self.autoencoders.items():
            for key, (value, reference) in self.inputs(vae, 3, 2).items():
                with self.subTest(name=name, key=key):
                    got = self.probe("vae", self.root / name, {key: value}, gradients=True,
                                     trainable="*")
                    value = value.clone().requires_grad_(True)
                    output = reference(vae, value)
                    expected = references.gradients(output, {key: value},
                                                    dict(vae.named_parameters()))
                    compare.assert_gradients(f"autoencoder, {name}, gradients of {key}", got,
                                             expected)

    def test_the_original_spelling_gives_the_same(self):
        for name in ("four levels", "convolved latents", "attention in levels", "no attention"):
            vae = self.autoencoders[name]
            folder = self.root / "original" / name
            vae.save_config(folder)  # the number of groups is not in the shapes
            save_file(tiny_models.contiguous(lumina2_models.original_vae(vae.state_dict())),
                      folder / "ae.safetensors")
            for key, (value, reference) in self.inputs(vae).items():
                with self.subTest(name=name, key=key), torch.no_grad():
                    (got,) = self.probe("vae", folder, {key: value}).values()
                    compare.assert_close(f"autoencoder, original spelling, {name}, of {key}", got,
                                         reference(vae, value), TOLERANCE)


if __name__ == "__main__":
    sys.exit(unittest.main())
