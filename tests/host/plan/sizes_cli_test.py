"""Sizes that cannot be are refused before anything is allocated, and a run that is asked to stop does."""

import json
import os
import pathlib
import signal
import subprocess
import time
import unittest

import program
from tiny_run import FolderTest, on_data, write_dataset

MODEL = program.REPOSITORY / "examples/shapes/model"
MOST_BYTES = 1 << 30  # that a refusal may take, with LibTorch's libraries
SECONDS = 20  # of a processor, for an answer


def seconds_used(process):
    """The processor's time that a process has had so far."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class SizesTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        write_dataset(cls.root / "data", count=3, sizes=((64, 64), (64, 64), (640, 512)))

    def words(self, *command, **flags):
        common = {"plugin": "qwen_image", "model_paths": json.dumps([str(MODEL)]), "threads": 1}
        return program.command(*command, **{**common, **flags})

    def generate(self, *command, **flags):
        return self.words(*(command or ("generate",)), **{"prompt": "a red circle", "num_inference_steps": 2,
                                                          "seed": 1, "output": self.root / "out.png", **flags})

    def train(self, *command, **flags):
        return self.words(*(command or ("train",)), **{
            **on_data(self.root / "data"), "lora_base_model": "dit", "max_train_steps": 1,
            "output_path": self.root / "run", **flags})

    def refused(self, words, code, *texts, stdin=None, without=None):
        """Runs it, and looks at what it says, how long it takes and how much memory. Returns stdout and stderr."""
        paths = [self.root / name for name in ("stdin", "stdout", "stderr")]
        paths[0].write_text(stdin or "")
        with paths[0].open() as given, paths[1].open("w") as out, paths[2].open("w") as said:
            process = subprocess.Popen(words, stdin=given, stdout=out, stderr=said, cwd=self.root)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out, said = (path.read_text() for path in paths[1:])
        self.assertLess(usage.ru_utime + usage.ru_stime, SECONDS)
        self.assertEqual(process.returncode, code, said)
        for text in texts:
            self.assertIn(text, said + out)
        self.assertNotIn(without or "\0", said)
        self.assertLess(usage.ru_maxrss * 1024, MOST_BYTES)
        return out, said

    def test_sides_beyond_any_image_are_named(self):
        for command in (("generate",), ("plan", "generate")):
            for size in (1_000_000, 2**62, 2**63 - 1):
                self.refused(self.generate(*command, height=size, width=64), 2, f"--height: {size} is above 65536")
            self.refused(self.generate(*command, width=10**12), 2, "--width: 1000000000000 is above 65536")
        self.refused(self.generate(num_inference_steps=1001), 2, "--num_inference_steps: 1001 is above 1000")
        self.refused(self.generate(batch_size=2**62), 2, "--batch_size: 4611686018427387904 is above")

    def test_the_cause_is_told_where_the_schedule_has_no_levels(self):
        for command in (("generate",), ("plan", "generate")):
            _, said = self.refused(self.generate(*command, height=65536, width=65536), 2,
                                   "--height 65536 --width 65536: the schedule shifts the noise levels")
            self.assertNotIn("--flow_shift: inf", said)

    def test_images_that_memory_cannot_hold(self):
        flags = dict(flow_shift=3, host_memory="512MiB", height=4096, width=4096)
        for command in (("generate",), ("plan", "generate")):
            self.refused(self.generate(*command, **flags), 4, "--height 4096 --width 4096: to decode 4096x4096 pixels",
                         "--host_memory is 512.0 MiB", "--tiled needs", " of this shape fits", "PLAN_DOES_NOT_FIT")
        self.assertFalse((self.root / "out.png").exists())
        self.refused(self.generate(flow_shift=3, height=65536, width=65536, host_memory="40GiB", tiled=True), 4,
                     "65536x65536 pixels")
        self.refused(self.generate(flow_shift=3, height=4096, width=4096, device="simulated:256MiB"), 4,
                     "the simulated device has 256.0 MiB")
        self.refused(self.generate(flow_shift=3, height=4096, width=4096, vram="256MiB"), 4, "--vram is 256.0 MiB")

    def test_a_plan_of_an_absurd_size_comes_at_once(self):
        self.refused(self.generate("plan", "generate", flow_shift=3, height=65536, width=65536, tiled=True,
                                   device_profile="h200", vram="900000GiB"), 0, "predicted")

    def test_what_is_let_through_runs(self):
        program.run_line(self.generate(height=256, width=256, host_memory="512MiB"), code=0, timeout=60)
        self.assertTrue((self.root / "out.png").exists())
        (self.root / "out.png").unlink()

    def test_the_line_of_a_prompts_file_is_named(self):
        jobs = self.root / "jobs.jsonl"
        jobs.write_text('{"prompt": "a", "height": 64, "width": 64, "output": "a.png"}\n'
                        '{"prompt": "b", "height": 4096, "width": 2048, "flow_shift": 3, "output": "b.png"}\n')
        self.refused(self.generate(prompts_file=jobs, host_memory="512MiB"), 4,
                     "jobs.jsonl:2: height 4096, width 2048: to decode 2048x4096 pixels")
        self.assertFalse((self.root / "a.png").exists())
        lines = ('{"prompt": "a", "height": 64, "width": 64, "output": "a.png"}\n'
                 '{"prompt": "b", "height": 4096, "width": 2048, "flow_shift": 3, "output": "b.png"}\n'
                 '{"prompt": "c", "height": 64, "width": 64, "output": "c.png"}\n')
        out, _ = self.refused(self.generate(prompts_file="-", host_memory="512MiB"), 4, "stdin:2: height 4096",
                              stdin=lines)
        answers = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([bool(answer.get("error")) for answer in answers], [False, True, False])
        self.assertTrue((self.root / "c.png").exists())

    def test_rows_and_sample_prompts_are_named_before_training(self):
        for command in (("train",), ("plan", "train")):
            self.refused(self.train(*command, host_memory="20MiB"), 4, "metadata.csv:4: to encode 640x512 pixels",
                         "--host_memory is 20.0 MiB", "use a smaller --max_pixels")
            self.refused(self.train(*command, host_memory="60MiB", height=512, width=512, batch_size=8), 4,
                         "to train on 8 times 512x512 pixels, one of 3 such rows",
                         "; use a smaller --batch_size; or use a smaller --height and --width")
            self.refused(self.train(*command, host_memory="40MiB", height=512, width=512, lora_base_model=None,
                                    trainable_models="dit"), 4, "to train on 512x512 pixels",
                         "; train a LoRA with --lora_base_model, or fewer", without="use a smaller")
        (self.root / "prompts.txt").write_text("a red circle --w 64 --h 64\na circle --w 8192 --h 8192 --fs 3\n"
                                               "a circle --w 64 --h 64 --s 100000\n")
        self.refused(self.train(host_memory="600MiB", sample_prompts=self.root / "prompts.txt",
                                sample_every_n_epochs=1), 4,
                     "prompts.txt:2: height 8192, width 8192: to decode 8192x8192 pixels",
                     "prompts.txt:3: num_inference_steps: 100000 is above 1000", without="--tiled")
        self.refused(self.train("cache", cache_path=self.root / "cache", host_memory="20MiB"), 4, "metadata.csv:4",
                     "to encode 640x512 pixels")
        self.assertFalse((self.root / "run").exists())

    def test_an_interrupt_is_heard_within_a_large_attention(self):
        process = subprocess.Popen(self.generate(height=4096, width=4096, flow_shift=3), stderr=subprocess.PIPE,
                                   encoding="utf-8", cwd=self.root)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        for line in process.stderr:
            if line.startswith("load dit"):
                break
        begin = seconds_used(process)
        while seconds_used(process) < begin + 2:
            self.assertIsNone(process.poll())
            time.sleep(0.02)
        begin = seconds_used(process)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 130, said)
        self.assertLess(usage.ru_utime + usage.ru_stime - begin, 10)
        self.assertIn("stopped by the user", said)


if __name__ == "__main__":
    unittest.main()
