"""A LoRA on 4-bit weights of examples/shapes/model is trained as on bitsandbytes' layers with peft: the loss of every step, at a
constant and at a falling rate, and how far that is from the same training on plain weights."""

import csv
import pathlib
import sys
import tempfile
import types
import unittest

import bitsandbytes
import numpy as np
import peft.tuners.lora.bnb
import torch
from diffusers import QwenImagePipeline, QwenImageTransformer2DModel
from diffusers.optimization import get_scheduler
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from PIL import Image

import atelier
import compare
import training

MODEL = atelier.REPOSITORY / "examples/shapes/model"
DATA = atelier.REPOSITORY / "examples/shapes/hatched"
# The program's own choice where no layer is named.
TARGETS = [
    "to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out", "img_mlp.net.2",
    "img_mod.1", "txt_mlp.net.2", "txt_mod.1"
]
RANK, RATE, SEED, BATCH = 16, 2e-3, 3, 4
STEPS = 50  # in which the loss is halved
TOLERANCE = 1e-5  # of a step's loss


def rows():
    """Images and captions of the example's data."""
    with open(DATA / "metadata.csv", newline="", encoding="utf-8") as file:
        return [(np.array(Image.open(DATA / row["image"]).convert("RGB")), row["prompt"])
                for row in csv.DictReader(file)]


def four_bit_layer(layer, kind):
    """bitsandbytes' layer with the weight and bias of a torch.nn.Linear."""
    made = bitsandbytes.nn.Linear4bit(layer.in_features, layer.out_features, device="meta", quant_type=kind,
                                      compute_dtype=torch.float32)
    made.weight = bitsandbytes.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type=kind).to("cpu")
    made.bias = layer.bias
    return made


def denoiser(storage):
    """diffusers' class; linear layers of blocks are bitsandbytes' where `storage` is one of its kinds. diffusers itself makes them
    on a GPU only."""
    transformer = QwenImageTransformer2DModel.from_pretrained(MODEL / "transformer", dtype=torch.float32)
    transformer.requires_grad_(False)
    if storage == "plain":
        return transformer
    blocks = transformer.transformer_blocks
    for name, layer in list(blocks.named_modules()):
        if isinstance(layer, torch.nn.Linear):
            parent, _, leaf = name.rpartition(".")
            setattr(blocks.get_submodule(parent), leaf, four_bit_layer(layer, storage))
    transformer.is_loaded_in_4bit = True  # which peft asks
    return transformer


def add_lora(transformer):
    """A at random, the same in every call, and B zero."""
    transformer.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=TARGETS))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in transformer.named_parameters():
            if "lora_A" in name:
                value.copy_((2 * torch.rand(value.shape, generator=generator) - 1) / value.shape[1]**0.5)


class FourBitsParityTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="atelier_four_bits_")
        cls.addClassCleanup(holder.cleanup)
        cls.dir = pathlib.Path(holder.name)
        cls.rows = rows()
        pipeline = QwenImagePipeline.from_pretrained(MODEL, dtype=torch.float32)
        models = types.SimpleNamespace(vae=pipeline.vae, pipeline=pipeline)
        with torch.no_grad():
            cls.samples = [training.encode(models, *row) for row in cls.rows]

    def losses(self, storage, scheduler, steps):
        """Of every step, the program's and the reference's."""
        transformer = denoiser(storage)
        add_lora(transformer)
        layer = transformer.transformer_blocks[0].attn.to_q
        self.assertEqual(storage != "plain", isinstance(layer, peft.tuners.lora.bnb.Linear4bit))
        QwenImagePipeline.save_lora_weights(self.dir,
                                            transformer_lora_layers=get_peft_model_state_dict(transformer),
                                            weight_name="start.safetensors")
        optimizer = torch.optim.AdamW([value for value in transformer.parameters() if value.requires_grad],
                                      lr=RATE,
                                      weight_decay=0.01)
        schedule = get_scheduler(scheduler, optimizer, num_training_steps=steps, num_warmup_steps=0)
        expected, _ = training.train(transformer, optimizer, lambda: self.samples, steps, SEED, schedule=schedule,
                                     repeat=steps, batch_size=BATCH)
        flags = dict(lora_base_model="dit", lora_rank=RANK, lora_checkpoint=self.dir / "start.safetensors",
                     storage=f"dit={storage}", learning_rate=RATE, lr_scheduler=scheduler, adam_epsilon=1e-8,
                     seed=SEED, batch_size=BATCH, dataset_repeat=steps, max_train_steps=steps, save_steps=steps)
        with atelier.train(MODEL, self.rows, **flags) as run:
            got = run.losses()
        return torch.tensor(got, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64)

    def check(self, storage, scheduler, steps):
        """Returns the program's losses."""
        got, expected = self.losses(storage, scheduler, steps)
        self.assertEqual(steps, len(got))
        compare.assert_close(f"a LoRA on {storage}, {scheduler} rate, {steps} steps", got / expected,
                             torch.ones_like(got), TOLERANCE)
        return got

    def test_every_step_on_nf4_has_the_loss_of_bitsandbytes_and_peft(self):
        plain, packed = (self.check(storage, "constant", STEPS) for storage in ("plain", "nf4"))
        self.assertLess(packed[-20:].mean(), 0.5 * packed[0])
        compare.record(f"loss on nf4 above that on plain weights, last 20 of {STEPS} steps, %",
                       100 * (packed[-20:].mean() / plain[-20:].mean() - 1))

    def test_every_step_at_a_falling_rate_has_the_loss_of_bitsandbytes_and_peft(self):
        self.check("nf4", "cosine", 20)

    def test_every_step_on_fp4_has_the_loss_of_bitsandbytes_and_peft(self):
        self.check("fp4", "constant", 20)


if __name__ == "__main__":
    sys.exit(unittest.main())
