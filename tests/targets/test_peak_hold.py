"""The peak-hold operator."""

from __future__ import annotations

import pytest
import torch

from stablessm import ArgumentError
from stablessm.targets import PeakHold


def test_peak_hold_never_falls_and_forgets_nothing() -> None:
    x = torch.randn(4, 50, 2)
    y = PeakHold(d_input=2)(x)
    assert (y.diff(dim=1) >= 0).all()
    assert (y >= 0).all()
    torch.testing.assert_close(y[:, -1], x.amax(1).clamp(min=0))
    assert PeakHold(dt=2).memory(torch.tensor([0.0, 2.0])).tolist() == [0.5, 0.0]
    with pytest.raises(ArgumentError, match=r"^d_input"):
        PeakHold(d_input=0)
