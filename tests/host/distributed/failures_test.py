"""Ranks that are killed, stopped, given damaged data or a full disk at any moment of a run, in whatever way they train
together: how soon the others end, and what is left.

    failures_test.py [KILLED STOPPED THROWN FULL]

How many rounds there are of each; 3 of each without. Each test prints the longest time that anything took.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

import program
from rank_runs import RankRuns
from ranks import children, free_port, is_alive, launched, place
from tiny_run import TARGETS, losses, write_dataset

ROUNDS = dict(zip(("killed", "stopped", "thrown", "full"), [int(word) for word in sys.argv[1:5]] or [3] * 4))
sys.argv[1:5] = []
LORA = dict(lora_base_model="dit", lora_target_modules=TARGETS, lora_rank=4, lora_dropout=0.1)
FULL = dict(trainable_models="dit", ema_decay=0.9)
# Ways to train together: ranks and flags. Each round has one.
WAYS = {
    "whole": (2, LORA),
    "stage 1": (2, dict(FULL, zero_stage=1)),
    "stage 2 in pairs": (4, dict(LORA, zero_stage=2, zero_group=2)),
    "divided": (2, dict(LORA, zero_stage=3)),
    "divided and trained": (2, dict(FULL, zero_stage=3)),
    "divided and trained in pairs": (4, dict(FULL, zero_stage=3, zero_group=2)),
    "sequence": (2, dict(LORA, sequence_parallel=2)),
    "pairs of sequences": (4, dict(LORA, sequence_parallel=2, zero_stage=1)),
}
SMALL = ("whole", "stage 2 in pairs", "divided", "pairs of sequences")  # files that a small disk holds
TIME_OUT = 5  # seconds that an exchange may take
PROMISE = 5  # seconds in which the others end, behind the event or the time-out


def wait_until(holds, what, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not in {seconds} s: {what}"
        time.sleep(0.01)


class Launched:
    """A program, such as a launch, and what it says."""

    def __init__(self, line, **environment):
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr))
        self.reader.start()

    def ranks(self):
        return children(self.process)

    def has_ended(self):
        return self.process.poll() is not None

    def kill(self):
        self.process.kill()

    def said(self):
        return "".join(self.lines)

    def finish(self):
        """The exit code."""
        self.process.wait(timeout=120)
        self.reader.join()
        self.process.stderr.close()
        return self.process.returncode


class Started:
    """The ranks of a run, each by itself: a line for each."""

    def __init__(self, lines):
        port = free_port()
        self.programs = [Launched(line, **place(rank, len(lines), port)) for rank, line in enumerate(lines)]

    def ranks(self):
        return [rank.process.pid for rank in self.programs]

    def has_ended(self):
        return any(rank.has_ended() for rank in self.programs)

    def kill(self):
        for rank in self.programs:
            rank.kill()

    def said(self):
        return "".join(rank.said() for rank in self.programs)

    def finish(self):
        """The exit codes, by rank."""
        return [rank.finish() for rank in self.programs]


class FailuresTest(RankRuns):

    def setUp(self):
        super().setUp()
        self.random = random.Random(self.id())
        self.longest = 0.0
        self.addCleanup(lambda: print(f"{self.id().rsplit('.', 1)[1]}: longest {self.longest:.2f} s", flush=True))

    def rounds(self, kind):
        """The way of each round. All come up before one comes again."""
        ways = []
        while len(ways) < ROUNDS[kind]:
            ways += self.random.sample(sorted(WAYS), len(WAYS))
        return ways[:ROUNDS[kind]]

    def line(self, way, run, **flags):
        """Of one rank."""
        defaults = dict(dtype="float32", max_pixels=64 * 64, num_epochs=99999, max_train_steps=99999, save_steps=3,
                        checkpoints_total_limit=3, weights_total_limit=1, global_batch_size=4, resume="latest",
                        dist_timeout=TIME_OUT, output_path=run)
        return program.command("train", **self.training(run, self.data, **{**defaults, **WAYS[way][1], **flags}))

    def launch_line(self, way, run, **flags):
        return launched(WAYS[way][0], self.line(way, run, **flags))

    @staticmethod
    def last_step(run):
        path = run / "loss.csv"
        return max(losses(run), default=0) if path.exists() else 0

    def start(self, way, run, by_itself=False):
        """A launch, or ranks each by itself, that go on from the last checkpoint and have made steps of their own."""
        before = self.last_step(run)
        if by_itself:
            started = Started([self.line(way, run)] * WAYS[way][0])
        else:
            started = Launched(self.launch_line(way, run))
        self.addCleanup(started.finish)
        self.addCleanup(started.kill)

        def has_begun():
            self.assertFalse(started.has_ended(), started.said())
            return self.last_step(run) > before

        wait_until(has_begun, "a step")
        time.sleep(self.random.uniform(0, 0.5))
        return started

    def assert_end(self, started, ranks, since, promise):
        """Every one of `ranks` ends in `promise` seconds."""
        wait_until(lambda: not any(map(is_alive, ranks)), "the others end")
        seconds = time.monotonic() - since
        self.longest = max(self.longest, seconds)
        self.assertLess(seconds, promise + program.allowance(), started.said())

    def assert_launch_ends(self, launched, ranks, since, promise):
        """Every rank ends in `promise` seconds, and the launch soon behind. Returns its exit code."""
        self.assert_end(launched, ranks, since, promise)
        code = launched.finish()
        self.assertLess(time.monotonic() - since, promise + 1 + program.allowance(), launched.said())
        return code

    def assert_whole(self, way, run):
        """What is left goes on, to the bits of a run that nothing happened to."""
        steps = max((int(folder.name[5:]) for folder in (run / "checkpoints").glob("step-*")), default=0) + 5
        untouched = self.dir / f"untouched {way}"
        for folder in (run, untouched):
            program.run_line(self.launch_line(way, folder, max_train_steps=steps), code=0)
        self.assert_same_state(run, untouched, steps)
        ours, theirs = losses(run), losses(untouched)
        self.assertEqual({step: theirs[step] for step in ours}, ours)  # a full disk takes no metrics

    def assert_all_whole(self, ways):
        for way in sorted(set(ways)):
            with self.subTest(way):
                self.assert_whole(way, self.dir / way)

    def test_ranks_that_are_killed(self):
        ways = self.rounds("killed")
        for way in ways:
            launched = self.start(way, self.dir / way)
            ranks, rank = launched.ranks(), self.random.randrange(WAYS[way][0])
            begin = time.monotonic()
            os.kill(ranks[rank], signal.SIGKILL)
            self.assertEqual(self.assert_launch_ends(launched, ranks, begin, PROMISE), 6, launched.said())
            self.assertIn(f"rank {rank} was ended by signal 9", launched.said())
            self.assertRegex(launched.said(), rf"rank {rank} \(.*\) is lost")
        self.assert_all_whole(ways)

    def test_ranks_that_are_stopped(self):
        ways = self.rounds("stopped")
        for way in ways:
            started = self.start(way, self.dir / way, by_itself=True)
            ranks, rank = started.ranks(), self.random.randrange(WAYS[way][0])
            begin = time.monotonic()
            os.kill(ranks[rank], signal.SIGSTOP)
            others = ranks[:rank] + ranks[rank + 1:]
            self.assert_end(started, others, begin, TIME_OUT + PROMISE)
            os.kill(ranks[rank], signal.SIGKILL)
            codes = started.finish()
            self.assertEqual(codes.pop(rank), -signal.SIGKILL)
            self.assertEqual(codes, [6] * len(others), started.said())
            self.assertRegex(started.said(), rf"rank {rank} \(.*\) (is lost|does not come to it)")
        self.assert_all_whole(ways)

    def test_a_launch_ends_a_rank_that_is_stopped(self):
        launched = self.start("whole", self.dir / "run")
        ranks = launched.ranks()
        begin = time.monotonic()
        os.kill(ranks[1], signal.SIGSTOP)
        # It gives the one that is stopped as long to end by itself.
        self.assertEqual(self.assert_launch_ends(launched, ranks, begin, TIME_OUT + 2 * PROMISE), 6, launched.said())

    def test_data_that_cannot_be_read_any_more(self):
        ways = self.rounds("thrown")
        entries = None
        for way in ways:
            launched = self.start(way, self.dir / way)
            entries = entries or sorted((self.root / "cache/latents").glob("*.safetensors"))
            entry, kept = self.random.choice(entries), self.dir / "kept"
            ranks = launched.ranks()
            shutil.copyfile(entry, kept)
            damaged = self.dir / "damaged"
            damaged.write_bytes(b"no tensors")
            begin = time.monotonic()
            os.replace(damaged, entry)
            code = self.assert_launch_ends(launched, ranks, begin, PROMISE)
            os.replace(kept, entry)
            self.assertNotIn(code, (0, 6, 70), launched.said())  # its own, which leads
            self.assertIn(entry.name, launched.said())
            self.assertTrue(re.search(r"rank \d \(.*\) failed: ", launched.said()) or
                            launched.said().count("error: ") == 1, launched.said())
        self.assert_all_whole(ways)

    def test_a_batch_that_does_not_fit_is_found_before_the_first_step(self):
        # The images have one size; what takes more is a caption, which comes in the third step.
        blocks, data = self.dir / "blocks", self.dir / "captions"
        program.write_tiny_model(blocks, denoiser_blocks=4)
        write_dataset(data, count=6)
        table = data / "metadata.csv"
        lines = table.read_text().splitlines()
        (data / "short.csv").write_text("\n".join(lines[:6]) + "\n")
        table.write_text("\n".join(lines).replace("number 5", "number 5" + " of many words that are told" * 60) + "\n")

        def train(way, name, table, capacity, code=0, **flags):
            """What was said, and the most bytes that the device of the first rank had to give, in MiB."""
            line = self.launch_line(
                way, self.dir / name, model_paths=json.dumps([str(blocks)]), device=f"simulated:{capacity}", vram="off",
                dataset_base_path=data, dataset_metadata_path=data / table, global_batch_size=2, seed=4, max_train_steps=4,
                save_steps=4, weights_total_limit=None, ema_decay=None, dist_timeout=None, use_gradient_checkpointing=True,
                cache_path=self.dir / f"cache of {table}", **flags)
            said = program.run_line(line, code=code).stderr
            peak = re.search(r"simulated device: at most ([\d.]+) MiB", said)
            return said, peak and float(peak[1])

        for way in ("divided", "divided and trained", "sequence"):
            with self.subTest(way):
                run, whole = self.dir / way, self.dir / f"whole {way}"
                _, least = train(way, f"short {way}", "short.csv", "1GiB")
                _, most = train(way, f"whole {way}", "metadata.csv", "1GiB")
                said, _ = train(way, way, "metadata.csv", f"{least + 0.3 * (most - least):.2f}MiB", code=4)
                self.assertIn("error: the largest batch, before step 1: ", said)
                self.assertNotIn("PEER_LOST", said)
                self.assertFalse(list(run.glob("checkpoints/*")))
                train(way, way, "metadata.csv", "1GiB")
                self.assert_same_state(run, whole, 4)

    def test_sample_images_that_do_not_fit(self):
        prompts = self.dir / "prompts.txt"
        prompts.write_text("a large image --w 512 --h 512 --s 2\n")

        def flags_of(capacity, **flags):
            return dict(device=f"simulated:{capacity}", vram="off", max_train_steps=6, save_steps=5,
                        weights_total_limit=None, dist_timeout=None, use_gradient_checkpointing=True, **flags)

        def train(way, name, capacity, code=0, **flags):
            said = program.run_line(self.launch_line(way, self.dir / name, **flags_of(capacity, **flags)), code=code).stderr
            peak = re.search(r"simulated device: at most ([\d.]+) MiB", said)
            return said, peak and float(peak[1])

        shown = dict(sample_prompts=prompts, sample_every_n_steps=3)
        for way in ("whole", "divided and trained"):
            with self.subTest(way):
                run = self.dir / way
                _, least = train(way, f"plain {way}", "1GiB")
                _, most = train(way, f"shown {way}", "1GiB", **shown)
                tight = f"{0.98 * most:.2f}MiB"
                if way == "whole":  # each image is of one process
                    said, _ = train(way, way, tight, **shown)
                    self.assertIn("no sample images: ", said)
                else:
                    said, _ = train(way, way, tight, code=4, **shown)
                    self.assertIn("error: the sample images after step 3: ", said)
                    self.assertNotIn("PEER_LOST", said)
                    self.assertEqual([path.name for path in run.glob("checkpoints/*")], ["step-00000003"])
                    train(way, way, "1GiB", **shown)
                self.assert_same_state(run, self.dir / f"plain {way}", 6)
        # One alone, behind its last block: the others have no more to exchange. It sees another file there.
        small = self.dir / "small.txt"
        small.write_text("a small image --w 64 --h 64 --s 2\n")
        sees_small = ["unshare", "-m", "sh", "-c", f'mount --bind "{small}" "{prompts}" && exec "$@"', "sh"]
        if subprocess.run([*sees_small, "true"], capture_output=True).returncode:
            return
        for average in (0.9, None):
            with self.subTest(average=average):
                way, name = "divided and trained", f"one alone {average}"
                line = self.line(way, self.dir / name, **flags_of(tight, **shown), ema_decay=average)
                started = Started([[*sees_small, *line], line])
                self.assertEqual(started.finish(), [4, 4], started.said())
                self.assertIn("error: the sample images after step 3: ", started.said())
                self.assertNotIn("PEER_LOST", started.said())
                self.assertEqual([path.name for path in (self.dir / name).glob("checkpoints/*")], ["step-00000003"])
                for other in (name, f"plain {average}"):
                    train(way, other, "1GiB", ema_decay=average)
                self.assert_same_state(self.dir / name, self.dir / f"plain {average}", 6)

    def test_a_disk_that_is_full_while_checkpoints_are_written(self):
        disk = self.dir / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk], capture_output=True).returncode:
            self.skipTest("no small file system can be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk])
        way, run, rest = self.random.choice(SMALL), disk / "run", disk / "rest"
        launched = self.start(way, run)
        for _ in range(ROUNDS["full"]):
            said = launched.said().count("not saved")
            begin = time.monotonic()
            with open(rest, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"\0" * 4096)
                except OSError:
                    pass
            wait_until(lambda: launched.said().count("not saved") > said or launched.has_ended(),
                       "a checkpoint that is not saved")
            rest.unlink()
            self.assertFalse(launched.has_ended(), launched.said())
            self.longest = max(self.longest, time.monotonic() - begin)
            newest = max((run / "checkpoints").glob("step-*"), default=None)
            wait_until(lambda: max((run / "checkpoints").glob("step-*"), default=None) != newest,
                       "a checkpoint that is saved again")
        launched.process.send_signal(signal.SIGTERM)
        self.assertEqual(launched.finish(), 75, launched.said())
        self.assert_whole(way, run)


if __name__ == "__main__":
    unittest.main()
