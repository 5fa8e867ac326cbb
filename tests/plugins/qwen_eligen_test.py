"""Regions with prompts of their own through the program, on a tiny model: where they are given, what is wrong with them, and
that a picture or a training does not depend on where things rest and what is computed beside them. What they give is compared
with diffusers in tests/parity.
"""
import base64
import json
import re
import shlex
import unittest

import numpy as np
import program
import serving
from PIL import Image
from tiny_run import TinyRuns, factors, losses, matrices, pixels, png_size, state_of, write_tensors

PAGE = program.REPOSITORY / "plugins/qwen_image/README.md"
SIZE = dict(height=64, width=96)
WORDS = ["a red circle", "the sea"]


class Regions(TinyRuns):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.masks = []
        for number, (left, right) in enumerate(((0, 40), (30, 96), (0, 0))):
            mask = np.zeros((64, 96, 3), np.uint8)
            mask[10:60, left:right] = 255
            cls.masks.append(cls.root / f"mask{number}.png")
            Image.fromarray(mask).save(cls.masks[-1])

    def setUp(self):
        super().setUp()
        self.settings = dict(self.on_model, prompt="a picture", negative_prompt="grey", cfg_scale=3, seed=5, dtype="float32",
                             num_inference_steps=2, **SIZE)

    def entities(self, count=2):
        return dict(eligen_entity_prompts=(WORDS * 31)[:count], eligen_entity_masks=[str(self.masks[i % 3]) for i in range(count)])

    def make(self, code=0, **flags):
        """What was said, and the picture's compressed pixels. A list is a flag for each of its values."""
        flags = {**self.settings, **flags}
        words = [word for name, values in flags.items() if isinstance(values, list) for value in values
                 for word in (f"--{name}", value)]
        single = {name: value for name, value in flags.items() if not isinstance(value, list)}
        line = program.command("generate", *words, **single, output=self.dir / "out.png")
        said = program.run_line(line, code=code, cwd=self.dir).stderr
        return said, pixels(self.dir / "out.png") if code == 0 else None


