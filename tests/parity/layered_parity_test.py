"""Qwen-Image-Layered and Layered-Control give the pictures of diffusers, layer by layer, and train as its denoiser does."""

import base64
import contextlib
import io
import json
import re
import shlex
import sys
import unittest
from unittest import mock

import numpy as np
import torch
from diffusers import QwenImageTransformer2DModel
from diffusers.pipelines.qwenimage.pipeline_qwenimage_layered import calculate_dimensions
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

import atelier
import compare
import layered_models
import references
import serving
import train_parity_test as steps
import training
from layered_models import pack, picture, pixels_of
from tiny_run import FolderTest

HEIGHT, WIDTH, STEPS, SCALE = 64, 96, 3, 3.0
PROMPT, NEGATIVE = "A red circle lies over a blue square, 一只可爱的猫", "blurry"
EXACT = 1e-5  # of the scale
CLOSE = 0.01  # levels of 255


def noise(pictures, seed, height=HEIGHT, width=WIDTH):
    return torch.randn((1, 16, pictures, height // 8, width // 8), generator=torch.Generator().manual_seed(seed))


class LayeredTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = layered_models.LayeredModels(cls.root)
        cls.control = cls.root / "Qwen-Image-Layered-Control"
        cls.control.symlink_to(cls.models.folder)
        cls.picture = cls.root / "picture.png"
        picture(50, 70, 1).save(cls.picture)
        cls.mask = cls.root / "mask.png"
        picture(40, 90, 2).save(cls.mask)

    def ours(self, latents, model=None, **flags):
        given = dict(prompt=PROMPT, negative_prompt=NEGATIVE, num_inference_steps=STEPS, cfg_scale=SCALE, dtype="float32",
                     layer_input_image=self.picture)
        if latents is not None:
            given.update(height=latents.shape[-2] * 8, width=latents.shape[-1] * 8, layer_num=latents.shape[2] - 1)
        return atelier.generate(model or self.models.folder, latents, mode="RGBA", **given | flags)

    def expected(self, latents, image=None, **flags):
        given = dict(prompt=PROMPT, negative_prompt=NEGATIVE, num_inference_steps=STEPS, true_cfg_scale=SCALE)
        return self.models.generate(image or Image.open(self.picture), latents, **given | flags)

    def refused(self, *told, **flags):
        """A generation that ends with one clear error."""
        given = dict(plugin="qwen_image", model_paths=atelier.paths_argument(self.models.folder), prompt=PROMPT,
                     layer_input_image=self.picture, device="cpu", output=self.dir / "out.png") | flags
        words = [str(word) for name, value in given.items() if value is not None for word in ("--" + name, value)]
        said = atelier.run_line([str(atelier.program()), "generate", *words], code=2).stderr
        for text in told:
            self.assertIn(text, said)
        self.assertFalse(list(self.dir.glob("out*")))


class Components(LayeredTest):

    def inputs(self, batch, pictures, length, seed=3, height=4, width=5):
        generator = torch.Generator().manual_seed(seed)
        return {
            "latents": torch.randn((batch, 16, pictures, 2 * height, 2 * width), generator=generator),
            "sigma": torch.rand((batch,), generator=generator) * 0.9 + 0.05,
            "prompt_embeds": torch.randn((batch, length, 96), generator=generator),
            "reference_1": torch.randn((batch, 16, 1, 2 * height, 2 * width), generator=generator),
        }

    def velocity(self, inputs):
        pictures = [inputs[name] for name in ("reference_1", "reference_2") if name in inputs]
        return layered_models.velocity(self.models.transformer, inputs["latents"], inputs["sigma"], inputs["prompt_embeds"],
                                       pictures=pictures)

    def check_dit(self, name, inputs):
        got = atelier.probe("dit", self.models.folder / "transformer", inputs, gradients=True, trainable="*")
        floating = {key: value.clone().requires_grad_(True) for key, value in inputs.items()}
        output = self.velocity(floating)
        compare.assert_close(f"layers, {name}, values", got["velocity"], output, EXACT)
        expected = references.gradients(output, floating, dict(self.models.transformer.named_parameters()))
        compare.assert_gradients(f"layers, {name}, gradients", got, expected, {key: EXACT for key in expected})

    def test_one_and_four_layers_and_none(self):
        for layers in (0, 1, 4):
            with self.subTest(layers=layers):
                self.check_dit("denoiser", self.inputs(1, layers + 1, 7))

    def test_more_pictures_than_sides_are_long(self):
        """The text begins behind the last of them."""
        self.check_dit("many pictures", self.inputs(1, 9, 5, height=2, width=3))

    def test_a_picture_beside_the_layers(self):
        inputs = self.inputs(1, 2, 6)
        inputs["reference_2"] = inputs["reference_1"].flip(-1)
        self.check_dit("context", inputs)

    def test_a_batch(self):
        inputs = self.inputs(2, 3, 6)
        inputs["reference_1"] = inputs["reference_1"][:1].expand(2, -1, -1, -1, -1).contiguous()
        self.check_dit("batch", inputs)

    def test_a_vae_with_transparency_in_both_spellings(self):
        latents = noise(1, 22, 40, 56)
        image = pixels_of(picture(40, 56, 5))
        original = self.models.save_original_vae(self.dir / "qwen_image_layered_vae.safetensors")
        for path in (self.models.folder / "vae", original):
            with torch.no_grad():
                encoded, decoded = references.encode(self.models.vae, image), references.decode(self.models.vae, latents)
            compare.assert_close("VAE of four channels, encode",
                                 atelier.probe("vae", path, {"image": image})["latents"], encoded, EXACT)
            compare.assert_close("VAE of four channels, decode",
                                 atelier.probe("vae", path, {"latents": latents})["image"], decoded, EXACT)

    def test_levels_are_those_of_the_scheduler(self):
        for tokens, size, frames in ((1600, 640, 5), (4096, 1024, 3)):
            scheduler = self.models.pipeline.scheduler
            scheduler.set_timesteps(sigmas=np.linspace(1.0, 0, 51)[:-1], mu=(tokens / 256)**0.5)
            got = atelier.schedule(variant="qwen-image-layered", height=size, width=size, num_frames=frames)
            compare.assert_close("layers, levels", torch.tensor(got), scheduler.sigmas, 1e-6)


class Pictures(LayeredTest):

    def test_layers_and_the_picture_of_them_all(self):
        for layers, batch in ((1, "on"), (4, "off")):
            with self.subTest(layers=layers):
                latents = noise(layers + 1, 31 + layers)
                got = self.ours(latents, cfg_batch=batch)
                compare.assert_images("layers", got, self.expected(latents), CLOSE)
                self.assertEqual((HEIGHT, WIDTH, 4), got[0].shape)

    def test_normalised_guidance_is_asked_for(self):
        latents = noise(2, 41)
        got = self.ours(latents, cfg_normalize="true")
        compare.assert_images("layers, normalised guidance", got, self.expected(latents, cfg_normalize=True), CLOSE)
        self.assertGreater(np.abs(np.int64(got) - np.int64(self.ours(latents))).mean(), 1)

    def test_without_guidance(self):
        latents = noise(2, 42)
        compare.assert_images("layers, no guidance", self.ours(latents, cfg_scale=1),
                              self.expected(latents, negative_prompt=None, true_cfg_scale=1.0), CLOSE)

    def test_layered_control_makes_one_picture(self):
        latents = noise(1, 43)
        got = self.ours(latents, self.control, layer_num=0)
        compare.assert_images("Layered-Control", got, self.expected(latents), CLOSE)
        self.assertTrue(np.array_equal(got, self.ours(latents, self.control)))  # as the path says

    def test_a_mask_stands_between_noise_and_picture(self):
        latents = noise(1, 44)
        stretched = Image.open(self.mask).convert("RGBA").resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        with torch.no_grad():
            rows = pack(references.encode(self.models.vae, pixels_of(stretched)))
        expected = self.expected(latents, context=rows)
        got = self.ours(latents, self.control, context_image=self.mask)
        compare.assert_images("Layered-Control-V2", got, expected, CLOSE)
        self.assertGreater(np.abs(np.int64(got) - np.int64(self.ours(latents, self.control))).mean(), 1)

    def test_a_picture_without_transparency_is_opaque(self):
        opaque = self.dir / "opaque.png"
        Image.open(self.picture).convert("RGB").save(opaque)
        latents = noise(2, 45)
        compare.assert_images("layers of an opaque picture", self.ours(latents, layer_input_image=opaque),
                              self.expected(latents, Image.open(opaque).convert("RGBA")), CLOSE)

    def test_pictures_have_the_published_area(self):
        for model, area in ((self.models.folder, 640), (self.control, 1024)):
            made, = self.ours(None, model, layer_num=0, num_inference_steps=1, cfg_scale=1)
            width, height = calculate_dimensions(area * area, 70 / 50)
            self.assertEqual((height, width, 4), made.shape)

    def test_four_layers_are_made_where_nothing_is_said(self):
        self.assertEqual(5, len(self.ours(None, height=64, width=96, num_inference_steps=1)))

    def test_streamed_weights_make_the_same_layers(self):
        layered_models.make_transformer(seed=14, layers=8).save_pretrained(self.dir / "transformer")
        paths = [self.dir / "transformer", *(self.models.folder / part for part in ("vae", "text_encoder", "tokenizer"))]
        words = ["--plugin", "qwen_image", "--model_paths", atelier.paths_argument(paths), "--prompt", PROMPT,
                 "--layer_input_image", self.picture, "--layer_num", 1, "--height", HEIGHT, "--width", WIDTH, "--seed", 3,
                 "--num_inference_steps", STEPS, "--dtype", "float32", "--device", "simulated:1GiB"]
        made = []
        for name, room in (("resident", "1GiB"), ("streamed", "10MiB")):
            line = [*words, "--vram", room, "--output", self.dir / f"{name}.png"]
            said = atelier.run_line([str(atelier.program()), "generate", *map(str, line)], code=0).stderr
            planned, measured = re.search(r"memory: predicted (\S+) MiB, measured (\S+) MiB", said).groups()
            self.assertLess(abs(float(planned) / float(measured) - 1), 0.1)
            plan = self.dir / f"{name}.json"
            atelier.run_line([str(atelier.program()), "plan", "generate", *map(str, line), "--json", str(plan)], code=0)
            dit, = [one for one in json.loads(plan.read_text())["components"] if one["name"] == "dit"]
            self.assertEqual(name == "resident", dit["resident_blocks"] == 8, dit)
            made.append(atelier.read_pictures(sorted(self.dir.glob(f"{name}*.png")), "RGBA"))
        self.assertEqual(2, len(made[0]))
        compare.assert_images("layers, streamed", *made, tolerance=CLOSE)

    def test_two_ranks_make_what_one_makes(self):
        words = ["generate", "--plugin", "qwen_image", "--model_paths", atelier.paths_argument(self.models.folder), "--prompt",
                 PROMPT, "--layer_input_image", self.picture, "--layer_num", 2, "--height", HEIGHT, "--width", WIDTH,
                 "--seed", 3, "--num_inference_steps", 2, "--dtype", "float32", "--device", "cpu"]
        made = []
        for ranks in (2, 1):
            atelier.run(["launch", "--nproc_per_node", ranks, "--", *words, "--sequence_parallel", ranks, "--output",
                         self.dir / f"{ranks}.png"], self.dir)
            made.append(atelier.read_pictures(sorted(self.dir.glob(f"{ranks}_*.png")), "RGBA"))
        self.assertEqual(3, len(made[0]))
        compare.assert_images("layers, rows of two ranks", *made, tolerance=CLOSE)

    def test_what_cannot_be_made_is_refused_in_one_line(self):
        self.refused("--layer_input_image is missing", layer_input_image=None)
        self.refused("layer_num: 17 is not from 0 to 16", layer_num=17)
        self.refused("layer_num: -1 is not from 0 to 16", layer_num=-1)
        self.refused("layer_num: 2 layers", "and 7 are given", layer_num=2, num_frames=7)
        self.refused("prompt: is empty", "describe what the whole picture shows", prompt=" ")
        self.refused("holds no transparency", output=self.dir / "out.jpg")
        self.refused("the VAE is of pictures without transparency", "pass vae/ of Qwen-Image-Layered",
                     model_paths=atelier.paths_argument([self.models.folder / "transformer", self.models.tiny.model / "vae",
                                                         self.models.tiny.model / "text_encoder",
                                                         self.models.tiny.model / "tokenizer"]))
        long = self.dir / "long.png"
        Image.new("RGBA", (3000, 1)).save(long)
        self.refused("layer_input_image: a picture of 3000x1 pixels is too long", layer_input_image=long)


class Page(LayeredTest):

    def test_the_generating_lines_of_the_page(self):
        """As they stand, but for sizes and steps."""
        page = (atelier.REPOSITORY / "plugins/qwen_image/README.md").read_text()
        lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.S)
                 for line in re.sub(r"\\\n\s*", "", block).splitlines() if "--layer_input_image" in line]
        self.assertEqual(3, len(lines))
        models = self.dir / "models"
        models.mkdir()
        for name in ("Qwen-Image-Layered", "Qwen-Image-Layered-Control"):
            (models / name).symlink_to(self.models.folder)
        (models / "Qwen-Image").symlink_to(self.models.tiny.model)
        lora = models / "Qwen-Image-Layered-Control-V2"
        lora.mkdir()
        layer = "transformer_blocks.0.attn.to_q"
        save_file({f"{layer}.lora_A.default.weight": torch.ones(2, 96), f"{layer}.lora_B.default.weight": torch.ones(96, 2)},
                  lora / "model.safetensors")
        for line, pictures in zip(lines, (4, 1, 1)):
            words = shlex.split(line)[1:]
            for name in words:
                if name.endswith(".png") and words[words.index(name) - 1] != "--output":
                    picture(50, 70, 3).save(self.dir / name)
            for flag, value in (("--height", 64), ("--width", 96), ("--num_inference_steps", 2)):
                if flag in words:
                    words[words.index(flag) + 1] = value
                else:
                    words += [flag, value]
            atelier.run(words, self.dir)
            output = words[words.index("--output") + 1].removesuffix(".png")
            made = sorted(self.dir.glob(f"{output}*.png"))
            self.assertEqual(pictures, len(made))
            for path in made:
                self.assertEqual(("RGBA", (96, 64)), (Image.open(path).mode, Image.open(path).size))


