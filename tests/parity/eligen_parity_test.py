"""Prompts of regions, EliGen's entities, give what diffusers' denoiser gives with a dense mask: velocities, gradients, whole images
and a training step."""

import json
import sys
import unittest
from unittest import mock

import numpy as np
import torch
from diffusers import QwenImageTransformer2DModel
from PIL import Image

import atelier
import compare
import edit_models
import eligen_models
import references
import tiny_models
import train_parity_test as steps
import training
from pipeline_parity_test import NEGATIVE, PROMPT, levels, noise
from tiny_run import FolderTest

HEIGHT, WIDTH, STEPS, SCALE = 64, 96, 3, 3.0
TOLERANCE = 1e-5
ENTITIES = ["a red circle", "一只可爱的猫", "the sea, far away and calm in the last light of a long day"]


class DenoiserTest(unittest.TestCase):
    height, width = 5, 6

    @classmethod
    def setUpClass(cls):
        cls.models = tiny_models.get()
        cls.transformer = cls.models.transformer

    def inputs(self, count, seed=91):
        """Random inputs with entities of different lengths, whose regions overlap."""
        generator = torch.Generator().manual_seed(seed)
        normal = lambda *sizes: torch.randn(sizes, generator=generator)
        regions = torch.rand((count, self.height * self.width), generator=generator) < 0.4
        inputs = {"latents": normal(1, 16, 1, 2 * self.height, 2 * self.width), "sigma": torch.tensor([0.6]),
                  "prompt_embeds": normal(1, 11, 96)}
        inputs |= {f"entity_{i + 1}": normal(1, 3 + 5 * i % 7, 96) for i in range(count)}
        return inputs, regions

    def check(self, name, inputs, regions, sizes=()):
        """Values and all gradients; `sizes`: of references, in tokens."""
        count, folder = len(regions), self.models.model / "transformer"
        generator = torch.Generator().manual_seed(17)
        for number, (height, width) in enumerate(sizes):
            inputs[f"reference_{number + 1}"] = torch.randn((1, 16, 1, 2 * height, 2 * width), generator=generator)
        given = {**inputs, "regions": eligen_models.bits(regions, self.height, self.width)[None]}
        got = atelier.probe("dit", folder, given, gradients=True, trainable="*")
        leaves = {key: value.clone().requires_grad_(True) for key, value in inputs.items()}
        entities = [leaves[f"entity_{i + 1}"][0] for i in range(count)]
        pictures = [leaves[f"reference_{i + 1}"] for i in range(len(sizes))]
        expected = eligen_models.velocity(self.transformer, leaves["latents"], leaves["sigma"], leaves["prompt_embeds"],
                                          entities, regions, pictures)
        compare.assert_close(name + ", values", got["velocity"], expected, TOLERANCE)
        with mock.patch.object(compare, "TOLERANCE", TOLERANCE):
            compare.assert_gradients(name + ", gradients", got,
                                     references.gradients(expected, leaves, dict(self.transformer.named_parameters())))
        return got["velocity"]

    def test_entities_give_the_same_velocity_and_gradients(self):
        for count in (1, 3, 9):
            with self.subTest(count=count):
                self.check("entities", *self.inputs(count))

    def test_a_region_of_no_token_is_of_no_one(self):
        inputs, regions = self.inputs(3)
        regions[1] = False
        self.check("entities, one of them nowhere", inputs, regions)

    def test_references_see_no_entity(self):
        self.check("entities beside references", *self.inputs(3), sizes=((3, 4), (5, 6)))

    def test_the_last_of_61_entities_is_seen(self):
        inputs, regions = self.inputs(61)
        regions[:60] = False
        self.check("61 entities", inputs, regions)

    def test_a_batch_equals_its_samples(self):
        samples = [self.inputs(2, seed) for seed in (92, 93)]
        given = {key: torch.cat([inputs[key] for inputs, _ in samples]) for key in samples[0][0]}
        given["regions"] = torch.stack([eligen_models.bits(regions, self.height, self.width) for _, regions in samples])
        together = atelier.probe("dit", self.models.model / "transformer", given)["velocity"]
        for row, (inputs, regions) in enumerate(samples):
            with torch.no_grad():
                expected = eligen_models.velocity(self.transformer, inputs["latents"], inputs["sigma"], inputs["prompt_embeds"],
                                                  [inputs[f"entity_{i + 1}"][0] for i in range(2)], regions)
            compare.assert_close("entities of a batch", together[row:row + 1], expected, TOLERANCE)

    def test_words_of_the_prompt_stand_in_each_region(self):
        inputs, regions = self.inputs(2)
        prompt = inputs["prompt_embeds"]
        given = {key: inputs[key] for key in ("latents", "sigma", "prompt_embeds")}
        given |= {"regions": eligen_models.bits(regions, self.height, self.width)[None],
                  "entities_of_prompt": torch.empty(1, 0, 2)}
        got = atelier.probe("dit", self.models.model / "transformer", given)["velocity"]
        with torch.no_grad():
            expected = eligen_models.velocity(self.transformer, inputs["latents"], inputs["sigma"], prompt, [prompt[0]] * 2,
                                              regions)
        compare.assert_close("entities of the prompt", got, expected, TOLERANCE)


