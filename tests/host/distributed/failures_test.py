"""Ranks that are killed, stopped, given damaged data or a full disk at any moment of a run: how soon the others end, and
what is left.

    failures_test.py [KILLED STOPPED THROWN FULL]

How many rounds there are of each; 3 of each without. Each test prints the longest time that anything took.
"""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import program
from train_cli_test import TARGETS, losses, state_of, write_dataset

ROUNDS = dict(zip(("killed", "stopped", "thrown", "full"), [int(word) for word in sys.argv[1:5]] or [3] * 4))
sys.argv[1:5] = []
RANKS = 2
TIME_OUT = 5  # seconds that an exchange may take
PROMISE = 5  # seconds in which the others end, behind the event or the time-out


def allowance():
    """Seconds that a promise is exceeded by where more programs run than there are cores."""
    return 3 * max(0, os.getloadavg()[0] / os.cpu_count() - 1)


def is_alive(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(holds, what, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not in {seconds} s: {what}"
        time.sleep(0.01)


class Launched:
    """A launch, and what it says."""

    def __init__(self, line):
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr))
        self.reader.start()

    def ranks(self):
        listed = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in listed.split()]

    def said(self):
        return "".join(self.lines)

    def finish(self):
        """The exit code."""
        self.process.wait(timeout=120)
        self.reader.join()
        self.process.stderr.close()
        return self.process.returncode


class FailuresTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="atelier_failures_")
        cls.addClassCleanup(holder.cleanup)
        cls.root = pathlib.Path(holder.name)
        program.write_tiny_model(cls.root / "model")
        write_dataset(cls.root / "data", count=7, sizes=((64, 64), (64, 32)))

    def setUp(self):
        self.random = random.Random(self.id())
        folder = tempfile.TemporaryDirectory(dir=self.root)
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.longest = 0.0
        self.addCleanup(lambda: print(f"{self.id().rsplit('.', 1)[1]}: longest {self.longest:.2f} s", flush=True))

    def line(self, run, **flags):
        defaults = dict(plugin="qwen_image", model_paths=json.dumps([str(self.root / "model")]), device="cpu",
                        dtype="float32", dataset_base_path=self.root / "data",
                        dataset_metadata_path=self.root / "data/metadata.csv", max_pixels=64 * 64, learning_rate=1e-3,
                        lora_base_model="dit", lora_target_modules=TARGETS, lora_rank=4, lora_dropout=0.1,
                        num_epochs=99999, max_train_steps=99999, save_steps=3, checkpoints_total_limit=3,
                        weights_total_limit=1, threads=1, global_batch_size=4, enable_csv_log=True,
                        resume="latest", dist_timeout=TIME_OUT, cache_path=self.root / "cache", output_path=run)
        train = program.command("train", **{**defaults, **flags})
        return [train[0], "launch", "--nproc_per_node", str(RANKS), "--", *train[1:]]

    @staticmethod
    def last_step(run):
        path = run / "loss.csv"
        return max(losses(run), default=0) if path.exists() else 0

    def start(self, run, **flags):
        """A launch that goes on from the last checkpoint, and has made steps of its own."""
        before = self.last_step(run)
        launched = Launched(self.line(run, **flags))
        self.addCleanup(launched.finish)
        self.addCleanup(launched.process.kill)

        def has_begun():
            self.assertIsNone(launched.process.poll(), launched.said())
            return self.last_step(run) > before

        wait_until(has_begun, "a step")
        time.sleep(self.random.uniform(0, 0.5))
        return launched

    def assert_ends(self, launched, ranks, since, promise, launch=1):
        """Every one of `ranks` in `promise` seconds, and the launch soon behind."""
        wait_until(lambda: not any(map(is_alive, ranks)), "the others end")
        seconds = time.monotonic() - since
        self.longest = max(self.longest, seconds)
        self.assertLess(seconds, promise + allowance(), launched.said())
        code = launched.finish()
        self.assertLess(time.monotonic() - since, promise + launch + allowance(), launched.said())
        return code

    def assert_whole(self, run):
        """What is left goes on, to the bits of a run that nothing happened to."""
        steps = max((int(folder.name[5:]) for folder in (run / "checkpoints").glob("step-*")), default=0) + 5
        for folder in (run, self.dir / "untouched"):
            program.run_line(self.line(folder, max_train_steps=steps), code=0)
        ours, theirs = state_of(run, steps), state_of(self.dir / "untouched", steps)
        self.assertTrue(ours)
        self.assertEqual(set(ours), set(theirs))
        self.assertEqual([name for name, value in ours.items() if theirs[name] != value], [])
        ours, theirs = losses(run), losses(self.dir / "untouched")
        self.assertEqual({step: theirs[step] for step in ours}, ours)  # a full disk takes no metrics

    def test_ranks_that_are_killed(self):
        run = self.dir / "run"
        for _ in range(ROUNDS["killed"]):
            launched = self.start(run)
            ranks, rank = launched.ranks(), self.random.randrange(RANKS)
            begin = time.monotonic()
            os.kill(ranks[rank], signal.SIGKILL)
            self.assertEqual(self.assert_ends(launched, ranks, begin, PROMISE), 6, launched.said())
            self.assertIn(f"rank {rank} was ended by signal 9", launched.said())
            self.assertRegex(launched.said(), rf"rank {rank} \(.*\) is lost")
        self.assert_whole(run)

    def test_ranks_that_are_stopped(self):
        run = self.dir / "run"
        for _ in range(ROUNDS["stopped"]):
            launched = self.start(run)
            ranks, rank = launched.ranks(), self.random.randrange(RANKS)
            begin = time.monotonic()
            os.kill(ranks[rank], signal.SIGSTOP)
            others = ranks[:rank] + ranks[rank + 1:]
            # The launch gives the one that is stopped as long to end by itself.
            self.assert_ends(launched, others, begin, TIME_OUT + PROMISE, launch=PROMISE)
            self.assertFalse(is_alive(ranks[rank]))
            self.assertRegex(launched.said(), rf"rank {rank} \(.*\) (is lost|does not come to it)")
        self.assert_whole(run)

    def test_data_that_cannot_be_read_any_more(self):
        run = self.dir / "run"
        entries = None
        for _ in range(ROUNDS["thrown"]):
            launched = self.start(run)
            entries = entries or sorted((self.root / "cache/latents").glob("*.safetensors"))
            entry, kept = self.random.choice(entries), self.dir / "kept"
            ranks = launched.ranks()
            shutil.copyfile(entry, kept)
            damaged = self.dir / "damaged"
            damaged.write_bytes(b"no tensors")
            begin = time.monotonic()
            os.replace(damaged, entry)
            code = self.assert_ends(launched, ranks, begin, PROMISE)
            os.replace(kept, entry)
            self.assertNotIn(code, (0, 6, 70), launched.said())  # its own, which leads
            self.assertIn(entry.name, launched.said())
            self.assertTrue(re.search(r"rank \d \(.*\) failed: ", launched.said()) or
                            launched.said().count("error: ") == 1, launched.said())
        self.assert_whole(run)

    def test_a_disk_that_is_full_while_checkpoints_are_written(self):
        disk = self.dir / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk], capture_output=True).returncode:
            self.skipTest("no small file system can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk])
        run, rest = disk / "run", disk / "rest"
        launched = self.start(run)
        for _ in range(ROUNDS["full"]):
            said = launched.said().count("not saved")
            begin = time.monotonic()
            with open(rest, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"\0" * 4096)
                except OSError:
                    pass
            wait_until(lambda: launched.said().count("not saved") > said or launched.process.poll() is not None,
                       "a checkpoint that is not saved")
            rest.unlink()
            self.assertIsNone(launched.process.poll(), launched.said())
            self.longest = max(self.longest, time.monotonic() - begin)
            newest = max((run / "checkpoints").glob("step-*"), default=None)
            wait_until(lambda: max((run / "checkpoints").glob("step-*"), default=None) != newest,
                       "a checkpoint that is saved again")
        launched.process.send_signal(signal.SIGTERM)
        self.assertEqual(launched.finish(), 75, launched.said())
        self.assert_whole(run)


if __name__ == "__main__":
    unittest.main()
