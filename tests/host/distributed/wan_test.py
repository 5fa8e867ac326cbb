"""Both experts of Wan shared out among ranks in every way, on clips and stills, against one process.

    wan_test.py WAN_PLUGIN WRITE_MODEL
"""
import unittest

import wan_training_test as wan
from tiny_run import TinyRuns, tensors
from zero_test import SIMULATED, SharingRuns

WHOLE = dict(trainable_models="dit,dit2")
LORAS = dict(lora_base_model="dit,dit2", lora_rank=2)
# Steps of four, four and one batches of two samples, clipped.
CLIPPED = dict(WHOLE, max_grad_norm=0.01, batch_size=2, global_batch_size=8, dataset_repeat=6, ema_decay=0.9)
PRODIGY = dict(optimizer_type="Prodigy", learning_rate=1, adam_epsilon=1e-8)

# Name: flags of one process, and by name the ranks that learn the same, with what they have beside these flags.
KINDS = {
    "clipped": (CLIPPED, {
        "stage 0": (4, dict()),
        "stage 1 in pairs": (4, dict(zero_stage=1, zero_group=2)),
        "stage 2 in pairs": (4, dict(zero_stage=2, zero_group=2)),
        "stage 3 in pairs": (4, dict(zero_stage=3, zero_group=2)),
        "stage 2 of two": (2, dict(zero_stage=2)),
        "stage 3 of four": (4, dict(zero_stage=3)),
        "rows and stage 1": (4, dict(zero_stage=1, sequence_parallel=2)),
        "rows and stage 3": (4, dict(zero_stage=3, sequence_parallel=2)),
    }),
    "prodigy": (dict(WHOLE, **PRODIGY), {
        "stage 1": (2, dict(zero_stage=1)),
        "stage 3": (2, dict(zero_stage=3)),
    }),
    "on the host": (dict(WHOLE, **SIMULATED, ema_decay=0.9), {
        "stage 2": (2, dict(zero_stage=2)),
        "stage 3": (2, dict(zero_stage=3, cpu_offload=True)),
    }),
    "streamed": (dict(WHOLE, **SIMULATED, cpu_offload=True, ema_decay=0.9), {
        "stage 1": (2, dict(zero_stage=1)),
        "rows": (2, dict(sequence_parallel=2)),
    }),
    "one expert": (dict(trainable_models="dit", ema_decay=0.9), {
        "stage 3": (2, dict(zero_stage=3)),
    }),
    "beside a LoRA": (dict(trainable_models="dit", lora_base_model="dit2", lora_rank=2, storage="dit2=fp8"), {
        "stage 2": (2, dict(zero_stage=2)),
        "stage 3": (2, dict(zero_stage=3)),
    }),
}
# What is rounded coarsely, where the order of sums is the same: two ranks of one batch each.
ROUNDED = {
    "8bit": dict(WHOLE, optimizer_type="AdamW8bit"),
    "masters": dict(WHOLE, dtype="bfloat16", ema_decay=0.9),
}