class Masks(FolderTest):
    SIZES = (96, 64), (200, 130), (31, 77)  # width and height

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = tiny_models.get()
        cls.masks = [cls.write_mask(number, size) for number, size in enumerate(cls.SIZES)]
        cls.regions = torch.stack([eligen_models.shown(path, HEIGHT, WIDTH) for path in cls.masks])

    @classmethod
    def write_mask(cls, number, size):
        """Blots of a seed, with an edge that is neither black nor white; the last of them are coloured."""
        small = np.random.default_rng(number).integers(0, 256, (4, 5, 3) if number == 2 else (4, 5), np.uint8)
        path = cls.root / f"mask {number}.png"
        Image.fromarray(small).resize(size, Image.BICUBIC).save(path)
        return path

    def embeds(self, text):
        with torch.no_grad():
            return self.tiny.pipeline.encode_prompt(text, device="cpu")[0][0]


class ImagesTest(Masks):

    def setUp(self):
        super().setUp()
        self.latents = noise(1, HEIGHT, WIDTH, seed=53)

    def ours(self, count, model=None, **flags):
        shared = dict(prompt=PROMPT, negative_prompt=NEGATIVE, height=HEIGHT, width=WIDTH, num_inference_steps=STEPS,
                      cfg_scale=SCALE, dtype="float32")
        entities = dict(eligen_entity_prompts=ENTITIES[:count], eligen_entity_masks=self.masks[:count]) if count else {}
        return atelier.generate(model or self.tiny.model, self.latents, **{**shared, **entities, **flags})

    def reference(self, count, on_negative=False, pipeline=None, **inputs):
        """The pipeline's image; of its two calls a step the first has entities, and the second where they are on the negative
        branch, in words of its prompt."""
        pipeline = pipeline or self.tiny.pipeline
        transformer, plain = pipeline.transformer, pipeline.transformer.forward
        entities, calls = [self.embeds(text) for text in ENTITIES[:count]], [0]

        def forward(encoder_hidden_states, hidden_states, encoder_hidden_states_mask=None, **given):
            is_negative = calls[0] % 2 == 1
            calls[0] += 1
            if is_negative and not on_negative:
                return plain(encoder_hidden_states=encoder_hidden_states, hidden_states=hidden_states,
                             encoder_hidden_states_mask=encoder_hidden_states_mask, **given)
            prompt = encoder_hidden_states[0]
            texts = ([prompt] * count if is_negative else entities) + [prompt]
            with eligen_models.regional(transformer, [len(text) for text in texts], self.regions[:count],
                                        hidden_states.shape[1]):
                return plain(encoder_hidden_states=torch.cat(texts)[None], hidden_states=hidden_states, **given)

        pipeline.set_progress_bar_config(disable=True)
        with mock.patch.object(transformer, "forward", forward):
            return levels(
                pipeline(prompt=PROMPT, negative_prompt=NEGATIVE, true_cfg_scale=SCALE, height=HEIGHT, width=WIDTH,
                         num_inference_steps=STEPS, latents=references.pack(self.latents), output_type="np",
                         **inputs).images)

    def check(self, name, got, expected):
        compare.assert_images(name, got, expected, tolerance=0.01)

    def test_entities_of_masks_of_any_size_give_the_same_picture(self):
        plain = np.asarray(self.ours(0), np.float64)
        for count in (1, 3):
            got = self.ours(count)
            self.check("entities", got, self.reference(count))
            self.assertGreater(np.abs(np.asarray(got, np.float64) - plain).mean(), 2,
                               "entities change too little for the test to prove anything")

    def test_branches_together_and_apart_give_the_same_picture(self):
        expected = self.reference(3, on_negative=True)
        for batch in ("on", "off"):
            got = self.ours(3, eligen_enable_on_negative="true", cfg_batch=batch)
            self.check("entities on the negative branch", got, expected)
        self.assertFalse(np.array_equal(got, self.ours(3)))

    def test_entities_of_an_edited_picture_are_of_the_image_alone(self):
        models = edit_models.EditModels(self.root)
        folder = models.variant("Qwen-Image-Edit-2511", zero_cond_t=True)
        picture = edit_models.smooth_picture(60, 70, 5)
        picture.save(self.root / "picture.png")
        expected = self.reference(3, pipeline=models.pipeline(folder), image=[picture])
        got = self.ours(3, folder, edit_image=self.root / "picture.png")
        self.check("entities of an edited picture", got, expected)


