"""What stands beside a clip through the program: a sound, a clip, a padded image, texts and numbers in lists.

    beside_test.py PLUGIN WRITE_MODEL
"""
import json
import pathlib
import shutil
import sys
import tempfile
import unittest

import numpy as np
import program
from PIL import Image
from sounds import sine, wav
from tiny_run import pixels

PLUGIN, WRITE_MODEL = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
COMPONENTS = ("text_encoder", "vae", "dit", "dit_low")
HAS_VIDEO = (program.PROGRAM.parent.parent / "lib/libatelier_video.so").is_file()


class Beside(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_beside_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        program.run_line([WRITE_MODEL, PLUGIN, str(cls.folder / "model")], code=0)
        cls.model = ["--plugin", PLUGIN, "--model_paths",
                     json.dumps([str(cls.folder / "model" / part) for part in COMPONENTS])]
        # Five frames at 8 a second are 0.625 s.
        (cls.folder / "long.wav").write_bytes(wav(sine(440, 2, 44100), 44100))
        (cls.folder / "same.wav").write_bytes(wav(sine(440, 0.625, 44100), 44100))
        (cls.folder / "short.wav").write_bytes(wav(sine(440, 0.3, 44100), 44100))
        (cls.folder / "silent.wav").write_bytes(wav(np.zeros(16000)))
        Image.new("RGB", (30, 90), (200, 30, 60)).save(cls.folder / "tall.png")
        frames = [Image.new("RGB", (24, 16), (60 * i, 40, 90)) for i in range(3)]
        frames[0].save(cls.folder / "three.gif", save_all=True, append_images=frames[1:], duration=250)

    def generate(self, *more, code=0):
        usual = {"--num_frames": 5, "--output": "x.png"}
        usual = [word for flag in usual if flag not in more for word in (flag, usual[flag])]
        flags = ["generate", *self.model, "--prompt", "a cat", "--height", 16, "--width", 24, "--num_inference_steps", 2,
                 "--seed", 3, *usual]
        if code == 0:
            for file in self.folder.glob("x*"):
                file.unlink()
        result = program.run(*flags, *more, code=code, cwd=self.folder)
        return result.stdout + result.stderr

    def drawn(self, *more):
        said = self.generate(*more)
        return [pixels(self.folder / f"x_000{i}.png") for i in range(5)], said

    def refused(self, *more):
        said = self.generate(*more, code=2)
        self.assertNotIn("denoise", said)
        return said

    def told(self, file):
        return json.loads(program.run("inspect", "--json", file, code=0, cwd=self.folder).stdout)

    @unittest.skipUnless(HAS_VIDEO, "built without FFmpeg")
    def test_a_sound_leads_and_is_written_into_the_clip(self):
        plain, _ = self.drawn()
        led, said = self.drawn("--music", "long.wav")
        self.assertNotEqual(plain, led)
        self.assertIn("x.png: has no sound beside it, which .mp4 files have", said)
        sound = self.told("long.wav")
        self.assertEqual(("sound", "wav", "pcm_s16le", 1, 44100, 2.0), tuple(
            sound[key] for key in ("kind", "format", "codec", "channels", "sample_rate", "duration_s")))
        self.assertIn("wav, pcm_s16le, 1 channel, 44100 samples a second, 2 s",
                      program.run("inspect", "long.wav", code=0, cwd=self.folder).stdout)
        # What is longer is cut, and what is shorter has silence behind it.
        self.assertEqual(led, self.drawn("--music", "same.wav")[0])
        self.assertNotEqual(led, self.drawn("--music", "short.wav")[0])
        self.assertNotEqual(led, self.drawn("--music", "silent.wav")[0])
        self.generate("--music", "long.wav", "--output", "sounding.mp4")
        self.assertTrue(self.told("sounding.mp4").get("sound"))
        self.assertEqual(5, self.told("sounding.mp4")["frames"])
        # A clip with sound gives its own.
        again, _ = self.drawn("--music", "sounding.mp4")
        self.assertNotEqual(plain, again)
        said = self.generate("--music", "long.wav", "--output", "x.webp")
        self.assertIn("x.webp: has no sound beside it", said)
        self.generate("--output", "y.mp4")
        self.assertFalse(self.told("y.mp4").get("sound"))

    @unittest.skipUnless(HAS_VIDEO, "built without FFmpeg")
    def test_what_is_no_sound_is_told_before_anything_is_loaded(self):
        whole = (self.folder / "long.wav").read_bytes()
        (self.folder / "cut.wav").write_bytes(whole[:5000])
        (self.folder / "empty.wav").write_bytes(b"")
        for name, says in (("tall.png", "an image, and no sound"), ("cut.wav", "is cut short"), ("none.wav", "No such file"),
                           ("empty.wav", "the file is empty"), (program.REPOSITORY / "tests/host/media/clips/plain.mp4",
                                                                "holds no sound")):
            said = self.refused("--music", name)
            self.assertIn("--music: ", said)
            self.assertIn(says, said)

    def test_a_clip_beside_is_mirrored_at_its_rate(self):
        # Three frames of a quarter of a second at 4 a second are three, and their mirror has five.
        led, _ = self.drawn("--guide", "three.gif")
        frames = [Image.new("RGB", (24, 16), (60 * i, 40, 90)) for i in (0, 1, 2, 1, 0)]
        frames[0].save(self.folder / "five.gif", save_all=True, append_images=frames[1:], duration=250)
        self.assertEqual(led, self.drawn("--guide", "five.gif")[0])
        self.assertNotEqual(led, self.drawn()[0])

    def test_an_image_is_padded(self):
        padded = Image.new("RGB", (12, 8), (127, 127, 127))
        with Image.open(self.folder / "tall.png") as tall:
            padded.paste(tall.resize((2, 8), Image.Resampling.LANCZOS), (5, 0))
        padded.save(self.folder / "padded.png")
        led, _ = self.drawn("--panel", "tall.png")
        self.assertEqual(led, self.drawn("--panel", "padded.png")[0])
        self.assertNotEqual(led, self.drawn()[0])

    def test_texts_may_be_choices(self):
        left, right = (self.drawn("--direction", way)[0] for way in ("left", "right"))
        self.assertNotEqual(left, right)
        self.assertIn('--direction: "rigth" is not one of "left", "right"; did you mean right?', self.refused("--direction", "rigth"))
        lines = self.folder / "lines.jsonl"
        lines.write_text('{"direction": "up"}\n')
        said = self.generate("--prompts_file", lines, code=2)
        self.assertIn('lines.jsonl:1: direction: "up" is not one of "left", "right"', said)
        helped = program.run("generate", "--plugin", PLUGIN, "--help", code=0).stdout
        self.assertIn("--direction left|right", helped)
        shown = program.run("plugins", "show", PLUGIN, code=0).stdout
        self.assertRegex(shown, "--direction +text +train and generate, one of left, right; where it goes")
        self.assertRegex(shown, "--label_scales +reals")

    def test_lists_of_texts_and_numbers(self):
        labels = ["--labels", "one", "--labels", "two"]
        flagged = self.drawn(*labels, "--label_scales", "0.5", "--label_scales", "2")[0]
        self.assertEqual(flagged, self.drawn(*labels, "--label_scales", "0.5,2")[0])
        self.assertEqual(flagged, self.drawn(*labels, "--label_scales", "[0.5, 2]")[0])
        self.assertNotEqual(flagged, self.drawn(*labels, "--label_scales", "0.5,3")[0])
        self.assertNotEqual(flagged, self.drawn(*labels)[0])
        config = self.folder / "config.toml"
        config.write_text('labels = ["one", "two"]\nlabel_scales = [0.5, 2]\n')
        self.assertEqual(flagged, self.drawn("--config", config)[0])
        self.assertIn("--label_scales: 1 number is given, and 2 of labels; give as many of both",
                      self.refused(*labels, "--label_scales", "0.5"))
        self.assertIn("2 numbers are given, and none of labels", self.refused("--label_scales", "1,2"))
        self.assertIn('"wide" is no number', self.refused(*labels, "--label_scales", "wide,1"))
        self.assertIn("4 texts are given, at most 3 are expected", self.refused(*labels, *labels))

    def test_each_text_of_a_list_is_counted(self):
        long = "x" * 70
        said = self.refused("--labels", "short", "--labels", long)
        self.assertIn("--labels: 71 tokens, at most 64 are encoded; shorten it, or pass --truncate_captions", said)
        self.assertIn("1 text has more than 64 tokens and is cut there; the longest has 71",
                      self.generate("--labels", "short", "--labels", long, "--truncate_captions"))

    def test_pictures_say_what_stood_beside(self):
        self.generate("--labels", "one", "--label_scales", "0.5", "--direction", "left", "--num_frames", 1)
        record = json.loads(self.told("x.png")["text"]["atelier"])
        self.assertEqual((["one"], [0.5], "left"), tuple(record[key] for key in ("labels", "label_scales", "direction")))

    def dataset(self, name, rows, *extra):
        table = self.folder / f"{name}.jsonl"
        table.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return [*self.model, "--dataset_base_path", self.folder, "--dataset_metadata_path", table, "--num_frames", 5,
                "--output_path", self.folder / name, "--extra_inputs", ",".join(extra)]

    def cache(self, name, rows, *extra, code=0):
        result = program.run("cache", *self.dataset(name, rows, *extra), "--quiet", code=code, cwd=self.folder)
        if code != 0:
            return result.stdout + result.stderr
        return json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))

    def entries(self, name, stage):
        return {file.name for file in (self.folder / name / "cache" / stage).glob("*.safetensors")}

    @unittest.skipUnless(HAS_VIDEO, "built without FFmpeg")
    def test_rows_have_sounds_clips_and_lists(self):
        self.generate("--output", "walk.webp", "--num_frames", 11)
        row = {"video": "walk.webp", "prompt": "a walk", "music": "long.wav", "guide": "three.gif", "panel": "tall.png",
               "direction": "left", "labels": ["one", "two"], "label_scales": [1, 0.5]}
        extra = ("music", "guide", "panel", "direction", "labels", "label_scales")
        self.cache("rows", [row], *extra)
        self.assertEqual((1, 1), tuple(len(self.entries("rows", stage)) for stage in ("beside", "labels")))
        # Another sound of the same name is another entry, and nothing else is encoded again.
        shutil.copy(self.folder / "silent.wav", self.folder / "other.wav")
        self.cache("rows", [{**row, "music": "other.wav"}], *extra)
        self.assertEqual((2, 1), tuple(len(self.entries("rows", stage)) for stage in ("beside", "labels")))
        self.assertEqual(1, len(self.entries("rows", "latents")))
        # Each piece of a clip has what lies beside it.
        program.run("cache", *self.dataset("pieces", [row], *extra), "--frame_extraction", "chunk", code=0, cwd=self.folder)
        self.assertEqual(2, len(self.entries("pieces", "beside")))
        program.run("train", *self.dataset("rows", [row], *extra), "--lora_base_model", "dit", "--lora_rank", 2,
                    "--max_train_steps", 2, "--save_steps", 2, code=0, cwd=self.folder)
        self.assertTrue(list((self.folder / "rows").glob("step-2*")))

    @unittest.skipUnless(HAS_VIDEO, "built without FFmpeg")
    def test_rows_that_are_wrong_are_told(self):
        row = {"image": "tall.png", "prompt": "a walk"}
        said = self.cache("wrong", [{**row, "music": "tall.png"}, {**row, "music": "none.wav"},
                                    {**row, "music": "long.wav"}], "music", code=2)
        self.assertIn("wrong.jsonl:1 [music]: ", said)
        self.assertIn("an image, and no sound", said)
        self.assertIn("wrong.jsonl:2 [music]: ", said)
        said = self.cache("wrong", [{**row, "direction": "up"}], "direction", code=2)
        self.assertIn('wrong.jsonl:1 [direction]: "up" is not one of "left", "right"', said)
        said = self.cache("wrong", [{**row, "labels": ["a", "b"], "label_scales": 1}], "labels", "label_scales", code=2)
        self.assertIn("wrong.jsonl:1 [label_scales]: 1 number is given, and 2 of labels", said)
        said = self.cache("wrong", [{**row, "labels": ["a", "y" * 80]}], "labels", code=2)
        self.assertIn("wrong.jsonl:1 [labels]: 81 tokens, at most 64 are encoded", said)


if __name__ == "__main__":
    unittest.main()
