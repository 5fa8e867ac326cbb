"""Compares the optimizers and schedules with torch, transformers and diffusers, and with what the
papers say, step by step.

usage: parity_test.py OPTIM_TOOL
"""
import json
import math
import sys
import tempfile
import unittest
from pathlib import Path

import program
import torch
from diffusers.optimization import get_scheduler
from safetensors.torch import load_file, save_file
from transformers.optimization import Adafactor

TOOL = None
SHAPES = {"bias": (7,), "weight": (24, 40), "conv": (4, 3, 2, 2), "scalar": ()}
LRS = [1e-3, 2e-3, 2e-3, 1e-3, 5e-4]


def values(shapes=None, steps=len(LRS), dtype=torch.float32, seed=0, missing=()):
    """Parameters and, for each step, gradients; `missing` holds (step, name)."""
    shapes = shapes or SHAPES
    generator = torch.Generator().manual_seed(seed)
    draw = lambda shape, scale: (torch.randn(shape, generator=generator) * scale).to(dtype)
    parameters = {name: draw(shape, 0.5) for name, shape in shapes.items()}
    gradients = []
    for step in range(steps):
        drawn = {name: draw(shape, 0.1 * (1 + step)) for name, shape in shapes.items()}
        gradients.append({n: g for n, g in drawn.items() if (step, n) not in missing})
    return parameters, gradients


def run(config, parameters, gradients, state=None):
    """Returns parameters, state, norms and the lines that the tool prints."""
    config.setdefault("groups", [{"names": list(parameters)}])
    tensors = {f"param/{n}": p for n, p in parameters.items()}
    for step, drawn in enumerate(gradients):
        tensors.update({f"grad/{step}/{n}": g for n, g in drawn.items()})
    tensors.update({f"state/{n}": t for n, t in (state or {}).items()})
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "in.safetensors")
        command = [TOOL, "steps", folder / "config.json", folder / "in.safetensors",
                   folder / "out.safetensors"]
        done = program.run_line(command, code=0)
        out = load_file(folder / "out.safetensors")
    part = lambda prefix: {n[len(prefix):]: t for n, t in out.items() if n.startswith(prefix)}
    return part("param/"), part("state/"), part("norm/"), done.stdout


def run_reference(make, parameters, gradients, lrs, groups=None, max_norm=None):
    """The same steps with an optimizer of torch's interface; `make` gets parameter groups."""
    leaves = {n: p.clone().requires_grad_() for n, p in parameters.items()}
    groups = groups or [{"names": list(parameters)}]
    optimizer = make([{
        "params": [leaves[n] for n in g["names"]],
        "weight_decay": g.get("weight_decay", 0.0)
    } for g in groups])
    for lr, drawn in zip(lrs, gradients):
        for name, leaf in leaves.items():
            leaf.grad = drawn[name].clone() if name in drawn else None
        if max_norm:
            torch.nn.utils.clip_grad_norm_(list(leaves.values()), max_norm)
        for ours, theirs in zip(groups, optimizer.param_groups):
            theirs["lr"] = lr * ours.get("lr_scale", 1.0)
        optimizer.step()
    return {n: p.detach() for n, p in leaves.items()}, optimizer


class Prodigy(torch.optim.Optimizer):
    """Algorithm 4 of arXiv 2306.06101 with the published code's choices: moments times d, sums
    relative to d0, decoupled decay, the step at the d from before."""

    def __init__(self, groups, d0=1e-6, d_coef=1.0, betas=(0.9, 0.999), beta3=None, eps=1e-8,
                 use_bias_correction=False, safeguard_warmup=False):
        super().__init__(groups, dict(lr=1.0))
        self.d = self.d0 = d0
        self.d_coef, self.betas, self.eps = d_coef, betas, eps
        self.beta3 = math.sqrt(betas[1]) if beta3 is None else beta3
        self.numerator, self.k = 0.0, 0
        self.use_bias_correction, self.safeguard_warmup = use_bias_correction, safeguard_warmup

    @torch.no_grad()
    def step(self):
        b1, b2 = self.betas
        lr, d = self.param_groups[0]["lr"], self.d
        if lr == 0:
            return
        rate = d * lr
        if self.use_bias_correction:
            rate *= math.sqrt(1 - b2**(self.k + 1)) / (1 - b1**(self.k + 1))
        numerator, denominator = self.numerator * self.beta3, 0.0
        with_gradient = [(g, p) for g in self.param_groups for p in g["params"]
                         if p.grad is not None]
        for _, p in with_gradient:
            s = self.state[p]
            if not s:
                s.update(x0=p.clone(), m=torch.zeros_like(p), v=torch.zeros_like(p),
                         s=torch.zeros_like(p))
            g = p.grad
            numerator += d / self.d0 * rate * (g * (s["x0"] - p)).sum().item()
            s["m"] = b1 * s["m"] + (1 - b1) * d * g
            s["v"] = b2 * s["v"] + (1 - b2) * d * d * g * g
            s["s"] = self.beta3 * s["s"] + d / self.d0 * (d if self.safeguard_warmup else rate) * g
            denominator += s["s"].abs().sum().item()
        if denominator == 0:
            return
        self.numerator = numerator
        self.d = max(d, self.d_coef * numerator / denominator)
        for group, p in with_gradient:
            s = self.state[p]
            p -= rate * group["weight_decay"] * p
            p -= rate * s["m"] / (s["v"].sqrt() + self.d * self.eps)
        self.k += 1


