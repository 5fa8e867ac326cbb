"""One process that exchanges with itself, over NCCL on a GPU, and two that share one device and send through host memory: what one
process alone learns.

    ranks_test.py [--device cuda]
"""
import argparse
import json
import shutil
import sys
import unittest

import places_test
import program
from tiny_run import TinyRuns, data_of, floats, tensors, write_dataset

FULL, LORA = dict(trainable_models="dit"), dict(lora_base_model="dit", lora_rank=4)
STEPS = 5
# Name: flags. What two processes learn differs from what one does by the order of sums alone.
TOGETHER = {
    "whole": FULL,
    "a LoRA": LORA,
    "accumulated and clipped": dict(FULL, global_batch_size=4, max_grad_norm=0.01),
    "the optimizer is shared out": dict(FULL, zero_stage=1),
    "gradients are shared out": dict(FULL, zero_stage=2),
    "optimized on the host": dict(FULL, zero_stage=2, optimize_on_cpu=True),
    "frozen blocks are divided": dict(LORA, zero_stage=3),
    "trained blocks are divided": dict(FULL, zero_stage=3),
    "rows are divided": dict(FULL, sequence_parallel=2, max_grad_norm=1),
}
SHARING = ("zero_stage", "sequence_parallel")  # flags that one process does without


class Ranks(TinyRuns):
    denoiser_blocks = places_test.BLOCKS

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.root / "data"
        write_dataset(cls.data, count=3)

    def train(self, name, launch=(), **flags):
        """The folder of a run, by one process alone or behind a launch of several."""
        run = self.root / name.replace(" ", "_")
        defaults = dict(device=places_test.DEVICE, dtype="float32", vram="off", max_train_steps=STEPS, save_steps=STEPS,
                        num_epochs=99, adam_epsilon=1e-3, global_batch_size=2, max_grad_norm=0,
                        activation_memory_budget="none", deterministic=True if places_test.DEVICE != "cpu" else None)
        words = program.command("train", **self.training(run, self.data, **{**defaults, **flags}))
        program.run_line([words[0], *launch, *words[1:]], code=0, timeout=150)
        return run

    @staticmethod
    def has_exchanged(run):
        return "perf/peers_wait_share" in (run / "loss.csv").read_text()

    def assert_close(self, alone, run):
        """Weights within 1e-6 of each tensor's largest value."""
        ours, theirs = (tensors(folder / f"step-{STEPS}.safetensors") for folder in (alone, run))
        self.assertTrue(ours)
        self.assertEqual(set(ours), set(theirs))
        for name in ours:
            values, others = floats(ours[name]), floats(theirs[name])
            scale = max(map(abs, values)) or 1.0
            self.assertLessEqual(max(abs(a - b) for a, b in zip(values, others)), 1e-6 * scale, name)

    def test_one_rank_that_exchanges_with_itself_has_the_bits_of_one_that_does_not(self):
        backend = "gloo" if places_test.DEVICE == "cpu" else "nccl"
        for name, flags in (("full", FULL), ("lora", LORA)):
            with self.subTest(name):
                alone = self.train(f"{name} alone", **flags)
                run = self.train(f"{name} of {backend}", ("launch", "--nproc_per_node", "1", "--"), dist_backend=backend,
                                 **flags)
                self.assertEqual((self.has_exchanged(alone), self.has_exchanged(run)), (False, True))
                self.assertEqual(data_of(alone / f"step-{STEPS}.safetensors"),
                                 data_of(run / f"step-{STEPS}.safetensors"))

    def test_two_ranks_that_send_through_host_memory_learn_what_one_does(self):
        alone = {}
        for name, flags in TOGETHER.items():
            with self.subTest(name):
                plain = {flag: value for flag, value in flags.items() if flag not in SHARING}
                key = json.dumps(plain)
                if key not in alone:
                    alone[key] = self.train(f"{name}, by one", **plain)
                run = self.train(f"{name}, by two", ("launch", "--nproc_per_node", "2", "--"), dist_backend="gloo", **flags)
                self.assertTrue(self.has_exchanged(run))
                self.assert_close(alone[key], run)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    options, rest = parser.parse_known_args()
    places_test.DEVICE = options.device
    if places_test.DEVICE != "cpu" and not shutil.which("nvidia-smi"):
        print("skipped: no GPU here: nvidia-smi finds none")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])
