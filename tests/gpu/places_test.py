"""Resident, from the host, from files and with offloaded activations: the same bits, as a user runs them.

    places_test.py [--device cuda]
"""
import argparse
import hashlib
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))  # where CMake does not say it
import program  # noqa: E402
from tiny_run import TinyRuns, data_of, on_data, write_dataset  # noqa: E402

BLOCKS, SIDE = 4, 64
DEVICE = "cpu"


class Places(TinyRuns):
    denoiser_blocks = BLOCKS

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.root / "data"
        write_dataset(cls.data, count=3)

    def run_program(self, command, **flags):
        defaults = dict(self.on_model, device=DEVICE, threads=None, deterministic=True if DEVICE != "cpu" else None)
        return program.run_line(program.command(command, **{**defaults, **flags}), code=0, timeout=120).stderr

    def image(self, **flags):
        """A hash of the pixels, and what was said."""
        file = self.root / "image.png"
        flags = {"seed": 3, "vram": "off", "num_inference_steps": 3, **flags}
        said = self.run_program("generate", prompt="a cat", height=SIDE, width=SIDE, cfg_scale=3, no_metadata=True,
                                output=file, **flags)
        return hashlib.sha256(file.read_bytes()).hexdigest(), said

    def trained(self, **flags):
        """The values of a LoRA behind three steps."""
        folder = self.root / "out"
        shutil.rmtree(folder, ignore_errors=True)
        flags = {"vram": "off", **flags}
        self.run_program("train", **on_data(self.data), lora_base_model="dit", lora_rank=4, max_train_steps=3,
                         learning_rate=1e-3, output_path=folder, cache_path=self.root / "cache", save_state="false",
                         save_steps=3, **flags)
        return data_of(folder / "step-3.safetensors")

    def test_an_image_has_the_same_bits_wherever_blocks_rest(self):
        resident, _ = self.image()
        everywhere = "dit={0},text_encoder={0},vae={0}"
        for flags in ({"offload": "dit=host"}, {"offload": "dit=disk"}, {"offload": everywhere.format("host")},
                      {"offload": everywhere.format("disk"), "prefetch": 0},
                      {"offload": "dit=host", "resident_blocks": BLOCKS // 2, "prefetch": 1}):
            with self.subTest(**flags):
                picture, said = self.image(**flags)
                self.assertEqual(resident, picture)
                self.assertRegex(said, r"dit: \d+ of 4 blocks stayed on the device")
        self.assertNotEqual(resident, self.image(seed=4)[0])  # the comparison sees a difference

    def test_an_image_has_the_same_bits_with_graphs(self):
        if DEVICE == "cpu":
            self.skipTest("the CPU has no CUDA graphs")
        lora = self.root / "lora.safetensors"
        self.trained(activation_memory_budget="none")
        shutil.copy(self.root / "out/step-3.safetensors", lora)
        for flags in ({}, {"cfg_batch": "off"}, {"lora": f"{lora}:2"}, {"offload": "dit=host"},
                      {"offload": "dit=host", "resident_blocks": BLOCKS // 2, "prefetch": 1, "lora": lora},
                      {"storage": "dit=fp8"}, {"storage": "dit=fp8", "compute": "dit=w8a8"}, {"kernels": "fused"}):
            with self.subTest(**flags):
                flags = {"num_inference_steps": 8, **flags}
                plain, _ = self.image(cuda_graphs="off", **flags)
                picture, said = self.image(cuda_graphs="on", **flags)
                self.assertEqual(plain, picture)
                self.assertRegex(said, r"CUDA graphs: \d+ recorded, replayed \d\d+ times")

    def test_a_lora_has_the_same_bits_however_activations_are_kept(self):
        kept = self.trained(activation_memory_budget="none")
        for flags in ({"activation_memory_budget": "full"}, {"activation_memory_budget": 0.5},
                      {"activation_memory_budget": 0.5, "offload": "dit=host"}, {"cpu_offload": True}):
            with self.subTest(**flags):
                self.assertEqual(kept, self.trained(**flags))
        self.assertNotEqual(kept, self.trained(activation_memory_budget="none", seed=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    options, rest = parser.parse_known_args()
    DEVICE = options.device
    if DEVICE != "cpu" and not shutil.which("nvidia-smi"):
        print("skipped: no GPU here: nvidia-smi finds none")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])
