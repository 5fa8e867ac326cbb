"""Trains and generates on weights that are stored in 8 and 4 bits, as a user would."""

import json
import shutil
import unittest

import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import program
from tiny_run import TARGETS, TinyRuns, losses, state_of, tensors, write_discs

KINDS = ("fp8", "int8")
FOUR_BIT = ("nf4", "fp4")


def write_scaled_fp8(source, folder, prefix):
    """A denoiser as published for ComfyUI: e4m3 with one scale a tensor, and a marker."""
    out = {prefix + "scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    values = {name: value for shard in source.glob("*.safetensors")
              for name, value in load_file(shard).items()}
    for name, value in values.items():
        if value.dim() == 2 and name.endswith(".weight"):
            scale = value.float().abs().max() / 448
            value = (value.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            out[prefix + name.removesuffix("weight") + "scale_weight"] = scale.reshape(1)
        out[prefix + name] = value
    folder.mkdir()
    save_file(out, folder / "scaled.safetensors")
    shutil.copy(source / "config.json", folder)
    return folder / "scaled.safetensors"


class StorageTest(TinyRuns):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_discs(cls.root / "data", range(8))
        write_discs(cls.root / "held", range(20, 24))

    def run_program(self, command, expect=0, **flags):
        line = program.command(command, **{**self.on_model, **flags})
        return program.run_line(line, code=expect, OMP_NUM_THREADS="1").stderr

    def train(self, name, **flags):
        out = self.root / name
        defaults = dict(max_pixels=64 * 64, learning_rate=3e-3, max_train_steps=40, lora_base_model="dit",
                        lora_target_modules=TARGETS, lora_rank=4)
        self.run_program("train", **self.training(out, self.root / "data", **{**defaults, **flags}))
        return out

    def picture(self, name, **flags):
        """Pixels of one image, and its metadata."""
        out = self.root / f"{self.id().split('.')[-1]}_{name}.png"
        self.run_program("generate", prompt="a disc", height=64, width=64, num_inference_steps=4,
                         seed=5, output=out, quiet=True, **flags)
        with Image.open(out) as image:
            return list(image.convert("RGB").tobytes()), json.loads(image.text["atelier"])

    def validation(self, run):
        return list(losses(run, "validation/loss").values())

    def test_a_lora_learns_on_stored_weights_as_on_plain_ones(self):
        flags = dict(validation_dataset_base_path=self.root / "held",
                     validation_dataset_metadata_path=self.root / "held/metadata.csv",
                     validation_steps=30, max_train_steps=60, dataset_repeat=20, dtype="bfloat16", learning_rate=6e-3)
        plain = self.validation(self.train("plain", **flags))
        self.assertLess(plain[-1], 0.8 * plain[0])
        for kind in (*KINDS, *FOUR_BIT):
            for compute in ("plain", "w8a8") if kind in KINDS else ("plain",):
                stored = self.validation(self.train(f"{kind}_{compute}", storage=f"dit={kind}",
                                                    compute=f"dit={compute}", **flags))
                print(f"validation loss: plain {plain[-1]:.4f}, {kind} {compute} {stored[-1]:.4f}")
                self.assertLess(stored[-1], 0.8 * stored[0])
                self.assertLess(abs(stored[-1] / plain[-1] - 1), 0.02)

    def test_a_resumed_run_has_the_bits_of_a_straight_one(self):
        for kind in (*KINDS, "nf4"):
            compute = "w8a8" if kind == "int8" else "plain"
            flags = dict(storage=f"dit={kind}", compute=f"dit={compute}", save_steps=4,
                         lora_dropout=0.1)
            straight = self.train(f"straight_{kind}", max_train_steps=8, **flags)
            stopped = self.train(f"stopped_{kind}", max_train_steps=4, **flags)
            self.run_program("train", resume=stopped, max_train_steps=8)
            self.assertTrue(state_of(straight, 8))
            self.assertEqual(state_of(straight, 8), state_of(stopped, 8))
            self.assertEqual(tensors(straight / "step-8.safetensors"),
                             tensors(stopped / "step-8.safetensors"))
            self.assertIn("storage", (stopped / "config.toml").read_text())

    def test_pictures_are_near_those_of_plain_weights(self):
        plain, record = self.picture("plain", cfg_scale=1)
        self.assertNotIn("storage", record)
        for kind, limit in (("fp8", 2), ("int8", 1)):
            stored, record = self.picture(kind, storage=f"dit={kind}", cfg_scale=1)
            self.assertEqual(record["storage"], {"dit": kind})
            self.assertNotEqual(plain, stored)
            mean = sum(abs(a - b) for a, b in zip(plain, stored)) / len(plain)
            print(f"mean difference from plain weights: {kind} {mean:.3f} of 255")
            self.assertLess(mean, limit)

    def test_pictures_of_eight_bit_products_are_near_and_say_so(self):
        plain, record = self.picture("plain", cfg_scale=1)
        self.assertNotIn("compute", record)
        for kind, limit in (("fp8", 3), ("int8", 2)):
            flags = dict(storage=f"dit={kind}", cfg_scale=1)
            stored, _ = self.picture(kind, **flags)
            eight, record = self.picture(f"{kind}_w8a8", compute="dit=w8a8", **flags)
            self.assertEqual(record["compute"], {"dit": "w8a8"})
            self.assertNotEqual(stored, eight)
            mean = sum(abs(a - b) for a, b in zip(plain, eight)) / len(plain)
            print(f"mean difference of {kind} w8a8 from plain weights: {mean:.3f} of 255")
            self.assertLess(mean, limit)
        self.assertIn("add --storage dit=int8",
                      self.run_program("generate", expect=2, compute="dit=w8a8", prompt="x"))

    def test_an_entry_of_the_model_is_stored_as_fp8_by_its_name(self):
        by_entry, record = self.picture("entry", fp8_models=self.model)
        self.assertEqual(record["storage"]["dit"], "fp8")
        self.assertEqual(record["storage"]["text_encoder"], "fp8")
        by_component, _ = self.picture("component", storage="dit=fp8,text_encoder=fp8")
        self.assertEqual(by_entry, by_component)
        self.assertIn("is no entry", self.run_program("generate", expect=2, prompt="x",
                                                      fp8_models=f"{self.model}x"))

    def test_published_files_with_scales_give_one_picture_however_they_rest(self):
        scaled = write_scaled_fp8(self.model / "transformer", self.root / "scaled",
                                  "model.diffusion_model.")
        paths = json.dumps([str(self.model), str(scaled)])
        plain, _ = self.picture("plain", cfg_scale=1)
        in_dtype, _ = self.picture("in_dtype", model_paths=paths, cfg_scale=1)
        for kind in ("published", "fp8"):
            stored, _ = self.picture(kind, model_paths=paths, storage=f"dit={kind}", cfg_scale=1)
            self.assertEqual(in_dtype, stored)
        mean = sum(abs(a - b) for a, b in zip(plain, stored)) / len(plain)
        print(f"mean difference of a published scaled file: {mean:.3f} of 255")
        self.assertLess(0, mean)
        self.assertLess(mean, 3)

    def test_a_lora_works_on_stored_weights(self):
        lora = self.train("lora", max_train_steps=8, save_steps=8) / "step-8.safetensors"
        for kind in (*KINDS, "nf4"):
            storage = dict(storage=f"dit={kind}")
            base, _ = self.picture("base", **storage)
            off, _ = self.picture("off", lora=f"{lora}:0", **storage)
            hot, _ = self.picture("hot", lora=f"{lora}:4", **storage)
            merged, _ = self.picture("merged", lora=f"{lora}:4", lora_mode="merge", **storage)
            self.assertEqual(base, off)
            self.assertNotEqual(base, hot)
            far = sum(abs(a - b) for a, b in zip(hot, merged)) / len(hot)
            self.assertLess(far, 1)

    def test_a_component_that_is_trained_whole_is_refused(self):
        flags = dict(dataset_base_path=self.root / "data",
                     dataset_metadata_path=self.root / "data/metadata.csv", trainable_models="dit",
                     output_path=self.root / "refused", cache_path=self.root / "cache")
        for how in (dict(storage="dit=fp8"), dict(fp8_models=self.model)):
            text = self.run_program("train", expect=2, **flags, **how)
            self.assertIn("dit is stored as fp8, and weights that are trained cannot be", text)
            self.assertIn("train a LoRA", text)
        self.assertIn("no linear layers in blocks",
                      self.run_program("generate", expect=2, storage="vae=fp8", prompt="x"))

    def test_encodings_of_a_stored_encoder_are_others(self):
        flags = dict(max_train_steps=1, cache_path=self.root / "encoders")
        self.train("first", **flags)
        entries = len(list((self.root / "encoders").rglob("*.safetensors")))
        self.train("second", storage="text_encoder=int8", **flags)
        self.assertGreater(len(list((self.root / "encoders").rglob("*.safetensors"))), entries)


if __name__ == "__main__":
    unittest.main()
