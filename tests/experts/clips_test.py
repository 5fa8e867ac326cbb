"""Clips in datasets through the program, learnt by a tiny family of two experts.

    clips_test.py PLUGIN WRITE_MODEL
"""
import json
import pathlib
import shutil
import struct
import sys
import tempfile
import unittest

import program
from PIL import Image
from tiny_run import data_of

PLUGIN, WRITE_MODEL = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
COMPONENTS = ("text_encoder", "vae", "dit", "dit_low")
CLIPS = program.REPOSITORY / "tests/host/media/clips"
HAS_VIDEO = (program.PROGRAM.parent.parent / "lib/libatelier_video.so").is_file()
UNIT_MATRIX = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
# Of Matroska: what is in front of everything, with its length behind it, and of frames.
SEGMENT, ANY_LENGTH, CLUSTER = b"\x18\x53\x80\x67", b"\x01" + b"\xff" * 7, b"\x1f\x43\xb6\x75"


def frame(number, size=(24, 16)):
    """A square that moves."""
    image = Image.new("RGB", size, (number * 20 % 256, 40, 90))
    image.paste((250, 220, 10 * number % 256), (number, 4, number + 6, 10))
    return image


def count_frames(path):
    """Frames of a picture, an animation, or a video."""
    if path.suffix in (".png", ".gif", ".webp"):
        with Image.open(path) as image:
            return getattr(image, "n_frames", 1)
    return json.loads(program.run("inspect", "--json", path).stdout)["frames"]


def latest(words):
    """The words of a command line in which a flag that is given again counts for the one before."""
    words = [str(word) for word in words]
    for at in [i for i, word in enumerate(words) if word.startswith("--")][::-1]:
        if words[at] in words[at + 1:]:
            del words[at:at + 2]
    return words


