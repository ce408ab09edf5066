"""The short causal convolution: the numbers of ``conv1d``, in chunks, with padding and across episodes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stablessm as ssm
from stablessm.scan import short_convolution


@settings(max_examples=20, deadline=None)
@given(
    batch=st.integers(1, 3), steps=st.integers(0, 12), channels=st.integers(1, 4), taps=st.integers(1, 5),
    cut=st.integers(0, 12), seed=st.integers(0, 999),
)  # fmt: skip
def test_it_is_a_convolution_in_chunks_and_with_padding(
    batch: int, steps: int, channels: int, taps: int, cut: int, seed: int
) -> None:
    torch.manual_seed(seed)
    x, before = torch.randn(batch, steps, channels).double(), torch.randn(batch, taps - 1, channels).double()
    weight, bias = torch.randn(channels, taps).double(), torch.randn(channels).double()
    y, state = short_convolution(x, weight, bias, before)
    joined = torch.cat([before, x], 1).mT
    if steps:
        truth = torch.nn.functional.conv1d(joined, weight[:, None], bias, groups=channels).mT
        torch.testing.assert_close(y, truth)
    torch.testing.assert_close(state, joined.mT[:, steps:])
    cut = min(cut, steps)
    first, between = short_convolution(x[:, :cut], weight, bias, before)
    second, last = short_convolution(x[:, cut:], weight, bias, between)
    torch.testing.assert_close((torch.cat([first, second], 1), last), (y, state))
    ends = torch.randint(0, steps + 1, (batch,))
    dirty = x.clone()
    for i, end in enumerate(ends.tolist()):
        dirty[i, end:] = torch.nan
    padded, last = short_convolution(dirty, weight, bias, before, lengths=ends)
    for i, end in enumerate(ends.tolist()):
        alone = short_convolution(x[i : i + 1, :end], weight, bias, before[i : i + 1])
        torch.testing.assert_close((padded[i : i + 1, :end], last[i : i + 1]), alone)
        assert not padded[i, end:].any()


@settings(max_examples=10, deadline=None)
@given(at=st.integers(0, 8), taps=st.integers(1, 4), seed=st.integers(0, 99))
def test_an_episode_starts_without_a_past(at: int, taps: int, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight = torch.randn(1, 9, 2).double(), torch.randn(2, taps).double()
    before = torch.randn(1, taps - 1, 2).double()
    reset = torch.zeros(9, dtype=torch.bool)
    reset[at] = True
    y, state = short_convolution(x, weight, None, before, reset=reset)
    early, _ = short_convolution(x[:, :at], weight, None, before)
    late, last = short_convolution(x[:, at:], weight)
    torch.testing.assert_close((y, state), (torch.cat([early, late], 1), last))


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ssm.ArgumentError, match=r"^initial: expected shape \(1, 2, 2\), got shape \(1, 3, 2\)"):
        short_convolution(torch.zeros(1, 4, 2), torch.zeros(2, 3), None, torch.zeros(1, 3, 2))
