"""Ranks that share out what they train, `--zero_stage` 1 and 2, against one process and against each other."""
import unittest

from rank_runs import FULL, LORA as PLAIN_LORA, RankRuns
from tiny_run import losses, state_of, tensors, weights_of

LORA = dict(PLAIN_LORA, lora_dropout=0.1)
SIMULATED = dict(device="simulated", optimize_on_cpu=True)

# Name: stage and flags of what learns as one process does, but for the order of sums.
KINDS = {
    "clipped": dict(FULL, zero_stage=1, max_grad_norm=0.01, batch_size=2, global_batch_size=8),
    "prodigy": dict(LORA, zero_stage=1, optimizer_type="Prodigy", learning_rate=1, adam_epsilon=1e-8, lora_dropout=0),
    "averages": dict(LORA, zero_stage=2, ema_decay=0.9),
    "on the host": dict(FULL, zero_stage=2, ema_decay=0.9, **SIMULATED),
    "on the host, once": dict(LORA, zero_stage=1, **SIMULATED),
    "streamed": dict(FULL, zero_stage=2, cpu_offload=True, **SIMULATED),
}
# What is rounded coarsely, where the order of sums is the same: two ranks of one batch each.
ROUNDED = {
    "8bit": dict(FULL, zero_stage=2, optimizer_type="AdamW8bit"),
    "rounded at random": dict(FULL, zero_stage=1, dtype="bfloat16", master_weights="stochastic"),
    "masters": dict(FULL, zero_stage=2, dtype="bfloat16", ema_decay=0.9),
    "masters on the host": dict(FULL, zero_stage=2, dtype="bfloat16", ema_decay=0.9, **SIMULATED),
    "8bit on the host": dict(FULL, zero_stage=1, dtype="bfloat16", optimizer_type="AdamW8bit", **SIMULATED),
}


def trained_of(run, step):
    """What a checkpoint has of what is trained, name -> (dtype, bytes), whoever wrote it."""
    pieces = {}
    for path in (run / f"checkpoints/step-{step:08d}").glob("trained*.safetensors"):
        for key, (dtype, _, data) in tensors(path).items():
            name, _, begin = key.partition("@")
            pieces.setdefault(name, []).append((int(begin or 0), dtype, data))
    return {name: (parts[0][1], b"".join(data for _, _, data in sorted(parts))) for name, parts in pieces.items()}


def sent(run):
    """Bytes that each rank has sent in the last step."""
    return 1e9 * list(losses(run, "perf/sent_gb_per_step").values())[-1]

def held(run):
    """Bytes that rank 0 holds when a backward pass begins, when all values have come, and what gradients then add."""
    begins, phase = {}, None
    for line in (run / "memory.csv").read_text().splitlines()[1:]:
        _, name, live, *_ = line.split(",")
        if name != phase and name.startswith("backward"):
            begins.setdefault(name, []).append(int(live))
        phase = name
    rests, gradients = [], []
    for name in ("backward 4", "backward 5"):
        first, second = begins[name]
        rests.append(first)
        gradients.append(second - first)
    # What is still under way to or from other ranks adds to one of the two now and then.
    return min(rests), max(gradients)


def bytes_of_gradients(run, step):
    """Of the weights that get one: what the last block leaves of the text is not used, and its weights never move."""
    return sum(len(data) for path in (run / f"checkpoints/step-{step:08d}").glob("optimizer*.safetensors")
               for key, (_, _, data) in tensors(path).items() if ".exp_avg@" in key and any(data))


class SharingRuns(RankRuns):

    def line(self, ranks, name="run", **flags):
        flags.setdefault("cache_path", self.root / flags.get("dtype", "float32"))
        return super().line(ranks, name, **flags)

    def assert_close(self, a, b, step=10):
        """What is trained and what is saved of it, within 1e-6 of each tensor's largest, and the losses."""

        def weights(run):
            saved = {(path.name, name): (dtype, data) for path in sorted(run.glob(f"step-{step}*.safetensors"))
                     for name, (dtype, _, data) in tensors(path).items()}
            return {name: (dtype, None, data) for name, (dtype, data) in (saved | trained_of(run, step)).items()}

        self.assert_near(weights(a), weights(b))
        self.assert_losses_near(a, b)

    def assert_same_weights(self, a, b):
        self.assertTrue(weights_of(a) == weights_of(b))


