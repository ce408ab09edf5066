"""An interval of real numbers with open or closed ends, for the ranges of maps."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor


@final
class Interval(tuple[float, float]):
    """An interval of real numbers, as the pair (low, high).

    ``closed`` is a pair of flags that state whether the low end and the high end belong to the interval.

    >>> low, high = Interval(-2.0, 0.0, closed=(True, False))
    >>> print(Interval(-2.0, 0.0, closed=(True, False)))
    [-2, 0)
    """

    closed: tuple[bool, bool]

    def __new__(cls, low: float, high: float, *, closed: tuple[bool, bool] = (False, False)) -> Interval:
        """Create an interval; both ends are open unless ``closed`` says otherwise."""
        self = super().__new__(cls, (low, high))
        self.closed = closed
        return self

    def __getnewargs__(self) -> tuple[float, float]:
        return self[0], self[1]

    def __str__(self) -> str:
        left, right = "[" if self.closed[0] else "(", "]" if self.closed[1] else ")"
        return f"{left}{self[0]:.6g}, {self[1]:.6g}{right}"

    def holds(self, x: Tensor) -> Tensor:
        """Return a mask that is True where an element of x lies in the interval; closed ends tolerate rounding errors.

        >>> Interval(0.0, 1.0, closed=(True, False)).holds(torch.tensor([0.0, 0.5, 1.0]))
        tensor([ True,  True, False])
        """
        (low, high), (with_low, with_high) = self, self.closed
        slack = 4 * torch.finfo(x.dtype).eps
        above = x >= low - slack * max(1.0, abs(low)) if with_low else x > low
        below = x <= high + slack * max(1.0, abs(high)) if with_high else x < high
        return above & below
