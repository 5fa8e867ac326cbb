"""Blocks of a frozen denoiser divided among ranks (--zero_stage 3): the results of one process, and what is held and sent.

    divided_test.py WAN_PLUGIN WRITE_MODEL
"""
import os
import pathlib
import re
import signal
import tempfile
import time
import unittest

import program
import train_test
import wan_training_test as wan
from train_cli_test import TARGETS, losses, state_of, tensors, write_dataset

BLOCKS = 6
LORA = dict(lora_base_model="dit", lora_target_modules=TARGETS, lora_rank=4, zero_stage=3)

# Name: flags.
KINDS = {
    "lora": dict(lora_dropout=0.1),
    "one slot": dict(prefetch=0),
    "three ahead": dict(prefetch=3, batch_size=2, steps=6),
    "fp8": dict(storage="dit=fp8", dtype="bfloat16"),
    "int8": dict(storage="dit=int8", device="simulated", cpu_offload=True),
    "on the host": dict(device="simulated", cpu_offload=True, ema_decay=0.9),
    "kept in part": dict(activation_memory_budget=0.5),
    "optimized on the host": dict(device="simulated", optimize_on_cpu=True, max_grad_norm=0),
    "one number": dict(device="simulated:64MiB", vram="40MB"),
}


def count(tensor):
    dtype, _, data = tensor
    return len(data) // {"F32": 4, "BF16": 2}[dtype]


def block_bytes(model):
    """Of one block in float32."""
    return 4 * sum(count(tensor) for path in (model / "transformer").glob("*.safetensors")
                   for name, tensor in tensors(path).items() if name.startswith("transformer_blocks.")) // BLOCKS