class Served(LayeredTest):

    def test_a_job_gives_all_pictures(self):
        shown = "data:image/png;base64," + base64.b64encode(self.picture.read_bytes()).decode()
        settings = dict(prompt=PROMPT, layer_num=2, height=HEIGHT, width=WIDTH, num_inference_steps=2, seed=4)
        flags = dict(plugin="qwen_image", device="cpu", threads=1, dtype="float32", served_name="layers")
        with serving.Served(self.models.folder, **flags) as server:
            job = server.ask("POST", "/v1/jobs", settings | {"layer_input_image": shown})
            view = server.finished(job["id"])
            files = [server.bytes(file["url"]) for file in view["files"]]
            edited = server.ask("POST", "/v1/images/edits", dict(
                prompt=PROMPT, image=shown, layer_num=2, size=f"{WIDTH}x{HEIGHT}", num_inference_steps=2,
                seed=4))
        self.assertEqual(("done", [4, 4, 4]), (view["state"], [file["seed"] for file in view["files"]]))
        expected = self.ours(None, layer_num=2, height=HEIGHT, width=WIDTH, num_inference_steps=2, seed=4, cfg_scale=4,
                             negative_prompt="")
        for got in (files, [base64.b64decode(one["b64_json"]) for one in edited["data"]]):
            pictures = [np.asarray(Image.open(io.BytesIO(data))) for data in got]
            compare.assert_images("layers of the server", pictures, expected, CLOSE)
        self.assertEqual("transparent", edited["background"])


