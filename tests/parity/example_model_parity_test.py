"""The model of examples/tiny_model is a model to diffusers, and gives the same image in both."""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from diffusers import AutoencoderKLQwenImage, QwenImagePipeline, QwenImageTransformer2DModel
from tokenizers import Tokenizer
from transformers import Qwen2_5_VLForConditionalGeneration

import atelier
import compare
import references
import tiny_models

MAX_BYTES = 8_000_000


def make(folder, *arguments):
    """Runs the script as a machine without any package would."""
    script = atelier.REPOSITORY / "examples" / "tiny_model" / "make.py"
    subprocess.run([sys.executable, "-I", "-S", script, folder, *arguments],
                   check=True,
                   stdout=subprocess.DEVNULL)
    return pathlib.Path(folder)


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class ExampleModelParityTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        kept = os.environ.get("ATELIER_PARITY_DIR")
        if kept:
            cls.root = pathlib.Path(kept) / "example"
            cls.root.mkdir(parents=True)
        else:
            temporary = tempfile.TemporaryDirectory(prefix="atelier_example_")
            cls.addClassCleanup(temporary.cleanup)
            cls.root = pathlib.Path(temporary.name)
        cls.folder = make(cls.root / "model")

    def test_it_is_small_and_the_same_every_time(self):
        again = make(self.root / "again")
        self.assertEqual(digests(again), digests(self.folder))
        other = make(self.root / "other", "--seed", "1")
        differ = {
            name for name, digest in digests(other).items() if digest != digests(self.folder)[name]
        }
        self.assertTrue(differ)
        self.assertTrue(all(name.endswith(".safetensors") for name in differ))
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        self.assertLess(size, MAX_BYTES)

    def test_every_tensor_has_the_name_and_shape_of_the_published_classes(self):
        for part, kind in (("transformer", QwenImageTransformer2DModel),
                           ("vae", AutoencoderKLQwenImage), ("text_encoder",
                                                             Qwen2_5_VLForConditionalGeneration)):
            with self.subTest(part=part):
                model, info = kind.from_pretrained(self.folder / part, output_loading_info=True)
                for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertFalse(info[problem], problem)
                for name, parameter in model.named_parameters():
                    self.assertTrue(torch.isfinite(parameter).all(), name)

    def test_the_words_around_a_prompt_are_as_many_tokens_as_in_public(self):
        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer" / "tokenizer.json"))
        length = len(tokenizer.encode(tiny_models.TEMPLATE_PREFIX, add_special_tokens=False).ids)
        self.assertEqual(length, tiny_models.TEMPLATE_PREFIX_TOKENS)

    def test_a_image_is_the_same(self):
        pipeline = QwenImagePipeline.from_pretrained(self.folder, dtype=torch.float32)
        pipeline.set_progress_bar_config(disable=True)
        height, width, steps = 96, 64, 4
        latents = torch.randn((1, 16, 1, height // 8, width // 8),
                              generator=torch.Generator().manual_seed(61))
        images = pipeline("a cat on a red sofa",
                          negative_prompt="blurry",
                          true_cfg_scale=4.0,
                          height=height,
                          width=width,
                          num_inference_steps=steps,
                          latents=references.pack(latents),
                          output_type="np").images
        got = atelier.generate(self.folder,
                               latents,
                               prompt="a cat on a red sofa",
                               negative_prompt="blurry",
                               cfg_scale=4,
                               height=height,
                               width=width,
                               num_inference_steps=steps,
                               seed=0,
                               num_images=1,
                               dtype="float32")
        expected = list((images * 255).round().astype("uint8"))
        compare.assert_images("example model", got, expected)


if __name__ == "__main__":
    sys.exit(unittest.main())
