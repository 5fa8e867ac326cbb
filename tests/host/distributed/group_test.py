"""Ranks over Gloo: what they exchange, and what the others say when one goes away."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

TOOL = pathlib.Path(sys.argv.pop(1)).resolve()
KEPT = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
HOST = socket.gethostname()


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class GroupTest(unittest.TestCase):

    def run_tool(self, count, work, rank=-1, expect=0, seconds=30, **environment):
        begin = time.monotonic()
        done = subprocess.run([TOOL, str(count), work, str(rank)], env={**KEPT, "OMP_NUM_THREADS": "1", **environment},
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, expect, done.stderr)
        self.assertLess(time.monotonic() - begin, seconds, done.stderr)
        return done

    def start(self, rank, size, work="exchange", port=None):
        return subprocess.Popen([TOOL, "rank", work], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**KEPT, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
                                     "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                                     "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"})

    def test_all_exchanges_of_two_and_of_four_ranks(self):
        for count in (2, 4):
            with self.subTest(count=count):
                self.assertEqual(self.run_tool(count, "exchange").stdout.count("whole"), count)

    def test_a_rank_that_dies_is_named_and_the_others_end(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                said = self.run_tool(2, "kill", rank, expect=6, seconds=8).stderr
                self.assertIn(f"rank {rank} was ended by signal 9", said)
                self.assertIn(f"step 5, all-reduce: rank {rank} ({HOST}) is lost", said)

    def test_ranks_that_are_busy_elsewhere_end_as_well(self):
        port = free_port()
        ranks = [self.start(rank, 3, "kill", port) for rank in (0, 2)]
        dead = subprocess.run([TOOL, "rank", "kill", "1"], capture_output=True,
                              env={**KEPT, "RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3",
                                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
        begin = time.monotonic()
        self.assertEqual(dead.returncode, -signal.SIGKILL)
        for process in ranks:
            _, said = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 6, said)
            self.assertIn(f"rank 1 ({HOST}) is lost", said)
        self.assertLess(time.monotonic() - begin, 8)

    def test_a_rank_that_stops_is_named_after_the_time_out(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                port = free_port()
                ranks = [subprocess.Popen([TOOL, "rank", "stop", str(rank)], stderr=subprocess.PIPE, text=True,
                                          env={**KEPT, "RANK": str(i), "WORLD_SIZE": "2", "LOCAL_RANK": str(i),
                                               "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                               "MASTER_PORT": str(port)}) for i in range(2)]
                begin = time.monotonic()
                try:
                    _, said = ranks[1 - rank].communicate(timeout=30)
                finally:
                    ranks[rank].kill()
                    ranks[rank].communicate()
                self.assertEqual(ranks[1 - rank].returncode, 6, said)
                self.assertIn(f"rank {rank} ({HOST}) is lost", said)
                self.assertLess(time.monotonic() - begin, 2 + 5 + 3)

    def test_the_error_of_one_rank_leads(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                said = self.run_tool(2, "throw", rank, expect=5, seconds=8).stderr
                self.assertIn("error: a loss of its own [NUMERICS]", said)
                self.assertIn(f"rank {rank} ({HOST}) failed: a loss of its own", said)
                self.assertIn(f"rank {rank} failed first, with exit code 5", said)

    def test_a_rank_that_does_not_come_is_named(self):
        process = self.start(0, 3, port=free_port())
        _, said = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 6, said)
        self.assertIn("rank 1, rank 2 of 3 did not come", said)

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            process = self.start(0, 2, port=taken.getsockname()[1])
            _, said = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 3, said)
        self.assertIn("another program listens at this port", said)

    def test_ranks_with_different_runs_are_told_everything_that_differs(self):
        self.run_tool(4, "compare")
        said = self.run_tool(4, "compare", 2, expect=2).stderr
        self.assertIn(f"--seed: 42, and 43 of rank 2 ({HOST})", said)
        self.assertIn(f"dataset: a, and b of rank 2 ({HOST})", said)
        self.assertNotIn("version", said)

    def test_an_output_folder_that_not_all_ranks_see(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_tool(2, "folder", ATELIER_TEST_FOLDER=folder)
            said = self.run_tool(2, "folder", 1, expect=3, ATELIER_TEST_FOLDER=folder).stderr
            self.assertIn(f"rank 1 ({HOST}) does not see", said)
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
