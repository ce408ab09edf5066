"""The targets as they are built without options, in full precision, and at the ends of what is allowed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from stablessm import ArgumentError
from stablessm.targets import (
    TARGETS,
    LinearFunctional,
    LotkaVolterra,
    NonlinearFunctional,
    PeakHold,
    TeacherRNN,
    Volterra,
)
from stablessm.targets.kernels import Exponential, Kernel, Polynomial, Shift

DEFAULTS = {
    "exponential": "LinearFunctional(rho=Exponential(rate=0.1), dt=1.0)",
    "polynomial": "LinearFunctional(rho=Polynomial(exponent=1.1, rate=1.0), dt=1.0)",
    "polynomial_released": "LinearFunctional(rho=Polynomial(exponent=1.1, rate=0.1), dt=1.0)",
    "shift": "LinearFunctional(rho=Shift(delay=10.0, width=1.0), dt=1.0)",
    "two_part": "LinearFunctional(rho=TwoPart(rate=1.0, delay=9.0, width=1.0), dt=1.0)",
    "airy": "LinearFunctional(rho=Airy(delay=6.0), dt=1.0)",
    "sine": "LinearFunctional(rho=Sine(rate=0.1, frequency=1.0), dt=1.0)",
    "volterra": "Volterra(terms=((Exponential(rate=1.0),), (Exponential(rate=0.5), Exponential(rate=2.0)), "
    "(Exponential(rate=0.2), Exponential(rate=0.2))), dt=1.0)",
    "teacher": "TeacherRNN(d_state=256, d_input=1, d_output=1, activation='tanh', seed=0, timescales=(1.0, 10.0), "
    "oscillation=1.0, dt=0.1)",
    "lotka_volterra": "LotkaVolterra(a=1.0, b=0.6, c=1.0, d=0.3, start=(1.0, 0.5), dt=0.0075, solver='euler')",
    "peak_hold": "PeakHold(dt=1.0, d_input=1)",
}


@pytest.mark.parametrize("name", TARGETS)
def test_defaults_are_what_they_were(name: str) -> None:
    text = repr(TARGETS[name]())
    if name == "nonlinear":
        assert text.startswith(
            "NonlinearFunctional(linear=LinearFunctional(rho=Polynomial(exponent=1.5, rate=1.0), dt=1.0), sigma="
        )
        assert text.count("dt=") == 1
    else:
        assert text == DEFAULTS[name]


@pytest.mark.parametrize("name", [name for name in TARGETS if TARGETS[name]().has_memory])
def test_memories_are_in_double_precision(name: str) -> None:
    target = TARGETS[name](dt=0.1)
    memory = target.memory(0.1 * np.arange(30.0), bound=0.7)
    assert memory.dtype == torch.float64
    if name not in ("shift", "peak_hold"):
        assert bool((memory.float().double() != memory).any())


def test_the_memory_of_a_series_has_all_its_digits() -> None:
    slow, fast, dt, bound = Exponential(0.3), Exponential(1.7), 0.25, 0.8
    target = Volterra([[slow], [slow, fast], [fast, fast, slow]], dt=dt)
    x = np.linspace(-bound, bound, 200_001)
    inputs = torch.tensor([-bound, 0.3, bound], dtype=torch.float64)[:, None, None].expand(-1, 12, 1)
    moved = np.diff(target(inputs)[..., 0].numpy(), axis=1, prepend=0.0) / dt
    k = np.arange(12)
    r, s = (np.cumsum(dt * np.exp(-rate * dt * k)) for rate in (0.3, 1.7))
    terms = np.stack([np.diff(np.concatenate([[0.0], term])) / dt for term in (r, r * s, s * s * r)])
    assert moved[1] == pytest.approx(0.3 * terms[0] + 0.09 * terms[1] + 0.027 * terms[2], rel=1e-12)
    largest = np.abs(terms.T @ np.stack([x, x**2, x**3])).max(1) / bound
    assert target.memory(dt * k, bound=bound).numpy() == pytest.approx(largest, rel=1e-10)
    assert target.memory(dt * k[::-1].copy()[:2], bound=bound).numpy() == pytest.approx(largest[[11, 10]], rel=1e-10)
    assert target.memory(torch.empty(0)).shape == (0,)
    with pytest.raises(ArgumentError, match=r"^times: expected multiples of dt = 0\.25, got 0\.3"):
        target.memory(torch.tensor([0.25, 0.3]))


@pytest.mark.parametrize("d_state", [1, 6, 7])
def test_teachers_have_the_spectrum_they_are_asked_for(d_state: int) -> None:
    teacher = TeacherRNN(d_state, d_input=2, d_output=3, seed=5, timescales=(2.0, 9.0), oscillation=0.7)
    torch.manual_seed(5)
    pairs, single = divmod(d_state, 2)
    tau = 2.0 * 4.5 ** torch.rand(pairs + single, dtype=torch.float64)
    phi = 0.7 * torch.rand(pairs, dtype=torch.float64)
    expected = torch.cat([torch.complex(-1 / tau[:pairs], sign * phi / tau[:pairs]) for sign in (1, -1)])
    expected = torch.cat([expected, (-1 / tau[pairs:]).to(torch.complex128)])
    torch.manual_seed(5)
    assert torch.equal(teacher._eigenvalues().to(torch.complex128), expected)
    found = teacher.layer.eigenvalues().to(torch.complex128)
    by_size = lambda values: np.sort_complex(values.numpy().round(9))  # noqa: E731
    assert by_size(found) == pytest.approx(by_size(expected), rel=1e-7)
    assert not any(p.requires_grad for p in teacher.layer.parameters())
    assert teacher.layer.bias is None
    x = torch.randn(5, 20, 2, dtype=torch.float64)
    assert torch.allclose(teacher(x), torch.cat([teacher.layer(one[None])[0] for one in x]))


def test_the_ends_of_what_is_allowed() -> None:
    assert TeacherRNN(4, oscillation=2.0, timescales=(3.0, 3.0), dt=1.199).dt == 1.199
    with pytest.raises(
        ArgumentError, match=r"^dt: expected less than 1\.2, where Euler steps become unstable, got 1\.2"
    ):
        TeacherRNN(4, oscillation=2.0, timescales=(3.0, 3.0), dt=1.2)
    assert TeacherRNN(1, oscillation=0.0).oscillation == 0
    wrong = {"d_state": [0], "d_input": [0], "d_output": [0], "oscillation": [-1.0, math.inf]}
    wrong["timescales"] = [(2.0, 1.0), (0.0, 1.0), (1.0, math.inf)]
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ArgumentError, match=f"^{name}: "):
                TeacherRNN(**{name: value})
    with pytest.raises(ArgumentError, match=r"^activation: expected a function with σ\(0\) = 0"):
        TeacherRNN(activation="sigmoid")
    assert Shift(delay=2.0, width=2.0).width == 2.0
    with pytest.raises(ArgumentError, match=r"^width: expected at most the delay, 2,"):
        Shift(delay=2.0, width=2.1)
    assert Polynomial(exponent=1.0).l1_norm == math.inf
    assert Polynomial(exponent=1.5, rate=4.0).l1_norm == 0.5
    assert PeakHold(d_input=3)(torch.ones(1, 2, 3)).shape == (1, 2, 3)
    assert PeakHold(dt=0.5).memory(torch.tensor([0.0, 0.2, 0.3])).tolist() == [2.0, 2.0, 0.0]
    with pytest.raises(ArgumentError, match=r"^d_input: expected a whole number, at least 1"):
        PeakHold(d_input=0)
    with pytest.raises(ArgumentError, match=r"^start: expected two numbers"):
        LotkaVolterra(start=(1.0,))
    for value in (0.0, -1.0, math.inf, math.nan, "1"):
        with pytest.raises(ArgumentError, match=r"^dt: expected a (finite )?number"):
            LinearFunctional("sine", dt=value)
    with pytest.raises(ArgumentError, match=r"^nonlinearity: expected a function with σ\(0\) = 0"):
        NonlinearFunctional(nonlinearity=torch.cos)
    for times in (torch.tensor([-1.0]), torch.zeros(2, 2)):
        with pytest.raises(ArgumentError, match=r"^times: expected one dimension and no negative time"):
            LinearFunctional("sine").memory(times)
    with pytest.raises(ArgumentError, match=r"^memory: expected a target with has_memory"):
        LotkaVolterra().memory(torch.zeros(1))
    for x in (torch.ones(2, 3), torch.ones(2, 3, 2)):
        with pytest.raises(ArgumentError, match=r"^x: expected (3 dimensions|shape) \(batch, time, (channel|1)\)"):
            LinearFunctional("sine")(x)
    with pytest.raises(ArgumentError, match=r"^x: expected a real floating point dtype"):
        LinearFunctional("sine")(torch.ones(2, 3, 1, dtype=torch.int64))


def test_functions_have_no_norm_and_kernels_keep_their_shape() -> None:
    assert LinearFunctional(torch.cos).l1_norm is None
    assert isinstance(LinearFunctional("sine").rho, Kernel)
    times = torch.arange(6.0).reshape(2, 3)
    for name in ("exponential", "polynomial", "shift", "two_part", "airy", "sine"):
        assert LinearFunctional(name).rho(times).shape == (2, 3)
    for wrong in (lambda t: t[:-1], lambda t: 3.0):
        with pytest.raises(ArgumentError, match=r"^kernel: expected values of the times' shape \(4,\)"):
            LinearFunctional(wrong)(torch.ones(1, 4, 1))
    with pytest.raises(
        ArgumentError, match=r"^rate: expected no such option of a kernel given as a function \(it has none\)"
    ):
        LinearFunctional(torch.cos, rate=1.0)
    with pytest.raises(ArgumentError, match=r"^rate: expected no such option of the airy kernel \(it has delay\)"):
        LinearFunctional("airy", rate=1.0)
