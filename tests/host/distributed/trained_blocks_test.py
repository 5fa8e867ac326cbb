"""Blocks that are trained divided among ranks (--zero_stage 3): what one process learns, and what is held and sent."""
import re
import unittest

import numpy as np
import program
import safetensors.numpy
from rank_runs import FULL, distilled
from tiny_run import losses, state_of, tensors, validations
from zero_test import SharingRuns, held, sent, trained_of

BLOCKS = 6
DIVIDED = dict(FULL, zero_stage=3)
SOME_LAYERS = dict(trainable_models="dit.transformer_blocks.1,dit.transformer_blocks.3.attn.to_q,dit.proj_out")
ON_HOST = dict(device="simulated", cpu_offload=True)
OPTIMIZED_ON_HOST = dict(device="simulated", optimize_on_cpu=True)

# Name: flags of what learns as one process does, but for the order of sums.
KINDS = {
    "clipped": dict(DIVIDED, max_grad_norm=0.01, batch_size=2, global_batch_size=8),
    "prodigy": dict(DIVIDED, optimizer_type="Prodigy", learning_rate=1, adam_epsilon=1e-8),
    "one slot": dict(DIVIDED, prefetch=0),
    "kept in part": dict(DIVIDED, activation_memory_budget=0.5),
    "parts on the host": dict(DIVIDED, ema_decay=0.9, **ON_HOST),
    "optimized on the host": dict(DIVIDED, ema_decay=0.9, **OPTIMIZED_ON_HOST),
    "both on the host": dict(DIVIDED, optimize_on_cpu=True, **ON_HOST),
    "one number": dict(DIVIDED, device="simulated:128MiB", vram="100MB"),
    "some layers": dict(DIVIDED, **SOME_LAYERS),
}
# What is rounded coarsely, where the order of sums is the same: two ranks of one batch each.
ROUNDED = {
    "8bit": dict(DIVIDED, optimizer_type="AdamW8bit"),
    "rounded at random": dict(DIVIDED, dtype="bfloat16", master_weights="stochastic"),
    "masters": dict(DIVIDED, dtype="bfloat16", ema_decay=0.9),
    "masters on the host": dict(DIVIDED, dtype="bfloat16", **OPTIMIZED_ON_HOST),
}


