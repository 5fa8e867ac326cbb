"""The SDK's parts give what transformers and diffusers give, values and gradients, in every spelling of their files."""
import unittest

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from transformers import (LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

import atelier
import compare
import lumina2_models
import tiny_models
from program import BUILD
from tiny_run import FolderTest

PLUGIN = str(BUILD / "tests/parts_family/parts_family.so")
EXACT = 1e-5
SIZES = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, tie_word_embeddings=False)


def gradients_of(model, outputs, **inputs):
    """What `probe --gradients` gives for a loss of half the squared outputs."""
    sum(output.square().sum() for output in outputs).div(2).backward()
    wanted = {"grad." + name: parameter.grad for name, parameter in model.named_parameters()}
    return wanted | {"grad." + name: value.grad for name, value in inputs.items()}


class LanguageModels(FolderTest):
    MODELS = {
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, rope_theta=1e6)),
        "qwen2, windows": lambda: Qwen2ForCausalLM(
            Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=7, max_window_layers=1)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, rope_theta=1e6)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rms_norm_eps=1e-5)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=7)),
        "mistral, no windows": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None, head_dim=32)),
    }

    def check(self, name, path, model, ids, lengths, gradients=False):
        mask = torch.arange(ids.shape[1])[None] < lengths[:, None]
        states = model(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True).hidden_states
        expected = torch.cat([states[1], states[-2], states[-1]], -1) * mask[..., None]
        got = atelier.probe("text_encoder", path, {"input_ids": ids, "lengths": lengths}, plugin=PLUGIN,
                            gradients=gradients, trainable="*" if gradients else None)
        compare.assert_close("parts, " + name, got["hidden"], expected, EXACT)
        if gradients:
            wanted = gradients_of(model, [expected])
            wanted = {key: value for key, value in wanted.items() if "lm_head" not in key}
            compare.assert_gradients("parts, " + name, got, wanted, dict.fromkeys(wanted, EXACT))

    def test_states_are_those_of_transformers(self):
        generator = torch.Generator().manual_seed(7)
        ids, lengths = torch.randint(0, 300, (2, 19), generator=generator), torch.tensor([19, 6])
        for seed, (name, make) in enumerate(self.MODELS.items()):
            with self.subTest(model=name):
                torch.manual_seed(0)
                model = tiny_models.randomize_(make(), 90 + seed)
                folder = self.dir / name.replace(", ", "_").replace(" ", "_")
                model.save_pretrained(folder)
                self.check(name, folder, model, ids, lengths, gradients=True)
                with torch.no_grad():
                    base = {key.removeprefix("model."): value for key, value in model.state_dict().items()
                            if key.startswith("model.")}
                    save_file(tiny_models.contiguous(base), folder / "base.safetensors",
                              tiny_models.config_metadata(folder))
                    self.check(name + ", without head", folder / "base.safetensors", model, ids, lengths)


class Autoencoders(FolderTest):
    PLAIN = dict(down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3,
                 block_out_channels=[8, 16, 32], layers_per_block=1, norm_num_groups=4)
    MODELS = {
        "of FLUX.1": dict(PLAIN, latent_channels=16, use_quant_conv=False, use_post_quant_conv=False,
                          scaling_factor=0.3611, shift_factor=0.1159),
        "of Stable Diffusion": dict(PLAIN, latent_channels=4, scaling_factor=0.18215),
        "with attention in a level": dict(
            PLAIN, latent_channels=4, scaling_factor=0.5, mid_block_add_attention=False,
            down_block_types=["DownEncoderBlock2D", "DownEncoderBlock2D", "AttnDownEncoderBlock2D"],
            up_block_types=["AttnUpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"]),
    }

    def probe(self, paths, inputs, **options):
        return atelier.probe("vae", paths, inputs, plugin=PLUGIN, **options)

    def test_values_and_gradients_are_those_of_diffusers(self):
        image = torch.rand((2, 3, 24, 16), generator=torch.Generator().manual_seed(4)) * 2 - 1
        for seed, (name, config) in enumerate(self.MODELS.items()):
            with self.subTest(autoencoder=name):
                vae = tiny_models.randomize_(AutoencoderKL(**config), 95 + seed, gain=1.2)
                folder = self.dir / str(seed)
                vae.save_pretrained(folder)
                save_file(tiny_models.contiguous(lumina2_models.original_vae(vae.state_dict())),
                          self.dir / f"original_{seed}.safetensors", tiny_models.config_metadata(folder))
                leaf = image.clone().requires_grad_(True)
                latents = lumina2_models.encode(vae, leaf)
                image_out = lumina2_models.decode(vae, latents.detach())
                for spelling, paths in (("diffusers", folder), ("original", self.dir / f"original_{seed}.safetensors")):
                    compare.assert_close(f"parts, {name}, encoded, {spelling}",
                                         self.probe(paths, {"image": image})["latents"], latents, EXACT)
                    compare.assert_close(f"parts, {name}, decoded, {spelling}",
                                         self.probe(paths, {"latents": latents.detach()})["image"],
                                         image_out.clamp(-1, 1), EXACT)
                got = self.probe(folder, {"image": image}, gradients=True)
                latents.square().sum().div(2).backward()
                compare.assert_close(f"parts, {name}, gradient", got["grad.image"], leaf.grad, EXACT)


if __name__ == "__main__":
    unittest.main()
