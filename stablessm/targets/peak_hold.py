"""The peak-hold operator: a nonlinear target whose memory function decays although no peak is forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from stablessm._arguments import real_number
from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm.targets.base import Target


@final
@checked
@dataclass(frozen=True)
class PeakHold(Target):
    """H_t(x) = max(0, max_{s ≤ t} x(s)), channel by channel (IAT, remark A.5).

    Zero is the value before anything came. A constant input moves it once, so its memory function is 0 for t > 0, and
    1/dt over the first step, where the output jumps: decaying memory. An early peak is never forgotten: no fading
    memory. Nor is it regular: a pulse counts however short it is.

    >>> PeakHold()(torch.tensor([[[-1.0], [2.0], [1.0], [3.0]]])).flatten().tolist()
    [0.0, 2.0, 2.0, 3.0]
    """

    dt: float = 1.0
    """Time between samples, in any unit. It has no effect on the output."""
    d_input: int = 1
    """Number of channels."""
    d_output: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dt", real_number("dt", self.dt, 0))
        if self.d_input < 1:
            raise ArgumentError("d_input", "at least 1", self.d_input)
        object.__setattr__(self, "d_output", self.d_input)

    def _respond(self, x: Tensor) -> Tensor:
        return x.cummax(1).values.clamp(min=0)

    def _memory(self, times: Tensor, bound: float) -> Tensor:
        return torch.where(times < self.dt / 2, 1 / self.dt, 0.0).to(torch.float64)
