"""The peak-hold operator: a nonlinear target whose memory decays though it forgets nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from stablessm._typing import Sequence


@final
@dataclass(frozen=True)
class PeakHold:
    """H_t(x) = max(0, max_{s ≤ t} x(s)), channel by channel (paper 000, remark A.5).

    Zero is the value before anything came. A constant input moves it once, so its memory function is 0 for t > 0:
    decaying memory. An early peak is never forgotten: no fading memory.

    >>> import torch
    >>> PeakHold()(torch.tensor([[[-1.0], [2.0], [1.0], [3.0]]])).flatten().tolist()
    [0.0, 2.0, 2.0, 3.0]
    """

    dt: float = 1.0
    """The time between samples, in your unit: it changes nothing but what others call a step."""

    def __call__(self, x: Sequence) -> Sequence:
        """The output (B, T, D)."""
        return x.cummax(1).values.clamp(min=0)
