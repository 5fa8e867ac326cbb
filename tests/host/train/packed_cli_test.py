"""Generates and trains on the example model as others publish models: GGUF and 4-bit files.

    packed_cli_test.py [STEPS LEVELS [TEST...]]

How many steps a LoRA learns for, and on how many noise levels its loss is measured; 40 and 4 without. docs/storage.md has the
figures of 100 and 16.
"""
import json
import random
import shutil
import sys
import unittest

import program
from tiny_run import FolderTest, losses

try:
    import bitsandbytes.functional as bnb
    import gguf
    import numpy as np
    import torch
    from PIL import Image
    from safetensors.torch import load_file, save_file
except ImportError as problem:
    print(f"{problem.name} is not installed: skipped")
    sys.exit(77)

STEPS, LEVELS = map(int, sys.argv[1:3] or (40, 4))
sys.argv[1:3] = []
MODEL = program.REPOSITORY / "examples/shapes/model"
DATA = program.REPOSITORY / "examples/shapes/hatched"
PROFILE = {"name": "elsewhere", "memory_gib": 1, "tflops_16": 100, "tflops_32": 20, "attention_tflops": 80,
           "memory_gb_per_s": 500, "copy_gb_per_s": 12}
TRAINING_LIMIT = "32MiB"  # of which bfloat16 weights leave too little to train on
KINDS = gguf.GGMLQuantizationType
BUT_LAST_BLOCK = {"quant_options": f"{MODEL}:bitsandbytes_nf4/transformer_blocks.5",
                  "storage": "text_encoder=plain,vae=plain"}


def denoiser():
    values = {}
    for file in (MODEL / "transformer").glob("*.safetensors"):
        values.update(load_file(file))
    return values


def is_matrix(name, value):
    return value.dim() == 2 and name.startswith("transformer_blocks.") and name.endswith(".weight")


