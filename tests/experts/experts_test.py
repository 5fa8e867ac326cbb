"""A family of two experts through the program: judged, drawn with, trained.

    experts_test.py PLUGIN WRITE_MODEL
"""
import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

import program
from tiny_run import data_of, pixels, png_size, read_header

PLUGIN, WRITE_MODEL = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
COMPONENTS = ("text_encoder", "vae", "dit", "dit_low")  # and an image encoder, which images beside the prompt need
VIDEO_LIBRARY = program.PROGRAM.parent.parent / "lib/libatelier_video.so"
FAST = ["--model_hints", json.dumps({"*dit*": {"variant": "experts-fast"}})]


def tensor_names(path):
    return set(read_header(path)) - {"__metadata__"}


def metadata(path):
    return read_header(path)["__metadata__"]


def join(path, *parts):
    """Writes the tensors of several safetensors files into one."""
    tensors, data = {}, b""
    for part in parts:
        for name in tensor_names(part):
            tensor = read_header(part)[name]
            tensor["data_offsets"] = [len(data) + offset for offset in tensor["data_offsets"]]
            tensors[name] = tensor
        data += data_of(part)
    text = json.dumps(tensors).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


class Experts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="atelier_experts_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        program.run_line([WRITE_MODEL, PLUGIN, str(cls.folder / "model")], code=0)

    def run_program(self, *arguments, code=0):
        result = program.run(*arguments, code=code, cwd=self.folder)
        return result.stdout + result.stderr

    def flags(self, *paths):
        return ["--plugin", PLUGIN, "--model_paths", json.dumps([str(path) for path in paths])]

    def model(self, changed=None, more=()):
        """The flags of the model; `changed`: the component whose weights are another's."""
        folders = {name: self.folder / "model" / name for name in (*COMPONENTS, *more)}
        if changed:
            other = self.folder / f"other_{changed}" / changed
            if not other.is_dir():
                shutil.copytree(folders["dit_low" if changed == "dit" else "dit"], other)
            folders[changed] = other
        return self.flags(*folders.values())

    def files(self, names):
        """Copies of the components' files with these names in one folder, without configs."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        for component, name in names.items():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(self.folder / "model" / component / "model.safetensors", folder / name)
        return [folder / name for name in names.values()]

    def draw(self, name, *more, changed=None, model=None, seed=3, width=24):
        output = self.folder / f"{name}.png"
        steps = [] if "--num_inference_steps" in more else ["--num_inference_steps", 4]
        model = model or self.model(changed)
        self.run_program("generate", *model, "--prompt", "a cat", "--height", 16, "--width", width,
                         *steps, "--seed", seed, "--output", output, *more)
        return pixels(output)

    def test_it_passes_the_conformance_suite(self):
        self.run_program("check-plugin", PLUGIN)

    def test_files_and_folders_say_which_expert_they_hold(self):
        plain, shared = self.draw("by_folders"), [self.folder / "model" / name for name in ("text_encoder", "vae")]
        for high, low in (("t2v_HIGH_noise_14B_fp8.safetensors", "t2v_low_noise_14B_fp8.safetensors"),
                          ("high_noise_model/model.safetensors", "low_noise_model/model.safetensors"),
                          ("transformer/model.safetensors", "transformer_2/model.safetensors")):
            paths = [*shared, *self.files({"dit": high, "dit_low": low})]
            for order in (paths, paths[::-1]):
                self.assertEqual(plain, self.draw("named", model=self.flags(*order)), low)
            told = json.loads(self.run_program("inspect", paths[-1], "--plugin", PLUGIN, "--json"))
            self.assertEqual("dit_low", told["taken_by"]["component"])

    def test_names_that_say_nothing_need_a_hint_which_wins_over_names(self):
        paths = [self.folder / "model" / name for name in ("text_encoder", "vae")]
        unsaid = self.flags(*paths, *self.files({"dit": "one.safetensors", "dit_low": "two.safetensors"}))
        said = self.run_program("generate", *unsaid, "--prompt", "a cat", "--output", "x.png", code=2)
        self.assertIn("both are the component dit; pass one of them, or say by --model_hints which is which", said)
        hints = ["--model_hints", json.dumps({"*two*": {"component": "dit_low"}})]
        self.assertEqual(self.draw("unhinted"), self.draw("hinted", model=[*unsaid, *hints]))
        swapped = ["--model_hints", json.dumps({"*/dit/*": {"component": "dit_low"},
                                                "*/dit_low/*": {"component": "dit"}})]
        other = self.flags(*paths, *self.files({"dit": "low_noise.safetensors", "dit_low": "high_noise.safetensors"}))
        self.assertEqual(self.draw("other", model=other), self.draw("swapped", model=[*self.model(), *swapped]))

    def test_every_command_knows_the_experts_apart(self):
        low = self.folder / "model" / "dit_low"
        self.run_program("plan", "generate", *self.model(), "--prompt", "a cat", "--height", 16, "--width", 24,
                         "--output", "x.png", "--vram", "1GiB")
        said = self.run_program("probe", *self.flags(low), "--component", "dit", "--inputs",
                                low / "model.safetensors", "--output", "probed.safetensors", code=2)
        self.assertIn("component dit is missing", said)
        lora = self.train_lora("lora_to_merge", "dit_low") / "step-3.safetensors"
        self.run_program("lora", "merge", *self.model(), "--output", "merged_low_noise.safetensors", lora)
        changed = [self.folder / "model" / name for name in COMPONENTS[:3]] + ["merged_low_noise.safetensors"]
        merged = self.draw("merged", model=self.flags(*changed))
        self.assertNotEqual(self.draw("unmerged"), merged)
        # One expert is enough to merge into, and the file says which one it is, whatever it is called.
        self.run_program("lora", "merge", *self.flags(low), "--output", "neutral.safetensors", lora)
        self.assertEqual("dit_low", metadata(self.folder / "neutral.safetensors")["atelier.component"])
        changed[-1] = "neutral.safetensors"
        self.assertEqual(merged, self.draw("neutral", model=self.flags(*changed)))
        told = json.loads(self.run_program("inspect", "neutral.safetensors", "--plugin", PLUGIN, "--json"))
        self.assertEqual("dit_low", told["taken_by"]["component"])
        said = self.run_program("lora", "merge", *self.flags(self.folder / "model" / "vae"), "--output", "none.safetensors",
                                lora, code=2)
        self.assertIn("component dit is missing", said)

    def small(self, *more):
        """Flags of a small image, x.png."""
        return ["--prompt", "a cat", "--seed", 3, "--height", 16, "--width", 24, "--output", "x.png", *more]

    def test_an_image_encoder_is_needed_for_its_images_alone(self):
        plain, image = self.draw("seen"), self.folder / "seen.png"
        said = self.run_program("generate", *self.model(), *self.small("--side_images", image), code=2)
        self.assertIn("--side_images: is encoded by the component image_encoder, which is missing", said)
        with_eye = self.model(more=["image_encoder"])
        said = self.run_program("generate", *with_eye, *self.small())
        self.assertNotIn("load image_encoder", said)
        self.assertEqual(plain, pixels(self.folder / "x.png"))
        said = self.run_program("generate", *with_eye, *self.small("--side_images", image))
        self.assertIn("load image_encoder", said)
        data = self.write_data()
        (data / "sides.csv").write_text("image,prompt,side_images\n0.png,a cat,1.png\n")
        rows = ["--dataset_base_path", data, "--dataset_metadata_path", data / "sides.csv", "--output_path",
                self.folder / "encoded"]
        self.run_program("cache", *self.model(), *rows)
        rows += ["--extra_inputs", "side_images"]
        said = self.run_program("cache", *self.model(), *rows, code=2)
        self.assertIn('input "side_images": is encoded by the component image_encoder, which is missing', said)
        self.run_program("cache", *with_eye, *rows)

    def test_an_image_encoder_may_lie_in_the_text_encoders_file(self):
        self.draw("to_look_at")
        look = ["--side_images", self.folder / "to_look_at.png"]
        apart = [self.folder / "model" / name for name in ("text_encoder", "image_encoder")]
        rest = [self.folder / "model" / name for name in COMPONENTS[1:]]
        joined = self.folder / "joined.safetensors"
        join(joined, *(folder / "model.safetensors" for folder in apart))
        self.assertEqual(self.draw("apart", *look, model=self.flags(*apart, *rest)),
                         self.draw("joined", *look, model=self.flags(joined, *rest)))
        self.run_program("generate", *self.flags(joined, *rest), *FAST, *self.small())

    def test_a_variant_may_do_without_a_component(self):
        self.draw("unseen")
        said = self.run_program("generate", *self.model(more=["image_encoder"]), *FAST, *self.small(), code=2)
        self.assertIn('image_encoder: is the component image_encoder, which the variant "experts-fast" does without',
                      said)
        look = self.small("--side_images", self.folder / "unseen.png")
        said = self.run_program("generate", *self.model(), *FAST, *look, code=2)
        self.assertIn('--side_images: the variant "experts-fast" does not take it', said)
        self.assertNotIn("is encoded by", said)

    def test_every_expert_has_its_noise_levels(self):
        plain = self.draw("plain")
        self.assertEqual(plain, self.draw("again"))
        for component in ("dit", "dit_low"):
            self.assertNotEqual(plain, self.draw("changed_" + component, changed=component))

    def test_images_beside_the_prompt_are_read(self):
        plain = self.draw("before")
        before, wide = self.folder / "before.png", self.folder / "wide.png"
        self.draw("wide", width=40)
        eye = self.model(more=["image_encoder"])
        drawn = [plain, self.draw("first", "--first_image", before), self.draw("stretched", "--first_image", wide),
                 self.draw("side", "--side_images", wide, model=eye),
                 self.draw("sides", "--side_images", wide, "--side_images", before, model=eye),
                 self.draw("changed", "--draft", before, "--denoising_strength", 0.5)]
        self.assertEqual(len(drawn), len(set(drawn)))
        self.assertEqual(drawn[2], self.draw("stretched_again", "--first_image", wide))

    def test_inputs_that_do_not_fit_are_refused(self):
        self.draw("small")
        flags = [*self.model(), "--prompt", "a cat", "--height", 16, "--width", 24, "--output", "x.png"]
        said = self.run_program("generate", *flags, *["--side_images", "small.png"] * 3, "--input_image", "small.png",
                                code=2)
        self.assertIn("--side_images: 3 files are given, at most 2 are expected", said)
        self.assertIn("--input_image is not known", said)
        said = self.run_program("generate", *flags, "--looped", "--denoising_strength", 0.5, code=2)
        self.assertIn('--looped: the variant "experts" does not take it', said)
        self.assertIn("--denoising_strength: there is no clip to start from; give one with --draft", said)

    def test_a_variant_has_size_schedule_and_solver_of_its_own(self):
        for hints, size, steps, sampler in (([], (32, 16), 4, "Euler"), (FAST, (16, 24), 3, "UniPC")):
            model = [*self.model(), *hints]
            asked = [*model, "--prompt", "a cat", "--seed", 3, "--output", "variant.png"]
            self.assertIn("denoise", self.run_program("plan", "generate", *asked, "--vram", "1GiB"))
            self.run_program("generate", *asked)
            self.assertEqual(size, png_size(self.folder / "variant.png"))
            self.assertIn(f"Steps: {steps}, Sampler: {sampler}".encode(), (self.folder / "variant.png").read_bytes())
            plain = pixels(self.folder / "variant.png")
            lines = self.folder / "jobs.jsonl"
            lines.write_text('{"prompt": "a cat", "seed": 3, "output": "a.png"}\n'
                             '{"prompt": "a cat", "seed": 3, "output": "b.png", "solver": "dpm++", "width": 8}\n')
            self.run_program("generate", *model, "--prompts_file", lines)
            self.assertEqual(plain, pixels(self.folder / "a.png"))
            self.assertEqual((8, size[1]), png_size(self.folder / "b.png"))

    def test_a_clip_is_made_frame_by_frame(self):
        flags = [*self.model(), "--prompt", "a cat", "--height", 16, "--width", 24, "--seed", 3,
                 "--num_inference_steps", 4]
        for solver in ("euler", "unipc"):
            said = self.run_program("generate", *flags, "--num_frames", 5, "--solver", solver, "--report_memory",
                                    self.folder / "memory", "--output", "clip.png")
            frames = [self.folder / f"clip_{i:04}.png" for i in range(5)]
            self.assertIn("clip_0004.png: 24x16, seed 3", said)
            # A latent frame after the first one is two alike.
            drawn = [pixels(frame) for frame in frames]
            self.assertEqual((drawn[1], drawn[3]), (drawn[2], drawn[4]))
            self.assertEqual(3, len(set(drawn)))
            self.assertIn(b'"num_frames":5', frames[4].read_bytes())
        self.run_program("generate", *flags, "--num_frames", 5, "--num_images", 2, "--output", "two.png")
        self.assertTrue((self.folder / "two_1_0004.png").is_file())
        self.assertIn("denoise", self.run_program("plan", "generate", *flags, "--num_frames", 5, "--vram", "1GiB"))
        said = self.run_program("generate", *flags, "--num_frames", 4, "--output", "x.png", code=2)
        self.assertIn("--num_frames: 4 is not one more than a multiple of 2; use 3 or 5", said)
        said = self.run_program("generate", *flags, "--num_frames", 5, "--draft", "clip_0000.png", "--output", "x.png",
                                code=2)
        self.assertIn("clip_0000.png has 1 frame, and 5 are made; use --num_frames 1, or a longer clip", said)

    def test_each_expert_is_loaded_once_for_several_images(self):
        alone = [self.draw(f"alone_{seed}", seed=seed) for seed in range(3, 6)]
        said = self.run_program("generate", *self.model(), *self.small("--num_images", 3))
        self.assertEqual(alone, [pixels(self.folder / f"x_{i}.png") for i in range(3)])
        for line in ("load dit:", "load dit_low:", "denoise image 3/3 with dit:", "denoise image 3/3 with dit_low:"):
            self.assertEqual(1, said.count(line), said)

    def test_a_clip_is_one_file(self):
        flags = ["generate", *self.model(), "--prompt", "a cat", "--height", 16, "--width", 24, "--num_frames", 5,
                 "--num_inference_steps", 2]
        names = ["clip.webp", "clip.gif"] + ["clip.mp4"] * VIDEO_LIBRARY.is_file()
        for name in names:
            said = self.run_program(*flags, "--seed", 3, "--output", name)
            self.assertIn(f"{name}: 24x16, 5 frames, seed 3", said)
            if name == "clip.mp4":
                self.assertIn(b'\\"fps\\":8.0', (self.folder / name).read_bytes())
            else:
                told = program.run("inspect", "--json", name, code=0, cwd=self.folder).stdout
                record = json.loads(json.loads(told)["text"]["atelier"])
                self.assertEqual((5, 8, 3), tuple(record[key] for key in ("num_frames", "fps", "seed")))
            self.run_program(*flags, "--seed", 3, "--output", name, "--fps", 12.5, "--no_metadata")
            self.assertNotIn(b"parameters", (self.folder / name).read_bytes())
        self.assertFalse(list(self.folder.glob(".atelier-tmp-*")))
        # Several, by the command line and by lines that say more.
        self.run_program(*flags, "--num_images", 2, "--output", "two.webp")
        self.assertTrue(all((self.folder / f"two_{i}.webp").is_file() for i in range(2)))
        lines = self.folder / "clips.jsonl"
        lines.write_text('{"prompt": "a dog", "num_frames": 3, "fps": 5, "output": "dog.gif"}\n'
                         '{"prompt": "a dog", "num_frames": 1, "output": "dog.png"}\n'
                         '{"prompt": "a dog"}\n')
        said = self.run_program(*flags, "--prompts_file", lines, "--output", "line.webp")
        self.assertIn('"output":["dog.gif"]', said)
        self.assertEqual((24, 16), png_size(self.folder / "dog.png"))
        self.assertTrue((self.folder / "line_3.webp").is_file())
        self.run_program(*flags, "--output", "frame_%02d.png")
        self.assertEqual([f"frame_{i:02}.png" for i in range(5)],
                         sorted(path.name for path in self.folder.glob("frame_*.png")))

    def test_outputs_that_cannot_be_are_told_before_anything_is_loaded(self):
        flags = ["generate", *self.model(), "--prompt", "a cat"]
        for output, more, said in (
                ("a.mov", [], '--output: "a.mov" does not end in .png, .jpg, .mp4, .webp or .gif'),
                ("a.webp", [], '--output: "a.webp" is a clip\'s file, and one frame is an image; end the name in .png'),
                ("a.gif", ["--num_frames", 3, "--fps", 60], "--fps: 60 is above 50, the most that .gif shows"),
                ("a.gif", ["--num_frames", 3, "--fps", 0], "--fps: 0 is below 0.01"),
                ("a.gif", ["--num_frames", 3, *FAST], "--fps is missing, and the model is for no rate")):
            self.assertIn(said, self.run_program(*flags, "--output", output, *more, code=2))
        # A program beside which the library for videos is not.
        for part in ("bin/atelier", "lib/libatelier_sdk.so"):
            (self.folder / "alone" / part).parent.mkdir(parents=True)
            shutil.copy(program.PROGRAM.parent.parent / part, self.folder / "alone" / part)
        result = program.run_line([str(word) for word in (self.folder / "alone/bin/atelier", *flags, "--num_frames", 3,
                                                          "--output", "a.mp4")], code=3, cwd=self.folder)
        self.assertIn('--output: "a.mp4": videos and sounds cannot be read or written', result.stderr)
        self.assertIn("write .webp, .gif or .png instead, or install FFmpeg", result.stderr)
        self.assertNotIn("denoise", result.stderr)

    def test_clips_are_shown_on_the_way(self):
        data, prompts = self.write_data(), self.folder / "clips.txt"
        prompts.write_text("a cat --d 3 --f 3\n")
        self.run_program("train", *self.model(), "--dataset_base_path", data, "--dataset_metadata_path",
                         data / "metadata.csv", "--lora_base_model", "dit", "--max_train_steps", 1, "--sample_prompts",
                         prompts, "--sample_at_first", "--output_path", self.folder / "shown_clips")
        shown = [path.name for path in (self.folder / "shown_clips").rglob("step-00000000_*")]
        self.assertEqual(["step-00000000_0.mp4" if VIDEO_LIBRARY.is_file() else "step-00000000_0.webp"], shown)
        wrong = self.run_program("train", *self.model(), *FAST, "--dataset_base_path", data,
                                 "--dataset_metadata_path", data / "metadata.csv", "--lora_base_model", "dit",
                                 "--sample_prompts", prompts, "--output_path", self.folder / "no_rate", code=2)
        self.assertIn("clips.txt:1: fps is missing, and the model is for no rate", wrong)

    def test_an_input_may_say_the_size(self):
        self.draw("asked", width=40)
        flags = ["generate", *self.model(more=["image_encoder"]), "--prompt", "a cat", "--seed", 3, "--side_images", "asked.png",
                 "--output", "said.png"]
        self.run_program(*flags)
        self.assertEqual((40, 16), png_size(self.folder / "said.png"))
        self.run_program(*flags, "--height", 8, "--width", 8)
        self.assertEqual((8, 8), png_size(self.folder / "said.png"))
        self.assertIn("give the flag once for each file",
                      self.run_program(*flags, "--side_images", '["asked.png", "said.png"]', code=2))

    def test_the_solver_is_the_users_choice(self):
        plain = self.draw("by_schedule")
        self.assertEqual(plain, self.draw("euler", "--solver", "euler"))
        drawn = {plain}
        for solver in ("unipc", "dpm++"):
            drawn.add(self.draw(solver, "--solver", solver))
            drawn.add(self.draw(solver + "_from", "--solver", solver, "--draft", self.folder / "euler.png",
                                "--denoising_strength", 0.75))  # of two steps both make the same
        self.assertEqual(5, len(drawn))
        wrong = self.run_program("generate", *self.model(), "--prompt", "a", "--solver", "unipcc", code=2)
        self.assertIn("did you mean unipc?", wrong)
        lines = self.folder / "wrong.jsonl"
        lines.write_text('{"prompt": "a", "solver": "dpm+"}\n')
        wrong = self.run_program("generate", *self.model(), "--prompts_file", lines, code=2)
        self.assertIn('wrong.jsonl:1: solver: there is no solver "dpm+"', wrong)
        self.assertIn("did you mean dpm++?", wrong)

    def write_data(self):
        data = self.folder / "data"
        if not data.is_dir():
            data.mkdir()
            for seed in range(2):
                self.draw(f"data/{seed}", seed=seed)
            (data / "metadata.csv").write_text("image,prompt\n0.png,a cat\n1.png,a dog\n")
        return data

    def test_images_on_the_way_follow_the_variant(self):
        data, prompts = self.write_data(), self.folder / "prompts.txt"
        prompts.write_text("a cat --d 3\n")
        self.run_program("train", *self.model(), *FAST, "--dataset_base_path", data, "--dataset_metadata_path",
                         data / "metadata.csv", "--lora_base_model", "dit", "--max_train_steps", 1, "--sample_prompts",
                         prompts, "--sample_at_first", "--sample_every_n_steps", 1, "--output_path",
                         self.folder / "shown")
        first = min((self.folder / "shown").rglob("step-00000000_0.png"))
        self.run_program("generate", *self.model(), *FAST, "--prompt", "a cat", "--seed", 3, "--height", 16,
                         "--width", 24, "--output", "same.png")
        self.assertEqual(pixels(self.folder / "same.png"), pixels(first))

    def train(self, data, output, *more, base=None, code=0):
        return self.run_program("train", *self.model(), "--dataset_base_path", base or data,
                                "--dataset_metadata_path", data / "metadata.csv", "--lora_rank", 4,
                                "--learning_rate", 1e-1, "--max_train_steps", 3, "--save_steps", 3, "--output_path",
                                output, *more, code=code)

    def train_lora(self, name, components):
        """Trains LoRAs and returns their folder."""
        self.train(self.write_data(), self.folder / name, "--lora_base_model", components)
        return self.folder / name

    def test_a_lora_of_each_expert_changes_its_noise_levels_alone(self):
        # Of one step all is the first expert's, of four each has two.
        plain = {steps: self.draw(f"untrained_{steps}", "--num_inference_steps", steps) for steps in (1, 4)}
        for component in ("dit", "dit_low"):
            lora = self.train_lora(f"lora_{component}", component) / "step-3.safetensors"
            self.assertEqual(8, len(tensor_names(lora)))
            self.assertEqual(component, metadata(lora)["atelier.component"])
            for steps in (1, 4):
                drawn = self.draw("trained", "--lora", lora, "--num_inference_steps", steps)
                is_reached = component == "dit" or steps == 4
                self.assertEqual(is_reached, drawn != plain[steps], (component, steps))

    def test_a_run_goes_on_with_the_expert_that_it_began_with(self):
        data, output = self.write_data(), self.folder / "resumed"
        flags = ["--dataset_base_path", data, "--dataset_metadata_path", data / "metadata.csv", "--lora_base_model",
                 "dit_low", "--lora_rank", 4, "--save_steps", 2]
        self.run_program("train", *self.model(), *flags, "--max_train_steps", 2, "--output_path", output)
        resume = ["--resume", output, "--max_train_steps", 3, "--output_path", output]
        said = self.run_program("train", *self.model("dit_low"), *flags, *resume, code=2)
        self.assertIn("is of a run on other weights than those of", said)
        self.assertIn("other_dit_low", said)
        # What else runs beside another choice is not what is wrong.
        other = ["dit" if flag == "dit_low" else flag for flag in flags]
        said = self.run_program("train", *self.model(), *other, *resume, code=2)
        self.assertIn('--lora_base_model: "dit", and the run that is resumed has "dit_low"', said)
        self.assertNotIn("on other weights", said)
        # The other expert took no part in the run, so it may be another one, or absent.
        self.run_program("train", *self.model("dit"), *flags, *resume)
        alone = self.flags(*(self.folder / "model" / name for name in COMPONENTS if name != "dit"))
        self.run_program("train", *alone, *flags, "--max_train_steps", 3, "--output_path", self.folder / "alone")
        self.assertEqual(data_of(output / "step-3.safetensors"),
                         data_of(self.folder / "alone" / "step-3.safetensors"))

    def test_distillation_needs_every_expert(self):
        self.write_data()
        rows = "image,prompt,seed,rand_device,num_inference_steps,cfg_scale\n0.png,a cat,1,cpu,4,1\n"
        (self.folder / "data" / "distill.csv").write_text(rows)
        flags = ["--dataset_base_path", self.folder / "data", "--dataset_metadata_path",
                 self.folder / "data" / "distill.csv", "--task", "direct_distill", "--extra_inputs",
                 "seed,rand_device,num_inference_steps,cfg_scale", "--max_train_steps", 1, "--lora_base_model"]
        for component in ("dit", "dit_low"):
            said = self.run_program("train", *self.model(), *flags, component, "--output_path",
                                    self.folder / "distilled", code=2)
            self.assertIn("--task direct_distill: goes through noise levels from 1 to 0", said)
        self.run_program("train", *self.model(), *flags, "dit,dit_low", "--output_path", self.folder / "distilled")

    def state(self, run, step):
        """The trained values, the optimizer's state and averages behind a step: the bytes of each tensor by its name."""
        tensors = {}
        for name in ("trained", "optimizer", "ema"):
            path = run / f"checkpoints/step-{step:08d}/{name}.safetensors"
            if not path.is_file():
                continue
            data = data_of(path)
            for tensor, entry in read_header(path).items():
                if tensor != "__metadata__":
                    begin, end = entry["data_offsets"]
                    tensors[f"{name}/{tensor}"] = data[begin:end]
        return tensors

    def changed(self, run, step):
        """The experts whose values, optimizer's state or averages the step changed."""
        before, after = self.state(run, step - 1), self.state(run, step)
        self.assertEqual(set(before), set(after))
        names = [name for name, value in after.items() if before[name] != value]
        experts = {name.split("/")[1].removeprefix("num_updates.").split(".")[0] for name in names}
        return experts - {"prodigy", "rounding_step", "num_updates"}

    def train_both(self, name, *more, steps=8, lora=True):
        run = self.folder / name
        data = self.write_data()
        which = ["--lora_base_model", "dit,dit_low", "--lora_rank", 4] if lora else ["--trainable_models", "dit,dit_low"]
        rate = [] if "--learning_rate" in more else ["--learning_rate", 1e-2]
        self.run_program("train", *self.model(), "--dataset_base_path", data, "--dataset_metadata_path",
                         data / "metadata.csv", *which, *rate, "--max_train_steps", steps, "--save_steps", 1,
                         "--checkpoints_total_limit", 0, "--threads", 1, "--output_path", run, *more)
        return run

    def test_each_step_is_of_one_expert_and_leaves_the_other_as_it_is(self):
        drawn = {}
        for name, more in {
                "plain": ["--gradient_accumulation_steps", 2, "--weight_decay", 0.1],
                "clipped": ["--max_grad_norm", 0.01, "--ema_decay", 0.9, "--batch_size", 2],
                "8bit": ["--optimizer_type", "AdamW8bit"],
                "adafactor": ["--optimizer_type", "Adafactor"],
                "prodigy": ["--optimizer_type", "Prodigy", "--learning_rate", 1],
        }.items():
            run = self.train_both("idle_" + name, *more)
            steps = [self.changed(run, step) for step in range(2, 9)]
            self.assertTrue(all(len(experts) == 1 for experts in steps), (name, steps))
            drawn[name] = steps
        # The draws depend on seed and step alone.
        self.assertEqual(1, len(set(map(str, drawn.values()))), drawn)
        self.assertEqual({"dit", "dit_low"}, set.union(*drawn["plain"]))
        other = self.train_both("idle_seed", "--seed", 7)
        self.assertNotEqual(drawn["plain"], [self.changed(other, step) for step in range(2, 9)])

    def test_a_run_of_both_experts_is_resumed_to_the_bit(self):
        for lora in (True, False):
            whole = self.train_both(f"whole_{lora}", lora=lora)
            for stop in (3, 5):
                run = self.train_both(f"stopped_{lora}_{stop}", lora=lora, steps=stop)
                self.run_program("train", "--resume", run, "--max_train_steps", 8)
                self.assertEqual(self.state(whole, 8), self.state(run, 8))
                for file in sorted(whole.glob("step-8*.safetensors")):
                    self.assertEqual(data_of(file), data_of(run / file.name))

    def test_where_experts_rest_changes_no_bit(self):
        """Blocks come from the host, and the optimizer works there; what comes and goes is computed again."""
        for lora in (True, False):
            here = self.train_both(f"here_{lora}", "--use_gradient_checkpointing", "--device", "cpu", lora=lora)
            away = ["--offload", "dit=host,dit_low=host", "--device", "simulated"]
            for name, more in {"weights": [], "all": ["--optimize_on_cpu"]}.items():
                run = self.train_both(f"away_{name}_{lora}", *away, *more, lora=lora)
                self.assertEqual(self.state(here, 8), self.state(run, 8), (name, lora))

    def test_a_plan_says_how_often_a_step_is_of_each_expert(self):
        data = self.write_data()
        flags = [*self.model(), "--dataset_base_path", data, "--dataset_metadata_path", data / "metadata.csv",
                 "--output_path", self.folder / "planned", "--vram", "1GiB", "--lora_base_model"]
        both = self.run_program("plan", "train", *flags, "dit,dit_low")
        self.assertIn("a step is of dit (50 %) or dit_low (50 %)", both)
        self.assertNotIn("a step is of", self.run_program("plan", "train", *flags, "dit"))

    def test_each_expert_has_a_control_of_its_own(self):
        aids, plain = ["aid_high", "aid_low"], self.draw("unaided")
        said = self.run_program("generate", *self.model(more=aids), *self.small("--num_inference_steps", 4, "--aid", 1))
        aided = pixels(self.folder / "x.png")
        order = re.findall(r"load (dit_low|dit|aid_high|aid_low):", said)
        self.assertEqual([["aid_high", "dit"], ["aid_low", "dit_low"]], [sorted(order[:2]), sorted(order[2:])])
        one = self.draw("half_aided", "--aid", 1, "--num_inference_steps", 1, model=self.model(more=aids))
        drawn = [plain, aided, self.draw("one_aid", "--num_inference_steps", 1), one]
        self.assertEqual(4, len(set(drawn)))
        said = self.run_program("generate", *self.model(more=aids[:1]), *self.small("--aid", 1), code=2)
        self.assertIn("--aid: is for the component aid_low, which is missing (helps the expert of little noise)", said)
        self.assertNotIn("component aid_high", said)

    def test_a_control_is_trained_in_the_steps_of_its_expert(self):
        data, both = self.write_data(), ["aid_high", "aid_low"]
        (data / "aid.csv").write_text("image,prompt,aid\n0.png,a cat,1\n1.png,a dog,2\n")
        flags = ["--dataset_base_path", data, "--dataset_metadata_path", data / "aid.csv", "--extra_inputs", "aid",
                 "--learning_rate", 1e-2, "--save_steps", 1, "--checkpoints_total_limit", 0, "--ema_decay", 0.9,
                 "--threads", 1]
        run = self.folder / "aids"
        said = self.run_program("train", *self.model(more=both), *flags, "--trainable_models", "aid_high,aid_low",
                                "--max_train_steps", 8, "--output_path", run)
        self.assertIn("load dit_low:", said)
        # An average is counted by the name of its expert.
        turns = {"dit": "aid_high", "dit_low": "aid_low"}
        changed = [{turns.get(name, name) for name in self.changed(run, step)} for step in range(2, 9)]
        self.assertTrue(all(len(names) == 1 for names in changed), changed)
        self.assertEqual(set(both), set.union(*changed))
        # One of them is trained with its own expert alone, which is all that is needed.
        some = self.flags(*(self.folder / "model" / name for name in ("text_encoder", "vae", "dit_low", "aid_low")))
        said = self.run_program("train", *some, *flags, "--trainable_models", "aid_low", "--max_train_steps", 2,
                                "--output_path", self.folder / "aid")
        self.assertEqual({"aid_low"}, self.changed(self.folder / "aid", 2))

    def test_loras_of_both_experts_are_saved_as_a_file_each(self):
        output = self.train_lora("lora_both", "dit,dit_low")
        for component in ("dit", "dit_low"):
            lora = output / f"step-3.lora.{component}.safetensors"
            self.assertEqual(8, len(tensor_names(lora)))
            self.assertEqual(component, metadata(lora)["atelier.component"])
        self.run_program("train", "--resume", output, "--max_train_steps", 4)

    def test_what_changed_in_both_experts_is_extracted_as_a_file_each(self):
        trained = self.train_lora("lora_merged", "dit,dit_low")
        self.run_program("lora", "merge", *(trained / f"step-3.lora.{name}.safetensors" for name in ("dit", "dit_low")),
                         *self.model(), "--output", "merged.safetensors")
        hints = json.dumps({"*dit_low*": {"component": "dit_low"}})
        extract = ["lora", "extract", "--plugin", PLUGIN, "--model_hints", hints, "--lora_rank", 4, "--base_model_paths",
                   json.dumps([str(self.folder / "model" / name) for name in ("dit", "dit_low")]), "--tuned_model_paths"]
        said = self.run_program(*extract, "merged_dit.safetensors,merged_dit_low.safetensors", "--output", "both.safetensors")
        files, error = re.search(r"^(.*): 8 layers, relative error (.*)$", said, re.MULTILINE).groups()
        self.assertEqual("both_dit.safetensors, both_dit_low.safetensors", files)
        self.assertLess(float(error), 1e-3)
        for component in ("dit", "dit_low"):
            lora = self.folder / f"both_{component}.safetensors"
            self.assertEqual((8, component), (len(tensor_names(lora)), metadata(lora)["atelier.component"]))
        said = self.run_program(*extract, "merged_dit.safetensors,merged_dit_low.safetensors", "--output", "both.safetensors",
                                code=2)
        self.assertIn("both_dit.safetensors is there already", said)
        self.run_program(*extract, "model/dit,merged_dit_low.safetensors", "--output", "one.safetensors")
        self.assertEqual("dit_low", metadata(self.folder / "one.safetensors")["atelier.component"])

    def test_the_user_says_which_expert_a_lora_is_for(self):
        lora = self.train_lora("lora_unsaid", "dit") / "step-3.safetensors"
        unsaid = self.folder / "unsaid.safetensors"
        unsaid.write_bytes(lora.read_bytes().replace(b"atelier.component", b"atelier.something"))
        plain = self.draw("before_choice", "--num_inference_steps", 1)
        said = self.run_program("generate", *self.model(), "--prompt", "a cat", "--lora", unsaid, "--output", "x.png",
                                code=2)
        self.assertIn("does not say which denoiser it is for", said)
        self.assertIn("[LORA_COMPONENT]", said)
        for component, is_reached in (("dit", True), ("dit_low", False), ("all", True)):
            drawn = self.draw("chosen", "--lora", f"{unsaid}:0.5@{component}", "--num_inference_steps", 1)
            self.assertEqual(is_reached, drawn != plain, component)
        line = {"prompt": "a cat", "height": 16, "width": 24, "num_inference_steps": 1, "seed": 3, "output": "line.png",
                "loras": [{"name": "unsaid", "component": "dit_low"}]}
        (self.folder / "lines.jsonl").write_text(json.dumps(line) + "\n")
        self.run_program("generate", *self.model(), "--lora_dir", self.folder, "--prompts_file",
                         self.folder / "lines.jsonl")
        self.assertEqual(plain, pixels(self.folder / "line.png"))

    def test_rows_without_a_first_image_are_trained_with_their_own(self):
        self.draw("rows_0")
        self.draw("rows_1", width=40)
        loras = {}
        tables = {"absent": "image,prompt\nrows_0.png,a cat\n",
                  "same": "image,prompt,first_image\nrows_0.png,a cat,rows_0.png\n",
                  "empty": "image,prompt,first_image\nrows_0.png,a cat,\n",
                  "other": "image,prompt,first_image\nrows_0.png,a cat,rows_1.png\n"}
        for name, table in tables.items():
            data = self.folder / ("table_" + name)
            data.mkdir()
            (data / "metadata.csv").write_text(table)
            output = self.folder / ("lora_of_" + name)
            self.train(data, output, "--lora_base_model", "dit", "--extra_inputs", "first_image", base=self.folder)
            loras[name] = data_of(output / "step-3.safetensors")
        self.assertEqual(loras["absent"], loras["same"])
        self.assertEqual(loras["absent"], loras["empty"])
        self.assertNotEqual(loras["absent"], loras["other"])
        said = self.train(data, self.folder / "refused", "--extra_inputs", "first_image,looped", "--lora_base_model",
                          "dit", base=self.folder, code=2)
        self.assertIn('input "looped": the variant "experts" does not take it', said)


if __name__ == "__main__":
    unittest.main()
