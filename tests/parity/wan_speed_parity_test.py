"""Speed control of Wan2.1-T2V-1.3B: what a number adds to the denoiser's time, as its formula says,
and whole clips beside diffusers with that added."""

import contextlib
import pathlib
import sys
import tempfile
import unittest

import torch
from safetensors.torch import save_file

import compare
import references
import wan_checks
import wan_models
from wan_checks import probe

PROMPT, NEGATIVE = "a red kite over a harbour", "blurry"
CHANNELS = 256  # of the number's waves, as published


def make_controller(width, seed=77):
    """The tensors of a controller, by the published names."""
    generator = torch.Generator().manual_seed(seed)

    def layer(rows, columns):
        return (torch.randn((rows, columns), generator=generator) / columns**0.5,
                torch.randn((rows,), generator=generator) * 0.1)
    sizes = {0: (width, CHANNELS), 2: (width, width), 4: (6 * width, width)}
    tensors = {}
    for number, size in sizes.items():
        weight, bias = layer(*size)
        tensors[f"linear.{number}.weight"], tensors[f"linear.{number}.bias"] = weight, bias
    return tensors


def rows_of(tensors, motion):
    """[B, 6 width]: waves of ten times the number, in double precision, and three layers with SiLU between."""
    rates = 10000.0 ** (-torch.arange(CHANNELS // 2, dtype=torch.float64) / (CHANNELS // 2))
    angles = (10.0 * motion.double())[:, None] * rates
    x = torch.cat([angles.cos(), angles.sin()], 1).float()
    for number in (0, 2, 4):
        if number > 0:
            x = torch.nn.functional.silu(x)
        x = torch.nn.functional.linear(x, tensors[f"linear.{number}.weight"], tensors[f"linear.{number}.bias"])
    return x


@contextlib.contextmanager
def moving(transformer, rows):
    """Adds rows, [1 or B, 6 width], to the projected time of diffusers' denoiser."""
    hook = transformer.condition_embedder.time_proj.register_forward_hook(
        lambda module, inputs, output: output + rows)
    try:
        yield
    finally:
        hook.remove()


class WanSpeedTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.models = wan_models.get()
        cls.transformer = cls.models.transformer
        config = cls.transformer.config
        cls.tensors = make_controller(config.num_attention_heads * config.attention_head_dim)
        holder = tempfile.TemporaryDirectory(prefix="atelier_speed_")
        cls.addClassCleanup(holder.cleanup)
        cls.file = pathlib.Path(holder.name) / "speed.safetensors"
        save_file(cls.tensors, str(cls.file))

    def test_the_controller_gives_what_its_formula_says(self):
        motion = torch.tensor([0.0, 1.0, 37.5, 100.0])
        got = probe("motion_controller", self.file, {"motion": motion}, gradients=True, trainable="*")
        floating = {name: tensor.clone().requires_grad_(True) for name, tensor in self.tensors.items()}
        numbers = motion.clone().requires_grad_(True)
        expected = rows_of(floating, numbers)
        compare.assert_close("wan, motion controller", got["motion_rows"], expected)
        compare.assert_gradients("wan, motion controller, gradients",
                                 {name: value for name, value in got.items() if "motion" not in name},
                                 references.gradients(expected, {}, floating))

    def test_the_denoiser_moves_with_it(self):
        generator = torch.Generator().manual_seed(5)
        inputs = {"latents": torch.randn((2, 16, 2, 6, 8), generator=generator),
                  "sigma": torch.tensor([0.9, 0.3]),
                  "prompt_embeds": torch.randn((2, 7, wan_models.TEXT_WIDTH), generator=generator)}
        still = probe("dit", self.models.folder_of("dit"), inputs)["velocity"]
        inputs["motion_rows"] = rows_of(self.tensors, torch.tensor([3.0, 80.0]))
        got = probe("dit", self.models.folder_of("dit"), inputs, gradients=True, trainable="*")
        self.assertGreater(float((got["velocity"] - still).abs().max()), 1e-2)
        floating = wan_checks.with_gradients(inputs)
        self.transformer.requires_grad_(True)  # LoRAs of other suites freeze it
        with moving(self.transformer, floating["motion_rows"]):
            expected = wan_models.velocity(self.transformer, floating["latents"], floating["sigma"],
                                           floating["prompt_embeds"])
            wanted = references.gradients(expected, floating, dict(self.transformer.named_parameters()))
        compare.assert_close("wan, denoiser that moves", got["velocity"], expected)
        compare.assert_gradients("wan, denoiser that moves, gradients", got, wanted)

    def test_clips_move_as_they_would_in_diffusers(self):
        latents = wan_checks.noise(5, 48, 64, seed=41)
        pipeline = self.models.pipeline
        pipeline.scheduler = self.models.scheduler_with(3.0)

        def ours(paths, **flags):
            return wan_checks.generate(paths, latents, prompt=PROMPT, negative_prompt=NEGATIVE, height=48, width=64,
                                       num_frames=5, num_inference_steps=3, seed=0, **flags)
        paths = [self.models.model, self.file]
        still = ours(self.models.model)
        for motion in (0, 100):
            with moving(self.transformer, rows_of(self.tensors, torch.tensor([float(motion)]))):
                clip = pipeline(prompt=PROMPT, negative_prompt=NEGATIVE, height=48, width=64, num_frames=5,
                                latents=latents, output_type="np", num_inference_steps=3).frames[0]
            got = ours(paths, motion_bucket_id=motion)
            compare.assert_images("wan, clips that move", got, wan_models.rounded(clip))
            self.assertGreater(wan_checks.difference(got, still), 0.5)
        # Without the number the file costs nothing and changes nothing.
        self.assertEqual(0, wan_checks.difference(ours(paths), still))


if __name__ == "__main__":
    sys.exit(unittest.main())