class Generation(Regions):

    def test_wrong_regions_are_told_once_before_a_weight_is_read(self):
        masks = self.entities()["eligen_entity_masks"]
        for flags, what in (
            (dict(eligen_entity_prompts=WORDS, eligen_entity_masks=masks[:1]), "2 texts are given, and 1 of eligen_entity_masks"),
            (dict(eligen_entity_prompts=WORDS), "2 texts are given, and none of eligen_entity_masks"),
            (dict(eligen_entity_masks=masks), "2 files are given, and none of eligen_entity_prompts"),
            (dict(eligen_entity_prompts=["a", " "], eligen_entity_masks=masks), "--eligen_entity_prompts: text 2 is empty"),
            (dict(eligen_entity_prompts=WORDS, eligen_entity_masks=[masks[0], "away.png"]), "away.png"),
            (dict(eligen_entity_prompts=["a", "word " * 1100], eligen_entity_masks=masks),
             "tokens, at most 1024 are encoded"),
            (self.entities(62), "62 texts are given, at most 61 are expected")):
            with self.subTest(what):
                said, _ = self.make(code=2, **flags)
                self.assertEqual(1, said.count(what), said)
                self.assertIn("--eligen_entity_", said)
                self.assertNotIn("load", said)

    def test_a_text_that_is_too_long_is_cut_where_it_is_asked_for(self):
        long = dict(self.entities(), eligen_entity_prompts=["a red circle", "word " * 1100])
        said, _ = self.make(truncate_captions=True, **long)
        self.assertIn("1 text has more than 1024 tokens", said)

    def test_places_where_lists_are_given_make_the_same_picture(self):
        _, by_line = self.make(**self.entities())
        job = {"prompt": self.settings["prompt"], "output": str(self.dir / "job.png"), **self.entities()}
        jobs = self.dir / "jobs.jsonl"
        jobs.write_text(json.dumps(job) + "\n")
        flags = {name: value for name, value in self.settings.items() if name != "prompt"}
        program.run_line(program.command("generate", **flags, prompts_file=jobs), code=0, cwd=self.dir)
        self.assertEqual(by_line, pixels(self.dir / "job.png"))
        config = self.dir / "settings.toml"
        config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in self.entities().items()))
        self.assertEqual(by_line, self.make(config=config)[1])
        self.assertNotEqual(by_line, self.make()[1])

    def test_a_served_picture_is_the_one_that_is_generated(self):
        files = [base64.b64encode(mask.read_bytes()).decode() for mask in self.masks[:2]]
        wanted = {name: value for name, value in self.settings.items() if name not in self.on_model and name != "dtype"}
        with serving.Served(self.model, plugin="qwen_image", device="cpu", threads=1, dtype="float32") as server:
            job = server.ask("POST", "/v1/jobs", {**wanted, "eligen_entity_prompts": WORDS, "eligen_entity_masks": files})["id"]
            view = server.finished(job)
            self.assertEqual("done", view["state"], view)
            (self.dir / "served.png").write_bytes(server.bytes(view["files"][0]["url"]))
        self.assertEqual(self.make(**self.entities())[1], pixels(self.dir / "served.png"))

    def test_a_region_of_nothing_makes_a_picture(self):
        self.make(eligen_entity_prompts=["nothing"], eligen_entity_masks=[str(self.masks[2])])

    def test_pictures_of_a_call_are_those_of_calls_of_their_own(self):
        """Three regions, one and none, in one pass of the denoiser."""
        lists = [self.entities(3), self.entities(1), {}]
        alone = [np.asarray(Image.open(self.dir / "out.png")) for entities in lists if self.make(**entities)]
        jobs = self.dir / "jobs.jsonl"
        jobs.write_text("".join(json.dumps({"prompt": self.settings["prompt"], "output": str(self.dir / f"{i}.png"), **entities})
                                + "\n" for i, entities in enumerate(lists)))
        flags = {name: value for name, value in self.settings.items() if name != "prompt"}
        program.run_line(program.command("generate", **flags, prompts_file=jobs, batch_size=3), code=0, cwd=self.dir)
        for number, picture in enumerate(alone):
            together = np.asarray(Image.open(self.dir / f"{number}.png"))
            self.assertLessEqual(np.abs(together.astype(int) - picture).max(), 1)

    def test_streamed_blocks_make_the_same_picture(self):
        resident = self.make(**self.entities(3))[1]
        for more in (dict(device="simulated", offload="dit=host,text_encoder=host"),
                     dict(device="simulated:9MiB:1GB/s", vram="9MiB")):
            said, streamed = self.make(**self.entities(3), **more)
            self.assertEqual(resident, streamed, more)
            self.assertRegex(said, "dit: [01] of 2 blocks stayed on the device")
            self.assertNotIn("out of memory", said)

    def test_the_lines_of_the_page_make_pictures(self):
        """As they stand in the plugin's page, of fewer steps and small pictures."""
        section = PAGE.read_text().split("\n## EliGen\n")[1].split("\n## ")[0]
        lines = re.search(r"```sh\n(.*?)```", section, re.S)[1].replace("\\\n", " ").splitlines()
        self.assertEqual(3, len(lines))
        (self.dir / "models").mkdir()
        (self.dir / "models/Qwen-Image").symlink_to(self.model)
        layers = {name: shape for name, shape in matrices(self.model).items() if name.endswith("to_q")}
        for line in lines:
            words, small = shlex.split(line)[1:], {"--height": "64", "--width": "96", "--num_inference_steps": "2"}
            for number, word in enumerate(words):
                if word in small:
                    words[number + 1] = small[word]
                if word == "--lora":
                    lora = self.dir / words[number + 1]
                    lora.parent.mkdir()
                    write_tensors(lora, {key: value for name, shape in layers.items() for key, value in factors(name, shape).items()})
                elif word == "--eligen_entity_masks":
                    Image.open(self.masks[number % 2]).save(self.dir / words[number + 1])
            program.run_line(program.command(*words, threads=1), code=0, cwd=self.dir)
            self.assertEqual((96, 64), png_size(self.dir / "out.png"))