class TrainTest(Masks):
    """Two rows, with one entity and with three, whose masks have sizes of their own."""
    COUNTS = (1, 3)
    SIZES = (48, 64), (96, 128), (31, 41)  # of about the image's shape

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.data = cls.root / "data"
        cls.data.mkdir()
        rows = []
        for number, count in enumerate(cls.COUNTS):
            Image.fromarray(steps.picture(71 + number)).save(cls.data / f"{number}.png")
            rows.append({"image": f"{number}.png", "prompt": PROMPT[:20 + number], "eligen_entity_prompts": ENTITIES[:count],
                         "eligen_entity_masks": [str(path) for path in cls.masks[:count]]})
        (cls.data / "metadata.json").write_text(json.dumps(rows))

    def regions_of(self, path, height, width):
        """As the picture is, the mask is scaled until it covers the image's size, and the middle is cut out."""
        mask = Image.open(path).convert("RGB")
        scale = max(width / mask.width, height / mask.height)
        mask = mask.resize((round(mask.width * scale), round(mask.height * scale)), Image.BILINEAR)
        left, top = round((mask.width - width) / 2), round((mask.height - height) / 2)
        cut = self.dir / "cut.png"
        mask.crop((left, top, left + width, top + height)).save(cut)
        return eligen_models.shown(cut, height, width)

    def sample(self, number):
        return training.encode(self.tiny, steps.picture(71 + number), PROMPT[:20 + number])

    def with_entities(self, transformer):
        """A denoiser that sees the entities of each sample, one sample at a time, which it knows by the length of its prompt."""
        lengths = [len(self.sample(number).prompt_embeds) for number in range(len(self.COUNTS))]
        self.assertEqual(len(set(lengths)), len(lengths))

        def forward(hidden_states, encoder_hidden_states, encoder_hidden_states_mask, timestep, img_shapes, return_dict):
            samples = []
            for row, shapes in enumerate(img_shapes):
                mask = encoder_hidden_states_mask
                length = encoder_hidden_states.shape[1] if mask is None else int(mask[row].sum())
                count = self.COUNTS[lengths.index(length)]
                _, height, width = shapes[0]
                texts = [*(self.embeds(text) for text in ENTITIES[:count]), encoder_hidden_states[row, :length]]
                regions = [self.regions_of(path, 16 * height, 16 * width) for path in self.masks[:count]]
                with eligen_models.regional(transformer, [len(text) for text in texts], regions, hidden_states.shape[1]):
                    tokens, = transformer(hidden_states=hidden_states[row:row + 1], encoder_hidden_states=torch.cat(texts)[None],
                                          timestep=timestep[row:row + 1], img_shapes=[shapes], return_dict=return_dict)
                samples.append(tokens)
            return (torch.cat(samples),)

        forward.dtype = transformer.dtype
        return forward

    def train(self, **flags):
        flags = dict(dataset_base_path=self.data, dataset_metadata_path=self.data / "metadata.json",
                     data_file_keys="image,eligen_entity_masks", extra_inputs="eligen_entity_masks,eligen_entity_prompts",
                     max_train_steps=1, learning_rate=steps.RATE, **flags)
        return atelier.train(self.tiny.model, [(np.zeros((64, 64, 3), np.uint8), "x")], **flags)

    def test_a_step_of_a_lora_on_rows_of_one_and_three_entities_is_that_of_peft(self):
        transformer = QwenImageTransformer2DModel.from_pretrained(self.tiny.model / "transformer")
        helper = steps.TrainParityTest()
        helper.dir, helper.transformer = self.root, lambda: transformer
        helper.lora()
        flags = helper.lora_flags(transformer)
        parameters = steps.trained(transformer)
        samples = [self.sample(number) for number in range(len(self.COUNTS))]
        losses, first = training.train(self.with_entities(transformer), steps.adamw(parameters.values()), lambda: samples,
                                       seed=7, batch_size=2)
        with self.train(seed=7, batch_size=2, **flags) as run:
            compare.assert_close("entities in training, loss", torch.tensor(run.losses()), torch.tensor(losses), TOLERANCE)
            expected = {
                key: torch.zeros_like(parameter) if gradient is None else gradient
                for (key, parameter), gradient in zip(parameters.items(), first)
            }
            compare.assert_all_close("entities in training, gradients", steps.gradients(run), expected, TOLERANCE, steps.FLOOR)


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0]])
