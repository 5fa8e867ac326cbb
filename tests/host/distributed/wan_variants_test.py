"""What the published scripts train of every variant of Wan, whole and as a LoRA, shared out between two ranks, against one."""
import unittest

import wan_page_parity_test as page
import wan_variants as variants
from tiny_run import TinyRuns
from zero_test import SharingRuns

STEPS = 2


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
        """Beside divided denoisers they are held against those beside whole ones, as in wan_test.py."""
        for variant in variants.PLACES:
            with self.subTest(variant):
                flags = variants.lora(variant)
                alone = self.learn(1, variant, "lora", flags)
                whole = self.learn(2, variant, "lora_2", dict(flags, zero_stage=2))
                self.assert_close(alone, whole, STEPS)
                self.assert_same_weights(whole, self.learn(2, variant, "lora_3", dict(flags, zero_stage=3)))

    def test_what_is_trained_whole(self):
        for variant in variants.PLACES:
            alone = self.learn(1, variant, "whole", variants.whole(variant))
            for stage in (2, 3):
                with self.subTest(variant, stage=stage):
                    run = self.learn(2, variant, f"whole_{stage}", dict(variants.whole(variant), zero_stage=stage))
                    self.assert_close(alone, run, STEPS)


if __name__ == "__main__":
    unittest.main()
