"""Runs that do not fit into the device at first, or at all, and what is told of memory."""

import csv
import re
import shutil
import unittest
import xml.etree.ElementTree

import program
from tiny_run import TARGETS, TinyRuns, losses, pixels, state_of, tensors, write_dataset

UNITS = {"bytes": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


# A batch whose denoising takes more than anything else.
BATCH = dict(height=256, width=256, num_images=4, batch_size=4, tiled=True, tile_size=64, tile_stride=48)


def size_in(pattern, said):
    number, unit = re.search(pattern.replace("SIZE", r"([\d.]+) (bytes|[KMG]iB)"), said).groups()
    return float(number) * UNITS[unit]


class OutOfMemoryTest(TinyRuns):
    denoiser_blocks = 5

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.trained = {}  # by data set: see trained_peaks()
        cls.small, cls.large, cls.mixed = (cls.root / name for name in ("small", "large", "mixed"))
        write_dataset(cls.small, count=4)
        write_dataset(cls.large, count=4, sizes=((320, 320),))
        write_dataset(cls.mixed, count=4, sizes=((64, 64), (320, 320)))

    def run_program(self, command, expect=0, **flags):
        defaults = dict(self.on_model, device="simulated:1GiB", vram="off")
        result = program.run_line(program.command(command, **{**defaults, **flags}), code=expect, cwd=self.dir)
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(errors), 1 if expect else 0, result.stderr[-3000:])
        self.error = errors[0] if errors else ""
        self.said = result.stderr
        return result.stderr

    def train(self, name, data=None, capacity="1GiB", **flags):
        data = data or self.large
        defaults = dict(max_pixels=320 * 320, max_train_steps=4, lora_base_model="dit", lora_target_modules=TARGETS,
                        lora_rank=4, lora_dropout=0.1, gradient_accumulation_steps=2, save_steps=4,
                        cache_path=self.root / f"cache_{data.name}", device=f"simulated:{capacity}")
        self.run_program("train", **self.training(name, data, **{**defaults, **flags}))
        return self.dir / name

    def peak(self):
        return size_in("simulated device: at most SIZE", self.said)

    def between(self, least, most, part):
        return f"{(least + (most - least) * part) / 1024:.1f}KiB"

    def trained_peaks(self, data):
        """A run, and the bytes with the inputs of blocks alone and with all activations; encoders are left out, in the
        cache. Each data set has its runs once."""
        if data not in self.trained:
            plain = self.root / f"plain_{data.name}"
            self.train("cached", data=data, max_train_steps=1)
            self.train("plain", data=data, output_path=plain)
            whole = self.peak()
            self.train("least", data=data, use_gradient_checkpointing=True)
            print(f"peak: {whole:.0f} bytes, with blocks computed again {self.peak():.0f}")
            self.trained[data] = plain, self.peak(), whole
            for name in ("cached", "least"):
                shutil.rmtree(self.dir / name)
        return self.trained[data]

    def test_a_step_that_does_not_fit_is_made_again_to_the_same_bits(self):
        plain, least, whole = self.trained_peaks(self.large)
        self.assertLess(least, 0.8 * whole)
        for budget, part in (("none", 0.8), ("none", 0.3), ("1", 0.25), ("auto", 0.4), ("", 0.5)):
            with self.subTest(budget=budget, part=part):
                flags = dict(activation_memory_budget=budget) if budget else {}
                run = self.train(f"run_{budget}_{part}", capacity=self.between(least, whole, part), **flags)
                again = re.findall(r"^step (\d+): .*; it is made again with", self.said, re.M)
                self.assertTrue(again, self.said)
                self.assertEqual(state_of(run, 4), state_of(plain, 4))
                self.assertEqual(losses(run), losses(plain))
                files = sorted(run.glob("*.safetensors"))
                self.assertTrue(files)
                for path in files:
                    self.assertEqual(tensors(path), tensors(plain / path.name))
                self.assertEqual(self.said.count("memory: weights of dit: "), 1, self.said)
                for word in ("LoRA layers", "optimizer", "activations", "the device: at most"):
                    self.assertIn(f"memory: {word}", self.said)

    def test_what_cannot_fit_ends_with_the_last_whole_step_saved(self):
        _, small, _ = self.trained_peaks(self.small)
        _, large, _ = self.trained_peaks(self.large)
        self.train("cached", data=self.mixed, max_train_steps=1)
        # With one sample a step, the first large one ends the run.
        flags = dict(data=self.mixed, gradient_accumulation_steps=1, max_train_steps=8, save_steps=8, seed=4,
                     capacity=self.between(small, large, 0.6))
        out = self.train("run", expect=4, **flags)
        step = int(re.search(r"^error: step (\d+): ", self.error).group(1))
        self.assertRegex(self.error, r"more for a .*iB of .*iB are taken; use --offload dit=host, .* \[OUT_OF_MEMORY\]$")
        saved = sorted(path.name for path in (out / "checkpoints").glob("step-*")) if step > 1 else []
        self.assertGreater(step, 1, "the first sample of this seed is small")
        self.assertEqual(saved, [f"step-{step - 1:08d}"])
        self.assertTrue((out / f"step-{step - 1}.safetensors").is_file())
        self.train("run", resume=out, **{**flags, "capacity": "1GiB"})
        whole = self.train("whole", **{**flags, "capacity": "1GiB"})
        self.assertEqual(state_of(out, 8), state_of(whole, 8))

    def generate(self, expect=0, **flags):
        defaults = dict(prompt="a cat", height=64, width=64, num_inference_steps=3, cfg_scale=3, seed=3,
                        output=self.dir / "image.png", no_metadata=True)
        return self.run_program("generate", expect, **{**defaults, **flags})

    def images(self, **flags):
        self.generate(**{**BATCH, **flags})
        return [pixels(path) for path in sorted(self.dir.glob("image*.png"))]

    def test_guidance_that_does_not_fit_is_made_in_two_calls(self):
        # A batch of two has other sums in its products than two of one, so bits are those of two calls.
        self.images()
        whole = self.peak()
        apart = self.images(cfg_batch="off")
        least = self.peak()
        print(f"peak: both halves {whole:.0f} bytes, one {least:.0f}")
        self.assertLess(least, 0.9 * whole)
        images = self.images(device=f"simulated:{self.between(least, whole, 0.5)}")
        self.assertEqual(self.said.count("guidance is made in two calls"), 1)
        self.assertEqual(images, apart)
        self.assertLess(self.peak(), whole)

    def test_a_image_that_cannot_fit_says_who_holds_what(self):
        self.images(cfg_batch="off")
        out = self.dir / "none.png"
        self.generate(4, **BATCH, output=out, device=f"simulated:{self.peak() / 1024 * 0.9:.1f}KiB")
        self.assertRegex(self.said, r"(?m)^memory: weights of dit: [\d.]+ [KM]iB$")
        self.assertRegex(self.said, r"(?m)^memory: encoded prompts: ")
        self.assertRegex(self.error, r"denoise: .* --offload dit=host, .*--height and --width \[OUT_OF_MEMORY\]$")
        self.assertFalse(out.exists())
        one = dict(height=256, width=256)
        self.generate(**one, tiled=True, tile_size=64, tile_stride=48)
        self.generate(4, **one, output=out, device=f"simulated:{self.peak() / 1024:.1f}KiB")
        self.assertRegex(self.error, r"decode: .*use --tiled")

    def timeline(self, path):
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(list(rows[0]), ["seconds", "phase", "live_bytes", "peak_bytes", "host_bytes"])
        self.assertLess(len(rows), 2048)
        peaks = [int(row["peak_bytes"]) for row in rows]
        self.assertEqual(peaks, sorted(peaks))
        for row in rows:
            self.assertLessEqual(int(row["live_bytes"]), int(row["peak_bytes"]))
        return rows

    def test_a_timeline_of_a_image_has_its_phases(self):
        for device in ("simulated:1GiB", "simulated", "cpu"):
            with self.subTest(device=device):
                self.generate(report_memory="memory", device=device)
                rows = self.timeline(self.dir / "memory.csv")
                phases = list(dict.fromkeys(row["phase"] for row in rows))
                self.assertEqual(phases[:2], ["begin", "load"])
                self.assertEqual([p for p in phases if p not in ("begin", "load")],
                                 ["encode", "denoise 1", "denoise 2", "denoise 3", "decode"])
                self.assertGreater(int(rows[-1]["peak_bytes"]), 10000)
                if device == "simulated:1GiB":
                    self.assertLess(abs(int(rows[-1]["peak_bytes"]) / self.peak() - 1), 0.01)
                svg = xml.etree.ElementTree.parse(self.dir / "memory.svg").getroot()
                texts = {element.text for element in svg.iter() if element.tag.endswith("text")}
                self.assertLessEqual({"live", "peak", "load", "encode", "denoise", "decode", "seconds"}, texts)

    def test_a_timeline_of_training_has_its_first_steps(self):
        self.train("run", report_memory=self.dir / "memory.csv", max_train_steps=10)
        phases = {row["phase"] for row in self.timeline(self.dir / "memory.csv")}
        for step in (1, 8):
            self.assertLessEqual({f"forward {step}", f"backward {step}", f"optimizer {step}"}, phases)
        self.assertLessEqual({"encode", "load"}, phases)
        self.assertNotIn("forward 9", phases)

    def test_a_run_that_fails_leaves_its_timeline(self):
        self.generate(4, report_memory=self.dir / "memory.csv", device="simulated:100KiB")
        self.assertTrue(self.timeline(self.dir / "memory.csv"))
        for command in (self.generate, lambda expect, **flags: self.train("refused", expect=expect, **flags)):
            command(2, report_memory="memory.txt")
            self.assertIn("--report_memory", self.error)


if __name__ == "__main__":
    unittest.main()
