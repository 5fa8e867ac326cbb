"""The training scripts that DiffSynth-Studio publishes for Qwen-Image-Layered and Layered-Control, on files of the published
names, shapes and places.

Their command lines are pasted behind `atelier`, and what comes back is planned, which checks everything that a training
checks. The files have no values.
"""
import json
import unittest

import numpy as np
import program
from PIL import Image
from published_scripts import ScriptTest, write_published
from qwen_edit_scripts_test import TARGETS

CONFIG = "examples/qwen_image/model_training/full/accelerate_config_zero2offload.yaml"
CONTROL = "DiffSynth-Studio/Qwen-Image-Layered-Control"
LAYERS = {"Qwen-Image-Layered": 3, "Qwen-Image-Layered-Control": 0, "Qwen-Image-Layered-Control-V2": 0}


class Scripts(ScriptTest):
    plugin, config = "qwen_image", CONFIG

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        program.write_tiny_model(cls.root / "tiny")
        models = cls.root / "models"
        base, layered = models / "Qwen/Qwen-Image", models / "Qwen/Qwen-Image-Layered"
        write_published(base / "text_encoder/model-00001-of-00001.safetensors", "text_encoder_disk")
        (base / "tokenizer").symlink_to(cls.root / "tiny/tokenizer")
        write_published(layered / "vae/diffusion_pytorch_model.safetensors", "vae_layered")
        for folder in (layered, models / CONTROL):
            write_published(folder / "transformer/diffusion_pytorch_model-00001-of-00001.safetensors", "transformer_layered")
        for name, layers in LAYERS.items():
            cls.write_rows(name, layers)

    @classmethod
    def write_rows(cls, name, layers):
        folder = cls.root / cls.data(name)
        folder.mkdir(parents=True)
        rows = []
        for prompt in ("a cat", "a dog"):
            files = [f"{prompt}_{number}.png" for number in range(layers + 2)]
            for number, file in enumerate(files):
                noise = np.random.default_rng([len(rows), number]).integers(0, 256, (12, 16, 4), np.uint8)
                Image.fromarray(noise, "RGBA").resize((1024, 768)).save(folder / file)
            rows.append({"image": files[1:], "layer_input_image": files[0], "layer_num": layers, "prompt": prompt})
        if name.endswith("V2"):
            rows[0]["context_image"], rows[1]["context_image"] = rows[0]["image"][0], None
        (folder / "metadata.json").write_text(json.dumps(rows))

    @staticmethod
    def data(name):
        return f"data/diffsynth_example_dataset/qwen_image/{name}"

    def line(self, name, is_lora):
        """A script's command line, as it is published."""
        dit = "Qwen/Qwen-Image-Layered" if name == "Qwen-Image-Layered" else CONTROL
        context = ",context_image" if name.endswith("V2") else ""
        line = ["accelerate", "launch", *([] if is_lora else ["--config_file", CONFIG]),
                "examples/qwen_image/model_training/train.py", "--dataset_base_path", self.data(name),
                "--dataset_metadata_path", f"{self.data(name)}/metadata.json", "--data_file_keys",
                "image,layer_input_image" + context, "--max_pixels", "1048576", "--dataset_repeat", "50",
                "--model_id_with_origin_paths",
                f"{dit}:transformer/diffusion_pytorch_model*.safetensors,Qwen/Qwen-Image:text_encoder/model*.safetensors,"
                "Qwen/Qwen-Image-Layered:vae/diffusion_pytorch_model.safetensors", "--learning_rate",
                "1e-4" if is_lora else "1e-5", "--num_epochs", "5" if is_lora else "2", "--remove_prefix_in_ckpt", "pipe.dit.",
                "--output_path", f"./models/train/{name}_{'lora' if is_lora else 'full'}"]
        line += ["--lora_base_model", "dit", "--lora_target_modules", TARGETS, "--lora_rank",
                 "64" if context else "32"] if is_lora else ["--trainable_models", "dit"]
        return [*line, "--extra_inputs", "layer_num,layer_input_image" + context, "--use_gradient_checkpointing",
                "--dataset_num_workers", "8", "--find_unused_parameters"]

    def check(self, name, is_lora):
        plan = self.plan(self.line(name, is_lora))
        self.assertNotIn("warning", self.said)
        self.assertEqual({"dit", "text_encoder", "vae"}, {component["name"] for component in plan["components"]})
        self.assertEqual("train", plan["phases"][-1]["name"])

    def test_layered(self):
        for is_lora in (True, False):
            with self.subTest(is_lora=is_lora):
                self.check("Qwen-Image-Layered", is_lora)

    def test_layered_control(self):
        for is_lora in (True, False):
            with self.subTest(is_lora=is_lora):
                self.check("Qwen-Image-Layered-Control", is_lora)

    def test_layered_control_v2(self):
        self.check("Qwen-Image-Layered-Control-V2", is_lora=True)


if __name__ == "__main__":
    unittest.main()
