"""atelier check-plugin --reference: a component's numbers beside those of another implementation, which stands in for it
here: what `atelier probe` gives, as it is and changed."""
import json
import unittest

import numpy as np
from safetensors.numpy import load_file, save_file

from program import run
from tiny_run import TinyRuns


class Reference(TinyRuns):
    """References for the denoiser of the tiny model."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        random = np.random.default_rng(5)
        cls.inputs = {
            "latents": random.standard_normal((1, 16, 1, 8, 8), dtype=np.float32),
            "sigma": np.array([0.7], dtype=np.float32),
            "prompt_embeds": random.standard_normal((1, 5, cls.text_width()), dtype=np.float32)
        }
        save_file(cls.inputs, cls.root / "in.safetensors")
        run("probe", "--plugin", "qwen_image", "--component", "dit", "--model_paths", json.dumps([str(cls.model)]),
            "--inputs", cls.root / "in.safetensors", "--output", cls.root / "out.safetensors", "--gradients",
            "--trainable", "*.attn.to_q.weight", code=0)
        cls.outputs = load_file(cls.root / "out.safetensors")

    @classmethod
    def text_width(cls):
        return json.loads((cls.model / "transformer/config.json").read_text())["joint_attention_dim"]

    def write(self, expected, metadata=None, inputs=None, name="reference.safetensors"):
        tensors = {**(self.inputs if inputs is None else inputs),
                   **{"expected." + key: np.ascontiguousarray(value) for key, value in expected.items()}}
        path = self.dir / name
        save_file(tensors, path, {"component": "dit"} if metadata is None else metadata)
        return path

    def check(self, *references, code, **flags):
        """The findings about references, by name: whether it passed, and what is said."""
        words = [word for path in references for word in ("--reference", path)]
        words += [word for key, value in flags.items() for word in ("--" + key, value)]
        result = run("check-plugin", "qwen_image", "--model_paths", json.dumps([str(self.model)]), "--json", *words,
                     code=code)
        lines = map(json.loads, result.stdout.splitlines())
        return {line["check"].removeprefix("reference: "): (line["passed"], line["detail"])
                for line in lines if line["check"].startswith("reference: ")}

    def test_equal_numbers_pass_and_others_are_told_apart(self):
        weight = next(name for name in self.outputs if name.startswith("grad.") and name.endswith("to_q.weight"))
        velocity = self.outputs["velocity"]
        near = velocity + 5e-5 * np.abs(velocity).max()
        right = self.write({**self.outputs, "velocity": near})
        wrong = self.write({"velocity": -velocity, "grad.latents": self.outputs["grad.latents"] * 1.01,
                            weight: self.outputs[weight][:, :-1], "speed": velocity}, name="wrong.safetensors")
        found = self.check(right, code=0)
        self.assertEqual({f"dit.{name}" for name in self.outputs}, set(found))
        self.assertTrue(all(passed for passed, _ in found.values()), found)
        self.assertRegex(found["dit.velocity"][1], r"^5(\.0\d*)?e-05 of the largest value$")
        self.assertTrue(self.check(right, code=3, tolerance="1e-5")["dit.velocity"][1].startswith("differs by "))

        found = self.check(wrong, code=3)
        self.assertFalse(any(passed for passed, _ in found.values()), found)
        for name, said in (("velocity", "its sign is turned"), ("grad.latents", "differs by 0.0099"),
                           (weight, "its shape is "), ("speed", "gives nothing of this name")):
            self.assertIn(said, found["dit." + name][1])

    def test_a_component_that_refuses_its_inputs_is_a_finding(self):
        found = self.check(self.write(self.outputs, inputs={"latents": self.inputs["latents"]}), code=3)
        self.assertEqual(["dit computes"], list(found))
        self.assertIn("is missing [INVALID_ARGUMENT]", found["dit computes"][1])

    def test_a_component_that_there_is_not_is_a_finding(self):
        found = self.check(self.write(self.outputs, {"component": "ditt"}), code=3)
        self.assertEqual(["ditt opens"], list(found))
        self.assertIn('qwen_image has "tokenizer"', found["ditt opens"][1])

    def test_files_that_are_no_references_are_refused_at_once(self):
        one = self.write(self.outputs)
        for words, said in (
            (["--reference", self.write(self.outputs, {}, name="a.safetensors")], "its metadata names no component"),
            (["--reference", self.write({}, name="b.safetensors")], "it expects nothing"),
            (["--reference", self.dir / "none.safetensors"], "none.safetensors"),
        ):
            told = run("check-plugin", "qwen_image", "--model_paths", json.dumps([str(self.model)]), *words, code=2)
            self.assertIn(said, told.stderr)
            self.assertEqual("", told.stdout)
        self.assertIn("--reference is given without a model",
                      run("check-plugin", "qwen_image", "--reference", one, code=2).stderr)


if __name__ == "__main__":
    unittest.main()
