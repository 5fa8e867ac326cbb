"""Compares the solvers with those of diffusers, step by step over whole trajectories.

usage: solvers_parity_test.py SOLVER_TOOL
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
from diffusers import (DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler,
                       UniPCMultistepScheduler)
from safetensors.torch import load_file, save_file

TOOL = None
SHAPE = (2, 4, 1, 6, 5)
FLOW = dict(prediction_type="flow_prediction", use_flow_sigmas=True)
# The grids that these schedulers make: pure noise counts as the level beside it.
UNIPC_GRID, DPM_GRID = (0.999999, 0.001), (0.999, 0.0)


def walk(solver, steps, grid, shift, latents, velocities, kept=1.0):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        save_file({"latents": latents, "velocities": velocities}, folder / "in.safetensors")
        command = [TOOL, solver, steps, *grid, shift, kept, folder / "in.safetensors", folder / "out.safetensors"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return load_file(folder / "out.safetensors")


def reference(scheduler, latents, velocities, begin=0):
    """Latents after each step; `begin`: the step that it starts at, as image to image does."""
    scheduler.set_begin_index(begin)
    walked = []
    for timestep, velocity in zip(scheduler.timesteps[begin:], velocities):
        latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
        walked.append(latents)
    return torch.stack(walked)


class Solvers(unittest.TestCase):
    def compare(self, solver, make, grid, steps, shift, begin=0):
        generator = torch.Generator().manual_seed(steps)
        latents = torch.randn(SHAPE, generator=generator)
        velocities = torch.randn((steps - begin, *SHAPE), generator=generator)
        scheduler = make(shift)
        scheduler.set_timesteps(steps)
        wanted = reference(scheduler, latents, velocities, begin)
        found = walk(solver, steps, grid, shift, latents, velocities, kept=(steps - begin) / steps)
        torch.testing.assert_close(found["sigmas"], scheduler.sigmas[begin:], rtol=0, atol=2e-6)
        torch.testing.assert_close(found["latents"], wanted, rtol=0, atol=2e-5 * wanted.abs().max().item())
        return found, scheduler

    def test_unipc_is_that_of_diffusers(self):
        make = lambda shift: UniPCMultistepScheduler(flow_shift=shift, **FLOW)
        for steps in (1, 2, 3, 4, 20, 50):
            for shift in (1.0, 3.0, 12.0):
                with self.subTest(steps=steps, shift=shift):
                    found, scheduler = self.compare("unipc", make, UNIPC_GRID, steps, shift)
                    if shift == 1.0:  # levels of whole thousandths: which side they fall on is rounding
                        continue
                    self.assertEqual(found["timesteps"][:-1].round().long().tolist(), scheduler.timesteps.tolist())

    def test_dpmpp_is_that_of_diffusers(self):
        make = lambda shift: DPMSolverMultistepScheduler(flow_shift=shift, **FLOW)
        for steps in (1, 2, 3, 14, 15, 50):
            for shift in (1.0, 5.0):
                with self.subTest(steps=steps, shift=shift):
                    self.compare("dpm++", make, DPM_GRID, steps, shift)

    def test_euler_is_that_of_diffusers(self):
        make = lambda shift: FlowMatchEulerDiscreteScheduler(shift=shift)
        for steps in (1, 4, 30):
            with self.subTest(steps=steps):
                scheduler = make(1.0)
                scheduler.set_timesteps(steps, sigmas=[1 - i / steps for i in range(steps)])
                generator = torch.Generator().manual_seed(steps)
                latents = torch.randn(SHAPE, generator=generator)
                velocities = torch.randn((steps, *SHAPE), generator=generator)
                found = walk("euler", steps, (1.0, 0.0), 1.0, latents, velocities)
                wanted = reference(scheduler, latents, velocities)
                torch.testing.assert_close(found["latents"], wanted, rtol=0, atol=1e-5)

    def test_a_start_in_the_middle_is_that_of_diffusers(self):
        self.compare("unipc", lambda shift: UniPCMultistepScheduler(flow_shift=shift, **FLOW), UNIPC_GRID, 10, 3.0,
                     begin=4)
        self.compare("dpm++", lambda shift: DPMSolverMultistepScheduler(flow_shift=shift, **FLOW), DPM_GRID, 10, 3.0,
                     begin=4)


if __name__ == "__main__":
    TOOL = sys.argv.pop(1)
    unittest.main()
