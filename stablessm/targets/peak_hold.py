"""The peak-hold operator, a nonlinear target: its memory function decays, although its output never forgets a peak of
the input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from stablessm._checked import Positive, Size, checked
from stablessm.targets.base import Target


@final
@checked
@dataclass(frozen=True)
class PeakHold(Target):
    """A target that returns the largest input so far, or 0 if all inputs were negative: H_t(x) = max(0, max_{s ≤ t}
    x(s)) (IAT remark A.5).

    Each channel has its own maximum, which starts at 0. A constant input changes the output only once, so the memory
    function is 1/dt at the first step, where the output jumps, and 0 afterwards: the memory decays. The memory does not
    fade, because the output never forgets an early peak. The map is not regular: even an arbitrarily short pulse
    changes the output.

    >>> PeakHold()(torch.tensor([[[-1.0], [2.0], [1.0], [3.0]]])).flatten().tolist()
    [0.0, 2.0, 2.0, 3.0]
    """

    dt: Positive = 1.0
    """Time between samples, in any unit. It has no effect on the output."""
    d_input: Size = 1
    """Number of channels."""
    d_output: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "d_output", self.d_input)

    def _respond(self, x: Tensor) -> Tensor:
        return x.cummax(1).values.clamp(min=0)

    def _memory(self, times: Tensor, bound: float) -> Tensor:
        return torch.where(times < self.dt / 2, 1 / self.dt, 0.0).to(torch.float64)