class ZeroTest(SharingRuns):

    def test_both_stages_learn_what_one_process_does(self):
        alone = self.train(1, "alone", **FULL)
        for ranks, group in ((2, "all"), (4, "all"), (4, "2")):
            for stage in (1, 2):
                with self.subTest(ranks=ranks, group=group, stage=stage):
                    run = self.train(ranks, f"{ranks}_{group}_{stage}", zero_stage=stage, zero_group=group, **FULL)
                    self.assert_close(alone, run)
                    shards = sorted(path.name for path in (run / "checkpoints/step-00000010").glob("optimizer*"))
                    count = 2 if group == "2" else ranks
                    self.assertEqual(shards, [f"optimizer-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)])

    def test_whatever_is_trained_and_wherever_it_lives(self):
        for name, flags in KINDS.items():
            with self.subTest(name):
                alone = self.train(1, f"{name} alone", **flags)
                self.assert_close(alone, self.train(2, name, **flags))

    def test_what_is_rounded_coarsely_is_rounded_as_that_of_one_process(self):
        for name, flags in ROUNDED.items():
            with self.subTest(name):
                flags = dict(flags, global_batch_size=2, max_grad_norm=0)
                alone = self.train(1, f"{name} alone", **flags)
                self.assert_same_weights(alone, self.train(2, name, **flags))

    def test_bytes_sent_are_those_of_the_table(self):
        flags = dict(FULL, global_batch_size=8, caption_dropout_rate=0)  # two batches of each of four ranks
        for stage, group, expected in ((1, "all", 2 * 0.75), (2, "all", 3 * 0.75), (2, "2", 3 * 0.5 + 0.5)):
            with self.subTest(stage=stage, group=group):
                run = self.train(4, f"{stage} {group}", zero_stage=stage, zero_group=group, **flags)
                size = sum(len(data) for _, _, data in tensors(run / "step-10.safetensors").values())
                # Beside it: who has which gradient, and what ranks agree on.
                self.assertLess(abs(sent(run) / size - expected), 0.05 * expected)

    def test_what_rests_on_a_rank_is_that_of_the_table(self):
        # Differences between stages: what else is held is the same.
        flags = dict(FULL, device="simulated:1GiB", vram="off", use_gradient_checkpointing=True, dataset_repeat=8,
                     max_train_steps=6, save_steps=6)
        for ranks in (2, 4):
            held_by = {}
            for stage in (0, 1, 2):
                name = f"held_{ranks}_{stage}"
                run = self.train(ranks, name, zero_stage=stage, global_batch_size=2 * ranks,
                                 report_memory=self.dir / name / "memory.csv", **flags)
                held_by[stage] = held(run)
            size = sum(len(data) for _, _, data in tensors(run / "step-6.safetensors").values())
            moments = 2 * size
            (whole, gradients), (shared, gradients_1), (least, _) = (held_by[stage] for stage in (0, 1, 2))
            self.assertAlmostEqual((whole - shared) / (moments * (1 - 1 / ranks)), 1, delta=0.03)
            self.assertAlmostEqual(shared / least, 1, delta=0.03)
            for seen in (gradients, gradients_1):  # of one batch, which wait for those of the second one
                self.assertAlmostEqual(seen / bytes_of_gradients(run, 6), 1, delta=0.03)

    def test_a_run_goes_on_with_the_same_ranks_to_the_bit(self):
        flags = dict(FULL, zero_stage=2, ema_decay=0.9)
        whole = self.train(2, "whole", **flags)
        self.train(2, "cut", max_train_steps=6, save_steps=6, **flags)
        cut = self.train(2, "cut", global_batch_size=None, max_train_steps=10, resume="latest", **flags)
        self.assertEqual(state_of(whole, 10), state_of(cut, 10))
        self.assertTrue(tensors(whole / "step-10.safetensors") == tensors(cut / "step-10.safetensors"))
        self.assertEqual(losses(whole), losses(cut))

    def test_a_run_goes_on_with_other_ranks_and_stages(self):
        flags = dict(FULL, ema_decay=0.9)
        whole = self.train(4, "whole", zero_stage=1, **flags)
        self.train(4, "changing", max_train_steps=2, save_steps=2, zero_stage=1, **flags)
        for ranks, steps, stage in ((2, 4, 2), (1, 6, 0), (4, 10, 1)):
            run = self.train(ranks, "changing", global_batch_size=None, max_train_steps=steps, save_steps=steps,
                             resume="latest", zero_stage=stage, **flags)
        self.assert_close(whole, run)

    def test_groups_of_a_resumed_run_give_way_to_another_number_of_ranks(self):
        self.train(4, "groups", max_train_steps=1, save_steps=1, zero_stage=1, zero_group=4, **FULL)
        self.train(2, "groups", max_train_steps=2, save_steps=2, resume="latest")
        self.assertIn("--zero_group 4 of the resumed run does not divide 2 processes", self.said)
        self.train(2, "groups", expect=2, max_train_steps=3, resume="latest", zero_group=4)
        self.assertIn('--zero_group: "4" of 2 processes', self.said)

    def test_what_cannot_be_shared_out_is_refused(self):
        for flags, words in ((dict(zero_group="3"), "--zero_group: \"3\" of 2 processes"),
                             (dict(zero_group="some"), "--zero_group: \"some\""),
                             (dict(optimizer_type="Adafactor"), "needs whole matrices")):
            with self.subTest(**flags):
                self.train(2, "refused", expect=2, zero_stage=1, **FULL, **flags)
                self.assertIn(words, self.said)
                self.assertEqual(self.said.count("error: "), 1, self.said)


if __name__ == "__main__":
    unittest.main()