def dynamic_map(signed):
    """The data type of 8-bit optimizers (arXiv 2110.02861): seven decades, the bits that the
    exponent leaves for an even division of each."""
    found = [0.0, 1.0]
    for i in range(7):
        edges = torch.linspace(0.1, 1, (1 if signed else 2) * 2**i + 1)
        means = (edges[:-1] + edges[1:]) / 2 * 10**(i - 6)
        found += means.tolist() + ((-means).tolist() if signed else [])
    return torch.tensor(sorted(found))


class AdamW8bit(torch.optim.Optimizer):
    """AdamW; moments rest as the nearest codes of blocks of 256."""

    def __init__(self, groups, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(groups, dict(lr=1e-3, weight_decay=0.0))
        self.betas, self.eps = betas, eps
        self.maps = {True: dynamic_map(True), False: dynamic_map(False)}

    def rest(self, value, signed):
        blocks = torch.nn.functional.pad(value.flatten(), (0, -value.numel() % 256)).view(-1, 256)
        absmax = blocks.abs().amax(1, keepdim=True)
        scaled = blocks / absmax.clamp_min(1e-38)
        codes = (scaled.unsqueeze(-1) - self.maps[signed]).abs().argmin(-1)
        return codes.to(torch.uint8).flatten()[:value.numel()].view(value.shape), absmax.flatten()

    def wake(self, codes, absmax, signed):
        flat = self.maps[signed][codes.flatten().int()]
        return (flat * absmax.repeat_interleave(256)[:flat.numel()]).view(codes.shape)

    @torch.no_grad()
    def step(self):
        b1, b2 = self.betas
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                small = p.numel() < 4096
                if not s:
                    s["t"] = 0
                    s["m"] = s["v"] = torch.zeros_like(p)
                s["t"] += 1
                m = s["m"] if s["t"] == 1 or small else self.wake(*s["m8"], True)
                v = s["v"] if s["t"] == 1 or small else self.wake(*s["v8"], False)
                m = b1 * m + (1 - b1) * p.grad
                v = b2 * v + (1 - b2) * p.grad**2
                s["m"], s["v"] = m, v
                s["m8"], s["v8"] = self.rest(m, True), self.rest(v, False)
                p *= 1 - group["lr"] * group["weight_decay"]
                root = v.sqrt() / math.sqrt(1 - b2**s["t"]) + self.eps
                p -= group["lr"] / (1 - b1**s["t"]) * m / root


class AdamWTest(unittest.TestCase):
    groups = [{"names": ["bias", "scalar"], "lr_scale": 4.0},
              {"names": ["weight", "conv"], "weight_decay": 0.1}]

    def test_steps_equal_fused_adamw_of_torch_to_the_bit(self):
        p, g = values(missing={(1, "weight"), (3, "bias")})
        config = {"kind": "adamw", "groups": self.groups, "lrs": LRS}
        ours, state, _, _ = run(config, p, g)
        make = lambda groups: torch.optim.AdamW(groups, fused=True)
        theirs, optimizer = run_reference(make, p, g, LRS, self.groups)
        for name in p:
            self.assertTrue(torch.equal(ours[name], theirs[name]), name)
        leaf = optimizer.param_groups[1]["params"][0]
        for kind in ("exp_avg", "exp_avg_sq", "step"):
            self.assertTrue(torch.equal(state["weight." + kind], optimizer.state[leaf][kind]))

    def test_steps_equal_foreach_adamw_of_torch(self):
        p, g = values()
        ours, _, _, _ = run({"kind": "adamw", "groups": self.groups, "lrs": LRS}, p, g)
        make = lambda groups: torch.optim.AdamW(groups, foreach=True)
        theirs, _ = run_reference(make, p, g, LRS, self.groups)
        for name in p:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-6)

    def test_clipped_gradients_are_those_of_clip_grad_norm(self):
        p, g = values()
        ours, _, norms, _ = run({"kind": "adamw", "lrs": LRS, "max_norm": 1.0, "eps": 1e-3}, p, g)
        make = lambda groups: torch.optim.AdamW(groups, eps=1e-3, fused=True)
        theirs, _ = run_reference(make, p, g, LRS, max_norm=1.0)
        for step, drawn in enumerate(g):
            norm = torch.nn.utils.get_total_norm(list(drawn.values()))
            torch.testing.assert_close(norms[str(step)], norm, rtol=1e-6, atol=0)
            self.assertGreater(norm, 1.0)
        for name in p:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)

    def test_master_weights_of_short_leaves_move_in_float32(self):
        for dtype in (torch.bfloat16, torch.float16):
            p, g = values(dtype=dtype)
            ours, state, _, _ = run({"kind": "adamw", "lrs": LRS}, p, g)
            wide = {n: t.float() for n, t in p.items()}
            wide_g = [{n: t.float() for n, t in drawn.items()} for drawn in g]
            theirs, _ = run_reference(lambda groups: torch.optim.AdamW(groups, fused=True), wide,
                                      wide_g, LRS)
            for name in p:
                self.assertTrue(torch.equal(state[name + ".master"], theirs[name]))
                self.assertEqual(ours[name].dtype, dtype)
                self.assertTrue(torch.equal(ours[name], theirs[name].to(dtype)))


