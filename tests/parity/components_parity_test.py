"""Components that `atelier` trains and merges: what they draw, and what other programs read."""

import shutil
import unittest

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import Gemma2Model, Qwen2_5_VLForConditionalGeneration

import atelier
import compare
import lumina2_models
import tiny_models

FOLDERS = {"dit": "transformer", "text_encoder": "text_encoder", "vae": "vae"}
MODELS = {
    "qwen_image": (tiny_models, Qwen2_5_VLForConditionalGeneration),
    "lumina2": (lumina2_models, Gemma2Model)
}
# Mean difference of images, levels of 255: weights that moved by 1e-9.
NEAR = 0.05


def metadata_of(path):
    with safe_open(path, framework="pt") as file:
        return file.metadata()


class ComponentsTest(unittest.TestCase):

    def draw(self, plugin, *paths):
        noise = torch.randn((1, 16, 1, 8, 8), generator=torch.Generator().manual_seed(3))
        return atelier.generate(paths, noise, plugin=plugin, prompt="a red fox", height=64,
                                width=64, num_inference_steps=3, cfg_scale=1, dtype="float32")

    def train(self, plugin, model, component):
        image = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
        return atelier.train(model, [(image, "a red fox")], plugin=plugin, height=64, width=64,
                             trainable_models=component, learning_rate=1e-9, weight_decay=0,
                             max_train_steps=1)

    def test_trained_components_draw_what_the_model_draws(self):
        for plugin, (models, _) in MODELS.items():
            model = models.get().model
            expected = self.draw(plugin, model)
            for component, folder in FOLDERS.items():
                with self.subTest(plugin=plugin, component=component), \
                        self.train(plugin, model, component) as run:
                    saved = run.weights(1)
                    self.assertEqual(metadata_of(saved)["atelier.config"],
                                     (model / folder / "config.json").read_text())
                    compare.assert_images(f"{plugin}, {component} trained at 1e-9",
                                            self.draw(plugin, model, saved), expected, NEAR)

    def test_transformers_reads_a_trained_text_encoder_as_its_own(self):
        for plugin, (models, kind) in MODELS.items():
            model = models.get().model
            with self.subTest(plugin=plugin), self.train(plugin, model, "text_encoder") as run:
                published = {}
                for path in (model / "text_encoder").glob("*.safetensors"):
                    published |= load_file(path)
                saved = load_file(run.weights(1))
                self.assertEqual(set(saved), set(published))
                for name, tensor in published.items():
                    self.assertEqual(tensor.dtype, saved[name].dtype, name)
                    self.assertLess(float((tensor - saved[name]).abs().max()), 1e-6, name)
                folder = run.folder / "alone"
                folder.mkdir()
                shutil.copy(run.weights(1), folder / "model.safetensors")
                (folder / "config.json").write_text(metadata_of(run.weights(1))["atelier.config"])
                _, loaded = kind.from_pretrained(folder, output_loading_info=True)
                self.assertEqual(sorted(loaded["missing_keys"]), [])
                self.assertEqual(sorted(loaded["unexpected_keys"]), [])

    def test_a_merged_component_in_a_folder_of_its_own_is_one_for_diffusers(self):
        for plugin, (models, _) in MODELS.items():
            model = models.get().model
            image = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
            with self.subTest(plugin=plugin), \
                    atelier.train(model, [(image, "a red fox")], plugin=plugin, height=64,
                                  width=64, lora_base_model="dit", lora_rank=2, learning_rate=1e-9,
                                  max_train_steps=1) as run:
                folder = run.folder / "merged"
                folder.mkdir()
                merged = folder / "diffusion_pytorch_model.safetensors"
                atelier.run(["lora", "merge", run.weights(1), "--plugin", plugin, "--model_paths",
                             atelier.paths_argument(model), "--output", merged], run.folder)
                reference = models.get().transformer
                _, loaded = type(reference).from_pretrained(folder, output_loading_info=True)
                self.assertEqual(list(loaded["missing_keys"]), [])
                compare.assert_images(f"{plugin}, merged at 1e-9",
                                        self.draw(plugin, model, merged), self.draw(plugin, model),
                                        NEAR)


if __name__ == "__main__":
    unittest.main()
