"""A training step of a LoRA for Qwen-Image-Edit is that of peft, with pictures of JSON lists; what is
encoded of them is kept, and stays where a caption is left out."""

import json
import pathlib
import sys
import tempfile
import unittest

import numpy as np
import torch
from diffusers import QwenImageTransformer2DModel
from PIL import Image

import atelier
import compare
import edit_models
import references
import train_parity_test as steps
import training
from edit_models import smooth_picture

PROMPT = "Turn the cat of picture 1 blue"
PICTURES = [(300, 200, 1), (120, 260, 2)]
TOLERANCE = 1e-4


class WithReferences:
    """A denoiser that is given the same references in every call."""

    def __init__(self, transformer, latents):
        self.transformer, self.dtype = transformer, transformer.dtype
        self.rows = [references.pack(value) for value in latents]
        self.shapes = [(1, value.shape[-2] // 2, value.shape[-1] // 2) for value in latents]

    def __call__(self, hidden_states, img_shapes, **given):
        batch, count, _ = hidden_states.shape
        rows = [row.expand(batch, -1, -1) for row in self.rows]
        tokens, = self.transformer(hidden_states=torch.cat([hidden_states, *rows], 1),
                                   img_shapes=[shapes + self.shapes for shapes in img_shapes],
                                   **given)
        return (tokens[:, :count],)


class EditTrainTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory(prefix="atelier_edit_train_")
        cls.dir = pathlib.Path(cls.holder.name)
        cls.models = edit_models.EditModels(cls.dir)
        cls.folder = cls.models.variant("Qwen-Image-Edit-2511", zero_cond_t=True)
        cls.pipeline = cls.models.pipeline(cls.folder)
        cls.pictures = [smooth_picture(*picture) for picture in PICTURES]
        cls.data = cls.dir / "data"
        cls.data.mkdir()
        Image.fromarray(steps.picture(61)).save(cls.data / "new.png")
        for number, picture in enumerate(cls.pictures):
            picture.save(cls.data / f"{number}.png")
        row = {"image": "new.png", "prompt": PROMPT, "edit_image": ["0.png", "1.png"]}
        (cls.data / "rows.json").write_text(json.dumps([row]))

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def sample(self, prompt=PROMPT):
        shown = [edit_models.shown(picture) for picture in self.pictures]
        pixels = torch.from_numpy(steps.picture(61)).permute(2, 0, 1)[None] / 255 * 2 - 1
        with torch.no_grad():
            embeds, _ = self.pipeline.encode_prompt(prompt, image=shown, device="cpu")
            latents = references.encode(self.models.tiny.vae, pixels)[0]
        return training.Sample(latents, embeds[0])

    def references(self):
        latents = []
        for picture in self.pictures:
            width, height = edit_models.size_of_area(1024 * 1024, picture)
            pixels = self.pipeline.image_processor.preprocess(picture, height, width)
            with torch.no_grad():
                latents.append(references.encode(self.models.tiny.vae, pixels))
        return latents

    def train(self, **flags):
        flags = dict(dataset_base_path=self.data,
                     dataset_metadata_path=self.data / "rows.json",
                     data_file_keys="image,edit_image",
                     extra_inputs="edit_image",
                     zero_cond_t=True,
                     max_train_steps=1,
                     learning_rate=steps.RATE,
                     **flags)
        return atelier.train(self.folder, [(np.zeros((64, 64, 3), np.uint8), "x")], **flags)

    def test_a_step_of_a_lora_is_that_of_peft(self):
        transformer = QwenImageTransformer2DModel.from_pretrained(self.folder / "transformer")
        helper = steps.TrainParityTest()
        helper.dir, helper.transformer = self.dir, lambda: transformer
        helper.lora()
        flags = helper.lora_flags(transformer)
        parameters = steps.trained(transformer)
        losses, first = training.train(WithReferences(transformer, self.references()),
                                       steps.adamw(parameters.values()), lambda: [self.sample()],
                                       seed=7)
        with self.train(seed=7, **flags) as run:
            compare.assert_close("edit training, loss", torch.tensor(run.losses()),
                                 torch.tensor(losses), TOLERANCE)
            expected = {
                key: torch.zeros_like(parameter) if gradient is None else gradient
                for (key, parameter), gradient in zip(parameters.items(), first)
            }
            compare.assert_all_close("edit training, gradients", steps.gradients(run), expected,
                                     TOLERANCE, steps.FLOOR)
            compare.assert_all_close("edit training, parameters", run.state(1, "trained"),
                                     {key: value.detach() for key, value in parameters.items()},
                                     TOLERANCE)

    def test_what_is_kept_is_what_the_references_encode(self):
        with self.train(lora_base_model="dit", lora_target_modules="to_q",
                        caption_dropout_rate=0.5) as run:
            texts = run.encodings("text")
            kept, = run.encodings("references")
        for prompt in (PROMPT, " "):
            expected = self.sample(prompt).prompt_embeds
            got, = [text["prompt_embeds"] for text in texts
                    if text["prompt_embeds"].shape == expected.shape]
            compare.assert_close("edit training, encoded texts", got, expected, TOLERANCE)
        for number, expected in enumerate(self.references()):
            compare.assert_close("edit training, encoded references",
                                 kept[f"reference_{number + 1}"][None], expected, TOLERANCE)


if __name__ == "__main__":
    sys.exit(unittest.main())
