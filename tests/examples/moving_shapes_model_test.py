"""The model of examples/moving_shapes makes clips of prompts that it has not learnt."""

import json
import pathlib
import tempfile
import unittest

import example  # first: it skips the test without numpy and Pillow

EXAMPLE = example.use("moving_shapes")
import clips  # noqa: E402
import judge  # noqa: E402
import score  # noqa: E402
import program  # noqa: E402

MODEL = EXAMPLE / "model"
SCENES = clips.split_scenes()[1][:3]


class Model(unittest.TestCase):

    def test_three_prompts_that_were_not_learnt_are_followed(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = score.generate(program.PROGRAM, MODEL, [scene.prompt() for scene in SCENES], pathlib.Path(folder))
            for scene, path in zip(SCENES, paths):
                clip = judge.read(path)
                self.assertEqual((clips.FRAMES, clips.SIZE, clips.SIZE, 3), clip.shape)
                self.assertEqual(judge.Seen(scene.color, scene.shape, scene.direction, scene.ground),
                                 judge.classify(clip), scene.prompt())

    def test_it_is_told_as_two_experts(self):
        with tempfile.TemporaryDirectory() as folder:
            line = program.command("generate", plugin="wan", model_paths=json.dumps([str(MODEL)]), prompt="a star",
                                   height=clips.SIZE, width=clips.SIZE, num_frames=5, num_inference_steps=8,
                                   output=pathlib.Path(folder) / "clip.gif")
            ran = program.run_line(line, code=0)
        self.assertRegex(ran.stderr, r"(?m)^load dit: ")
        self.assertRegex(ran.stderr, r"(?m)^load dit2: ")

    def test_the_model_stays_small(self):
        self.assertLessEqual(sum(path.stat().st_size for path in MODEL.rglob("*") if path.is_file()), 12e6)


if __name__ == "__main__":
    unittest.main()