class DividedTest(unittest.TestCase):
    assert_close = train_test.DistributedTrainTest.assert_close
    line = train_test.DistributedTrainTest.line
    start = train_test.DistributedTrainTest.start
    children = staticmethod(train_test.DistributedTrainTest.children)
    train = train_test.DistributedTrainTest.train

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="atelier_divided_")
        cls.addClassCleanup(holder.cleanup)
        root = cls.root = pathlib.Path(holder.name)
        cls.model, cls.data = root / "model", root / "data"
        program.write_tiny_model(cls.model, denoiser_blocks=BLOCKS)
        write_dataset(cls.data, count=7, sizes=((64, 64), (64, 32)))

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=self.root)
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def assert_same_bits(self, name="", steps=8, **flags):
        """Of one process and of two, each of which has a batch of every step."""
        defaults = dict(global_batch_size=2 * flags.get("batch_size", 1), max_train_steps=steps, save_steps=steps,
                        cache_path=self.root / flags.get("dtype", "float32"))
        flags = {**defaults, **flags}
        alone, both = (self.train(ranks, f"{name}_{ranks}", **flags) for ranks in (1, 2))
        self.assert_same(alone, both, steps)

    def assert_same(self, alone, both, steps):
        one, other = state_of(alone, steps), state_of(both, steps)
        self.assertTrue(one)
        self.assertEqual(set(one), set(other))
        self.assertEqual([key for key, value in one.items() if other[key] != value], [])
        files = [{path.name: tensors(path) for path in run.glob("*.safetensors")} for run in (alone, both)]
        self.assertTrue(files[0])
        self.assertTrue(files[0] == files[1])
        self.assertEqual(losses(alone), losses(both))

    def test_two_ranks_have_the_bits_of_one(self):
        for name, flags in KINDS.items():
            with self.subTest(name):
                self.assert_same_bits(name.replace(" ", "_"), **{**LORA, **flags})

    def test_ranks_have_the_bits_of_ranks_with_whole_models(self):
        # Seven samples an epoch: in each last step some ranks compute a batch that does not count.
        for ranks in (3, 4):
            with self.subTest(ranks=ranks):
                whole = self.train(ranks, f"whole_{ranks}", **{**LORA, "zero_stage": 0})
                divided = self.train(ranks, f"divided_{ranks}", **LORA)
                self.assert_same(whole, divided, 10)

    def test_rows_of_other_numbers_of_steps_are_distilled_in_lockstep(self):
        flags = dict(LORA, **train_test.distilled(self.data))
        self.assert_same_bits("distilled", **flags)
        self.assert_same_bits("a_layer", **{**flags, "lora_target_modules": "transformer_blocks.3.attn.to_q"})
        flags.update(batch_size=2, global_batch_size=8)
        whole = self.train(3, "whole", **{**flags, "zero_stage": 0})
        self.assert_same(whole, self.train(3, "divided", **flags), 10)

    def test_two_groups_have_a_model_each(self):
        whole = self.train(4, "whole", **{**LORA, "zero_stage": 0})
        self.assert_same(whole, self.train(4, "in_pairs", zero_group=2, **LORA), 10)
        self.assertIn(f"{BLOCKS} blocks are divided among 2 processes", self.said)

    def test_a_run_goes_on_with_another_number_of_ranks(self):
        whole = self.train(4, "whole", **LORA)
        for ranks, steps in ((4, 4), (1, 7), (2, 10)):
            resumed = dict(resume="latest", global_batch_size=None) if steps > 4 else {}
            run = self.train(ranks, "changing", max_train_steps=steps, save_steps=steps, **{**LORA, **resumed})
        self.assert_close(whole, run)

    def test_both_experts_of_wan(self):
        model = self.dir / "wan"
        wan.write_model(model)
        wan.write_walk(self.dir / "walk")
        wan.frame(3).save(self.dir / "still.png")
        (self.dir / "clips.csv").write_text("video,image,prompt\nwalk,,a walk\n,still.png,a stand\n")
        flags = dict(plugin=wan.PLUGIN, dataset_base_path=self.dir, dataset_metadata_path=self.dir / "clips.csv",
                     num_frames=5, height=16, width=32, max_pixels=None, lora_rank=2, zero_stage=3, cache_path=self.dir / "cache",
                     model_paths=wan.model_paths(model))
        self.assert_same_bits("device", lora_base_model="dit,dit2", **flags)
        self.assert_same_bits("host", lora_base_model="dit,dit2", device="simulated", cpu_offload=True, prefetch=1,
                              **flags)

    def test_a_rank_holds_its_part_and_slots(self):
        block = block_bytes(self.model)
        units = {"B": 1, "KiB": 2**10, "MiB": 2**20}
        for ranks in (2, 4):
            self.train(ranks, **{**LORA, "device": "simulated", "cpu_offload": True, "prefetch": 1})
            told = re.search(rf"dit: {BLOCKS} blocks are divided among {ranks} processes, of which the device of this "
                             r"one held ([\d.]+) (\w+); the host held ([\d.]+) (\w+)", self.said)
            self.assertTrue(told, self.said)
            slots, parts = (float(told[i]) * units[told[i + 1]] for i in (1, 3))
            self.assertAlmostEqual(slots / (2 * block), 1, delta=0.03)
            self.assertAlmostEqual(parts / (BLOCKS * block / ranks), 1, delta=0.03)

    def test_what_is_sent(self):
        block = block_bytes(self.model)
        for ranks, batches in ((2, 1), (2, 3), (4, 1)):
            run = self.train(ranks, f"sent_{ranks}_{batches}", global_batch_size=ranks * batches, prefetch=0,
                             dataset_repeat=ranks * batches, **LORA)  # all steps are whole
            values = [line.split(",") for line in (run / "loss.csv").read_text().splitlines()]
            sent, = {float(value) for step, key, value in values if key == "perf/sent_gb_per_step" and step == "10"}
            numbers = sum(map(count, tensors(run / "step-10.safetensors").values()))
            # One slot: the last block of a forward pass and the first one of the next are there.
            gathered = 2 * batches * (BLOCKS - 1) + 1 / 10
            expected = (ranks - 1) / ranks * (gathered * block + 8 * numbers)
            self.assertAlmostEqual(sent * 1e9 / expected, 1, delta=0.03)

    def test_validation_and_sample_images_are_those_of_one(self):
        (self.dir / "prompts.txt").write_text("a red image --w 64 --h 64 --s 2 --d 3\na blue one --w 64 --h 32 --s 3\n")
        flags = dict(LORA, validation_dataset_base_path=self.data, max_train_steps=2, save_steps=2, validation_steps=1,
                     validation_dataset_metadata_path=self.data / "metadata.csv", sample_prompts=self.dir / "prompts.txt",
                     sample_every_n_steps=1, sample_at_first=True, global_batch_size=2)
        seen = []
        for ranks in (1, 2):
            run = self.train(ranks, **flags)
            rows = [line.split(",") for line in (run / "loss.csv").read_text().splitlines()[1:]]
            seen.append(([float(value) for _, key, value in rows if key.startswith("validation/")],
                         {path.name: path.read_bytes() for path in (run / "samples").iterdir()}))
        (one, images), (other, both) = seen
        self.assertEqual(len(images), 6)
        self.assertEqual(images, both)
        self.assertTrue(one)
        self.assertTrue(all(abs(a - b) <= 1e-6 * abs(a) for a, b in zip(one, other, strict=True)))

    def test_a_rank_that_is_killed_ends_the_others(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                process = self.start(2, zero_stage=3, prefetch=0, output_path=self.dir / "run", resume="latest")
                begin = time.monotonic()
                os.kill(self.children(process)[rank], signal.SIGKILL)
                _, said = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 6, said)
                self.assertLess(time.monotonic() - begin, 6)
                self.assertRegex(said, rf"step \d+, .*rank {rank} \(.*\) is lost")
                (self.dir / "run/loss.csv").unlink()

    def test_a_signal_to_any_rank_saves_the_same_step(self):
        process = self.start(2, zero_stage=3)
        os.kill(self.children(process)[1], signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, said)
        self.assertTrue(state_of(self.dir / "run", max(losses(self.dir / "run"))), said)

    def test_what_cannot_be_divided_is_refused(self):
        self.train(2, "refused", expect=2, **LORA, resident_blocks=2, cpu_offload=True)
        self.assertIn("blocks of dit are divided among the processes", self.said)
        self.assertEqual(self.said.count("error: "), 1, self.said)


if __name__ == "__main__":
    unittest.main()
