"""The SDK's parts give what transformers and diffusers give, values and gradients, in every spelling of their files."""
import unittest

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from transformers import (CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPVisionConfig, CLIPVisionModel,
                          Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig,
                          LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, SiglipImageProcessorPil, SiglipVisionConfig, SiglipVisionModel, T5Config,
                          T5EncoderModel, UMT5Config, UMT5EncoderModel, Wav2Vec2Config, Wav2Vec2Model)

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

GEMMA = dict(head_dim=32, query_pre_attn_scalar=20, sliding_window=7, attn_implementation="eager")


def gradients_of(model, outputs, **inputs):
    """What `probe --gradients` gives for a loss of half the squared outputs."""
    sum(output.square().sum() for output in outputs).div(2).backward()
    wanted = {"grad." + name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return wanted | {"grad." + name: value.grad for name, value in inputs.items()}


def random_ids(lengths, vocabulary=300):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(3, vocabulary, (len(lengths), max(lengths)), generator=generator), torch.tensor(lengths)


def mask_of(ids, lengths):
    return (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()


def around_zero_(model):
    """Gemma's norms add 1 to their weights."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gemma" in model.config.model_type and name.endswith("norm.weight"):
                parameter.sub_(1)
    return model


def bounds(wanted):
    """What gradients may differ by. What all keys share changes no score, so those of their biases are what rounding
    leaves."""
    return {key: 1e-4 if key.endswith("k_proj.bias") else EXACT for key in wanted}


class LanguageModels(FolderTest):
    LARGE_SCORES = [(r"self_attn\.[qk]_proj", 1.5)]  # so that caps bend them
    MODELS = {
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, rope_theta=1e6)),
        "qwen2, windows": lambda: Qwen2ForCausalLM(
            Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=7, max_window_layers=1)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, rope_theta=1e6)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rms_norm_eps=1e-5)),
        "llama, stretched": lambda: LlamaForCausalLM(LlamaConfig(
            **SIZES, rope_theta=100.0, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                                         high_freq_factor=4.0, original_max_position_embeddings=64))),
        "llama, slower, biases": lambda: LlamaForCausalLM(LlamaConfig(
            **SIZES, attention_bias=True, rope_scaling=dict(rope_type="linear", factor=4.0))),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=7)),
        "mistral, no windows": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None, head_dim=32)),
        "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, **GEMMA, attn_logit_softcapping=1.5)),
        "gemma2, no cap": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, **GEMMA, attn_logit_softcapping=None)),
        "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(
            **SIZES, **GEMMA, layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
        "gemma3, slower": lambda: Gemma3ForCausalLM(Gemma3TextConfig(
            **SIZES, **GEMMA, sliding_window_pattern=2, rope_scaling=dict(rope_type="linear", factor=8.0))),
    }

    def check(self, name, path, model, ids, lengths, gradients=False):
        mask = mask_of(ids, lengths)
        states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        expected = torch.cat([states[1], states[-2], states[-1]], -1) * mask[..., None]
        got = atelier.probe("text_encoder", path, {"input_ids": ids, "lengths": lengths}, plugin=PLUGIN,
                            gradients=gradients, trainable="*" if gradients else None)
        compare.assert_close("parts, " + name, got["hidden"], expected, EXACT)
        if gradients:
            wanted = gradients_of(model, [expected])
            wanted = {key: value for key, value in wanted.items() if "lm_head" not in key}
            compare.assert_gradients("parts, " + name, got, wanted, bounds(wanted))

    def test_states_are_those_of_transformers(self):
        ids, lengths = random_ids([19, 6])
        for seed, (name, make) in enumerate(self.MODELS.items()):
            with self.subTest(model=name):
                torch.manual_seed(0)
                model = around_zero_(tiny_models.randomize_(make(), 90 + seed, overrides=self.LARGE_SCORES))
                folder = self.dir / name.replace(", ", "_").replace(" ", "_")
                model.save_pretrained(folder)
                self.check(name, folder, model, ids, lengths, gradients=True)
                with torch.no_grad():
                    base = {key.removeprefix("model."): value for key, value in model.state_dict().items()
                            if key.startswith("model.")}
                    save_file(tiny_models.contiguous(base), folder / "base.safetensors",
                              tiny_models.config_metadata(folder))
                    self.check(name + ", without head", folder / "base.safetensors", model, ids, lengths)


class T5Encoders(FolderTest):
    SIZES = dict(vocab_size=300, d_model=48, d_kv=16, d_ff=56, num_layers=3, num_heads=4, attn_implementation="eager")
    MODELS = {
        "t5, first": lambda sizes: T5EncoderModel(T5Config(**sizes, feed_forward_proj="relu")),
        "t5, version 1.1": lambda sizes: T5EncoderModel(T5Config(**sizes, feed_forward_proj="gated-gelu")),
        "t5, few buckets": lambda sizes: T5EncoderModel(T5Config(**sizes, feed_forward_proj="relu", layer_norm_epsilon=1e-3,
                                                                 relative_attention_num_buckets=12,
                                                                 relative_attention_max_distance=19)),
        "t5, one layer": lambda sizes: T5EncoderModel(T5Config(**sizes | {"num_layers": 1}, feed_forward_proj="relu")),
        "umt5": lambda sizes: UMT5EncoderModel(UMT5Config(**sizes)),
    }

    def check(self, name, path, model, gradients=False):
        ids, lengths = random_ids([23, 6, 140])
        mask = mask_of(ids, lengths)
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state * mask[..., None]
        got = atelier.probe("t5", path, {"input_ids": ids, "lengths": lengths}, plugin=PLUGIN, gradients=gradients,
                            trainable="*" if gradients else None)
        compare.assert_close("parts, " + name, got["hidden"], expected, EXACT)
        if gradients:
            wanted = gradients_of(model, [expected])
            compare.assert_gradients("parts, " + name, got, wanted, bounds(wanted))

    def test_hidden_states_are_those_of_transformers(self):
        for seed, (name, make) in enumerate(self.MODELS.items()):
            with self.subTest(model=name):
                # Scores are not scaled, so that queries are small; tables of distances are large, so that they show.
                model = tiny_models.randomize_(make(self.SIZES), 190 + seed, overrides=[
                    (r"\.q\.weight", 0.3), (r"relative_attention", 4.0), (r"shared|embed_tokens", 5.0)])
                folder = self.dir / str(seed)
                model.save_pretrained(folder)
                self.check(name, folder, model, gradients=True)
                with torch.no_grad():
                    state = {key: value for key, value in model.state_dict().items() if key != "shared.weight"}
                    save_file(tiny_models.contiguous(state), folder / "embed.safetensors",
                              tiny_models.config_metadata(folder))
                    self.check(name + ", its table below encoder.", folder / "embed.safetensors", model)


class ClipTexts(FolderTest):
    SIZES = dict(vocab_size=300, hidden_size=48, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4,
                 projection_dim=40, max_position_embeddings=77, bos_token_id=1, pad_token_id=0)
    END = 299

    def texts(self):
        ids, lengths = random_ids([23, 6, 77], self.END)
        for row, length in zip(ids, lengths):
            row[length - 1:] = 0
            row[length - 1] = self.END
        ids[2, 40] = self.END  # the first one counts
        return ids, lengths

    def probe(self, component, path, **options):
        ids, lengths = self.texts()
        return atelier.probe(component, path, {"input_ids": ids, "lengths": lengths}, plugin=PLUGIN, **options)

    def outputs(self, model):
        ids, lengths = self.texts()
        mask = mask_of(ids, lengths)
        return model(input_ids=ids, attention_mask=mask, output_hidden_states=True), mask[..., None]

    def check(self, name, got, expected):
        for key, value in expected.items():
            compare.assert_close(f"parts, {name}, {key}", got[key], value, EXACT)

    def test_states_and_projected_rows_are_those_of_transformers(self):
        for seed, (name, config) in enumerate({
                "clip, texts": dict(hidden_act="quick_gelu", eos_token_id=self.END),
                "clip, texts, gelu, an old config": dict(hidden_act="gelu", eos_token_id=2, layer_norm_eps=1e-3)}.items()):
            with self.subTest(model=name):
                model = CLIPTextModelWithProjection(CLIPTextConfig(**self.SIZES, **config))
                tiny_models.randomize_(model, 200 + seed)
                folder = self.dir / str(seed)
                model.save_pretrained(folder)
                output, mask = self.outputs(model)
                hidden = torch.cat([output.hidden_states[1], output.hidden_states[-2]], -1) * mask
                expected = {"hidden": hidden, "pooled": output.text_embeds}
                got = self.probe("clip_text", folder, gradients=True, trainable="*")
                self.check(name, got, expected)
                wanted = gradients_of(model, expected.values())
                compare.assert_gradients("parts, " + name, got, wanted, bounds(wanted))

    def test_normed_states_and_pooled_rows_are_those_of_transformers(self):
        model = tiny_models.randomize_(CLIPTextModel(CLIPTextConfig(**self.SIZES, eos_token_id=self.END)), 204)
        model.config.save_pretrained(self.dir)
        output, mask = self.outputs(model)
        normed = [model.final_layer_norm(output.hidden_states[state]) for state in (1, -2)]
        for component, expected in (
                ("normed_text", {"hidden": torch.cat(normed, -1) * mask}),
                ("pooled_text", {"hidden": output.last_hidden_state * mask, "pooled": output.pooler_output})):
            for stem in ("", "text_model."):
                with self.subTest(component=component, stem=stem):
                    path = self.dir / f"{component}{stem}safetensors.safetensors"
                    state = {f"{component}.{stem}{key}": value for key, value in model.state_dict().items()}
                    save_file(tiny_models.contiguous(state), path, tiny_models.config_metadata(self.dir))
                    self.check(f"clip, {component}, {stem}", self.probe(component, path), expected)


def random_image(side):
    """An image of whole levels of 255: [3, side, side] in [-1, 1]."""
    levels = torch.randint(0, 256, (3, side, side), generator=torch.Generator().manual_seed(5))
    return levels / 127.5 - 1


class ImageEncoders(FolderTest):
    SIZES = dict(hidden_size=48, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4)
    MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

    def check(self, component, name, model, image, expected):
        """In both spellings of transformers' files."""
        folder = self.dir / name.replace(", ", "_").replace(" ", "_")
        model.save_pretrained(folder)
        got = atelier.probe(component, folder, {"image": image}, plugin=PLUGIN, gradients=True, trainable="*")
        state = {"vision_model." + key: value for key, value in model.state_dict().items()}
        whole = folder / "whole.safetensors"
        save_file(tiny_models.contiguous(state), whole, tiny_models.config_metadata(folder))
        other = atelier.probe(component, whole, {"image": image}, plugin=PLUGIN)
        for key, value in expected.items():
            compare.assert_close(f"parts, {name}, {key}", got[key], value, EXACT)
            compare.assert_close(f"parts, {name}, {key}, of a whole model", other[key], value, EXACT)
        wanted = gradients_of(model, expected.values()) | {"grad.image": None}  # pixels are rounded to levels
        compare.assert_gradients("parts, " + name, got, wanted, bounds(wanted))

    def test_states_of_clip_are_those_of_transformers(self):
        for seed, activation in enumerate(("gelu", "quick_gelu")):
            with self.subTest(activation=activation):
                config = CLIPVisionConfig(**self.SIZES, image_size=28, patch_size=7, hidden_act=activation)
                model = tiny_models.randomize_(CLIPVisionModel(config), 210 + seed)
                image = random_image(28)
                pixels = ((image + 1) / 2 - torch.tensor(self.MEAN).view(3, 1, 1)) / torch.tensor(self.STD).view(3, 1, 1)
                states = model(pixel_values=pixels[None], output_hidden_states=True).hidden_states
                hidden = torch.cat([states[1], states[-2], states[-1]], -1)[0]
                self.check("clip_image", "clip, images, " + activation, model, image, {"hidden": hidden})

    def test_images_of_another_size_are_stretched_for_siglip(self):
        config = SiglipVisionConfig(**self.SIZES, image_size=32, patch_size=8)
        model = tiny_models.randomize_(SiglipVisionModel(config), 221)
        model.save_pretrained(self.dir)
        image = random_image(72)[:, :, :48]
        image = torch.nn.functional.avg_pool2d(image, 9, 1, 4)  # noise does not scale the same anywhere
        levels = ((image + 1) * 127.5).round().to(torch.uint8)
        processor = SiglipImageProcessorPil(size={"height": 32, "width": 32}, resample=3)
        pixels = processor(levels.permute(1, 2, 0).numpy(), return_tensors="pt")["pixel_values"]
        got = atelier.probe("siglip", self.dir, {"image": levels / 127.5 - 1}, plugin=PLUGIN)["hidden"]
        with torch.no_grad():
            compare.assert_close("parts, siglip, scaled", got, model(pixel_values=pixels).last_hidden_state[0], 2e-2)

    def test_rows_and_pooled_ones_of_siglip_are_those_of_transformers(self):
        config = SiglipVisionConfig(**self.SIZES, image_size=32, patch_size=8)
        model = tiny_models.randomize_(SiglipVisionModel(config), 220)
        image = random_image(32)
        output = model(pixel_values=image[None])
        self.check("siglip", "siglip", model, image,
                   {"hidden": output.last_hidden_state[0], "pooled": output.pooler_output})


class SoundEncoders(FolderTest):
    SIZES = dict(hidden_size=48, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4, conv_bias=True,
                 conv_dim=[24, 32, 32], conv_kernel=[10, 3, 2], conv_stride=[5, 2, 2], num_conv_pos_embedding_groups=4,
                 do_stable_layer_norm=True, feat_extract_norm="layer")

    @staticmethod
    def older(state):
        names = {"original0": "weight_g", "original1": "weight_v"}
        return {"wav2vec2." + key.replace("parametrizations.weight." + key[-9:], names.get(key[-9:], "")): value
                for key, value in state.items()}

    def test_states_are_those_of_transformers(self):
        sound = torch.randn(2000, generator=torch.Generator().manual_seed(9)) * 3 + 1
        for seed, places in enumerate((8, 7)):
            name = f"wav2vec2, {places} places"
            with self.subTest(name):
                config = Wav2Vec2Config(**self.SIZES, num_conv_pos_embeddings=places)
                model = tiny_models.randomize_(Wav2Vec2Model(config).eval(), 230 + seed)
                folder = self.dir / str(seed)
                model.save_pretrained(folder)
                leaf = sound.clone().requires_grad_(True)
                samples = (leaf - leaf.mean()) / (leaf.var(correction=0) + 1e-7).sqrt()
                output = model(input_values=samples[None], output_hidden_states=True)
                # The last state is the normed one, which transformers gives apart since version 5.
                states = torch.stack([*output.hidden_states[:-1], output.last_hidden_state])[:, 0]
                got = atelier.probe("sound", folder, {"samples": sound}, plugin=PLUGIN, gradients=True, trainable="*")
                compare.assert_close("parts, " + name, got["states"], states, EXACT)
                wanted = gradients_of(model, [states], samples=leaf)
                compare.assert_gradients("parts, " + name, got, wanted, bounds(wanted))
                save_file(tiny_models.contiguous(self.older(model.state_dict())), folder / "older.safetensors",
                          tiny_models.config_metadata(folder))
                got = atelier.probe("sound", folder / "older.safetensors", {"samples": sound}, plugin=PLUGIN)
                compare.assert_close(f"parts, {name}, older spelling", got["states"], states, EXACT)


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
