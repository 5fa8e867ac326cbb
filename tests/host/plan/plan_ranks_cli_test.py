"""`atelier plan train --ranks`: every way to share a training, on a model of published size without values."""

import json
import re
import unittest

import plan_cli_test
import program
from tiny_run import on_data

GIB = plan_cli_test.GIB
NUMBERS = plan_cli_test.DIT_BYTES / 2


class RanksPlanTest(plan_cli_test.PlanTest):

    def words(self, **flags):
        return program.command("plan", "train", **{
            "plugin": "qwen_image", "model_paths": json.dumps([str(self.big)]), "device_profile": "h200",
            **on_data(self.root / "data"), "height": 1024, "width": 1024,
            "output_path": self.root / "run", **flags})

    def ranks(self, **flags):
        """The plans by number of ranks, with their rows by the flags that share the training, and the table."""
        path = self.root / "ranks.json"
        table = program.run_line(self.words(json=path, **flags), code=0, cwd=self.root).stdout
        plans = json.loads(path.read_text())["plans"]
        return {plan["ranks"]: {**plan, "rows": {row["sharing"]: row for row in plan["rows"]}} for plan in plans}, table

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
        self.assertRegex(plans[8]["why"], "^--zero_stage 1: the fastest of what fits; without it a rank needs .* of 139")

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
            self.assertEqual(plan["choose"], plain["flags"])  # nothing needs to be sent but the gradients of factors
            self.assertGreater(plain["weight_bytes"] - sharded["weight_bytes"], 0.8 * (1 - 1 / ranks) * 2 * NUMBERS)
            self.assertAlmostEqual(sharded["sent_bytes"] - plain["sent_bytes"], 2 * (1 - 1 / ranks) * 2 * NUMBERS,
                                   delta=0.02 * 4 * NUMBERS)
            halved = plan["rows"]["--sequence_parallel 2"]
            self.assertLess(halved["device_bytes"], plain["device_bytes"])
            # Two ranks make each batch, and twice as many batches make the same step.
            self.assertEqual(halved["sharing"], "--sequence_parallel 2")
            self.assertTrue(halved["flags"].startswith(f"--sequence_parallel 2 --global_batch_size {ranks}"), halved["flags"])
            self.assertGreater(halved["seconds"], 0.95 * plain["seconds"])
            self.assertAlmostEqual(halved["samples_per_second"] * halved["seconds"], ranks, delta=1e-6 * ranks)
        self.assertLess(plans[8]["rows"][""]["samples_per_second"] * 50, plans[512]["rows"][""]["samples_per_second"])
        self.assertIn("8 ranks: no flag (DDP): the fastest of what fits", table)

    def test_a_step_has_as_many_samples_in_every_row(self):
        lora = dict(lora_base_model="dit", lora_rank=16, ranks=8)
        for flags, samples, is_said in ((dict(gradient_accumulation_steps=3), 24, False), (dict(sequence_parallel=2), 4, False),
                                        (dict(global_batch_size=16), 16, True)):
            rows = self.ranks(**lora, **flags)[0][8]["rows"]
            own = f"--sequence_parallel {flags.get('sequence_parallel', 1)}"
            for sharing, row in rows.items():
                self.assertAlmostEqual(row["samples_per_second"] * row["seconds"], samples, delta=1e-4, msg=sharing)
                says = f"--global_batch_size {samples}" in row["flags"]
                is_other = "--sequence_parallel" in sharing and own not in sharing
                self.assertEqual(says, is_other and not is_said, row["flags"])

    def test_a_streamed_base_is_on_a_machine_once(self):
        plans, _ = self.ranks(lora_base_model="dit", lora_rank=16, ranks="1,8,16", cpu_offload=True)
        alone = plans[1]["rows"][""]["host_bytes"]
        self.assertGreater(alone, 0.9 * 2 * NUMBERS)
        for ranks in (8, 16):  # of which eight are on a machine
            self.assertAlmostEqual(8 * plans[ranks]["rows"][""]["host_bytes"] / alone, 1, delta=1e-3)

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

    def test_what_train_refuses_is_left_out(self):
        def left(**flags):
            plan = self.ranks(ranks="16", lora_rank=16, **flags)[0][16]
            self.assertIn(plan["choose"], [None, *(row["flags"] for row in plan["rows"].values())])
            return list(plan["rows"]), plan["left_out"]

        whole, lora = dict(trainable_models="dit"), dict(lora_base_model="dit")
        groups = ["--zero_stage 3 --zero_group node", "--zero_stage 3"]
        sequences = [f"--sequence_parallel {p}" for p in (2, 4, 8)]
        # Adafactor needs whole matrices, whatever shares the base below a LoRA.
        for flags, stages in ((whole, (1, 2, 3)), (lora, ())):
            rows, reasons = left(optimizer_type="Adafactor", **flags)
            self.assertEqual([row for row in rows if "sequence" not in row], ["", *groups] if flags is lora else [""])
            self.assertEqual(len(reasons), len(stages), reasons)
            for stage, reason in zip(stages, reasons if stages == () else sorted(reasons)):
                self.assertIn(f"--zero_stage {stage}: this optimizer needs whole matrices", reason)
        distilled = self.root / "data/distilled.csv"
        distilled.write_text("image,prompt,seed,num_inference_steps\n0.png,a fox,1,2\n")
        rows, reasons = left(task="direct_distill", dataset_metadata_path=distilled, **lora)
        self.assertEqual((sorted(rows), reasons), (sorted(["", *groups, *sequences]), []))
        rows, reasons = left(offload="dit=host", resident_blocks=4, **lora)
        self.assertNotIn("--zero_stage 3", rows)
        self.assertIn("--resident_blocks", reasons[0])
        # Five processes do not divide 24 key heads; these do.
        self.assertEqual(left(attention="cudnn", **lora)[1], [])

    def test_train_refuses_what_is_left_out(self):
        network = self.root / "sixteen.json"
        network.write_text(json.dumps({"ranks_per_machine": 16, "local_latency_us": 10, "local_gb_per_s": 2}))
        flags = dict(lora_base_model="dit", lora_rank=16, attention="cudnn")
        plan = self.ranks(ranks=16, network=network, **flags)[0][16]
        self.assertNotIn("--sequence_parallel 16", plan["rows"])
        self.assertEqual(len(plan["left_out"]), 1)
        self.assertIn("--attention cudnn: 16 processes of --sequence_parallel do not divide the 24 key heads of dit",
                      plan["left_out"][0])
        self.assertIn("--sequence_parallel 16", self.ranks(ranks=16, network=network, **{**flags, "attention": "flash"})[0][16]["rows"])
        words = [word for word in self.words(sequence_parallel=16, **flags) if word != "plan"]
        said = program.run_line(words, code=None, cwd=self.root)
        self.assertIn(plan["left_out"][0], said.stderr)

    def test_the_printed_flags_plan_the_same(self):
        """What a row takes of activations, places and blocks ahead is in its flags: given to train, they leave nothing open."""
        lora, whole = dict(lora_base_model="dit", lora_rank=16), dict(trainable_models="dit")
        again_for = ("", "--zero_stage 3", "--sequence_parallel 2", "--zero_stage 2 --optimize_on_cpu",
                     "--zero_stage 3 --sequence_parallel 2")
        seen = set()
        for limit, flags in (("14GiB", lora), ("26GiB", lora), ("48GiB", whole)):
            flags = dict(flags, ranks=8, vram=limit)
            plans, table = self.ranks(**flags)
            chosen = plans[8]["choose"]
            self.assertIn(f"8 ranks: {chosen or 'no flag (DDP)'}: the fastest of what fits", table)
            for sharing, row in plans[8]["rows"].items():
                if not row["fits"] or sharing not in again_for:
                    continue
                with self.subTest(limit=limit, flags=row["flags"]):
                    self.assertTrue(row["flags"].startswith(sharing))
                    path = self.root / "again.json"
                    words = self.words(json=path, **flags) + row["flags"].split()
                    program.run_line(words, code=0, cwd=self.root)
                    again = {one["sharing"]: one for one in json.loads(path.read_text())["plans"][0]["rows"]}
                    # Nothing is left to be said of this way, with which the same is planned.
                    same = again[""]
                    self.assertEqual(same["flags"], "")
                    for figure in ("host_bytes", "weight_bytes", "sent_bytes"):
                        self.assertEqual(same[figure], row[figure], figure)
                    # Activations are said in whole MiB.
                    self.assertLessEqual(same["device_bytes"], row["device_bytes"])
                    self.assertGreater(same["device_bytes"], 0.99 * row["device_bytes"])
                    self.assertAlmostEqual(same["seconds"] / row["seconds"], 1, delta=0.01)
                    seen.update(re.findall("--[a-z_]+", row["flags"]))
        self.assertLessEqual({"--zero_stage", "--optimize_on_cpu", "--sequence_parallel", "--use_gradient_checkpointing",
                              "--activation_memory_budget", "--offload", "--resident_blocks", "--prefetch"}, seen)

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
