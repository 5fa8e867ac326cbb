"""A training step of Wan on latents of clips moves every parameter as the same step does that is
written with diffusers, peft and torch.optim.AdamW: of a LoRA, of two experts, where each step is of
one of them, and of Wan 2.2 TI2V, whose first frame stays clean."""

import contextlib
import dataclasses
import json
import sys
import unittest
import zlib

import numpy as np
import torch
from diffusers import WanPipeline
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file

import atelier
import clip_cache
import compare
import training
import wan_checks
import wan_models

TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4  # of the scale
FLOOR = 1e-3  # see train_parity_test.py
RATE, BETA1, EPS = 5e-3, 0.9, 1e-3
TARGETS = "q,k,v,o,ffn.0,ffn.2"
PROMPTS = ["A coffee shop entrance", "A red bicycle leans on a wall, oil painting", "red"]
FRAMES, HEIGHT, WIDTH = 9, 32, 48
# The levels of the experts, by their places in the table.
EXPERTS = {"dit": (0, 417), "dit2": (417, 1000)}
WHOLE = {"dit": (0, 1000)}


def table():
    """The 1,000 levels, from pure noise on, shifted by 5."""
    u = 1 - np.arange(1000) / 1000
    return 5 * u / (1 + 4 * u)


def weights():
    bell = np.exp(-2 * (table() - 0.5)**2)
    bell -= bell.min()
    return bell * 1000 / bell.sum()


def denoiser_of(seed, step, parts):
    """The one that a step is of: as likely as it has levels."""
    left = training.draw_uniform(seed, 0, step, training.DENOISER)
    for name, (first, last) in parts.items():
        if left < (last - first) / 1000:
            break
        left -= (last - first) / 1000
    return name


def level_of(seed, slot, step, part):
    first, last = part
    return min(first + int(training.draw_uniform(seed, slot, step) * (last - first)), last - 1)


def name_here(component, name):
    """The program's name of a parameter of diffusers."""
    name, = wan_models.renamed({name.replace(".default.weight", ""): None}, wan_models.ORIGINAL_DIT)
    return f"{component}.{name}"


@dataclasses.dataclass
class Sample:
    """A row: float32 [C, T, h, w], [L, D], and the clean first frame where there is one."""
    latents: torch.Tensor
    prompt_embeds: torch.Tensor
    first_frame: torch.Tensor | None = None


class Steps(wan_checks.FolderTest):
    """Training steps on both sides; what they learn from is in `cache` and in `samples`."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.models = wan_models.get()

    # --- the reference side ---

    def velocity(self, transformer, samples, noisy, sigma, embeds, lengths, first):
        return wan_models.velocity(transformer, noisy, sigma, embeds, lengths, first_frame=first)

    def loss(self, transformer, batch, seed, step, part):
        """The sum over the samples of weight * mean(error^2)."""
        samples = [self.samples[row] for row, _ in batch]
        levels = [level_of(seed, slot, step, part) for _, slot in batch]
        sigma = torch.tensor(table()[levels], dtype=torch.float32)
        weight = torch.tensor(weights()[levels], dtype=torch.float32)
        clean = torch.stack([sample.latents for sample in samples])
        noise = torch.stack([
            training.normal_noise(training.stream_seed(seed, training.NOISE), slot, step,
                                  tuple(clean.shape[1:])) for _, slot in batch
        ])
        at = sigma.view(-1, 1, 1, 1, 1)
        noisy = (1 - at) * clean + at * noise
        first = None
        if samples[0].first_frame is not None:
            first = torch.stack([sample.first_frame for sample in samples])
            noisy[:, :, :1] = first
        embeds = torch.nn.utils.rnn.pad_sequence([sample.prompt_embeds for sample in samples],
                                                 batch_first=True)
        lengths = torch.tensor([len(sample.prompt_embeds) for sample in samples])
        velocity = self.velocity(transformer, samples, noisy, sigma, embeds, lengths, first)
        error = (velocity - (noise - clean)).square()[:, :, 0 if first is None else 1:]
        return (weight * error.flatten(1).mean(dim=1)).sum()

    def velocity(self, transformer, samples, noisy, sigma, embeds, lengths, first):
        return wan_models.velocity(transformer, noisy, sigma, embeds, lengths, first_frame=first)

    def reference(self, transformers, parts, steps, seed, shape):
        """Trains; returns the losses, the denoisers of the steps, and the first step's gradients."""
        parameters = self.parameters(transformers)
        optimizer = torch.optim.AdamW(parameters.values(), lr=RATE, betas=(BETA1, 0.999), eps=EPS,
                                      weight_decay=0.01)
        losses, denoisers, first = [], [], None
        planned = training.plan(len(self.samples), seed, **shape)
        for step, batches in zip(range(steps), planned):
            optimizer.zero_grad()
            denoisers.append(denoiser_of(seed, step, parts))
            losses.append(0.0)
            for batch in batches:
                loss = self.loss(transformers[denoisers[-1]], batch, seed, step,
                                 parts[denoisers[-1]]) / sum(map(len, batches))
                loss.backward()
                losses[-1] += loss.item()
            if first is None:
                first = {
                    name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                    for name, p in parameters.items()
                }
            optimizer.step()
        return losses, denoisers, first

    @staticmethod
    def parameters(transformers):
        return {
            name_here(component, name): parameter
            for component, transformer in transformers.items()
            for name, parameter in transformer.named_parameters()
            if parameter.requires_grad
        }

    # --- comparisons ---

    @contextlib.contextmanager
    def both(self, name, transformers, parts, paths, steps, seed=42, batch_size=1, accumulation=2,
             **flags):
        """Trains on both sides; yields the run and the denoisers of the steps."""
        start = {key: value.detach().clone() for key, value in self.parameters(transformers).items()}
        shape = dict(batch_size=batch_size, accumulation=accumulation)
        losses, denoisers, first = self.reference(transformers, parts, steps, seed, shape)
        defaults = dict(plugin="wan",
                        task="sft:train",
                        dataset_base_path=self.cache,
                        dataset_metadata_path=None,
                        seed=seed,
                        batch_size=batch_size,
                        gradient_accumulation_steps=accumulation,
                        num_epochs=steps,
                        max_train_steps=steps,
                        learning_rate=RATE)
        rows = [(np.zeros((HEIGHT, WIDTH, 3), np.uint8), "unused")]
        with atelier.train(paths, rows, **{**defaults, **flags}) as run:
            compare.assert_close(name + ", losses", torch.tensor(run.losses()),
                                 torch.tensor(losses), TOLERANCE)
            state = run.state(1, "optimizer")
            gradients = {key: state[key + ".exp_avg"] / (1 - BETA1) for key in first}
            compare.assert_all_close(name + ", gradients", gradients, first, GRADIENT_TOLERANCE,
                                     FLOOR)
            expected = {k: v.detach() for k, v in self.parameters(transformers).items()}
            compare.assert_all_close(name + ", parameters", run.state(steps, "trained"), expected,
                                     TOLERANCE)
            moved = [key for key, value in expected.items() if not torch.equal(value, start[key])]
            self.assertGreater(len(moved), 0.9 * len(start))
            yield run, denoisers


