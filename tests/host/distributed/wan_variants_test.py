"""What the published scripts train of every variant of Wan, whole and as a LoRA, shared out between two ranks, against one."""
import unittest

import wan_page_parity_test as page
import wan_variants as variants
from safetensors.numpy import load_file
from tiny_run import TinyRuns
from zero_test import SharingRuns

STEPS = 2


def distance(run, other):
    """How far saved values are apart at most, in parts of each tensor's largest."""
    files = sorted(run.glob(f"step-{STEPS}*.safetensors"))
    assert files
    return max(abs(value - load_file(other / file.name)[name]).max() / (abs(value).max() or 1)
               for file in files for name, value in load_file(file).items())


class WanVariantsTest(SharingRuns):

    @classmethod
    def setUpClass(cls):
        super(TinyRuns, cls).setUpClass()
        page.PageRuns.setUpClass()
        cls.addClassCleanup(page.PageRuns.doClassCleanups)
        cls.data = cls.root / "rows"
        cls.on_model = dict(device="cpu")
        variants.write_rows(cls.data)

    def learn(self, ranks, variant, name, flags):
        """Two batches, one a rank, have one order of sums."""
        flags = dict(variants.learning(page.PageRuns, variant, self.data), **flags, global_batch_size=2, max_pixels=None,
                     max_train_steps=STEPS, save_steps=STEPS, caption_dropout_rate=0, cache_path=self.root / f"cache_{variant}")
        return self.train(ranks, f"{variant}_{name}", **flags)

    def test_loras(self):
        """Beside divided denoisers factors are as far from those of one process as its own rounding, as in
        sequence_training_test.py: so far as the process comes with other kernels of attention."""
        for variant in variants.PLACES:
            with self.subTest(variant):
                flags = variants.lora(variant)
                alone = self.learn(1, variant, "lora", flags)
                self.assert_close(alone, self.learn(2, variant, "lora_2", dict(flags, zero_stage=2)), STEPS)
                own = distance(alone, self.learn(1, variant, "lora_rounded", dict(flags, attention="math")))
                self.assertLess(own, 1e-4)
                divided = self.learn(2, variant, "lora_3", dict(flags, zero_stage=3))
                self.assertLessEqual(distance(alone, divided), max(1e-6, 1.5 * own))
                self.assert_losses_near(alone, divided)

    def test_what_is_trained_whole(self):
        for variant in variants.PLACES:
            alone = self.learn(1, variant, "whole", variants.whole(variant))
            for stage in (2, 3):
                with self.subTest(variant, stage=stage):
                    run = self.learn(2, variant, f"whole_{stage}", dict(variants.whole(variant), zero_stage=stage))
                    self.assert_close(alone, run, STEPS)


if __name__ == "__main__":
    unittest.main()
