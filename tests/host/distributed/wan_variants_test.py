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

    def check(self, variant, kind, flags):
        """Two batches, one a rank, have one order of sums."""
        flags = dict(variants.learning(page.PageRuns, variant, self.data), **flags, global_batch_size=2, max_pixels=None,
                     max_train_steps=STEPS, save_steps=STEPS, caption_dropout_rate=0, cache_path=self.root / f"cache_{variant}")
        alone = self.train(1, f"{variant}_{kind}", **flags)
        for stage in (2, 3):
            with self.subTest(variant, kind=kind, stage=stage):
                self.assert_close(alone, self.train(2, f"{variant}_{kind}_{stage}", zero_stage=stage, **flags), STEPS)

    def test_loras(self):
        for variant in variants.PLACES:
            with self.subTest(variant):
                self.check(variant, "lora", variants.lora(variant))

    def test_what_is_trained_whole(self):
        for variant in variants.PLACES:
            with self.subTest(variant):
                self.check(variant, "whole", variants.whole(variant))


if __name__ == "__main__":
    unittest.main()