class WanTest(SharingRuns):

    @classmethod
    def setUpClass(cls):
        super(TinyRuns, cls).setUpClass()
        root = cls.data = cls.root
        wan.write_model(root / "wan")
        cls.on_model = dict(plugin=wan.PLUGIN, model_paths=wan.model_paths(root / "wan"), device="cpu", threads=1)
        wan.write_walk(root / "walk")
        wan.frame(3).save(root / "still.png")
        wan.frame(8).save(root / "other.png")
        (root / "clips.csv").write_text("video,image,prompt,seed,rand_device,num_inference_steps\nwalk,,a walk,3,cpu,2\n"
                                        ",still.png,a man who stands,4,cpu,4\n,other.png,a stand,5,cpu,1\n")

    def line(self, ranks, name="run", **flags):
        defaults = dict(num_frames=5, height=16, width=32, dataset_metadata_path=self.root / "clips.csv", max_pixels=None)
        return super().line(ranks, name, **{**defaults, **flags})

    def check(self, kind):
        flags, ways = KINDS[kind]
        alone = self.train(1, f"{kind} alone", **flags)
        for name, (ranks, more) in ways.items():
            with self.subTest(name):
                self.assert_close(alone, self.train(ranks, f"{kind} {name}", **{**flags, **more}))

    def test_clipped_steps_of_several_batches(self):
        self.check("clipped")

    def test_prodigy(self):
        self.check("prodigy")

    def test_what_is_optimized_on_the_host(self):
        self.check("on the host")

    def test_what_is_streamed(self):
        self.check("streamed")

    def test_one_expert_alone_and_beside_a_lora(self):
        self.check("one expert")
        self.check("beside a LoRA")

    def test_loras_of_both(self):
        """Gradients of the keys' factors are small differences of large sums, and Prodigy divides them by their size: ranks
        that add four samples in another order than one process differ from it by 1e-7 to 1e-4 of the largest value, as
        the processor's instructions have it. Two samples have one order, and are the same to the bit."""
        flags = dict(LORAS, **PRODIGY, global_batch_size=2)
        alone = self.train(1, "loras alone", **flags)
        self.assert_same_weights(alone, self.train(2, "loras of two ranks", zero_stage=2, **flags))

    def test_loras_beside_divided_experts(self):
        """For the reason above divided experts are held against as many ranks with whole ones."""
        whole = self.train(4, "loras beside whole", **LORAS, **PRODIGY)
        divided = self.train(4, "loras beside divided", zero_stage=3, zero_group=2, **LORAS, **PRODIGY)
        self.assert_same_weights(whole, divided)

    def test_what_is_rounded_coarsely_is_rounded_as_that_of_one_process(self):
        for name, flags in ROUNDED.items():
            flags = dict(flags, global_batch_size=2, max_grad_norm=0)
            alone = self.train(1, f"{name} alone", **flags)
            for stage in (1, 2, 3):
                with self.subTest(name, stage=stage):
                    self.assert_same_weights(alone, self.train(2, f"{name} {stage}", zero_stage=stage, **flags))

    def test_a_save_comes_whichever_expert_is_the_next(self):
        """Steps of both experts follow each other in every order."""
        flags = dict(save_steps=1, max_train_steps=6, global_batch_size=2, max_grad_norm=0)
        for name, trained, more in (("whole", WHOLE, {}), ("optimized on the host", WHOLE, SIMULATED),
                                    ("beside a LoRA", dict(trainable_models="dit", lora_base_model="dit2", lora_rank=2), {})):
            with self.subTest(name):
                alone = self.train(1, f"{name} alone", **flags, **trained, **more)
                both = self.train(2, name, zero_stage=3, **flags, **trained, **more)
                self.assertEqual(len(list(both.glob("step-*.safetensors"))), 12)
                self.assert_same_weights(alone, both)

    def test_rows_of_other_numbers_of_steps_are_distilled_in_lockstep(self):
        """A step of each sample runs one expert or the other: two, four and one of them here."""
        flags = dict(task="direct_distill", batch_size=2, dataset_repeat=3)
        for name, trained in (("whole", WHOLE), ("loras", LORAS)):
            with self.subTest(name):
                alone = self.train(1, f"{name} alone", **flags, **trained)
                self.assert_close(alone, self.train(4, name, zero_stage=3, **flags, **trained))

    def test_tensors_are_large_enough_for_8_bits(self):
        run = self.train(2, "eight", zero_stage=3, max_train_steps=1, save_steps=1, **ROUNDED["8bit"])
        kinds = {dtype for path in (run / "checkpoints/step-00000001").glob("optimizer*")
                 for dtype, _, _ in tensors(path).values()}
        self.assertIn("U8", kinds)


if __name__ == "__main__":
    unittest.main()
