"""Results print as a few lines, and errors never print whole arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import stablessm as ssm
from stablessm import ArgumentError


def results():
    layer = ssm.RealSSM(2, 300, 1, map="best", dt=0.1).double()
    layer(torch.randn(2, 30, 2, dtype=torch.float64))[0].square().sum().backward()
    curve = ssm.memory_function(layer, 3000, directions=torch.eye(2))
    target = ssm.targets.LinearFunctional("polynomial", exponent=1.1, dt=0.1)
    small = ssm.RealSSM(1, 8, 1, map="best", dt=0.1).double()
    radii = np.linspace(0, 1e-2, 20)
    errors = ssm.perturbation_error(small, target, radii=radii, norm="kernel_l1", search="random", samples=2)
    yield curve
    yield curve.decay()
    yield errors
    yield ssm.PerturbationFamily({8: errors, 16: errors})
    yield ssm.gradient_over_weight(layer)
    yield ssm.gradient_over_weight(layer)["w"]
    yield ssm.report_modes(layer)
    yield ssm.lyapunov_certificate(-torch.eye(40))
    yield ssm.bernstein_check(small, np.arange(500) * 0.1)
    yield ssm.check_streaming(nn.LSTM(3, 8))
    yield ssm.fit_decay(np.arange(60.0), np.exp(-0.31415926535 * np.arange(60.0)))
    yield ssm.fit_decay(np.arange(60.0), (1 + np.arange(60.0)) ** -1.7)
    yield ssm.report_modes(layer)[3]
    with ssm.trace_divergence(layer, when="record") as trace:
        layer(torch.full((2, 30, 2), torch.nan, dtype=torch.float64))
    yield trace.report
    yield ssm.readback(small, torch.randn(40, 50, 1, dtype=torch.float64))


def test_results_print_as_a_few_lines() -> None:
    for result in results():
        text = repr(result)
        assert text.startswith(type(result).__name__ + "(")
        assert max(map(len, text.splitlines())) <= 120, text
        assert text.count("\n") < 8, text
        assert "None" not in text, text


@pytest.mark.parametrize(
    "value",
    [
        np.arange(10**5) * 1.5,
        torch.randn(200, 200),
        list(range(10**4)),
        tuple(np.eye(100)),
        {i: i for i in range(1000)},
        [[1] * 1000] * 4,
        str(np.arange(500).tolist()),
        torch.randn(50, dtype=torch.complex64),
        torch.empty(30, 30, device="meta"),
    ],
)
def test_an_error_shows_no_whole_array(value) -> None:
    assert len(str(ArgumentError("x", "a number", value))) < 800
    assert len(str(ArgumentError("x", f"one of {value}", "nothing"))) < 800


@pytest.mark.parametrize("value", [3, "text", (3,), [1, 2], None, 0.5, np.float64(2.0), torch.tensor([1.0, 2.0])])
def test_an_error_shows_a_short_value_whole(value) -> None:
    shown = value.tolist() if isinstance(value, torch.Tensor) else value
    assert str(ArgumentError("x", "a number", value)) == f"x: expected a number, got {shown}"


def test_an_unsorted_curve_is_refused_in_few_words() -> None:
    with pytest.raises(ArgumentError, match=r"got float64 array of shape \(5000,\), from 0 to 4999"):
        ssm.fit_decay(np.arange(5000)[::-1], np.ones(5000))
