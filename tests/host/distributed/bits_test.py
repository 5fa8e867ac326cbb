"""Two ranks of a batch each give one process's bits of both batches, whatever is trained and wherever it lives.

    bits_test.py WAN_PLUGIN WRITE_MODEL
"""
import json
import pathlib
import tempfile
import unittest

import lumina2_models
import program
import wan_training_test as wan
from train_cli_test import TARGETS, losses, state_of, tensors, write_dataset

FULL = dict(trainable_models="dit")
LORA = dict(lora_base_model="dit", lora_target_modules=TARGETS, lora_rank=4)
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


class BitsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="atelier_bits_")
        cls.addClassCleanup(holder.cleanup)
        cls.root = pathlib.Path(holder.name)
        program.write_tiny_model(cls.root / "model")
        write_dataset(cls.root / "data", count=7, sizes=((64, 64), (64, 32)))

    def run_of(self, ranks, name, **flags):
        """The folder of a run whose steps have two batches, of one process or of several."""
        run = self.root / f"{name.replace(' ', '_')}_of_{ranks}"
        steps = flags.get("max_train_steps", 10)
        defaults = dict(plugin="qwen_image", model_paths=json.dumps([str(self.root / "model")]), device="cpu",
                        dtype="float32", dataset_base_path=self.root / "data",
                        dataset_metadata_path=self.root / "data/metadata.csv", max_pixels=64 * 64, learning_rate=1e-3,
                        max_train_steps=steps, save_steps=steps, num_epochs=99, threads=1,
                        global_batch_size=2 * flags.get("batch_size", 1), enable_csv_log=True,
                        cache_path=self.root / flags.get("plugin", "qwen_image") / flags.get("dtype", "float32"),
                        output_path=run)
        line = program.command("train", **{**defaults, **flags})
        if ranks > 1:
            line[1:1] = ["launch", "--nproc_per_node", str(ranks), "--"]
        program.run_line(line, code=0)
        return run, steps

    def assert_same(self, name, **flags):
        alone, steps = self.run_of(1, name, **flags)
        both, _ = self.run_of(2, name, **flags)
        one, other = state_of(alone, steps), state_of(both, steps)
        self.assertTrue(one)
        self.assertEqual(set(one), set(other))
        self.assertEqual([key for key, value in one.items() if other[key] != value], [])
        files = [{path.name: tensors(path) for path in run.glob("*.safetensors")} for run in (alone, both)]
        self.assertTrue(files[0])
        self.assertTrue(files[0] == files[1])
        self.assertEqual(losses(alone), losses(both))

    def test_whatever_is_trained_and_wherever_it_lives(self):
        for name, flags in KINDS.items():
            with self.subTest(name):
                self.assert_same(name, **flags)

    def test_lumina2(self):
        model = dict(plugin="lumina2", model_paths=json.dumps([str(lumina2_models.get().model)]))
        self.assert_same("lumina2 whole", **FULL, **model)
        self.assert_same("lumina2 lora", lora_base_model="dit", lora_rank=4, **model)

    def test_both_experts_of_wan(self):
        model = self.root / "wan"
        wan.write_model(model)
        wan.write_walk(self.root / "walk")
        wan.frame(3).save(self.root / "still.png")
        (self.root / "clips.csv").write_text("video,image,prompt\nwalk,,a walk\n,still.png,a stand\n")
        flags = dict(plugin=wan.PLUGIN, dataset_base_path=self.root, dataset_metadata_path=self.root / "clips.csv",
                     num_frames=5, height=16, width=32, max_pixels=None, ema_decay=0.9, cache_path=self.root / "clips",
                     model_paths=wan.model_paths(model))
        self.assert_same("wan loras", lora_base_model="dit,dit2", lora_rank=2, **flags)
        self.assert_same("wan whole", trainable_models="dit,dit2", **flags)


if __name__ == "__main__":
    unittest.main()