class Training(Regions):
    STEPS = 4

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rows = []
        for number, count in enumerate((1, 3, 2, 1)):
            noise = np.random.default_rng(number).integers(0, 256, (64, 96, 3), np.uint8)
            Image.fromarray(noise).save(cls.root / f"{number}.png")
            rows.append({"image": f"{number}.png", "prompt": f"picture {number}", "eligen_entity_prompts": (WORDS * 2)[:count],
                         "eligen_entity_masks": [f"mask{i}.png" for i in range(count)]})
        (cls.root / "rows.json").write_text(json.dumps(rows))
        cls.rows = rows

    def flags(self, name, **flags):
        data = dict(dataset_base_path=self.root, dataset_metadata_path=self.root / "rows.json",
                    data_file_keys="image,eligen_entity_masks", extra_inputs="eligen_entity_masks,eligen_entity_prompts")
        return {**self.on_model, **data, "dtype": "float32", "learning_rate": 1e-3, "adam_epsilon": 1e-3, "batch_size": 2,
                "max_train_steps": self.STEPS, "save_steps": self.STEPS, "enable_csv_log": True,
                "output_path": self.dir / name, **flags}

    def train(self, name, code=0, **flags):
        line = program.command("train", **self.flags(name, **flags))
        self.said = program.run_line(line, code=code, cwd=self.dir).stderr
        return self.dir / name

    LORA = dict(lora_base_model="dit", lora_target_modules="to_q,add_k_proj", lora_rank=4)

    def test_what_is_learnt_does_not_depend_on_where_things_rest(self):
        for kind, trained in (("lora", self.LORA), ("full", dict(trainable_models="dit"))):
            kept = state_of(self.train(f"{kind}_kept", **trained), self.STEPS)
            for name, more in {
                    "recomputed": dict(use_gradient_checkpointing=True), "budget": dict(activation_memory_budget=0.5),
                    "streamed": dict(use_gradient_checkpointing=True, device="simulated", offload="dit=host"),
                    "planned": dict(device="simulated:1GiB:1GB/s", vram="1GiB")}.items():
                with self.subTest(kind=kind, name=name):
                    self.assertEqual(kept, state_of(self.train(f"{kind}_{name}", **trained, **more), self.STEPS))

    def test_regions_are_learnt_from(self):
        with_regions = losses(self.train("with_regions", **self.LORA))
        without = losses(self.train("without", **self.LORA, data_file_keys="image", extra_inputs=None))
        self.assertNotEqual(with_regions[1], without[1])

    def test_a_cache_of_all_stages_gives_the_same_training(self):
        at_once = state_of(self.train("at_once", **self.LORA, cache_path=self.dir / "cache"), self.STEPS)
        cached = self.train("cached", **self.LORA, task="sft:train", dataset_base_path=self.dir / "cache",
                            dataset_metadata_path=None, data_file_keys=None, extra_inputs=None)
        self.assertEqual(at_once["trained.safetensors", next(name for file, name in at_once if file == "trained.safetensors")],
                         state_of(cached, self.STEPS)["trained.safetensors",
                                                      next(name for file, name in at_once if file == "trained.safetensors")])

    def test_a_plan_counts_regions_of_rows_and_of_a_cache(self):
        limited = dict(self.LORA, device="simulated:1GiB:1GB/s", vram="1GiB", activation_memory_budget="0")
        cache = self.dir / "cache"
        self.train("rows", **limited, cache_path=cache)
        said = [self.said]
        self.train("cached", **limited, task="sft:train", dataset_base_path=cache, dataset_metadata_path=None,
                   data_file_keys=None, extra_inputs=None)
        for text in [*said, self.said]:
            planned, measured = re.search(r"memory: predicted (\S+) MiB, measured (\S+) MiB", text).groups()
            self.assertLess(abs(float(planned) / float(measured) - 1), 0.1, text[-500:])

    def test_masks_without_their_prompts_are_told(self):
        for one, other in (("eligen_entity_masks", "eligen_entity_prompts"), ("eligen_entity_prompts", "eligen_entity_masks")):
            self.train("wrong", code=2, **self.LORA, data_file_keys="image,eligen_entity_masks", extra_inputs=one)
            self.assertIn(f'--extra_inputs: "{one}" needs {other} beside it', self.said)

    def test_rows_are_told_what_is_wrong_with_their_regions(self):
        wrong = [dict(self.rows[1], **change) for change in (
            {"eligen_entity_masks": ["mask0.png"]}, {"eligen_entity_prompts": ["a", "", "b"]},
            {"eligen_entity_prompts": ["a", "b", "word " * 1100]}, {"eligen_entity_masks": ["mask0.png", "away.png", "mask1.png"]})]
        (self.dir / "wrong.json").write_text(json.dumps(wrong))
        self.train("wrong", code=2, **self.LORA, dataset_metadata_path=self.dir / "wrong.json")
        for part in ("[eligen_entity_prompts]: 3 texts are given, and 1 of eligen_entity_masks",
                     "[eligen_entity_prompts]: text 2 is empty", "at most 1024 are encoded", "away.png"):
            self.assertEqual(1, self.said.count(part), f"{part!r} in\n{self.said}")


if __name__ == "__main__":
    unittest.main()
