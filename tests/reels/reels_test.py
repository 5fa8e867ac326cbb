"""Long clips in pieces, and pictures with transparency of one result, through the program, by a tiny family.

    reels_test.py PLUGIN WRITE_MODEL
"""
import json
import pathlib
import sys
import unittest
import wave

import numpy
import program
from PIL import Image
from safetensors.numpy import save_file
from tiny_run import FolderTest

PLUGIN, WRITE_MODEL = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
PARTS = ("text_encoder", "vae", "dit")


def frame(number, size=(24, 16)):
    """A square that moves over a ground of its own colour."""
    image = Image.new("RGB", size, (number * 20 % 256, 40, 90))
    image.paste((250, 220, 10 * number % 256), (number % 18, 4, number % 18 + 6, 10))
    return image


def layer(number, size=(24, 16)):
    """A picture of which a part is transparent."""
    image = Image.new("RGBA", size, (60 * number % 256, 200, 30, 255))
    image.paste((0, 0, 0, 0), (4 * number, 2, 4 * number + 5, 12))
    return image


class Reels(FolderTest):
    """The models, a clip to follow, and what is made of them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for variant, blocks in (("layers", "2"), ("long", "3")):
            program.run_line([WRITE_MODEL, PLUGIN, str(cls.root / variant), blocks], code=0)
        (cls.root / "walk").mkdir()
        for i in range(13):
            frame(i).save(cls.root / "walk" / f"{i:02}.png")

    def flags(self, variant, **more):
        parts = json.dumps([str(self.root / variant / part) for part in PARTS])
        return dict(plugin=PLUGIN, model_paths=parts, device="cpu", **more)

    def generate(self, variant, code=0, **more):
        output = more.pop("output", self.dir / "out.png")
        return program.run_line(program.command("generate", output=output, **self.flags(variant, prompt="a walk", seed=3,
                                                                                        **more)), code=code)

    def pictures(self, name="out"):
        return [numpy.asarray(Image.open(path)) for path in sorted(self.dir.glob(f"{name}_*.png"))]


class Layers(Reels):
    def test_the_suite_passes(self):
        said = program.run("check-plugin", PLUGIN, code=0).stdout
        self.assertNotIn("FAILED", said)

    def test_layers_are_pictures_with_transparency(self):
        self.generate("layers", layer_num=3)
        pictures = self.pictures()
        self.assertEqual([(16, 24, 4)] * 4, [picture.shape for picture in pictures])
        self.assertGreater(len({picture.tobytes() for picture in pictures}), 1)
        self.assertGreater(pictures[0][..., 3].std(), 0)
        with Image.open(self.dir / "out_0000.png") as image:
            record = json.loads(image.info["atelier"])
        self.assertEqual((3, 4), (record["layer_num"], record["num_frames"]))

    def test_files_that_hold_none_are_refused(self):
        for name, why in (("out.jpg", "holds no transparency"), ("out.webp", "holds no transparency")):
            said = self.generate("layers", code=2, layer_num=2, output=self.dir / name).stderr
            self.assertIn(f"{name}\" {why}", said)
            self.assertIn("end the name in .png", said)

    def dataset(self, sizes=((24, 16),) * 3):
        data = self.dir / "data"
        data.mkdir()
        rows = []
        for row in range(2):
            names = [f"{row}_{i}.png" for i in range(3)]
            for i, name in enumerate(names):
                layer(row + i, sizes[i]).save(data / name)
            rows.append({"image": names, "prompt": f"row {row}"})
        (data / "metadata.json").write_text(json.dumps(rows))
        return dict(dataset_base_path=data, dataset_metadata_path=data / "metadata.json")

    def test_pictures_of_a_row_are_learnt_as_one_result(self):
        flags = dict(**self.flags("layers"), **self.dataset(), output_path=self.dir / "run", lora_base_model="dit", lora_rank=2,
                     learning_rate=1e-2, num_epochs=3, enable_csv_log=True)
        told = json.loads(program.run_line(program.command("cache", quiet=True, **{
            name: value for name, value in flags.items()
            if name in ("plugin", "model_paths", "device", "output_path") or name.startswith("dataset")}),
            code=0).stdout)
        self.assertEqual((2, 2), (told["items"], told["encoded_images"]))
        manifest = json.loads((self.dir / "run" / "cache" / "manifest.json").read_text())
        self.assertEqual([[8, 3, 4, 6]] * 2, [item["latents_shape"] for item in manifest["items"]])
        program.run_line(program.command("train", **flags), code=0)
        lora = next((self.dir / "run").glob("*.safetensors"))
        self.generate("layers", layer_num=2)
        without = self.pictures()
        self.generate("layers", layer_num=2, lora=lora)
        self.assertTrue(any((a != b).any() for a, b in zip(without, self.pictures())))

    def test_pictures_of_several_sizes_are_refused(self):
        flags = self.dataset(((24, 16), (24, 16), (16, 16)))
        said = program.run_line(program.command("train", **self.flags("layers"), **flags, output_path=self.dir / "run",
                                                lora_base_model="dit"), code=2).stderr
        self.assertIn("0_2.png is 16x16", said)
        self.assertIn("give them one size", said)
        self.assertFalse((self.dir / "run").exists())


class Long(Reels):
    def test_a_clip_in_pieces_goes_on_where_the_piece_before_ended(self):
        self.generate("long", num_frames=13, pose=self.root / "walk")
        whole = self.pictures()
        self.assertEqual(13, len(whole))
        # The same beginning, in a clip that ends with its first piece.
        self.generate("long", num_frames=5, pose=self.root / "walk", output=self.dir / "short.png")
        for a, b in zip(self.pictures("short"), whole):
            numpy.testing.assert_array_equal(a, b)
        # Pieces have noise of their own.
        self.assertFalse((whole[1] == whole[5]).all())

    def test_a_clip_may_end_within_a_piece_and_behind_its_pose(self):
        self.generate("long", num_frames=15, pose=self.root / "walk")
        longer = self.pictures()
        self.assertEqual(15, len(longer))
        self.generate("long", num_frames=13, pose=self.root / "walk", output=self.dir / "less.png")
        for a, b in zip(self.pictures("less"), longer):
            numpy.testing.assert_array_equal(a, b)

    def test_a_plan_counts_the_pieces_and_the_memory_of_one(self):
        def plan(frames):
            file = self.dir / f"{frames}.json"
            program.run_line(program.command("plan", "generate", json=file, device_profile="4090", **self.flags(
                "long", prompt="a walk", num_frames=frames, pose=self.root / "walk")), code=0)
            return {phase["name"]: phase for phase in json.loads(file.read_text())["phases"]}
        one, three = plan(5), plan(13)
        for phase in ("denoise", "decode"):
            self.assertEqual(3 * one[phase]["passes"], three[phase]["passes"])
            self.assertLess(three[phase]["working_bytes"], 1.5 * one[phase]["working_bytes"])

    def test_noise_of_a_whole_clip_is_refused_for_pieces(self):
        file = self.dir / "noise.safetensors"
        save_file({"latents": numpy.zeros((1, 8, 13, 4, 6), numpy.float32)}, str(file))
        said = self.generate("long", code=2, num_frames=13, latents=file).stderr
        self.assertIn("--latents: a clip of 13 frames is made in pieces", said)
        save_file({"latents": numpy.zeros((1, 8, 5, 4, 6), numpy.float32)}, str(file))
        self.generate("long", num_frames=5, latents=file)

    def test_a_sound_runs_beside_the_clip(self):
        def generate(name, **more):
            self.generate("long", num_frames=9, output=self.dir / f"{name}.png", **more)
            return self.pictures(name)
        for name, level in (("quiet", 0), ("beat", 20000)):
            with wave.open(str(self.dir / f"{name}.wav"), "wb") as file:
                file.setparams((1, 2, 800, 0, "NONE", ""))
                file.writeframes(numpy.repeat(numpy.int16([0] * 8 + [level]), 100).tobytes())
        silent, loud = (generate(name, sound=self.dir / f"{name}.wav") for name in ("quiet", "beat"))
        # It is heard in the last frame alone, which is in the second piece of two.
        for a, b in zip(silent[:5], loud):
            numpy.testing.assert_array_equal(a, b)
        self.assertTrue((silent[8] != loud[8]).any())

    def test_long_moods_are_told_by_their_names(self):
        said = self.generate("long", code=2, num_frames=1, mood="m" * 70, negative_mood="n" * 80).stderr
        self.assertIn("--mood: 71 tokens, at most 64 are encoded", said)
        self.assertIn("--negative_mood: 81 tokens, at most 64 are encoded", said)

    def test_moods_have_a_negative(self):
        made = {}
        for name, more in {"none": {}, "mood": dict(mood="glad"), "both": dict(mood="glad", negative_mood="sad")}.items():
            self.generate("long", num_frames=1, output=self.dir / f"{name}.png", **more)
            made[name] = (self.dir / f"{name}.png").read_bytes()
        self.assertEqual(3, len(set(made.values())))


if __name__ == "__main__":
    unittest.main()
