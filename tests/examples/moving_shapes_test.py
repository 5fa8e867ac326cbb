"""What examples/moving_shapes draws with numpy, and what its judge sees in it."""

import collections
import pathlib
import subprocess
import sys
import tempfile
import unittest

import example  # first: it skips the test without numpy and Pillow
import numpy as np
from PIL import Image, ImageFilter

EXAMPLE = example.use("moving_shapes")
import clips  # noqa: E402
import judge  # noqa: E402

SEED, COUNT = 77, 24
PARTS = ("color", "shape", "direction", "ground", "all")


def drawn(number):
    """A scene that the model has not learnt, and a clip of it."""
    _, unseen = clips.split_scenes()
    rng = np.random.default_rng([SEED, number])
    scene = unseen[rng.integers(len(unseen))]
    return scene, clips.paint(scene, clips.path(rng, scene.direction))


def spoil(clip, number):
    """A little blur and noise, as a decoder adds them."""
    blurred = np.stack([np.asarray(Image.fromarray(frame).filter(ImageFilter.GaussianBlur(0.7)), float)
                        for frame in clip])
    noise = np.random.default_rng(number).normal(0, 6, clip.shape)
    return np.clip(blurred + noise, 0, 255).astype(np.uint8)


class Judge(unittest.TestCase):

    def test_drawn_clips_are_understood_also_with_blur_and_noise(self):
        right = collections.Counter()
        for number in range(COUNT):
            scene, clip = drawn(number)
            right.update(judge.judge(judge.classify(spoil(clip, number) if number % 2 else clip), scene))
        self.assertEqual({part: COUNT for part in PARTS}, dict(right))

    def test_a_clip_that_is_played_backwards_goes_the_other_way(self):
        other = {"left": "right", "right": "left", "up": "down", "down": "up"}
        for number in range(4):
            scene, clip = drawn(number)
            self.assertEqual(other[scene.direction], judge.classify(clip[::-1]).direction)

    def test_a_thing_that_rests_goes_nowhere(self):
        scene, clip = drawn(0)
        seen = judge.classify(np.repeat(clip[8:9], clips.FRAMES, 0))
        self.assertEqual((scene.color, scene.shape, "", scene.ground),
                         (seen.color, seen.shape, seen.direction, seen.ground))

    def test_an_empty_ground_has_no_thing(self):
        ground = np.full((clips.FRAMES, clips.SIZE, clips.SIZE, 3), clips.pictures.COLORS["green"], np.uint8)
        self.assertEqual(judge.Seen("", "", "", "green"), judge.classify(ground))

    def test_another_scene_is_not_right(self):
        for number in range(4):
            scene, _ = drawn(number)
            other, clip = drawn(number + 4)
            self.assertNotEqual(scene, other)
            self.assertFalse(all(judge.judge(judge.classify(clip), scene).values()), scene.prompt())


class Clips(unittest.TestCase):

    def test_a_clip_depends_on_seed_and_number_alone_and_its_file_keeps_it(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            clips.write(folder / "few", 2, seed=5)
            clips.write(folder / "more", 3, seed=5)
            for name in ("00000.gif", "00001.gif"):
                self.assertEqual((folder / "few" / name).read_bytes(), (folder / "more" / name).read_bytes())
            read = judge.read(folder / "more" / "00002.gif")
        self.assertTrue((read == clips.numbered_clip(5, 2)[1]).all())

    def test_scenes_that_are_scored_are_not_learnt(self):
        learnt, unseen = clips.split_scenes()
        self.assertEqual(clips.UNSEEN, len(set(unseen)))
        self.assertFalse(set(learnt) & set(unseen))
        self.assertEqual(set(clips.every_scene()), set(learnt) | set(unseen))
        self.assertTrue(all(clips.numbered_clip(1, number)[0] in learnt for number in range(20)))


class Commands(unittest.TestCase):

    def test_each_says_what_it_does(self):
        for script in ("clips.py", "score.py", "sheet.py"):
            shown = subprocess.run([sys.executable, EXAMPLE / script, "--help"], capture_output=True, text=True,
                                   check=True)
            self.assertIn(f"usage: {script}", shown.stdout)
        shown = subprocess.run(["bash", EXAMPLE / "make.sh", "--help"], capture_output=True, text=True, check=True)
        self.assertIn("usage: make.sh FOLDER", shown.stdout)

    def test_a_wrong_option_is_refused(self):
        refused = subprocess.run(["bash", EXAMPLE / "make.sh", "--fast"], capture_output=True, text=True)
        self.assertEqual(2, refused.returncode)
        self.assertIn("'--fast' is no option", refused.stderr)


if __name__ == "__main__":
    unittest.main()
