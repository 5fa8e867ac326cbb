"""LoRAs on the command line and in prompts files, as a user gives them, on the tiny example model."""

import json
import math
import unittest

import program
from tiny_run import TinyRuns, factors, matrices, pixels, png_text, write_tensors

FLAGS = ["--plugin", "qwen_image", "--height", "64", "--width", "64", "--num_inference_steps", "2", "--seed", "3",
         "--threads", "1", "--device", "cpu", "--dtype", "float32"]


class LoraTest(TinyRuns):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        root, cls.loras = cls.root, cls.root / "loras"
        cls.loras.mkdir()
        shapes = matrices(cls.model)
        cls.layers = {name: shape for name, shape in shapes.items() if ".attn." in name or ".img_mlp." in name}
        assert len(cls.layers) > 10, shapes
        style, light = {}, {}
        for number, (name, shape) in enumerate(cls.layers.items()):
            style.update(factors("transformer." + name, shape, seed=number))
            light.update(factors("diffusion_model." + name, shape, rank=1, seed=number + 0.5))
        write_tensors(cls.loras / "style.safetensors", style)
        write_tensors(cls.loras / "light.safetensors", light)
        partial = {**factors("transformer.nowhere.to_q", [8, 8]), **style}
        write_tensors(cls.loras / "partial.safetensors", partial)
        write_tensors(root / "outside.safetensors", style)

    def run_program(self, *words, stdin=""):
        return program.run(*words, cwd=self.dir, stdin=stdin)

    def generate(self, *words, stdin=""):
        return self.run_program("generate", *FLAGS, "--model_paths", json.dumps([str(self.model)]), *words,
                                stdin=stdin)

    def image(self, name, *words):
        result = self.generate("--prompt", "a cat", "--output", name, *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.png(name), result

    def png(self, name):
        """The pixels and the text of a PNG file."""
        return pixels(self.dir / name), png_text(self.dir / name)

    def refuse(self, *words, **has):
        before = sorted(self.dir.iterdir())
        result = self.generate("--prompt", "a cat", *words)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertTrue(result.stderr.startswith("error: "), result.stderr)
        self.assertNotIn("GB/s", result.stderr)  # the line of a component that was loaded
        self.assertEqual(sorted(self.dir.iterdir()), before)
        return result.stderr

    def test_another_set_on_each_line_while_the_model_stays(self):
        lines = [
            {"loras": []},
            {"loras": [{"name": "style", "strength": 0.7}]},
            {"loras": [{"name": "light.safetensors"}, {"name": "style", "strength": -0.5}]},
            {"loras": [{"name": "style", "strength": 0}]},
            {"loras": ["light"]},
            {},
        ]
        jobs = "".join(json.dumps({"prompt": "a cat", **line}) + "\n" for line in lines)
        result = self.generate("--prompts_file", "-", "--lora_dir", self.loras, "--lora",
                               f"{self.loras}/style.safetensors:0.7", stdin=jobs)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("load dit"), 1)
        images = [self.png(f"out_{i}.png") for i in range(1, 7)]
        pixels = [image[0] for image in images]
        self.assertEqual(pixels[3], pixels[0])  # strength 0 is nothing, to the bit
        self.assertEqual(pixels[5], pixels[1])  # a line without the key takes those of the command line
        self.assertEqual(len({pixels[0], pixels[1], pixels[2], pixels[4]}), 4)
        plain, _ = self.image("plain.png")
        self.assertEqual(plain[0], pixels[0])
        record = json.loads(images[2][1]["atelier"])
        self.assertEqual(record["loras"], [
            {"name": "light", "file": "loras/light.safetensors", "strength": 1.0},
            {"name": "style", "file": "loras/style.safetensors", "strength": -0.5}])
        self.assertIn('Loras: "light: 1, style: -0.5"', images[2][1]["parameters"])
        self.assertNotIn("loras", json.loads(images[0][1]["atelier"]))
        self.assertNotIn("Loras", images[0][1]["parameters"])

    def test_merged_sets_change_from_line_to_line(self):
        diff = {f"diffusion_model.{name}.diff": (shape, [0.02 * math.sin(i) for i in range(shape[0] * shape[1])])
                for name, shape in self.layers.items()}
        write_tensors(self.loras / "diff.safetensors", diff)
        self.addCleanup((self.loras / "diff.safetensors").unlink)
        lines = [[], ["style"], ["diff", "style"], ["diff"], []]
        jobs = "".join(json.dumps({"prompt": "a cat", "loras": line}) + "\n" for line in lines)
        pixels = {}
        for mode in ("hot", "merge"):
            result = self.generate("--prompts_file", "-", "--lora_dir", self.loras, "--lora_mode", mode, stdin=jobs)
            self.assertEqual(result.returncode, 0, result.stderr)
            pixels[mode] = [self.png(f"out_{i}.png")[0] for i in range(1, 6)]
            self.assertEqual(pixels[mode][4], pixels[mode][0])
            self.assertEqual(len(set(pixels[mode])), 4)
        self.assertEqual(pixels["hot"][0], pixels["merge"][0])
        self.assertEqual(pixels["hot"][3], pixels["merge"][3])  # what is no product is added to the weights anyway
        self.assertIn("--lora_mode", self.refuse("--lora_mode", "cold"))

    def test_names_that_are_nothing_in_the_model_are_listed_once(self):
        style, _ = self.image("style.png", "--lora", self.loras / "style.safetensors")
        partial, result = self.image("partial.png", "--lora", self.loras / "partial.safetensors", "--quiet")
        self.assertEqual(partial[0], style[0])
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn("LoRA partial: 1 of its names", result.stderr)
        self.assertIn('"transformer.nowhere.to_q"', result.stderr)

    def test_wrong_files_are_refused_before_the_model_loads(self):
        name, shape = next(iter(self.layers.items()))
        cases = {
            "of another model": (factors("transformer." + name, [shape[0], shape[1] + 8]), "expected"),
            "zero match": (factors("transformer.other.to_q", [8, 8]), "none of its 1 layers"),
            "rank mismatch": ({**factors("transformer." + name, shape),
                               f"transformer.{name}.lora_B.weight": ([shape[0], 3], [0.0] * (3 * shape[0]))}, "rank 2 expected"),
            "no lora": ({"a.weight": ([1, 1], [0.0])}, "is no LoRA"),
            "OFT": ({**factors(name, shape), name + ".oft_blocks": ([1], [1.0])}, "OFT is not supported"),
            "no bias": ({**factors(name, shape), "txt_norm.diff_b": ([1], [1.0])}, "the layer has no bias"),
        }
        for number, (case, (tensors, word)) in enumerate(cases.items()):
            with self.subTest(case=case):
                path = self.dir / f"wrong{number}.safetensors"
                write_tensors(path, tensors)
                errors = self.refuse("--lora", path)
                self.assertIn(word, errors)
                self.assertIn(path.name, errors)
                self.assertEqual(len(errors.splitlines()), 1, errors)
        damaged = self.dir / "damaged.safetensors"
        damaged.write_bytes((self.loras / "style.safetensors").read_bytes()[:-10])
        self.assertIn("damaged.safetensors", self.refuse("--lora", damaged))
        self.assertIn("missing.safetensors", self.refuse("--lora", "missing.safetensors:0.5"))
        self.assertIn("given twice", self.refuse("--lora", self.loras / "style.safetensors", "--lora",
                                                 f"{self.loras}/style.safetensors:0.5"))

    def test_names_of_lines_stay_in_their_folder(self):
        jobs = self.dir / "jobs.jsonl"
        for name, word in (("../outside", "is no name of a file in --lora_dir"),
                           (str(self.loras / "style"), "is no name of a file in --lora_dir"),
                           ("stile", 'did you mean "style"?')):
            with self.subTest(name=name):
                jobs.write_text(json.dumps({"prompt": "a cat", "loras": [{"name": name}]}) + "\n")
                result = self.generate("--prompts_file", "jobs.jsonl", "--lora_dir", self.loras)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("jobs.jsonl:1: loras: ", result.stderr)
                self.assertIn(word, result.stderr)
        jobs.write_text('{"prompt": "a cat", "loras": ["style"]}\n{"prompt": "a cat", "lora": "style"}\n')
        result = self.generate("--prompts_file", "jobs.jsonl")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--lora_dir, which is not given", result.stderr)
        self.assertIn('jobs.jsonl:2: "lora" is not known; did you mean "loras"?', result.stderr)
        self.assertIn("is no folder", self.refuse("--lora_dir", "nowhere"))

    def test_info_says_what_a_file_holds(self):
        result = self.run_program("lora", "info", self.loras / "style.safetensors")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"{len(self.layers)} layers, rank 2, scale 1.0", result.stdout)
        self.assertIn("  transformer.transformer_blocks.{}.attn.to_q: ", result.stdout)
        result = self.run_program("lora", "info", "--json", self.loras / "light.safetensors")
        info = json.loads(result.stdout)
        self.assertEqual(info["layers"], len(self.layers))
        self.assertEqual(info["ranks"], [{"rank": 1, "layers": len(self.layers)}])
        self.assertEqual(info["dtypes"], {"F32": 2 * len(self.layers)})
        for words, word in ((["info"], "missing"), (["show", "x"], "is not known"),
                            (["info", "none.safetensors"], "none.safetensors")):
            result = self.run_program("lora", *words)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(word, result.stderr)


if __name__ == "__main__":
    unittest.main()
