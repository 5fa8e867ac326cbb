"""`atelier doctor --comm`: what ranks measure of their exchanges, and that `atelier plan` reads it."""

import json
import pathlib
import tempfile
import unittest

import program

EXCHANGES = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"]


def measure(*words, ranks=2):
    line = [program.PROGRAM, "launch", "--nproc_per_node", str(ranks), "--", "doctor", "--comm", *words]
    return program.run_line(line, code=0).stdout


class CommTest(unittest.TestCase):

    def test_each_exchange_has_a_latency_and_a_rate(self):
        told = measure()
        self.assertIn("2 ranks on 1 machine, tensors on cpu", told)
        self.assertEqual([line.split()[0] for line in told.splitlines() if "all ranks" in line], EXCHANGES)

    def test_gloo_is_measured_where_it_is_asked_for(self):
        self.assertIn("2 ranks on 1 machine, tensors on cpu", measure("--dist_backend", "gloo"))
        line = [program.PROGRAM, "launch", "--nproc_per_node", "2", "--", "doctor", "--comm", "--dist_backend", "mpi"]
        self.assertIn("--dist_backend", program.run_line(line, code=2).stderr)

    def test_plan_reads_what_is_measured(self):
        found = json.loads(measure("--json"))
        self.assertEqual([entry["name"] for entry in found["collectives"]], EXCHANGES)
        for entry in found["collectives"]:
            self.assertTrue(0 < entry["latency_us"] < 1e6 and 0 < entry["gb_per_s"] < 1e3, entry)
            self.assertLessEqual(found["local_gb_per_s"], entry["gb_per_s"])
            self.assertGreaterEqual(found["local_latency_us"], entry["latency_us"])
        self.assertEqual(found["ranks_per_machine"], 2)
        self.assertNotIn("remote_gb_per_s", found)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "network.json"
            path.write_text(json.dumps(found))
            # What is missing is the training; the network is read before that.
            line = program.command("plan", "train", plugin="qwen_image", ranks=2, network=path)
            self.assertNotIn("network.json", program.run_line(line, code=2).stderr)
            path.write_text("{}")
            self.assertIn("network.json: ", program.run_line(line, code=2).stderr)

    def test_a_process_that_is_alone_is_told_how(self):
        told = program.run_line(program.command("doctor", "--comm"), code=2)
        self.assertEqual(told.stderr.count("\n"), 1)
        self.assertIn("atelier launch --nproc_per_node 2 -- doctor --comm", told.stderr)


if __name__ == "__main__":
    unittest.main()
