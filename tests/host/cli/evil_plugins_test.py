#!/usr/bin/env python3
"""Plugins that crash, hang or give nonsense in one of their functions: the program names it in one line."""

import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time
import unittest
from concurrent import futures

import program
from tiny_run import FolderTest

PLUGIN = program.PROGRAM.parent.parent / "tests/fake_plugins/evil_plugin.so"
WIDTH, LAYERS, PIXELS = 32, 2, 48
SEGV, ABORT = "it ends the process (Segmentation fault)", "it ends the process (Aborted)"
CRASHES = {
    "detect:segv": ("toy.detect", SEGV),
    "detect:stack": ("toy.detect", SEGV),
    "weight_map:abort": ("toy.weight_map", ABORT),
    "make_model:fpe": ("toy.make_model", "it ends the process (Floating point exception)"),
    "inputs:nowhere": ("toy.inputs", SEGV),
    "detect:alarm": ("toy.detect", "it ends the process (a timer that it has set)"),
    "detect:thread aborts": ("", ABORT),
    "detect:thread throws": ("", "it throws lost"),
    "detect:thread terminates": ("", "it throws the program ended itself"),
    "denoise:exit": ("toy.denoise", "it ends the process with exit()"),
}
WRONG = {
    "inputs:many": ("toy.inputs", "it gives 1000000000 entries"),
    "encode_stages:many": ("toy.encode_stages", "it gives 1000000000 entries"),
    "latent_spec:zero": ("toy.latent_spec", "it gives spatial_stride 0"),
    "latent_spec:odd": ("toy.latent_spec", "it gives pixel_multiple 2, which is no multiple of spatial_stride 4"),
    "make_model:nothing": ("toy.make_model", "it gives no model"),
    "encode:undefined": ("toy.encode", 'it gives "prompt_embeds" undefined'),
    "tokenize:large": ("toy.encode", "token id 1099511627776 of a vocabulary of 256"),
    "denoise:undefined": ("toy.denoise", "it gives a velocity undefined"),
    "denoise:shape": ("toy.denoise", "it gives Float[3072], Float[1, 48, 1, 8, 8] expected"),
    "denoise:int64": ("toy.denoise", "it gives Long[1, 48, 1, 8, 8], Float[1, 48, 1, 8, 8] expected"),
    "decode:nothing": ("toy.decode", "it gives 0 frames, 1 expected"),
    "decode:undefined": ("toy.decode", "it gives frames undefined"),
    "decode:small": ("toy.decode", "it gives frames Float[1, 3, 1, 7, 7], Float[1, 3, 1, 32, 32] expected"),
    "decode:double": ("toy.decode", "it gives frames Double[1, 3, 1, 32, 32], Float[1, 3, 1, 32, 32] expected"),
    "decode:twice": ("toy.decode", "it gives 2 frames, 1 expected"),
}
THROWS = {function + ":throw": ("toy." + function, "it throws shape '[3]' is invalid for input of size 2; ask its author")
          for function in ("encode", "denoise", "decode")}
# Of code that needs values, where it is run without them.
NEEDS_VALUES = {
    "denoise:item": "Tensor::item() needs values, and tensors of a dry run have none",
    "denoise:nonzero": "aten::nonzero gives a size that follows from values, and tensors of a dry run have none",
    "denoise:host": "Expected all tensors to be on the same device, but found at least two devices, meta and cpu!",
}
# Of training, whose samples are encoded before a step.
WRONG_SAMPLES = {
    "encode:nothing": 'it gives no "latents" for what is to be learnt',
    "encode:shape": "it gives latents Float[3072], Float[48, 1, 8, 8] expected",
    "encode:int64": "it gives latents Long[48, 1, 8, 8], Float[48, 1, 8, 8] expected",
}


def write_model(folder):
    generator = random.Random(1)

    def write(path, shapes):
        header, data = {}, b""
        for name, shape in shapes.items():
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            values = struct.pack(f"<{count}f", *(generator.gauss(0, 0.1) for _ in range(count)))
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)

    write(folder / "text.safetensors", {"bytes.weight": [256, WIDTH]})
    linears = {"embed": (PIXELS, WIDTH), "time": (1, WIDTH), "out": (WIDTH, PIXELS)}
    shapes = {}
    for i in range(LAYERS):
        shapes[f"blocks.{i}.norm.weight"] = [WIDTH]
        for name, (width, out) in {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH),
                                   "down": (4 * WIDTH, WIDTH)}.items():
            linears[f"blocks.{i}.{name}"] = (width, out)
    for name, (width, out) in linears.items():
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = [out, width], [out]
    write(folder / "dit.safetensors", shapes)


class EvilTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_model(cls.root)
        (cls.root / "image.ppm").write_bytes(b"P6 32 32 255\n" + bytes(32 * 32 * 3))
        (cls.root / "metadata.csv").write_text("image,prompt\nimage.ppm,a\n")
        model = {"plugin": PLUGIN, "threads": 1, "dtype": "float32",
                 "model_paths": json.dumps([str(cls.root / n) for n in ("text.safetensors", "dit.safetensors")])}
        cls.draw = {**model, "prompt": "x", "height": 32, "width": 32, "num_inference_steps": 1, "cfg_scale": 1}
        cls.learn = {**model, "dataset_base_path": cls.root, "dataset_metadata_path": cls.root / "metadata.csv",
                     "max_pixels": 1024, "lora_base_model": "dit", "lora_rank": 2, "max_train_steps": 1}

    def generate(self, evil, **environment):
        return program.run_line(program.command("generate", output=self.root / f"a{evil}.png", **self.draw),
                                EVIL=evil, OMP_NUM_THREADS="1", **environment)

    def check_told(self, result, where, says, tag):
        self.assertEqual(3, result.returncode, result.stderr)
        lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        self.assertEqual(1, len(lines), result.stderr)
        self.assertTrue(lines[0].startswith(f"error: {where}{': ' if where else ''}"), lines[0])
        self.assertRegex(lines[0], r"evil_plugin\.so|toy\.")
        self.assertIn(says, lines[0])
        self.assertIn(tag, lines[0])
        self.assertNotIn("report it", result.stderr)
        self.assertNotIn("frame #", result.stderr)

    def check_all(self, cases, tag):
        with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            results = dict(zip(cases, pool.map(self.generate, cases)))
        for evil, (where, says) in cases.items():
            with self.subTest(evil=evil):
                self.check_told(results[evil], where, says, tag)


