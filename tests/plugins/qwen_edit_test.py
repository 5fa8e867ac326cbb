"""Tiny models of Qwen-Image-Edit through the program: pictures that are given, missing, odd or wrong, and what is kept of
them while a model is trained."""
import json
import os
import pathlib
import shutil
import tempfile
import unittest

import numpy as np
import program
import published_sizes
from PIL import Image
from safetensors.numpy import load_file

PARTS = ("transformer", "text_encoder", "tokenizer", "vae")
ENCODERS = PARTS[1:]
VARIANTS = ("Qwen-Image", "Qwen-Image-Edit", "Qwen-Image-Edit-2509", "Qwen-Image-Edit-2511")


def picture(width, height, seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def tensors(path):
    """The bytes of each tensor, by its name."""
    return {name: value.tobytes() for name, value in load_file(path).items()}


class Edit(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_qwen_edit_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        program.write_tiny_model(cls.folder / "tiny")
        for variant in VARIANTS:
            (cls.folder / variant).mkdir()
            for part in PARTS:
                (cls.folder / variant / part).symlink_to(cls.folder / "tiny" / part)
        for seed, name in enumerate(("a", "b", "c", "new")):
            picture(64, 48, seed).save(cls.folder / f"{name}.png")
        picture(5000, 1, 7).save(cls.folder / "long.png")
        (cls.folder / "notes.png").write_text("no picture at all")
        frames = [picture(64, 48, 10 + i) for i in range(3)]
        frames[0].save(cls.folder / "moving.webp", save_all=True, append_images=frames[1:], lossless=True, duration=100)
        frames[0].save(cls.folder / "still.png")
        clear = frames[0].convert("RGBA")
        clear.putalpha(picture(64, 48, 20).convert("L"))
        clear.save(cls.folder / "clear.png")
        white = Image.new("RGBA", clear.size, "white")
        white.alpha_composite(clear)
        white.convert("RGB").save(cls.folder / "white.png")

    def run_program(self, *words, code=0):
        return program.run(*words, code=code, cwd=self.folder)


class EditGeneration(Edit):

    def generate(self, *pictures, model="Qwen-Image-Edit-2509", code=0, prompt="a cat", more=()):
        given = [word for name in pictures for word in ("--edit_image", name)]
        words = ["--prompt", prompt] if prompt else []
        (self.folder / "out.png").unlink(missing_ok=True)
        return self.run_program("generate", "--plugin", "qwen_image", "--model_paths", model, *words, *given, "--output",
                                "out.png", "--num_inference_steps", 1, "--cfg_scale", 1, "--dtype", "float32", "--threads", 1,
                                "--seed", 5, *more, code=code).stderr

    def image(self, *pictures):
        said = self.generate(*pictures, more=("--height", 32, "--width", 48, "--edit_image_auto_resize", "false"))
        return np.asarray(Image.open(self.folder / "out.png")), said

    def test_pictures_that_are_missing_or_too_many_are_told(self):
        self.assertIn("--edit_image is missing", self.generate(code=2))
        said = self.generate("a.png", "b.png", model="Qwen-Image-Edit", code=2)
        self.assertIn("2 pictures are given, qwen-image-edit changes one", said)
        said = self.generate("a.png", "b.png", model="Qwen-Image-Edit", code=2, more=("--height", 32, "--width", 32))
        self.assertIn("2 pictures are given", said)
        said = self.generate(*["a.png"] * 11, code=2)
        self.assertIn("--edit_image: 11 files are given, at most 10 are expected", said)
        said = self.generate("a.png", model="Qwen-Image", code=2)
        self.assertIn('the variant "qwen-image" does not take it', said)

    def test_all_mistakes_are_told_at_once_before_a_weight_is_read(self):
        said = self.generate("notes.png", "long.png", "away.png", code=2, prompt=None,
                             more=("--schedule", "none", "--num_frames", 1, "--height", 32, "--width", 32))
        for part in ("notes.png: not a PNG", "away.png", "a picture of 5000x1 pixels is too small or too long to be shown",
                     "--prompt is missing", "none", "5 mistakes"):
            self.assertIn(part, said)
        self.assertFalse((self.folder / "out.png").exists())

    def test_what_of_a_picture_is_not_seen_is_told(self):
        moving, said = self.image("moving.webp")
        self.assertIn("warning: --edit_image: moving.webp is an animation; its first frame is taken", said)
        clear, said = self.image("clear.png")
        self.assertIn("warning: --edit_image: clear.png may be transparent; it is laid over white", said)
        still, said = self.image("still.png")
        self.assertNotIn("warning: --edit_image", said)
        white, _ = self.image("white.png")
        np.testing.assert_array_equal(moving, still)
        np.testing.assert_array_equal(clear, white)
        self.assertFalse(np.array_equal(still, white))

    def test_pictures_are_clean_where_it_is_said(self):
        def made(model, *said):
            self.generate("a.png", model=model, more=("--height", 32, "--width", 48, "--edit_image_auto_resize", "false", *said))
            return np.asarray(Image.open(self.folder / "out.png"))

        noisy, clean = made("Qwen-Image-Edit-2509"), made("Qwen-Image-Edit-2511")
        self.assertFalse(np.array_equal(noisy, clean))
        np.testing.assert_array_equal(clean, made("Qwen-Image-Edit-2509", "--zero_cond_t"))
        np.testing.assert_array_equal(noisy, made("Qwen-Image-Edit-2511", "--zero_cond_t", "false"))

    def test_a_model_without_pictures_has_no_clean_ones(self):
        said = self.generate(model="Qwen-Image", code=2, more=("--zero_cond_t",))
        self.assertIn('the variant "qwen-image" does not take it', said)
        for command in ("generate", "train"):
            said = self.run_program(command, "--plugin", "lumina2", "--zero_cond_t", code=2).stderr
            self.assertIn("--zero_cond_t is not known", said)

    def test_a_file_without_the_vision_tower_is_refused(self):
        blind = self.folder / "blind/Qwen-Image-Edit"
        shutil.copytree(self.folder / "tiny", blind)
        for path in (blind / "text_encoder").glob("model*"):
            path.unlink()
        shapes = {}
        for path in (self.folder / "tiny/text_encoder").glob("*.safetensors"):
            shapes |= {name: entry["shape"] for name, entry in published_sizes.read_header(path).items() if "." in name}
        language = {name: shape for name, shape in shapes.items() if not name.startswith("visual.")}
        published_sizes.write_holes(blind / "text_encoder/model.safetensors", language)
        said = self.generate("a.png", model=blind, code=2)
        self.assertIn("--edit_image: is encoded by the component vision_tower, which is missing", said)


class EditTraining(Edit):
    LORA = ("--lora_base_model", "dit", "--lora_target_modules", "to_q", "--lora_rank", 2, "--max_train_steps", 2, "--save_steps",
            2)
    NAMED = ("--model_hints", json.dumps({"*": {"variant": "qwen-image-edit-2511"}}))
    ROWS = ({"image": "new.png", "prompt": "a cat", "edit_image": ["a.png", "b.png"]},
            {"image": "a.png", "prompt": "a dog", "edit_image": "c.png"})

    def flags(self, output, rows=ROWS, model="Qwen-Image-Edit-2511", parts=PARTS, cache=None, extra="edit_image",
              resized=False):
        """`resized`: pictures are brought to 1024 x 1024, which takes seconds for each; else they keep their size."""
        table = self.folder / f"{output}.json"
        table.write_text(json.dumps(rows))
        paths = json.dumps([str(self.folder / model / part) for part in parts])
        data = ["--dataset_base_path", self.folder, "--dataset_metadata_path", table, "--data_file_keys", "image,edit_image"]
        data += ["--extra_inputs", extra] if extra else []
        data += [] if resized else ["--edit_image_auto_resize", "false"]
        if cache:
            data = ["--task", "sft:train", "--dataset_base_path", self.folder / cache]
        return ["--plugin", "qwen_image", "--model_paths", paths, *data, "--dtype", "float32", "--threads", 1,
                "--output_path", self.folder / output]

    def manifest(self, output):
        return json.loads((self.folder / output / "cache/manifest.json").read_text())["items"]

    def test_rows_are_told_what_is_wrong_with_their_pictures_at_once(self):
        rows = [{"image": "new.png", "prompt": "a cat", "edit_image": given}
                for given in (["a.png", "long.png"], ["a.png"] * 11, "notes.png", "away.png", ["moving.webp", "clear.png"])]
        rows.append({"image": "new.png", "prompt": "a cat"})
        said = self.run_program("train", *self.flags("wrong", rows), *self.LORA, code=2).stderr
        for part in ("a picture of 5000x1 pixels is too small or too long to be shown", "11 files are given, at most 10",
                     "notes.png: not a PNG", "away.png", "nothing is given", "moving.webp is an animation; its first frame",
                     "clear.png may be transparent; it is laid over white"):
            self.assertEqual(1, said.count(part), f"{part!r} in\n{said}")
        one = [{"image": "new.png", "prompt": "a cat", "edit_image": ["a.png", "b.png"]}]
        said = self.run_program("train", *self.flags("two", one, "Qwen-Image-Edit"), *self.LORA, code=2).stderr
        self.assertIn("2 pictures are given, qwen-image-edit changes one", said)

    def test_a_folder_of_pictures_is_matched_by_name(self):
        """What a table says, said by the names of files."""
        learnt, controls = self.folder / "learnt", self.folder / "learnt/controls"
        controls.mkdir(parents=True)
        for name, copy_of, caption in (("x", "new.png", "a cat"), ("y", "a.png", "a dog")):
            shutil.copy(self.folder / copy_of, learnt / f"{name}.png")
            (learnt / f"{name}.txt").write_text(caption)
        for name, copy_of in (("x_0.png", "a.png"), ("x_1.png", "b.png"), ("y.png", "c.png")):
            shutil.copy(self.folder / copy_of, controls / name)
        self.run_program("train", *self.flags("by_table"), *self.LORA)

        def flags(output, *more, extra=""):
            words = self.flags(output, extra=extra)
            for name in ("--dataset_base_path", "--dataset_metadata_path", "--data_file_keys"):
                at = words.index(name)
                del words[at:at + 2]
            return [*words, "--dataset_base_path", "learnt", *self.LORA, *more]

        self.run_program("train", *flags("by_name", "--control_path", "learnt/controls"))
        for item, table_item in zip(self.manifest("by_name"), self.manifest("by_table")):
            self.assertEqual({stage: table_item[stage] for stage in ("text", "references", "latents")},
                             {stage: item[stage] for stage in ("text", "references", "latents")})
        saved = "step-2.safetensors"
        self.assertEqual(tensors(self.folder / "by_table" / saved), tensors(self.folder / "by_name" / saved))
        # Samples that are not learnt have a folder of their own; a run that goes on keeps both.
        held = ["--validation_dataset_base_path", "learnt", "--validation_control_path", "learnt/controls"]
        self.run_program("train", *flags("validated", "--control_path", "learnt/controls", *held, "--validation_steps", 1))
        self.assertEqual(tensors(self.folder / "by_table" / saved), tensors(self.folder / "validated" / saved))
        program.run("train", "--resume", self.folder / "validated", "--max_train_steps", 3, code=0, cwd="/")
        (controls / "x_1.jpg").write_bytes((controls / "x_1.png").read_bytes())
        (controls / "y.png").rename(controls / "z.png")
        said = self.run_program("train", *flags("wrong_names", "--control_path", "learnt/controls"), code=2).stderr
        for part in ("--control_path: learnt/controls holds nothing for 1 of 2 rows: ", "learnt/y.png", "learnt/x.png",
                     "holds files of one place for 1 of 2 rows: ", "called as no row is: \"z.png\""):
            self.assertEqual(1, said.count(part), f"{part!r} in\n{said}")
        self.assertFalse((self.folder / "wrong_names").exists())
        said = self.run_program("train", *flags("nowhere", "--control_path", "learnt/away"), code=2).stderr
        self.assertIn("--control_path: learnt/away: No such file", said)
        held = ["--validation_dataset_base_path", "learnt"]
        said = self.run_program("train", *flags("unsaid_held", "--control_path", "learnt/controls", *held), code=2).stderr
        self.assertEqual(1, said.count("name their folder with --validation_control_path FOLDER"), said)
        said = self.run_program("train", *flags("unsaid"), code=2).stderr
        self.assertIn("name their folder with --control_path FOLDER", said)

    def test_a_picture_that_changes_takes_only_its_own_entries_along(self):
        def encode():
            self.run_program("cache", *self.flags("kept"))
            return [{stage: item[stage] for stage in ("text", "references", "latents")} for item in self.manifest("kept")]

        before = encode()
        self.assertEqual(encode(), before)
        files = {path: path.stat().st_mtime_ns for path in (self.folder / "kept/cache").rglob("*.safetensors")}
        shutil.copy(self.folder / "b.png", self.folder / "b_before.png")
        try:
            picture(64, 48, 99).save(self.folder / "b.png")
            after = encode()
        finally:
            os.replace(self.folder / "b_before.png", self.folder / "b.png")
        changed = [{stage for stage in row if row[stage] != old[stage]} for row, old in zip(after, before)]
        self.assertEqual([{"text", "references"}, set()], changed)
        new = {path for path in (self.folder / "kept/cache").rglob("*.safetensors") if path not in files}
        self.assertEqual({"text", "references"}, {path.relative_to(self.folder / "kept/cache").parts[0] for path in new})
        for path, written in files.items():
            if path.exists():
                self.assertEqual(written, path.stat().st_mtime_ns)

    def test_pixels_are_not_kept_and_a_caption_that_is_left_out_keeps_its_pictures(self):
        run = self.folder / "dropped"
        self.run_program("train", *self.flags(run.name, resized=True), *self.LORA, "--caption_dropout_rate", 0.5)
        kept = [value for path in (run / "cache").rglob("*.safetensors") for value in load_file(path).values()]
        self.assertLess(max(value.size for value in kept), 3 * 1024 * 1024 // 4)
        lengths = sorted(load_file(path)["prompt_embeds"].shape[0] for path in (run / "cache/text").rglob("*.safetensors"))
        self.assertEqual(4, len(lengths))
        pictures = 11 * 16  # tokens of a picture of 64 x 48 that is shown at 448 x 308
        self.assertTrue(all(pictures < length < pictures + 40 for length in lengths[:2]), lengths)
        self.assertTrue(all(2 * pictures < length < 2 * pictures + 60 for length in lengths[2:]), lengths)

    def test_pictures_are_clean_where_it_is_said(self):
        def trained(output, model, *said):
            self.run_program("train", *self.flags(output, model=model), *self.LORA, *said)
            return tensors(self.folder / output / "step-2.safetensors")

        noisy, clean = trained("noisy", "Qwen-Image-Edit-2509"), trained("clean", "Qwen-Image-Edit-2511")
        self.assertNotEqual(noisy, clean)
        self.assertEqual(clean, trained("made_clean", "Qwen-Image-Edit-2509", "--zero_cond_t"))
        self.assertEqual(noisy, trained("made_noisy", "Qwen-Image-Edit-2511", "--zero_cond_t", "false"))
        self.run_program("plan", "train", *self.flags("planned", model="Qwen-Image-Edit-2509"), *self.LORA, "--zero_cond_t",
                         "--vram", "4000GiB", "--host_memory", "4000GiB", "--device_profile", "h200")

    def test_encoders_alone_fill_the_cache_that_is_trained_from(self):
        self.run_program("train", *self.flags("straight"), *self.LORA)
        self.run_program("train", *self.flags("first", parts=ENCODERS), *self.NAMED, *self.LORA, "--task", "sft:data_process")
        self.run_program("train", *self.flags("second", parts=PARTS[:1], cache="first/cache"), *self.LORA)
        for name in ("straight", "second"):
            self.assertTrue((self.folder / name / "step-2.safetensors").is_file())
        self.assertEqual(tensors(self.folder / "straight/step-2.safetensors"), tensors(self.folder / "second/step-2.safetensors"))

    def test_encoders_alone_need_the_variant_where_pictures_are_asked_for(self):
        flags = self.flags("unnamed", model="Qwen-Image", parts=ENCODERS)
        said = self.run_program("train", *flags, *self.LORA, "--task", "sft:data_process", code=2).stderr
        self.assertIn('input "edit_image": only the variant "*-edit*" takes it', said)
        rows = [{"image": "new.png", "prompt": "a cat"}]
        flags = self.flags("plain", rows, model="Qwen-Image", parts=ENCODERS, extra="", resized=True)
        self.run_program("train", *flags, *self.LORA, "--task", "sft:data_process")
        self.assertEqual(1, len(self.manifest("plain")))

    def test_a_model_that_is_refused_is_the_only_mistake(self):
        """Its variant is then not known, and what it takes is no mistake, too."""
        odd = self.folder / "odd/Qwen-Image-Edit-2511"
        shutil.copytree(self.folder / "tiny", odd)
        path = odd / "transformer/config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"spin": 3}))
        said = self.run_program("train", *self.flags("refused", model=odd), *self.LORA, code=2).stderr
        self.assertIn('config field "spin" is not known', said)
        self.assertNotIn("edit_image", said)

    def test_whole_models_are_trained_and_keep_what_they_are(self):
        run = self.folder / "whole"
        self.run_program("train", *self.flags(run.name), "--trainable_models", "dit", "--max_train_steps", 1, "--save_steps", 1)
        saved = published_sizes.read_header(run / "step-1.safetensors")
        own = [published_sizes.read_header(path) for path in (self.folder / "tiny/transformer").glob("*.safetensors")]
        self.assertEqual({name for file in own for name in file} - {"__metadata__"}, set(saved) - {"__metadata__"})


if __name__ == "__main__":
    unittest.main()
