"""Runs `atelier cache` as a user would, on the tiny example model."""

import json
import shutil
import signal
import subprocess
import time
import unittest

import program
from tiny_run import TinyRuns, write_colors


def entries(cache):
    """Inode and bytes of every entry: a file that is written anew has another inode."""
    return {
        path.relative_to(cache): (path.stat().st_ino, path.read_bytes())
        for path in cache.glob("*/*.safetensors") if not path.name.startswith(".")
    }


class CacheTest(TinyRuns):

    def setUp(self):
        super().setUp()
        self.data, self.cache = self.dir / "data", self.dir / "out" / "cache"
        self.data.mkdir()
        self.write_rows(4)

    def write_rows(self, count):
        """Two sizes, and the first caption twice."""
        rows = ["image,prompt"]
        for i in range(count):
            write_colors(self.data / f"{i}.png", 64 + 32 * (i % 2), 64, i)
            rows.append(f"{i}.png,an image of {max(i, 1)}")
        (self.data / "metadata.csv").write_text("\n".join(rows) + "\n")

    def command(self, *switches, **flags):
        defaults = dict(self.on_model, dataset_base_path="data", dataset_metadata_path="data/metadata.csv",
                        output_path="out", lora_base_model="dit")
        return program.command("cache", *switches, **{**defaults, **flags})

    def run_program(self, *switches, **flags):
        return program.run_line(self.command(*switches, **flags), cwd=self.dir)

    def succeed(self, *switches, **flags):
        result = self.run_program(*switches, **flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def fill(self, **flags):
        return json.loads(self.succeed(**flags).stdout)

    def fail_with(self, code, *words, **flags):
        result = self.run_program(**flags)
        self.assertEqual(result.returncode, code, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertEqual(result.stdout, "")

    def test_every_different_text_and_picture_is_encoded_once(self):
        first = self.fill()
        self.assertEqual((first["items"], first["texts"], first["images"]), (4, 3, 4))
        self.assertEqual((first["encoded_texts"], first["encoded_images"]), (3, 4))
        self.assertEqual(len(entries(self.cache)), 7)
        manifest = json.loads((self.cache / "manifest.json").read_text())
        self.assertTrue(manifest["complete"])
        self.assertEqual(manifest["family"], "qwen_image")
        self.assertEqual([item["values"]["prompt"] for item in manifest["items"]],
                         ["an image of 1"] * 2 + ["an image of 2", "an image of 3"])
        self.assertEqual(manifest["items"][1]["latents_shape"], [16, 1, 8, 12])
        self.assertEqual(manifest["items"][0]["text"], manifest["items"][1]["text"])

        before = entries(self.cache)
        again = self.fill()
        self.assertEqual((again["encoded_texts"], again["encoded_images"]), (0, 0))
        self.assertEqual(again["fingerprint"], first["fingerprint"])
        self.assertEqual(entries(self.cache), before)

    def test_entries_are_plain_safetensors(self):
        try:
            from safetensors.torch import load_file
        except ImportError:
            self.skipTest("safetensors is not installed")
        self.fill()
        manifest = json.loads((self.cache / "manifest.json").read_text())
        item = manifest["items"][1]
        latents = load_file(self.cache / "latents" / (item["latents"] + ".safetensors"))
        self.assertEqual(list(latents), ["latents"])
        self.assertEqual(list(latents["latents"].shape), item["latents_shape"])
        text = load_file(self.cache / "text" / (item["text"] + ".safetensors"))
        self.assertEqual(list(text), ["prompt_embeds"])

    def test_only_what_has_changed_is_encoded_anew(self):
        self.fill()
        before = entries(self.cache)
        text = (self.data / "metadata.csv").read_text()
        (self.data / "metadata.csv").write_text(text.replace("image of 3", "drawing of 3"))
        result = self.fill()
        self.assertEqual((result["encoded_texts"], result["encoded_images"]), (1, 0))
        write_colors(self.data / "2.png", 64, 64, 20)
        result = self.fill()
        self.assertEqual((result["encoded_texts"], result["encoded_images"]), (0, 1))
        now = entries(self.cache)
        self.assertEqual({path: now[path] for path in before}, before)

    def test_an_interrupted_run_goes_on_with_the_rest(self):
        self.write_rows(60)
        process = subprocess.Popen(program.yielding(self.command(dataset_num_workers=1)),
                                   cwd=self.dir,
                                   stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE,
                                   text=True)
        deadline = time.monotonic() + 120
        while len(list(self.cache.glob("*/*.safetensors"))) < 5 and process.poll() is None:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("stopped", errors)
        self.assertEqual(output, "")
        before = entries(self.cache)
        self.assertGreaterEqual(len(before), 5)
        self.assertLess(len(before), 119)
        self.assertFalse(json.loads((self.cache / "manifest.json").read_text())["complete"])

        result = self.fill()
        self.assertEqual(result["encoded_texts"] + result["encoded_images"] + len(before), 119)
        now = entries(self.cache)
        self.assertEqual(len(now), 119)
        self.assertEqual({path: now[path] for path in before}, before)

        # A run that was never interrupted gives the same bytes, whatever the number of workers.
        straight = self.dir / "straight"
        self.fill(cache_path="straight", dataset_num_workers=4)
        self.assertEqual({path: data for path, (_, data) in entries(straight).items()},
                         {path: data for path, (_, data) in now.items()})
        self.assertEqual((straight / "manifest.json").read_bytes(),
                         (self.cache / "manifest.json").read_bytes())

    def test_a_killed_run_leaves_no_damaged_entry(self):
        self.write_rows(40)
        process = subprocess.Popen(program.yielding(self.command()), cwd=self.dir, stderr=subprocess.DEVNULL)
        while len(list(self.cache.glob("*/*.safetensors"))) < 10 and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.wait()
        before = entries(self.cache)
        self.fill()
        now = entries(self.cache)
        self.assertEqual({path: now[path] for path in before}, before)
        self.assertEqual(list(self.cache.glob("**/.atelier-tmp-*")), [])

    def test_a_damaged_entry_is_made_anew(self):
        self.fill()
        before = entries(self.cache)
        path = next(self.cache.glob("latents/*.safetensors"))
        path.write_bytes(path.read_bytes()[:-1])
        result = self.fill()
        self.assertEqual((result["encoded_texts"], result["encoded_images"]), (0, 1))
        self.assertEqual({path: data for path, (_, data) in entries(self.cache).items()},
                         {path: data for path, (_, data) in before.items()})

    def test_a_dry_run_tells_what_would_be_done_and_writes_nothing(self):
        report = self.succeed("--dry_run").stdout
        lines = {line.split()[0]: line for line in report.splitlines()}
        self.assertEqual(lines["items"].split()[1], "4")
        self.assertEqual(lines["64x64"].split()[1], "2")
        self.assertEqual(lines["96x64"].split()[1], "2")
        self.assertIn("3 different, 3 to encode", lines["texts"])
        self.assertIn("4 different, 4 to encode", lines["images"])
        self.assertIn("4 an epoch", lines["steps"])
        self.assertIn("KiB to write", lines["cache"])
        self.assertFalse((self.dir / "out").exists())
        self.fill()
        report = self.succeed("--dry_run", batch_size=2, gradient_accumulation_steps=2).stdout
        self.assertIn("3 different, 0 to encode", report)
        self.assertIn("1 an epoch", report)

    def test_every_mistake_is_told_before_anything_is_written(self):
        rows = (self.data / "metadata.csv").read_text()
        (self.data / "metadata.csv").write_text(rows + "none.png,x\n9.txt,y\n")
        (self.data / "9.txt").write_text("no image")
        for switches in (["--dry_run"], []):
            result = self.run_program(*switches)
            self.assertEqual(result.returncode, 2, result.stderr)
            for word in ("metadata.csv:6", "none.png", "metadata.csv:7", "9.txt"):
                self.assertIn(word, result.stderr)
            self.assertFalse((self.dir / "out").exists())
        self.fail_with(2, "--max_pixel", "did you mean", max_pixel=3)

    def test_what_a_trained_component_makes_is_not_cached(self):
        result = self.fill(lora_base_model=None, trainable_models="dit,vae")
        self.assertEqual((result["texts"], result["images"]), (3, 0))
        self.assertFalse((self.cache / "latents").exists())

    def test_caption_dropout_adds_the_empty_caption(self):
        self.assertEqual(self.fill(caption_dropout_rate=0.1)["texts"], 4)

    def test_other_weights_make_other_entries(self):
        self.fill()
        other = self.dir / "other"
        shutil.copytree(self.model, other)
        vae = other / "vae" / "diffusion_pytorch_model.safetensors"
        data = bytearray(vae.read_bytes())
        data[-2] ^= 1
        vae.write_bytes(data)
        result = self.fill(model_paths=json.dumps([str(other)]))
        self.assertEqual((result["encoded_texts"], result["encoded_images"]), (0, 4))

    def test_help_lists_the_flags_of_training_and_its_own(self):
        text = self.succeed("--help").stdout
        for flag in ("--dry_run", "--cache_path", "--max_pixels", "--caption_dropout_rate"):
            self.assertIn(flag, text)
        result = program.run("cache", code=2)
        self.assertIn("--plugin is missing", result.stderr)


if __name__ == "__main__":
    unittest.main()
