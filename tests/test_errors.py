"""Errors never print whole arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stablessm as ssm
from stablessm import ArgumentError


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
