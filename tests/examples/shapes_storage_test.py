"""The model of examples/shapes draws the same images when its weights rest in 8 bits."""

import itertools
import pathlib
import tempfile
import unittest

import example  # first: it skips the test without numpy and Pillow
import numpy

EXAMPLE = example.use("shapes")
import score  # noqa: E402
from program import PROGRAM  # noqa: E402

MODEL = EXAMPLE / "model"
COUNT = 4
LIMIT = 2  # mean difference of an image, of 255


def drawn(prompts, *extra):
    with tempfile.TemporaryDirectory() as folder:
        paths = score.generate(PROGRAM, MODEL, prompts, pathlib.Path(folder), steps=8, extra=extra)
        return [score.read(path).astype(int) for path in paths]


class Storage(unittest.TestCase):

    def test_images_of_eight_bits_are_near_those_of_plain_weights(self):
        prompts = [scene.prompt() for scene in score.unseen_scenes(COUNT)]
        plain = drawn(prompts)
        for kind, compute in itertools.product(("int8", "fp8"), ("plain", "w8a8")):
            images = drawn(prompts, "--storage", f"dit={kind}", "--compute", f"dit={compute}")
            far = [numpy.abs(a - b).mean() for a, b in zip(plain, images)]
            print(f"{kind} {compute}: mean difference {numpy.mean(far):.2f} of 255, "
                  f"at most {max(far):.2f}")
            self.assertGreater(min(far), 0)
            self.assertLess(max(far), LIMIT)


if __name__ == "__main__":
    unittest.main()
