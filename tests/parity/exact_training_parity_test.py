"""Training gives the same bits whatever is kept of activations, resumed or not, for both families.

Among what is trained are layers before the blocks, whose output every block reads. The models are the
tiny ones of the comparisons with diffusers.
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import lumina2_models
import program
import tiny_models
from tiny_run import state_of, write_dataset

BUDGETS = ["none", "full", "auto", "0.5", "1", "0.5MB", "checkpointing"]
TRAINED = {
    "qwen_image": (tiny_models, {
        "dit": dict(trainable_models="dit"),
        "lora": dict(lora_base_model="dit", lora_target_modules="linear_1,linear_2,to_q")
    }),
    "lumina2": (lumina2_models, {
        "dit": dict(trainable_models="dit"),
        "lora": dict(lora_base_model="dit", lora_target_modules="mlp.0,mlp.2,qkv")
    })
}


def budget_flags(budget):
    if budget == "checkpointing":
        return dict(use_gradient_checkpointing="true")
    return dict(activation_memory_budget=budget)


class ExactTrainingTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="atelier_exact_")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        write_dataset(self.dir / "data", sizes=((64, 64), (96, 64)))

    def words(self, out, family, kind, budget, **flags):
        models, kinds = TRAINED[family]
        data = self.dir / "data"
        flags = dict(plugin=family, model_paths=json.dumps([str(models.get().model)]), device="cpu",
                     dataset_base_path=data, dataset_metadata_path=data / "metadata.csv",
                     max_pixels=64 * 96, batch_size=2, learning_rate=1e-3, num_epochs=99,
                     save_steps=3, threads=1, cache_path=self.dir / "cache" / family,
                     output_path=self.dir / out, **kinds[kind], **budget_flags(budget), **flags)
        return program.command("train", **flags)

    def train(self, out, *arguments, **flags):
        program.run_line(self.words(out, *arguments, **flags), code=0)

    def assert_same_state(self, run, expected, step):
        got = state_of(self.dir / run, step)
        self.assertTrue(expected)
        self.assertEqual(set(got), set(expected))
        self.assertEqual([name for name in got if got[name] != expected[name]], [], f"of {run}")

    def test_every_budget_gives_the_same_bits(self):
        for family, (_, kinds) in TRAINED.items():
            for kind in kinds:
                self.train(f"{family}_{kind}", family, kind, "none", max_train_steps=6)
                for budget in BUDGETS:
                    with self.subTest(family=family, trains=kind, budget=budget):
                        run = f"{family}_{kind}_{budget}"
                        self.train(run, family, kind, budget, max_train_steps=6)
                        for step in (3, 6):
                            self.assert_same_state(run, state_of(self.dir / f"{family}_{kind}", step), step)

    def test_a_run_that_goes_on_gives_the_same_bits(self):
        trained = [(family, kind) for family, (_, kinds) in TRAINED.items() for kind in kinds]
        budgets = ("none", "1", "0.5MB", "checkpointing")  # runs that are killed go on with the others
        for (family, kind), budget in zip(trained, budgets, strict=True):
            with self.subTest(family=family, trains=kind, budget=budget):
                straight, resumed = f"{family}_{kind}", f"{family}_{kind}_resumed"
                self.train(straight, family, kind, budget, max_train_steps=6)
                self.train(resumed, family, kind, budget, max_train_steps=3)
                self.train(resumed, family, kind, budget, max_train_steps=6, resume="latest")
                self.assert_same_state(resumed, state_of(self.dir / straight, 6), 6)

    def test_kills_other_budgets_and_numbers_of_workers_change_nothing(self):
        for family, (_, kinds) in TRAINED.items():
            for kind in kinds:
                with self.subTest(family=family, trains=kind):
                    steps = dict(max_train_steps=12)
                    straight, killed = f"{family}_{kind}", f"{family}_{kind}_killed"
                    self.train(straight, family, kind, "none", dataset_num_workers=0, **steps)
                    for budget, workers, saved in (("0.5", 3, 3), ("full", 1, 6)):
                        self.kill_after(saved, self.words(killed, family, kind, budget,
                                                          dataset_num_workers=workers,
                                                          resume="latest", **steps))
                    self.train(killed, family, kind, "auto", dataset_num_workers=2,
                               resume="latest", **steps)
                    self.assert_same_state(killed, state_of(self.dir / straight, 12), 12)

    def kill_after(self, step, words):
        """Ends a run without a word when it has saved `step`."""
        process = subprocess.Popen(program.yielding(words), stderr=subprocess.DEVNULL)
        folder = pathlib.Path(words[words.index("--output_path") + 1])
        while not (folder / f"checkpoints/step-{step:08d}").is_dir():
            self.assertIsNone(process.poll())
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    sys.exit(unittest.main())
