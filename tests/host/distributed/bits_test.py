"""Two ranks of a batch each give one process's bits of both batches, whatever is trained and wherever it lives.

    bits_test.py WAN_PLUGIN WRITE_MODEL
"""
import json
import unittest

import lumina2_models
import wan_training_test as wan
from families import write_clips
from rank_runs import FULL, LORA, RankRuns

STREAMED = dict(device="simulated", cpu_offload=True)

# Name: flags. Streamed blocks are computed again.
KINDS = {
    "clipped": dict(FULL, max_grad_norm=0.01, batch_size=2, max_train_steps=6),
    "8bit": dict(FULL, optimizer_type="AdamW8bit"),
    "prodigy": dict(LORA, optimizer_type="Prodigy", learning_rate=1, max_grad_norm=0),
    "adafactor": dict(FULL, optimizer_type="Adafactor", learning_rate=1e-4),
    "rounded at random": dict(FULL, dtype="bfloat16", master_weights="stochastic", max_grad_norm=0),
    "masters and averages": dict(FULL, dtype="bfloat16", ema_decay=0.9, caption_dropout_rate=0.3),
    "computed again": dict(LORA, lora_dropout=0.2, use_gradient_checkpointing=True),
    "kept in part": dict(LORA, activation_memory_budget=0.5),
    "fp8": dict(LORA, storage="dit=fp8", dtype="bfloat16"),
    "streamed": dict(LORA, **STREAMED),
    "one number": dict(LORA, device="simulated:64MiB", vram="40MB"),
    "optimized on the host": dict(FULL, optimize_on_cpu=True, max_grad_norm=0, ema_decay=0.9, **STREAMED),
}


class BitsTest(RankRuns):

    def assert_bits(self, name, **flags):
        """Of a run whose steps have two batches."""
        steps = flags.get("max_train_steps", 10)
        cache = self.root / flags.get("plugin", "qwen_image") / flags.get("dtype", "float32")
        defaults = dict(adam_epsilon=None, caption_dropout_rate=None, cache_path=cache, max_train_steps=steps,
                        save_steps=steps, global_batch_size=2 * flags.get("batch_size", 1))
        self.assert_same(*(self.train(ranks, f"{name.replace(' ', '_')}_of_{ranks}", **{**defaults, **flags})
                           for ranks in (1, 2)), steps)

    def test_whatever_is_trained_and_wherever_it_lives(self):
        for name, flags in KINDS.items():
            with self.subTest(name):
                self.assert_bits(name, **flags)

    def test_lumina2(self):
        model = dict(plugin="lumina2", model_paths=json.dumps([str(lumina2_models.get().model)]))
        self.assert_bits("lumina2 whole", **FULL, **model)
        self.assert_bits("lumina2 lora", lora_base_model="dit", lora_rank=4, **model)

    def test_both_experts_of_wan(self):
        model = self.root / "wan"
        wan.write_model(model)
        flags = dict(write_clips(self.root), plugin=wan.PLUGIN, model_paths=wan.model_paths(model), max_pixels=None,
                     ema_decay=0.9, cache_path=self.root / "clips")
        self.assert_bits("wan loras", lora_base_model="dit,dit2", lora_rank=2, **flags)
        self.assert_bits("wan whole", trainable_models="dit,dit2", **flags)


if __name__ == "__main__":
    unittest.main()
