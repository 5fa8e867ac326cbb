"""Lumina-Image 2.0: every component, whole images and LoRA files give what diffusers and
transformers give, whichever way the files are spelled."""

import pathlib
import sys
import tempfile
import unittest
import zlib

import numpy as np
import torch
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

import atelier
import compare
import lora_readers
import lumina2_models
import references
import tiny_models
import training
from tiny_run import FolderTest

PLUGIN = "lumina2"
PROMPT = "A coffee shop entrance with a chalkboard sign, 一只可爱的猫, cinematic lighting"
NEGATIVE = "blurry, 低画质"


def noise(count, height, width, seed):
    """Noise as the program takes it, [N, 16, 1, h, w]."""
    return torch.randn((count, 16, 1, height // 8, width // 8),
                       generator=torch.Generator().manual_seed(seed))


def levels(images):
    """Images in [0, 1] as uint8, rounded the way diffusers does."""
    return list((images * 255).round().astype(np.uint8))


def probe(component, paths, inputs, **options):
    return atelier.probe(component, paths, inputs, plugin=PLUGIN, **options)


class Lumina2DitTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = lumina2_models.get()
        cls.transformer = cls.models.transformer
        cls.folder = cls.models.model / "transformer"

    @staticmethod
    def inputs(batch, height, width, length, seed=31):
        """Random inputs for a grid of height x width tokens, each 2 x 2 latents."""
        generator = torch.Generator().manual_seed(seed)
        return {
            "latents":
                torch.randn((batch, 16, 1, 2 * height, 2 * width), generator=generator),
            "sigma":
                torch.rand((batch,), generator=generator) * 0.9 + 0.05,
            "prompt_embeds":
                torch.randn((batch, length, lumina2_models.TEXT_WIDTH), generator=generator)
        }

    def batch(self):
        """Three samples with prompts of different lengths; what is behind a prompt must not
        matter."""
        inputs = self.inputs(3, 3, 5, 17)
        inputs["prompt_lengths"] = torch.tensor([17, 4, 9])
        return inputs

    def expected(self, inputs, transformer=None):
        with torch.no_grad():
            return lumina2_models.velocity(transformer or self.transformer, inputs["latents"],
                                           inputs["sigma"], inputs["prompt_embeds"],
                                           inputs.get("prompt_lengths"))

    def check(self, name, inputs, paths=None):
        got = probe("dit", paths or self.folder, inputs)["velocity"]
        compare.assert_close("lumina2, " + name, got, self.expected(inputs))
        return got

    def test_sizes_and_lengths_give_the_same_velocity(self):
        for height, width, length in ((4, 4, 13), (3, 7, 1), (1, 1, 64), (5, 2, 256)):
            with self.subTest(height=height, width=width, length=length):
                self.check("denoiser", self.inputs(1, height, width, length))

    def test_the_ends_of_the_schedule_give_the_same_velocity(self):
        for sigma in (0.0, 1.0):
            inputs = self.inputs(1, 4, 5, 13)
            inputs["sigma"] = torch.tensor([sigma])
            self.check("denoiser, ends of the schedule", inputs)

    def test_every_spelling_gives_the_same_velocity(self):
        for spelling, paths in self.models.layout_of("dit").items():
            with self.subTest(spelling=spelling):
                self.check("denoiser, " + spelling, self.inputs(1, 4, 5, 13), paths)

    def test_a_batch_of_different_prompts_gives_the_same_velocity(self):
        self.check("denoiser, batch of different prompts", self.batch())

    def test_a_batch_equals_its_samples(self):
        inputs = self.batch()
        together = probe("dit", self.folder, inputs)["velocity"]
        for row, length in enumerate(inputs["prompt_lengths"].tolist()):
            alone = self.check(
                "denoiser, each sample alone", {
                    "latents": inputs["latents"][row:row + 1],
                    "sigma": inputs["sigma"][row:row + 1],
                    "prompt_embeds": inputs["prompt_embeds"][row:row + 1, :length]
                })
            compare.assert_close("lumina2, batch against its samples", together[row:row + 1], alone)

    def test_what_configs_say_counts(self):
        for changes in (dict(axes_dim_rope=(4, 12, 8)), dict(num_refiner_layers=0),
                        dict(patch_size=1), dict(patch_size=4, in_channels=4)):
            transformer = lumina2_models.make_transformer(seed=74, **changes)
            inputs = self.inputs(1, 4, 6, 13)
            inputs["latents"] = inputs["latents"][:, :transformer.config.in_channels]
            original = lumina2_models.original_dit(transformer.state_dict())
            with self.subTest(**changes), tempfile.TemporaryDirectory() as folder:
                transformer.save_pretrained(folder)
                file = pathlib.Path(folder) / "original" / "dit.safetensors"
                transformer.save_config(file.parent)
                save_file(tiny_models.contiguous(original), file)
                for path in (folder, file):
                    compare.assert_close(f"lumina2, denoiser, {changes}",
                                         probe("dit", path, inputs)["velocity"],
                                         self.expected(inputs, transformer))

    def test_all_gradients_are_the_same(self):
        for name, inputs in (("one sample", self.inputs(1, 5, 6, 13)), ("a batch", self.batch())):
            got = probe("dit", self.folder, inputs, gradients=True, trainable="*")
            floating = {
                key: value.clone().requires_grad_(True)
                for key, value in inputs.items()
                if value.is_floating_point()
            }
            output = lumina2_models.velocity(self.transformer, floating["latents"],
                                             floating["sigma"], floating["prompt_embeds"],
                                             inputs.get("prompt_lengths"))
            expected = references.gradients(output, floating,
                                            dict(self.transformer.named_parameters()))
            compare.assert_gradients(f"lumina2, denoiser, gradients of {name}", got, expected)
            compare.assert_close("lumina2, denoiser, values with gradients", got["velocity"],
                                 output)

    def test_gradients_of_the_original_spelling_are_the_same(self):
        inputs = self.inputs(1, 3, 4, 7)
        got = probe("dit",
                    self.models.layout_of("dit")["original"],
                    inputs,
                    gradients=True,
                    trainable="*")
        output = lumina2_models.velocity(self.transformer, inputs["latents"], inputs["sigma"],
                                         inputs["prompt_embeds"])
        named = dict(self.transformer.named_parameters())
        found = references.gradients(output, {}, named)
        expected = lumina2_models.original_dit(
            {name: found["grad." + name] for name in named})
        expected.pop("norm_final.weight")
        got = {key: value for key, value in got.items() if key.removeprefix("grad.") in expected}
        compare.assert_gradients("lumina2, denoiser, gradients of the original spelling", got,
                                 {"grad." + name: value for name, value in expected.items()})

    def test_bfloat16_is_as_exact_as_diffusers(self):
        inputs = self.inputs(1, 6, 6, 20)
        exact = lumina2_models.make_transformer().double()
        with torch.no_grad():
            expected = lumina2_models.velocity(
                exact, *(inputs[name].double() for name in ("latents", "sigma", "prompt_embeds")))
            half = lumina2_models.make_transformer().bfloat16()
            theirs = lumina2_models.velocity(half, inputs["latents"].bfloat16(), inputs["sigma"],
                                             inputs["prompt_embeds"].bfloat16())
        ours = probe("dit", self.folder, inputs, dtype="bfloat16")["velocity"]
        error = [float((v.double() - expected).norm() / expected.norm()) for v in (ours, theirs)]
        compare.record("lumina2, denoiser, bfloat16 error of ours by theirs", error[0] / error[1])
        self.assertLess(error[0], 1.05 * error[1])


class Lumina2EncodersTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = lumina2_models.get()

    def test_the_tokenizer_gives_the_same_ids(self):
        texts = [
            "", " ", "a", PROMPT, "  two  spaces\n\nand lines\t", "🐱 1234", *tiny_models.CORPUS
        ]
        expected = [
            self.models.tokenizer(text, add_special_tokens=False).input_ids for text in texts
        ]
        for file in ("tokenizer.json", "tokenizer.model"):
            with self.subTest(file=file):
                got = atelier.tokenize(self.models.model / "tokenizer" / file, texts, plugin=PLUGIN)
                self.assertEqual(got, expected)

    def test_captions_of_too_many_tokens_are_cut_where_the_pipeline_cuts_them(self):
        """The system prompt and <bos> are among the 256 tokens that stay."""
        captions = [PROMPT, PROMPT * 40, "x " * 500, "y" * 3000]
        got = atelier.encode_captions(self.models.model, captions, "--truncate_captions",
                                      plugin=PLUGIN)
        for caption, ours in zip(captions, got):
            with torch.no_grad():
                expected, mask, _, _ = self.models.pipeline.encode_prompt(
                    caption, do_classifier_free_guidance=False, max_sequence_length=256)
            expected = expected[0][mask[0].bool()]
            self.assertEqual(ours.shape, expected.shape)
            compare.assert_close(f"lumina2, cut caption of {len(caption)} letters", ours, expected)
        self.assertEqual([len(ours) for ours in got[1:]], [256, 256, 256])

    def test_every_spelling_of_the_text_encoder_gives_the_same_states(self):
        generator = torch.Generator().manual_seed(5)
        inputs = {
            "input_ids": torch.randint(0, 700, (2, 19), generator=generator),
            "lengths": torch.tensor([19, 6])
        }
        with torch.no_grad():
            expected = lumina2_models.hidden(self.models.text_encoder, **inputs)
        for spelling, paths in self.models.layout_of("text_encoder").items():
            with self.subTest(spelling=spelling):
                compare.assert_close("lumina2, text encoder, " + spelling,
                                     probe("text_encoder", paths, inputs)["hidden"], expected)

    def test_every_spelling_of_the_vae_gives_the_same_pictures(self):
        generator = torch.Generator().manual_seed(6)
        image = torch.rand((1, 3, 48, 64), generator=generator) * 2 - 1
        latents = torch.randn((1, 16, 1, 5, 7), generator=generator)
        with torch.no_grad():
            encoded = lumina2_models.encode(self.models.vae, image)
            decoded = lumina2_models.decode(self.models.vae, latents)
        for spelling, paths in self.models.layout_of("vae").items():
            with self.subTest(spelling=spelling):
                compare.assert_close("lumina2, VAE, encode, " + spelling,
                                     probe("vae", paths, {"image": image})["latents"], encoded)
                compare.assert_close("lumina2, VAE, decode, " + spelling,
                                     probe("vae", paths, {"latents": latents})["image"],
                                     decoded.clamp(-1, 1))


class Lumina2PipelineTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = lumina2_models.get()

    def reference(self, latents, height, width, steps, **options):
        options.setdefault("guidance_scale", 4.0)
        return levels(
            self.models.pipeline(options.pop("prompt", PROMPT),
                                 height=height,
                                 width=width,
                                 num_inference_steps=steps,
                                 num_images_per_prompt=latents.shape[0],
                                 latents=latents[:, :, 0],
                                 output_type="np",
                                 **options).images)

    def ours(self, latents, height, width, steps, paths=None, **flags):
        flags = dict(prompt=PROMPT,
                     height=height,
                     width=width,
                     num_inference_steps=steps,
                     seed=0,
                     num_images=latents.shape[0],
                     dtype="float32") | flags
        return atelier.generate(paths or self.models.model, latents, plugin=PLUGIN, **flags)

    def test_guided_pictures_are_those_of_diffusers_in_every_spelling(self):
        latents = noise(2, 64, 96, seed=41)
        expected = self.reference(latents, 64, 96, 4, negative_prompt=NEGATIVE)
        other = self.reference(latents, 64, 96, 4, negative_prompt=NEGATIVE, prompt="red")
        effect = np.abs(np.asarray(expected, np.float64) - np.asarray(other, np.float64)).mean()
        self.assertGreater(effect, 5, "the prompt changes too little to prove anything")
        for layout, paths in self.models.layouts().items():
            with self.subTest(layout=layout):
                got = self.ours(latents, 64, 96, 4, paths, negative_prompt=NEGATIVE, schedule="row")
                compare.assert_images("lumina2, images, " + layout, got, expected)

    def test_an_empty_negative_prompt_has_no_system_prompt(self):
        latents = noise(1, 48, 64, seed=42)
        compare.assert_images("lumina2, images, empty negative prompt",
                                self.ours(latents, 48, 64, 3, schedule="row"),
                                self.reference(latents, 48, 64, 3))

    def test_a_system_prompt_takes_the_place_of_the_published_one(self):
        latents = noise(1, 48, 64, seed=43)
        system = "You paint in oil."
        compare.assert_images(
            "lumina2, images, another system prompt",
            self.ours(latents, 48, 64, 3, schedule="row", system_prompt=system),
            self.reference(latents, 48, 64, 3, system_prompt=system))

    def test_guidance_without_renormalisation_is_that_of_diffusers(self):
        latents = noise(1, 48, 64, seed=44)
        compare.assert_images(
            "lumina2, images, no renormalisation",
            self.ours(latents, 48, 64, 3, cfg_renorm="none", cfg_scale=2.5),
            self.reference(latents, 48, 64, 3, cfg_normalization=False, guidance_scale=2.5))

    def test_without_guidance_the_pictures_are_those_of_diffusers(self):
        latents = noise(1, 64, 64, seed=45)
        compare.assert_images("lumina2, images, unguided",
                                self.ours(latents, 64, 64, 4, cfg_scale=1),
                                self.reference(latents, 64, 64, 4, guidance_scale=1.0))

    def test_by_default_guided_lengths_are_clamped_over_the_picture(self):
        """The published sampler, written again: diffusers has only the other form."""
        height, width, steps, trunc, scale = 64, 48, 5, 0.3, 6.0
        latents = noise(1, height, width, seed=46)
        pipeline = self.models.pipeline
        with torch.no_grad():
            positive, mask, negative, negative_mask = pipeline.encode_prompt(PROMPT)
            lengths, negative_lengths = mask.sum(1), negative_mask.sum(1)
            u = 1 - np.arange(steps + 1) / steps
            sigmas = torch.tensor(6 * u / (1 + 5 * u), dtype=torch.float32)
            x, clamped, guided = latents.clone(), 0, 0
            for now, then in zip(sigmas, sigmas[1:]):
                v = lumina2_models.velocity(self.models.transformer, x, now[None], positive,
                                            lengths)
                if 1 - now < trunc:
                    guided += 1
                    without = lumina2_models.velocity(self.models.transformer, x, now[None],
                                                      negative, negative_lengths)
                    combined = without + scale * (v - without)
                    if combined.norm() >= v.norm():
                        combined *= v.norm() / combined.norm()
                        clamped += 1
                    v = combined
                x = x + (then - now) * v
            image = lumina2_models.decode(self.models.vae, x)
        self.assertTrue(0 < guided < steps and clamped > 0)
        expected = levels((image / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).numpy())
        got = self.ours(latents, height, width, steps, cfg_scale=scale, cfg_trunc=trunc)
        compare.assert_images("lumina2, images, clamped and truncated guidance", got, expected)


HEIGHT, WIDTH, STEPS = 64, 48, 3
PEFT_LAYERS = [
    "to_q", "to_k", "to_v", "to_out.0", "linear_1", "linear_2", "linear_3", "norm1.linear"
]


def draw_adapters_(module, seed, std):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_" not in name:
                continue
            generator = torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))
            drawn = torch.randn(parameter.shape, generator=generator)
            if "magnitude" in name:
                parameter.mul_(1 + 0.3 * drawn)
            else:
                parameter.copy_(drawn * std)


