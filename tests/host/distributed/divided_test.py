"""Blocks of a frozen denoiser divided among ranks (--zero_stage 3): the results of one process, and what is held and sent.

    divided_test.py WAN_PLUGIN WRITE_MODEL
"""
import re
import unittest

import rank_runs
import wan_training_test as wan
from families import write_clips
from tiny_run import losses, state_of, tensors, validations

BLOCKS = 6
LORA = dict(rank_runs.LORA, zero_stage=3)

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


class DividedRuns(rank_runs.RankRuns):
    denoiser_blocks = BLOCKS

    def assert_same_bits(self, name="", steps=8, **flags):
        """Of one process and of two, each of which has a batch of every step."""
        defaults = dict(global_batch_size=2 * flags.get("batch_size", 1), max_train_steps=steps, save_steps=steps,
                        cache_path=self.root / flags.get("dtype", "float32"))
        flags = {**defaults, **flags}
        alone, both = (self.train(ranks, f"{name}_{ranks}", **flags) for ranks in (1, 2))
        self.assert_same(alone, both, steps)


class DividedTest(DividedRuns):

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
                self.assert_same(whole, divided)

    def test_rows_of_other_numbers_of_steps_are_distilled_in_lockstep(self):
        flags = dict(LORA, **rank_runs.distilled(self.data))
        self.assert_same_bits("distilled", **flags)
        self.assert_same_bits("a_layer", **{**flags, "lora_target_modules": "transformer_blocks.3.attn.to_q"})
        flags.update(batch_size=2, global_batch_size=8)
        whole = self.train(3, "whole", **{**flags, "zero_stage": 0})
        self.assert_same(whole, self.train(3, "divided", **flags))

    def test_two_groups_have_a_model_each(self):
        whole = self.train(4, "whole", **{**LORA, "zero_stage": 0})
        self.assert_same(whole, self.train(4, "in_pairs", zero_group=2, **LORA))
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
        flags = dict(write_clips(self.dir), plugin=wan.PLUGIN, model_paths=wan.model_paths(model), max_pixels=None,
                     lora_rank=2, zero_stage=3, cache_path=self.dir / "cache")
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
            sent = losses(run, "perf/sent_gb_per_step")[10]
            numbers = sum(map(count, tensors(run / "step-10.safetensors").values()))
            # One slot: the last block of a forward pass and the first one of the next are there.
            gathered = 2 * batches * (BLOCKS - 1) + 1 / 10
            expected = (ranks - 1) / ranks * (gathered * block + 8 * numbers)
            self.assertAlmostEqual(sent * 1e9 / expected, 1, delta=0.03)

    def test_validation_and_sample_images_are_those_of_one(self):
        prompts = self.write_prompts("a red image --w 64 --h 64 --s 2 --d 3\na blue one --w 64 --h 32 --s 3\n")
        flags = dict(LORA, validation_dataset_base_path=self.data, max_train_steps=2, save_steps=2, validation_steps=1,
                     validation_dataset_metadata_path=self.data / "metadata.csv", sample_prompts=prompts,
                     sample_every_n_steps=1, sample_at_first=True, global_batch_size=2)
        seen = []
        for ranks in (1, 2):
            run = self.train(ranks, **flags)
            seen.append((validations(run), {path.name: path.read_bytes() for path in (run / "samples").iterdir()}))
        (one, images), (other, both) = seen
        self.assertEqual(len(images), 6)
        self.assertEqual(images, both)
        self.assert_validations_near(one, other)

    def test_a_rank_that_is_killed_ends_the_others(self):
        self.assert_a_killed_rank_ends_the_run(**LORA, lora_dropout=0.1, prefetch=0)

    def test_a_signal_to_any_rank_saves_the_same_step(self):
        said, step = self.stop_by_signal(**LORA, lora_dropout=0.1)
        self.assertTrue(state_of(self.dir / "run", step), said)

    def test_what_cannot_be_divided_is_refused(self):
        self.train(2, "refused", expect=2, **LORA, resident_blocks=2, cpu_offload=True)
        self.assertIn("blocks of dit are divided among the processes", self.said)
        self.assertEqual(self.said.count("error: "), 1, self.said)


if __name__ == "__main__":
    unittest.main()
