"""The example's model makes one of two things anew and leaves the rest; what judges it tells right from wrong."""

import pathlib
import tempfile
import unittest

import example  # first: it skips the test without numpy and Pillow
import numpy as np

EXAMPLE = example.use("shapes")
import inpaint  # noqa: E402
import pictures  # noqa: E402
import recolor  # noqa: E402
import score  # noqa: E402
from program import PROGRAM  # noqa: E402

SEED = 77


class Judging(unittest.TestCase):

    def test_masks_cover_the_thing_and_not_the_other(self):
        for task in inpaint.tasks(40, SEED):
            masks = [recolor.mask_of(thing) for thing in task.before.things]
            self.assertFalse((masks[task.place()] & ~task.mask()).any())
            self.assertFalse((masks[1 - task.place()] & task.mask()).any())

    def test_what_was_asked_is_right_and_nothing_else_is(self):
        for task in inpaint.tasks(40, SEED):
            before, after = pictures.paint(task.before), pictures.paint(task.after)
            self.assertTrue(all(inpaint.judge(task, before, after).values()), task.after.prompt())
            untouched = inpaint.judge(task, before, before)
            self.assertEqual((False, True), (untouched["as_the_prompt"], untouched["unchanged_elsewhere"]))
            self.assertFalse(inpaint.judge(task, before, 255 - after)["unchanged_elsewhere"])


class Files(unittest.TestCase):

    def test_the_files_beside_the_example_are_the_first_row(self):
        first, = inpaint.tasks(1)
        self.assertTrue(np.array_equal(pictures.paint(first.before), score.read(EXAMPLE / "inpaint/before.png")))
        mask = score.read(EXAMPLE / "inpaint/mask.png")
        self.assertTrue(np.array_equal(255 * first.mask(), mask[:, :, 0]))


class Model(unittest.TestCase):

    def test_things_are_made_anew(self):
        asked = inpaint.tasks(10, SEED)
        with tempfile.TemporaryDirectory() as folder:
            counts = inpaint.counts(asked, *inpaint.inpaint(PROGRAM, EXAMPLE / "model", asked, pathlib.Path(folder)))
        self.assertGreaterEqual(counts["right"], 8, counts)


if __name__ == "__main__":
    unittest.main()
