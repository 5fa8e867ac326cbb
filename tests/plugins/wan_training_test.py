"""Tiny models of Wan through the program, trained on clips: from texts and from images, with two experts.

    wan_training_test.py PLUGIN WRITE_MODEL
"""
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np
import program
from PIL import Image
from safetensors.numpy import load_file, save_file
from tiny_run import tensors

PLUGIN, WRITE_MODEL = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
ENCODERS = ("text_encoder", "vae", "tokenizer")
FOLDERS = {"dit": "transformer", "dit2": "transformer_2"}
VIDEO = program.REPOSITORY / "tests/host/media/clips/plain.mp4"  # a second of 24 frames
HAS_VIDEO = (program.PROGRAM.parent.parent / "lib/libatelier_video.so").is_file()
# A folder of 12 frames, a GIF of 1.4 s and a picture.
TABLE = "video,image,prompt\nwalk,,a walk\nrun.gif,,a run\n,still.png,a stand\n"
NAMED = ["--model_hints", json.dumps({"*": {"variant": "wan2.2-i2v-a14b"}})]


def write_tokenizer(folder):
    """Letters and </s>, which the family looks for at its place."""
    pieces = ["<pad>", "</s>", "<unk>", "\u2581", *"abcdefghijklmnopqrstuvwxyz"]
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": [[piece, -1.0 - i / 9] for i, piece in enumerate(pieces)]},
        "added_tokens": [{"id": i, "content": pieces[i], "special": True} for i in range(3)]}))


def give_images(expert):
    """Makes an expert of text to video one of image to video: a mask and a clip beside the latents."""
    weights = load_file(expert / "model.safetensors")
    embedding = weights["patch_embedding.weight"]
    shape = (embedding.shape[0], 20, *embedding.shape[2:])
    more = 0.2 * np.random.default_rng(1).standard_normal(shape, np.float32)
    weights["patch_embedding.weight"] = np.concatenate([embedding, more], axis=1)
    save_file(weights, expert / "model.safetensors")
    config = json.loads((expert / "config.json").read_text())
    config.update(in_channels=36, in_dim=36, model_type="i2v")
    (expert / "config.json").write_text(json.dumps(config))


def frame(number):
    """A square that moves, of 40 x 24 pixels."""
    image = Image.new("RGB", (40, 24), (number * 20 % 256, 40, 90))
    image.paste((250, 220, 10 * number % 256), (number, 4, number + 6, 10))
    return image


def write_model(folder):
    """The tiny model, in folders as it is published in."""
    program.run_line([WRITE_MODEL, PLUGIN, str(folder)], code=0)
    write_tokenizer(folder / "tokenizer")
    for component, name in FOLDERS.items():
        (folder / component).rename(folder / name)


def model_paths(folder):
    return json.dumps([str(folder / part) for part in (*ENCODERS, *FOLDERS.values())])


def write_walk(folder):
    """A clip as a folder of frames."""
    folder.mkdir(parents=True)
    for i in range(12):
        frame(i).save(folder / f"{i}.png")


def state(run, step):
    folder = run / f"checkpoints/step-{step:08d}"
    return {name: tensors(folder / f"{name}.safetensors") for name in ("trained", "optimizer")}


