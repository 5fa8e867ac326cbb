"""Trains with weights and the optimizer in host memory, on the simulated device for a GPU, as a user would."""

import unittest

import program
from tiny_run import TARGETS, TinyRuns, rows_of, weights_of, write_dataset

FULL = dict(trainable_models="dit")
LORA = dict(lora_base_model="dit", lora_target_modules=TARGETS, lora_rank=4)
# Streamed blocks are computed again: sums of gradients of what several blocks read are then made in
# another order than where everything is kept.
RESIDENT = dict(device="cpu", use_gradient_checkpointing=True)
BOTH = dict(cpu_offload=True, optimize_on_cpu=True)


class OffloadTest(TinyRuns):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.root / "data"
        write_dataset(cls.data)

    def train(self, name="run", expect=0, data=None, **flags):
        defaults = dict(device="simulated", max_pixels=64 * 64, max_train_steps=5, num_epochs=9,
                        gradient_accumulation_steps=2, save_steps=5)
        flags = self.training(name, data or self.data, **{**defaults, **flags})
        self.stderr = program.run_line(program.command("train", **flags), code=expect).stderr
        return self.dir / name

    def assert_same_run(self, a, b, step=5):
        self.assert_same_state(a, b, step)
        self.assertTrue(weights_of(a) == weights_of(b))
        self.assertEqual((a / "loss.csv").read_text().count("train/grad_norm"), step)
        self.assertEqual(*[[row for row in rows_of(run) if row[1].startswith("train/")] for run in (a, b)])

    def test_full_training_gives_the_bits_of_weights_on_the_device(self):
        for dtype, clip in (("bfloat16", 0), ("bfloat16", 0.01), ("float32", 0)):
            flags = dict(FULL, dtype=dtype, max_grad_norm=clip, ema_decay=0.9,
                         use_gradient_checkpointing=True)
            resident = self.train(f"resident_{dtype}_{clip}", device="cpu", **flags)
            # One slot: the graph that holds a weight of one block leaves no room for the other.
            offloaded = self.train(f"offloaded_{dtype}_{clip}", prefetch=0, **flags, **BOTH)
            self.assertIn("dit: 0 of 2 blocks stayed on the device", self.stderr)
            self.assert_same_run(resident, offloaded)
            for name, more in (("weights", dict(enable_model_cpu_offload=True)),
                               ("optimizer", dict(enable_optimizer_cpu_offload=True)),
                               ("placed", dict(offload="dit=host", resident_blocks=1)),
                               ("threshold", dict(BOTH, param_size_threshold=1))):
                if dtype == "float32" or (name == "placed") != (clip == 0):
                    continue
                self.assert_same_run(resident, self.train(f"{name}_{clip}", **flags, **more))
                self.assertEqual("small trained weights stay" in self.stderr, name == "threshold")

    def test_a_lora_trains_on_weights_that_are_streamed(self):
        for clip in (0, 0.01):
            flags = dict(LORA, max_grad_norm=clip, lora_dropout=0.1, ema_decay=0.9)
            resident = self.train(f"resident_{clip}", **RESIDENT, **flags)
            for name, more in (("weights", dict(cpu_offload=True)), ("both", BOTH),
                               ("kept", dict(BOTH, activation_memory_budget="none")),
                               ("budget", dict(BOTH, activation_memory_budget="0.5"))):
                self.assert_same_run(resident, self.train(f"{name}_{clip}", **flags, **more))

    def test_several_models_and_optimizers_train_on_the_host(self):
        for kind in ("AdamW8bit", "Prodigy", "Adafactor"):
            flags = dict(LORA, trainable_models="text_encoder.model.layers.0,dit.transformer_blocks.1",
                         optimizer_type=kind, max_grad_norm=0, master_weights="stochastic",
                         dtype="bfloat16")
            resident = self.train(kind, **RESIDENT, **flags)
            self.assert_same_run(resident, self.train(kind + "_offloaded", **flags, **BOTH))

    def test_a_run_goes_on_from_a_checkpoint_to_the_bit(self):
        for clip in (0, 1.0):
            flags = dict(FULL, **BOTH, dtype="bfloat16", max_grad_norm=clip, ema_decay=0.9)
            straight = self.train(f"straight_{clip}", **flags)
            self.train(f"cut_{clip}", **{**flags, "max_train_steps": 3, "save_steps": 3})
            resumed = self.train(f"cut_{clip}", resume=self.dir / f"cut_{clip}", **flags)
            self.assert_same_state(straight, resumed, 5)
            # The place of the weights is free to change.
            self.train(f"moved_{clip}", **{**flags, "max_train_steps": 3, "save_steps": 3})
            moved = self.train(f"moved_{clip}", resume=self.dir / f"moved_{clip}",
                               **dict(flags, **RESIDENT, cpu_offload=None, optimize_on_cpu=None))
            self.assertNotIn("blocks stayed on the device", self.stderr)
            self.assert_same_state(straight, moved, 5)

    def test_what_does_not_fit_on_the_device_trains_from_the_host(self):
        small = dict(FULL, device="simulated:9MiB", dtype="float32", use_gradient_checkpointing=True,
                     vram="off")
        self.train("resident", expect=4, **small)
        offloaded = self.train("offloaded", prefetch=0, **small, **BOTH)
        resident = self.train("large", **dict(small, device="cpu"))
        self.assert_same_run(resident, offloaded)

    def test_blocks_that_run_several_times_in_a_step_get_all_their_gradients(self):
        data = self.dir / "distill"
        write_dataset(data, count=2)
        (data / "metadata.csv").write_text(
            "image,prompt,seed,rand_device,num_inference_steps,cfg_scale\n"
            "0.png,one,7,cpu,3,1\n1.png,two,8,cpu,2,1\n")
        flags = dict(FULL, data=data, task="direct_distill", cache_path=None, max_grad_norm=0,
                     gradient_accumulation_steps=1)
        resident = self.train("resident", **RESIDENT, **flags)
        self.assert_same_run(resident, self.train("offloaded", **flags, **BOTH))

    def test_a_step_that_is_not_finite_moves_no_block_by_such_gradients(self):
        run = self.train(expect=5, **FULL, **BOTH, learning_rate=1e30, max_train_steps=40, save_steps=1,
                         max_skipped_steps=3, max_grad_norm=0)
        self.assertIn("3 steps in a row", self.stderr)
        self.assertTrue(list((run / "checkpoints").glob("step-*")))

    def test_flags_that_come_to_nothing_or_make_no_sense_are_told(self):
        self.train("cpu", device="cpu", max_train_steps=1, save_steps=1, **FULL, **BOTH)
        self.assertIn("have no effect on the CPU", self.stderr)
        self.train("threshold", max_train_steps=1, save_steps=1, cpu_offload_split_threshold=4, **LORA)
        self.assertIn("no effect without --cpu_offload and --optimize_on_cpu", self.stderr)
        self.train("two", expect=2, param_size_threshold=1, cpu_offload_split_threshold=4, **LORA)
        self.assertIn("says something else", self.stderr)
        self.train("disk", expect=2, offload="dit=disk", **FULL)
        self.assertIn("use dit=host", self.stderr)
        first = self.train("first", max_train_steps=1, save_steps=1, **LORA)
        self.train("preset", expect=2, preset_lora_path=first / "step-1.safetensors",
                   preset_lora_model="dit", **FULL, **BOTH)
        self.assertIn("rest on the host", self.stderr)


if __name__ == "__main__":
    unittest.main()
