"""Components that were trained or merged draw what their model draws: files carry the config."""

import json
import shutil
import struct
import unittest

import program
from tiny_run import FolderTest, data_of, read_header

import example  # first: it skips the test without numpy and Pillow
import numpy as np
from PIL import Image

EXAMPLE = example.EXAMPLES / "shapes"
MODEL = EXAMPLE / "model"
FOLDERS = {"dit": "transformer", "text_encoder": "text_encoder", "vae": "vae"}
NEAR = 0.5  # levels of 255: weights that moved by 1e-7, beside 13 and more with another config


def run(*words, code=0):
    return program.run(*words, code=code)


def header(path):
    return read_header(path), data_of(path)


def write(path, entries, data):
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Components(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.base = cls.draw("base", MODEL)
        for component in FOLDERS:
            run("train", "--plugin", "qwen_image", "--model_paths", json.dumps([str(MODEL)]),
                "--dataset_base_path", EXAMPLE / "hatched", "--dataset_metadata_path",
                EXAMPLE / "hatched/metadata.csv", "--trainable_models", component,
                "--learning_rate", 1e-7, "--max_train_steps", 1, "--quiet", "--output_path",
                cls.root / component)
        run("train", "--plugin", "qwen_image", "--model_paths", json.dumps([str(MODEL)]),
            "--dataset_base_path", EXAMPLE / "hatched", "--dataset_metadata_path",
            EXAMPLE / "hatched/metadata.csv", "--lora_base_model", "dit", "--lora_rank", 2,
            "--learning_rate", 1e-7, "--max_train_steps", 1, "--quiet", "--output_path",
            cls.root / "lora")

    @classmethod
    def draw(cls, name, *paths, code=0):
        result = run("generate", "--plugin", "qwen_image", "--model_paths",
                     json.dumps(list(map(str, paths))), "--tokenizer_path", MODEL / "tokenizer",
                     "--prompt", "a red disc on blue", "--height", 64, "--width", 64,
                     "--num_inference_steps", 4, "--cfg_scale", 1, "--seed", 3, "--quiet",
                     "--output", cls.root / f"{name}.png", code=code)
        if code != 0:
            return result.stderr
        return np.asarray(Image.open(cls.root / f"{name}.png")).astype(float)

    def trained(self, component):
        return self.root / component / "step-1.safetensors"

    def without_config(self, component):
        """The file as programs write it that do not know of the key."""
        entries, data = header(self.trained(component))
        entries["__metadata__"] = {"format": "pt"}
        folder = self.root / f"bare_{component}"
        folder.mkdir(exist_ok=True)
        write(folder / "tuned.safetensors", entries, data)
        return folder / "tuned.safetensors"

    def assert_near(self, image):
        self.assertLess(np.abs(image - self.base).mean(), NEAR)

    def test_a_trained_component_draws_what_the_model_draws(self):
        for component, folder in FOLDERS.items():
            with self.subTest(component):
                config = header(self.trained(component))[0]["__metadata__"]["atelier.config"]
                self.assertEqual(config, (MODEL / folder / "config.json").read_text())
                self.assert_near(self.draw(component, MODEL, self.trained(component)))
                # In the place of the model's own, which is not named.
                others = [MODEL / name for name in FOLDERS.values() if name != folder]
                self.assert_near(self.draw("alone", *others, self.trained(component)))

    def test_a_merged_component_draws_what_the_model_draws(self):
        merged = self.root / "merged/dit.safetensors"
        run("lora", "merge", self.root / "lora/step-1.safetensors", "--plugin", "qwen_image",
            "--model_paths", json.dumps([str(MODEL)]), "--output", merged, "--quiet", code=3)
        merged.parent.mkdir()
        merge = ["lora", "merge", self.root / "lora/step-1.safetensors", "--plugin", "qwen_image",
                 "--model_paths", json.dumps([str(MODEL)]), "--quiet", "--output"]
        run(*merge, merged)
        self.assert_near(self.draw("merged", MODEL, merged))
        # In a folder of its own the config stands beside it, for programs that load folders.
        config = (MODEL / "transformer/config.json").read_text()
        self.assertEqual((merged.parent / "config.json").read_text(), config)
        run(*merge, self.root / "beside.safetensors")
        self.assertFalse((self.root / "config.json").exists())
        # What was merged is merged into again.
        run("lora", "merge", self.root / "lora/step-1.safetensors", "--plugin", "qwen_image",
            "--model_paths", self.root / "beside.safetensors", "--quiet", "--output",
            self.root / "twice.safetensors")
        metadata = header(self.root / "twice.safetensors")[0]["__metadata__"]
        self.assertEqual(metadata["atelier.config"], config)

    def test_a_file_without_a_config_takes_that_of_its_model_or_is_refused(self):
        for component, folder in FOLDERS.items():
            with self.subTest(component):
                bare = self.without_config(component)
                others = [MODEL / name for name in FOLDERS.values() if name != folder]
                self.assert_near(self.draw("lent", MODEL, bare))
                refusal = self.draw("refused", *others, bare, code=2)
                self.assertIn("tuned.safetensors", refusal)
                self.assertIn("config.json", refusal)
                field = {"dit": "axes_dims_rope", "text_encoder": "num_attention_heads",
                         "vae": "latents_mean"}[component]
                self.assertIn(field, refusal)
                shutil.copy(MODEL / folder / "config.json", bare.parent)
                self.assert_near(self.draw("beside", *others, bare))
                (bare.parent / "config.json").unlink()

    def test_the_files_own_config_goes_before_the_others(self):
        other = json.loads((MODEL / "transformer/config.json").read_text())
        other["axes_dims_rope"] = [4, 14, 14]
        folder = self.root / "differs"
        folder.mkdir()
        shutil.copy(self.trained("dit"), folder)
        (folder / "config.json").write_text(json.dumps(other))
        self.assert_near(self.draw("own", MODEL, folder / "step-1.safetensors"))
        shown = run("inspect", folder / "step-1.safetensors", "--plugin", "qwen_image").stdout
        self.assertIn("axes [8,12,12]", shown)
        self.assertIn("step-1.safetensors:__metadata__", shown)
        shutil.copy(self.without_config("dit"), folder)
        shown = run("inspect", folder / "tuned.safetensors", "--plugin", "qwen_image").stdout
        self.assertIn("axes [4,14,14]", shown)
        self.assertIn(str(folder / "config.json"), shown)
        drawn = self.draw("other", MODEL, folder / "tuned.safetensors")
        self.assertGreater(np.abs(drawn - self.base).mean(), 5)

    def test_weights_to_begin_with_are_those_of_the_same_model(self):
        words = ["train", "--plugin", "qwen_image", "--model_paths", json.dumps([str(MODEL)]),
                 "--dataset_base_path", EXAMPLE / "hatched", "--dataset_metadata_path",
                 EXAMPLE / "hatched/metadata.csv", "--trainable_models", "dit", "--learning_rate",
                 1e-7, "--max_train_steps", 1, "--quiet"]
        run(*words, "--output_path", self.root / "more", "--resume_from_checkpoint",
            self.without_config("dit"))
        entries, data = header(self.trained("dit"))
        config = json.loads(entries["__metadata__"]["atelier.config"])
        config["axes_dims_rope"] = [4, 14, 14]
        entries["__metadata__"]["atelier.config"] = json.dumps(config)
        write(self.root / "turned.safetensors", entries, data)
        refusal = run(*words, "--output_path", self.root / "none", "--resume_from_checkpoint",
                      self.root / "turned.safetensors", code=2).stderr
        self.assertIn("turned.safetensors: its config differs", refusal)
        self.assertIn("axes", refusal)

    def test_a_lora_is_extracted_from_a_file_without_a_config(self):
        for name, tuned in (("bare", self.without_config("dit")), ("own", self.trained("dit"))):
            output = self.root / f"extracted_{name}.safetensors"
            run("lora", "extract", "--plugin", "qwen_image", "--base_model_paths",
                MODEL / "transformer", "--tuned_model_paths", tuned, "--lora_rank", 2, "--quiet",
                "--output", output)
            self.assertTrue(output.exists())

    def test_a_damaged_config_is_named_with_its_file(self):
        entries, data = header(self.trained("dit"))
        entries["__metadata__"]["atelier.config"] = "{\n1}"
        write(self.root / "damaged.safetensors", entries, data)
        refusal = self.draw("damaged", MODEL, self.root / "damaged.safetensors", code=2)
        self.assertIn("damaged.safetensors:__metadata__:2", refusal)


if __name__ == "__main__":
    unittest.main()
