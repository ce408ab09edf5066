"""What every target promises, for each row of one table: a new target joins ``TARGETS`` and inherits all of it.

The lines are those of IAT definition 3.1. A target that breaks one says why in ``EXCEPTIONS``; it must then
really break it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import stablessm as ssm
from stablessm import ArgumentError
from stablessm.targets import (
    TARGETS,
    LinearFunctional,
    LotkaVolterra,
    NonlinearFunctional,
    PeakHold,
    Target,
    TeacherRNN,
    Volterra,
    kernels,
)

SLOW, FAST = kernels.Exponential(0.5), kernels.Exponential(2.0)
CASES: dict[str, Callable[..., Target]] = TARGETS | {
    "shift-smooth": partial(LinearFunctional, "shift", width=1.0),
    "function": partial(LinearFunctional, lambda t: torch.exp(-t) * torch.cos(3 * t)),
    "nonlinear-relu": partial(NonlinearFunctional, "exponential", rate=0.3, nonlinearity="relu"),
    "volterra-cubic": partial(Volterra, [[SLOW], [lambda t: -torch.exp(-t), FAST], [SLOW, FAST, FAST]]),
    "teacher-hardtanh": partial(TeacherRNN, 7, 2, 3, activation="hardtanh", seed=1, timescales=(0.2, 20.0)),
    "peak-hold-two": partial(PeakHold, d_input=2),
    "lotka-volterra-rk4": partial(LotkaVolterra, solver="rk4"),
}
STARTS_AWAY_FROM_REST = {
    "silent": "it starts away from rest and moves without input",
    "time_homogeneous": "it starts away from rest, so the time of the start counts",
}
EXCEPTIONS: dict[str, dict[str, str]] = {
    "shift": {"regular": "at one sample's width a delay reads a single instant"},
    "peak_hold": {"regular": "a peak is held, however short"},
    "peak-hold-two": {"regular": "a peak is held, however short"},
    "lotka_volterra": STARTS_AWAY_FROM_REST,
    "lotka-volterra-rk4": STARTS_AWAY_FROM_REST,
}
T = 48
LARGEST = 200.0
"""A generous bound of outputs, and of their changes over those of the input."""


def every_target(line: str) -> pytest.MarkDecorator:
    """All names; an exception from this line is expected to fail."""
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=pytest.mark.xfail(reason=reasons[line], strict=True, raises=AssertionError))
            if line in (reasons := EXCEPTIONS.get(name, {}))
            else name
            for name in CASES
        ],
    )


def noise(target: Target, seed: int, steps: int = T, batch: int = 2) -> Tensor:
    """Inputs between -1 and 1."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(batch, steps, target.d_input, generator=generator, dtype=torch.float64) - 1


def moved(target: Target, x: Tensor) -> Tensor:
    """The response less that to no input."""
    return target(x) - target(torch.zeros_like(x))


def close(ours: Tensor, truth: Tensor, tolerance: float = 1e-10) -> None:
    assert ours.shape == truth.shape
    assert (ours - truth).abs().max() <= tolerance * (1 + truth.abs().max())


SEEDS = st.integers(0, 2**32 - 1)
few = settings(max_examples=8, phases=(Phase.generate,))  # a smaller seed is no simpler


@every_target("causal")
@few
@given(seed=SEEDS, now=st.integers(1, T - 1), scale=st.sampled_from([1.0, 100.0]))
def test_causal(name: str, seed: int, now: int, scale: float) -> None:
    target = CASES[name]()
    x = noise(target, seed)
    other = torch.cat([x[:, :now], scale * noise(target, seed ^ 1)[:, now:]], 1)
    y, z = target(x), target(other)
    assert (y - z)[:, :now].abs().max() <= 1e-12 * (1 + z.nan_to_num(0, 0, 0).abs().max())


@every_target("time_homogeneous")
@few
@given(seed=SEEDS, shift=st.integers(1, T))
def test_time_homogeneous(name: str, seed: int, shift: int) -> None:
    target = CASES[name]()
    x = noise(target, seed)
    late = torch.cat([torch.zeros_like(x[:, :1]).expand(-1, shift, -1), x], 1)
    close(target(late)[:, shift:], target(x))


