"""Processes that make each picture together give one process's picture: guidance in halves, tiles dealt out.

    generate_test.py WAN_PLUGIN WRITE_MODEL
"""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import program
import wan_training_test as wan
from families import write_models
from ranks import launched
from tiny_run import FolderTest, pixels


class GenerateTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = write_models(cls.root)
        for family in ("qwen_image", "lumina2"):
            cls.models[family].update(height=64, width=96, output="out.png")
        cls.models["wan"].update(num_frames=9, height=32, width=48, output="frame_%02d.png")

    def line(self, ranks, **flags):
        defaults = dict(prompt="a red circle on a table", negative_prompt="grey", cfg_scale=4, num_inference_steps=3,
                        seed=5, device="cpu", dtype="float32", threads=1)
        line = program.command("generate", **{**defaults, **flags})
        return launched(ranks, line)

    def make(self, ranks, **flags):
        """The pixels of each file that is made, by name, and what the program said."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.root))
        if "jobs" in flags:
            (folder / "jobs.jsonl").write_text("\n".join(map(json.dumps, flags.pop("jobs"))))
            flags.update(prompts_file="jobs.jsonl", output=None, prompt=None)
        done = program.run_line(self.line(ranks, **flags), code=0, cwd=folder)
        files = {path.name: pixels(path) for path in folder.glob("*.png")}
        self.assertTrue(files)
        return files, done

    def refuse(self, ranks, *words, **flags):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.root))
        done = program.run_line(self.line(ranks, **{**self.models["qwen_image"], **flags}), code=2, cwd=folder)
        self.assertEqual(done.stderr.count("error: "), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertNotIn("load ", done.stderr)
        self.assertEqual(list(folder.iterdir()), [])

    def test_each_half_of_guidance_in_a_process_of_its_own(self):
        for family, flags in self.models.items():
            with self.subTest(family):
                alone, _ = self.make(1, cfg_batch="off", **flags)
                both, done = self.make(2, cfg_parallel=True, **flags)
                self.assertEqual(alone, both)
                self.assertEqual(len(done.stdout.splitlines()), len(alone))
                self.assertEqual(done.stderr.count("denoise: 3 steps"), 1, done.stderr)
        without, _ = self.make(1, **{**self.models["qwen_image"], "cfg_scale": 1})
        self.assertNotEqual(without, self.make(1, **self.models["qwen_image"])[0])

    def test_steps_without_guidance_between_those_with_it(self):
        flags = dict(self.models["qwen_image"], cfg_trunc=0.4, cfg_renorm="row", num_images=3, batch_size=2)
        alone, _ = self.make(1, cfg_batch="off", **flags)
        self.assertEqual(len(alone), 3)
        self.assertEqual(alone, self.make(2, cfg_parallel=True, **flags)[0])

    def test_a_seed_that_is_drawn_is_that_of_both(self):
        flags = dict(self.models["qwen_image"], seed=None)
        both, done = self.make(2, cfg_parallel=True, **flags)
        seed = done.stderr.split("seed ")[1].split()[0]
        self.assertEqual(both, self.make(1, cfg_batch="off", **{**flags, "seed": seed})[0])

    def test_tiles_are_dealt_out(self):
        for family, flags in self.models.items():
            tiled = dict(flags, tiled=True, tile_size=32, tile_stride=16)  # more tiles than ranks, and an odd rest
            with self.subTest(family):
                alone, _ = self.make(1, cfg_batch="off", **tiled)
                self.assertNotEqual(alone, self.make(1, cfg_batch="off", **flags)[0])
                self.assertEqual(alone, self.make(2, cfg_parallel=True, **tiled)[0])

    def test_an_image_to_start_from_is_encoded_in_tiles_that_are_dealt_out(self):
        wan.frame(2).resize((96, 64)).save(self.root / "start.png")
        flags = dict(self.models["qwen_image"], tiled=True, tile_size=32, tile_stride=16,
                     input_image=self.root / "start.png")
        self.assertEqual(self.make(1, cfg_batch="off", **flags)[0], self.make(2, cfg_parallel=True, **flags)[0])

    def test_pairs_take_the_jobs_of_a_file_in_turn(self):
        jobs = [{"prompt": f"number {i}", "seed": i, "height": 64 if i % 2 else 96} for i in range(5)]
        flags = dict(self.models["qwen_image"], jobs=jobs)
        alone, _ = self.make(1, cfg_batch="off", **flags)
        self.assertEqual(len(alone), 5)
        four, done = self.make(4, cfg_parallel=True, **flags)
        self.assertEqual(alone, four)
        told = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(sorted(job["line"] for job in told), [1, 2, 3, 4, 5])

    def start_jobs(self, jobs):
        """Two processes that make jobs in turn, and their numbers once each has made its first image."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.root))
        wan.frame(2).resize((96, 64)).save(folder / "start.png")
        (folder / "jobs.jsonl").write_text("\n".join(map(json.dumps, jobs)))
        flags = dict(self.models["qwen_image"], prompts_file="jobs.jsonl", output=None, prompt=None)
        process = subprocess.Popen(self.line(2, **flags), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 120
        while not all((folder / f"{i}_0.png").exists() for i in (1, 2)) and time.monotonic() < deadline:
            time.sleep(0.01)
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return process, [int(child) for child in children], folder

    def test_a_job_that_fails_ends_no_other_one(self):
        jobs = [{"prompt": "a", "output": f"{line}_%d.png", "num_images": 30 if line == 2 else 4} for line in range(1, 7)]
        jobs[3]["input_image"] = "start.png"
        process, (first, _), folder = self.start_jobs(jobs)
        (folder / "start.png").unlink()  # after it was looked at, and before its job
        os.kill(first, signal.SIGSTOP)  # the other one is through long before
        told = []
        while not told or told[-1]["line"] != 6:
            told.append(json.loads(process.stdout.readline()))
        time.sleep(6)  # longer than launch gives others after one has failed
        os.kill(first, signal.SIGCONT)
        rest, said = process.communicate(timeout=120)
        told += map(json.loads, rest.splitlines())
        self.assertEqual(sorted(job["line"] for job in told), [1, 2, 3, 4, 5, 6], said)
        self.assertEqual([job["line"] for job in told if "error" in job], [4])
        self.assertEqual(len(list(folder.glob("[1356]_*.png"))), 16)
        self.assertEqual(process.returncode, 2, said)
        self.assertIn("rank 1 failed, with exit code 2", said)

    def test_a_process_that_is_interrupted_ends_no_other_one(self):
        process, (first, _), folder = self.start_jobs([{"prompt": "a", "output": "1_%d.png", "num_images": 1000},
                                                       {"prompt": "a", "output": "2_%d.png", "num_images": 40}])
        os.kill(first, signal.SIGINT)
        _, said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, said)
        self.assertEqual(len(list(folder.glob("2_*.png"))), 40, said)
        self.assertNotIn("PEER_LOST", said)

    def test_processes_that_would_make_the_same_are_refused(self):
        self.refuse(2, "2 processes would make the same picture, and write it to the same file", "--prompts_file",
                    "--cfg_parallel")
        self.refuse(2, "stdin has one reader, and there are 2 processes", prompts_file="-", prompt=None, output=None)

    def test_what_cannot_be_shared_is_refused_before_anything_is_loaded(self):
        self.refuse(1, "--cfg_parallel: 2 processes make a picture, and there is one", "--nproc_per_node 2",
                    cfg_parallel=True)
        self.refuse(3, "--cfg_parallel: 2 processes make a picture, and there are 3", cfg_parallel=True)
        self.refuse(4, "the others have nothing to do", "--prompts_file", cfg_parallel=True)
        self.refuse(2, "--cfg_scale: 1 turns guidance off", cfg_parallel=True, cfg_scale=1)
        self.refuse(2, "stdin has one reader", cfg_parallel=True, prompts_file="-", prompt=None, output=None)
        self.refuse(2, "nothing_like_that", cfg_parallel=True, plugin="qwen_image", schedule="nothing_like_that")

    def test_an_error_of_one_process_ends_both(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.root))
        (folder / "out.png").mkdir()
        done = program.run_line(self.line(2, cfg_parallel=True, **self.models["qwen_image"]), cwd=folder, timeout=120)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("out.png", done.stderr)


if __name__ == "__main__":
    unittest.main()
