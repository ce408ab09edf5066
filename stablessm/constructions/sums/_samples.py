"""What there is to fit: times, values and the weight of an error, from a function, an expression or samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from stablessm._errors import ArgumentError

_BETWEEN = 4  # in continuous time a function is also looked at this many times a step
_MOST_BETWEEN = 200_000  # but at no more points than that
_SMALLEST = 1e-60


@final
@dataclass(frozen=True, eq=False)
class Samples:
    """ρ on a grid, as columns: one per entry of a matrix-valued kernel."""

    times: np.ndarray
    """(n,) increasing, from 0 or later."""
    values: np.ndarray
    """(n, q) float64."""
    shape: tuple[int, ...]
    """() or (d_out, d_in), with product q."""
    dt: float
    uniform: bool
    """Whether times = 0, dt, 2dt, …"""
    relative: bool
    weight: np.ndarray
    """(n,) what an error at each time is multiplied by: 1, or 1 / |ρ| for relative errors."""
    extra: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """(times, values, weight) between the grid points, where a function in continuous time is measured as well."""

    @property
    def horizon(self) -> int:
        """In steps of dt, to the last time."""
        return math.ceil(self.times[-1] / self.dt - 1e-9)

    def scaled(self) -> tuple[float, Samples]:
        """A power of two, and the samples divided by it: the same digits, of size one."""
        unit = float(2.0 ** np.frexp(np.abs(self.values).max())[1])
        if unit == 1.0:
            return unit, self
        weight = self.weight * unit if self.relative else self.weight
        extra = self.extra
        if extra is not None:
            extra = (extra[0], extra[1] / unit, extra[2] * unit if self.relative else extra[2])
        return unit, replace(self, values=self.values / unit, weight=weight, extra=extra)


def gather(kernel: Any, horizon: int | None, *, dt: float, continuous: bool, times: Any, relative: bool) -> Samples:
    """Check the arguments of ``exponential_sum`` and sample the kernel."""
    if not (isinstance(dt, int | float) and 0 < dt < math.inf):
        raise ArgumentError("dt", "a positive number", repr(dt))
    if isinstance(kernel, str):
        from stablessm.constructions.sums.expression import parse

        kernel = parse(kernel)
    function: Callable[[Any], Any] | None = kernel if callable(kernel) else None
    grid = _grid(kernel, function is not None, horizon, float(dt), times)
    values = evaluate(function, grid) if function is not None else np.asarray(kernel)
    values, shape = _columns(values, len(grid))
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        i = int(np.argmax(bad))
        where = f"{values[i][~np.isfinite(values[i])][0]} at index {i}, t = {grid[i]:g}"
        hint = "; start later with times= if the kernel is singular at 0" if i == 0 and function is not None else ""
        raise ArgumentError("kernel", "finite values" + hint, where)
    uniform = times is None
    size = np.abs(values).max(axis=1)
    if relative and not size.min() > _SMALLEST * size.max():
        i = int(np.argmin(size))
        expected = f"a kernel that stays above {_SMALLEST:g} of its largest value"
        raise ArgumentError("relative", expected, f"{size[i]:g} at index {i}, t = {grid[i]:g}")
    weight = 1 / size if relative else np.ones(len(grid))
    extra = None
    if continuous and uniform and function is not None:
        fine = np.arange(_BETWEEN * (len(grid) - 1) + 1) * (dt / _BETWEEN)
        fine = np.delete(fine, np.s_[::_BETWEEN])
        if len(fine) > _MOST_BETWEEN:  # all of the first steps, then ever fewer
            fine = fine[np.unique(np.geomspace(1, len(fine), _MOST_BETWEEN).astype(int) - 1)]
        between = _columns(evaluate(function, fine), len(fine))[0]
        extra = (fine, between, 1 / np.abs(between).max(axis=1) if relative else np.ones(len(fine)))
    return Samples(grid, values, shape, float(dt), uniform, relative, weight, extra)


def evaluate(function: Callable[[Any], Any], times: np.ndarray) -> np.ndarray:
    """The function at an array of times; one that only takes numbers is called for each."""
    try:
        values = np.asarray(function(times))
        if values.ndim == 0 or len(values) != len(times):
            raise ValueError
    except (TypeError, ValueError):
        values = np.asarray([function(float(t)) for t in times])
    return values


def _grid(kernel: Any, is_function: bool, horizon: int | None, dt: float, times: Any) -> np.ndarray:
    if times is not None:
        grid = np.array(times, dtype=np.float64)
        if grid.ndim != 1 or len(grid) < 2 or not (np.isfinite(grid).all() and (np.diff(grid) > 0).all()):
            raise ArgumentError("times", "two or more finite, increasing numbers", f"shape {grid.shape}: {times!r:.60}")
        if grid[0] < 0:
            raise ArgumentError("times", "numbers from 0 up", grid[0])
        return grid
    if horizon is None:
        if is_function:
            raise ArgumentError("horizon", "a number of steps", "None")
        horizon = len(np.atleast_1d(np.asarray(kernel))) - 1
    if isinstance(horizon, bool) or int(horizon) != horizon or horizon < 1:
        raise ArgumentError("horizon", "a whole number of steps, at least 1", repr(horizon))
    return dt * np.arange(int(horizon) + 1)


def _columns(values: np.ndarray, count: int) -> tuple[np.ndarray, tuple[int, ...]]:
    if np.iscomplexobj(values) or values.dtype.kind not in "fiub":
        raise ArgumentError("kernel", "real numbers", f"dtype {values.dtype}")
    if values.ndim not in (1, 3) or len(values) != count or 0 in values.shape:
        expected = f"samples at all {count} times, shape ({count},) or ({count}, d_out, d_in)"
        raise ArgumentError("kernel", expected, f"shape {values.shape}")
    return np.asarray(values, dtype=np.float64).reshape(count, -1), values.shape[1:]
