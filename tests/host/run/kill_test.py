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

TOOL, ROUNDS = None, 0


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
            newest, mid_save = 0, 0
            for _ in range(ROUNDS):
                saver = Saver(folder)
                try:
                    saver.wait_for_steps(2)
                    time.sleep(rng.uniform(0, 0.1))
                finally:
                    code = saver.kill()
                self.assertEqual(-signal.SIGKILL, code)
                self.assertEqual(newest + 1, saver.steps[0], "it did not go on where it had been")
                found = int(
                    subprocess.run([TOOL, "check", folder],
                                   stdout=subprocess.PIPE,
                                   check=True,
                                   text=True).stdout)
                # A step may be committed whose line was not written any more.
                self.assertIn(found, (saver.steps[-1], saver.steps[-1] + 1))
                newest = found
                names = [p.name for p in (Path(folder) / "checkpoints").iterdir()]
                mid_save += any(not n.startswith("step-") for n in names)
                self.assertGreaterEqual(sum("step-" in n for n in names), 2)
            print(f"{ROUNDS} kills, {mid_save} of them within a save; {newest} steps saved")


if __name__ == "__main__":
    TOOL, ROUNDS = sys.argv[1], int(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
