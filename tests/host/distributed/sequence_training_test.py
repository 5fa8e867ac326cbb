"""Processes that have a part of the rows of each batch: what they learn is what one process does.

    sequence_training_test.py WAN_PLUGIN WRITE_MODEL
"""
import functools
import unittest

import numpy as np
import program
import safetensors.numpy
from rank_runs import RankRuns
from ranks import launched
from sequence_runs import SequenceRuns
from tiny_run import on_data, state_of

LORA = dict(lora_base_model="dit", lora_rank=4)


class SequenceTrainingTest(SequenceRuns):
    assert_losses_near = RankRuns.assert_losses_near

    def train(self, ranks, family, name, code=0, **flags):
        run = self.root / f"{name}_{family}_{ranks}"
        data = dict(on_data(self.root / "data"), max_pixels=64 * 64)
        if family in ("one", "several"):
            data.update(dataset_base_path=self.root, dataset_metadata_path=self.root / f"{family}.json",
                        data_file_keys="image,edit_image", extra_inputs="edit_image")
        if family == "regions":
            data.update(dataset_base_path=self.root, dataset_metadata_path=self.root / "regions.json",
                        data_file_keys="image,eligen_entity_masks", extra_inputs="eligen_entity_masks,eligen_entity_prompts")
        if family == "wan":
            data = self.clips
        defaults = dict(device="cpu", dtype="float32", learning_rate=1e-3, adam_epsilon=1e-3, max_train_steps=10,
                        save_steps=10, num_epochs=99, threads=1, global_batch_size=2, enable_csv_log=True,
                        cache_path=self.root / f"cache_{family}", output_path=run)
        line = program.command("train", **{**defaults, **data, **self.models[family], **flags})
        self.said = program.run_line(launched(ranks, line), code=code).stderr
        return run

    def distances(self, alone, run, step):
        """How far trained values are apart, in parts of each tensor's largest."""
        ours, theirs = state_of(alone, step), state_of(run, step)
        trained = [name for name in ours if name[0] in ("trained.safetensors", "ema.safetensors")]
        self.assertTrue(trained)
        result = {}
        for name in trained:
            one, other = (np.frombuffer(tensor[2], np.float32) for tensor in (ours[name], theirs[name]))
            result[name] = np.abs(one - other).max() / (np.abs(one).max() or 1)
        return result

    def assert_learnt_alike(self, alone, run, part=1e-6, step=10):
        """Losses within 1e-6, trained values within a part of each tensor's largest."""
        for name, distance in self.distances(alone, run, step).items():
            self.assertLessEqual(distance, part, name)
        self.assert_losses_near(alone, run)

    def test_sequences_of_two_and_four_learn_what_one_process_does(self):
        whole = dict(trainable_models="dit")
        cases = [("qwen_image", "whole", whole, ((2, 2), (4, 4), (4, 2))),
                 ("qwen_image", "again", dict(whole, use_gradient_checkpointing=True), ((2, 2),)),
                 ("qwen_image", "around", whole, ((3, 3),)),
                 ("lumina2", "whole", whole, ((2, 2), (4, 4))),
                 ("lumina2", "again", dict(whole, use_gradient_checkpointing=True), ((4, 4),)),
                 ("wan", "whole", dict(trainable_models="dit,dit2"), ((2, 2), (4, 4)))]
        for family, name, flags, layouts in cases:
            alone = self.train(1, family, name, **flags)
            for ranks, size in layouts:
                with self.subTest(family=family, name=name, ranks=ranks, size=size):
                    run = self.train(ranks, family, f"{name}_by_{size}", sequence_parallel=size, **flags)
                    self.assert_learnt_alike(alone, run)

    @classmethod
    @functools.cache
    def factors(cls, family):
        """A LoRA by one process, and how far from it the same process comes with other kernels of attention.

        B begins as zeros, so all of it is sums of gradients, which other kernels make with other last digits.
        """
        alone = cls().train(1, family, "lora", **LORA)
        rounded = cls().train(1, family, "lora_rounded", attention="math", **LORA)
        return alone, max(cls().distances(alone, rounded, 10).values())

    def test_factors_are_as_far_from_one_process_as_its_own_rounding(self):
        for family, ranks in (("qwen_image", 2), ("lumina2", 4)):
            alone, own = self.factors(family)
            self.assertLess(own, 4e-6)
            run = self.train(ranks, family, "lora_shared", sequence_parallel=ranks, **LORA)
            self.assert_learnt_alike(alone, run, part=max(1e-6, 1.5 * own))

    def test_pictures_that_are_given_are_learnt_from_as_by_one_process(self):
        flags = dict(trainable_models="dit", edit_image_auto_resize="false", max_train_steps=4, save_steps=4)
        for variant in ("one", "several"):
            alone = self.train(1, variant, "given", **flags)
            for ranks in (2, 3):
                with self.subTest(variant=variant, ranks=ranks):
                    run = self.train(ranks, variant, "given_shared", sequence_parallel=ranks, **flags)
                    self.assert_learnt_alike(alone, run, step=4)

    def test_regions_are_learnt_as_by_one_process(self):
        flags = dict(trainable_models="dit", max_train_steps=4, save_steps=4)
        alone = self.train(1, "regions", "given", **flags)
        for ranks in (2, 3):
            with self.subTest(ranks=ranks):
                run = self.train(ranks, "regions", "given_shared", sequence_parallel=ranks, **flags)
                self.assert_learnt_alike(alone, run, step=4)

    def test_sequences_share_out_what_is_trained_and_what_is_frozen(self):
        """With a stage of ZeRO as without: two sequences of two, keys exchanged (qwen_image) or sent around (lumina2)."""
        whole = dict(trainable_models="dit")
        for family, ranks, size, kind, flags, stages in (("qwen_image", 4, 2, "whole", whole, (1, 2)),
                                                         ("qwen_image", 4, 2, "lora", LORA, (3,)),
                                                         ("lumina2", 3, 3, "whole", whole, (2,)),
                                                         ("lumina2", 3, 3, "lora", LORA, (1, 3))):
            part = 1e-6 if kind == "whole" else max(1e-6, 1.5 * self.factors(family)[1])
            plain = self.train(ranks, family, f"{kind}_stage_0", sequence_parallel=size, **flags)
            for stage in stages:
                with self.subTest(family=family, kind=kind, stage=stage):
                    run = self.train(ranks, family, f"{kind}_stage_{stage}", sequence_parallel=size, zero_stage=stage, **flags)
                    self.assert_learnt_alike(plain, run, part)

    def test_averages_of_streamed_weights(self):
        flags = dict(trainable_models="dit", device="simulated", cpu_offload=True, optimize_on_cpu=True, ema_decay=0.9)
        for family, ranks in (("qwen_image", 2), ("lumina2", 4)):
            with self.subTest(family=family):
                alone = self.train(1, family, "streamed", **flags)
                run = self.train(ranks, family, "streamed_shared", sequence_parallel=ranks, **flags)
                self.assertRegex(self.said, "blocks stayed on the device")
                self.assert_learnt_alike(alone, run)

    def write_lora(self, family):
        """Factors of which none is near zero."""
        run = self.train(1, family, "begun", max_train_steps=1, save_steps=1, lora_format="comfy", **LORA)
        factors = safetensors.numpy.load_file(run / "step-1.safetensors")
        random = np.random.default_rng(3)
        for name, value in factors.items():
            if "lora_B" in name:
                value += np.float32(0.1) * random.standard_normal(value.shape, np.float32)
        path = self.root / f"begun_{family}.safetensors"
        safetensors.numpy.save_file(factors, path)
        return path

    def test_rows_beside_a_base_in_8_bits(self):
        for family, layouts in (("qwen_image", ((2, 2, 0), (4, 2, 3))), ("lumina2", ((3, 3, 3),))):
            flags = dict(LORA, storage="dit=fp8", ema_decay=0.9, lora_checkpoint=self.write_lora(family))
            alone = self.train(1, family, "fp8", **flags)
            for ranks, size, stage in layouts:
                with self.subTest(family=family, ranks=ranks, stage=stage):
                    run = self.train(ranks, family, f"fp8_{stage}", sequence_parallel=size, zero_stage=stage, **flags)
                    self.assert_learnt_alike(alone, run)

    def test_all_ranks_keep_the_same_for_the_backward_pass(self):
        flags = dict(trainable_models="dit")
        for family, ranks, budgets in (("qwen_image", 2, ("0.4",)), ("lumina2", 4, ("auto", "full", "1MB"))):
            alone = self.train(1, family, "kept", **flags)
            for budget in budgets:
                with self.subTest(family=family, budget=budget):
                    run = self.train(ranks, family, f"kept_{budget}", sequence_parallel=ranks,
                                     activation_memory_budget=budget, **flags)
                    self.assert_learnt_alike(alone, run)

    def test_what_cannot_be_trained_so_is_refused(self):
        flags = dict(trainable_models="dit")
        self.train(3, "qwen_image", "no", code=2, sequence_parallel=2, **flags)
        self.assertIn("--sequence_parallel: 2 processes compute a batch, and there are 3", self.said)


if __name__ == "__main__":
    unittest.main()
