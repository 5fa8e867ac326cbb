"""Comparisons of tensors and images, and the figures they gave, for the report of a run."""

import collections

import numpy as np
import torch

TOLERANCE = 1e-4  # largest error allowed, relative to the largest value of the expected tensor

# What was compared -> the largest relative error seen.
figures = collections.OrderedDict()


def record(name, figure):
    figures[name] = max(figures.get(name, 0.0), float(figure))


def relative_error(got, expected, floor=0.0):
    """The largest absolute difference, in units of the largest expected value (at least
    `floor`)."""
    if tuple(got.shape) != tuple(expected.shape):
        raise AssertionError(f"shape {tuple(got.shape)} instead of {tuple(expected.shape)}")
    got, expected = got.detach().double(), expected.detach().double()
    if not torch.isfinite(got).all():
        raise AssertionError(f"{int((~torch.isfinite(got)).sum())} values are not finite")
    if expected.numel() == 0:
        return 0.0
    scale = max(float(expected.abs().max()), floor, 1e-30)
    return float((got - expected).abs().max()) / scale


def assert_close(name, got, expected, tolerance=TOLERANCE, floor=0.0):
    try:
        error = relative_error(got, expected, floor)
    except AssertionError as problem:
        raise AssertionError(f"{name}: {problem}") from None
    record(name, error)
    if not error <= tolerance:
        at = int((got.double() - expected.double()).abs().argmax())
        raise AssertionError(
            f"{name}: max abs error {error:.3g} of the scale, allowed {tolerance:g}; worst at flat "
            f"index {at} of {tuple(expected.shape)}: {float(got.flatten()[at]):.8g} instead of "
            f"{float(expected.flatten()[at]):.8g}")


def assert_gradients(name, got, expected, tolerances={}):
    """Compares every `grad.*` tensor of the program with `expected`, a dict of the same names.

    None stands for a parameter that the output does not depend on: the program gives zeros or
    leaves it out. A gradient is measured by its own largest value, or by a thousandth of the
    largest of all where it is smaller. `tolerances`: of names that have one of their own.
    """
    present = {key: value for key, value in got.items() if key.startswith("grad.")}
    unknown = sorted(set(present) - set(expected))
    missing = sorted(
        key for key, value in expected.items() if value is not None and key not in present)
    if unknown or missing:
        raise AssertionError(
            f"{name}: gradients missing: {missing[:5]} ({len(missing)}), unexpected: {unknown[:5]} "
            f"({len(unknown)})")
    floor = 1e-3 * max(float(value.abs().max()) for value in expected.values() if value is not None)
    worst, problems = 0.0, []
    for key, value in present.items():
        wanted = torch.zeros_like(value) if expected[key] is None else expected[key]
        try:
            error = relative_error(value, wanted, floor)
        except AssertionError as problem:
            problems.append(f"{key}: {problem}")
            continue
        worst = max(worst, error)
        if not error <= tolerances.get(key, TOLERANCE):
            problems.append(f"{key}: {error:.3g}")
    record(name, worst)
    if problems:
        raise AssertionError(f"{name}: {len(problems)} of {len(present)} gradients differ: " +
                             "; ".join(problems[:8]))


def assert_all_close(name, got, expected, tolerance, floor=0.0):
    """Compares dicts of tensors, each by its own scale, or by `floor` of the largest of all."""
    if set(got) != set(expected):
        raise AssertionError(
            f"{name}: missing: {sorted(set(expected) - set(got))[:5]}, unexpected: "
            f"{sorted(set(got) - set(expected))[:5]}")
    least = floor * max(float(value.detach().abs().max()) for value in expected.values())
    for key, wanted in expected.items():
        try:
            assert_close(name, got[key], wanted, tolerance, least)
        except AssertionError as problem:
            raise AssertionError(f"{key}: {problem}") from None


def assert_images(name, got, expected, tolerance=0.05):
    """Compares lists of uint8 images: mean absolute difference, in levels of 255."""
    if len(got) != len(expected):
        raise AssertionError(f"{name}: {len(got)} images instead of {len(expected)}")
    for number, (ours, theirs) in enumerate(zip(got, expected)):
        if ours.shape != theirs.shape:
            raise AssertionError(
                f"{name}: image {number} is {ours.shape} instead of {theirs.shape}")
        if theirs.std() < 10:
            raise AssertionError(
                f"{name}: the reference image is flat, so the comparison would prove nothing")
        difference = float(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).mean())
        record(name, difference)
        if not difference < tolerance:
            raise AssertionError(
                f"{name}: image {number} differs by {difference:.3g}/255 on average, allowed is "
                f"{tolerance:g}/255")


def report():
    width = max((len(name) for name in figures), default=0)
    return "\n".join(f"{name:<{width}}  {figure:.3g}" for name, figure in figures.items())
