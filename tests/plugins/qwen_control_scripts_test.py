"""The training scripts that DiffSynth-Studio publishes for blockwise ControlNets, In-Context-Control and EliGen, on files of the
published names, shapes and places.

Their command lines are pasted behind `atelier`, and what comes back is planned, which checks everything that a training
checks. The files have no values.
"""
import json
import unittest

import numpy as np
import program
import published_sizes
from PIL import Image
from published_scripts import ScriptTest, published_shapes, write_published
from qwen_edit_scripts_test import ENCODERS, TARGETS

CONFIG = "examples/qwen_image/model_training/full/accelerate_config.yaml"
BASE = f"Qwen/Qwen-Image:transformer/diffusion_pytorch_model*.safetensors,{ENCODERS}"
BLOCKWISE = "Qwen-Image-Blockwise-ControlNet-"
PICTURE, MASK = "blockwise_controlnet_image", "blockwise_controlnet_inpaint_mask"
CONTEXT = "Qwen-Image-In-Context-Control-Union"
ELIGEN = ("Qwen-Image-EliGen", "Qwen-Image-EliGen-Poster")
LORA_V2 = "models/DiffSynth-Studio/Qwen-Image-EliGen-V2/model.safetensors"


class Scripts(ScriptTest):
    plugin, config = "qwen_image", CONFIG

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        program.write_tiny_model(cls.root / "tiny")
        models = cls.root / "models"
        base = models / "Qwen/Qwen-Image"
        write_published(base / "transformer/diffusion_pytorch_model-00001-of-00001.safetensors", "transformer")
        write_published(base / "text_encoder/model-00001-of-00001.safetensors", "text_encoder_disk")
        write_published(base / "vae/diffusion_pytorch_model.safetensors", "vae_diffusers")
        (base / "tokenizer").symlink_to(cls.root / "tiny/tokenizer")
        for kind, keys in (("Canny", "controlnet_blockwise"), ("Depth", "controlnet_blockwise"),
                           ("Inpaint", "controlnet_blockwise_inpaint")):
            write_published(models / f"DiffSynth-Studio/{BLOCKWISE}{kind}/model.safetensors", keys)
            cls.write_rows(BLOCKWISE + kind, [PICTURE, MASK] if kind == "Inpaint" else [PICTURE])
        cls.write_rows(CONTEXT, ["context_image"])
        for name in ELIGEN:
            cls.write_regions(name)
        cls.write_lora()

    @staticmethod
    def data(name):
        return f"data/diffsynth_example_dataset/qwen_image/{name}"

    @classmethod
    def write_rows(cls, name, columns):
        folder = cls.root / cls.data(name)
        folder.mkdir(parents=True)
        for column in ("image", *columns):
            noise = np.random.default_rng(len(column)).integers(0, 256, (12, 16, 3), np.uint8)
            Image.fromarray(noise).resize((1024, 768)).save(folder / f"{column}.jpg")
        rows = [",".join(["image", "prompt", *columns]), ",".join(f"{c}.jpg" if c else "a cat" for c in ("image", "", *columns))]
        (folder / "metadata.csv").write_text("\n".join(rows) + "\n")

    @classmethod
    def write_regions(cls, name):
        """Rows of one region and of three, whose masks are as large as the image."""
        folder = cls.root / cls.data(name)
        rows = []
        for number, count in enumerate((1, 3)):
            (folder / f"{number}").mkdir(parents=True)
            masks = [f"{number}/{mask}.png" for mask in range(count)]
            for path in (f"{number}.jpg", *masks):
                Image.new("RGB", (1024, 768), (40 * number, 90, 200) if path.endswith("jpg") else "white").save(folder / path)
            rows.append({"image": f"{number}.jpg", "prompt": f"picture {number}", "eligen_entity_masks": masks,
                         "eligen_entity_prompts": ["a cat", "the sea", "一只小兔子"][:count]})
        (folder / "metadata.json").write_text(json.dumps(rows))

    @classmethod
    def write_lora(cls):
        """Of the layers that the scripts train, named as published."""
        shapes = {}
        for name, shape in published_shapes("transformer").items():
            layer = name.removesuffix(".weight")
            if len(shape) == 2 and layer.endswith(tuple(TARGETS.split(","))):
                shapes[f"{layer}.lora_A.default.weight"] = [32, shape[1]]
                shapes[f"{layer}.lora_B.default.weight"] = [shape[0], 32]
        published_sizes.write_holes(cls.root / LORA_V2, shapes)

    def line(self, name, columns, is_lora, models=BASE, rank="32", more=()):
        """A script's command line, as it is published."""
        trained = "dit" if is_lora else "blockwise_controlnet"
        line = ["accelerate", "launch", *([] if is_lora else ["--config_file", CONFIG]),
                "examples/qwen_image/model_training/train.py", "--dataset_base_path", self.data(name),
                "--dataset_metadata_path", f"{self.data(name)}/metadata.csv", "--data_file_keys",
                ",".join(["image", *columns]), "--max_pixels", "1048576", "--dataset_repeat", "50" if is_lora else "400",
                "--model_id_with_origin_paths", models, "--learning_rate", "1e-4" if is_lora else "1e-3",
                "--num_epochs", "5" if is_lora else "2", "--remove_prefix_in_ckpt",
                "pipe.dit." if is_lora else "pipe.blockwise_controlnet.models.0.", "--output_path", f"./models/train/{name}"]
        line += ["--lora_base_model", trained, "--lora_target_modules", TARGETS, "--lora_rank",
                 rank] if is_lora else ["--trainable_models", trained]
        return [*line, *more, "--extra_inputs", ",".join(columns), "--use_gradient_checkpointing",
                "--find_unused_parameters"]

    def check(self, line, components):
        plan = self.plan(line)
        self.assertNotIn("warning", self.said)
        self.assertEqual(components, {component["name"] for component in plan["components"]})
        self.assertEqual("train", plan["phases"][-1]["name"])

    def test_blockwise_controlnets(self):
        for kind in ("Canny", "Depth", "Inpaint"):
            columns = [PICTURE, MASK] if kind == "Inpaint" else [PICTURE]
            models = f"{BASE},DiffSynth-Studio/{BLOCKWISE}{kind}:model.safetensors"
            for is_lora in (True, False):
                with self.subTest(kind=kind, is_lora=is_lora):
                    self.check(self.line(BLOCKWISE + kind, columns, is_lora, models),
                               {"dit", "text_encoder", "vae", "blockwise_controlnet"})

    def test_in_context_control(self):
        self.check(self.line(CONTEXT, ["context_image"], is_lora=True, rank="64"), {"dit", "text_encoder", "vae"})

    def test_eligen(self):
        for name, more in zip(ELIGEN, ([], ["--lora_checkpoint", LORA_V2])):
            with self.subTest(name=name):
                line = ["accelerate", "launch", "examples/qwen_image/model_training/train.py", "--dataset_base_path",
                        self.data(name), "--dataset_metadata_path", f"{self.data(name)}/metadata.json", "--data_file_keys",
                        "image,eligen_entity_masks", "--max_pixels", "1048576", "--dataset_repeat", "50",
                        "--model_id_with_origin_paths", BASE, "--learning_rate", "1e-4", "--num_epochs", "5",
                        "--remove_prefix_in_ckpt", "pipe.dit.", "--output_path", f"./models/train/{name}_lora",
                        "--lora_base_model", "dit", "--lora_target_modules", TARGETS, "--lora_rank", "32", "--extra_inputs",
                        "eligen_entity_masks,eligen_entity_prompts", "--use_gradient_checkpointing",
                        "--find_unused_parameters", *more]
                self.check(line, {"dit", "text_encoder", "vae"})


if __name__ == "__main__":
    unittest.main()
