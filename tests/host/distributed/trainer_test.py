"""Runs each case of trainer_test.cpp, or of queued_ranks_test.cpp, in two processes of one run.

    trainer_test.py PROGRAM
"""
import os
import pathlib
import subprocess
import sys
import unittest

from ranks import free_port, place

PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())


def run_as_ranks(words, ranks=2):
    """What each rank says, after its exit code."""
    port = free_port()
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env={**os.environ, **place(rank, ranks, port)}) for rank in range(ranks)]
    said = [process.communicate(timeout=120)[0] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said)]


class TrainerTest(unittest.TestCase):

    def test_every_case(self):
        listed = subprocess.run([PROGRAM, "--list-test-names-only"], stdout=subprocess.PIPE, text=True)
        cases = [line.strip() for line in listed.stdout.splitlines() if line.strip()]
        self.assertGreater(len(cases), 3)
        for case in cases:
            with self.subTest(case):
                for rank, (code, text) in enumerate(run_as_ranks([PROGRAM, case.replace(",", "\\,")])):
                    self.assertEqual(code, 0, f"rank {rank}: {text}")
                    self.assertIn("All tests passed", text)


if __name__ == "__main__":
    unittest.main()