class AdamW8bitTest(unittest.TestCase):

    def test_steps_equal_moments_of_nearest_codes(self):
        shapes = {"small": (100, 40), "large": (70, 63)}
        p, g = values(shapes)
        groups = [{"names": list(p), "weight_decay": 0.1}]
        ours, state, _, _ = run({"kind": "adamw8bit", "groups": groups, "lrs": LRS, "eps": 1e-3},
                                p, g)
        theirs, optimizer = run_reference(lambda g: AdamW8bit(g, eps=1e-3), p, g, LRS, groups)
        self.assertEqual(state["small.exp_avg"].dtype, torch.float32)
        self.assertEqual(state["large.exp_avg"].dtype, torch.uint8)
        self.assertEqual(state["large.exp_avg_absmax"].shape, (math.ceil(70 * 63 / 256),))
        leaf = optimizer.param_groups[0]["params"][1]
        for ours_kind, kind in (("exp_avg", "m8"), ("exp_avg_sq", "v8")):
            codes, absmax = optimizer.state[leaf][kind]
            torch.testing.assert_close(state[f"large.{ours_kind}_absmax"], absmax)
            # A value in the middle of two codes may go either way.
            difference = (state[f"large.{ours_kind}"].int() - codes.int()).abs()
            self.assertLessEqual(difference.max(), 1)
            self.assertLess(difference.count_nonzero(), 0.002 * codes.numel())
        torch.testing.assert_close(ours["small"], theirs["small"], rtol=1e-6, atol=1e-6)
        close = torch.isclose(ours["large"], theirs["large"], rtol=1e-6, atol=1e-6)
        self.assertLess((~close).sum(), 0.002 * close.numel())
        torch.testing.assert_close(ours["large"], theirs["large"], rtol=0, atol=1e-4)

    def test_steps_stay_near_those_of_whole_moments(self):
        p, g = values({"large": (128, 64)}, steps=30)
        lrs = [1e-3] * 30
        ours, _, _, _ = run({"kind": "adamw8bit", "lrs": lrs}, p, g)
        theirs, _ = run_reference(torch.optim.AdamW, p, g, lrs)
        moved = (theirs["large"] - p["large"]).norm()
        self.assertLess((ours["large"] - theirs["large"]).norm(), 0.05 * moved)


class AdafactorTest(unittest.TestCase):

    def test_steps_equal_those_of_transformers(self):
        p, g = values(missing={(2, "conv")})
        groups = [{"names": ["weight", "conv"], "weight_decay": 0.1, "lr_scale": 2.0},
                  {"names": ["bias", "scalar"]}]
        for scale_parameter in (False, True):
            config = {"kind": "adafactor", "groups": groups, "lrs": LRS,
                      "scale_parameter": scale_parameter}
            ours, state, _, _ = run(config, p, g)
            make = lambda groups: Adafactor(groups, lr=1e-3, relative_step=False,
                                            scale_parameter=scale_parameter, clip_threshold=1.0)
            theirs, optimizer = run_reference(make, p, g, LRS, groups)
            for name in p:
                torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-6)
            for i, name in enumerate(("weight", "conv")):
                reference = optimizer.state[optimizer.param_groups[0]["params"][i]]
                for kind in ("exp_avg_sq_row", "exp_avg_sq_col"):
                    torch.testing.assert_close(state[f"{name}.{kind}"], reference[kind])
            self.assertEqual(state["conv.exp_avg_sq_row"].shape, (4, 3, 2))
            self.assertEqual(state["conv.exp_avg_sq_col"].shape, (4, 3, 2))


