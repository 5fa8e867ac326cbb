"""Training runs of one process or several on the tiny example model, and how they are compared."""
import os
import signal
import subprocess
import time

import program
from ranks import children, launched
from tiny_run import TARGETS, TinyRuns, floats, losses, state_of, weights_of, write_dataset

FULL = dict(trainable_models="dit")
LORA = dict(lora_base_model="dit", lora_target_modules=TARGETS, lora_rank=4)


def distilled(data):
    """Flags of distillation in which the rows of write_dataset() have one to four steps."""
    rows = (data / "metadata.csv").read_text().splitlines()
    more = [f",{7 + i},cpu,{1 + 3 * i % 4}" for i in range(len(rows) - 1)]
    (data / "distilled.csv").write_text("\n".join(map("".join, zip(rows, [",seed,rand_device,num_inference_steps", *more]))))
    return dict(task="direct_distill", dataset_metadata_path=data / "distilled.csv")


class RankRuns(TinyRuns):
    """Runs of some processes on one small dataset: in each last step of an epoch some have nothing to do."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.root / "data"
        write_dataset(cls.data, count=7, sizes=((64, 64), (64, 32)))

    def line(self, ranks, name="run", **flags):
        defaults = dict(dtype="float32", max_pixels=64 * 64, adam_epsilon=1e-3, max_train_steps=10, num_epochs=99,
                        global_batch_size=4, save_steps=10, caption_dropout_rate=0.2)
        return launched(ranks, program.command("train", **self.training(name, self.data, **{**defaults, **flags})))

    def train(self, ranks, name=None, expect=0, **flags):
        name = name or f"of_{ranks}"
        self.said = program.run_line(self.line(ranks, name, **flags), code=expect).stderr
        return self.dir / name

    def start(self, ranks, name="run", **flags):
        """A run without an end that has made a step."""
        line = self.line(ranks, name, max_train_steps=100000, save_steps=100000, **flags)
        process = subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        csv = self.dir / name / "loss.csv"
        for _ in range(1200):
            if csv.exists() and "train/loss" in csv.read_text():
                return process
            self.assertIsNone(process.poll(), process.stderr.read() if process.poll() is not None else "")
            time.sleep(0.1)
        self.fail("no step in two minutes")

    def stop_by_signal(self, **flags):
        """Ends one of two ranks by a signal: what was said, and the step that both have saved."""
        process = self.start(2, **flags)
        os.kill(children(process)[1], signal.SIGTERM)
        _, said = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 75, said)
        return said, max(losses(self.dir / "run"))

    def assert_a_killed_rank_ends_the_run(self, **flags):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                process = self.start(2, output_path=self.dir / "run", resume="latest", **flags)
                begin = time.monotonic()
                os.kill(children(process)[rank], signal.SIGKILL)
                _, said = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 6, said)
                self.assertLess(time.monotonic() - begin, 6 + program.allowance())
                self.assertRegex(said, rf"step \d+, .*rank {rank} \(.*\) is lost")
                (self.dir / "run/loss.csv").unlink()

    def assert_near(self, ours, theirs):
        """Name -> float32 tensor: within 1e-6 of each tensor's largest."""
        self.assertEqual(set(ours), set(theirs))
        self.assertTrue(ours)
        for name in ours:
            one, other = floats(ours[name]), floats(theirs[name])
            scale = max(map(abs, one)) or 1.0
            self.assertLessEqual(max(abs(x - y) for x, y in zip(one, other)), 1e-6 * scale, name)

    def assert_losses_near(self, a, b):
        one, other = losses(a), losses(b)
        self.assertEqual(list(one), list(other))
        for number, loss in one.items():
            self.assertLessEqual(abs(other[number] - loss), 1e-6 * loss, number)

    def assert_close(self, a, b, step=10):
        """The trained values, within 1e-6 of each tensor's largest, and the losses."""
        ours, theirs = state_of(a, step), state_of(b, step)
        self.assertEqual(set(ours), set(theirs))
        self.assert_near(*({name: tensor for name, tensor in state.items() if name[0] == "trained.safetensors"}
                           for state in (ours, theirs)))
        self.assert_losses_near(a, b)

    def assert_same(self, a, b, step=10):
        """To the bit: the checkpoint, the weights and the losses."""
        self.assert_same_state(a, b, step)
        self.assertTrue(weights_of(a) == weights_of(b))
        self.assertEqual(losses(a), losses(b))

    def assert_validations_near(self, one, other):
        self.assertTrue(one)
        self.assertTrue(all(abs(a - b) <= 1e-6 * abs(a) for a, b in zip(one, other, strict=True)))
