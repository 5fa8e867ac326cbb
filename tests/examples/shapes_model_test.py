"""The model of examples/shapes draws what prompts say that it has not learnt."""

import hashlib
import os
import pathlib
import sys
import tempfile
import unittest

try:
    import numpy  # noqa: F401
    import PIL  # noqa: F401
except ImportError:
    print("skipped: numpy or Pillow is missing")
    sys.exit(77)

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "shapes"
sys.path.insert(0, str(EXAMPLE))
import score  # noqa: E402

PROGRAM = os.environ["ATELIER_BIN"]
MODEL = EXAMPLE / "model"
COUNT = 40
# Of COUNT pictures; README.md has the rates of 200.
FLOORS = {"things": 0.85, "colors": 0.95, "shapes": 0.85, "positions": 0.85, "ground": 0.95}


class Model(unittest.TestCase):

    def test_forty_prompts_that_were_not_learnt_are_drawn(self):
        scenes = score.unseen_scenes(COUNT)
        with tempfile.TemporaryDirectory() as folder:
            paths = score.generate(PROGRAM, MODEL, [scene.prompt() for scene in scenes],
                                   pathlib.Path(folder))
            rates = score.rates(scenes, paths)
        for name, floor in FLOORS.items():
            self.assertGreaterEqual(rates[name], floor, rates)

    def test_a_prompt_and_a_seed_give_the_same_picture_alone_and_among_others(self):
        prompts = ["a red circle on a blue ground",
                   "a white star above a green square on a red ground"]
        hashes = []
        for chosen in (prompts, prompts[:1]):
            with tempfile.TemporaryDirectory() as folder:
                path = score.generate(PROGRAM, MODEL, chosen, pathlib.Path(folder), steps=4)[0]
                hashes.append(hashlib.sha256(score.read(path).tobytes()).hexdigest())
        self.assertEqual(hashes[0], hashes[1])

    def test_the_model_stays_small(self):
        size = sum(path.stat().st_size for path in MODEL.rglob("*") if path.is_file())
        self.assertLessEqual(size, 12e6)


if __name__ == "__main__":
    unittest.main()
