"""The training scripts that DiffSynth-Studio publishes for Qwen-Image-Edit and FireRed-Image-Edit, on files of the
published names, shapes and places.

Their command lines are pasted behind `atelier`, and what comes back is planned, which checks everything that a training
checks. The files have no values. The lines name no tokenizer and no processor.
"""
import json
import unittest

import numpy as np
import program
from PIL import Image
from published_scripts import ScriptTest, write_published

CONFIG = "examples/qwen_image/model_training/full/accelerate_config_zero2offload.yaml"
TARGETS = ("to_q,to_k,to_v,add_q_proj,add_k_proj,add_v_proj,to_out.0,to_add_out,img_mlp.net.2,img_mod.1,txt_mlp.net.2,"
           "txt_mod.1")
ENCODERS = "Qwen/Qwen-Image:text_encoder/model*.safetensors,Qwen/Qwen-Image:vae/diffusion_pytorch_model.safetensors"
# Of a model: whose it is, and as what it is taken.
MODELS = {
    "Qwen-Image-Edit": ("Qwen", "qwen-image-edit"),
    "Qwen-Image-Edit-2509": ("Qwen", "qwen-image-edit-2509"),
    "Qwen-Image-Edit-2511": ("Qwen", "qwen-image-edit-2511"),
    "FireRed-Image-Edit-1.0": ("FireRedTeam", "firered-image-edit"),
    "FireRed-Image-Edit-1.1": ("FireRedTeam", "firered-image-edit"),
}


class Scripts(ScriptTest):
    plugin, config = "qwen_image", CONFIG

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        program.write_tiny_model(cls.root / "tiny")
        models = cls.root / "models"
        base = models / "Qwen/Qwen-Image"
        write_published(base / "text_encoder/model-00001-of-00001.safetensors", "text_encoder_disk")
        write_published(base / "vae/diffusion_pytorch_model.safetensors", "vae_diffusers")
        (base / "tokenizer").symlink_to(cls.root / "tiny/tokenizer")
        for model, (owner, _) in MODELS.items():
            write_published(models / owner / model / "transformer/diffusion_pytorch_model-00001-of-00001.safetensors", "transformer")
            cls.write_rows(cls.root / cls.data(model), is_table=model == "Qwen-Image-Edit")

    @staticmethod
    def data(model):
        return f"data/diffsynth_example_dataset/qwen_image/{model}"

    @staticmethod
    def write_rows(folder, is_table):
        folder.mkdir(parents=True)
        for seed, name in enumerate(("image1.jpg", "image2.jpg", "edit/image1.jpg", "edit/image2.jpg")):
            (folder / name).parent.mkdir(exist_ok=True)
            noise = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
            Image.fromarray(noise).resize((1200, 900)).save(folder / name)
        if is_table:
            rows = ["image,prompt,edit_image"] + [f"image{i}.jpg,change it,edit/image{i}.jpg" for i in (1, 2)]
            (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
            return
        rows = [{"image": "image1.jpg", "prompt": "join them", "edit_image": ["edit/image1.jpg", "edit/image2.jpg"]},
                {"image": "image2.jpg", "prompt": "change it", "edit_image": ["edit/image2.jpg"]}]
        (folder / "metadata.json").write_text(json.dumps(rows))

    def line(self, model, is_lora):
        """A script's command line, as it is published."""
        owner, _ = MODELS[model]
        table = "metadata.csv" if model == "Qwen-Image-Edit" else "metadata.json"
        line = ["accelerate", "launch", *([] if is_lora else ["--config_file", CONFIG]),
                "examples/qwen_image/model_training/train.py", "--dataset_base_path", self.data(model),
                "--dataset_metadata_path", f"{self.data(model)}/{table}", "--data_file_keys", "image,edit_image",
                "--extra_inputs", "edit_image", "--max_pixels", "1048576", "--dataset_repeat", "50",
                "--model_id_with_origin_paths",
                f"{owner}/{model}:transformer/diffusion_pytorch_model*.safetensors,{ENCODERS}", "--learning_rate",
                "1e-4" if is_lora else "1e-5", "--num_epochs", "5" if is_lora else "2", "--remove_prefix_in_ckpt", "pipe.dit.",
                "--output_path", f"./models/train/{model}_{'lora' if is_lora else 'full'}"]
        line += ["--lora_base_model", "dit", "--lora_target_modules", TARGETS, "--lora_rank",
                 "32"] if is_lora else ["--trainable_models", "dit"]
        line += ["--use_gradient_checkpointing", *(["--dataset_num_workers", "8"] if is_lora else []),
                 "--find_unused_parameters"]
        return line + (["--zero_cond_t"] if model.endswith("2511") else [])

    def plan(self, line):
        plan = super().plan(line)
        self.assertNotIn("warning", self.said)
        return plan

    def check(self, model):
        for is_lora in (True, False):
            with self.subTest(model=model, is_lora=is_lora):
                plan = self.plan(self.line(model, is_lora))
                components = {component["name"] for component in plan["components"]}
                self.assertEqual({"dit", "text_encoder", "vision_tower", "vae"}, components)
                self.assertEqual("train", plan["phases"][-1]["name"])
                self.assertEqual(100 * (5 if is_lora else 2), plan["phases"][-1]["passes"])

    def test_one_picture(self):
        self.check("Qwen-Image-Edit")

    def test_several_pictures(self):
        self.check("Qwen-Image-Edit-2509")
        self.check("Qwen-Image-Edit-2511")

    def test_fine_tunes(self):
        self.check("FireRed-Image-Edit-1.0")
        self.check("FireRed-Image-Edit-1.1")

    def test_files_are_what_they_are_called(self):
        for model, (owner, variant) in MODELS.items():
            folder = self.root / "models" / owner / model / "transformer"
            told = json.loads(self.run_program("inspect", next(folder.iterdir()), "--json").stdout)
            self.assertEqual(("dit", variant), (told["taken_by"]["component"], told["taken_by"]["variant"]))


if __name__ == "__main__":
    unittest.main()
