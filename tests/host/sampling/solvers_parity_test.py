"""Compares the solvers with those of diffusers, step by step over whole trajectories.

usage: solvers_parity_test.py SOLVER_TOOL
"""
import pathlib
import sys
import tempfile
import unittest

import numpy as np
import program
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
        program.run_line([str(word) for word in command], code=0)
        return load_file(folder / "out.safetensors")


def reference(scheduler, latents, velocities, begin=0):
    """Latents after each step; `begin`: the step that it starts at, as image to image does."""
    scheduler.set_begin_index(begin)
    walked = []
    for timestep, velocity in zip(scheduler.timesteps[begin:], velocities):
        latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
        walked.append(latents)
    return torch.stack(walked)


def official_levels(solver, steps, shift):
    """The levels of the original repository of Wan (FlowUniPC and FlowDPM++ samplers), in float64, and the timesteps
    that its model is told."""
    if solver == "unipc":
        sigmas = np.linspace(0.999, 0, steps + 1)[:-1]
    else:
        sigmas = np.linspace(1, 0, steps + 1)[:steps]
    sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
    return np.append(sigmas, 0.0), (sigmas * 1000).astype(np.int64)


def half_log_snr(sigma):
    with np.errstate(divide="ignore"):
        return np.log(1 - sigma) - np.log(sigma)


def official_unipc(sigmas, latents, velocities):
    """UniPC of order 2 (bh2), predicting clean latents, its last step of order 1; in float64."""
    walked, x, clean, steps = [], latents, [], len(sigmas) - 1
    corrected, order = latents, 1
    for i in range(steps):
        clean.append(x - sigmas[i] * velocities[i])
        if i > 0:
            h = half_log_snr(sigmas[i]) - half_log_snr(sigmas[i - 1])
            phi = np.expm1(-h)
            corrected = sigmas[i] / sigmas[i - 1] * corrected - (1 - sigmas[i]) * phi * clean[i - 1]
            difference = 0.5 * (clean[i] - clean[i - 1])
            if order == 2:
                r = (half_log_snr(sigmas[i - 2]) - half_log_snr(sigmas[i - 1])) / h
                b = [(phi / -h - 1) / phi, 2 * ((phi / -h - 1) / -h - 0.5) / phi]
                rho = np.linalg.solve([[1, 1], [r, 1]], b)
                difference = rho[0] * (clean[i - 2] - clean[i - 1]) / r + rho[1] * (clean[i] - clean[i - 1])
            corrected = corrected - (1 - sigmas[i]) * phi * difference
        order = min(2, steps - i, i + 1)
        h = half_log_snr(sigmas[i + 1]) - half_log_snr(sigmas[i])
        phi = np.expm1(-h)
        x = sigmas[i + 1] / sigmas[i] * corrected - (1 - sigmas[i + 1]) * phi * clean[i]
        if order == 2:
            r = (half_log_snr(sigmas[i - 1]) - half_log_snr(sigmas[i])) / h
            x = x - (1 - sigmas[i + 1]) * phi * 0.5 * (clean[i - 1] - clean[i]) / r
        walked.append(x)
    return np.stack(walked)


def official_dpmpp(sigmas, latents, velocities):
    """DPM-Solver++ 2M (midpoint), its first and last steps of order 1; in float64."""
    walked, x, clean, steps = [], latents, [], len(sigmas) - 1
    for i in range(steps):
        clean.append(x - sigmas[i] * velocities[i])
        h = half_log_snr(sigmas[i + 1]) - half_log_snr(sigmas[i])
        towards = clean[i]
        if 0 < i < steps - 1:
            r = (half_log_snr(sigmas[i]) - half_log_snr(sigmas[i - 1])) / h
            towards = towards + 0.5 * (clean[i] - clean[i - 1]) / r
        x = sigmas[i + 1] / sigmas[i] * x - (1 - sigmas[i + 1]) * np.expm1(-h) * towards
        walked.append(x)
    return np.stack(walked)


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

    def test_official_grids_and_samplers_are_those_of_their_formulas(self):
        for solver, walk_there, high in (("unipc", official_unipc, 0.999), ("dpm++", official_dpmpp, 1.0)):
            for steps in (1, 2, 3, 4, 7, 20, 40, 50):
                for shift in (3.0, 5.0, 12.0, 16.0):
                    with self.subTest(solver=solver, steps=steps, shift=shift):
                        generator = torch.Generator().manual_seed(steps)
                        latents = torch.randn(SHAPE, generator=generator)
                        velocities = torch.randn((steps, *SHAPE), generator=generator)
                        found = walk(solver, steps, (high, 0.0), shift, latents, velocities)
                        sigmas, told = official_levels(solver, steps, shift)
                        torch.testing.assert_close(found["sigmas"].double(), torch.tensor(sigmas), rtol=0, atol=1e-7)
                        self.assertEqual(found["timesteps"][:-1].round().long().tolist(), told.tolist())
                        with np.errstate(divide="ignore", invalid="ignore"):
                            wanted = torch.tensor(walk_there(sigmas, latents.double().numpy(),
                                                             velocities.double().numpy()))
                        error = (found["latents"].double() - wanted).abs().max() / wanted.abs().max()
                        # Latents are float32: what each step rounds adds up.
                        self.assertLess(error.item(), 1e-6 * max(1, steps / 20))

    def test_a_start_in_the_middle_is_that_of_diffusers(self):
        self.compare("unipc", lambda shift: UniPCMultistepScheduler(flow_shift=shift, **FLOW), UNIPC_GRID, 10, 3.0,
                     begin=4)
        self.compare("dpm++", lambda shift: DPMSolverMultistepScheduler(flow_shift=shift, **FLOW), DPM_GRID, 10, 3.0,
                     begin=4)


if __name__ == "__main__":
    TOOL = sys.argv.pop(1)
    unittest.main()