def numbers(run, step, is_wanted=lambda name: True):
    """Of float32 values that are trained."""
    return sum(len(data) // 4 for name, (_, data) in trained_of(run, step).items() if is_wanted(name))


def in_blocks(name):
    return ".transformer_blocks." in name


class TrainedBlocksTest(SharingRuns):

    denoiser_blocks = BLOCKS

    def alone(self, name="alone", **flags):
        return self.train(1, name, **{**flags, "zero_stage": 0})

    def test_ranks_learn_what_one_process_does(self):
        alone = self.alone(**DIVIDED)
        for ranks, group in ((2, "all"), (4, "all"), (4, "2")):
            with self.subTest(ranks=ranks, group=group):
                run = self.train(ranks, f"{ranks}_{group}", zero_group=group, **DIVIDED)
                self.assert_close(alone, run)
                count = 2 if group == "2" else ranks
                self.assertIn(f"{BLOCKS} blocks that are trained, their gradients and optimizer state are divided among {count} "
                              "processes", self.said)
                shards = [f"{name}-{i + 1:05d}-of-{count:05d}.safetensors" for name in ("optimizer", "trained")
                          for i in range(count)]
                self.assertEqual(sorted(path.name for path in (run / "checkpoints/step-00000010").glob("*.safetensors")), shards)

    def test_whatever_is_trained_and_wherever_it_lives(self):
        for name, flags in KINDS.items():
            with self.subTest(name):
                alone = self.alone(f"{name} alone", **flags)
                self.assert_close(alone, self.train(2, name, **flags))

    def test_what_is_rounded_coarsely_is_rounded_as_that_of_one_process(self):
        for name, flags in ROUNDED.items():
            with self.subTest(name):
                flags = dict(flags, global_batch_size=2, max_grad_norm=0)
                alone = self.alone(f"{name} alone", **flags)
                both = self.train(2, name, **flags)
                self.assert_same_weights(alone, both)
                self.assertEqual(trained_of(alone, 10), trained_of(both, 10))

    def test_a_rank_holds_its_part_of_values_and_state(self):
        units = {"B": 1, "KiB": 2**10, "MiB": 2**20}
        for ranks in (2, 4):
            run = self.train(ranks, f"held_{ranks}", prefetch=1, device="simulated", **DIVIDED)
            told = re.search(rf"dit: {BLOCKS} blocks are divided among {ranks} processes, of which the device of this "
                             r"one held ([\d.]+) (\w+); the host held 0 bytes", self.said)
            self.assertTrue(told, self.said)
            inside, every = 4 * numbers(run, 10, in_blocks), 4 * numbers(run, 10)
            held = float(told[1]) * units[told[2]]
            self.assertAlmostEqual(held / (inside / ranks + 2 * inside / BLOCKS), 1, delta=0.03)  # two slots
            for name, size in (("trained", every), ("optimizer", 2 * every)):  # two moments
                for path in (run / "checkpoints/step-00000010").glob(f"{name}*"):
                    written = sum(len(data) for _, _, data in tensors(path).values())
                    self.assertAlmostEqual(written / (size / ranks), 1, delta=0.03, msg=path.name)

    def test_what_rests_on_a_rank_is_less_by_the_parts_of_others(self):
        flags = dict(FULL, device="simulated:1GiB", vram="off", use_gradient_checkpointing=True, dataset_repeat=8, prefetch=0,
                     max_train_steps=6, save_steps=6)
        for ranks in (2, 4):
            rests, gradients = {}, {}
            for stage in (1, 3):
                name = f"rests_{ranks}_{stage}"
                run = self.train(ranks, name, zero_stage=stage, global_batch_size=2 * ranks,
                                 report_memory=self.dir / name / "memory.csv", **flags)
                rests[stage], gradients[stage] = held(run)
            inside, outside = 4 * numbers(run, 6, in_blocks), 4 * numbers(run, 6, lambda name: not in_blocks(name))
            # Parts of the others, less a slot.
            self.assertAlmostEqual((rests[1] - rests[3]) / (inside * (1 - 1 / ranks) - inside / BLOCKS), 1, delta=0.03)
            # What is on its way beside its part: of the block that came last, and of what lies outside of blocks, twice.
            under_way = 2 * (inside / BLOCKS + outside)
            self.assertGreater(gradients[3], 0.97 * inside * (1 - 1 / BLOCKS) / ranks)
            self.assertLess(gradients[3], 1.03 * ((inside + outside) / ranks + under_way))

    def test_saving_brings_each_block_once(self):
        copies = {}
        for save_steps in (1, 2):
            self.train(2, f"saved_{save_steps}", save_steps=save_steps, max_train_steps=2, prefetch=0, **DIVIDED)
            copies[save_steps], = map(int, re.findall(r"dit: .* came in (\d+) copies", self.said))
        self.assertLessEqual(copies[1] - copies[2], BLOCKS)

    def test_a_plan_counts_what_one_of_the_processes_holds(self):
        # 16 bytes of 3.67 million numbers do not fit, a quarter of them does.
        flags = dict(DIVIDED, device="simulated:128MiB", vram="50MB", max_train_steps=2)
        self.alone(**flags)
        self.assertNotIn(" 0 bytes of the host", self.said)
        self.train(4, **flags)
        self.assertIn(" 0 bytes of the host", self.said)
        self.assertIn("dit: 1/4 of each block on the device", self.said)
        predicted, measured = map(float, re.search(r"predicted ([\d.]+) MiB, measured ([\d.]+) MiB", self.said).groups())
        self.assertLess(measured, predicted)

    def test_bytes_sent_are_those_of_the_table(self):
        for ranks, group, batches in ((2, "all", 1), (2, "all", 3), (4, "all", 1), (4, "2", 2)):
            with self.subTest(ranks=ranks, group=group, batches=batches):
                run = self.train(ranks, f"sent_{ranks}_{group}_{batches}", global_batch_size=ranks * batches, prefetch=0,
                                 zero_group=group, dataset_repeat=ranks * batches, **DIVIDED)  # all steps are whole
                inside, outside = 4 * numbers(run, 10, in_blocks), 4 * numbers(run, 10, lambda name: not in_blocks(name))
                count = 2 if group == "2" else ranks
                # One slot: the last block of each forward pass is there for the backward pass, whose last one is there for the
                # next batch of the step.
                gathers = batches * (2 * BLOCKS - 1) - (batches - 1)
                expected = (count - 1) / count * ((gathers / BLOCKS + batches) * inside + (batches + 1) * outside)
                if group == "2":
                    expected += (inside + outside) / count  # to the rank of the other group that has the same part
                self.assertAlmostEqual(sent(run) / expected, 1, delta=0.03)

    def test_a_run_goes_on_with_the_same_ranks_to_the_bit(self):
        flags = dict(DIVIDED, ema_decay=0.9)
        whole = self.train(2, "whole", **flags)
        self.train(2, "cut", max_train_steps=6, save_steps=6, **flags)
        cut = self.train(2, "cut", global_batch_size=None, max_train_steps=10, resume="latest", **flags)
        self.assertEqual(state_of(whole, 10), state_of(cut, 10))
        self.assertTrue(tensors(whole / "step-10.safetensors") == tensors(cut / "step-10.safetensors"))
        self.assertEqual(losses(whole), losses(cut))

    def test_a_run_goes_on_with_other_ranks_and_stages(self):
        flags = dict(DIVIDED, ema_decay=0.9)
        whole = self.train(4, "whole", **flags)
        self.train(4, "changing", max_train_steps=2, save_steps=2, **flags)
        for ranks, steps, stage in ((2, 4, 2), (2, 6, 3), (1, 8, 0), (4, 10, 3)):
            run = self.train(ranks, "changing", max_train_steps=steps, save_steps=steps, resume="latest",
                             **{**flags, "global_batch_size": None, "zero_stage": stage})
        self.assert_close(whole, run)

    def test_a_run_with_masters_on_the_host_goes_on_elsewhere_and_back(self):
        flags = dict(DIVIDED, dtype="bfloat16", max_grad_norm=0, ema_decay=0.9)  # two ranks of one batch each
        alone = self.alone(max_train_steps=6, save_steps=6, global_batch_size=2, **flags)
        kinds = {"host": OPTIMIZED_ON_HOST, "device": {}, "stage 2": dict(zero_stage=2), "stage 0": dict(zero_stage=0)}
        for step, kind in enumerate(("host", "device", "host", "stage 2", "host", "stage 0"), start=1):
            going_on = dict(global_batch_size=2) if step == 1 else dict(resume="latest")
            run = self.train(2, "changing", **{**flags, "global_batch_size": None, "max_train_steps": step,
                                               "save_steps": step, **kinds[kind], **going_on})
        self.assertEqual(trained_of(alone, 6), trained_of(run, 6))
        self.assertTrue(tensors(alone / "step-6.safetensors") == tensors(run / "step-6.safetensors"))

    def test_a_damaged_checkpoint_is_passed_over_by_all(self):
        whole = self.train(2, "whole", max_train_steps=8, save_steps=2, **DIVIDED)
        cut = self.train(2, "cut", max_train_steps=4, save_steps=2, **DIVIDED)
        for step, part in ((4, "trained-00002"), (6, "optimizer-00001")):
            path = cut / f"checkpoints/step-{step:08d}/{part}-of-00002.safetensors"
            damaged = bytearray(path.read_bytes())
            damaged[-1] ^= 1
            path.write_bytes(damaged)
            self.train(2, "cut", global_batch_size=None, max_train_steps=step + 2, save_steps=2, resume="latest", **DIVIDED)
            self.assertRegex(self.said, rf"checkpoint passed over: rank \d.*{part}")
        self.assertEqual(state_of(whole, 8), state_of(cut, 8))
        self.assertTrue(tensors(whole / "step-8.safetensors") == tensors(cut / "step-8.safetensors"))

    def test_processes_that_share_rows_divide_blocks_as_well(self):
        alone = self.alone(**DIVIDED)
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                self.assert_close(alone, self.train(ranks, f"rows_{ranks}", sequence_parallel=2, **DIVIDED))

    def test_a_signal_to_any_rank_saves_the_same_step(self):
        said, step = self.stop_by_signal(**DIVIDED)
        self.assertTrue(trained_of(self.dir / "run", step), said)
        self.assertTrue((self.dir / f"run/step-{step}.safetensors").exists())

    def test_weights_that_cannot_be_written_hold_up_nobody(self):
        flags = dict(DIVIDED, max_train_steps=4, save_steps=2)
        whole = self.train(4, "whole", **flags)
        # A quarter of two moments fits, the weights do not.
        limit = (whole / "step-2.safetensors").stat().st_size * 3 // 4 // 512
        line = ["sh", "-c", f"ulimit -f {limit}; trap '' XFSZ; exec \"$@\"", "sh", *self.line(4, "limited", **flags)]
        said = program.run_line(line, code=3).stderr
        self.assertIn("not saved: rank 0", said)
        self.assertRegex(said, "error: .*File too large")
        self.assertEqual(state_of(whole, 4), state_of(self.dir / "limited", 4))
        self.assertEqual(list((self.dir / "limited").glob("step-*")), [])

    def test_validation_and_sample_images_are_those_of_one(self):
        prompts = self.write_prompts("a red image --w 64 --h 64 --s 2 --d 3\n")
        flags = dict(DIVIDED, validation_dataset_base_path=self.data, max_train_steps=2, save_steps=2, validation_steps=1,
                     validation_dataset_metadata_path=self.data / "metadata.csv", sample_prompts=prompts,
                     sample_every_n_steps=1, sample_at_first=True, global_batch_size=2, max_grad_norm=0, ema_decay=0.5)
        seen = []
        for run in (self.alone(**flags), self.train(2, **flags)):
            seen.append((validations(run), {path.name: path.read_bytes() for path in (run / "samples").iterdir()}))
        (one, images), (other, both) = seen
        self.assertEqual(len(images), 3)
        self.assertEqual(images, both)
        self.assert_validations_near(one, other)

    def test_rows_of_other_numbers_of_steps_are_distilled_in_lockstep(self):
        flags = dict(distilled(self.data), batch_size=2, **DIVIDED)
        for name, trained, layouts in (("whole", dict(), ((2, 2), (4, 4), (4, 2))), ("some layers", SOME_LAYERS, ((2, 2),))):
            flags = {**flags, **trained}
            alone = self.alone(f"{name} alone", **flags)
            for ranks, group in layouts:
                with self.subTest(name, ranks=ranks, group=group):
                    self.assert_close(alone, self.train(ranks, f"{name}_{ranks}_{group}", zero_group=group, **flags))

    def test_a_preset_becomes_a_part_of_what_is_divided(self):
        flags = dict(DIVIDED, preset_lora_path=self.write_preset(), preset_lora_model="dit")
        each = dict(flags, global_batch_size=2, max_grad_norm=0, max_train_steps=3, save_steps=3)  # two ranks of a batch
        alone, both = self.alone("each alone", **each), self.train(2, "each", **each)
        self.assert_same_weights(alone, both)
        self.assertEqual(trained_of(alone, 3), trained_of(both, 3))
        without = self.alone("without", **{**each, "preset_lora_path": None, "preset_lora_model": None})
        self.assertNotEqual(losses(alone), losses(without))
        alone = self.alone("all alone", **flags)
        self.assert_close(alone, self.train(4, "all", zero_group=2, **flags))
        self.assert_close(alone, self.train(2, "on the host", **flags, **OPTIMIZED_ON_HOST))
        some = dict(flags, **SOME_LAYERS)
        self.assert_close(self.alone("some alone", **some), self.train(2, "some", **some))

    def write_preset(self):
        """Products, differences of weights and biases, and DoRA, in blocks and outside of them."""
        shapes = {name: shape for path in (self.model / "transformer").glob("*.safetensors")
                  for name, (_, shape, _) in tensors(path).items()}
        random = np.random.default_rng(5)
        preset = {}

        def add(layer, *kinds):
            rows, columns = shapes[f"{layer}.weight"]
            sizes = {"lora_A.weight": (2, columns), "lora_B.weight": (rows, 2), "lora_magnitude_vector": (rows,),
                     "diff": (rows, columns), "diff_b": (rows,)}
            for kind in kinds:
                preset[f"transformer.{layer}.{kind}"] = np.float32(0.05) * random.standard_normal(sizes[kind], np.float32)

        product = "lora_A.weight", "lora_B.weight"
        for block in (0, 3, 5):
            attention = f"transformer_blocks.{block}.attn"
            add(f"{attention}.to_q", *product)
            add(f"{attention}.to_k", "diff", "diff_b")
            add(f"{attention}.to_v", *product, "lora_magnitude_vector")
            preset[f"transformer.{attention}.to_v.lora_magnitude_vector"] += 1
        add("proj_out", "diff")
        path = self.dir / "preset.safetensors"
        safetensors.numpy.save_file(preset, path)
        return path

    def test_what_cannot_be_divided_is_refused(self):
        for flags, words in ((dict(optimizer_type="Adafactor"), "needs whole matrices"),
                             (dict(offload="dit=disk"), "use dit=host")):
            with self.subTest(**flags):
                self.train(2, "refused", expect=2, **{**DIVIDED, **flags})
                self.assertIn(words, self.said)
                self.assertEqual(self.said.count("error: "), 1, self.said)


if __name__ == "__main__":
    unittest.main()
