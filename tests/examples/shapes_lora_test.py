"""A LoRA that is trained for a minute hatches things: visibly at strength 1, not at all at 0."""

import pathlib
import tempfile
import unittest

import example  # first: it skips the test without numpy and Pillow

EXAMPLE = example.use("shapes")
import hatch  # noqa: E402
from program import PROGRAM  # noqa: E402


class Lora(unittest.TestCase):

    def test_hatching_appears_with_the_strength_and_leaves_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            lora = hatch.train(PROGRAM, EXAMPLE / "model", folder / "lora")
            measured = hatch.measure(
                hatch.compare(PROGRAM, EXAMPLE / "model", lora, folder, count=16))
        self.assertTrue(measured["equal_at_0"])
        self.assertGreaterEqual(measured["deviations_at_1"], 3, measured)
        amounts = measured["hatching"]
        self.assertLess(amounts["base"], amounts["1"])


if __name__ == "__main__":
    unittest.main()
