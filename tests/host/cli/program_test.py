#!/usr/bin/env python3
"""Runs the program: commands, exit codes, and what is said about files."""

import json
import math
import os
import pathlib
import re
import select
import shutil
import struct
import subprocess
import sys
import unittest
import zlib

from program import PROGRAM, run, write_tiny_model
from tiny_run import FolderTest, png_chunk, write_tensors

FAKES = PROGRAM.parent.parent / "tests" / "fake_plugins"


# What turns a terminal's text, moves in it or hides in it, but for the line end.
STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
LORA = {f"transformer.transformer_blocks.0.attn.to_q.lora_{half}.weight": shape
        for half, shape in (("A", [16, 3072]), ("B", [3072, 16]))}


def safetensors(path, tensors):
    """Writes float32 zeros of these shapes."""
    write_tensors(path, {name: (shape, [0.0] * math.prod(shape)) for name, shape in tensors.items()})


def png(path, width, height, text):
    rows = (b"\0" + bytes(3 * width)) * height
    chunks = [png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))]
    chunks += [png_chunk(b"tEXt", key.encode() + b"\0" + value.encode()) for key, value in text.items()]
    chunks += [png_chunk(b"IDAT", zlib.compress(rows)), png_chunk(b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


class ProgramTest(FolderTest):

    def refused(self, code, *arguments, says=(), **environment):
        result = run(*arguments, **environment)
        self.assertEqual(result.returncode, code, result.stderr)
        lines = result.stderr.splitlines()
        self.assertTrue(lines and lines[0].startswith("error: "), result.stderr)
        self.assertLessEqual(len(lines[0].encode()), 400)
        self.assertTrue(all(line.startswith("  ") for line in lines[1:]), result.stderr)
        for part in says:
            self.assertIn(part, result.stderr)
        return result

    def test_version_help_and_commands(self):
        self.assertIn("torch=", run("--version").stdout)
        listed = run("--help")
        self.assertEqual(listed.returncode, 0)
        for command in ("inspect", "plugins", "probe", "check-plugin", "doctor", "generate"):
            self.assertIn(command, listed.stdout)
            shown = run(command, "--help")
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertIn("atelier " + command, shown.stdout)
        self.assertEqual(run().returncode, 2)
        self.refused(2, "inspekt", says=["did you mean inspect?"])
        self.refused(2, "probe", "--plugin", "qwen_image", "--inputz", "x",
                     says=["--inputz", "did you mean --inputs?", "--component is missing"])

    def test_plugins_are_listed_and_shown(self):
        found = json.loads(run("plugins", "--json").stdout)["plugins"]
        self.assertIn("qwen_image", [plugin["family"] for plugin in found])
        self.assertIn("qwen_image", run("plugins").stdout)
        shown = json.loads(run("plugins", "show", "qwen_image", "--json").stdout)
        self.assertIn("dit", [component["name"] for component in shown["components"]])
        self.assertIn("prompt", [spec["name"] for spec in shown["inputs"]])
        listed = run("plugins", "--plugin_path", FAKES)
        self.assertEqual(listed.returncode, 0)
        self.assertIn("cannot be used: it was built with", listed.stdout)
        self.refused(2, "plugins", "show", "qwen_imagee", says=["did you mean qwen_image?"])
        self.refused(3, "plugins", "show", FAKES / "other_abi.so", says=["torch=2.10.0", "[PLUGIN_ABI]"])
        self.refused(3, "plugins", "show", FAKES / "crashing_plugin.so", says=["[PLUGIN_DAMAGED]"])

    def test_a_crash_in_a_checked_plugin_is_a_finding(self):
        self.refused(3, "check-plugin", FAKES / "other_abi.so", says=["torch=2.10.0"])
        for fake in ("crashing_plugin.so", "empty_plugin.so"):
            result = run("check-plugin", FAKES / fake)
            self.assertEqual(result.returncode, 3, result.stderr)
            self.assertIn("1 failed", result.stdout)

    def test_doctor_says_what_works(self):
        items = {item["name"]: item for item in json.loads(run("doctor", "--json").stdout)}
        self.assertEqual(items["LibTorch"]["state"], "ok")
        self.assertEqual(items["plugin qwen_image"]["state"], "ok")
        self.assertEqual(items["PNG"]["state"], "ok")
        self.assertTrue(all(item["reason"] for item in items.values() if item["state"] != "ok"))
        kernels = items["CUDA kernels"]
        if kernels["state"] == "ok":
            self.assertRegex(kernels["found"], r"for sm_\d+.*: .*packed_codes, rms_norm, row_codes, swiglu")

    def test_tune_proves_every_operator_elsewhere(self):
        result = run("tune", "--device", "cpu")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^(on |off) +norm_rope +[\d.]+ ms composed, +[\d.]+ ms fused$")
        self.assertNotIn("WRONG", result.stdout)
        told = [json.loads(line) for line in run("tune", "--device", "cpu", "--json").stdout.splitlines()]
        self.assertEqual([each["op"] for each in told], [line.split()[1] for line in result.stdout.splitlines()])
        late = run("tune", "--device", "cpu", "--timeout", "0.01")
        self.assertIn("WRONG   norm_modulate                    : stopped after 0.01 seconds", late.stdout)
        self.refused(2, "tune", "--device", "cpu", "--in_process", "nothing", says=["'nothing' is not proven on this device"])
        self.refused(2, "tune", "--device", "gpu", says=["--device 'gpu' is not known"])

    def test_proofs_end_with_the_program_that_asked_for_them(self):
        with subprocess.Popen([PROGRAM, "tune", "--device", "cpu"], stdout=subprocess.PIPE, text=True) as tuning:
            tuning.stdout.readline()  # of a kernel, by a process that has others before it
            [child] = pathlib.Path(f"/proc/{tuning.pid}/task/{tuning.pid}/children").read_text().split()
            proofs = os.pidfd_open(int(child))
            tuning.kill()
        self.addCleanup(os.close, proofs)
        self.assertEqual([proofs], select.select([proofs], [], [], 60)[0])  # it can be read when the process has ended

    @unittest.skipIf(shutil.which("nvidia-smi"), "there may be a GPU")
    def test_tune_proves_nothing_without_a_gpu(self):
        result = run("tune")
        self.assertEqual((result.returncode, result.stdout, result.stderr),
                         (0, "", "nothing to prove: no NVIDIA driver is installed\n"))

    def test_inspect_names_what_no_family_takes(self):
        model = self.dir / "model.safetensors"
        safetensors(model, {"some.weight": [2, 3]})
        result = self.refused(2, "inspect", model, says=["no family takes it", "[CHECKPOINT_UNKNOWN]"])
        self.assertIn("1 tensors, 6 values, 24 bytes, F32 1", result.stdout)
        listed = json.loads(run("inspect", "--json", "--tensors", model).stdout)
        self.assertEqual(listed["tensors"]["list"], [{"name": "some.weight", "dtype": "F32", "shape": [2, 3]}])
        self.assertIn("CHECKPOINT_UNKNOWN", listed["refused"])
        model.write_bytes(model.read_bytes()[:-1])
        self.refused(2, "inspect", model, says=["model.safetensors", "[ST_TRUNCATED]"])
        self.refused(2, "inspect", self.dir / "none", says=["No such file"])
        (self.dir / "x.gguf").write_bytes(b"GGUF" + bytes(60))
        self.refused(2, "inspect", self.dir / "x.gguf", says=["GGUF"])
        (self.dir / "x.txt").write_text("a prompt a line\n")
        self.refused(2, "inspect", self.dir / "x.txt", says=["is text of no kind that is known"])
        (self.dir / "x.mp4").write_bytes(bytes(60))
        self.refused(2, "inspect", self.dir / "x.mp4", says=["video"])
        both = run("inspect", self.dir / "x.mp4", model)
        self.assertEqual(both.returncode, 2)
        self.assertEqual([line.split()[-1] for line in both.stderr.splitlines()],
                         ["[FILE_KIND]", "[ST_TRUNCATED]"])

    def test_inspect_shows_a_clip_with_its_settings(self):
        video = {item["name"]: item for item in json.loads(run("doctor", "--json").stdout)}["video"]
        if video["state"] == "ok":
            clips = pathlib.Path(__file__).parents[1] / "media/clips"
            result = run("inspect", clips / "plain.mp4")
            self.assertRegex(result.stdout, r'plain\.mp4"?: clip, mp4, h264, 64x48, 24 frames, 24 a second, 1\.000 s\n')
            self.assertIn(r'  comment = {\"seed\": 7}', result.stdout)
            thing = json.loads(run("inspect", "--json", clips / "sound.mp4").stdout)
            self.assertEqual((6, True), (thing["frames"], thing["sound"]))
            self.assertIn(" on average, ", run("inspect", clips / "variable.mp4").stdout)
            self.refused(2, "inspect", clips / "sound_alone.mp4", says=["sound and no video"])
        else:
            self.assertIn("tools/setup", video["reason"])
        frames = self.dir / "frames"
        frames.mkdir()
        for number in range(3):
            png(frames / f"{number}.png", 5, 4, {})
        self.assertIn("frames: clip, folder, 5x4, 3 frames\n", run("inspect", frames).stdout)

    def test_inspect_knows_a_lora(self):
        lora = self.dir / "lora.safetensors"
        safetensors(lora, {
            f"transformer.transformer_blocks.{block}.attn.to_q.lora_{half}.weight": shape
            for block in (0, 1) for half, shape in (("A", [16, 3072]), ("B", [3072, 16]))
        })
        result = run("inspect", lora)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("2 layers, rank [16], for qwen_image dit (2 layers known there)", result.stdout)
        flat = self.dir / "flat.safetensors"
        safetensors(flat, {"lora_unet_transformer_blocks_0_attn_to_q.lora_down.weight": [4, 3072],
                           "lora_unet_transformer_blocks_0_attn_to_q.lora_up.weight": [3072, 4],
                           "lora_unet_transformer_blocks_0_attn_to_q.alpha": []})
        self.assertIn("1 layers, rank [4], for qwen_image", run("inspect", flat).stdout)
        both = run("inspect", "--json", self.dir)
        self.assertEqual(both.returncode, 0, both.stderr)
        self.assertEqual([json.loads(line)["lora"]["layers"] for line in both.stdout.splitlines()], [1, 2])

    def test_inspect_reads_pictures_with_their_settings(self):
        picture = self.dir / "a.png"
        png(picture, 5, 3, {"atelier": '{"prompt": "a cat"}'})
        result = run("inspect", "--json", picture)
        self.assertEqual(result.returncode, 0, result.stderr)
        said = json.loads(result.stdout)
        self.assertEqual((said["kind"], said["width"], said["height"]), ("image", 5, 3))
        self.assertEqual(json.loads(said["text"]["atelier"]), {"prompt": "a cat"})
        self.assertIn("png, 5x3", run("inspect", picture).stdout)
        picture.write_bytes(picture.read_bytes()[:30])
        self.refused(2, "inspect", picture)

    def test_inspect_reads_dataset_tables(self):
        (self.dir / "metadata.csv").write_text('image,prompt\na.png,"one, two"\nb.png,x\n')
        (self.dir / "rows.jsonl").write_text('{"image": "a"}\n\n{"image": "b", "prompt": "y"}\n')
        (self.dir / "rows.json").write_text('[{"video": "a"}]')
        result = run("inspect", self.dir, self.dir / "rows.jsonl", self.dir / "rows.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("csv, 2 rows, columns image, prompt", result.stdout)
        self.assertIn("jsonl, 2 rows, columns image, prompt", result.stdout)
        self.assertIn("json, 1 rows, columns video", result.stdout)
        (self.dir / "bad.csv").write_text("a,b\n1\n")
        self.refused(2, "inspect", self.dir / "bad.csv", says=["bad.csv:2: has 1 fields"])
        (self.dir / "bad.jsonl").write_text('{"a": 1}\n{"a": }\n')
        self.refused(2, "inspect", self.dir / "bad.jsonl", says=["bad.jsonl:2"])
        (self.dir / "open.csv").write_text('a\n"x\n')
        self.refused(2, "inspect", self.dir / "open.csv", says=["open.csv:2", "[CSV_QUOTE]"])

    def test_an_index_is_no_table(self):
        index = self.dir / "model.safetensors.index.json"
        for text, says in (('[{"image": "a"}]', "is an array, not an object"), ("{}", "has no weight_map")):
            index.write_text(text)
            self.refused(2, "inspect", index, says=["index.json", says])

    def test_names_steer_no_terminal(self):
        plugin = self.dir / "a\033[2J\n.so"
        plugin.write_bytes((FAKES / "other_abi.so").read_bytes())
        listed = run("plugins", "--plugin_path", self.dir)
        self.assertIn(r"a\x1b[2J\n.so", listed.stdout)
        self.assertEqual([], [c for c in listed.stdout if c < " " and c != "\n"])
        lora = self.dir / "a\u009b2J.safetensors"
        safetensors(lora, LORA)
        for words in (["inspect"], ["lora", "info"]):
            told = run(*words, "--json", lora, code=0).stdout
            self.assertIn(r"a\u009b2J.saf", told)
            self.assertEqual(json.loads(told)["path"], str(lora))

    def plugin_that_says(self, name, said):
        """A plugin of the toy family with other texts, each as long as the one that it stands for."""
        library = (FAKES / "evil_plugin.so").read_bytes()
        for old, new in said.items():
            old, new = old.encode(), new.encode()
            self.assertIn(old, library)
            self.assertLessEqual(len(new), len(old))
            library = library.replace(old, new.ljust(len(old), b"."))
        plugin = self.dir / name
        plugin.write_bytes(library)
        return plugin

    def test_what_a_plugin_says_steers_no_terminal(self):
        plugin = self.plugin_that_says("a\033[2J\u0085\u202e.so", {
            "an example of a family, for plugin authors": "a\033]0;owned\007\u0085b\u202ec",
            "to learn": "d\033[2J\u0085",
            "\0start\0": "\0d\033[2J\0", "a vector for each byte": "e\033[31m\u009bf\u202e"})
        text = self.dir / "a\033[31m\u0085b\u202e.safetensors"
        safetensors(text, {"bytes.weight": [256, 32]})
        missing = self.dir / "c\033[31m\u0085d\u202e"
        model = ["--plugin", plugin, "--model_paths", json.dumps([str(missing)])]
        shown = {
            r"a\x1b]0;owned\x07\u0085b\u202ec": ["plugins", "show", plugin],
            r"e\x1b[31m\u009bf\u202e": ["plugins", "show", plugin],
            r"d\u001b[2J\u0085.": ["plugins", "show", plugin, "--json"],
            r"d\x1b[2J": ["generate", "--plugin", plugin, "--help"],
            r"a\u001b[2J\u0085\u202e.so": ["plugins", "--plugin_path", self.dir, "--json"],
        }
        for part, words in shown.items():
            with self.subTest(words=words[:2], part=part):
                told = run(*words, code=0)
                self.assertIn(part, told.stdout)
                self.assertEqual([], STEERING.findall(told.stdout + told.stderr))
        for words in (["generate", *model], ["train", *model], ["plan", "generate", *model], ["inspect", text]):
            with self.subTest(words=words[:2]):
                told = run(*words)
                self.assertRegex(told.stdout + told.stderr, r"\\x1b\[31m\\u0085.\\u202e")
                self.assertEqual([], STEERING.findall(told.stdout + told.stderr))

    def test_a_familys_name_steers_no_terminal(self):
        plugin = self.plugin_that_says("named.so", {"\0toy\x000.1.0": "\0t\033y\x000.1.0"})
        for words in (["plugins", "--plugin_path", self.dir], ["plugins", "show", plugin],
                      ["generate", "--plugin", plugin, "--prompt", "x"]):
            with self.subTest(words=words[:2]):
                told = run(*words)
                self.assertIn(r"t\x1by", told.stdout + told.stderr)
                self.assertEqual([], STEERING.findall(told.stdout + told.stderr))

    def test_log_lines_steer_no_terminal(self):
        plugin = self.plugin_that_says("toy.so", {"text_enc": "t\033[2J\u0085"})  # of text_encoder
        text, ids = self.dir / "text.safetensors", self.dir / "ids.safetensors"
        safetensors(text, {"bytes.weight": [256, 32]})
        safetensors(ids, {"ids": [2]})
        told = run("probe", "--plugin", plugin, "--model_paths", text, "--component", "t\033[2J\u0085.oder",
                   "--inputs", ids, "--output", self.dir / "out.safetensors")
        self.assertIn(r"loaded t\x1b[2J\u0085.oder: ", told.stderr)
        listed = run("train", "--plugin", plugin, "--help", code=0)
        self.assertIn(r"t\x1b[2J\u0085.oder", listed.stdout)
        self.assertEqual([], STEERING.findall(told.stdout + told.stderr + listed.stdout))

    def test_a_working_folder_that_was_removed_is_one_error(self):
        gone = self.dir / "gone"
        gone.mkdir()
        line = ["bash", "-c", 'cd "$1" && rmdir "$1" && exec "$2" --version', "bash", gone, PROGRAM]
        result = subprocess.run(line, capture_output=True, text=True, timeout=100)
        self.assertEqual((3, "", "error: the working folder was removed; go to one that is there [ENVIRONMENT]\n"),
                         (result.returncode, result.stdout, result.stderr))

    def test_closed_streams_are_no_place_for_files(self):
        lora, out = self.dir / "lora.safetensors", self.dir / "new.safetensors"
        safetensors(lora, LORA)
        words = ["lora", "convert", lora, out, "--lora_format", "kohya"]
        run(*words, code=0)
        right = out.stat().st_size
        for closed in ("<&- >&- 2>&-", "0<&-", ">&-", "2>&-"):
            out.unlink()
            result = subprocess.run(["bash", "-c", f'exec "$@" {closed}', "bash", PROGRAM, *words],
                                    capture_output=True, timeout=100)
            self.assertEqual(result.returncode, 0, (closed, result))
            self.assertEqual(right, out.stat().st_size, closed)
            self.assertEqual(json.loads(run("inspect", "--json", out).stdout)["kind"], "lora")

    def test_a_file_that_may_not_grow_is_told(self):
        lora = self.dir / "lora.safetensors"
        safetensors(lora, LORA)
        out = self.dir / "out"
        out.mkdir()
        result = subprocess.run(
            ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", PROGRAM, "lora", "convert", lora,
             out / "x.safetensors", "--lora_format", "kohya"], capture_output=True, text=True, timeout=100)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("File too large", result.stderr)
        self.assertEqual([], list(out.iterdir()))

    def test_inspect_recognises_a_whole_model(self):
        model = self.dir / "model"
        write_tiny_model(model)
        result = run("inspect", "--json", model)
        self.assertEqual(result.returncode, 0, result.stderr)
        said = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([item.get("taken_by", {}).get("component") for item in said],
                         ["text_encoder", "dit", "vae", None])
        self.assertEqual(said[3]["kind"], "tokenizer")
        self.assertTrue(all(item["taken_by"]["family"] == "qwen_image" for item in said[:3]))
        self.assertIn("prompt", [spec["name"] for spec in said[1]["taken_by"]["inputs"]])
        self.assertIn("family qwen_image, component dit", run("inspect", model).stdout)
        for shard in sorted((model / "transformer").glob("*-00002-of-*")):
            shard.unlink()
        self.refused(2, "inspect", model, says=["[SHARD_MISSING]"])

    def test_probe_refuses_before_it_loads(self):
        inputs = self.dir / "in.safetensors"
        safetensors(inputs, {"x": [1]})
        common = ["probe", "--plugin", "qwen_image", "--inputs", inputs, "--output", self.dir / "out.safetensors"]
        self.refused(2, *common, "--component", "dot", says=['"dit"', "did you mean dit?"])
        self.refused(2, *common, "--component", "dit", says=["component dit is missing"])
        self.refused(2, *common, "--component", "dit", "--trainable", "*", says=["--gradients"])
        self.refused(2, *common, "--component", "dit", "--model_paths", inputs, says=["no component of qwen_image"])
        self.refused(2, *common[:-1], self.dir / "no" / "out", "--component", "nothing", says=["2 mistakes", "folder"])

    def test_a_schedule_is_made_without_any_file(self):
        asked, given = self.dir / "in.json", self.dir / "out.json"
        asked.write_text(json.dumps({"height": 1024, "width": 1024, "num_inference_steps": 4}))
        result = run("probe", "--plugin", "qwen_image", "--component", "schedule", "--inputs", asked, "--output", given)
        self.assertEqual(result.returncode, 0, result.stderr)
        sigmas = json.loads(given.read_text())["sigmas"]
        self.assertEqual((len(sigmas), sigmas[0], sigmas[-1]), (5, 1.0, 0.0))
        asked.write_text('{"heigth": 3}')
        given.unlink()  # that it is replaced would be told first
        self.refused(2, "probe", "--plugin", "qwen_image", "--component", "schedule", "--inputs", asked, "--output",
                     given, says=["did you mean height?"])


if __name__ == "__main__":
    sys.exit(unittest.main())