class WanTraining(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_wan_training_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        texts, images = cls.folder / "t2v", cls.folder / "i2v"
        write_model(texts)
        shutil.copytree(texts, images)
        for name in FOLDERS.values():
            give_images(images / name)
        cls.data = cls.folder / "data"
        write_walk(cls.data / "walk")
        frames = [frame(2 * i) for i in range(14)]
        frames[0].save(cls.data / "run.gif", save_all=True, append_images=frames[1:], duration=100)
        frame(3).save(cls.data / "still.png")

    def flags(self, output, *more, model="t2v", parts=(*ENCODERS, *FOLDERS.values()), table=TABLE, cache=None):
        rows = self.folder / f"{output}.csv"
        rows.write_text(table)
        paths = json.dumps([str(self.folder / model / part) for part in parts])
        data = ["--dataset_base_path", self.data, "--dataset_metadata_path", rows]
        if cache:
            data = ["--task", "sft:train", "--dataset_base_path", self.folder / cache]
        return ["--plugin", PLUGIN, "--model_paths", paths, *data, "--num_frames", 5, "--height", 16, "--width", 32,
                "--threads", 1, "--output_path", self.folder / output, *more]

    def run_program(self, *words, code=0):
        return program.run(*words, code=code, cwd=self.folder)

    def train(self, output, *more, **which):
        self.run_program("train", *self.flags(output, *more, **which))
        return self.folder / output

    def killed(self, words, run, step):
        """Ends a run without a word when it has saved `step`."""
        process = subprocess.Popen(program.command("train", *words), cwd=self.folder, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while not (run / f"checkpoints/step-{step:08d}").is_dir():
            self.assertIsNone(process.poll())
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def changed(self, run, step):
        """The experts that a step changed, in their values or in the optimizer's state."""
        before, after = state(run, step - 1), state(run, step)
        return {name.split(".")[0] for kind in after for name in after[kind] if before[kind][name] != after[kind][name]}

    def manifest(self, output):
        return json.loads((self.folder / output / "cache/manifest.json").read_text())

    LORA = ["--lora_base_model", "dit,dit2", "--lora_rank", 2, "--learning_rate", 1e-2]
    FULL = ["--trainable_models", "dit,dit2", "--learning_rate", 1e-4]
    STEPS = 7

    def check_resumed(self, name, trained, model, files, *more):
        saved = ["--max_train_steps", self.STEPS, "--save_steps", 1, "--checkpoints_total_limit", 0, "--num_epochs", 9, *more]
        whole = self.train(name, *trained, *saved, model=model)
        drawn = [self.changed(whole, step) for step in range(2, self.STEPS + 1)]
        self.assertTrue(all(len(experts) == 1 for experts in drawn), drawn)
        self.assertEqual({"dit", "dit2"}, set.union(*drawn))
        stopped = self.folder / f"{name}_killed"
        self.killed(self.flags(stopped.name, *trained, *saved, model=model), stopped, 3)
        self.assertFalse((stopped / f"checkpoints/step-{self.STEPS:08d}").is_dir())
        self.run_program("train", "--resume", stopped)
        self.assertEqual(state(whole, self.STEPS), state(stopped, self.STEPS))
        self.assertEqual(sorted(files), sorted(path.name for path in whole.glob(f"step-{self.STEPS}.*")))
        for file in files:
            self.assertEqual(tensors(whole / file), tensors(stopped / file))

    def test_a_killed_run_of_loras_of_both_experts_goes_on_to_the_bit(self):
        files = [f"step-{self.STEPS}.lora.{name}.safetensors" for name in FOLDERS]
        self.check_resumed("loras", self.LORA, "t2v", files, "--frame_extraction", "random", "--frame_sample", 3)

    def test_a_killed_run_of_whole_experts_from_images_goes_on_to_the_bit(self):
        files = [f"step-{self.STEPS}.{name}.safetensors" for name in FOLDERS]
        self.check_resumed("whole", self.FULL, "i2v", files, "--extra_inputs", "input_image", "--frame_extraction", "chunk")

    def test_pieces_are_taken_as_the_user_says(self):
        """Of 12 frames, of the 22 that a GIF of 1.4 s has at 16 a second, of a picture, and of the 16 of a video."""
        table = TABLE + ("../video.mp4,,a test\n" if HAS_VIDEO else "")
        shutil.copy(VIDEO, self.folder / "video.mp4")
        for extraction, counts in {"head": (1, 1, 1, 1), "chunk": (2, 4, 1, 3), "slide": (3, 6, 1, 4),
                                   "uniform": (2, 2, 1, 2), "random": (2, 2, 1, 2)}.items():
            self.run_program("cache", *self.flags("pieces", "--frame_extraction", extraction, "--frame_stride", 3,
                                                  "--frame_sample", 2, table=table))
            places = [item["place"].split(" (")[0][-1] for item in self.manifest("pieces")["items"]]
            self.assertEqual([places.count(line) for line in "2345"], [*counts[:3], counts[3] * HAS_VIDEO], extraction)
        shapes = {tuple(item["latents_shape"]) for item in self.manifest("pieces")["items"]}
        self.assertEqual({(16, 2, 2, 4), (16, 1, 2, 4)}, shapes)

    def test_encoders_alone_fill_the_cache_that_is_trained_from(self):
        steps = ["--max_train_steps", 2, "--save_steps", 2]
        straight = self.train("straight", *self.LORA, *steps, model="i2v")
        alone = dict(model="i2v", parts=ENCODERS)
        self.run_program("cache", *self.flags("first", *NAMED, **alone))
        items = self.manifest("first")["items"]
        given = load_file(self.folder / f"first/cache/given_clip/{items[0]['given_clip']}.safetensors")
        clip, = (value for name, value in given.items() if name == "given_clip")
        self.assertEqual((20, 2, 2, 4), clip.shape)
        self.assertTrue((clip[:4, 0] == 1).all() and (clip[:4, 1] == 0).all())
        second = self.train("second", *self.LORA, *steps, model="i2v", cache="first/cache")
        for name in FOLDERS:
            file = f"step-2.lora.{name}.safetensors"
            self.assertEqual(tensors(straight / file), tensors(second / file))

    def test_sizes_of_what_is_shown_images_are_checked_beforehand(self):
        """What is known of a clip, and is as large as that, stands beside it there."""
        said = self.run_program("train", *self.flags("sized", *self.LORA, "--max_train_steps", 1, "--vram", "32GiB",
                                                     model="i2v")).stderr
        self.assertNotIn("beforehand", said)

    def test_a_last_image_is_read_where_it_is_asked_for(self):
        """Among what is known of a clip of 5 frames it is the last of the second four."""
        clips = []
        for more in ("", ",end_image"):
            output = "last" if more else "first_alone"
            self.run_program("cache", *self.flags(output, *NAMED, "--extra_inputs", "input_image" + more, model="i2v",
                                                  parts=ENCODERS))
            item = self.manifest(output)["items"][0]["given_clip"]
            clips.append(load_file(self.folder / f"{output}/cache/given_clip/{item}.safetensors")["given_clip"])
        first, both = clips
        np.testing.assert_array_equal(first[:4, 1], 0)
        np.testing.assert_array_equal(both[:4, 1], np.array([0, 0, 0, 1]).reshape(4, 1, 1).repeat(2, 1).repeat(4, 2))
        np.testing.assert_array_equal(first[:, 0], both[:, 0])
        self.assertFalse((first[4:, 1] == both[4:, 1]).any())

    def test_encoders_alone_need_the_variant_that_they_encode_for(self):
        alone = dict(model="i2v", parts=ENCODERS)
        said = self.run_program("train", *self.flags("unnamed", "--task", "sft:data_process", *self.LORA, **alone),
                                code=2).stderr
        self.assertIn("there is no denoiser, whose variant says what is encoded; add its files", said)
        self.assertIn("""--model_hints '{"*": {"variant": "NAME"}}'""", said)
        self.assertNotIn("mistakes", said)
        wrong = ["--model_hints", json.dumps({"*": {"variant": "i2v"}})]
        said = self.run_program("cache", *self.flags("misnamed", *wrong, **alone), code=2).stderr
        self.assertIn('variant "i2v" is not known', said)
        # That of Wan 2.1 looks at its image with an encoder of its own, and demands it.
        first = ["--model_hints", json.dumps({"*": {"variant": "wan2.1-i2v-14b"}})]
        said = self.run_program("cache", *self.flags("blind", *first, **alone), code=2).stderr
        self.assertIn("is encoded by the component image_encoder, which is missing", said)

    def test_previews_are_clips(self):
        prompts = self.folder / "prompts.txt"
        prompts.write_text("a walk --f 5 --d 3 --s 2\n")
        run = self.train("shown", *self.LORA, "--max_train_steps", 1, "--sample_prompts", prompts, "--sample_at_first")
        clip, = run.rglob("step-00000000_0.*")
        self.assertIn(clip.suffix, (".mp4",) if HAS_VIDEO else (".webp", ".gif"))
        told = json.loads(self.run_program("inspect", clip, "--json").stdout)
        self.assertEqual((5, 32, 16), tuple(told[key] for key in ("frames", "width", "height")))


if __name__ == "__main__":
    unittest.main()
