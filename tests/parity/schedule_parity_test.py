"""The sigmas are those of diffusers' scheduler with the published settings, and of the tables of
the authors."""

import math
import sys
import unittest

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageImg2ImgPipeline
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift

import atelier
import compare
import tiny_models

# The settings that the Lightning distillation publishes: a fixed shift of 3 in its exponential
# form, no terminal.
LIGHTNING = dict(tiny_models.SCHEDULER_CONFIG,
                 base_shift=math.log(3),
                 max_shift=math.log(3),
                 max_image_seq_len=8192,
                 shift_terminal=None)

# (height, width, steps): first sigmas, last sigmas, as the official code prints them.
TABLES = {
    (1024, 1024, 50): ([1, 0.989701, 0.979192], [0.058476, 0.02, 0]),
    (1328, 1328, 50): ([1, 0.990988, 0.981768], [0.063783, 0.02, 0]),
    (928, 1664, 20): ([1, 0.974511, 0.947548], [0.121533, 0.02, 0]),
    (512, 512, 4): ([1, 0.749268, 0.432588, 0.02, 0], []),
}
LIGHTNING_TABLES = {
    4: [1, 0.9, 0.75, 0.5, 0],
    8: [1, 0.954545, 0.9, 0.833333, 0.75, 0.642857, 0.5, 0.3, 0],
}


def expected_sigmas(config, height, width, steps, strength=1.0):
    """What diffusers' image-to-image pipeline walks through; at strength 1 that is the text-to-
    image schedule."""
    scheduler = FlowMatchEulerDiscreteScheduler(**config)
    mu = calculate_shift((height // 16) * (width // 16), config["base_image_seq_len"],
                         config["max_image_seq_len"], config["base_shift"], config["max_shift"])
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    holder = type("Holder", (), {"scheduler": scheduler})()
    timesteps, _ = QwenImageImg2ImgPipeline.get_timesteps(holder, steps, strength, "cpu")
    return scheduler.sigmas[len(scheduler.timesteps) - len(timesteps):]


class ScheduleParityTest(unittest.TestCase):

    def request(self, schedule, height, width, steps, strength=1.0):
        sigmas = atelier.schedule(height=height,
                                  width=width,
                                  num_inference_steps=steps,
                                  schedule=schedule,
                                  denoising_strength=strength)
        return torch.tensor(sigmas, dtype=torch.float64)

    def test_default_sigmas_are_the_same(self):
        for height, width, steps in ((1328, 1328, 50), (1024, 1024, 50), (928, 1664, 20), (1664,
                                                                                           928, 30),
                                     (512, 512, 4), (64, 96, 7), (16, 16, 2), (2048, 2048, 100)):
            with self.subTest(height=height, width=width, steps=steps):
                expected = expected_sigmas(tiny_models.SCHEDULER_CONFIG, height, width, steps)
                compare.assert_close("schedule, default",
                                     self.request("default", height, width, steps),
                                     expected,
                                     tolerance=1e-6)

    def test_default_sigmas_match_the_tables(self):
        for (height, width, steps), (first, last) in TABLES.items():
            with self.subTest(height=height, width=width, steps=steps):
                sigmas = self.request("default", height, width, steps)
                self.assertEqual(len(sigmas), steps + 1)
                wanted = torch.tensor(first + last, dtype=torch.float64)
                got = torch.cat([sigmas[:len(first)], sigmas[len(sigmas) - len(last):]])
                compare.assert_close("schedule, tables", got, wanted, tolerance=1e-6)

    def test_lightning_sigmas_are_the_same(self):
        for height, width, steps in ((1328, 1328, 4), (1024, 1024, 8), (928, 1664, 4)):
            with self.subTest(height=height, width=width, steps=steps):
                got = self.request("lightning", height, width, steps)
                compare.assert_close("schedule, Lightning",
                                     got,
                                     expected_sigmas(LIGHTNING, height, width, steps),
                                     tolerance=1e-6)
                compare.assert_close("schedule, Lightning tables",
                                     got,
                                     torch.tensor(LIGHTNING_TABLES[steps], dtype=torch.float64),
                                     tolerance=1e-6)

    def test_a_lower_strength_keeps_the_same_last_steps(self):
        for steps, strength in ((50, 0.6), (10, 0.75), (7, 0.5), (30, 0.1)):
            with self.subTest(steps=steps, strength=strength):
                expected = expected_sigmas(tiny_models.SCHEDULER_CONFIG, 1024, 768, steps, strength)
                compare.assert_close("schedule, image to image",
                                     self.request("default", 1024, 768, steps, strength),
                                     expected,
                                     tolerance=1e-6)


if __name__ == "__main__":
    sys.exit(unittest.main())