class ProdigyTest(unittest.TestCase):

    def test_steps_equal_the_published_algorithm(self):
        variants = [{}, {"use_bias_correction": True}, {"safeguard_warmup": True, "d_coef": 2.0},
                    {"beta3": 0.9, "d0": 1e-4}]
        groups = [{"names": ["weight", "bias"], "weight_decay": 0.01},
                  {"names": ["conv", "scalar"]}]
        lrs = [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.7, 0.4, 0.1]
        p, _ = values()
        # Gradients of a bowl far from its middle, so that d grows by much.
        _, noise = values(steps=len(lrs), seed=1, missing={(4, "conv")})
        g = [{n: torch.sign(p[n]) * 0.1 + 0.01 * t for n, t in drawn.items()} for drawn in noise]
        for variant in variants:
            ours, state, _, printed = run(
                {"kind": "prodigy", "groups": groups, "lrs": lrs, **variant}, p, g)
            theirs, optimizer = run_reference(lambda groups: Prodigy(groups, **variant), p, g, lrs,
                                              groups)
            d0 = variant.get("d0", 1e-6)
            self.assertGreater(optimizer.d, 2 * d0)
            self.assertAlmostEqual(state["prodigy.d"].item() / optimizer.d, 1.0, places=5)
            self.assertEqual(printed, f"d {state['prodigy.d'].item():.17g}\n")
            for name in p:
                moved = (theirs[name] - p[name]).abs().max().item()
                torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6,
                                           atol=max(1e-4 * moved, 1e-7))


class ResumeTest(unittest.TestCase):

    def test_a_run_in_two_files_equals_one_to_the_bit(self):
        p, g = values({"weight": (70, 63), "bias": (9,)}, steps=4, dtype=torch.bfloat16)
        for kind in ("adamw8bit", "prodigy"):
            config = {"kind": kind, "stochastic": True, "lrs": [1e-2] * 4, "d0": 1.0}
            whole, whole_state, _, _ = run(config, p, g)
            config["lrs"] = [1e-2] * 2
            half, half_state, _, _ = run(config, p, g[:2])
            rest, rest_state, _, _ = run(config, half, g[2:], half_state)
            for name in p:
                self.assertTrue(torch.equal(whole[name], rest[name]), name)
                self.assertFalse(torch.equal(half[name], rest[name]), name)
            self.assertEqual(whole_state.keys(), rest_state.keys())
            for name, value in whole_state.items():
                self.assertTrue(torch.equal(value, rest_state[name]), name)


class ScheduleTest(unittest.TestCase):

    def factors(self, **config):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(config))
            done = program.run_line([TOOL, "schedule", path], code=0)
        return [float(line) for line in done.stdout.split()]

    def test_factors_equal_those_of_diffusers_over_a_run(self):
        lr, steps = 1e-3, 120
        for kind in ("constant", "constant_with_warmup", "linear", "cosine",
                     "cosine_with_restarts", "polynomial"):
            for warmup, extra in ((0, {}), (17, {}), (17, {"num_cycles": 3}), (5, {"power": 2.0})):
                if warmup and kind == "constant":
                    continue
                if "num_cycles" in extra and kind != "cosine_with_restarts":
                    continue
                if "power" in extra and kind != "polynomial":
                    continue
                with self.subTest(kind=kind, warmup=warmup, **extra):
                    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
                    schedule = get_scheduler(kind, optimizer, num_warmup_steps=warmup,
                                             num_training_steps=steps, **extra)
                    end = 1e-7 / lr if kind == "polynomial" else 0.0
                    ours = self.factors(kind=kind, warmup_steps=warmup, total_steps=steps,
                                        end_factor=end, **extra)
                    self.assertEqual(len(ours), steps + 1)
                    for step, factor in enumerate(ours):
                        rate = optimizer.param_groups[0]["lr"]
                        self.assertAlmostEqual(factor * lr, rate, delta=1e-12, msg=f"step {step}")
                        optimizer.step()
                        schedule.step()


if __name__ == "__main__":
    torch.set_num_threads(2)
    TOOL = sys.argv.pop(1)
    unittest.main()