class EvilPluginsTest(EvilTest):

    def test_one_that_does_nothing_evil_draws_and_passes_the_suite(self):
        result = self.generate("")
        self.assertEqual(0, result.returncode, result.stderr)
        program.run("check-plugin", PLUGIN, code=0, OMP_NUM_THREADS="1")

    def test_crashes_name_the_function(self):
        self.check_all(CRASHES, "[PLUGIN_")

    def test_wrong_results_name_the_function(self):
        self.check_all(WRONG, "[PLUGIN_WRONG]")

    def test_exceptions_name_the_function_and_the_file(self):
        self.check_all(THROWS, "[PLUGIN_THROWS]")
        self.assertIn("frame #", self.generate("denoise:throw", TORCH_SHOW_CPP_STACKTRACES="1").stderr)

    def plan(self, evil):
        return program.run_line(program.command("plan", "generate", vram="1GiB", **self.draw), EVIL=evil,
                                OMP_NUM_THREADS="1")

    def test_code_that_needs_values_is_named_by_the_suite(self):
        evil = "denoise:item"
        suite = program.run("check-plugin", PLUGIN, code=3, EVIL=evil, OMP_NUM_THREADS="1")
        for check in ("denoising", "a training step"):
            self.assertRegex(suite.stdout, f"FAILED  dry run: {check} needs no values: .*toy.denoise: "
                                           + re.escape(NEEDS_VALUES[evil]))
        self.assertEqual(2, suite.stdout.count("FAILED"), suite.stdout)

    def test_code_that_needs_values_is_named_before_a_run_is_planned(self):
        for evil, says in NEEDS_VALUES.items():
            with self.subTest(evil=evil):
                planned = self.plan(evil)
                self.assertEqual(2, planned.returncode, planned.stderr)
                errors = [line for line in planned.stderr.splitlines() if line.startswith("error: ")]
                self.assertEqual(1, len(errors), planned.stderr)
                self.assertIn("toy.denoise: " + says, planned.stderr)
                self.assertIn("docs/plugins.md", planned.stderr)
                self.assertIn("[UNSUPPORTED]", planned.stderr)
                self.assertNotIn("frame #", planned.stderr)
        # Without a limit of the user there is just no plan; no flag would change that.
        line = program.command("plan", "generate", device="simulated:1GiB:4GB/s", **self.draw)
        planned = program.run_line(line, EVIL="denoise:item", OMP_NUM_THREADS="1")
        self.assertEqual(2, planned.returncode, planned.stderr)
        self.assertRegex(planned.stderr, r"^error: no plan: .*toy\.denoise: ")
        self.assertEqual(1, planned.stderr.count("[UNSUPPORTED]"), planned.stderr)
        self.assertNotIn("--vram", planned.stderr)

    def test_operators_that_libtorch_has_no_meta_kernels_of_are_planned(self):
        program.run("check-plugin", PLUGIN, code=0, EVIL="denoise:where", OMP_NUM_THREADS="1")
        planned = self.plan("denoise:where")
        self.assertEqual(0, planned.returncode, planned.stderr)

    def test_wrong_samples_are_no_lack_of_memory(self):
        for evil, says in WRONG_SAMPLES.items():
            with self.subTest(evil=evil):
                line = program.command("train", output_path=self.root / f"run {evil}", **self.learn)
                result = program.run_line(line, EVIL=evil, OMP_NUM_THREADS="1")
                self.check_told(result, "", "toy.encode", "[PLUGIN_WRONG]")
                self.assertIn(says, result.stderr)

    def test_a_run_whose_plugin_the_variable_led_to_is_resumed_without_it(self):
        found, output = self.root / "found", self.root / "found run"
        found.mkdir()
        shutil.copy(PLUGIN, found / "toy.so")
        line = program.command("train", output_path=output, **{**self.learn, "plugin": "toy"})
        first = program.run_line(line, OMP_NUM_THREADS="1", ATELIER_PLUGIN_PATH=f"{self.root}:{found}")
        self.assertEqual(0, first.returncode, first.stderr)
        self.assertIn(f'plugin_path = "{found.resolve()}"', (output / "config.toml").read_text())
        program.run("train", "--resume", output, "--max_train_steps", "2", code=0, OMP_NUM_THREADS="1")

    def test_the_suite_fails_one_that_decodes_to_nothing(self):
        result = program.run("check-plugin", PLUGIN, code=3, EVIL="decode:nothing", OMP_NUM_THREADS="1")
        self.assertRegex(result.stdout, "FAILED  media: encoding and decoding keep the size: .*toy.decode")

    def test_what_a_suite_leaves_when_it_is_killed_is_removed(self):
        def folders():
            return list(temporary.glob("atelier-conformance-*"))

        temporary = self.root / "tmp"
        temporary.mkdir()
        environment = {**os.environ, "TMPDIR": str(temporary), "EVIL": "detect:deadlock"}
        suite = subprocess.Popen(program.command("check-plugin", PLUGIN, "--in_process"), env=environment,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not folders():
            self.assertIsNone(suite.poll())
            time.sleep(0.05)
        subprocess.run(program.command("check-plugin", PLUGIN, "--timeout", "1"), env=environment,
                       capture_output=True, check=False)
        self.assertEqual(1, len(folders()), "one is in use")
        suite.send_signal(signal.SIGKILL)
        suite.wait()
        program.run("check-plugin", PLUGIN, code=0, TMPDIR=str(temporary), OMP_NUM_THREADS="1")
        self.assertEqual([], folders())


class HangingPluginsTest(EvilTest):

    def test_a_function_that_does_not_come_back_is_ended_by_its_name(self):
        cases = {evil: ("toy." + evil.split(":")[0], "it does not come back within 15 seconds")
                 for evil in ("detect:deadlock", "make_model:spin", "inputs:deadlock")}
        self.check_all(cases, "[PLUGIN_HANGS]")

    def test_the_suite_names_what_hangs(self):
        result = program.run("check-plugin", PLUGIN, code=3, EVIL="weight_map:deadlock", OMP_NUM_THREADS="1")
        self.assertIn("error: toy.weight_map: ", result.stderr)
        self.assertIn("FAILED  process:", result.stdout)

    def test_what_is_left_for_the_end_of_the_process_does_not_hold_it(self):
        result = self.generate("decode:atexit")
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertIn("warning: what a plugin or a library does at the end", result.stderr)
        self.assertTrue((self.root / "adecode:atexit.png").is_file())


if __name__ == "__main__":
    unittest.main()
