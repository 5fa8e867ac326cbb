"""Two denoisers, trained in one run within the memory of one: they learn what they learn without a limit.

    turns_test.py EXPERTS WAN WRITE_MODEL
"""
import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

import program
from PIL import Image
from tiny_run import tensors

sys.path.insert(0, str(program.REPOSITORY / "tests/plugins"))
from wan_scripts_test import write_tokenizer  # noqa: E402

EXPERTS, WAN, WRITE_MODEL = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(3))
BLOCKS, STEPS = 8, 6
SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
FILES = ("trained", "optimizer", "ema")


class Turns(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_turns_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for name, plugin in (("experts", EXPERTS), ("wan", WAN)):
            program.run_line([WRITE_MODEL, plugin, str(cls.folder / name), str(BLOCKS)], code=0)
        write_tokenizer(cls.folder / "wan/tokenizer")
        for part, published in (("dit", "high_noise_model"), ("dit2", "low_noise_model")):
            (cls.folder / "wan" / part).rename(cls.folder / "wan" / published)
        data = cls.folder / "data"
        data.mkdir()
        for number in range(2):
            Image.new("RGB", (48, 32), (200 * number, 90, 40)).save(data / f"{number}.png")
        (data / "metadata.csv").write_text("image,prompt\n0.png,a cat\n1.png,a dog\n")

    def train(self, name, run, whole, *more, steps=STEPS, code=0):
        plugin, second, parts = ((EXPERTS, "dit_low", ["text_encoder", "vae", "dit", "dit_low"]) if name == "experts" else
                                 (WAN, "dit2", ["text_encoder", "tokenizer", "vae", "high_noise_model", "low_noise_model"]))
        both = f"dit,{second}"
        which = ["--trainable_models", both] if whole else ["--lora_base_model", both, "--lora_rank", 2]
        paths = json.dumps([str(self.folder / name / part) for part in parts])
        return program.run("train", "--plugin", plugin, "--model_paths", paths, "--dataset_base_path", self.folder / "data",
                           "--dataset_metadata_path", self.folder / "data/metadata.csv", "--learning_rate", 1e-2,
                           "--save_steps", 1, "--checkpoints_total_limit", 0, "--ema_decay", 0.9, "--threads", 1,
                           "--use_gradient_checkpointing", "--max_train_steps", steps, "--output_path", self.folder / run,
                           *which, *more, code=code, cwd=self.folder)

    def told(self, said, what):
        found = re.search(rf"{what} ([0-9.]+) (\w+)", said)
        self.assertIsNotNone(found, said)
        return float(found[1]) * SIZES[found[2]]

    def state(self, run, step):
        folder = self.folder / run / f"checkpoints/step-{step:08d}"
        return {name: tensors(folder / f"{name}.safetensors") for name in FILES}

    def check(self, name, whole):
        here, tight, again = (f"{name}_{run}_{whole}" for run in ("here", "tight", "again"))
        self.train(name, here, whole, "--device", "cpu")
        said = self.train(name, tight, whole, "--device", "simulated:64MiB:1GB/s", "--vram", "0.01MiB", code=4).stderr
        limit = int(1.1 * self.told(said, "needs") / 1024) + 1
        device = ["--device", f"simulated:{limit}KiB:1GB/s"]
        said = self.train(name, tight, whole, *device).stderr
        self.assertEqual(2, len(re.findall(r"^.*dit.* of 8 blocks.*from the host", said, re.MULTILINE)), said)
        self.assertLessEqual(self.told(said, "measured"), limit * 1024)
        self.assertNotIn("out of memory", said)
        self.assertEqual(self.state(here, STEPS), self.state(tight, STEPS))
        self.train(name, again, whole, *device, steps=3)
        self.train(name, again, whole, *device, "--resume", self.folder / again)
        self.assertEqual(self.state(here, STEPS), self.state(again, STEPS))

    def test_loras_of_both(self):
        for name in ("experts", "wan"):
            self.check(name, whole=False)

    def test_what_one_expert_alone_learns_is_for_that_one(self):
        parts = ["text_encoder", "tokenizer", "vae", "low_noise_model"]
        paths = json.dumps([str(self.folder / "wan" / part) for part in parts])
        both = ["--plugin", WAN, "--model_paths", json.dumps([str(self.folder / "wan" / f"{name}_noise_model")
                                                              for name in ("high", "low")])]
        alone = ["--plugin", WAN, "--model_paths", json.dumps([str(self.folder / "wan/low_noise_model")])]
        run = self.folder / "alone"
        program.run("train", "--plugin", WAN, "--model_paths", paths, "--dataset_base_path", self.folder / "data",
                    "--dataset_metadata_path", self.folder / "data/metadata.csv", "--learning_rate", 1e-2, "--lora_base_model",
                    "dit", "--lora_rank", 2, "--threads", 1, "--max_train_steps", 1, "--output_path", run, code=0)
        lora = run / "step-1.safetensors"
        self.assertEqual("dit2", self.component_of(lora))
        for name, model in (("both", both), ("one", alone)):
            merged = self.folder / f"merged_{name}.safetensors"
            program.run("lora", "merge", *model, "--output", merged, lora, code=0)
            self.assertEqual("dit2", self.component_of(merged))
        # The merged file is that expert alone, too, whatever it is called.
        merged.rename(self.folder / "neutral.safetensors")
        told = json.loads(program.run("inspect", self.folder / "neutral.safetensors", "--plugin", WAN, "--json", code=0).stdout)
        self.assertEqual(("dit", "wan2.2-t2v-a14b"), tuple(told["taken_by"][key] for key in ("component", "variant")))
        again = ["--plugin", WAN, "--model_paths", self.folder / "neutral.safetensors"]
        program.run("lora", "merge", *again, "--output", self.folder / "twice.safetensors", lora, code=0)
        self.assertEqual("dit2", self.component_of(self.folder / "twice.safetensors"))

    @staticmethod
    def component_of(file):
        with open(file, "rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        return header["__metadata__"]["atelier.component"]

    def test_whole_models(self):
        self.check("experts", whole=True)


if __name__ == "__main__":
    unittest.main()
