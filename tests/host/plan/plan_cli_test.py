"""Runs `atelier plan` as a user would: on models of published size without values, and on the tiny one."""

import json
import re
import unittest

import program
import published_sizes
from tiny_run import FolderTest, write_dataset

GIB = 1 << 30
# Of the published checkpoint.
DIT_BYTES = 40_860_802_176
SIZES = {"B": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class PlanTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny, cls.big = cls.root / "tiny", cls.root / "big"
        program.write_tiny_model(cls.tiny)
        published_sizes.write_model(cls.tiny, cls.big)
        write_dataset(cls.root / "data", count=4)

    def run_program(self, *words, expect=0, **flags):
        return program.run_line(program.command(*words, **{"plugin": "qwen_image", **flags}), code=expect, cwd=self.root)

    def plan(self, *words, **flags):
        path = self.root / "plan.json"
        result = self.run_program("plan", *words, json=path, **flags)
        return json.loads(path.read_text()), result.stdout

    def published(self, **flags):
        return self.plan("generate", model_paths=json.dumps([str(self.big)]), prompt="a red fox in snow",
                         height=1328, width=1328, num_inference_steps=20, device_profile="h200", **flags)

    def component(self, plan, name):
        return next(entry for entry in plan["components"] if entry["name"] == name)

    def phase(self, plan, name):
        return next(entry for entry in plan["phases"] if entry["name"] == name)


class GenerationPlanTest(PlanTest):

    def test_more_memory_is_never_slower_at_published_size(self):
        before = None
        for limit in (12, 24, 40, 80):
            plan, table = self.published(vram=f"{limit}GiB")
            self.assertLessEqual(plan["device_bytes"], limit * GIB)
            spare, unit = re.search(r"with ([0-9.]+) (\w+) to spare", plan["batch"]).groups()
            self.assertAlmostEqual(float(spare) * SIZES[unit], limit * GIB - plan["device_bytes"],
                                   delta=0.051 * SIZES[unit])
            self.assertIn("why", table.splitlines()[2])
            if before is not None:
                self.assertLessEqual(plan["seconds"], before)
            before = plan["seconds"]
            dit = self.component(plan, "dit")
            self.assertEqual(dit["blocks"], 60)
            self.assertEqual(dit["storage"], "plain")
            self.assertEqual(dit["resident_blocks"] == 60, limit == 80)
        # In 80 GiB all of it stays; the bytes are those of the file.
        self.assertAlmostEqual(dit["device_bytes"] / DIT_BYTES, 1.0, delta=1e-3)
        self.assertEqual(self.phase(plan, "denoise")["waited_seconds"], 0)

    def test_an_allowed_storage_is_taken_where_it_is_faster(self):
        plain, _ = self.published(vram="24GiB", cfg_scale=1)
        stored, _ = self.published(vram="24GiB", cfg_scale=1, allow_storage="fp8")
        self.assertEqual(self.component(plain, "dit")["storage"], "plain")
        self.assertEqual(self.component(stored, "dit")["storage"], "fp8")
        self.assertLess(stored["seconds"], plain["seconds"])
        said, _ = self.published(vram="24GiB", cfg_scale=1, allow_storage="fp8",
                                 storage="dit=plain")
        self.assertEqual(self.component(said, "dit")["storage"], "plain")

    def test_four_bits_are_taken_where_neither_sixteen_nor_eight_fit(self):
        for limit, storage in ((80, "plain"), (40, "fp8"), (24, "nf4")):
            plan, _ = self.published(vram=f"{limit}GiB", cfg_scale=1, allow_storage="fp8,nf4")
            dit = self.component(plan, "dit")
            self.assertEqual(storage, dit["storage"])
            self.assertEqual(60, dit["resident_blocks"])
            self.assertLessEqual(plan["device_bytes"], limit * GIB)

    def test_what_was_said_stays(self):
        plan, _ = self.published(vram="40GiB", offload="dit=host", resident_blocks=7, prefetch=1)
        self.assertEqual(self.component(plan, "dit")["resident_blocks"], 7)
        self.assertEqual(self.component(plan, "dit")["prefetch"], 1)

    def test_where_the_host_has_little_memory_blocks_come_from_their_files(self):
        roomy, _ = self.published(vram="16GiB", cfg_scale=1)
        self.assertEqual(self.component(roomy, "dit")["others"], "host")
        self.assertGreater(roomy["host_bytes"], 20 * GIB)
        tight, _ = self.published(vram="16GiB", cfg_scale=1, host_memory="15GiB")
        self.assertEqual(self.component(tight, "dit")["others"], "disk")
        self.assertLessEqual(tight["host_bytes"], 15 * GIB)
        self.assertGreater(tight["seconds"], roomy["seconds"])

    def test_what_cannot_fit_is_refused_with_what_would(self):
        result = self.run_program("plan", "generate", model_paths=json.dumps([str(self.big)]), prompt="a fox",
                                  height=1328, width=1328, device_profile="h200", vram="4GiB", expect=4)
        self.assertIn("does not fit into 4.00 GiB", result.stderr)
        self.assertIn("at least", result.stderr)
        self.assertIn("would need", result.stderr)

    def test_what_fits_without_blocks_on_their_way_is_told(self):
        words = {"model_paths": json.dumps([str(self.big)]), "prompt": "a fox", "height": 256, "width": 256,
                 "device_profile": "h200"}
        said = self.run_program("plan", "generate", vram="1GiB", expect=4, **words).stderr
        number, unit = re.search(r"--prefetch 0 would need ([0-9.]+) ([KMG]iB)", said).groups()
        needed = int(float(number) * 1.01 * SIZES[unit])  # it was rounded
        self.run_program("plan", "generate", vram=f"{needed >> 20}MiB", expect=4, **words)
        plan, _ = self.plan("generate", vram=f"{needed >> 20}MiB", prefetch=0, **words)
        self.assertEqual(0, self.component(plan, "dit")["prefetch"])
        said = self.run_program("plan", "generate", vram="1GiB", prefetch=0, expect=4, **words).stderr
        self.assertNotIn("--prefetch 0 would", said)

    def test_a_curve_falls(self):
        self.published(vram="24GiB", curve=self.root / "curve.csv")
        lines = (self.root / "curve.csv").read_text().splitlines()
        self.assertEqual(lines[0], "limit_bytes,device_bytes,host_bytes,seconds")
        rows = [[float(cell) for cell in line.split(",")] for line in lines[1:]]
        self.assertGreater(len(rows), 10)
        for earlier, later in zip(rows, rows[1:]):
            self.assertLessEqual(later[3], earlier[3])
        self.published(vram="24GiB", curve=self.root / "curve.svg")
        self.assertTrue((self.root / "curve.svg").read_text().startswith("<svg"))

    def test_a_profile_is_read_from_a_file(self):
        profile = self.root / "small.json"
        profile.write_text(json.dumps({"name": "small", "memory_gib": 16, "tflops_16": 100, "tflops_32": 20,
                                       "attention_tflops": 80, "memory_gb_per_s": 500, "copy_gb_per_s": 12}))
        plan, table = self.plan("generate", model_paths=json.dumps([str(self.big)]), prompt="a fox",
                                device_profile=profile)
        self.assertEqual(plan["profile"], "small")
        self.assertLessEqual(plan["device_bytes"], 16 * GIB)
        self.assertIn("plan for small", table)

    def test_wrong_words_are_named(self):
        for words, flags, named in ((["generate"], {"curve": "a.txt"}, "a.txt"),
                                    (["paint"], {}, "paint"),
                                    (["generate"], {"device_profile": "h300"}, "h300"),
                                    (["generate"], {"vram": "much"}, "much"),
                                    (["generate"], {"allow_storage": "fp5"}, "fp5")):
            flags = {"model_paths": json.dumps([str(self.tiny)]), "prompt": "a fox", **flags}
            result = program.run_line(program.command("plan", *words, plugin="qwen_image", **flags), cwd=self.root)
            self.assertIn(result.returncode, (2, 3), result.stderr)
            self.assertIn(named, result.stderr)


class TrainingPlanTest(PlanTest):

    def published_training(self, **flags):
        if "trainable_models" not in flags:
            flags = {"lora_base_model": "dit", "lora_rank": 16, **flags}
        return self.plan("train", model_paths=json.dumps([str(self.big)]), device_profile="h200",
                         dataset_base_path=self.root / "data", dataset_metadata_path=self.root / "data/metadata.csv",
                         height=1328, width=1328, output_path=self.root / "run", **flags)

    def test_a_lora_is_planned_on_four_bits_where_they_are_allowed(self):
        for allowed, storage in (("fp8", "fp8"), ("fp8,nf4", "nf4")):
            plan, _ = self.published_training(vram="16GiB", allow_storage=allowed)
            self.assertEqual(storage, self.component(plan, "dit")["storage"])
            self.assertLessEqual(plan["device_bytes"], 16 * GIB)

    def test_full_training_is_not_refused_for_what_may_rest_on_the_host(self):
        # Values, gradients, master weights and two moments of 20 billion numbers are more than the device has.
        moved, _ = self.published_training(trainable_models="dit", vram="120GiB")
        self.assertGreater(moved["host_bytes"], 5 * DIT_BYTES)
        streamed, _ = self.published_training(trainable_models="dit", cpu_offload=True, optimize_on_cpu=True,
                                              host_memory="900GiB", vram="40GiB")
        self.assertLess(self.component(streamed, "dit")["resident_blocks"], 60)
        self.assertLess(streamed["device_bytes"], 40 * GIB)

    def test_a_lora_fits_into_less_by_streaming_and_by_computing_again(self):
        before = None
        for limit in (24, 48, 80, 120):
            plan, _ = self.published_training(vram=f"{limit}GiB")
            self.assertLessEqual(plan["device_bytes"], limit * GIB)
            train = self.phase(plan, "train")
            if before is not None:
                self.assertLessEqual(train["seconds"], before)
            before = train["seconds"]
        self.assertEqual(self.component(plan, "dit")["resident_blocks"], 60)
        self.assertIn("batch 1 fits with", plan["batch"])

    def test_kept_products_take_the_bytes_of_the_formula(self):
        plan, _ = self.published_training(vram="120GiB", activation_memory_budget="1")
        # 22 D + 4 H + 12 r bytes of each of the tokens of a block, D = 3072, H = 24 heads, r = 16.
        tokens = 83 * 83
        low = 60 * tokens * (22 * 3072 + 4 * 24 + 12 * 16)
        self.assertGreater(self.phase(plan, "train")["working_bytes"], low)
        self.assertLess(self.phase(plan, "train")["working_bytes"], 1.15 * low)


class PredictedAndMeasuredTest(PlanTest):

    def told(self, stderr, what):
        """Bytes behind a word in the line of the prediction."""
        found = re.search(rf"{what} ([0-9.]+) (\w+)", stderr)
        self.assertIsNotNone(found, stderr)
        return float(found[1]) * SIZES[found[2]]

    def check_prediction(self, stderr):
        predicted, measured = self.told(stderr, "predicted"), self.told(stderr, "measured")
        self.assertLessEqual(abs(predicted - measured), 0.1 * measured, stderr)

    def generate(self, output, **flags):
        return self.run_program("generate", model_paths=json.dumps([str(self.tiny)]), prompt="a red circle",
                                height=64, width=64, seed=1, num_inference_steps=4, threads=1,
                                output=self.root / output, **flags)

    def test_a_generation_that_streams_gives_the_same_image_within_its_limit(self):
        self.generate("all.png", device="cpu", no_metadata=True)
        whole = self.generate("wide.png", device="simulated:64MiB:1GB/s", no_metadata=True)
        self.check_prediction(whole.stderr)
        least = self.run_program("generate", model_paths=json.dumps([str(self.tiny)]), prompt="a red circle",
                                 height=64, width=64, seed=1, num_inference_steps=4, threads=1,
                                 device="simulated:64MiB:1GB/s", vram="0.01MiB", expect=4)
        needed = self.told(least.stderr, "needs")
        limit = int(1.1 * needed / 1024) + 1
        tight = self.generate("tight.png", device=f"simulated:{limit}KiB:1GB/s", no_metadata=True)
        self.assertIn("come from the host", tight.stderr)
        self.check_prediction(tight.stderr)
        self.assertEqual((self.root / "all.png").read_bytes(), (self.root / "tight.png").read_bytes())

    def test_a_training_that_is_planned_is_within_its_limit(self):
        result = self.run_program("train", model_paths=json.dumps([str(self.tiny)]), device="simulated:64MiB:1GB/s",
                                  dataset_base_path=self.root / "data", dataset_metadata_path=self.root / "data/metadata.csv", height=64, width=64, max_train_steps=2,
                                  lora_base_model="dit", lora_rank=4, threads=1, output_path=self.root / "trained")
        self.assertIn("plan: ", result.stderr)
        self.check_prediction(result.stderr)

    def test_full_training_that_does_not_fit_moves_to_the_host(self):
        flags = dict(model_paths=json.dumps([str(self.tiny)]), dataset_base_path=self.root / "data",
                     dataset_metadata_path=self.root / "data/metadata.csv", height=64, width=64, max_train_steps=2,
                     trainable_models="dit", threads=1)
        wide = self.run_program("train", device="simulated:64MiB:1GB/s", output_path=self.root / "wide", **flags)
        self.check_prediction(wide.stderr)
        needed = self.told(wide.stderr, "predicted")
        limit = int(needed / 2048)
        tight = self.run_program("train", device=f"simulated:{limit}KiB:1GB/s", output_path=self.root / "tight", **flags)
        self.assertLess(self.told(tight.stderr, "measured"), limit * 1024)

    def test_on_the_cpu_nothing_is_planned(self):
        result = self.generate("cpu.png", device="cpu")
        self.assertNotIn("plan: ", result.stderr)


if __name__ == "__main__":
    unittest.main()
