"""Runs each case of trainer_test.cpp in two processes of one run.

    trainer_test.py PROGRAM
"""
import os
import pathlib
import socket
import subprocess
import sys
import unittest

PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())


def run_as_ranks(words, ranks=2):
    """What each rank says, after its exit code."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**os.environ, **{name: str(value) for name, value in place.items()},
                                       "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]
    said = [process.communicate(timeout=120)[0] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said)]


class TrainerTest(unittest.TestCase):

    def test_every_case(self):
        listed = subprocess.run([PROGRAM, "--list-test-names-only"], stdout=subprocess.PIPE, text=True)
        cases = [line.strip() for line in listed.stdout.splitlines() if line.strip()]
        self.assertGreater(len(cases), 7)
        for case in cases:
            with self.subTest(case):
                for rank, (code, text) in enumerate(run_as_ranks([PROGRAM, case.replace(",", "\\,")])):
                    self.assertEqual(code, 0, f"rank {rank}: {text}")
                    self.assertIn("All tests passed", text)


if __name__ == "__main__":
    unittest.main()
