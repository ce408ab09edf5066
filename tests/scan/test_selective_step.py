"""One step of a selective layer: the equation in float64, in place, on any number of threads."""

from __future__ import annotations

from unittest import mock

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scan_cases import relative_error, scattered
from torch import Tensor

from stablessm.scan.cpu import selective_step as kernel
from stablessm.scan.selective import selective_step

TOLERANCE = {torch.float32: 1e-5, torch.float64: 2e-14}


def equation(x: Tensor, delta: Tensor, rate: Tensor, B: Tensor, C: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h = torch.exp(-delta[..., None] * rate.exp()) * h + (delta * x)[..., None] * B[:, None]
    return (h * C[:, None]).sum(-1), h


@settings(max_examples=40, deadline=None)
@given(
    batch=st.sampled_from([0, 1, 2, 5]), channels=st.sampled_from([1, 3, 40]), states=st.integers(1, 40),
    dtype=st.sampled_from(list(TOLERANCE)), apart=st.booleans(), threads=st.integers(1, 3), seed=st.integers(0, 999),
)  # fmt: skip
@torch.no_grad()
def test_values(
    batch: int, channels: int, states: int, dtype: torch.dtype, apart: bool, threads: int, seed: int
) -> None:
    torch.manual_seed(seed)
    sizes = ((batch, channels), (batch, channels), (channels, states), (batch, states), (batch, states))
    x, delta, rate, B, C = (scattered(part) if apart else part for part in (torch.randn(s, dtype=dtype) for s in sizes))
    delta, h = delta.abs(), torch.randn(batch, channels, states, dtype=dtype)
    before = [tensor.clone() for tensor in (x, delta, rate, B, C, h)]
    truth = equation(*(tensor.double() for tensor in before))
    with mock.patch.object(kernel, "SERIAL_STATES", 0), mock.patch("torch.get_num_threads", return_value=threads):
        y, after = selective_step(x, delta, rate, B, C, h)
    for ours, exact in zip((y, after), truth, strict=True):
        assert ours.dtype == dtype
        assert relative_error(ours, exact, 1e-6) <= TOLERANCE[dtype]
    assert (after is h) == (batch > 0)  # the kernel changes the state in place
    again = selective_step(*before)
    assert torch.equal(again[0], y)
    assert torch.equal(again[1], after)


def test_extreme_rates_and_gradients() -> None:
    x, delta, rate = torch.ones(1, 3), torch.tensor([[0.0, 1.0, 50.0]]), torch.tensor([[-200.0], [200.0], [0.0]])
    h, one = torch.full((1, 3, 1), 2.0), torch.ones(1, 1)
    with torch.no_grad():
        y, _ = selective_step(x, delta, rate, one, one, h.clone())
    torch.testing.assert_close(y, torch.tensor([[2.0, 1.0, 50.0]]))
    leaves = [tensor.double().requires_grad_() for tensor in (x, delta + 0.1, rate / 100, one, one, h)]
    assert torch.autograd.gradcheck(selective_step, leaves)
    assert torch.equal(leaves[-1].detach(), h.double())


@torch.no_grad()
def test_missing_numbers_stay_in_their_channel() -> None:
    x, h = torch.ones(1, 4), torch.ones(1, 4, 17)
    x[0, 1], h[0, 2, 16] = torch.nan, torch.nan
    y, h = selective_step(x, x.new_ones(1, 4), torch.zeros(4, 17), torch.ones(1, 17), torch.ones(1, 17), h)
    assert y.isnan().tolist() == [[False, True, True, False]]
    assert h.isnan().sum() == 17 + 1
