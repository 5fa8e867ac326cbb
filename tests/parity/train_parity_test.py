"""A training step moves every parameter as the same step does that is written with diffusers, peft
and torch.optim.AdamW: LoRA and full training, batches, accumulation, masks, schedules, files."""

import contextlib
import copy
import pathlib
import sys
import tempfile
import types
import unittest
import zlib

import numpy as np
import torch
from diffusers import QwenImagePipeline, QwenImageTransformer2DModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import compute_loss_weighting_for_sd3
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file

import atelier
import compare
import references
import tiny_models
import training

TOLERANCE = 1e-5  # of the scale
# A gradient is measured by its own largest value, or by this part of the largest of all.
FLOOR = 1e-3
FLOAT_ULPS = 2.4e-7  # two, of a tensor's largest value
TARGETS = [
    "to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj", "to_out.0", "to_add_out",
    "net.0.proj", "net.2", "img_mod.1", "txt_mod.1", "img_in", "proj_out"
]
RATE = 5e-3
BETA1, BETA2, EPS, WEIGHT_DECAY = 0.9, 0.999, 1e-3, 0.01
HEIGHT, WIDTH = 64, 48
PROMPTS = ["A coffee shop entrance", "一只可爱的猫 in a window, oil painting", "red"]


def picture(seed):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand((1, 3, 5, 4), generator=generator)
    fine = torch.nn.functional.interpolate(coarse, size=(HEIGHT, WIDTH), mode="bilinear")
    return (fine[0].permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()


def rows(count):
    return [(picture(61 + number), PROMPTS[number]) for number in range(count)]


def name_here(name):
    """The program's name of a parameter of diffusers, or of transformers' text encoder."""
    if name.startswith("model.language_model."):
        return name.replace("model.language_model.", "text_encoder.")
    return "dit." + name.replace(".default.weight", "")


def adamw(parameters, lr=RATE):
    return torch.optim.AdamW(list(parameters),
                             lr=lr,
                             betas=(BETA1, BETA2),
                             eps=EPS,
                             weight_decay=WEIGHT_DECAY)


def trained(transformer):
    return {
        name_here(name): parameter
        for name, parameter in transformer.named_parameters()
        if parameter.requires_grad
    }


def gradients(run):
    """Of the first step, out of the first moment of AdamW."""
    ending = ".exp_avg"
    return {
        name.removesuffix(ending): value / (1 - BETA1)
        for name, value in run.state(1, "optimizer").items()
        if name.endswith(ending)
    }


class TrainParityTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = tiny_models.get()
        cls.model = cls.models.model
        cls.holder = tempfile.TemporaryDirectory(prefix="atelier_train_")
        cls.dir = pathlib.Path(cls.holder.name)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    # --- the reference side ---

    def transformer(self):
        return QwenImageTransformer2DModel.from_pretrained(self.model / "transformer")

    def samples(self, data):
        """Encodes once; the encoders are not trained."""
        with torch.no_grad():
            samples = [training.encode(self.models, *row) for row in data]
        return lambda: samples

    def samples_by(self, encoder, data):
        """Encodes anew for each batch, by a text encoder that is trained."""
        pipeline = QwenImagePipeline(**{**self.models.pipeline.components, "text_encoder": encoder})
        models = types.SimpleNamespace(vae=self.models.vae, pipeline=pipeline)
        return lambda: [training.encode(models, *row) for row in data]

    def lora(self, rank=4, alpha=8, **config):
        """A transformer with a LoRA whose A and B are both not zero: else A would have no
        gradient."""
        transformer = self.transformer().requires_grad_(False)
        transformer.add_adapter(
            LoraConfig(r=rank, lora_alpha=alpha, target_modules=TARGETS, **config))
        with torch.no_grad():
            for name, parameter in trained(transformer).items():
                generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                parameter.copy_(0.08 * torch.randn(parameter.shape, generator=generator))
        return transformer

    def save_lora(self, transformer):
        """As the training scripts of diffusers do."""
        metadata = {
            key: list(value) if isinstance(value, set) else value
            for key, value in transformer.peft_config["default"].to_dict().items()
        }
        QwenImagePipeline.save_lora_weights(
            self.dir,
            transformer_lora_layers=get_peft_model_state_dict(transformer),
            weight_name="start.safetensors",
            transformer_lora_adapter_metadata=metadata)
        return self.dir / "start.safetensors"

    # --- comparisons ---

    @contextlib.contextmanager
    def both(self,
             name,
             transformer,
             data,
             steps=1,
             flags=None,
             optimizer=None,
             encoder=None,
             exact=None,
             **options):
        """Trains what requires gradients in `transformer`, and in the text encoder `encoder` where
        one is given, on both sides, and compares the loss of each step, the gradients of the first
        and the parameters behind the last.

        `exact`: the same transformer in double precision, for parameters that begin at zero. Their
        scale is that of their few steps, each of which AdamW divides by a gradient's size, so single
        precision is as far from it on one element or another as is allowed elsewhere.

        Yields the run; `transformer` is then trained.
        """
        parameters = {**trained(transformer), **(trained(encoder) if encoder else {})}
        start = {key: value.detach().clone() for key, value in parameters.items()}
        encode_rows = self.samples_by(encoder, data) if encoder else self.samples(data)
        losses, first = training.train(transformer, optimizer or adamw(parameters.values()),
                                       encode_rows, steps, **options)
        shape = dict(seed=options.get("seed", 42),
                     dataset_repeat=options.get("repeat", 1),
                     batch_size=options.get("batch_size", 1),
                     gradient_accumulation_steps=options.get("accumulation", 1),
                     num_epochs=steps,
                     max_train_steps=steps,
                     learning_rate=RATE)
        with atelier.train(self.model, data, **{**shape, **(flags or {})}) as run:
            got = run.losses()
            self.assertEqual(len(got), steps)
            compare.assert_close(name + ", losses", torch.tensor(got), torch.tensor(losses),
                                 TOLERANCE)
            if optimizer is None:
                self.check_gradients(name, gradients(run), parameters, first)
            trained_here = run.state(steps, "trained")
            if exact is None:
                self.check_parameters(name, trained_here, parameters, start)
            else:
                training.train(exact, adamw(trained(exact).values()), encode_rows, steps, **options)
                self.check_beside_exact(trained_here, parameters, trained(exact))
            yield run

    def check_beside_exact(self, got, parameters, exact):
        """Holds the errors of all parameters together to those of single precision itself."""
        self.assertEqual(sorted(got), sorted(exact))
        ours, theirs = (
            sum(((values[key].detach().double() - value.detach()) / value.detach().abs().max()).square().mean()
                for key, value in exact.items() if value.any())**0.5 for values in (got, parameters))
        self.assertLess(float(ours), 2 * float(theirs))

    def check_gradients(self, name, got, parameters, first):
        expected = {
            key: torch.zeros_like(parameter) if gradient is None else gradient
            for (key, parameter), gradient in zip(parameters.items(), first)
        }
        compare.assert_all_close(name + ", gradients", got, expected, TOLERANCE, FLOOR)

    def check_parameters(self, name, got, parameters, start):
        expected = {key: parameter.detach() for key, parameter in parameters.items()}
        compare.assert_all_close(name + ", parameters", got, expected, TOLERANCE)
        with_gradient = [
            key for key, value in parameters.items()
            if value.grad is not None and value.grad.any()
        ]
        moved = [
            key for key in with_gradient
            if compare.relative_error(start[key], expected[key]) > 1e2 * TOLERANCE
        ]
        self.assertGreater(len(moved), 0.9 * len(with_gradient),
                           "the steps move too little for the test to prove anything")

    def lora_flags(self, transformer, rank=4, alpha=8):
        return dict(lora_base_model="dit",
                    lora_target_modules=",".join(TARGETS),
                    lora_rank=rank,
                    lora_alpha=alpha,
                    lora_checkpoint=self.save_lora(transformer))

    def check_lora(self, name, data, flags=None, **options):
        """A LoRA that starts from a file of diffusers."""
        transformer = self.lora()
        flags = {**self.lora_flags(transformer), **(flags or {})}
        with self.both(name, transformer, data, flags=flags, **options) as run:
            return run.losses()

    # --- tests ---

    def test_random_numbers_and_levels_are_the_published_ones(self):
        """The reference's own: the known answers of Philox, diffusers' table, and the figures of
        DiffSynth-Studio's weights."""
        words = training.philox4x32((0, 0, 0, 0), (0, 0))
        self.assertEqual([int(word) for word in words],
                         [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8])
        words = training.philox4x32((0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344),
                                    (0xa4093822, 0x299f31d0))
        self.assertEqual([int(word) for word in words],
                         [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1])
        table = torch.from_numpy(training.sigmas())
        compare.assert_close("training, sigmas beside diffusers", table,
                             torch.from_numpy(training.sigmas_of_diffusers()), 1e-6)
        weights = training.weights()
        self.assertEqual(weights[0], 0)
        self.assertAlmostEqual(weights.max(), 1.683, places=3)
        self.assertAlmostEqual(weights[-1], 0.104, places=3)

    def test_a_step_of_a_lora_is_that_of_peft(self):
        for seed in (1, 2**62 + 12345):
            self.check_lora("training, LoRA", rows(1), seed=seed)

    def test_encodings_are_those_of_the_references(self):
        data = rows(3)
        expected = self.samples(data)()
        with atelier.train(self.model,
                           data,
                           lora_base_model="dit",
                           lora_target_modules="to_q",
                           max_train_steps=1) as run:
            texts = {text["prompt_embeds"].shape[-2]: text for text in run.encodings("text")}
            latents = [entry["latents"] for entry in run.encodings("latents")]
        self.assertEqual((len(texts), len(latents)), (3, 3))
        for sample in expected:
            text = texts[sample.prompt_embeds.shape[0]]["prompt_embeds"]
            compare.assert_close("training, encoded texts", text.view_as(sample.prompt_embeds),
                                 sample.prompt_embeds, TOLERANCE)
            nearest = min(latents, key=lambda got: (got - sample.latents).abs().max())
            compare.assert_close("training, encoded images", nearest, sample.latents, TOLERANCE)

    def test_five_steps_of_two_batches_are_those_of_peft(self):
        """Each epoch's last step has one of its three rows, and each epoch another order."""
        self.check_lora("training, LoRA, five steps", rows(3), steps=5, accumulation=2)

    def test_a_lora_begins_with_a_at_random_and_b_at_zero(self):
        data = rows(1)
        flags = dict(lora_base_model="dit",
                     lora_target_modules=",".join(TARGETS),
                     lora_rank=4,
                     lora_alpha=4)
        # The first step of a warm-up moves nothing.
        with atelier.train(self.model,
                           data,
                           max_train_steps=1,
                           lr_scheduler="constant_with_warmup",
                           lr_warmup_steps=1,
                           **flags) as run:
            start = run.state(1, "trained")
        transformer = self.lora(alpha=4)
        with torch.no_grad():
            for name, parameter in trained(transformer).items():
                parameter.copy_(start[name])
                if name.endswith("lora_B"):
                    self.assertFalse(parameter.any(), name)
                else:
                    # As peft draws it: uniform up to 1 / sqrt(in).
                    relative = parameter * parameter.shape[1]**0.5
                    self.assertLessEqual(float(relative.abs().max()), 1, name)
                    self.assertAlmostEqual(float(relative.std()), 3**-0.5, delta=0.08, msg=name)
        first = [value for name, value in start.items() if name.endswith("to_q.lora_A")]
        self.assertFalse(torch.equal(first[0], first[1]))
        with self.both("training, new LoRA, five steps",
                       transformer,
                       data,
                       steps=5,
                       accumulation=2,
                       repeat=10,
                       flags=flags,
                       exact=copy.deepcopy(transformer).double()):
            pass

    def test_a_step_of_full_training_is_that_of_diffusers(self):
        transformer = self.transformer()
        with self.both("training, full",
                       transformer,
                       rows(1),
                       seed=7,
                       flags=dict(trainable_models="dit")) as run:
            again = self.transformer()
            again.load_state_dict(load_file(run.weights(1)))
        for name, parameter in transformer.named_parameters():
            compare.assert_close("training, full, saved file", again.get_parameter(name), parameter,
                                 TOLERANCE)

    def test_five_steps_of_full_training_are_those_of_diffusers(self):
        with self.both("training, full, five steps",
                       self.transformer(),
                       rows(2),
                       steps=5,
                       accumulation=2,
                       repeat=5,
                       flags=dict(trainable_models="dit")):
            pass

    def test_a_part_of_the_model_is_trained_alone(self):
        transformer = self.transformer().requires_grad_(False)
        transformer.transformer_blocks[1].attn.requires_grad_(True)
        with self.both("training, one block's attention",
                       transformer,
                       rows(1),
                       flags=dict(trainable_models="dit.transformer_blocks.1.attn")):
            pass

    def test_a_text_encoder_is_trained_beside_a_lora(self):
        """Two components at once, each saved as a file of its own."""
        encoder = copy.deepcopy(self.models.text_encoder).requires_grad_(False)
        encoder.model.language_model.layers[1].requires_grad_(True)
        transformer = self.lora()
        flags = dict(self.lora_flags(transformer), trainable_models="text_encoder.model.layers.1")
        with self.both("training, text encoder and LoRA",
                       transformer,
                       rows(2),
                       steps=3,
                       accumulation=2,
                       encoder=encoder,
                       flags=flags) as run:
            for part in ("lora", "text_encoder"):
                self.assertTrue((run.folder / f"step-3.{part}.safetensors").is_file(), part)

    def test_a_batch_is_the_mean_of_its_samples(self):
        """Prompts of different lengths; each side's batch beside the other's single samples."""
        batch, alone = dict(batch_size=2, gradient_accumulation_steps=1), dict(
            batch_size=1, gradient_accumulation_steps=2)
        ours = self.check_lora("training, batch", rows(2), accumulation=2, flags=batch)
        theirs = self.check_lora("training, accumulation beside a batch",
                                 rows(2),
                                 batch_size=2,
                                 flags=alone)
        self.assertAlmostEqual(ours[0], theirs[0], delta=TOLERANCE * ours[0])

    def test_a_mask_says_where_the_loss_counts(self):
        slope = np.linspace(0, 255, WIDTH)[None] * np.linspace(1, 0.2, HEIGHT)[:, None]
        mask = slope.round().astype(np.uint8)
        masked = self.check_lora("training, masked loss", [(*row, mask) for row in rows(1)])
        whole = self.check_lora("training, LoRA", rows(1))
        self.assertLess(masked[0], 0.8 * whole[0])

    def test_weightings_are_those_of_diffusers(self):
        table = torch.from_numpy(training.sigmas())
        for scheme in ("none", "sigma_sqrt", "cosmap"):
            theirs = compute_loss_weighting_for_sd3(scheme, table)
            self.check_lora("training, other weightings", rows(1),
                            weight_of=lambda level: float(theirs[level]),
                            flags=dict(weighting_scheme=scheme))

    def test_dynamic_shifts_are_those_of_the_published_scheduler(self):
        for sampling in ("uniform", "sigmoid"):
            self.check_lora(
                f"training, {sampling}_dynamic_shift",
                rows(1),
                draw_sigma=lambda *place: training.draw_shifted(
                    *place, HEIGHT * WIDTH // 256, tiny_models.SCHEDULER_CONFIG, sampling == "sigmoid"),
                flags=dict(timestep_sampling=f"{sampling}_dynamic_shift", weighting_scheme="none"))

    def test_clipping_schedule_and_rates_are_those_of_torch(self):
        """LoRA+, rsLoRA, a warm-up, and gradients that are clipped in each step."""
        steps, ratio, norm = 5, 4.0, 0.05
        transformer = self.lora(alpha=3, use_rslora=True)
        parameters = trained(transformer)
        halves = [[value for key, value in parameters.items() if key.endswith(end)]
                  for end in ("lora_A", "lora_B")]
        optimizer = adamw([
            dict(params=halves[0], lr=RATE),
            dict(params=halves[1], lr=ratio * RATE),
        ])
        schedule = get_scheduler("cosine",
                                 optimizer,
                                 num_warmup_steps=2,
                                 num_training_steps=steps)
        flags = dict(self.lora_flags(transformer, alpha=3),
                     use_rslora=True,
                     loraplus_lr_ratio=ratio,
                     lr_scheduler="cosine",
                     lr_warmup_steps=2,
                     max_grad_norm=norm)
        with self.both("training, clipping and schedule",
                       transformer,
                       rows(3),
                       steps=steps,
                       flags=flags,
                       optimizer=optimizer,
                       schedule=schedule,
                       max_grad_norm=norm):
            pass

    def test_weights_of_bfloat16_follow_a_float32_copy(self):
        """The rule, exactly: torch's AdamW on a copy in float32, given the program's own gradients;
        the weights are its rounding. Those gradients are as exact as diffusers'."""
        steps, rate = 3, 1e-5
        data = rows(1)
        rounded = self.transformer().bfloat16()
        copies = {
            name_here(name): torch.nn.Parameter(parameter.detach().float())
            for name, parameter in rounded.named_parameters()
        }
        start = {key: value.detach().clone() for key, value in copies.items()}
        optimizer = adamw(copies.values(), lr=rate)
        with atelier.train(self.model,
                           data,
                           dtype="bfloat16",
                           trainable_models="dit",
                           dataset_repeat=steps,
                           max_train_steps=steps,
                           learning_rate=rate) as run:
            states = [run.state(step, "optimizer") for step in range(1, steps + 1)]
            weights = [run.state(step, "trained") for step in range(1, steps + 1)]
            saved = load_file(run.weights(steps))
            self.check_bf16_gradients("bfloat16, full training", gradients(run), rounded, run)
        moments = {key: 0 for key in copies}
        for state, leaves in zip(states, weights):
            for key, value in copies.items():
                # The gradient is of bfloat16: rounding takes away what the moment's rounding added.
                gradient = (state[key + ".exp_avg"] - BETA1 * moments[key]) / (1 - BETA1)
                moments[key] = state[key + ".exp_avg"]
                value.grad = gradient.bfloat16().float() if state[key + ".step"] > 0 else None
            optimizer.step()
            for key, value in copies.items():
                master = state[key + ".master"]
                compare.assert_close("training, float32 copies", master, value, FLOAT_ULPS)
                self.assertTrue(torch.equal(leaves[key], master.bfloat16()), key)
        for key, value in weights[-1].items():
            self.assertTrue(torch.equal(saved[key.removeprefix("dit.")], value), key)
        # What plain bfloat16 would have lost: most weights move in the copy only.
        moved = sum(int((value != start[key]).sum()) for key, value in copies.items())
        shown = sum(int((value.float() != start[key]).sum()) for key, value in weights[-1].items())
        self.assertGreater(moved, 5 * shown)
        self.assertGreater(shown, 0)

    def test_a_lora_on_bfloat16_weights_is_as_exact_as_that_of_peft(self):
        transformer = self.lora()
        flags = self.lora_flags(transformer)
        transformer = transformer.bfloat16()
        for parameter in trained(transformer).values():
            parameter.data = parameter.data.float()
        with atelier.train(self.model,
                           rows(1),
                           dtype="bfloat16",
                           max_train_steps=1,
                           learning_rate=RATE,
                           **flags) as run:
            got = gradients(run)
            self.check_bf16_gradients("bfloat16, LoRA", got, transformer, run)
        self.assertTrue(all(gradient.dtype == torch.float32 for gradient in got.values()))

    def check_bf16_gradients(self, name, got, rounded, run):
        """Ours and the reference's, measured from float64; all begin with the run's encodings."""
        text, = run.encodings("text")
        latents, = run.encodings("latents")
        embeds = text["prompt_embeds"].view(-1, text["prompt_embeds"].shape[-1])
        sample = training.Sample(latents["latents"], embeds)

        def run_reference(transformer):
            loss = training.batch_loss(transformer, [sample], [0], 42, 0)
            parameters = trained(transformer)
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            return {
                key: gradient.double()
                for key, gradient in zip(parameters, found)
                if gradient is not None and gradient.any()
            }

        exact = run_reference(copy.deepcopy(rounded).double())
        # diffusers rounds the noise level as well, which would hide all other errors of it.
        sigma = torch.tensor(training.sigmas()[[training.draw_level(42, 0, 0)]])
        rounded.time_text_embed.time_proj.register_forward_pre_hook(lambda *_: (sigma.float(),))
        theirs = run_reference(rounded)

        def error(gradients):
            # Of each parameter, in units of its own gradient's root mean square.
            each = [(gradients[key].double() - value).square().mean() / value.square().mean()
                    for key, value in exact.items()]
            return float(torch.stack(each).mean().sqrt())

        ours, other = error(got), error(theirs)
        compare.record(f"{name}: our error", ours)
        compare.record(f"{name}: their error", other)
        self.assertGreater(other, 1e-4, "the reference did not run in bfloat16")
        self.assertLessEqual(ours, 1.05 * other, f"{name}: error {ours:.4g}, theirs {other:.4g}")

    def test_saved_loras_are_what_diffusers_and_peft_read(self):
        data = rows(1)
        transformer = self.lora()
        with self.both("training, LoRA",
                       transformer,
                       data,
                       flags=self.lora_flags(transformer)) as run:
            by_peft = self.lora()
            state = {
                name.removeprefix("transformer."): tensor
                for name, tensor in load_file(run.weights(1)).items()
            }
            result = set_peft_model_state_dict(by_peft, state)
            self.assertEqual(result.unexpected_keys, [])
            pipeline = QwenImagePipeline(**{
                **self.models.pipeline.components, "transformer": self.transformer()
            })
            pipeline.load_lora_weights(run.weights(1))
            latents = torch.randn((1, 16, 1, HEIGHT // 8, WIDTH // 8),
                                  generator=torch.Generator().manual_seed(71))
            flags = dict(prompt=PROMPTS[0], height=HEIGHT, width=WIDTH, num_inference_steps=2)
            ours = atelier.generate(self.model,
                                    latents,
                                    cfg_scale=1,
                                    seed=0,
                                    dtype="float32",
                                    lora=run.weights(1),
                                    **flags)
        expected = trained(transformer)
        compare.assert_all_close("training, saved LoRA read by peft",
                                 trained(by_peft), expected, TOLERANCE)
        by_diffusers = {
            name_here(name.replace(".default_0.", ".default.")): parameter
            for name, parameter in pipeline.transformer.named_parameters()
            if "lora_" in name
        }
        compare.assert_all_close("training, saved LoRA read by diffusers", by_diffusers, expected,
                                 TOLERANCE)
        self.check_velocity(pipeline.transformer, transformer, data)
        pipeline.set_progress_bar_config(disable=True)
        flags["prompt"] = PROMPTS[0]
        theirs = pipeline(true_cfg_scale=1.0,
                          latents=references.pack(latents),
                          output_type="np",
                          **flags).images
        compare.assert_images("training, image of a saved LoRA", ours,
                                list((theirs * 255).round().astype(np.uint8)))

    def check_velocity(self, got, expected, data):
        """Alpha is part of it, which the factors alone do not tell."""
        sample = self.samples(data)()[0]
        inputs = (sample.latents[None], torch.tensor([0.6]), sample.prompt_embeds[None])
        with torch.no_grad():
            plain = references.velocity(self.models.transformer, *inputs)
            wanted = references.velocity(expected, *inputs)
            compare.assert_close("training, velocity of a saved LoRA",
                                 references.velocity(got, *inputs), wanted, TOLERANCE)
        self.assertGreater(compare.relative_error(plain, wanted), 0.05)


if __name__ == "__main__":
    sys.exit(unittest.main())
