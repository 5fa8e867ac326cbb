"""Ranks on two machines, for which two network namespaces stand, and what they do when the network between them goes away.

    machines_test.py GROUP_TOOL

Needs root and `ip`; skipped without them.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import program
from ranks import place

TOOL = pathlib.Path(sys.argv.pop(1)).resolve()
PROMISE = 30  # seconds after which the others have ended
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


class MachinesTest(unittest.TestCase):

    def setUp(self):
        self.names = [f"atelier{os.getpid()}{end}" for end in "ab"]
        for name in self.names:
            ip("netns", "add", name)
            self.addCleanup(ip, "netns", "del", name)
        ip("link", "add", "ranks0", "netns", self.names[0], "type", "veth", "peer", "name", "ranks0", "netns",
           self.names[1])
        for name, address in zip(self.names, ADDRESSES):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "ranks0")
            ip("-n", name, "link", "set", "ranks0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def start(self, rank, busy):
        """Two ranks, each alone on its machine, that exchange until rank `busy` has slept at step 5 for a minute."""
        process = subprocess.Popen(["ip", "netns", "exec", self.names[rank], TOOL, "rank", "sleep", str(busy)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, **place(rank, 2, 29500, ADDRESSES[0]), "LOCAL_RANK": "0",
                                        "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "ranks0", "OMP_NUM_THREADS": "1"})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def cut(self, _):
        ip("-n", self.names[1], "link", "set", "ranks0", "down")

    def run_until(self, event, busy=1):
        """`event` happens to rank 1 when one rank is busy at step 5 and the other waits for it there. Returns the ranks."""
        ranks = [self.start(rank, busy) for rank in range(2)]
        self.assertIn("event", "".join(ranks[busy].stdout.readline() for _ in range(2)))
        self.begin = time.monotonic()
        event(ranks[1])
        return ranks

    def assert_ends(self, rank):
        """Returns what it says at its end."""
        _, said = rank.communicate(timeout=120)
        self.assertLess(time.monotonic() - self.begin, PROMISE + program.allowance(), said)
        self.assertEqual(rank.returncode, 6, said)
        return said

    def test_a_machine_that_goes_away_is_named(self):
        ranks = self.run_until(self.cut)
        self.assertRegex(self.assert_ends(ranks[0]),
                         r"step 5, all-reduce of 1000 Float: rank 1 \(.*\) is lost \(no sign of life")

    def test_a_machine_that_is_cut_off_from_the_first_one_ends(self):
        for busy, step in ((1, 4), (0, 5)):
            with self.subTest(busy=busy):
                ranks = self.run_until(self.cut, busy)
                self.assertRegex(self.assert_ends(ranks[1]), rf"step {step}, .*: rank 0 \(.*\) is lost")
                self.assert_ends(ranks[0])
                ip("-n", self.names[1], "link", "set", "ranks0", "up")

    def test_a_process_that_dies_on_another_machine_is_named(self):
        ranks = self.run_until(lambda rank: rank.send_signal(signal.SIGKILL))
        self.assertRegex(self.assert_ends(ranks[0]), r"step 5, all-reduce of 1000 Float: rank 1 \(.*\) is lost")


if __name__ == "__main__":
    try:
        ip("netns", "add", f"atelier{os.getpid()}")
        ip("netns", "del", f"atelier{os.getpid()}")
    except (OSError, subprocess.CalledProcessError):
        print("no network namespaces can be made here: not run")
        sys.exit(77)
    unittest.main()
