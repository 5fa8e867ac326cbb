"""A family of two experts through the program: judged, drawn with, trained.

    experts_test.py PLUGIN WRITE_MODEL
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PLUGIN, WRITE_MODEL = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
PROGRAM = os.environ["ATELIER_BIN"]
COMPONENTS = ("text_encoder", "vae", "dit", "dit_low")
HINTS = json.dumps({"*dit_low*": {"component": "dit_low"}})


def pixels(path):
    """The compressed pixels of a PNG, without what is written beside them."""
    data, at, found = path.read_bytes(), 8, b""
    while at < len(data):
        length = int.from_bytes(data[at:at + 4], "big")
        if data[at + 4:at + 8] == b"IDAT":
            found += data[at + 8:at + 8 + length]
        at += 12 + length
    return found


def tensor_names(path):
    data = path.read_bytes()
    header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
    return {name for name in header if name != "__metadata__"}


class Experts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_experts_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        subprocess.run([WRITE_MODEL, PLUGIN, str(cls.folder / "model")], check=True)

    def run_program(self, *arguments, code=0):
        result = subprocess.run([PROGRAM, *map(str, arguments)], cwd=self.folder, text=True, capture_output=True,
                                stdin=subprocess.DEVNULL, timeout=300)
        self.assertEqual(code, result.returncode, result.stdout + result.stderr)
        return result.stdout + result.stderr

    def model(self, changed=None):
        """The flags of the model; `changed`: the component whose weights are another's."""
        folders = {name: self.folder / "model" / name for name in COMPONENTS}
        if changed:
            other = self.folder / f"other_{changed}" / changed
            if not other.is_dir():
                shutil.copytree(folders["dit_low" if changed == "dit" else "dit"], other)
            folders[changed] = other
        return ["--plugin", PLUGIN, "--model_paths", json.dumps([str(f) for f in folders.values()]),
                "--model_hints", HINTS]

    def draw(self, name, *more, changed=None, seed=3):
        output = self.folder / f"{name}.png"
        self.run_program("generate", *self.model(changed), "--prompt", "a cat", "--height", 16, "--width", 24,
                         "--num_inference_steps", 4, "--seed", seed, "--output", output, *more)
        return pixels(output)

    def test_it_passes_the_conformance_suite(self):
        self.run_program("check-plugin", PLUGIN)

    def test_without_a_hint_both_experts_are_the_first(self):
        flags = self.model()
        said = self.run_program("generate", *flags[:flags.index("--model_hints")], "--prompt", "a cat",
                                "--output", "x.png", code=2)
        self.assertIn("both are the component dit", said)

    def test_every_expert_has_its_noise_levels(self):
        plain = self.draw("plain")
        self.assertEqual(plain, self.draw("again"))
        for component in ("dit", "dit_low"):
            self.assertNotEqual(plain, self.draw("changed_" + component, changed=component))

    def test_a_picture_beside_the_prompt_is_read(self):
        plain = self.draw("before")
        self.assertNotEqual(plain, self.draw("after", "--first_image", self.folder / "before.png"))

    def test_a_lora_of_each_expert_is_trained(self):
        data = self.folder / "data"
        data.mkdir()
        for seed in range(2):
            self.draw(f"data/{seed}", seed=seed)
        (data / "metadata.csv").write_text("image,prompt\n0.png,a cat\n1.png,a dog\n")
        plain = self.draw("untrained")
        for component in ("dit", "dit_low"):
            output = self.folder / f"lora_{component}"
            self.run_program("train", *self.model(), "--dataset_base_path", data, "--dataset_metadata_path",
                             data / "metadata.csv", "--lora_base_model", component, "--lora_rank", 4,
                             "--learning_rate", 1e-1, "--max_train_steps", 3, "--save_steps", 3,
                             "--output_path", output)
            lora = output / "step-3.safetensors"
            self.assertEqual(8, len(tensor_names(lora)))
            if component == "dit":
                self.assertNotEqual(plain, self.draw("trained", "--lora", lora))


if __name__ == "__main__":
    unittest.main()