class WanTrainTest(Steps):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.experts = {"dit": cls.models.transformer, "dit2": wan_models.make_transformer(seed=95)}
        cls.experts["dit2"].save_pretrained(cls.dir / "transformer_2")
        cls.cache = clip_cache.make(cls.dir / "encoded", "wan", cls.models.model, PROMPTS, FRAMES,
                                    HEIGHT, WIDTH)
        cls.samples = [Sample(*values) for values in clip_cache.read(cls.cache)]

    def test_steps_of_a_lora_on_clips_are_those_of_peft(self):
        transformer = wan_models.make_transformer().requires_grad_(False)
        ends = ("attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "attn2.to_q",
                "attn2.to_k", "attn2.to_v", "attn2.to_out.0", "ffn.net.0.proj", "ffn.net.2")
        transformer.add_adapter(LoraConfig(r=4, lora_alpha=8, target_modules=list(ends)))
        self.begin_lora(transformer)
        metadata = {
            key: list(value) if isinstance(value, set) else value
            for key, value in transformer.peft_config["default"].to_dict().items()
        }
        WanPipeline.save_lora_weights(self.dir,
                                      transformer_lora_layers=get_peft_model_state_dict(transformer),
                                      weight_name="start.safetensors",
                                      transformer_lora_adapter_metadata=metadata)
        for batch_size, accumulation in ((1, 2), (2, 1)):
            with self.subTest(batch_size=batch_size), self.both(
                    "wan, training, LoRA", {"dit": transformer}, WHOLE, self.models.model, steps=3,
                    batch_size=batch_size, accumulation=accumulation, lora_base_model="dit",
                    lora_target_modules=TARGETS, lora_rank=4, lora_alpha=8,
                    lora_checkpoint=self.dir / "start.safetensors"):
                pass
            self.begin_lora(transformer)

    def begin_lora(self, transformer):
        """A and B that are both not zero: else A would have no gradient."""
        with torch.no_grad():
            for name, parameter in self.parameters({"dit": transformer}).items():
                generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                parameter.copy_(0.08 * torch.randn(parameter.shape, generator=generator))

    def test_each_step_of_two_experts_is_that_of_the_one_that_is_drawn(self):
        transformers = {"dit": wan_models.make_transformer(),
                        "dit2": wan_models.make_transformer(seed=95)}
        variant = {"variant": "wan2.2-t2v-a14b"}
        hints = {"*/transformer/*": variant, "*/transformer_2/*": {**variant, "component": "dit2"}}
        paths = [self.models.folder_of("dit"), self.dir / "transformer_2"]
        with self.both("wan, training, two experts", transformers, EXPERTS, paths, steps=6,
                       model_hints=json.dumps(hints),
                       trainable_models="dit,dit2") as (run, denoisers):
            self.assertEqual({"dit", "dit2"}, set(denoisers))
            for component, folder in (("dit", "dit"), ("dit2", "dit2")):
                again = wan_models.make_transformer()
                again.load_state_dict(load_file(run.folder / f"step-6.{folder}.safetensors"))
                for name, parameter in transformers[component].named_parameters():
                    compare.assert_close("wan, training, saved experts",
                                         again.get_parameter(name).detach(), parameter.detach(),
                                         TOLERANCE)


class FirstFrameTest(Steps):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.models.folder_with(cls.dir / "model",
                                           transformer=wan_models.make_wide_transformer(),
                                           vae=wan_models.make_wide_vae())
        cls.cache = clip_cache.make(cls.dir / "encoded", "wan", cls.model, PROMPTS, FRAMES, 32, 64,
                                    "--extra_inputs", "input_image")
        cls.samples = [Sample(*values) for values in clip_cache.read(cls.cache, "first_frame")]

    def test_the_first_frame_stays_clean_and_does_not_count(self):
        for batch_size, accumulation in ((1, 2), (2, 1)):
            transformer = wan_models.make_wide_transformer()
            with self.subTest(batch_size=batch_size), self.both(
                    "wan, training, clean first frame", {"dit": transformer}, WHOLE, self.model,
                    steps=3, batch_size=batch_size, accumulation=accumulation,
                    extra_inputs="input_image", trainable_models="dit"):
                pass


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