class Clips(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_clips_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        program.run_line([WRITE_MODEL, PLUGIN, str(cls.folder / "model")], code=0)
        cls.data = cls.folder / "data"
        (cls.data / "walk").mkdir(parents=True)
        for i in range(12):
            frame(i).save(cls.data / "walk" / f"{i}.png")
        frames = [frame(2 * i) for i in range(7)]
        frames[0].save(cls.data / "run.gif", save_all=True, append_images=frames[1:], duration=100)
        frame(3).save(cls.data / "still.png")

    def run_program(self, *arguments, code=0):
        result = program.run(*latest(arguments), code=code, cwd=self.folder)
        return result.stdout + result.stderr

    def flags(self, name, table, *more):
        """Flags of a dataset whose results lie in the folder `name`."""
        file = self.folder / f"{name}.csv"
        file.write_text(table)
        paths = json.dumps([str(self.folder / "model" / part) for part in COMPONENTS])
        return ["--plugin", PLUGIN, "--model_paths", paths, "--dataset_base_path", self.data,
                "--dataset_metadata_path", file, "--num_frames", 5, "--output_path", self.folder / name,
                *(str(word) for word in more)]

    def train(self, name, table, *more, code=0):
        said = self.run_program("train", *self.flags(name, table), "--lora_base_model", "dit,dit_low", "--lora_rank", 2,
                                "--learning_rate", 1e-1, *more, code=code)
        return said if code else self.folder / name

    def cache(self, name, table, *more):
        said = self.run_program("cache", *self.flags(name, table), "--quiet", *more).splitlines()
        return json.loads(next(line for line in said if line.startswith("{")))

    def latents(self, name):
        return {file.name for file in (self.folder / name / "cache" / "latents").glob("*.safetensors")}

    TABLE = "video,image,prompt\nwalk,,a walk\nrun.gif,,a run\n,still.png,a stand\n"

    def test_latents_are_cached_by_ranges_of_frames(self):
        told = self.cache("ranges", self.TABLE, "--frame_extraction", "chunk")
        self.assertEqual((4, 4, 3), (told["items"], told["encoded_images"], told["encoded_texts"]))
        chunks = self.latents("ranges")
        self.assertEqual(4, len(chunks))
        again = self.cache("ranges", self.TABLE, "--frame_extraction", "chunk")
        self.assertEqual((0, 0), (again["encoded_images"], again["encoded_texts"]))
        self.assertEqual(told["fingerprint"], again["fingerprint"])
        # Of 0, 3 and 6 of one clip and 0 of the other, the beginnings are there.
        slid = self.cache("ranges", self.TABLE, "--frame_extraction", "slide", "--frame_stride", 3)
        self.assertEqual((5, 2), (slid["items"], slid["encoded_images"]))
        self.assertLess(chunks, self.latents("ranges"))
        manifest = json.loads((self.folder / "ranges" / "cache" / "manifest.json").read_text())
        places = [item["place"] for item in manifest["items"]]
        self.assertTrue(places[1].endswith("ranges.csv:2 (frames 3 to 7)"), places)
        self.assertEqual([5, 5, 5, 5, 1], [item.get("frames", 1) for item in manifest["items"]])
        self.assertEqual([[16, 3, 8, 12]] * 4 + [[16, 1, 8, 12]], [item["latents_shape"] for item in manifest["items"]])

    def test_pieces_of_several_lengths_are_cached_and_learnt(self):
        told = self.cache("one", self.TABLE, "--frame_extraction", "chunk")
        ones = self.latents("one")
        manifest = json.loads((self.folder / "one" / "cache" / "manifest.json").read_text())
        self.assertEqual(5, manifest["options"]["num_frames"])
        shutil.copytree(self.folder / "one" / "cache", self.folder / "several" / "cache")
        # Of 12 frames 12, 2 and 1 pieces, of the 5 of the other clip 5 and 1, and the picture.
        several = ["--frame_extraction", "chunk", "--num_frames", "9,1,5,5"]
        more = self.cache("several", self.TABLE, *several)
        self.assertEqual((22, 4), (more["items"], told["items"]))
        self.assertEqual(22 - 4, more["encoded_images"])
        self.assertLess(ones, self.latents("several"))
        manifest = json.loads((self.folder / "several" / "cache" / "manifest.json").read_text())
        self.assertEqual([1, 5, 9], manifest["options"]["num_frames"])
        self.assertEqual([1] * 12 + [5] * 2 + [9] + [1] * 5 + [5] + [1],
                         [item.get("frames", 1) for item in manifest["items"]])
        self.assertEqual(0, self.cache("several", self.TABLE, *several)["encoded_images"])
        said = self.run_program("cache", *self.flags("short", self.TABLE), *several, "--dry_run")
        self.assertIn("short.csv:3 [video]: has 5 frames of the 9 of --num_frames; pieces of these lengths are learnt: 1, 5",
                      said)
        said = self.train("odd", self.TABLE, "--num_frames", "5,6,8", code=2)
        for number in (6, 8):
            self.assertIn(f"--num_frames: {number} is not one more than a multiple of 2", said)

    def test_several_lengths_are_trained_resumed_and_planned(self):
        flags = ["--frame_extraction", "chunk", "--num_frames", "9,1,5", "--batch_size", 2, "--save_steps", 3]
        straight = self.train("lengths", self.TABLE, *flags, "--max_train_steps", 6)
        self.assertIn("num_frames = [9, 1, 5]", (straight / "config.toml").read_text())
        stopped = self.train("lengths_stopped", self.TABLE, *flags, "--max_train_steps", 3)
        self.run_program("train", "--resume", stopped, "--max_train_steps", 6)
        config = self.folder / "lengths.toml"
        config.write_text((straight / "config.toml").read_text().replace(f'"{straight}"', f'"{self.folder}/of_file"'))
        self.run_program("train", "--config", config)
        self.run_program("train", *self.flags("of_cache", self.TABLE), "--lora_base_model", "dit,dit_low", "--lora_rank", 2,
                         "--learning_rate", 1e-1, *flags, "--max_train_steps", 6, "--task", "sft:train",
                         "--dataset_base_path", straight / "cache", "--dataset_metadata_path", "")
        for part in ("dit", "dit_low"):
            name = f"step-6.lora.{part}.safetensors"
            for other in ("lengths_stopped", "of_file", "of_cache"):
                self.assertEqual(data_of(straight / name), data_of(self.folder / other / name), other)

        def planned(frames):
            self.run_program("plan", "train", *self.flags("planned", self.TABLE), "--lora_base_model", "dit,dit_low",
                             "--num_frames", frames, "--vram", "1GiB", "--json", "plan.json")
            return (self.folder / "plan.json").read_text()

        # The longest is what a plan is for; how many samples there are is said beside it.
        self.assertEqual(json.loads(planned("9"))["device_bytes"], json.loads(planned("1,9,5"))["device_bytes"])
        self.assertLess(json.loads(planned("1,5"))["device_bytes"], json.loads(planned("1,9"))["device_bytes"])

    def test_previews_are_as_long_as_the_longest_pieces(self):
        (self.folder / "prompts.txt").write_text("a walk\n")
        flags = ["--frame_extraction", "chunk", "--sample_prompts", self.folder / "prompts.txt", "--sample_at_first",
                 "--max_train_steps", 1]
        for name, frames in (("1,9,5", 9), ("1", 1), ("5", 5)):
            run = self.train(f"previews_{frames}", self.TABLE, *flags, "--num_frames", name)
            made = [path for path in (run / "samples").rglob("*") if path.is_file()]
            self.assertEqual({frames}, {count_frames(path) for path in made}, made)

    def test_pictures_are_cached_as_before_whatever_their_column(self):
        told = self.cache("as_image", "image,prompt\nstill.png,a stand\n")
        self.assertEqual(told["fingerprint"], self.cache("as_video", "video,prompt\nstill.png,a stand\n")["fingerprint"])
        self.assertEqual(self.latents("as_image"), self.latents("as_video"))
        manifest = json.loads((self.folder / "as_image" / "cache" / "manifest.json").read_text())
        self.assertNotIn("num_frames", manifest["options"])

    def test_a_cache_is_trained_from_as_the_dataset_is(self):
        flags = ["--max_train_steps", 3, "--save_steps", 3, "--frame_extraction", "chunk", "--batch_size", 2]
        straight = self.train("straight", self.TABLE, *flags)
        self.cache("first", self.TABLE, "--frame_extraction", "chunk")
        second = self.train("second", self.TABLE, *flags, "--task", "sft:train", "--dataset_base_path",
                            self.folder / "first" / "cache", "--dataset_metadata_path", "")
        for part in ("dit", "dit_low"):
            name = f"step-3.lora.{part}.safetensors"
            self.assertEqual(data_of(straight / name), data_of(second / name))

    def test_random_pieces_follow_from_the_seed_and_go_on_when_resumed(self):
        flags = ["--frame_extraction", "random", "--frame_sample", 3, "--save_steps", 2, "--num_epochs", 4]
        table = "video,prompt\nwalk,a walk\n"
        straight = self.train("drawn", table, *flags)
        again = self.train("again", table, *flags, "--max_train_steps", 2)
        self.run_program("train", "--resume", again, "--max_train_steps", 4)
        fixed = self.train("fixed", table, *flags, "--frame_extraction", "head")
        seeded = self.train("seeded", table, *flags, "--seed", 5)
        self.assertEqual(3, len(self.latents("drawn")))
        self.assertEqual(1, len(self.latents("fixed")))
        self.assertNotEqual(self.latents("drawn"), self.latents("seeded"))

        def learnt(run):
            return [data_of(file) for file in sorted(run.glob("step-4*.safetensors"))]

        self.assertTrue(learnt(straight))
        self.assertEqual(learnt(straight), learnt(again))
        self.assertNotEqual(learnt(straight), learnt(fixed))
        self.assertNotEqual(learnt(straight), learnt(seeded))

    def test_the_first_image_comes_from_the_clip(self):
        extra = ["--extra_inputs", "first_image", "--max_train_steps", 2, "--save_steps", 2]
        runs = [self.train("absent_first", "video,prompt\nwalk,a walk\n", *extra),
                self.train("given_first", "video,prompt,first_image\nwalk,a walk,walk/0.png\n", *extra),
                self.train("other_first", "video,prompt,first_image\nwalk,a walk,walk/5.png\n", *extra)]
        learnt = [[data_of(file) for file in sorted(run.glob("step-2*.safetensors"))] for run in runs]
        self.assertTrue(learnt[0])
        self.assertEqual(learnt[0], learnt[1])
        self.assertNotEqual(learnt[0], learnt[2])

    def test_a_dry_run_and_a_plan_count_frames(self):
        said = self.run_program("cache", *self.flags("dry", self.TABLE), "--dry_run")
        self.assertIn("24x16x5", said)
        self.assertIn("24x16 ", said)

        def planned(frames):
            self.run_program("plan", "train", *self.flags("planned", self.TABLE, "--lora_base_model", "dit"),
                             "--num_frames", frames, "--vram", "1GiB", "--json", "plan.json")
            phases = json.loads((self.folder / "plan.json").read_text())["phases"]
            return max(phase["working_bytes"] for phase in phases if phase["name"] == "train")

        self.assertLess(planned(1), planned(5))
        self.assertLess(planned(5), planned(11))

    def draw(self, name, *more, code=0, parts=None):
        """The frames that are made, as images, or what is said of a mistake."""
        output = self.folder / "drawn" / name
        output.mkdir(parents=True)
        folders = parts or {part: self.folder / "model" / part for part in COMPONENTS}
        said = self.run_program("generate", "--plugin", PLUGIN, "--model_paths",
                                json.dumps([str(path) for path in folders.values()]), "--prompt", "a walk", "--seed", 3,
                                "--num_inference_steps", 4, "--output", output / "out.png", *more, code=code)
        return said if code else [Image.open(file) for file in sorted(output.glob("*.png"))]

    @staticmethod
    def values(frames):
        return [image.convert("RGB").tobytes() for image in frames]

    def test_what_is_made_of_a_clip_has_its_length_and_shape(self):
        cases = ((["run.gif"], 5, (24, 16)),  # 0.7 s at the model's 8 frames a second
                 (["run.gif", "--fps", 10], 7, (24, 16)),
                 (["run.gif", "--num_frames", 3, "--height", 32], 3, (48, 32)),
                 (["walk", "--width", 12, "--height", 16], 11, (12, 16)),
                 (["still.png"], 1, (24, 16)))
        for number, (flags, count, size) in enumerate(cases):
            drawn = self.draw(f"shape_{number}", "--draft", self.data / flags[0], *flags[1:])
            self.assertEqual((count, size), (len(drawn), drawn[0].size), flags)

    def test_a_clip_is_begun_from_by_its_times(self):
        picked = self.folder / "picked"
        picked.mkdir()
        gif = Image.open(self.data / "run.gif")
        for i, number in enumerate((0, 1, 3, 4, 5)):
            gif.seek(number)
            gif.convert("RGB").save(picked / f"{i}.png")
        drawn = [self.values(self.draw(f"times_{path.stem}", "--draft", path, "--denoising_strength", 0.5))
                 for path in (self.data / "run.gif", picked)]
        self.assertEqual(5, len(drawn[0]))
        self.assertEqual(drawn[0], drawn[1])
        other = self.draw("times_other", "--draft", self.data / "walk", "--num_frames", 5, "--denoising_strength", 0.5)
        self.assertNotEqual(drawn[0], self.values(other))

    def test_the_level_that_a_clip_begins_at_says_which_experts_run(self):
        folders = {part: self.folder / "model" / part for part in COMPONENTS}
        other = self.folder / "other" / "dit"
        shutil.copytree(folders["dit_low"], other)
        clip = ["--draft", self.data / "run.gif", "--denoising_strength"]
        for strength, is_reached in ((0.25, False), (0.75, True)):
            drawn = [self.values(self.draw(f"begun_{strength}_{i}", *clip, strength, parts=parts))
                     for i, parts in enumerate((folders, folders | {"dit": other}))]
            self.assertEqual(is_reached, drawn[0] != drawn[1], strength)
        # Of four steps 0.7 are two, and not three as of an image.
        halves = [self.values(self.draw(f"part_{strength}", *clip, strength)) for strength in (0.5, 0.7)]
        self.assertEqual(halves[0], halves[1])

    def test_a_clip_to_begin_from_is_checked_beforehand(self):
        (self.data / "no_video.mp4").write_text("no video")
        cases = ((["--draft", self.data / "run.gif", "--num_frames", 9],
                  "run.gif has 5 frames at 8 a second, and 9 are made; use --num_frames 5 or less, or a longer clip"),
                 (["--draft", self.data / "walk", "--num_frames", 13],
                  "walk has 12 frames, and 13 are made; use --num_frames 11 or less"),
                 (["--draft", self.data / "no_video.mp4"], "error: --draft: "),
                 (["--denoising_strength", 0.5], "there is no clip to start from; give one with --draft"))
        for number, (flags, said) in enumerate(cases):
            self.assertIn(said, self.draw(f"wrong_{number}", *flags, code=2))

    def test_a_plan_counts_the_clip_that_is_begun_from(self):
        def encoding(*more):
            paths = json.dumps([str(self.folder / "model" / part) for part in COMPONENTS])
            self.run_program("plan", "generate", "--plugin", PLUGIN, "--model_paths", paths, "--prompt", "a walk", "--vram",
                             "1GiB", "--json", "drawn.json", *more)
            phases = json.loads((self.folder / "drawn.json").read_text())["phases"]
            return sum(phase["working_bytes"] for phase in phases if phase["name"].startswith("encode"))

        clip = ["--draft", self.data / "walk", "--num_frames"]
        self.assertLess(encoding("--num_frames", 5), encoding(*clip, 5))
        self.assertLess(encoding(*clip, 5), encoding(*clip, 11))

    def test_what_is_wrong_with_clips_is_told_with_rows(self):
        whole = (self.data / "run.gif").read_bytes()
        (self.data / "cut.gif").write_bytes(whole[:len(whole) * 2 // 3])
        (self.data / "text.mp4").write_text("no video")
        (self.data / "empty").mkdir(exist_ok=True)
        said = self.train("wrong", "video,prompt\ncut.gif,a\ntext.mp4,b\nempty,c\ngone.mp4,d\nwalk,e\n",
                          "--validate", "full", code=2)
        for line in (2, 3, 4, 5):
            self.assertIn(f"wrong.csv:{line} [video]: ", said)
        self.assertNotIn("wrong.csv:6", said)
        said = self.train("odd", self.TABLE, "--num_frames", 6, code=2)
        self.assertIn("--num_frames: 6 is not one more than a multiple of 2; use 5 or 7", said)
        # 0.7 s at the family's 8 frames a second.
        said = self.run_program("cache", *self.flags("short", self.TABLE), "--num_frames", 11, "--dry_run")
        self.assertIn("short.csv:3 [video]: has 5 frames of the 11 of --num_frames; 5 frames are learnt", said)

    def write(self, name, content):
        (self.data / name).write_bytes(content)
        return name

    def hostile_videos(self):
        """Names of videos, with what is told of each; those that are only odd are learnt."""
        plain, matroska = (CLIPS / "plain.mp4").read_bytes(), (CLIPS / "plain.mkv").read_bytes()
        at, one = plain.rindex(UNIT_MATRIX), 1 << 16

        def turned(name, a, b, c, d):
            matrix = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
            return self.write(name, plain[:at] + matrix + plain[at + len(matrix):])

        for name in ("variable.mp4", "sound_alone.mp4", "two_sizes.mkv"):
            shutil.copy(CLIPS / name, self.data / name)
        hurt = bytearray(plain)
        middle = (plain.index(b"mdat") + plain.index(b"moov")) // 2
        hurt[middle:middle + 200] = b"\xff" * 200
        begin, end = matroska.index(SEGMENT) + len(SEGMENT), matroska.index(CLUSTER)
        playlist = b"#EXTM3U\n#EXTINF:1,\n" + str(CLIPS / "plain.mp4").encode()
        return {
            "variable.mp4": "its frames are not equally long",
            turned("turned.mp4", 0, one, -one, 0): "is stored turned by 90 degrees; it is learnt as it is shown",
        }, {
            turned("tilted.mp4", one, one, -one, one): "tilted",
            self.write("short.mkv", matroska[:len(matroska) * 2 // 3]): "cut short",
            self.write("headless.mp4", plain[:len(plain) // 2]): "cut short",
            self.write("none.mkv", matroska[:begin] + ANY_LENGTH + matroska[begin + 8:end]): "cannot be opened",
            self.write("hurt.mp4", bytes(hurt)): "frame ",
            "sound_alone.mp4": "sound and no video",
            "two_sizes.mkv": "is 96x48, those before it are 64x48",
            self.write("list.mp4", playlist): "list.mp4",
            self.write("list.ffconcat", b"ffconcat version 1.0\nfile walk/0.png\n"): "list.ffconcat",
            self.write("flash.flv", b"FLV\x01" + bytes(99)): "FLV",
        }

    def hostile_pictures(self):
        frames = [frame(i) for i in range(2)]
        frames[0].save(self.data / "wide.gif", save_all=True, append_images=frames[1:], duration=100)
        wide = bytearray((self.data / "wide.gif").read_bytes())
        wide[6:10] = struct.pack("<2H", 60_000, 60_000)
        dot = b"\x2c" + struct.pack("<4HB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
        begin = b"GIF89a" + struct.pack("<2H", 1, 1) + b"\x80\x00\x00" + bytes(3) + b"\xff" * 3
        (self.data / "mixed").mkdir(exist_ok=True)
        frame(0).save(self.data / "mixed/0.png")
        frame(0, (32, 16)).save(self.data / "mixed/1.png")
        return {
            self.write("wide.gif", bytes(wide)): "60000x60000",
            self.write("long.gif", begin + dot * 1_000_001 + b"\x3b"): "limit of 1000000",
            self.write("nothing.gif", begin + b"\x3b"): "nothing.gif",
            "mixed": "1.png: is 32x16, the first frame of its folder is 24x16",
            "http://127.0.0.1/plain.mp4": "is a web address",
            "concat:walk/0.png": "No such file or directory",
        }

    def test_hostile_clips_are_told_with_rows(self):
        odd, wrong = self.hostile_videos() if HAS_VIDEO else ({}, {})
        wrong.update(self.hostile_pictures())
        rows = [*odd, *wrong, "walk"]
        table = "video,prompt\n" + "".join(f"{name},a clip\n" for name in rows)
        said = self.run_program("cache", *self.flags("hostile", table), "--dry_run", "--validate", "full",
                                code=2).splitlines()
        for line, (name, expected) in enumerate({**odd, **wrong}.items(), 2):
            with self.subTest(name):
                told = [text for text in said if f"hostile.csv:{line} [video]: " in text]
                self.assertIn(expected, "".join(told))
                self.assertEqual({name in odd}, {text.startswith("warning: ") for text in told})
        self.assertFalse([text for text in said if f"hostile.csv:{1 + len(rows)} " in text])


if __name__ == "__main__":
    unittest.main()
