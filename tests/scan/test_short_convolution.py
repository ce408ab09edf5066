"""The short causal convolution: the numbers of ``conv1d``, in chunks, with padding and across episodes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import stablessm as ssm
from stablessm.scan import short_convolution
from stablessm.scan.padding import last_inputs

SIZES = ((1, 4), (0, 6), (1, 4), (0, 5))
"""From the first number to below the second: sequences, steps, channels, and inputs that are kept."""


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


def random_inputs(seed: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Inputs (B, T, C), the K inputs before them, resets and lengths of random sizes, zero included."""
    g = torch.Generator().manual_seed(seed)
    batch, steps, channels, count = (int(torch.randint(low, high, (1,), generator=g)) for low, high in SIZES)
    x = torch.randn(batch, steps, channels, generator=g, dtype=torch.float64)
    before = torch.randn(batch, count, channels, generator=g, dtype=torch.float64)
    reset = torch.rand(batch, steps, generator=g) < 0.4 if seed % 2 else None
    lengths = torch.randint(0, steps + 1, (batch,), generator=g) if seed % 4 < 2 else None
    return x, before, reset, lengths


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 2000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_the_last_inputs_are_those_that_a_loop_keeps(seeds: range) -> None:
    for seed in seeds:
        x, before, reset, lengths = random_inputs(seed)
        count, expected = before.shape[1], []
        for row in range(len(x)):
            kept = [*before[row]]
            for step in range(x.shape[1] if lengths is None else int(lengths[row])):
                if reset is not None and reset[row, step]:
                    kept = [torch.zeros_like(past) for past in kept]
                kept = [*kept, x[row, step]][-count:] if count else []
            expected.append(torch.stack(kept) if count else before[row])
        assert torch.equal(last_inputs(x, before, reset, lengths), torch.stack(expected)), seed
