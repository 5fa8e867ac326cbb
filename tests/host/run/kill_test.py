"""Kills a program that saves in a loop, again and again, and looks at what it left.

usage: kill_test.py RUN_TOOL ROUNDS
"""
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import program

TOOL, ROUNDS = None, 0


def is_unfinished(name):
    return name.startswith(".atelier-tmp-")


class Saver:
    """The program, and the steps that it said were saved."""

    def __init__(self, folder):
        self.process = subprocess.Popen([TOOL, "save", folder], stdout=subprocess.PIPE, text=True)
        self.steps = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            if line.endswith("\n"):
                self.steps.append(int(line))

    def wait_for_steps(self, count):
        deadline = time.monotonic() + 60
        while len(self.steps) < count:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"the program saved {len(self.steps)} steps only")
            time.sleep(0.005)

    def kill(self):
        self.process.kill()
        code = self.process.wait()
        self.reader.join()
        self.process.stdout.close()
        return code


class Kills(unittest.TestCase):

    def test_no_kill_costs_a_committed_checkpoint(self):
        rng = random.Random(1)
        with tempfile.TemporaryDirectory() as folder:
            newest, mid_save, mid_weights = 0, 0, 0
            for _ in range(ROUNDS):
                saver = Saver(folder)
                try:
                    saver.wait_for_steps(2)
                    time.sleep(rng.uniform(0, 0.1))
                finally:
                    code = saver.kill()
                self.assertEqual(-signal.SIGKILL, code)
                self.assertEqual(newest + 1, saver.steps[0], "it did not go on where it had been")
                found = int(program.run_line([TOOL, "check", folder], code=0).stdout)
                # A step may be committed whose line was not written any more.
                self.assertIn(found, (saver.steps[-1], saver.steps[-1] + 1))
                newest = found
                names = [p.name for p in (Path(folder) / "checkpoints").iterdir()]
                mid_save += any(not n.startswith("step-") for n in names)
                mid_weights += any(is_unfinished(p.name) for p in Path(folder).iterdir())
                self.assertGreaterEqual(sum(n.startswith(("step-", ".old-step-")) for n in names), 2)
                program.run_line([TOOL, "open", folder], code=0)
                self.assertEqual([], [p for p in Path(folder).rglob("*") if is_unfinished(p.name)])
            print(f"{ROUNDS} kills, {mid_save} of them within a save and {mid_weights} within weights; "
                  f"{newest} steps saved")

    def test_a_kill_within_the_first_save_leaves_a_folder_that_can_be_used(self):
        rng = random.Random(2)
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                process = subprocess.Popen([TOOL, "save", folder], stdout=subprocess.DEVNULL)
                while not (Path(folder) / "checkpoints").is_dir():
                    self.assertIsNone(process.poll())
                time.sleep(rng.uniform(0, 0.02))
                process.kill()
                process.wait()
                program.run_line([TOOL, "open", folder], code=0)
                self.assertEqual([], [p for p in Path(folder).rglob("*") if is_unfinished(p.name)])
                saver = Saver(folder)
                saver.wait_for_steps(1)
                saver.kill()


if __name__ == "__main__":
    TOOL, ROUNDS = sys.argv[1], int(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
