"""The model of examples/shapes draws what prompts say that it has not learnt."""

import hashlib
import json
import pathlib
import shutil
import tempfile
import unittest

import example  # first: it skips the test without numpy and Pillow
from PIL import Image

EXAMPLE = example.use("shapes")
import classify  # noqa: E402
import pictures  # noqa: E402
import score  # noqa: E402
import program  # noqa: E402
from program import PROGRAM  # noqa: E402

MODEL = EXAMPLE / "model"
COUNT = 40
# Of COUNT images; README.md has the rates of 200.
FLOORS = {"things": 0.9, "colors": 0.95, "shapes": 0.9, "positions": 0.9, "ground": 0.95}


def failed_checks(model):
    """Of the conformance suite's checks on images of a model, those that fail."""
    result = program.run("check-plugin", "qwen_image", "--json", "--model_paths", f'["{model}"]', "--height", 128,
                         "--width", 128, "--num_inference_steps", 8, "--prompt", "a red circle on a blue ground",
                         "--other_prompt", "a white star above a green square on a red ground")
    checks = [json.loads(line) for line in result.stdout.splitlines()]
    images_checked = [check for check in checks if check["check"].startswith("images: ")]
    assert len(images_checked) == 5, result.stdout + result.stderr
    return [check["check"] + ": " + check["detail"] for check in checks if not check["passed"]]


class Model(unittest.TestCase):

    def test_forty_prompts_that_were_not_learnt_are_drawn(self):
        scenes = score.unseen_scenes(COUNT)
        with tempfile.TemporaryDirectory() as folder:
            paths = score.generate(PROGRAM, MODEL, [scene.prompt() for scene in scenes],
                                   pathlib.Path(folder))
            rates = score.rates(scenes, paths)
        for name, floor in FLOORS.items():
            self.assertGreaterEqual(rates[name], floor, rates)

    def test_a_prompt_and_a_seed_give_the_same_image_alone_and_among_others(self):
        prompts = ["a red circle on a blue ground",
                   "a white star above a green square on a red ground"]
        hashes = []
        for chosen in (prompts, prompts[:1]):
            with tempfile.TemporaryDirectory() as folder:
                path = score.generate(PROGRAM, MODEL, chosen, pathlib.Path(folder), steps=4)[0]
                hashes.append(hashlib.sha256(score.read(path).tobytes()).hexdigest())
        self.assertEqual(hashes[0], hashes[1])

    def test_image_to_image_keeps_the_layout_and_follows_the_prompt(self):
        things = (pictures.Thing("red", "circle", 40, 80, 22),
                  pictures.Thing("blue", "square", 92, 48, 22))
        scene = pictures.Scene(things, "left of", "green", "")
        prompt = pictures.Scene(things, "left of", "green", "striped ").prompt()
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            Image.fromarray(pictures.paint(scene)).save(folder / "input.png")
            drawn, = score.generate(PROGRAM, MODEL, [prompt], folder, extra=(
                "--input_image", folder / "input.png", "--denoising_strength", 0.3))
            seen = classify.classify(score.read(drawn))
        self.assertEqual(seen.pattern, "striped ")
        found = {(thing.color, thing.shape): (thing.x, thing.y) for thing in seen.things}
        self.assertEqual(set(found), {("red", "circle"), ("blue", "square")})
        for thing in things:
            x, y = found[thing.color, thing.shape]
            self.assertLess(abs(x - thing.x) + abs(y - thing.y), 10)

    def test_a_resumed_lora_draws_what_an_uninterrupted_one_draws(self):
        data = EXAMPLE / "hatched"
        settings = ("--dataset_base_path", data, "--dataset_metadata_path", data / "metadata.csv",
                    "--lora_base_model", "dit", "--lora_rank", 8, "--learning_rate", 3e-3,
                    "--batch_size", 4, "--save_steps", 10, "--quiet")
        drawn = []
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for run, stops in (("straight", (20,)), ("resumed", (10, 20))):
                for steps in stops:
                    score.run(PROGRAM, "train", MODEL, *settings, "--output_path", folder / run,
                              "--cache_path", folder / "cache", "--resume", "latest",
                              "--max_train_steps", steps)
                path, = score.generate(PROGRAM, MODEL, ["a white star on a red ground"],
                                       folder / run, steps=6,
                                       extra=("--lora", folder / run / "step-20.safetensors"))
                drawn.append(score.read(path).tobytes())
            plain, = score.generate(PROGRAM, MODEL, ["a white star on a red ground"], folder,
                                    steps=6)
            self.assertNotEqual(score.read(plain).tobytes(), drawn[0])
        self.assertEqual(drawn[0], drawn[1])

    def test_the_conformance_suite_is_content_with_its_images(self):
        self.assertEqual(failed_checks(MODEL), [])

    def test_the_conformance_suite_sees_a_broken_encoder(self):
        with tempfile.TemporaryDirectory() as name:
            model = pathlib.Path(name) / "model"
            shutil.copytree(MODEL, model)
            file = model / "vae" / "diffusion_pytorch_model.safetensors"
            data = bytearray(file.read_bytes())
            begin = 8 + int.from_bytes(data[:8], "little")
            for tensor, entry in json.loads(data[8:begin]).items():
                if tensor.startswith("encoder."):
                    first, last = (begin + offset for offset in entry["data_offsets"])
                    data[first:last] = bytes(last - first)
            file.write_bytes(data)
            failed = failed_checks(model)
        self.assertTrue(any("the VAE gives back what it gets" in line for line in failed), failed)

    def test_the_model_stays_small(self):
        size = sum(path.stat().st_size for path in MODEL.rglob("*") if path.is_file())
        self.assertLessEqual(size, 12e6)


if __name__ == "__main__":
    unittest.main()