class Lumina2LoraTest(FolderTest):
    """A LoRA of diffusers, one of sd-scripts, and what `lora convert` makes of them."""

    @classmethod
    def setUpClass(cls):
        cls.models = lumina2_models.get()
        cls.pipeline = cls.models.pipeline
        super().setUpClass()
        cls.latents = noise(1, HEIGHT, WIDTH, seed=51)
        cls.write_with_diffusers("style")
        cls.write_with_diffusers("dora", use_dora=True)
        cls.write_with_sd_scripts("fused")
        cls.plain = cls.reference()

    def tearDown(self):
        self.pipeline.unload_lora_weights()

    @classmethod
    def write_with_diffusers(cls, name, **options):
        transformer = lumina2_models.make_transformer()
        transformer.add_adapter(
            LoraConfig(r=4, lora_alpha=8, target_modules=PEFT_LAYERS, **options))
        draw_adapters_(transformer, 1, 0.15)
        metadata = {
            key: list(value) if isinstance(value, set) else value
            for key, value in transformer.peft_config["default"].to_dict().items()
        }
        cls.pipeline.save_lora_weights(
            cls.root,
            transformer_lora_layers=get_peft_model_state_dict(transformer),
            weight_name=name + ".safetensors",
            transformer_lora_adapter_metadata=metadata)

    @classmethod
    def write_with_sd_scripts(cls, name):
        """Every layer that its Lumina script trains, with one LoRA for q, k and v together."""
        state = lumina2_models.original_dit(cls.models.transformer.state_dict())
        tensors = {}
        for number, (key, value) in enumerate(sorted(state.items())):
            if value.dim() != 2 or not key.startswith(("layers", "noise_", "context_", "final_")):
                continue
            layer = "lora_unet_" + key.removesuffix(".weight").replace(".", "_")
            generator = torch.Generator().manual_seed(number)
            tensors[layer + ".lora_down.weight"] = 0.1 * torch.randn(
                (4, value.shape[1]), generator=generator)
            tensors[layer + ".lora_up.weight"] = 0.1 * torch.randn(
                (value.shape[0], 4), generator=generator)
            tensors[layer + ".alpha"] = torch.tensor(2.0)
        save_file(tensors, cls.root / f"{name}.safetensors")

    @classmethod
    def reference(cls):
        images = cls.pipeline(PROMPT,
                              guidance_scale=1.0,
                              height=HEIGHT,
                              width=WIDTH,
                              num_inference_steps=STEPS,
                              latents=cls.latents[:, :, 0],
                              output_type="np").images
        return levels(images)

    def with_adapter(self, name):
        self.pipeline.load_lora_weights(self.root / f"{name}.safetensors", adapter_name="one")
        expected = self.reference()
        self.pipeline.unload_lora_weights()
        effect = np.abs(
            np.asarray(expected, np.float64) - np.asarray(self.plain, np.float64)).mean()
        self.assertGreater(effect, 5, "the LoRA changes too little to prove anything")
        return expected

    def ours(self, name, paths=None):
        return atelier.generate(paths or self.models.model,
                                self.latents,
                                plugin=PLUGIN,
                                prompt=PROMPT,
                                height=HEIGHT,
                                width=WIDTH,
                                num_inference_steps=STEPS,
                                cfg_scale=1,
                                seed=0,
                                dtype="float32",
                                lora=self.root / f"{name}.safetensors")

    def convert(self, name, to, spelling, layout="diffusers"):
        (self.root / f"{to}.safetensors").unlink(missing_ok=True)  # of a conversion before
        with atelier.call_folder("lora_convert") as folder:
            atelier.run([
                "lora", "convert", self.root / f"{name}.safetensors", self.root / f"{to}.safetensors",
                "--lora_format", spelling, "--plugin", PLUGIN, "--model_paths",
                atelier.paths_argument(self.models.layout_of("dit")[layout])
            ], folder)
        return load_file(self.root / f"{to}.safetensors")

    def test_a_lora_of_diffusers_gives_its_picture_on_every_spelling_of_the_model(self):
        expected = self.with_adapter("style")
        for layout, paths in self.models.layouts().items():
            with self.subTest(layout=layout):
                compare.assert_images("lumina2, LoRA of diffusers, " + layout,
                                        self.ours("style", paths), expected)

    def test_a_lora_of_diffusers_goes_through_fused_spellings_and_comes_back(self):
        expected = self.with_adapter("style")
        original = load_file(self.root / "style.safetensors")
        for spelling, layer in (("kohya", "lora_unet_layers_0_attention_qkv.lora_down.weight"),
                                ("comfy", "diffusion_model.layers.0.attention.qkv.lora_A.weight")):
            for layout in ("diffusers", "original"):
                with self.subTest(spelling=spelling, layout=layout):
                    fused = self.convert("style", "there", spelling, layout)
                    self.assertEqual(fused[layer].shape, (12, 96))
                    self.assertFalse([name for name in fused if "to_q" in name])
                    compare.assert_images("lumina2, LoRA as " + spelling, self.ours("there"),
                                            expected)
                    back = self.convert("there", "back", "diffusers", layout)
                    self.assertEqual(set(back), set(original))
                    for name, value in original.items():
                        self.assertTrue(torch.equal(back[name], value), name)
        compare.assert_images("lumina2, LoRA that came back, in diffusers",
                                self.with_adapter("back"), expected)

    def picture_in_comfyui(self, name):
        """The image of a file that its published rules add to the original weights."""
        transformer = lumina2_models.make_transformer()
        state = transformer.state_dict()
        keys = list(state)
        marks = {k: torch.full_like(v, number) for number, (k, v) in enumerate(state.items())}
        marks = lumina2_models.original_dit(marks)
        changed = lora_readers.comfyui(self.root / f"{name}.safetensors",
                                       lumina2_models.original_dit(state))
        for original, value in changed.items():
            numbers = torch.unique_consecutive(marks[original].flatten()).int().tolist()
            parts = [keys[number] for number in numbers]
            state.update(zip(parts, value.split([state[part].shape[0] for part in parts])))
        transformer.load_state_dict(state)
        plain, self.pipeline.transformer = self.pipeline.transformer, transformer
        try:
            return self.reference()
        finally:
            self.pipeline.transformer = plain

    def test_every_spelling_gives_the_same_picture_in_its_own_program(self):
        for name in ("style", "dora"):
            expected = self.with_adapter(name)
            for spelling, read in (("diffusers", self.with_adapter),
                                   ("comfy", self.picture_in_comfyui),
                                   ("kohya", self.picture_in_comfyui)):
                with self.subTest(name=name, spelling=spelling):
                    self.convert(name, f"{name}_{spelling}", spelling)
                    compare.assert_images(f"lumina2, {name} as {spelling}, in its program",
                                            read(f"{name}_{spelling}"), expected)
                    compare.assert_images(f"lumina2, {name} as {spelling}, here",
                                            self.ours(f"{name}_{spelling}"), expected)

    def test_diffusers_reads_its_own_spelling_alone(self):
        """As docs/lora.md says; where this changes, the page has to."""
        for spelling in ("kohya", "diffsynth"):
            self.convert("style", "foreign", spelling)
            self.pipeline.load_lora_weights(self.root / "foreign.safetensors", adapter_name="one")
            self.assertTrue(np.array_equal(self.reference(), self.plain), spelling)
            self.pipeline.unload_lora_weights()
        compare.assert_images("lumina2, style as diffsynth, here", self.ours("foreign"),
                                self.with_adapter("style"))
        self.convert("style", "foreign", "comfy")
        with self.assertRaises(Exception):
            self.pipeline.load_lora_weights(self.root / "foreign.safetensors", adapter_name="one")

    def test_a_fused_lora_of_sd_scripts_is_cut_for_diffusers(self):
        for layout in ("diffusers", "original", "bundle"):
            cut = self.convert("fused", "cut_" + layout, "diffusers", layout)
            down = [
                cut[f"transformer.layers.1.attn.to_{part}.lora_A.weight"] for part in "qkv"
            ]
            self.assertTrue(torch.equal(down[0], down[1]) and torch.equal(down[0], down[2]))
            up = torch.cat(
                [cut[f"transformer.layers.1.attn.to_{part}.lora_B.weight"] for part in "qkv"])
            fused = load_file(self.root / "fused.safetensors")
            self.assertTrue(
                torch.equal(up, fused["lora_unet_layers_1_attention_qkv.lora_up.weight"]))
            expected = self.with_adapter("cut_" + layout)
            compare.assert_images("lumina2, LoRA of sd-scripts", self.ours("fused"), expected)
            again = self.convert("cut_" + layout, "again", "kohya", layout)
            self.assertEqual(set(again), set(fused))
            for name, value in fused.items():
                self.assertTrue(torch.equal(again[name], value), name)


