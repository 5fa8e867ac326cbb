"""Processes that have a part of the rows of each picture: what they make is what one process does.

    sequence_test.py WAN_PLUGIN WRITE_MODEL
"""
import pathlib
import tempfile
import unittest

import numpy as np
import program
from PIL import Image
from ranks import launched
from sequence_runs import SequenceRuns


def values(path):
    return np.asarray(Image.open(path), dtype=np.int64)


class SequenceTest(SequenceRuns):

    def make(self, ranks, family, code=0, words=(), **flags):
        """The files of a picture or a clip, and what was said."""
        size = dict(num_frames=9, height=32, width=48, output="frame_%02d.png") if family == "wan" else dict(
            height=80, width=112, output="out.png")
        defaults = dict(prompt="a red circle on a table", negative_prompt="grey", cfg_scale=4, num_inference_steps=3,
                        seed=5, device="cpu", dtype="float32", threads=1)
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.root))
        line = program.command("generate", *words, **{**defaults, **size, **self.models[family], **flags})
        said = program.run_line(launched(ranks, line), code=code, cwd=folder).stderr
        return sorted(folder.glob("*.png")), said

    def assert_alike(self, ours, theirs):
        """Equal but for rounding: in float32, and then to whole numbers of 0 to 255."""
        self.assertTrue(ours)
        self.assertEqual([path.name for path in ours], [path.name for path in theirs])
        for one, other in zip(ours, theirs):
            difference = np.abs(values(one) - values(other))
            self.assertLessEqual(difference.max(), 1)
            self.assertLess(np.count_nonzero(difference), 1e-3 * difference.size)

    def test_pictures_of_several_ranks_are_those_of_one(self):
        # Key heads: 4 of qwen_image, 2 of the others. Ranks that do not divide them send keys around.
        for family, sizes in (("qwen_image", (2, 3, 4)), ("lumina2", (2, 4)), ("wan", (2, 4))):
            alone, _ = self.make(1, family)
            for ranks in sizes:
                with self.subTest(family=family, ranks=ranks):
                    self.assert_alike(alone, self.make(ranks, family, sequence_parallel=ranks)[0])
            self.assertFalse(np.array_equal(values(alone[0]), values(self.make(1, family, seed=6)[0][0])))

    def test_samples_of_a_batch_are_shared_out_together(self):
        flags = dict(num_images=3, batch_size=3)
        self.assert_alike(self.make(1, "qwen_image", **flags)[0],
                          self.make(2, "qwen_image", sequence_parallel=2, **flags)[0])

    def test_halves_of_guidance_are_sequences(self):
        self.assert_alike(self.make(1, "qwen_image")[0],
                          self.make(4, "qwen_image", sequence_parallel=2, cfg_parallel=True)[0])

    def test_pictures_that_are_given_are_shared_out_too(self):
        for variant, names in (("one", ("0",)), ("several", ("3", "7"))):
            given = [word for name in names for word in ("--edit_image", self.root / f"walk/{name}.png")]
            flags = dict(words=given, edit_image_auto_resize="false", num_inference_steps=2)
            alone, _ = self.make(1, variant, **flags)
            for ranks in (2, 3):
                with self.subTest(variant=variant, ranks=ranks):
                    self.assert_alike(alone, self.make(ranks, variant, sequence_parallel=ranks, **flags)[0])
            others = [word for word in given[:-1]] + [self.root / "walk/11.png"]
            other, _ = self.make(1, variant, **{**flags, "words": others})
            self.assertFalse(np.array_equal(values(alone[0]), values(other[0])))

    def test_regions_are_shared_out_too(self):
        """With one image, with a batch that has guidance beside it, and beside a picture that is edited."""
        entities = [word for number, text in enumerate(("a red circle", "the sea", "a cat"))
                    for word in ("--eligen_entity_prompts", text, "--eligen_entity_masks", self.root / f"mask{number}.png")]
        given = dict(words=[*entities, "--edit_image", self.root / "walk/3.png"], edit_image_auto_resize="false")
        for model, flags in (("qwen_image", dict(words=entities)), ("several", given),
                             ("qwen_image", dict(words=entities, num_images=2, batch_size=2, eligen_enable_on_negative=True))):
            flags["num_inference_steps"] = 2
            alone, _ = self.make(1, model, **flags)
            for ranks in (2, 3):
                with self.subTest(model=model, ranks=ranks):
                    self.assert_alike(alone, self.make(ranks, model, sequence_parallel=ranks, **flags)[0])

    def test_fewer_ranks_than_make_a_picture_are_refused(self):
        _, said = self.make(2, "qwen_image", code=2, sequence_parallel=4)
        self.assertIn("--sequence_parallel: 4 processes make a picture, and there are 2", said)


if __name__ == "__main__":
    unittest.main()
