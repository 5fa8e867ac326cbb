"""lora convert, merge and extract as a user gives them, and the examples of docs/lora.md, on the tiny example model."""

import json
import os
import re
import shutil
import unittest

import program
from tiny_run import TinyRuns, factors, matrices, tensors, write_tensors


ENVIRONMENT = {"OMP_NUM_THREADS": "1"}  # matrices are tiny here


class LoraToolsTest(TinyRuns):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        style, light = {}, {}
        for name, shape in matrices(cls.model).items():
            if ".attn.to_" in name:
                style.update(factors("transformer." + name, shape, seed=len(style)))
                light.update(factors("transformer." + name, shape, rank=1, seed=len(style) + 0.5))
        cls.layers = len(style) // 2
        assert cls.layers == 10, style.keys()
        write_tensors(cls.root / "style.safetensors", style)
        write_tensors(cls.root / "light.safetensors", light)

    def setUp(self):
        super().setUp()
        for name in ("style", "light"):
            shutil.copy(self.root / f"{name}.safetensors", self.dir)
        (self.dir / "models").mkdir()
        (self.dir / "models/Qwen-Image").symlink_to(self.model)
        self.transformer = ["--plugin", "qwen_image", "--model_paths", "models/Qwen-Image/transformer"]

    def run_lora(self, *words):
        return program.run("lora", *words, cwd=self.dir, **ENVIRONMENT)

    def lora(self, *words):
        result = self.run_lora(*words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def info(self, name):
        return json.loads(self.lora("info", "--json", name))

    def refuse(self, *words):
        before = {path: path.stat().st_mtime_ns for path in self.dir.iterdir()}
        result = self.run_lora(*words)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("error: "), result.stderr)
        self.assertEqual({path: path.stat().st_mtime_ns for path in self.dir.iterdir()}, before)
        return result.stderr

    def test_the_examples_of_the_documentation_run(self):
        text = (program.REPOSITORY / "docs/lora.md").read_text()
        examples = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
        self.assertGreaterEqual(len(examples), 4)
        (self.dir / "out").mkdir()
        (self.dir / "loras").mkdir()
        shutil.copy(self.dir / "light.safetensors", self.dir / "out/step-500.safetensors")
        shutil.copy(self.dir / "style.safetensors", self.dir / "loras")
        shim = self.dir / "bin/atelier"  # images of the examples are small here
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\n[ "$1" != generate ] || set -- "$@" --height 64 --width 64 '
                        f'--num_inference_steps 1 --device cpu --threads 1\nexec "{program.PROGRAM}" "$@"\n')
        shim.chmod(0o755)
        script = "set -e\n" + "".join(examples)
        program.run_line(["bash", "-c", script], code=0, cwd=self.dir, PATH=f"{shim.parent}:{os.environ['PATH']}",
                         **ENVIRONMENT)
        named = set(re.findall(r"--output (\S+)|convert \S+ (\S+)", script))
        for name in {a or b for a, b in named}:
            self.assertTrue((self.dir / name).is_file(), name)
        self.assertEqual(self.info("both.safetensors")["ranks"], [{"rank": 3, "layers": self.layers}])
        self.assertEqual(self.info("attention.safetensors")["layers"], 6)

    def test_a_lora_goes_through_kohyas_names_and_back(self):
        out = self.lora("convert", "style.safetensors", "k.safetensors", "--lora_format", "kohya")
        self.assertIn(f"k.safetensors: {self.layers} layers in the spelling kohya", out)
        self.assertIn("lora_unet_transformer_blocks_{}_attn_to_q", self.info("k.safetensors")["targets"])
        error = self.refuse("convert", "k.safetensors", "b.safetensors", "--lora_format", "diffusers")
        self.assertIn("pass --plugin and --model_paths", error)
        self.assertIn('"lora_unet_transformer_blocks_0_attn_to_k"', error)
        self.lora("convert", "k.safetensors", "b.safetensors", "--lora_format", "diffusers", *self.transformer)
        self.assertEqual(self.info("b.safetensors")["targets"], self.info("style.safetensors")["targets"])
        self.lora("convert", "k.safetensors", "c.safetensors", "--lora_format", "diffusers", *self.transformer[2:])
        before, after, of_files = (self.tensors(f"{name}.safetensors") for name in ("style", "b", "c"))
        self.assertEqual(before, after)
        self.assertEqual(before, of_files)
        self.assertIn("--plugin is given without a model",
                      self.refuse("convert", "k.safetensors", "d.safetensors", "--lora_format", "diffusers", "--plugin",
                                  "qwen_image"))

    def tensors(self, name):
        """name -> bytes."""
        return {key: data for key, (_, _, data) in tensors(self.dir / name).items()}

    def test_tensors_that_are_nothing_are_left_out_with_a_warning(self):
        first = "transformer.transformer_blocks.0.attn.to_q"
        write_tensors(self.dir / "odd.safetensors", {**factors(first, [8, 8]), "odd.thing": ([1], [0.0])})
        for words in (["convert", "odd.safetensors", "x.safetensors", "--lora_format", "comfy"],
                      ["merge", "odd.safetensors", "--output", "x.safetensors"]):
            (self.dir / "x.safetensors").unlink(missing_ok=True)
            result = self.run_lora(*words)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn('odd.safetensors: left out: 1 tensor whose names say nothing: "odd.thing"', result.stderr)
            self.assertEqual(self.info("x.safetensors")["layers"], 1)

    def test_a_spelling_that_few_programs_read_is_written_with_a_warning(self):
        for words in (["convert", "style.safetensors"], ["merge", "style.safetensors", "--output"]):
            result = self.run_lora(*words, f"{words[0]}.safetensors", "--lora_format", "diffsynth")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("warning: --lora_format diffsynth: DiffSynth-Studio reads it", result.stderr)
            result = self.run_lora(*words, f"{words[0]}_comfy.safetensors", "--lora_format", "comfy")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("warning", result.stderr)

    def test_a_sum_is_extracted_from_the_model_that_it_was_merged_into(self):
        self.lora("merge", "style.safetensors:0.8", "light.safetensors:-0.5", "--output", "merged.safetensors",
                  *self.transformer)
        out = self.lora("extract", "--plugin", "qwen_image", "--base_model_paths", "models/Qwen-Image/transformer",
                        "--tuned_model_paths", "merged.safetensors", "--lora_rank", "3", "--output", "e.safetensors")
        lines = out.splitlines()
        self.assertEqual(len(lines), 6, out)  # the file, and five kinds of layers
        # The model is stored in bfloat16, so that what was merged is rounded.
        self.assertLess(float(re.search(r"relative error ([0-9.e-]+)", lines[0]).group(1)), 0.05)
        self.assertIn("  transformer_blocks.{}.attn.to_q: 2 layers, relative error", out)
        self.assertEqual(self.info("e.safetensors")["ranks"], [{"rank": 3, "layers": self.layers}])
        self.assertIn("equal: there is nothing to extract", self.refuse(
            "extract", "--plugin", "qwen_image", "--base_model_paths", "models/Qwen-Image/transformer",
            "--tuned_model_paths", "models/Qwen-Image/transformer", "--output", "x.safetensors", "--quiet"))

    def test_weights_that_are_there_are_not_written_over(self):
        (self.dir / "there.safetensors").write_bytes(b"weights of somebody")
        models = ["--plugin", "qwen_image", "--base_model_paths", "models/Qwen-Image/transformer",
                  "--tuned_model_paths", "models/Qwen-Image/transformer"]
        for words in (["convert", "style.safetensors", "there.safetensors", "--lora_format", "comfy"],
                      ["merge", "style.safetensors", "light.safetensors", "--output", "there.safetensors"],
                      ["merge", "style.safetensors", "--output", "there.safetensors", *self.transformer],
                      ["extract", *models, "--output", "there.safetensors"]):
            self.assertIn("there.safetensors is there already; name another file", self.refuse(*words))

    def test_wrong_use_is_refused_in_one_line(self):
        convert = ["convert", "style.safetensors"]
        merge = ["merge", "style.safetensors"]
        write_tensors(self.dir / "wide.safetensors", factors("transformer.transformer_blocks.0.attn.to_q",
                                                                      [8, 8]))
        cases = [
            (["show"], "there are"),
            (["convrt"], "did you mean convert?"),
            ([*convert, "x.safetensors"], "--lora_format"),
            ([*convert, "x.safetensors", "--lora_format", "kohia"], '"kohia" is not one of'),
            ([*convert, "style.safetensors", "--lora_format", "kohya"], "is the file that is read"),
            ([*convert, "--lora_format", "kohya"], "is missing"),
            ([*convert, "x.safetensors", "--lora_format", "kohya", "--plugin", "qwen_image"], "without a model"),
            (["convert", "none.safetensors", "x.safetensors", "--lora_format", "kohya"], "none.safetensors"),
            (["convert", "wide.safetensors", "x.safetensors", "--lora_format", "comfy", *self.transformer], "expected"),
            ([*merge, "light.safetensors"], "--output"),
            ([*merge, "light.safetensors:0.5", "--output", "light.safetensors"], "is the file that is read"),
            ([*merge, "style.safetensors", "--output", "x.safetensors"], "given twice"),
            ([*merge, "light.safetensors", "--output", "x.safetensors", "--rank", "0"], "rank 0 is too small"),
            (["merge", "style.safetensors:0", "--output", "x.safetensors"], "there is no layer to write"),
            ([*merge, "wide.safetensors", "--output", "x.safetensors"], "[8, 8]"),
            ([*merge, "--output", "x.safetensors", "--rank", "2", *self.transformer], "--rank: a model keeps"),
            ([*merge, "--output", "models/Qwen-Image/transformer/diffusion_pytorch_model-00001-of-00002.safetensors",
              *self.transformer], "is a file of the model"),
            (["extract", "--plugin", "qwen_image", "--base_model_paths", "models/Qwen-Image/transformer",
              "--tuned_model_paths", "models/Qwen-Image/transformer", "--lora_rank", "0", "--output", "x.safetensors"],
             "rank 0 is too small"),
            (["extract", "--plugin", "qwen_image", "--base_model_paths", "models/Qwen-Image/transformer",
              "--tuned_model_paths", "models/Qwen-Image/vae", "--output", "x.safetensors"], "dit is missing"),
        ]
        for words, word in cases:
            with self.subTest(words=" ".join(words)):
                self.assertIn(word, self.refuse(*words))


if __name__ == "__main__":
    unittest.main()
