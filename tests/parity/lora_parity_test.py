"""LoRA files that peft and diffusers write give here the images that they give there."""

import sys
import unittest
import zlib

import numpy as np
import torch
from diffusers import QwenImagePipeline, QwenImageTransformer2DModel
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

import atelier
import compare
import references
import tiny_models
from tiny_run import FolderTest

PROMPT = "A coffee shop entrance with a chalkboard sign, 一只可爱的猫"
HEIGHT, WIDTH, STEPS = 64, 48, 3
ALL_LINEARS = [
    "to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out",
    "net.0.proj", "net.2", "img_mod.1", "txt_mod.1", "img_in", "proj_out"
]


def randomize_adapters_(module, seed, std):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not any(mark in name for mark in ("lora_", "hada_", "lokr_")):
                continue
            generator = torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))
            noise = torch.randn(parameter.shape, generator=generator)
            if "magnitude" in name:
                parameter.mul_(1 + 0.3 * noise)
            else:
                parameter.copy_(noise * std)


def layers_of(path):
    """Layer -> (down, up) of a file in diffusers' spelling."""
    tensors = load_file(path)
    names = sorted(n.removesuffix(".lora_A.weight") for n in tensors if n.endswith(".lora_A.weight"))
    return {
        name.removeprefix("transformer."):
            (tensors[name + ".lora_A.weight"], tensors[name + ".lora_B.weight"]) for name in names
    }


def spell(layers, prefix, down, up, alpha=None, is_flat=False):
    tensors = {}
    for layer, (a, b) in layers.items():
        name = prefix + (layer.replace(".", "_") if is_flat else layer)
        tensors[name + down] = a.contiguous()
        tensors[name + up] = b.contiguous()
        if alpha is not None:
            tensors[name + ".alpha"] = torch.tensor(float(alpha))
    return tensors


class LoraParityTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        cls.models = tiny_models.get()
        super().setUpClass()
        cls.pipeline = QwenImagePipeline.from_pretrained(cls.models.model)
        cls.pipeline.set_progress_bar_config(disable=True)
        cls.latents = torch.randn((1, 16, 1, HEIGHT // 8, WIDTH // 8),
                                  generator=torch.Generator().manual_seed(51))
        cls.write_with_diffusers("style", 1, r=4, lora_alpha=8, target_modules=ALL_LINEARS)
        cls.write_with_diffusers("light",
                                 2,
                                 std=0.2,
                                 r=6,
                                 lora_alpha=3,
                                 use_rslora=True,
                                 target_modules=["to_q", "to_v", "net.2"],
                                 rank_pattern={"transformer_blocks.1.attn.to_v": 2},
                                 alpha_pattern={"transformer_blocks.1.attn.to_v": 5})
        cls.plain = cls.reference()

    def tearDown(self):
        self.pipeline.unload_lora_weights()

    @classmethod
    def write_with_diffusers(cls, name, seed, std=0.08, **config):
        """NAME.safetensors as the training scripts of diffusers write it."""
        transformer = QwenImageTransformer2DModel.from_pretrained(cls.models.model / "transformer")
        transformer.add_adapter(LoraConfig(**config))
        randomize_adapters_(transformer, seed, std)
        metadata = transformer.peft_config["default"].to_dict()
        QwenImagePipeline.save_lora_weights(
            cls.root,
            transformer_lora_layers=get_peft_model_state_dict(transformer),
            weight_name=name + ".safetensors",
            transformer_lora_adapter_metadata={
                key: list(value) if isinstance(value, set) else value
                for key, value in metadata.items()
            })

    @classmethod
    def reference(cls):
        """diffusers' image with the adapters that its pipeline has now."""
        images = cls.pipeline(PROMPT,
                              true_cfg_scale=1.0,
                              height=HEIGHT,
                              width=WIDTH,
                              num_inference_steps=STEPS,
                              latents=references.pack(cls.latents),
                              output_type="np").images
        return list((images * 255).round().astype(np.uint8))

    def with_adapters(self, **strengths):
        """The reference with NAME.safetensors of each name at its strength."""
        for name in strengths:
            self.pipeline.load_lora_weights(self.root / (name + ".safetensors"), adapter_name=name)
        self.pipeline.set_adapters(list(strengths), adapter_weights=list(strengths.values()))
        expected = self.reference()
        self.assertGreater(
            np.abs(np.asarray(expected, np.float64) - np.asarray(self.plain, np.float64)).mean(), 5,
            "the LoRA changes too little for the test to prove anything")
        return expected

    def ours(self, *lists, **flags):
        """One image for each list of LoRAs, in one process."""
        job = dict(prompt=PROMPT,
                   height=HEIGHT,
                   width=WIDTH,
                   num_inference_steps=STEPS,
                   cfg_scale=1.0,
                   seed=0,
                   latents=self.latents)
        jobs = [{**job, "loras": loras} for loras in lists]
        return atelier.generate_jobs(self.models.model,
                                     jobs,
                                     dtype="float32",
                                     lora_dir=self.root,
                                     **flags)

    def test_a_lora_of_diffusers_gives_the_same_picture_at_any_strength(self):
        sets = (["style"], [{"name": "style", "strength": -0.6}], [], ["light"])
        for mode in ("hot", "merge"):
            with self.subTest(mode=mode):
                self.check_strengths(self.ours(*sets, lora_mode=mode))
                self.pipeline.unload_lora_weights()

    def check_strengths(self, got):
        compare.assert_images("LoRA of diffusers", got[0], self.with_adapters(style=1.0))
        self.pipeline.set_adapters(["style"], adapter_weights=[-0.6])
        compare.assert_images("LoRA of diffusers, strength -0.6", got[1], self.reference())
        compare.assert_images("LoRA taken away", got[2], self.plain)
        self.pipeline.unload_lora_weights()
        compare.assert_images("LoRA of diffusers, rsLoRA and patterns", got[3],
                                self.with_adapters(light=1.0))

    def test_a_dora_of_diffusers_gives_the_same_picture(self):
        self.write_with_diffusers("dora",
                                  5,
                                  r=4,
                                  lora_alpha=8,
                                  use_dora=True,
                                  target_modules=ALL_LINEARS)
        expected = self.with_adapters(dora=1.0)
        for mode in ("hot", "merge"):
            with self.subTest(mode=mode):
                compare.assert_images("DoRA of diffusers, " + mode,
                                        self.ours(["dora"], lora_mode=mode)[0], expected)

    def test_whole_differences_of_every_layer_are_added(self):
        """To weights, also of norms, and to biases: what diffusers makes of changed weights."""
        transformer = QwenImageTransformer2DModel.from_pretrained(self.models.model / "transformer")
        tensors = {}
        with torch.no_grad():
            for name, parameter in transformer.named_parameters():
                generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                diff = torch.randn(parameter.shape, generator=generator) * 0.3 * parameter.std()
                parameter += diff
                ending = ".diff" if name.endswith(".weight") else ".diff_b"
                tensors["diffusion_model." + name.rsplit(".", 1)[0] + ending] = diff
        save_file(tensors, self.root / "whole.safetensors")
        self.assertTrue(any("norm_q.diff" in name for name in tensors))
        expected = self.image_of(transformer)
        compare.assert_images("whole differences", self.ours(["whole"])[0], expected)

    def test_two_adapters_with_strengths_give_the_same_picture(self):
        expected = self.with_adapters(style=0.7, light=-1.5)
        got = self.ours([{"name": "style", "strength": 0.7}, {"name": "light", "strength": -1.5}])
        compare.assert_images("two LoRAs", got[0], expected)

    def test_the_command_line_names_files(self):
        flags = dict(prompt=PROMPT,
                     height=HEIGHT,
                     width=WIDTH,
                     num_inference_steps=STEPS,
                     cfg_scale=1.0,
                     seed=0,
                     dtype="float32")
        got = atelier.generate(self.models.model,
                               self.latents,
                               lora=str(self.root / "style.safetensors") + ":0.7",
                               **flags)
        listed = self.ours([{"name": "style", "strength": 0.7}])
        self.assertTrue(np.array_equal(got[0], listed[0][0]))

    def test_folders_of_peft_give_the_same_pictures(self):
        some = dict(target_modules=ALL_LINEARS)
        for name, std, config in (
            ("LoRA", 0.08, LoraConfig(r=3, lora_alpha=9, **some)),
            ("LoRA with biases", 0.08, LoraConfig(r=3, lora_alpha=6, lora_bias=True, **some)),
            ("DoRA", 0.08, LoraConfig(r=3, lora_alpha=9, use_dora=True, **some)),
            ("LoHa", 0.4, LoHaConfig(r=2, alpha=3, **some)),
            ("LoKr", 0.2, LoKrConfig(r=2, alpha=3, decompose_both=True, decompose_factor=4, **some)),
            ("LoKr of whole matrices", 0.2, LoKrConfig(r=64, alpha=32, **some)),
        ):
            with self.subTest(name=name):
                self.check_folder(name, std, config)

    def check_folder(self, name, std, config):
        transformer = QwenImageTransformer2DModel.from_pretrained(self.models.model / "transformer")
        wrapped = get_peft_model(transformer, config)
        randomize_adapters_(wrapped, 3, std)
        wrapped.save_pretrained(self.root / "peft" / name)
        wrapped.eval()
        expected = self.image_of(transformer)
        got = atelier.generate(self.models.model,
                               self.latents,
                               prompt=PROMPT,
                               height=HEIGHT,
                               width=WIDTH,
                               num_inference_steps=STEPS,
                               cfg_scale=1.0,
                               seed=0,
                               dtype="float32",
                               lora=self.root / "peft" / name)
        compare.assert_images(name + " folder of peft", got, expected)

    def image_of(self, transformer):
        """diffusers' image with another transformer."""
        pipeline = QwenImagePipeline(**{**self.pipeline.components, "transformer": transformer})
        pipeline.set_progress_bar_config(disable=True)
        images = pipeline(PROMPT,
                          true_cfg_scale=1.0,
                          height=HEIGHT,
                          width=WIDTH,
                          num_inference_steps=STEPS,
                          latents=references.pack(self.latents),
                          output_type="np").images
        expected = list((images * 255).round().astype(np.uint8))
        effect = np.abs(np.asarray(expected, np.float64) - np.asarray(self.plain, np.float64))
        self.assertGreater(effect.mean(), 5)
        return expected

    def test_every_spelling_of_one_lora_gives_the_same_bits(self):
        layers = layers_of(self.root / "style.safetensors")
        self.assertGreater(len(layers), 20)
        rank = next(iter(layers.values()))[0].shape[0]
        spellings = {
            "comfy": spell(layers, "diffusion_model.", ".lora_A.weight", ".lora_B.weight"),
            "comfy_down": spell(layers, "diffusion_model.", ".lora_down.weight", ".lora_up.weight",
                                rank),
            "peft": spell(layers, "", ".lora_A.weight", ".lora_B.weight"),
            "diffsynth": spell(layers, "", ".lora_A.default.weight", ".lora_B.default.weight"),
            "base_model": spell(layers, "base_model.model.", ".lora_A.weight", ".lora_B.weight"),
            "lightning": spell(layers, "", ".lora_down.weight", ".lora_up.weight", rank),
            "kohya": spell(layers, "lora_unet_", ".lora_down.weight", ".lora_up.weight", rank, True),
            "lycoris": spell(layers, "lycoris_", ".lora_down.weight", ".lora_up.weight", rank, True),
            "old": spell(layers, "transformer.", ".lora.down.weight", ".lora.up.weight"),
        }
        save_file(spell(layers, "transformer.", ".lora_A.weight", ".lora_B.weight"),
                  self.root / "spelled_diffusers.safetensors")
        for name, tensors in spellings.items():
            save_file(tensors, self.root / f"spelled_{name}.safetensors")
        names = ["diffusers", *spellings]
        got = self.ours(*[["spelled_" + name] for name in names])
        for name, pictures in zip(names, got):
            with self.subTest(spelling=name):
                self.assertTrue(np.array_equal(pictures[0], got[0][0]))
        # Those that diffusers reads are what it takes them for.
        for name in ("diffusers", "comfy", "kohya", "lightning"):
            with self.subTest(read_by_diffusers=name):
                compare.assert_images(f"LoRA spelled as {name}", got[0],
                                        self.with_adapters(**{"spelled_" + name: 1.0}))
                self.pipeline.unload_lora_weights()

    def test_an_alpha_beside_the_factors_counts(self):
        layers = layers_of(self.root / "style.safetensors")
        save_file(spell(layers, "lora_unet_", ".lora_down.weight", ".lora_up.weight", 8, True),
                  self.root / "kohya_alpha.safetensors")
        compare.assert_images("LoRA with alpha tensors",
                                self.ours(["kohya_alpha"])[0],
                                self.with_adapters(kohya_alpha=1.0))


if __name__ == "__main__":
    sys.exit(unittest.main())
