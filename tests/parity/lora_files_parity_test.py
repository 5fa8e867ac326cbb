"""LoRA files that `atelier lora` writes give the same images in diffusers, in peft and here."""

import json
import sys
import unittest

import numpy as np
import torch
from diffusers import QwenImageTransformer2DModel
from peft import (LoHaConfig, LoraConfig, get_peft_model, inject_adapter_in_model,
                  set_peft_model_state_dict)
from safetensors import safe_open
from safetensors.torch import load_file

import atelier
import compare
import lora_parity_test as lora
import lora_readers

FORMATS = ("diffusers", "comfy", "kohya", "diffsynth")


def metadata_of(path):
    with safe_open(path, framework="pt") as file:
        return file.metadata()


def without_prefix(values):
    return {key.removeprefix("transformer."): value for key, value in values.items()}


class LoraFilesTest(lora.LoraParityTest):
    """Uses the files and the helpers of the other suite, none of its tests."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.transformer = cls.models.model / "transformer"

    def atelier_lora(self, *words):
        with atelier.call_folder("lora_" + words[0]) as folder:
            return atelier.run(["lora", *words], folder)

    def model_flags(self):
        return ["--plugin", "qwen_image", "--model_paths", atelier.paths_argument(self.transformer)]

    def convert(self, name, to, format, *flags):
        """NAME.safetensors as TO.safetensors; names that need it are told by the model."""
        output = self.root / f"{to}.safetensors"
        output.unlink(missing_ok=True)  # of another test
        self.atelier_lora("convert", self.root / f"{name}.safetensors", output, "--lora_format", format,
                          *self.model_flags(), *flags)

    def expected_of(self, name):
        images = self.with_adapters(**{name: 1.0})
        self.pipeline.unload_lora_weights()
        return images

    def test_every_spelling_gives_the_same_image_in_diffusers_and_here(self):
        for name in ("style", "light"):
            expected = self.expected_of(name)
            for format in FORMATS:
                self.convert(name, f"{name}_{format}", format)
            ours = self.ours(*[[f"{name}_{format}"] for format in FORMATS])
            for format, images in zip(FORMATS, ours):
                with self.subTest(name=name, format=format):
                    compare.assert_images(f"{name} as {format}, here", images, expected)
                    compare.assert_images(f"{name} as {format}, in diffusers",
                                            self.expected_of(f"{name}_{format}"), expected)

    def test_every_spelling_gives_the_same_image_in_its_own_program(self):
        self.write_dora()
        plain = QwenImageTransformer2DModel.from_pretrained(self.transformer).state_dict()
        for name in ("style", "light", "dora"):
            expected = self.expected_of(name)
            for format, read in (("comfy", lora_readers.comfyui), ("kohya", lora_readers.comfyui),
                                 ("diffsynth", lora_readers.diffsynth_studio)):
                if (name, format) == ("dora", "diffsynth"):
                    continue
                with self.subTest(name=name, format=format):
                    self.convert(name, f"{name}_{format}", format)
                    transformer = QwenImageTransformer2DModel.from_pretrained(self.transformer)
                    changed = read(self.root / f"{name}_{format}.safetensors", plain)
                    transformer.load_state_dict({**plain, **changed})
                    compare.assert_images(f"{name} as {format}, in its program",
                                            self.image_of(transformer), expected)

    def write_dora(self):
        self.write_with_diffusers("dora",
                                  5,
                                  r=4,
                                  lora_alpha=8,
                                  use_dora=True,
                                  target_modules=lora.ALL_LINEARS)

    def test_dora_gives_the_same_image_wherever_it_can_be_written(self):
        self.write_dora()
        expected = self.expected_of("dora")
        original = load_file(self.root / "dora.safetensors")
        for format in ("kohya", "comfy"):
            self.convert("dora", f"dora_{format}", format)
            self.convert(f"dora_{format}", f"dora_{format}_back", "diffusers")
            compare.assert_images(f"DoRA as {format}, here", self.ours([f"dora_{format}"])[0],
                                    expected)
            back = load_file(self.root / f"dora_{format}_back.safetensors")
            self.assertEqual(sorted(back), sorted(original))
            for key, value in original.items():
                self.assertTrue(torch.equal(back[key], value), key)
            compare.assert_images(f"DoRA back from {format}, in diffusers",
                                    self.expected_of(f"dora_{format}_back"), expected)
        with self.assertRaisesRegex(atelier.ProgramFailed, "diffsynth spelling has no name"):
            self.convert("dora", "dora_diffsynth", "diffsynth")

    def test_peft_takes_the_configuration_in_the_metadata(self):
        self.write_dora()
        self.convert("dora", "dora_for_comfy", "comfy")
        self.convert("dora_for_comfy", "dora_for_peft", "diffusers")
        self.convert("style", "style_for_peft", "diffusers")
        self.convert("light", "light_for_kohya", "kohya")  # rsLoRA becomes alpha tensors
        self.convert("light_for_kohya", "light_for_peft", "diffusers")
        for name in ("style", "light", "dora"):
            path = self.root / f"{name}_for_peft.safetensors"
            config = json.loads(metadata_of(path)["lora_adapter_metadata"])
            config = LoraConfig(**without_prefix(config))
            transformer = QwenImageTransformer2DModel.from_pretrained(self.transformer)
            inject_adapter_in_model(config, transformer, adapter_name="default")
            result = set_peft_model_state_dict(transformer,
                                               without_prefix(load_file(path)),
                                               adapter_name="default")
            self.assertEqual(result.unexpected_keys, [])
            self.assertEqual([key for key in result.missing_keys if "lora" in key], [])
            pipeline = self.pipeline
            plain, pipeline.transformer = pipeline.transformer, transformer
            try:
                images = self.reference()
            finally:
                pipeline.transformer = plain
            compare.assert_images(f"{name} in peft", images, self.expected_of(name))

    def test_folders_of_peft_convert(self):
        layers = lora.ALL_LINEARS
        for name, config in (("lora", LoraConfig(r=3, lora_alpha=9, target_modules=layers)),
                             ("loha", LoHaConfig(r=2, alpha=3, target_modules=layers))):
            transformer = QwenImageTransformer2DModel.from_pretrained(self.transformer)
            wrapped = get_peft_model(transformer, config)
            lora.randomize_adapters_(wrapped, 3, 0.08 if name == "lora" else 0.4)
            wrapped.save_pretrained(self.root / name)
            self.atelier_lora("convert", self.root / name, self.root / f"{name}_kohya.safetensors",
                              "--lora_format", "kohya")
            folder = atelier.generate(self.models.model,
                                      self.latents,
                                      **self.flags(),
                                      lora=self.root / name)
            file = atelier.generate(self.models.model,
                                    self.latents,
                                    **self.flags(),
                                    lora=self.root / f"{name}_kohya.safetensors")
            self.assertTrue(np.array_equal(folder[0], file[0]), name)
            if name == "lora":
                compare.assert_images("folder of peft as kohya, in diffusers",
                                        self.expected_of("lora_kohya"), file)

    def flags(self):
        return dict(prompt=lora.PROMPT,
                    height=lora.HEIGHT,
                    width=lora.WIDTH,
                    num_inference_steps=lora.STEPS,
                    cfg_scale=1.0,
                    seed=0,
                    dtype="float32")

    def test_the_way_through_all_spellings_and_back_gives_the_same_bits(self):
        path = self.root / "style.safetensors"
        tensors = load_file(path)
        # alpha 8 over rank 4 is a power of two: diffsynth's factors are exact as well.
        chain = ["kohya", "comfy", "diffusers"]
        name = "style"
        for number, format in enumerate(chain):
            self.convert(name, f"chain{number}", format)
            name = f"chain{number}"
        back = load_file(self.root / f"{name}.safetensors")
        self.assertEqual(sorted(back), sorted(tensors))
        for key, value in tensors.items():
            self.assertTrue(torch.equal(back[key], value), key)
        config = json.loads(metadata_of(self.root / f"{name}.safetensors")["lora_adapter_metadata"])
        self.assertEqual((config["transformer.r"], config["transformer.lora_alpha"]), (4, 8))
        self.convert(name, "chain_folded", "diffsynth")
        self.convert("chain_folded", "chain_end", "diffusers")
        for key, value in load_file(self.root / "chain_end.safetensors").items():
            factor = 2 if "lora_B" in key else 1
            self.assertTrue(torch.equal(value, tensors[key] * factor), key)

    def test_merged_loras_give_the_image_of_both(self):
        expected = self.with_adapters(style=0.7, light=-1.5)
        self.pipeline.unload_lora_weights()
        self.atelier_lora("merge", f"{self.root}/style.safetensors:0.7",
                          f"{self.root}/light.safetensors:-1.5", "--output",
                          self.root / "sum.safetensors")
        compare.assert_images("merged LoRAs, here", self.ours(["sum"])[0], expected)
        compare.assert_images("merged LoRAs, in diffusers", self.expected_of("sum"), expected)

    def test_a_merged_model_gives_the_image_in_both(self):
        expected = self.with_adapters(style=0.7)
        self.pipeline.unload_lora_weights()
        folder = self.root / "merged"
        folder.mkdir()
        self.atelier_lora("merge", f"{self.root}/style.safetensors:0.7", *self.model_flags(),
                          "--output", folder / "diffusion_pytorch_model.safetensors")
        (folder / "config.json").write_text((self.transformer / "config.json").read_text())
        pipeline = self.pipeline
        plain = pipeline.transformer
        pipeline.transformer = QwenImageTransformer2DModel.from_pretrained(folder)
        try:
            compare.assert_images("merged model, in diffusers", self.reference(), expected)
        finally:
            pipeline.transformer = plain
        got = atelier.generate([self.models.model, folder], self.latents, **self.flags())
        compare.assert_images("merged model, here", got, expected)
        # And what was merged in comes out again.
        self.atelier_lora("extract", "--plugin", "qwen_image", "--base_model_paths",
                          atelier.paths_argument(self.transformer), "--tuned_model_paths",
                          atelier.paths_argument(folder), "--lora_rank", "4", "--output",
                          self.root / "extracted.safetensors")
        compare.assert_images("extracted LoRA, in diffusers", self.expected_of("extracted"),
                                expected)
        original, extracted = (lora.layers_of(self.root / f"{name}.safetensors")
                               for name in ("style", "extracted"))
        self.assertEqual(sorted(original), sorted(extracted))
        for layer, (a, b) in original.items():
            want = 0.7 * 2.0 * (b.double() @ a.double())
            a, b = extracted[layer]
            error = ((b.double() @ a.double()) - want).abs().max() / want.abs().max()
            compare.record("extracted addition", error)
            self.assertLess(error, 1e-5, layer)


def load_tests(loader, _tests, _pattern):
    names = [name for name in vars(LoraFilesTest) if name.startswith("test_")]
    return unittest.TestSuite(LoraFilesTest(name) for name in sorted(names))


if __name__ == "__main__":
    sys.exit(unittest.main())