@every_target("silent")
def test_no_input_gives_no_output(name: str) -> None:
    target = CASES[name]()
    assert not target(torch.zeros(2, T, target.d_input)).any()


@every_target("regular")
def test_regular(name: str) -> None:
    """A pulse of height 1 that gets ten times shorter gives about a tenth, at the same times."""
    peaks = []
    for dt in (0.1, 0.01):
        target = CASES[name](dt=dt)
        pulse = torch.zeros(1, round(12 / dt), target.d_input, dtype=torch.float64)
        pulse[:, 0] = 1.0
        peaks.append(moved(target, pulse).abs().max())
    assert 0 < peaks[1] <= 0.2 * peaks[0]


@every_target("continuous")
@few
@given(seed=SEEDS)
def test_continuous(name: str, seed: int) -> None:
    target = CASES[name]()
    x, direction = noise(target, seed), noise(target, seed ^ 1)
    y = target(x)
    for size in (1e-2, 1e-4, 1e-6):
        assert (target(x + size * direction) - y).abs().max() <= LARGEST * size


@every_target("bounded")
@few
@given(seed=SEEDS)
def test_bounded(name: str, seed: int) -> None:
    target = CASES[name]()
    x = noise(target, seed, steps=200)
    assert target(torch.cat([x, x.sign(), torch.ones_like(x), -torch.ones_like(x)])).abs().max() <= LARGEST


@every_target("memory")
@pytest.mark.parametrize("bound", [0.5, 2.0])
def test_memory_is_what_is_measured(name: str, bound: float) -> None:
    target = CASES[name](dt=0.1)
    if not target.has_memory:
        with pytest.raises(ArgumentError, match="memory_function for others"):
            target.memory(torch.arange(5.0))
        return
    curve = ssm.memory_function(target, 150, bound=bound, progress=False)
    stated = target.memory(curve.time, bound).numpy()
    assert stated.shape == (150,)
    assert stated.max() > 0
    linear = isinstance(target, LinearFunctional)
    assert curve.exact == linear
    np.testing.assert_allclose(curve.value, stated, rtol=0.0 if linear else 0.03, atol=1e-8 * stated.max())
    assert (curve.value <= stated + 1e-11 * stated.max()).all()


@every_target("dtype")
def test_the_input_sets_dtype_and_shape(name: str) -> None:
    target = CASES[name]()
    x = noise(target, 0, batch=3)
    y = target(x)
    assert (y.dtype, y.shape) == (torch.float64, (3, T, target.d_output))
    single = target(x.float())
    assert single.dtype == torch.float32
    close(single.double(), y, 1e-5)
    assert target(x[:, :0]).shape == (3, 0, target.d_output)
    assert target(x[:0]).shape == (0, T, target.d_output)
    close(target(x[:, :1]), y[:, :1])


@every_target("differentiable")
def test_gradients(name: str) -> None:
    target = CASES[name]()
    assert torch.autograd.gradcheck(target, noise(target, 3, steps=12, batch=1).requires_grad_())


@every_target("fixed")
def test_a_target_is_fixed(name: str) -> None:
    state = torch.get_rng_state()
    target, twin = CASES[name](), CASES[name]()
    x = noise(target, 0)
    assert torch.equal(target(x), twin(x))
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(dataclasses.FrozenInstanceError):
        target.dt = 2.0


@every_target("arguments")
def test_wrong_arguments_are_named(name: str) -> None:
    target = CASES[name]()
    with pytest.raises(ArgumentError, match=rf"^x: expected shape \(batch, time, {target.d_input}\)"):
        target(torch.zeros(2, 5, target.d_input + 1))
    with pytest.raises(ArgumentError, match=r"^x: expected a real floating"):
        target(torch.zeros(2, 5, target.d_input, dtype=torch.int64))
    with pytest.raises(ArgumentError, match=r"^dt: expected a finite number above 0"):
        CASES[name](dt=0.0)
    if target.has_memory:
        with pytest.raises(ArgumentError, match=r"^bound"):
            target.memory(torch.zeros(3), bound=-1.0)
        with pytest.raises(ArgumentError, match=r"^times"):
            target.memory(torch.tensor([-1.0]))
