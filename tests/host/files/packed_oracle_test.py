"""Compares the values of packed tensors, and codes of 4 bits, with those of gguf-py and bitsandbytes, to the bit.

usage: packed_oracle_test.py VALUES_PROGRAM
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling takes longer than what is compiled
try:
    import bitsandbytes.functional as bnb
    import gguf
    import numpy as np
    import torch
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
    from safetensors.torch import load_file, save_file
except ImportError as problem:
    print(f"{problem.name} is not installed: skipped")
    sys.exit(77)

PROGRAM = sys.argv.pop(1)
KINDS = gguf.GGMLQuantizationType
LEGACY = [KINDS.Q4_0, KINDS.Q4_1, KINDS.Q5_0, KINDS.Q5_1, KINDS.Q8_0]
SUPER = [KINDS.Q2_K, KINDS.Q3_K, KINDS.Q4_K, KINDS.Q5_K, KINDS.Q6_K]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def bnb_values(codes, state):
    """What bitsandbytes makes of codes. Where rows are no whole blocks, its loops for AVX-512 take scales of other
    blocks (0.50.2), and its generic operator does not."""
    if state.shape[-1] % state.blocksize == 0:
        return bnb.dequantize_4bit(codes, state)
    scales = state.absmax
    if state.nested:
        scales = bnb.dequantize_blockwise(scales, state.state2) + state.offset
    flat = codes.view(torch.uint8).reshape(-1)
    return _dequantize_4bit_compute(flat, scales, state.code, state.blocksize, state.shape, state.dtype)


class Packed(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.dir = pathlib.Path(self.folder.name)

    def run_program(self, what, kind, path):
        out = self.dir / "out.safetensors"
        done = subprocess.run([PROGRAM, what, kind, path, out], capture_output=True, text=True)
        self.assertEqual("", done.stderr)
        return load_file(out)

    def same(self, expected, actual, what):
        self.assertEqual(expected.dtype, actual.dtype, what)
        self.assertEqual(expected.shape, actual.shape, what)
        bits = {4: torch.int32, 2: torch.int16, 1: torch.int8}[expected.element_size()]
        nan = expected.isnan() if expected.is_floating_point() else torch.zeros_like(expected, dtype=torch.bool)
        self.assertTrue(torch.equal(nan, actual.isnan() if actual.is_floating_point() else nan), what)
        different = (expected.view(bits) != actual.view(bits)) & ~nan
        self.assertEqual(0, int(different.sum()), f"{what}: {different.nonzero()[:4].tolist()}")

    def write_gguf(self, tensors, shapes=None):
        path = self.dir / "model.gguf"
        writer = gguf.GGUFWriter(path, "qwen_image")
        for name, shape in (shapes or {}).items():
            writer.add_array(f"comfy.gguf.orig_shape.{name}", list(shape))
        for name, (data, kind) in tensors.items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def check_gguf(self, tensors):
        path = self.write_gguf(tensors)
        for name, dtype in DTYPES.items():
            made = self.run_program("values", name, path)
            self.assertEqual(set(tensors), set(made))
            for key, (data, kind) in tensors.items():
                expected = torch.from_numpy(gguf.quants.dequantize(data, kind).copy()).to(dtype)
                self.same(expected, made[key], f"{key} as {name}")

    def test_values_of_what_gguf_py_quantizes(self):
        random = np.random.default_rng(1)
        values = random.standard_normal((7, 512)).astype(np.float32) * 0.05
        values[2] = 0
        values[3] *= 1e-6
        tensors = {kind.name: (gguf.quants.quantize(values, kind), kind) for kind in LEGACY + [KINDS.BF16]}
        tensors["F16"] = (values.astype(np.float16), KINDS.F16)
        tensors["F32"] = (values, KINDS.F32)
        self.check_gguf(tensors)

    def test_values_of_random_codes(self):
        """All codes and all scales, infinite ones and NaN as well."""
        random = np.random.default_rng(2)
        tensors = {}
        for kind in LEGACY + SUPER:
            block, size = gguf.GGML_QUANT_SIZES[kind]
            data = random.integers(0, 256, (5, 8 * 256 // block * size), dtype=np.uint8)
            tensors[kind.name] = (data, kind)
        with np.errstate(all="ignore"):
            self.check_gguf(tensors)

    def test_values_of_a_tensor_of_another_shape(self):
        random = np.random.default_rng(3)
        data = gguf.quants.quantize(random.standard_normal((8, 64)).astype(np.float32), KINDS.Q4_0)
        path = self.write_gguf({"conv.weight": (data, KINDS.Q4_0)}, {"conv.weight": (8, 4, 2, 2, 4)})
        expected = torch.from_numpy(gguf.quants.dequantize(data, KINDS.Q4_0)).view(8, 4, 2, 2, 4)
        self.same(expected, self.run_program("values", "float32", path)["conv.weight"], "conv.weight")

    def weights(self):
        torch.manual_seed(4)
        weights = {
            "plain": torch.randn(96, 256) * 0.02,
            "rows": torch.randn(33, 48),  # rows are no whole blocks
            "short": torch.randn(5, 7),  # nor is all
            "zeros": torch.zeros(4, 128),
            "large": torch.randn(512, 1024) * torch.logspace(-4, 2, 512).unsqueeze(1),
        }
        return {f"{name}.{dtype}": weight.to(getattr(torch, dtype))
                for name, weight in weights.items() for dtype in ("float32", "bfloat16", "float16")}

    def test_files_of_bitsandbytes(self):
        for kind in ("nf4", "fp4"):
            for nested in (False, True):
                for storage in (torch.uint8, torch.bfloat16):
                    tensors, expected = {}, {}
                    for name, weight in self.weights().items():
                        if storage != torch.uint8 and (weight.numel() + 1) // 2 % 2:
                            continue
                        codes, state = bnb.quantize_4bit(
                            weight, quant_type=kind, compress_statistics=nested, quant_storage=storage)
                        tensors[f"{name}.weight"] = codes
                        for key, value in state.as_dict(packed=True).items():
                            tensors[f"{name}.weight.{key}"] = value
                        expected[f"{name}.weight"] = bnb_values(codes, state)
                    path = self.dir / "bnb.safetensors"
                    save_file(tensors, path)
                    for dtype in DTYPES:
                        made = self.run_program("values", dtype, path)
                        self.assertEqual(set(expected), set(made))
                        for name, value in expected.items():
                            if value.dtype == DTYPES[dtype]:
                                self.same(value, made[name], f"{kind}, {nested}, {name}")

    def test_codes_of_bitsandbytes(self):
        for kind in ("nf4", "fp4"):
            path = self.dir / "plain.safetensors"
            save_file(self.weights(), path)
            made = self.run_program("codes", kind, path)
            for name, weight in self.weights().items():
                codes, state = bnb.quantize_4bit(weight, quant_type=kind, compress_statistics=True)
                parts = [codes, state.code, state.absmax, state.state2.code, state.state2.absmax, state.offset]
                for number, part in enumerate(parts):
                    self.same(part.reshape(-1), made[f"{name}.{number}"].reshape(-1), f"{kind}, {name}, part {number}")


if __name__ == "__main__":
    unittest.main()