def write_gguf(path, kind):
    """As converters for ComfyUI write it: names as published, matrices of blocks as codes, the rest as it is."""
    writer = gguf.GGUFWriter(path, "qwen_image")
    writer.add_file_type(7)
    for name, value in denoiser().items():
        if is_matrix(name, value):
            writer.add_tensor(name, gguf.quants.quantize(value.float().numpy(), kind), raw_dtype=kind)
        elif value.dtype == torch.bfloat16:
            writer.add_tensor(name, value.contiguous().view(torch.uint8).numpy(), raw_dtype=KINDS.BF16)
        else:
            writer.add_tensor(name, value.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_bitsandbytes(path):
    out = {}
    for name, value in denoiser().items():
        out[name] = value
        if not is_matrix(name, value):
            continue
        out[name], state = bnb.quantize_4bit(value.bfloat16(), quant_type="nf4", compress_statistics=True)
        for key, part in state.as_dict(packed=True).items():
            out[f"{name}.{key}"] = part
    save_file(out, path)


class PackedTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        shutil.copy(MODEL / "transformer/config.json", cls.root)
        cls.files = {"Q8_0": cls.root / "q8.gguf", "Q4_0": cls.root / "q4.gguf", "nf4": cls.root / "nf4.safetensors"}
        write_gguf(cls.files["Q8_0"], KINDS.Q8_0)
        write_gguf(cls.files["Q4_0"], KINDS.Q4_0)
        write_bitsandbytes(cls.files["nf4"])

    def run_program(self, command, file=None, expect=0, **flags):
        paths = json.dumps([str(MODEL)] + ([str(file)] if file else []))
        line = program.command(*command.split(), plugin="qwen_image", model_paths=paths, device="cpu", threads=1,
                               dtype="bfloat16", **flags)
        return program.run_line(line, code=expect, OMP_NUM_THREADS="1").stderr

    def picture(self, name, file=None, **flags):
        out = self.dir / f"{name}.png"
        self.run_program("generate", file, prompt="a red circle", height=64, width=64, num_inference_steps=4, seed=5,
                         cfg_scale=1, output=out, quiet=True, **flags)
        with Image.open(out) as image:
            return np.asarray(image.convert("RGB")).astype(int), json.loads(image.text["atelier"])

    def test_pictures_are_near_those_of_the_model_and_the_same_however_codes_come(self):
        plain, _ = self.picture("plain")
        far = {}
        for kind, file in self.files.items():
            packed, record = self.picture(kind, file)
            self.assertEqual({"dit": "published"}, record["storage"])
            in_dtype, record = self.picture(f"{kind}_plain", file, storage="dit=plain")
            self.assertNotIn("storage", record)
            self.assertTrue((packed == in_dtype).all())
            streamed, _ = self.picture(f"{kind}_streamed", file, offload="dit=host")
            self.assertTrue((packed == streamed).all())
            far[kind] = abs(packed - plain).mean()
        print("mean difference from the model, of 255:", {kind: round(value, 3) for kind, value in far.items()})
        self.assertLess(far["Q8_0"], 1)
        self.assertLess(max(far.values()), 12)
        made, record = self.picture("made", storage="dit=nf4")
        self.assertEqual({"dit": "nf4"}, record["storage"])
        of_file, _ = self.picture("of_file", self.files["nf4"])
        self.assertTrue((made == of_file).all())

    def test_the_plan_takes_four_bits_where_neither_sixteen_nor_eight_fit(self):
        made, _ = self.picture("made", storage="dit=nf4")
        for limit, storage in (("64MiB", None), ("8MiB", {"dit": "fp8"}), ("5MiB", {"dit": "nf4"})):
            planned, record = self.picture(f"planned_{limit}", vram=limit, allow_storage="fp8,nf4")
            self.assertEqual(storage, record.get("storage"))
        self.assertTrue((made == planned).all())
        said = self.train("planned", max_train_steps=2, save_steps=2, storage="dit=nf4") / "step-2.safetensors"
        for limit in ("64MiB", TRAINING_LIMIT):
            out = self.train(f"planned_{limit}", max_train_steps=2, save_steps=2, vram=limit, allow_storage="nf4")
            self.assertEqual(limit == TRAINING_LIMIT, self.same_weights(said, out / "step-2.safetensors"), limit)

    @staticmethod
    def same_weights(one, other):
        a, b = load_file(one), load_file(other)
        return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())

    def test_inspect_tells_the_kinds_and_the_plan_counts_them(self):
        described = json.loads(program.run("inspect", "--json", str(self.files["Q4_0"]), code=0).stdout)
        matrices = [value for name, value in denoiser().items() if is_matrix(name, value)]
        self.assertEqual(len(matrices), described["tensors"]["dtypes"]["Q4_0"]["tensors"])
        self.assertEqual(sum(value.numel() for value in matrices) * 18 // 32,
                         described["tensors"]["dtypes"]["Q4_0"]["bytes"])
        self.assertEqual("dit", described["taken_by"]["component"])
        profile = self.dir / "profile.json"
        profile.write_text(json.dumps(PROFILE))
        bytes_of = {}
        for name, file in {"plain": None, **self.files}.items():
            out = self.dir / "plan.json"
            self.run_program("plan generate", file, prompt="x", height=64, width=64, num_inference_steps=2, json=out,
                             device_profile=profile)
            parts = {part["name"]: part for part in json.loads(out.read_text())["components"]}
            bytes_of[name] = parts["dit"]["device_bytes"]
        matrix_bytes = 2 * sum(value.numel() for value in matrices)
        for name, part in {"Q8_0": 34 / 64, "Q4_0": 18 / 64, "nf4": 0.2585}.items():
            saved = (bytes_of["plain"] - bytes_of[name]) / matrix_bytes
            self.assertAlmostEqual(1 - part, saved, delta=0.03)

    def train(self, name, file=None, **flags):
        out = self.dir / name
        defaults = dict(dataset_base_path=DATA, dataset_metadata_path=DATA / "metadata.csv", height=128, width=128,
                        lora_base_model="dit", lora_rank=16, learning_rate=2e-3, batch_size=8, dataset_repeat=100, seed=3,
                        enable_csv_log=True, cache_path=self.root / "cache", save_state="false")
        self.run_program("train", file, output_path=out, **{**defaults, **flags})
        return out

    def validation_losses(self, name, **flags):
        """Before the first step and behind the last."""
        out = self.train(name, max_train_steps=STEPS, validation_dataset_base_path=DATA,
                         validation_dataset_metadata_path=DATA / "metadata.csv", validation_steps=STEPS,
                         validation_timesteps=LEVELS, **flags)
        return list(losses(out, "validation/loss").values())

    def test_a_lora_learns_in_four_bits_as_in_bfloat16(self):
        """More than half of what the codes cost here is lost in the last of six blocks (docs/storage.md)."""
        storages = {"plain": {}, "nf4": {"storage": "dit=nf4"}, "nf4 but the last block": BUT_LAST_BLOCK}
        for schedule in ("constant", "cosine"):
            ends = {}
            for name, flags in storages.items():
                begin, ends[name] = self.validation_losses(f"{schedule} {name}", lr_scheduler=schedule, **flags)
                self.assertLess(ends[name], 0.5 * begin)
            above = {name: 100 * (end / ends["plain"] - 1) for name, end in ends.items()}
            print(f"{schedule} rate, validation loss above that on plain weights, %:",
                  {name: round(value, 2) for name, value in above.items()})
            self.assertLess(abs(above["nf4 but the last block"]), 2)
            self.assertLess(above["nf4 but the last block"], 0.5 * above["nf4"])
            self.assertLess(above["nf4"], 4)

    def test_a_lora_is_trained_and_used_on_the_codes_of_a_file(self):
        lora = self.train("lora", self.files["Q4_0"], max_train_steps=6, save_steps=6) / "step-6.safetensors"
        base, _ = self.picture("base", self.files["Q4_0"])
        hot, _ = self.picture("hot", self.files["Q4_0"], lora=f"{lora}:2")
        merged, _ = self.picture("merged", self.files["Q4_0"], lora=f"{lora}:2", lora_mode="merge")
        self.assertGreater(abs(hot - base).mean(), 0)
        self.assertLess(abs(hot - merged).mean(), 1)

    def test_damaged_files_are_refused_in_one_line(self):
        whole = self.files["Q4_0"].read_bytes()
        numbers = random.Random(1)
        for i in range(12):
            damaged = bytearray(whole[:numbers.randrange(len(whole))] if i % 2 else whole)
            for _ in range(8):
                damaged[numbers.randrange(min(len(damaged), 4096))] ^= 1 << numbers.randrange(8)
            (self.dir / "damaged.gguf").write_bytes(damaged)
            result = program.run("inspect", str(self.dir / "damaged.gguf"))
            self.assertIn(result.returncode, (0, 2, 3, 4, 5))
            self.assertLessEqual(result.stderr.count("\n"), 1, result.stderr)
        (self.dir / "cut.gguf").write_bytes(whole[:len(whole) - 1000])
        refused = self.run_program("generate", self.dir / "cut.gguf", expect=None, prompt="x")
        self.assertIn("[GGUF_OFFSET]", refused)


if __name__ == "__main__":
    unittest.main()