class Lumina2InspectTest(unittest.TestCase):

    def test_files_are_recognised_in_every_spelling(self):
        models = lumina2_models.get()
        with atelier.call_folder("inspect") as folder:
            said = atelier.run(
                ["inspect", models.root / "blank", models.root / "bundle.safetensors"], folder)
            said = said[said.index("bundle.safetensors"):]
            for component in ("dit", "text_encoder", "vae"):
                self.assertIn(f"family lumina2, component {component}, ", said)
            for name, layer in (("diffusers", "transformer.layers.0.attn.to_q.lora_A.weight"),
                                ("comfy", "diffusion_model.layers.0.attention.qkv.lora_A.weight"),
                                ("sd_scripts",
                                 "lora_unet_layers_0_attention_qkv.lora_down.weight")):
                save_file({layer: torch.zeros(4, 96)}, folder / f"{name}.safetensors")
                said = atelier.run(["inspect", folder / f"{name}.safetensors"], folder)
                self.assertIn("1 layers, rank [4], for lumina2 dit (1 layers known there)", said)


class Lumina2TrainTest(unittest.TestCase):
    """Steps of training beside the same steps with diffusers, peft and torch.optim."""

    SEED, RATE, RANK, ALPHA = 11, 5e-3, 4, 8
    SHIFT = 3.158192909689767
    PROMPTS = ["A coffee shop entrance", "red"]

    @classmethod
    def setUpClass(cls):
        cls.models = lumina2_models.get()

    def rows(self):
        result = []
        for number, prompt in enumerate(self.PROMPTS):
            generator = torch.Generator().manual_seed(61 + number)
            coarse = torch.rand((1, 3, 5, 4), generator=generator)
            fine = torch.nn.functional.interpolate(coarse, size=(48, 64), mode="bilinear")
            picture = (fine[0].permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
            result.append((picture, prompt))
        return result

    def sigmas(self):
        u = 1 - np.arange(training.LEVELS) / training.LEVELS
        return self.SHIFT * u / (1 + (self.SHIFT - 1) * u)

    def draw(self, slot, step):
        """A sigma of the table, and its weight."""
        sigmas = self.sigmas()
        bell = np.exp(-2 * ((1000 * sigmas - 500) / 1000)**2)
        bell -= bell.min()
        bell *= training.LEVELS / bell.sum()
        level = training.draw_level(self.SEED, slot, step)
        return sigmas[level], bell[level]

    def draw_dynamic(self, slot, step):
        """A sigma that follows the size of the rows, as the published scheduler's settings say."""
        scheduler = self.models.pipeline.scheduler.config
        return training.draw_shifted(self.SEED, slot, step, 48 * 64 // 256, scheduler), 1.0

    def loss(self, transformer, samples, step, draw):
        """All rows are one batch; the order of an epoch says which noise each gets."""
        order = training.permutation(self.SEED, step, len(samples))
        total = 0
        for slot, row in enumerate(order):
            clean, embeds = samples[row]
            level, weight = draw(slot, step)
            sigma = torch.tensor([level], dtype=torch.float32)
            drawn = training.normal_noise(training.stream_seed(self.SEED, training.NOISE), slot,
                                          step, tuple(clean.shape[1:]))[None]
            at = sigma.view(-1, 1, 1, 1, 1)
            v = lumina2_models.velocity(transformer, (1 - at) * clean + at * drawn, sigma, embeds)
            total = total + weight * (v - (drawn - clean)).square().mean()
        return total / len(samples)

    def samples(self):
        result = []
        with torch.no_grad():
            for picture, prompt in self.rows():
                pixels = torch.from_numpy(picture).permute(2, 0, 1)[None] / 255 * 2 - 1
                embeds, mask, _, _ = self.models.pipeline.encode_prompt(prompt)
                result.append((lumina2_models.encode(self.models.vae, pixels),
                               embeds[:, :int(mask.sum())]))
        return result

    def check(self, name, transformer, named, flags, steps=2, draw=None):
        """`named`: the program's name of a trained tensor -> the parameters that are its parts."""
        parameters = {id(p): p for parts in named.values() for p in parts}.values()
        optimizer = torch.optim.AdamW(parameters, lr=self.RATE, betas=(0.9, 0.999), eps=1e-3,
                                      weight_decay=0.01)
        samples, losses, first = self.samples(), [], {}
        for step in range(steps):
            optimizer.zero_grad()
            loss = self.loss(transformer, samples, step, draw or self.draw)
            loss.backward()
            losses.append(loss.item())
            if step == 0:
                first = {key: torch.cat([p.grad for p in parts]) for key, parts in named.items()}
            optimizer.step()
        flags = dict(plugin=PLUGIN,
                     seed=self.SEED,
                     batch_size=len(samples),
                     num_epochs=steps,
                     max_train_steps=steps,
                     learning_rate=self.RATE) | flags
        with atelier.train(self.models.model, self.rows(), **flags) as run:
            compare.assert_close(f"lumina2, training, {name}, losses", torch.tensor(run.losses()),
                                 torch.tensor(losses), 1e-5)
            got = {
                key.removesuffix(".exp_avg"): value / 0.1
                for key, value in run.state(1, "optimizer").items()
                if key.endswith(".exp_avg")
            }
            compare.assert_all_close(f"lumina2, training, {name}, gradients", got, first, 1e-5,
                                     1e-3)
            expected = {key: torch.cat([p.detach() for p in parts]) for key, parts in named.items()}
            compare.assert_all_close(f"lumina2, training, {name}, parameters",
                                     run.state(steps, "trained"), expected, 1e-5)
            return load_file(run.weights(steps))

    def test_steps_of_full_training_are_those_of_diffusers(self):
        transformer = lumina2_models.make_transformer()
        named, state = self.named(transformer)
        saved = self.check("full", transformer, named, dict(trainable_models="dit"))
        # In the spelling that it was read in.
        compare.assert_all_close("lumina2, training, full, saved file", saved, state, 1e-5)

    def test_dynamic_shifts_are_those_of_the_published_scheduler(self):
        transformer = lumina2_models.make_transformer()
        self.check(
            "dynamic shift", transformer, self.named(transformer)[0],
            dict(trainable_models="dit",
                 timestep_sampling="uniform_dynamic_shift",
                 weighting_scheme="none"), 1, self.draw_dynamic)

    def named(self, transformer):
        """The parameters that are the parts of each trained tensor, and all of diffusers'."""
        state = dict(transformer.named_parameters())
        named = {}
        # The parts of each tensor of the original spelling, by putting one mark in each parameter.
        marks = {k: torch.full_like(v, number) for number, (k, v) in enumerate(state.items())}
        keys = list(state)
        for name, value in lumina2_models.original_dit(marks).items():
            if name != "norm_final.weight":
                numbers = torch.unique_consecutive(value.flatten()).int().tolist()
                named["dit." + name] = [state[keys[number]] for number in numbers]
        return named, state

    def test_steps_of_a_lora_are_those_of_peft(self):
        """Every product of every block, as by default; q, k and v share lora_A, as the fused
        layer's LoRA does."""
        transformer = lumina2_models.make_transformer().requires_grad_(False)
        transformer.add_adapter(
            LoraConfig(r=self.RANK,
                       lora_alpha=self.ALPHA,
                       target_modules=r"(layers|\w+_refiner)\.\d\.(attn\.to_(q|k|v|out\.0)|"
                       r"feed_forward\.linear_[123]|norm1\.linear)"))
        draw_adapters_(transformer, 3, 0.08)
        for block in (*transformer.context_refiner, *transformer.noise_refiner,
                      *transformer.layers):
            for layer in (block.attn.to_k, block.attn.to_v):
                layer.lora_A["default"].weight = block.attn.to_q.lora_A["default"].weight
        named, tensors = {}, {}
        renames = (("attn.to_out.0", "attention.out"), ("feed_forward.linear_", "feed_forward.w"),
                   ("norm1.linear", "adaLN_modulation.1"))
        for name, parameter in transformer.named_parameters(remove_duplicate=False):
            if ".lora_" not in name or ".to_k." in name or ".to_v." in name:
                continue
            parts = [parameter]
            if ".to_q.lora_B" in name:
                parts = [
                    transformer.get_parameter(name.replace("to_q", "to_" + part)) for part in "qkv"
                ]
            name = name.replace(".default.weight", "").replace("attn.to_q", "attention.qkv")
            for here, there in renames:
                name = name.replace(here, there)
            named["dit." + name] = parts
            layer, factor = name.rsplit(".", 1)
            tensors[f"diffusion_model.{layer}.{factor}.weight"] = torch.cat(
                [part.detach() for part in parts])
            tensors[f"diffusion_model.{layer}.alpha"] = torch.tensor(float(self.ALPHA))
        with tempfile.TemporaryDirectory() as folder:
            start = pathlib.Path(folder) / "start.safetensors"
            save_file(tensors, start)
            saved = self.check(
                "LoRA", transformer, named,
                dict(lora_base_model="dit",
                     lora_rank=self.RANK,
                     lora_alpha=self.ALPHA,
                     lora_checkpoint=start))
        # In diffusers' spelling, cut for it.
        expected = {
            "transformer." + name.replace(".default", ""): parameter
            for name, parameter in transformer.named_parameters(remove_duplicate=False)
            if ".lora_" in name
        }
        compare.assert_all_close("lumina2, training, LoRA, saved file", saved, expected, 1e-5)


if __name__ == "__main__":
    sys.exit(unittest.main())
