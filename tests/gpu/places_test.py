"""Resident, from the host, from files and with offloaded activations: the same bits, as a user runs them.

    places_test.py [--device cuda]
"""
import argparse
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("ATELIER_BIN") or str(ROOT / "build/release/bin/atelier")
BLOCKS, SIDE = 4, 64
DEVICE = "cpu"


def write_model(folder):
    """The tiny example model with more blocks in its denoiser."""
    spec = importlib.util.spec_from_file_location("make", ROOT / "examples/tiny_model/make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    make.DENOISER_BLOCKS = BLOCKS
    make.make(folder, seed=0)


def write_png(path, seed):
    rows = bytearray()
    for y in range(SIDE):
        rows.append(0)
        for x in range(SIDE):
            rows += bytes(((x * 3 + seed * 40) % 256, (y * 3) % 256, (x + y + seed) % 256))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b""))


def write_dataset(folder):
    folder.mkdir()
    lines = ["image,prompt"]
    for seed in range(3):
        write_png(folder / f"{seed}.png", seed)
        lines.append(f"{seed}.png,number {seed}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")


def values_of(path):
    """The bytes of a safetensors file behind its header."""
    data = path.read_bytes()
    return data[8 + struct.unpack_from("<Q", data)[0]:]


class Places(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.root = pathlib.Path(tempfile.mkdtemp(prefix="atelier_places_"))
        cls.addClassCleanup(shutil.rmtree, cls.root)
        write_model(cls.root / "model")
        write_dataset(cls.root / "data")

    def run_program(self, command, **flags):
        model = {"plugin": "qwen_image", "model_paths": json.dumps([str(self.root / "model")]), "device": DEVICE}
        words = [PROGRAM, command] if DEVICE == "cpu" else [PROGRAM, command, "--deterministic"]
        for name, value in {**model, **flags}.items():
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        result = subprocess.run(words, capture_output=True, text=True, timeout=120)
        self.assertEqual(0, result.returncode, result.stderr[-3000:])
        return result.stderr

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
        self.run_program("train", dataset_base_path=self.root / "data",
                         dataset_metadata_path=self.root / "data/metadata.csv", lora_base_model="dit",
                         lora_rank=4, max_train_steps=3, learning_rate=1e-3, output_path=folder,
                         cache_path=self.root / "cache", save_state="false", save_steps=3, **flags)
        return values_of(folder / "step-3.safetensors")

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
