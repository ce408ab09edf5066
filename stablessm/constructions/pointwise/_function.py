"""A wrapper of a given function that checks the values of the function and estimates a Lipschitz constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from stablessm._arguments import real_number
from stablessm._errors import ArgumentError
from stablessm.constructions._checks import real_array

_GRID = 2**14
"""Number of points at which slopes are measured."""
_MARGIN = 1.5
"""Factor between the steepest measured slope and the estimated Lipschitz constant."""


@final
@dataclass(frozen=True, eq=False)
class Pointwise:
    """A function f of points (n, d) in a box with values (n, k), which are checked at every call."""

    f: Callable[[np.ndarray], Any]
    low: np.ndarray
    high: np.ndarray
    interval: bool
    """Whether f takes arrays (n,) instead of (n, 1)."""
    tell: Callable[[], object] = lambda: None
    """Function that is called before each call of f."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Evaluate f at points (n, d), and return values (n, k); raise an ArgumentError if the values are not valid."""
        self.tell()
        try:
            found = self.f(x[:, 0] if self.interval else x)
        except (TypeError, AttributeError) as error:  # a function of tensors
            expected, got = "a function of NumPy arrays", f"one that raises {type(error).__name__}: {error}"
            raise ArgumentError("f", expected, got) from error
        y = real_array("f", found)
        if y.ndim not in (1, 2) or len(y) != len(x) or 0 in y.shape:
            raise ArgumentError("f", f"one row for each of {len(x)} points (it must be vectorized)", f"shape {y.shape}")
        y = y.reshape(len(x), -1)
        if not np.isfinite(y).all():
            where = x[~np.isfinite(y).all(1)][0].tolist()
            raise ArgumentError("f", "finite values on the domain", f"{y[~np.isfinite(y)][0]} at {where}")
        return y

    def lipschitz(self, given: float | None) -> float:
        """Return a Lipschitz constant of f: ``given`` or, if that is None, an estimate from slopes on a grid.

        Raises an ArgumentError if a slope on the grid is steeper than ``given``.
        """
        given = None if given is None else real_number("lipschitz", given, 0)
        steepest = self._steepest()
        if given is None:
            return _MARGIN * steepest or float(np.finfo(float).tiny)
        if steepest > given * (1 + 1e-6):
            raise ArgumentError("lipschitz", f"at least {steepest:.6g}, a slope that f has", given)
        return given

    def _steepest(self) -> float:
        """Return the largest slope of f between neighbors on a grid, over all components of f.

        Points are neighbors along axes and along diagonals.
        """
        d = len(self.low)
        per_axis = max(3, round(_GRID ** (1 / d)))
        axes = [np.linspace(a, b, per_axis) for a, b in zip(self.low, self.high, strict=True)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        y = self(grid.reshape(-1, d)).reshape(*grid.shape[:-1], -1)
        steps = [
            tuple(slice(s, n - 1 + s) for s, n in zip(at, grid.shape[:-1], strict=True)) for at in np.ndindex(*[2] * d)
        ]
        pairs = [(one, other) for i, one in enumerate(steps) for other in steps[:i]]
        quotients = [
            float((np.abs(y[one] - y[other]) / np.linalg.norm(grid[one] - grid[other], axis=-1, keepdims=True)).max())
            for one, other in pairs
        ]
        return max(quotients)
