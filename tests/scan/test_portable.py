"""The scan in standard operations: the reference's numbers for any length, and no operator of ours when exported."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.export import Dim

import stablessm as ssm
from stablessm.scan import portable
from stablessm.scan.linear_op import in_three
from stablessm.scan.protocol import Recurrence

WIDE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.complex64: 1e-5, torch.complex128: 1e-12}


@settings(deadline=None, max_examples=30)
@given(
    dtype=st.sampled_from(list(WIDE)),
    sizes=st.tuples(st.integers(1, 3), st.integers(0, 150), st.integers(1, 4)),
    form=st.integers(1, 3),
    largest=st.sampled_from([0.5, 0.999, 1.0, 1.3]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    seed=st.integers(0, 2**16),
)
def test_the_numbers_are_those_of_the_reference(dtype, sizes, form, largest, flags, seed) -> None:
    (batch, steps, channels), (started, restarted, reverse) = sizes, flags
    torch.manual_seed(seed)
    decay = torch.randn((batch, steps, channels)[3 - form :], dtype=dtype)
    decay = decay / decay.abs().clamp(min=1e-3) * torch.rand(decay.shape).to(decay.real.dtype) * largest
    drive = torch.randn(batch, steps, channels, dtype=dtype)
    initial = torch.randn(batch, channels, dtype=dtype) if started else None
    reset = torch.rand(batch, steps) < 0.1 if restarted else None
    ours = portable.forward(Recurrence(in_three(decay), initial, reset, reverse), drive)
    truth = ssm.linear_scan(decay, drive, initial, reset=reset, reverse=reverse, backend="reference")
    assert ours.shape == truth.shape
    assert ours.dtype == truth.dtype
    if steps:
        assert (ours - truth).abs().max() <= WIDE[dtype] * truth.abs().max()


def test_a_reset_stops_what_is_not_finite() -> None:
    drive = torch.ones(1, 100, 1)
    drive[:, 40] = torch.nan
    reset = torch.zeros(1, 100, dtype=torch.bool)
    reset[:, 60] = True
    states = portable.forward(Recurrence(torch.full((1, 1, 1), 0.5), None, reset, False), drive)
    assert states[:, 40:60].isnan().all()
    assert not states[:, :40].isnan().any()
    assert not states[:, 60:].isnan().any()


def test_many_steps_lose_no_digits() -> None:
    decay, drive = torch.tensor([1 - 2.0**-14, 0.9]), torch.ones(1, 100_000, 2)
    states = portable.forward(Recurrence(in_three(decay), None, None, False), drive)
    truth = (1 - decay.double() ** 100_000) / (1 - decay.double())
    torch.testing.assert_close(states[0, -1].double(), truth, rtol=1e-5, atol=0)


class Scanned(torch.nn.Module):
    def forward(self, decay, drive, initial, reset):
        return ssm.linear_scan(decay, drive, initial, reset=reset)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_exported_scans_take_any_length_and_batch(dtype) -> None:
    batch, time = Dim("batch"), Dim("time")

    def sample(rows: int, steps: int) -> tuple[torch.Tensor, ...]:
        decay = torch.rand(rows, steps, 3).to(dtype) * 0.9
        return (decay, *(torch.randn(*shape, 3, dtype=dtype) for shape in ((rows, steps), (rows,))),
                torch.rand(rows, steps) < 0.2)  # fmt: skip

    shapes = ({0: batch, 1: time}, {0: batch, 1: time}, {0: batch}, {0: batch, 1: time})
    exported = torch.export.export(Scanned(), sample(2, 5), dynamic_shapes=shapes)
    assert not any("stablessm" in str(node.target) for node in exported.graph.nodes)
    for rows, steps in ((1, 1), (3, 1), (1, 31), (2, 100)):
        arguments = sample(rows, steps)
        torch.testing.assert_close(exported.module()(*arguments), Scanned()(*arguments), rtol=1e-4, atol=1e-5)
