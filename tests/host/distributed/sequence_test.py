"""Processes that have a part of the rows of each picture and batch: what they make and learn is what one process does.

    sequence_test.py WAN_PLUGIN WRITE_MODEL
"""
import functools
import json
import pathlib
import tempfile
import unittest

import lumina2_models
import numpy as np
import program
import wan_training_test as wan
from PIL import Image
from train_cli_test import losses, state_of, write_dataset

LORA = dict(lora_base_model="dit", lora_rank=4)


def values(path):
    return np.asarray(Image.open(path), dtype=np.int64)


class SequenceTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="atelier_sequence_")
        cls.addClassCleanup(holder.cleanup)
        cls.root = pathlib.Path(holder.name)
        program.write_tiny_model(cls.root / "qwen")
        program.run_line([wan.WRITE_MODEL, wan.PLUGIN, str(cls.root / "wan")], code=0)
        wan.write_tokenizer(cls.root / "wan/tokenizer")
        for component, name in wan.FOLDERS.items():
            (cls.root / "wan" / component).rename(cls.root / "wan" / name)
        parts = (*wan.ENCODERS, *wan.FOLDERS.values())
        cls.models = {
            "qwen_image": dict(plugin="qwen_image", model_paths=json.dumps([str(cls.root / "qwen")])),
            "lumina2": dict(plugin="lumina2", model_paths=json.dumps([str(lumina2_models.get().model)])),
            "wan": dict(plugin=wan.PLUGIN, model_paths=json.dumps([str(cls.root / "wan" / part) for part in parts])),
        }
        for name, variant in (("one", "Qwen-Image-Edit"), ("several", "Qwen-Image-Edit-2511")):
            (cls.root / variant).symlink_to(cls.root / "qwen")
            cls.models[name] = dict(plugin="qwen_image", model_paths=json.dumps([str(cls.root / variant)]))
        write_dataset(cls.root / "data", count=7, sizes=((64, 64), (64, 32)))
        (cls.root / "walk").mkdir()
        for i in range(12):
            wan.frame(i).save(cls.root / "walk" / f"{i}.png")
        wan.frame(3).save(cls.root / "still.png")
        (cls.root / "clips.csv").write_text("video,image,prompt\nwalk,,a walk\n,still.png,a stand\n")
        for name, first in (("one", "walk/1.png"), ("several", ["walk/1.png", "walk/5.png"])):
            rows = [{"image": "still.png", "prompt": "a cat", "edit_image": first},
                    {"image": "walk/9.png", "prompt": "a dog", "edit_image": "walk/2.png"}]
            (cls.root / f"{name}.json").write_text(json.dumps(rows))

    @staticmethod
    def launched(ranks, line):
        return line if ranks == 1 else [line[0], "launch", "--nproc_per_node", str(ranks), "--", *line[1:]]

    def make(self, ranks, family, code=0, words=(), **flags):
        """The files of a picture or a clip, and what was said."""
        size = dict(num_frames=9, height=32, width=48, output="frame_%02d.png") if family == "wan" else dict(
            height=80, width=112, output="out.png")
        defaults = dict(prompt="a red circle on a table", negative_prompt="grey", cfg_scale=4, num_inference_steps=3,
                        seed=5, device="cpu", dtype="float32", threads=1)
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.root))
        line = program.command("generate", *words, **{**defaults, **size, **self.models[family], **flags})
        said = program.run_line(self.launched(ranks, line), code=code, cwd=folder).stderr
        return sorted(folder.glob("*.png")), said

    def assert_alike(self, ours, theirs):
        """Equal but for rounding: in float32, and then to whole numbers of 0 to 255."""
        self.assertTrue(ours)
        self.assertEqual([path.name for path in ours], [path.name for path in theirs])
        for one, other in zip(ours, theirs):
            difference = np.abs(values(one) - values(other))
            self.assertLessEqual(difference.max(), 1)
            self.assertLess(np.count_nonzero(difference), 1e-3 * difference.size)

    def test_pictures_of_several_ranks_are_those_of_one(self):
        # Key heads: 4 of qwen_image, 2 of the others. Ranks that do not divide them send keys around.
        for family, sizes in (("qwen_image", (2, 3, 4)), ("lumina2", (2, 4)), ("wan", (2, 4))):
            alone, _ = self.make(1, family)
            for ranks in sizes:
                with self.subTest(family=family, ranks=ranks):
                    self.assert_alike(alone, self.make(ranks, family, sequence_parallel=ranks)[0])
            self.assertFalse(np.array_equal(values(alone[0]), values(self.make(1, family, seed=6)[0][0])))

    def test_samples_of_a_batch_are_shared_out_together(self):
        flags = dict(num_images=3, batch_size=3)
        self.assert_alike(self.make(1, "qwen_image", **flags)[0],
                          self.make(2, "qwen_image", sequence_parallel=2, **flags)[0])

    def test_halves_of_guidance_are_sequences(self):
        self.assert_alike(self.make(1, "qwen_image")[0],
                          self.make(4, "qwen_image", sequence_parallel=2, cfg_parallel=True)[0])

    def test_pictures_that_are_given_are_shared_out_too(self):
        for variant, names in (("one", ("0",)), ("several", ("3", "7"))):
            given = [word for name in names for word in ("--edit_image", self.root / f"walk/{name}.png")]
            flags = dict(words=given, edit_image_auto_resize="false", num_inference_steps=2)
            alone, _ = self.make(1, variant, **flags)
            for ranks in (2, 3):
                with self.subTest(variant=variant, ranks=ranks):
                    self.assert_alike(alone, self.make(ranks, variant, sequence_parallel=ranks, **flags)[0])
            others = [word for word in given[:-1]] + [self.root / "walk/11.png"]
            other, _ = self.make(1, variant, **{**flags, "words": others})
            self.assertFalse(np.array_equal(values(alone[0]), values(other[0])))

    def test_fewer_ranks_than_make_a_picture_are_refused(self):
        _, said = self.make(2, "qwen_image", code=2, sequence_parallel=4)
        self.assertIn("--sequence_parallel: 4 processes make a picture, and there are 2", said)

    def train(self, ranks, family, name, code=0, **flags):
        run = self.root / f"{name}_{family}_{ranks}"
        data = dict(dataset_base_path=self.root / "data", dataset_metadata_path=self.root / "data/metadata.csv",
                    max_pixels=64 * 64)
        if family in ("one", "several"):
            data.update(dataset_base_path=self.root, dataset_metadata_path=self.root / f"{family}.json",
                        data_file_keys="image,edit_image", extra_inputs="edit_image")
        if family == "wan":
            data = dict(dataset_base_path=self.root, dataset_metadata_path=self.root / "clips.csv", num_frames=5,
                        height=16, width=32)
        defaults = dict(device="cpu", dtype="float32", learning_rate=1e-3, adam_epsilon=1e-3, max_train_steps=10,
                        save_steps=10, num_epochs=99, threads=1, global_batch_size=2, enable_csv_log=True,
                        cache_path=self.root / f"cache_{family}", output_path=run)
        line = program.command("train", **{**defaults, **data, **self.models[family], **flags})
        self.said = program.run_line(self.launched(ranks, line), code=code).stderr
        return run

    def distances(self, alone, run, step):
        """How far trained values are apart, in parts of each tensor's largest."""
        ours, theirs = state_of(alone, step), state_of(run, step)
        trained = [name for name in ours if name[0] == "trained.safetensors"]
        self.assertTrue(trained)
        result = {}
        for name in trained:
            one, other = (np.frombuffer(tensor[2], np.float32) for tensor in (ours[name], theirs[name]))
            result[name[1]] = np.abs(one - other).max() / (np.abs(one).max() or 1)
        return result

    def assert_learnt_alike(self, alone, run, part=1e-6, step=10):
        """Losses within 1e-6, trained values within a part of each tensor's largest."""
        for name, distance in self.distances(alone, run, step).items():
            self.assertLessEqual(distance, part, name)
        one, other = losses(alone), losses(run)
        self.assertEqual(list(one), list(other))
        for number, loss in one.items():
            self.assertLessEqual(abs(other[number] - loss), 1e-6 * loss, number)

    def test_sequences_of_two_and_four_learn_what_one_process_does(self):
        whole = dict(trainable_models="dit")
        cases = [("qwen_image", "whole", whole, ((2, 2), (4, 4), (4, 2))),
                 ("qwen_image", "again", dict(whole, use_gradient_checkpointing=True), ((2, 2),)),
                 ("qwen_image", "around", whole, ((3, 3),)),
                 ("lumina2", "whole", whole, ((2, 2), (4, 4))),
                 ("lumina2", "again", dict(whole, use_gradient_checkpointing=True), ((4, 4),)),
                 ("wan", "whole", dict(trainable_models="dit,dit2"), ((2, 2), (4, 4)))]
        for family, name, flags, layouts in cases:
            alone = self.train(1, family, name, **flags)
            for ranks, size in layouts:
                with self.subTest(family=family, name=name, ranks=ranks, size=size):
                    run = self.train(ranks, family, f"{name}_by_{size}", sequence_parallel=size, **flags)
                    self.assert_learnt_alike(alone, run)

    @classmethod
    @functools.cache
    def factors(cls, family):
        """A LoRA by one process, and how far from it the same process comes with other kernels of attention.

        B begins as zeros, so all of it is sums of gradients, which other kernels make with other last digits.
        """
        alone = cls().train(1, family, "lora", **LORA)
        rounded = cls().train(1, family, "lora_rounded", attention="math", **LORA)
        return alone, max(cls().distances(alone, rounded, 10).values())

    def test_factors_are_as_far_from_one_process_as_its_own_rounding(self):
        for family, ranks in (("qwen_image", 2), ("lumina2", 4)):
            alone, own = self.factors(family)
            self.assertLess(own, 4e-6)
            run = self.train(ranks, family, "lora_shared", sequence_parallel=ranks, **LORA)
            self.assert_learnt_alike(alone, run, part=max(1e-6, 1.5 * own))

    def test_pictures_that_are_given_are_learnt_from_as_by_one_process(self):
        flags = dict(trainable_models="dit", edit_image_auto_resize="false", max_train_steps=4, save_steps=4)
        for variant in ("one", "several"):
            alone = self.train(1, variant, "given", **flags)
            for ranks in (2, 3):
                with self.subTest(variant=variant, ranks=ranks):
                    run = self.train(ranks, variant, "given_shared", sequence_parallel=ranks, **flags)
                    self.assert_learnt_alike(alone, run, step=4)

    def test_sequences_share_out_what_is_trained_and_what_is_frozen(self):
        """With a stage of ZeRO as without: two sequences of two, keys exchanged (qwen_image) or sent around (lumina2)."""
        whole = dict(trainable_models="dit")
        for family, ranks, size, kind, flags, stages in (("qwen_image", 4, 2, "whole", whole, (1, 2)),
                                                         ("qwen_image", 4, 2, "lora", LORA, (3,)),
                                                         ("lumina2", 3, 3, "whole", whole, (2,)),
                                                         ("lumina2", 3, 3, "lora", LORA, (1, 3))):
            part = 1e-6 if kind == "whole" else max(1e-6, 1.5 * self.factors(family)[1])
            plain = self.train(ranks, family, f"{kind}_stage_0", sequence_parallel=size, **flags)
            for stage in stages:
                with self.subTest(family=family, kind=kind, stage=stage):
                    run = self.train(ranks, family, f"{kind}_stage_{stage}", sequence_parallel=size, zero_stage=stage, **flags)
                    self.assert_learnt_alike(plain, run, part)

    def test_all_ranks_keep_the_same_for_the_backward_pass(self):
        flags = dict(trainable_models="dit")
        for family, ranks, budgets in (("qwen_image", 2, ("0.4",)), ("lumina2", 4, ("auto", "full", "1MB"))):
            alone = self.train(1, family, "kept", **flags)
            for budget in budgets:
                with self.subTest(family=family, budget=budget):
                    run = self.train(ranks, family, f"kept_{budget}", sequence_parallel=ranks,
                                     activation_memory_budget=budget, **flags)
                    self.assert_learnt_alike(alone, run)

    def test_what_cannot_be_trained_so_is_refused(self):
        flags = dict(trainable_models="dit")
        self.train(3, "qwen_image", "no", code=2, sequence_parallel=2, **flags)
        self.assertIn("--sequence_parallel: 2 processes compute a batch, and there are 3", self.said)


if __name__ == "__main__":
    unittest.main()
