"""`atelier plan train --ranks`: every way to share a training, on a model of published size without values."""

import json
import unittest

import plan_cli_test
import program

GIB = plan_cli_test.GIB
NUMBERS = plan_cli_test.DIT_BYTES / 2


class RanksPlanTest(plan_cli_test.PlanTest):

    def words(self, **flags):
        data = self.root / "data"
        return program.command("plan", "train", **{
            "plugin": "qwen_image", "model_paths": json.dumps([str(self.big)]), "device_profile": "h200",
            "dataset_base_path": data, "dataset_metadata_path": data / "metadata.csv", "height": 1024, "width": 1024,
            "output_path": self.root / "run", **flags})

    def ranks(self, **flags):
        """The plans by number of ranks, with their rows by flags, and the table."""
        path = self.root / "ranks.json"
        table = program.run_line(self.words(json=path, **flags), code=0, cwd=self.root).stdout
        plans = json.loads(path.read_text())["plans"]
        return {plan["ranks"]: {**plan, "rows": {row["flags"]: row for row in plan["rows"]}} for plan in plans}, table

    def refused(self, *texts, **flags):
        said = program.run_line(self.words(lora_base_model="dit", **flags), code=None, cwd=self.root)
        self.assertIn(said.returncode, (2, 3), said.stderr)
        self.assertEqual(said.stderr.count("error: "), 1, said.stderr)
        for text in texts:
            self.assertIn(text, said.stderr)

    def test_full_training_with_the_file_zero2offload(self):
        plans, table = self.ranks(trainable_models="dit", ranks=8)
        row = plans[8]["rows"]["--zero_stage 2 --optimize_on_cpu"]
        # 2 bytes of a number on each GPU, and 14 on the host of all: gradient, master and two moments.
        self.assertAlmostEqual(row["weight_bytes"] / GIB, 38.1, delta=0.1)
        self.assertAlmostEqual(8 * row["host_bytes"] / GIB, 266, delta=0.5)
        self.assertAlmostEqual(8 * row["host_bytes"] / (14 * NUMBERS), 1, delta=1e-3)
        self.assertAlmostEqual(row["sent_bytes"] / (7 / 8 * 4 * NUMBERS), 1, delta=1e-3)
        self.assertTrue(row["fits"])
        self.assertFalse(plans[8]["rows"][""]["fits"])
        self.assertGreater(plans[8]["rows"][""]["device_bytes"], 16 * NUMBERS)
        sharded = plans[8]["rows"]["--zero_stage 3"]
        self.assertTrue(sharded["fits"])
        self.assertAlmostEqual(sharded["sent_bytes"] / (7 / 8 * 6 * NUMBERS), 1, delta=0.01)
        self.assertIn("--zero_stage 2 --optimize_on_cpu", table)
        self.assertIn("266", table)
        self.assertRegex(plans[8]["why"], "^--zero_stage 3.*the fastest of what fits; without it a rank needs .* of 139")

    def test_averages_are_shared_out_with_what_moves(self):
        plain = self.ranks(trainable_models="dit", ranks=8)[0][8]["rows"]
        averaged = self.ranks(trainable_models="dit", ranks=8, ema_decay=0.999)[0][8]["rows"]
        for flags, ranks in (("", 1), ("--zero_stage 1", 8), ("--zero_stage 2", 8), ("--zero_stage 3", 8)):
            more = averaged[flags]["host_bytes"] - plain[flags]["host_bytes"]
            self.assertAlmostEqual(more / (4 * NUMBERS / ranks), 1, delta=1e-3, msg=flags)

    def test_a_lora_is_shared_in_fewer_ways(self):
        plans, table = self.ranks(lora_base_model="dit", lora_rank=16, ranks="8,16,512")
        self.assertEqual(list(plans), [8, 16, 512])
        self.assertEqual(list(plans[8]["rows"]), ["", "--zero_stage 3", *(f"--sequence_parallel {p}" for p in (2, 4, 8))])
        self.assertIn("--zero_stage 3 --zero_group node", plans[16]["rows"])
        for ranks, plan in plans.items():
            plain, sharded = plan["rows"][""], plan["rows"]["--zero_stage 3"]
            self.assertEqual(plan["choose"], "")  # nothing needs to be sent but the gradients of factors
            self.assertGreater(plain["weight_bytes"] - sharded["weight_bytes"], 0.8 * (1 - 1 / ranks) * 2 * NUMBERS)
            self.assertAlmostEqual(sharded["sent_bytes"] - plain["sent_bytes"], 2 * (1 - 1 / ranks) * 2 * NUMBERS,
                                   delta=0.02 * 4 * NUMBERS)
            halved = plan["rows"]["--sequence_parallel 2"]
            self.assertLess(halved["device_bytes"], plain["device_bytes"])
            if ranks <= 16:  # of more, sums of small gradients take longer than half of computing
                self.assertLess(halved["seconds"], 0.6 * plain["seconds"])
        self.assertLess(plans[8]["rows"][""]["samples_per_second"] * 50, plans[512]["rows"][""]["samples_per_second"])
        self.assertIn("8 ranks: no flag (DDP): the fastest of what fits", table)

    def test_a_slow_network_is_waited_for(self):
        network = self.root / "network.json"
        network.write_text(json.dumps({"name": "slow", "ranks_per_machine": 4, "local_latency_us": 10, "local_gb_per_s": 2,
                                       "remote_latency_us": 50, "remote_gb_per_s": 0.5, "collectives": []}))
        flags = dict(lora_base_model="dit", lora_rank=16, ranks=8)
        fast, _ = self.ranks(**flags)
        slow, table = self.ranks(network=network, **flags)
        self.assertIn("network slow: 2 GB/s", table)
        for mode in ("", "--zero_stage 3"):
            self.assertGreater(slow[8]["rows"][mode]["exposed_seconds"], fast[8]["rows"][mode]["exposed_seconds"])
        sharded = slow[8]["rows"]["--zero_stage 3"]
        self.assertGreater(sharded["exposed_seconds"], 0.9 * sharded["seconds"])

    def test_links_and_numbers_that_cannot_be_are_refused_with_the_way_out(self):
        bad = self.root / "bad.json"
        bad.write_text('{"ranks_per_machine": 8')
        self.refused("bad.json: no JSON object", "doctor --comm --json", ranks=8, network=bad)
        self.refused("none.json", ranks=8, network=self.root / "none.json")
        for ranks in ("0", "x", "-1", "1e3", "99999999"):
            self.refused("--ranks", "8,64,512", ranks=ranks)
        one = self.root / "one.json"
        one.write_text('{"ranks_per_machine": 2, "local_latency_us": 10, "local_gb_per_s": 2}')
        self.refused("measured on one machine of 2", "--ranks says 8", ranks=8, network=one)
        self.refused("--curve", ranks=8, curve=self.root / "curve.csv")


if __name__ == "__main__":
    unittest.main()
