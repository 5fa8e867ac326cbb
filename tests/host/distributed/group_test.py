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

import program
from ranks import free_port, is_alive, place

TOOL = pathlib.Path(sys.argv.pop(1)).resolve()
KEPT = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
HOST = socket.gethostname()
LIMIT = 3  # seconds that an exchange may take where it is to fail


class GroupTest(unittest.TestCase):

    def run_tool(self, count, work, rank=-1, expect=0, promise=None, **environment):
        """`promise`: seconds after the event in which all processes have ended."""
        done = subprocess.run([TOOL, str(count), work, str(rank)], env={**KEPT, "OMP_NUM_THREADS": "1", **environment},
                              capture_output=True, text=True, timeout=280)
        end = time.monotonic()
        self.assertEqual(done.returncode, expect, done.stderr)
        self.assertNotIn("frame #", done.stderr)  # a stack
        told = [line.split() for line in done.stdout.splitlines()]
        self.assertFalse([words[1] for words in told if words[0] == "process" and is_alive(words[1])])
        if promise:
            event = next(float(words[1]) for words in told if words[0] == "event")
            self.assertLess(end - event, promise + program.allowance(), done.stderr)
        return done

    def start(self, rank, size, work="exchange", port=None, which=-1, **environment):
        process = subprocess.Popen([TOOL, "rank", work, str(which)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True,
                                   env={**KEPT, **place(rank, size, port), "OMP_NUM_THREADS": "1", **environment})
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def event_of(self, process):
        return next(float(line.split()[1]) for line in process.stdout if line.startswith("event"))

    def assert_ends(self, process, code, event, promise):
        process.wait(timeout=280)
        seconds = time.monotonic() - event
        said = process.stderr.read()
        self.assertEqual(process.returncode, code, said)
        self.assertLess(seconds, promise + program.allowance(), said)
        return said

    def test_all_exchanges_of_two_and_of_four_ranks(self):
        for count in (2, 4):
            for compared in ({}, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}):  # by LibTorch, before each is made
                with self.subTest(count=count, **compared):
                    self.assertEqual(self.run_tool(count, "exchange", **compared).stdout.count("whole"), count)

    def test_gradients_take_what_the_table_says(self):
        for count in (2, 4):
            with self.subTest(count=count):
                self.assertEqual(self.run_tool(count, "bytes of gradients").stdout.count("whole"), count)

    def test_a_rank_that_dies_is_named_and_the_others_end(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                said = self.run_tool(2, "kill", rank, expect=6, promise=5).stderr
                self.assertIn(f"rank {rank} was ended by signal 9", said)
                self.assertIn(f"step 5, all-reduce of 1000 Float: rank {rank} ({HOST}) is lost", said)

    def test_ranks_that_are_busy_elsewhere_end_as_well(self):
        port = free_port()
        ranks = [self.start(rank, 3, "kill", port, which=1) for rank in range(3)]
        event = self.event_of(ranks[1])
        for rank in (0, 2):
            said = self.assert_ends(ranks[rank], 6, event, promise=5)
            self.assertRegex(said, rf"step \d, .*: rank 1 \({HOST}\) is lost")

    def test_a_rank_that_stops_is_named_after_the_time_out(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                port = free_port()
                ranks = [self.start(i, 2, "stop", port, which=rank, ATELIER_TEST_LIMIT=str(LIMIT)) for i in range(2)]
                said = self.assert_ends(ranks[1 - rank], 6, self.event_of(ranks[rank]), promise=LIMIT + 5)
                self.assertIn(f"step 5, all-reduce of 1000 Float: rank {rank} ({HOST}) is lost", said)

    def test_a_rank_that_shows_no_sign_of_life_is_named_where_others_wait_without_limit(self):
        port = free_port()
        ranks = [self.start(i, 3, "stop", port, which=1) for i in range(3)]
        event = self.event_of(ranks[1])
        for rank in (0, 2):
            said = self.assert_ends(ranks[rank], 6, event, promise=30)
            self.assertIn(f"rank 1 ({HOST}) is lost", said)

    def test_a_rank_that_is_late_is_named(self):
        said = self.run_tool(2, "sleep", 1, expect=6, promise=LIMIT + 5, ATELIER_TEST_LIMIT=str(LIMIT)).stderr
        self.assertIn(f"step 5, all-reduce of 1000 Float: rank 1 ({HOST}) does not come to it", said)

    def test_a_rank_that_is_late_is_waited_for_with_patience(self):
        said = self.run_tool(2, "late while others have patience", 1, expect=6, promise=LIMIT + 5,
                             ATELIER_TEST_LIMIT=str(LIMIT)).stderr
        self.assertIn(f"step 5, all-reduce of 1000 Float: rank 1 ({HOST}) does not come to it", said)  # behind the patience

    def test_a_rank_that_is_late_in_a_smaller_group_is_named_alone(self):
        said = self.run_tool(4, "late in a smaller group", 1, expect=6, promise=LIMIT + 5,
                             ATELIER_TEST_LIMIT=str(LIMIT)).stderr
        self.assertIn(f"step 5, halves of ranks 0 1, all-reduce of 8 Float: rank 1 ({HOST}) does not come to it", said)
        self.assertNotIn(f"rank 0 ({HOST}) does not", said)

    def test_a_rank_that_is_lost_where_rows_go_around_is_named(self):
        where = f"step 5, rows of a sequence of ranks 0 1 2, pass to the next rank of 32 Byte: rank 1 ({HOST})"
        said = self.run_tool(3, "ring, kill", 1, expect=6, promise=5).stderr
        self.assertIn(f"{where} is lost", said)
        said = self.run_tool(3, "ring, sleep", 1, expect=6, promise=LIMIT + 5, ATELIER_TEST_LIMIT=str(LIMIT)).stderr
        self.assertIn(f"{where} does not come to it", said)
        said = self.run_tool(3, "ring, other pass", 1, expect=70, promise=LIMIT + 5, ATELIER_TEST_LIMIT=str(LIMIT)).stderr
        self.assertIn("pass to the next rank of 36 Byte", said)

    def test_work_that_one_rank_cannot_go_on_with_is_left_by_all(self):
        for rank in range(4):
            with self.subTest(rank=rank):
                self.assertEqual(self.run_tool(4, "call off", rank).stdout.count("whole"), 4)

    def test_the_error_of_one_rank_leads(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                said = self.run_tool(2, "throw", rank, expect=5, promise=5).stderr
                self.assertIn("error: a loss of its own [NUMERICS]", said)
                self.assertIn(f"rank {rank} ({HOST}) failed: a loss of its own", said)
                self.assertIn(f"rank {rank} failed, with exit code 5", said)

    def test_ranks_that_exchange_different_things_end_in_that_step(self):
        for work, told in (("other size", "all-reduce of 999 Float"), ("other type", "all-reduce of 1000 Int"),
                           ("other exchange", "broadcast by rank 1 of 1000 Float"), ("agreement", "agreement")):
            with self.subTest(work=work):
                said = self.run_tool(2, work, 1, expect=70, promise=LIMIT + 5, ATELIER_TEST_LIMIT=str(LIMIT)).stderr
                self.assertIn(f"rank 0 ({HOST}) is at step 5, all-reduce of 1000 Float, and rank 1 ({HOST}) at "
                              f"step 5, {told}", said)

    def test_what_ranks_tell_of_their_exchanges_is_compared(self):
        said = self.run_tool(2, "other block", 1, expect=70).stderr
        self.assertIn(f"rank 0 ({HOST}) is at step 5, all-gather of block 1, of 8 Float, and rank 1 ({HOST}) at step 5, "
                      "all-gather of block 2, of 8 Float", said)

    def test_a_rank_that_does_not_come_is_named(self):
        begin = time.monotonic()
        process = self.start(0, 3, port=free_port(), ATELIER_TEST_MEETING="4")
        said = self.assert_ends(process, 6, begin, promise=4 + 5 + 5)  # loading the program took some of it
        self.assertIn("rank 1, rank 2 of 3 did not come", said)

    def test_a_host_that_nobody_knows_is_named_at_once(self):
        begin = time.monotonic()
        process = self.start(1, 2, port=free_port(), MASTER_ADDR="no-such-host.invalid")
        said = self.assert_ends(process, 3, begin, promise=20)  # asking a name server takes some of it
        self.assertEqual(said.count("error: "), 1, said)
        self.assertIn('the ranks meet at "no-such-host.invalid", which is no known host', said)

    def test_whom_ranks_wait_for_is_said(self):
        """Behind a port where somebody else listens, without an end; and beside a rank that does not come."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port, other, begin = taken.getsockname()[1], free_port(), time.monotonic()
            stray = self.start(1, 2, port=port, ATELIER_TEST_MEETING="12")
            both = [self.start(rank, 3, port=other, ATELIER_TEST_MEETING="12") for rank in range(2)]
            said = self.assert_ends(stray, 6, begin, promise=12 + 5)
            self.assertIn(f"note: waiting for rank 0 of 2 at 127.0.0.1:{port}, for 10 s\n", said)
            self.assertIn(f"rank 0 does not answer at 127.0.0.1:{port} within 12 s", said)
            for process in both:
                said = self.assert_ends(process, 6, begin, promise=12 + 5 + 5)
                self.assertIn(f"note: waiting for rank 2 of 3 at 127.0.0.1:{other}, for 10 s\n", said)
                self.assertIn("rank 2 of 3 did not come", said)

    def test_a_number_that_two_processes_have(self):
        port = free_port()
        begin = time.monotonic()
        ranks = [self.start(rank, 3, port=port) for rank in (0, 1, 1)]
        for process in ranks:
            said = self.assert_ends(process, 2, begin, promise=15)  # loading the program took some of it
            self.assertRegex(said, rf"two processes are rank 1: process \d+ on {HOST}, and process \d+ on {HOST}")

    def test_a_number_that_a_process_of_a_run_has_already(self):
        port = free_port()
        ranks = [self.start(rank, 2, "sleep", port, which=1) for rank in range(2)]
        self.event_of(ranks[1])
        _, said = self.start(1, 2, port=port).communicate(timeout=60)
        self.assertIn("two processes are rank 1", said)
        for process in ranks:
            self.assertIsNone(process.poll())

    def test_ranks_that_know_different_numbers_of_processes(self):
        for sizes in ((2, 3), (3, 2)):
            with self.subTest(sizes=sizes):
                port, begin = free_port(), time.monotonic()
                ranks = [self.start(rank, size, port=port) for rank, size in enumerate(sizes)]
                for process in ranks:
                    said = self.assert_ends(process, 2, begin, promise=15)
                    self.assertIn(f"rank 1 ({HOST}) is one of {sizes[1]} processes, and rank 0 ({HOST}) one of {sizes[0]}",
                                  said)

    def test_what_an_earlier_start_left_in_a_launchers_store_is_not_met(self):
        from torch.distributed import TCPStore  # as torchrun's agent keeps it
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        agent = dict(port=store.port, TORCHELASTIC_USE_AGENT_STORE="True")
        lost = [self.start(rank, 3, "kill", which=1, TORCHELASTIC_RESTART_COUNT="0", **agent) for rank in range(3)]
        self.assertEqual([process.wait(timeout=60) for process in lost], [6, -signal.SIGKILL, 6])
        stray = self.start(1, 3, ATELIER_TEST_MEETING="60", **agent)  # nobody answers it
        time.sleep(1)
        stray.kill()
        for counts in (("0", "0"), ("0", "1")):  # agents count for themselves
            again = [self.start(rank, 2, TORCHELASTIC_RESTART_COUNT=count, **agent) for rank, count in enumerate(counts)]
            for process in again:
                told, said = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 0, said)
                self.assertIn("whole", told)

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            process = self.start(0, 2, port=taken.getsockname()[1])
            _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, said)
        self.assertIn("another program listens at this port", said)

    def test_ranks_with_different_runs_are_told_everything_that_differs_once(self):
        self.run_tool(4, "compare")
        said = self.run_tool(4, "compare", 2, expect=2).stderr
        self.assertEqual(said.count(f"--seed: 42, and 43 of rank 2 ({HOST})"), 1, said)
        self.assertEqual(said.count(f"dataset: a, and b of rank 2 ({HOST})"), 1, said)
        self.assertNotIn("version", said)

    def test_ranks_that_share_a_gpu(self):
        self.run_tool(2, "gpus")
        said = self.run_tool(3, "gpus", 2, expect=2).stderr
        self.assertEqual(said.count(f"GPU-0 is shared by rank 0 ({HOST}), rank 2 ({HOST}); NCCL needs a GPU for each"), 1)
        self.assertIn("--dist_backend gloo", said)

    def test_an_output_folder_that_not_all_ranks_see(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_tool(2, "folder", ATELIER_TEST_FOLDER=folder)
            said = self.run_tool(2, "folder", 1, expect=3, ATELIER_TEST_FOLDER=folder).stderr
            self.assertEqual(said.count(f"rank 1 ({HOST}) does not see"), 1, said)
            self.assertEqual(os.listdir(folder), [])

    def test_a_folder_that_nobody_can_write(self):
        self.run_tool(2, "folder that is read")
        self.assertIn(f"rank 1 ({HOST}) does not see", self.run_tool(2, "folder that is read", 1, expect=3).stderr)

    def test_a_signal_that_ends_the_processes_is_no_loss(self):
        launcher = subprocess.Popen([TOOL, "2", "sleep", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    text=True, env={**KEPT, "OMP_NUM_THREADS": "1"})
        self.event_of(launcher)
        launcher.send_signal(signal.SIGTERM)
        _, said = launcher.communicate(timeout=60)
        self.assertEqual(launcher.returncode, 128 + signal.SIGTERM, said)
        self.assertNotIn("PEER_LOST", said)


if __name__ == "__main__":
    unittest.main()
