"""The example's LoRA recolours what was asked and leaves the rest; what judges it tells right from wrong."""

import dataclasses
import pathlib
import tempfile
import unittest

import example  # first: it skips the test without numpy and Pillow

EXAMPLE = example.use("shapes")
import pictures  # noqa: E402
import recolor  # noqa: E402
from program import PROGRAM  # noqa: E402

SEED = 77


class Judging(unittest.TestCase):

    def test_what_was_asked_is_right_and_nothing_else_is(self):
        for pair in recolor.unseen_pairs(40, SEED):
            before, after = pictures.paint(pair.before), pictures.paint(pair.after)
            self.assertTrue(all(recolor.judge(pair, before, after).values()), pair.words)
            untouched = recolor.judge(pair, before, before)
            self.assertEqual((False, True), (untouched["recolored"], untouched["unchanged"]))
            other = dataclasses.replace(pair.after, ground="white" if pair.after.ground != "white" else "black")
            self.assertFalse(recolor.judge(pair, before, pictures.paint(other))["unchanged"])
            plain = dataclasses.replace(
                pair.after, things=tuple(dataclasses.replace(thing, color=pair.recolored().color)
                                         for thing in pair.after.things))
            if plain != pair.after:
                self.assertFalse(recolor.judge(pair, before, pictures.paint(plain))["same_scene"])

    def test_no_pair_that_was_learnt_is_scored(self):
        learnt = {pair.said() for learnt in recolor.LEARNT for pair in recolor.pairs(*learnt)}
        scored = [pair.said() for pair in recolor.unseen_pairs(100)]
        self.assertEqual(100, len(set(scored) - learnt))


class Lora(unittest.TestCase):

    def test_pictures_that_were_not_learnt_are_recolored(self):
        asked = recolor.unseen_pairs(10, SEED)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            counts = recolor.counts(asked, *recolor.edit(PROGRAM, EXAMPLE / "model", recolor.LORA, asked, folder))
            few = asked[:4]
            without = recolor.counts(few, *recolor.edit(PROGRAM, EXAMPLE / "model", None, few, folder))
        self.assertGreaterEqual(counts["right"], 7, counts)
        self.assertEqual(0, without["right"], without)

    def test_a_run_begins_with_the_settings_that_made_it(self):
        with tempfile.TemporaryDirectory() as folder:
            settings = recolor.RUNS[0] | dict(max_train_steps=1, batch_size=2)
            file = recolor.train(PROGRAM, EXAMPLE / "model", EXAMPLE / "edit", pathlib.Path(folder), settings)
            self.assertEqual(recolor.LORA.stat().st_size // 1024, file.stat().st_size // 1024)


if __name__ == "__main__":
    unittest.main()
