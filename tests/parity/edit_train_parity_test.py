"""A training step of a LoRA for Qwen-Image-Edit is that of peft, with pictures of JSON lists; what is
encoded of them is kept, and stays where a caption is left out."""

import json
import sys
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
from tiny_run import FolderTest

PICTURES = [(304, 208, 1), (128, 256, 2)]  # height, width and seed; sides that may be kept
# What a row says, and which pictures it has.
ROWS = [("Turn the cat of picture 1 blue", (0, 1)), ("Paint it red", (1,))]
TOLERANCE = 1e-4


class WithReferences:
    """A denoiser that sees the references of each sample, one sample at a time. `latents`: those of
    the prompt that has so many tokens."""

    def __init__(self, transformer, latents):
        self.transformer, self.dtype, self.latents = transformer, transformer.dtype, latents

    def __call__(self, hidden_states, encoder_hidden_states, encoder_hidden_states_mask, timestep,
                 img_shapes, return_dict):
        lengths = [encoder_hidden_states.shape[1]] * len(hidden_states)
        if encoder_hidden_states_mask is not None:
            lengths = encoder_hidden_states_mask.sum(1).tolist()
        samples = []
        for row, (length, shapes) in enumerate(zip(lengths, img_shapes)):
            latents = self.latents[length]
            own = hidden_states[row:row + 1]
            sizes = [(1, value.shape[-2] // 2, value.shape[-1] // 2) for value in latents]
            tokens, = self.transformer(hidden_states=torch.cat([own, *map(references.pack, latents)],
                                                               1),
                                       encoder_hidden_states=encoder_hidden_states[row:row + 1, :length],
                                       timestep=timestep[row:row + 1],
                                       img_shapes=[shapes + sizes],
                                       return_dict=return_dict)
            samples.append(tokens[:, :own.shape[1]])
        return (torch.cat(samples),)


class EditTrainTest(FolderTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = edit_models.EditModels(cls.root)
        cls.folder = cls.models.variant("Qwen-Image-Edit-2511", zero_cond_t=True)
        cls.pipeline = cls.models.pipeline(cls.folder)
        cls.pictures = [smooth_picture(*picture) for picture in PICTURES]
        cls.data = cls.root / "data"
        cls.data.mkdir()
        for number, picture in enumerate(cls.pictures):
            picture.save(cls.data / f"{number}.png")
        rows = []
        for number, (prompt, pictures) in enumerate(ROWS):
            Image.fromarray(steps.picture(61 + number)).save(cls.data / f"new_{number}.png")
            rows.append({"image": f"new_{number}.png", "prompt": prompt,
                         "edit_image": [f"{picture}.png" for picture in pictures]})
        (cls.data / "rows.json").write_text(json.dumps(rows))

    def sample(self, number, prompt=None):
        own_prompt, pictures = ROWS[number]
        shown = [edit_models.shown(self.pictures[picture]) for picture in pictures]
        pixels = torch.from_numpy(steps.picture(61 + number)).permute(2, 0, 1)[None] / 255 * 2 - 1
        with torch.no_grad():
            embeds, _ = self.pipeline.encode_prompt(prompt or own_prompt, image=shown, device="cpu")
            latents = references.encode(self.models.vae, pixels)[0]
        return training.Sample(latents, embeds[0])

    def encoded(self, picture, is_resized):
        width, height = edit_models.size_of_area(1024 * 1024, picture) if is_resized else picture.size
        pixels = self.pipeline.image_processor.preprocess(picture, height, width)
        with torch.no_grad():
            return references.encode(self.models.vae, pixels)

    def references(self, is_resized=True):
        """The latents of the pictures of each row."""
        latents = [self.encoded(picture, is_resized) for picture in self.pictures]
        return [[latents[picture] for picture in pictures] for _, pictures in ROWS]

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

    def test_a_step_of_a_lora_on_rows_of_one_and_two_pictures_is_that_of_peft(self):
        transformer = QwenImageTransformer2DModel.from_pretrained(self.folder / "transformer")
        helper = steps.TrainParityTest()
        helper.dir, helper.transformer = self.root, lambda: transformer
        helper.lora()
        flags = helper.lora_flags(transformer)
        parameters = steps.trained(transformer)
        samples = [self.sample(number) for number in range(len(ROWS))]
        latents = {len(sample.prompt_embeds): latents
                   for sample, latents in zip(samples, self.references(is_resized=False))}
        losses, first = training.train(WithReferences(transformer, latents),
                                       steps.adamw(parameters.values()), lambda: samples,
                                       seed=7, batch_size=2)
        with self.train(seed=7, batch_size=2, edit_image_auto_resize="false", **flags) as run:
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
            texts, kept = run.encodings("text"), run.encodings("references")
        for number, latents in enumerate(self.references()):
            for prompt in (None, " "):
                expected = self.sample(number, prompt).prompt_embeds
                got, = [text["prompt_embeds"] for text in texts
                        if text["prompt_embeds"].shape == expected.shape]
                compare.assert_close("edit training, encoded texts", got, expected, TOLERANCE)
            names = {f"reference_{place + 1}" for place in range(len(latents))}
            got, = [one for one in kept if set(one) == names | {"clean_pictures"}]
            for place, expected in enumerate(latents):
                compare.assert_close("edit training, encoded references",
                                     got[f"reference_{place + 1}"][None], expected, TOLERANCE)


if __name__ == "__main__":
    sys.exit(unittest.main())