class Training(LayeredTest):
    PICTURES = 3

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.root / "data"
        cls.data.mkdir()
        for row in range(2):
            for number in range(cls.PICTURES + 1):
                picture(HEIGHT, WIDTH, 100 + 10 * row + number).save(cls.data / f"{row}_{number}.png")

    def rows(self, pictures=PICTURES, **more):
        return [{"image": [f"{row}_{number}.png" for number in range(pictures)] if pictures > 1 else f"{row}_0.png",
                 "layer_input_image": f"{row}_{self.PICTURES}.png", "layer_num": pictures - 1, "prompt": f"row {row}"} | more
                for row in range(2)]

    def flags(self, rows, extra="layer_num,layer_input_image", **flags):
        file = self.dir / "rows.json"
        file.write_text(json.dumps(rows))
        return dict(dataset_base_path=self.data, dataset_metadata_path=file, data_file_keys="image,layer_input_image",
                    extra_inputs=extra, learning_rate=steps.RATE) | flags

    def train(self, rows, **flags):
        return atelier.train(self.models.folder, [(np.zeros((64, 64, 3), np.uint8), "x")], **self.flags(rows, **flags))

    def encoded(self, name):
        with torch.no_grad():
            return references.encode(self.models.vae, pixels_of(Image.open(self.data / name)))

    def samples(self, rows):
        samples, pictures = [], []
        for row in rows:
            names = row["image"] if isinstance(row["image"], list) else [row["image"]]
            with torch.no_grad():
                embeds, _ = self.models.pipeline.encode_prompt(row["prompt"], device="cpu")
            latents = torch.cat([self.encoded(name) for name in names], 2)[0]
            samples.append(training.Sample(latents, embeds[0]))
            beside = [row[name] for name in ("context_image", "layer_input_image") if row.get(name)]
            pictures.append([self.encoded(name) for name in beside])
        return samples, pictures

    @contextlib.contextmanager
    def both(self, name, rows, full=False, **flags):
        """One step on one row, here and there."""
        transformer = QwenImageTransformer2DModel.from_pretrained(self.models.folder / "transformer")
        helper = steps.TrainParityTest()
        helper.dir, helper.transformer = self.dir, lambda: transformer
        if full:
            transformer.requires_grad_(True)
            given = dict(trainable_models="dit")
        else:
            helper.lora()
            given = helper.lora_flags(transformer)
        parameters = steps.trained(transformer)
        samples, pictures = self.samples(rows)

        def velocity(transformer, latents, sigma, prompt_embeds, lengths=None):
            beside = next(beside for sample, beside in zip(samples, pictures)
                          if sample.prompt_embeds.shape == prompt_embeds.shape[1:]
                          and torch.equal(sample.prompt_embeds, prompt_embeds[0]))
            return layered_models.velocity(transformer, latents, sigma, prompt_embeds, lengths, beside)

        with mock.patch.object(references, "velocity", velocity):
            losses, first = training.train(transformer, steps.adamw(parameters.values()), lambda: samples, seed=7)
        with self.train(rows, seed=7, max_train_steps=1, **given | flags) as run:
            compare.assert_close(f"layers, {name}, loss", torch.tensor(run.losses()), torch.tensor(losses))
            expected = {
                key: torch.zeros_like(parameter) if gradient is None else gradient
                for (key, parameter), gradient in zip(parameters.items(), first)
            }
            compare.assert_all_close(f"layers, {name}, gradients", steps.gradients(run), expected, compare.TOLERANCE,
                                     steps.FLOOR)
            yield run

    def test_a_step_of_a_lora(self):
        with self.both("training a LoRA", self.rows()) as run:
            self.assertEqual({(16, self.PICTURES, HEIGHT // 8, WIDTH // 8)},
                             {tuple(one["latents"].shape) for one in run.encodings("latents")})

    def test_a_step_of_the_whole_denoiser(self):
        with self.both("full training", self.rows(), full=True) as run:
            with safe_open(run.weights(1), "pt") as file:
                self.assertEqual(set(self.models.transformer.state_dict()), set(file.keys()))

    def test_a_step_of_layered_control_with_and_without_a_mask(self):
        for context in ("0_2.png", None):
            with self.subTest(context=context), self.both(
                    "training with a mask" if context else "training without one", self.rows(1, context_image=context),
                    extra="layer_num,layer_input_image,context_image"):
                pass

    def test_training_from_what_encoders_alone_have_kept(self):
        with self.train(self.rows(), seed=7, max_train_steps=2, lora_base_model="dit", lora_target_modules="to_q") as run:
            expected = run.losses()
        encoders = [self.models.folder / part for part in ("vae", "text_encoder", "tokenizer")]
        hint = json.dumps({"*": {"variant": "qwen-image-layered"}})
        data = [(np.zeros((64, 64, 3), np.uint8), "x")]
        cache = self.dir / "cache"
        with atelier.train(encoders, data, **self.flags(self.rows(), task="sft:data_process", model_hints=hint),
                           cache_path=cache, save_steps=None, checkpoints_total_limit=None, enable_csv_log=None):
            pass
        with atelier.train(self.models.folder / "transformer", data, task="sft:train", dataset_base_path=cache,
                           dataset_metadata_path=None, seed=7, max_train_steps=2, lora_base_model="dit",
                           lora_target_modules="to_q", learning_rate=steps.RATE) as run:
            self.assertEqual(expected, run.losses())

    def refused_rows(self, rows, *told, **flags):
        given = dict(plugin="qwen_image", model_paths=atelier.paths_argument(self.models.folder), device="cpu",
                     output_path=self.dir / "run", lora_base_model="dit") | self.flags(rows, **flags)
        words = [str(word) for name, value in given.items() for word in ("--" + name, value)]
        said = atelier.run_line([str(atelier.program()), "train", *words], code=2).stderr
        for text in told:
            self.assertIn(text, said)
        self.assertFalse((self.dir / "run").exists())

    def test_pictures_that_do_not_lie_on_each_other_are_refused(self):
        picture(48, 64, 1).save(self.data / "small.png")
        self.refused_rows(self.rows(image=["0_0.png", "small.png", "0_2.png"]), "small.png is 64x48", "give them one size")
        self.refused_rows(self.rows(layer_input_image="small.png"), "small.png is 64x48", "the image 96x64",
                          "give them one shape")
        self.refused_rows(self.rows(layer_num=4), "layer_num: 4 layers", "3 are given")
        self.refused_rows(self.rows(), "has 3 pictures, and --alpha_mask", alpha_mask="true")

    def test_a_picture_may_be_larger_than_its_layers(self):
        picture(2 * HEIGHT, 2 * WIDTH, 1).save(self.data / "large.png")
        with self.train(self.rows(layer_input_image="large.png"), max_train_steps=1, lora_base_model="dit",
                        lora_target_modules="to_q") as run:
            self.assertEqual({(16, 1, HEIGHT // 8, WIDTH // 8)},
                             {tuple(one["reference_1"].shape) for one in run.encodings("references")})

    def test_other_models_learn_one_picture(self):
        with self.assertRaisesRegex(atelier.ProgramFailed, "has 2 pictures, and the model makes one"):
            rows = [{"image": ["0_0.png", "0_1.png"], "prompt": "a"}]
            with atelier.train(self.models.tiny.model, [(np.zeros((64, 64, 3), np.uint8), "x")],
                               **self.flags(rows, extra=None), lora_base_model="dit"):
                pass


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0]])
