"""The samples to which a sum is fitted: times, values and error weights from a function, a formula or data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, final

import numpy as np

from stablessm._arguments import real_number
from stablessm._errors import ArgumentError, quoted
from stablessm.constructions._checks import array
from stablessm.constructions.sums import _sampling
from stablessm.constructions.sums._panels import Function, Panels

LONGEST, HEAD = 2**20, 2**16
"""Largest number of steps at which a function is fully evaluated; on a longer grid, only the first HEAD steps are."""
_UNSEEN = 0.05  # error of the interpolation between points of a function, relative to the tolerance
_BETWEEN, _MOST_BETWEEN = 4, 50_000  # evaluations of a function per step, and the largest number of steps for it
_ROUNDED = 1e-13  # finest resolution, relative to the largest value
_RESOLVED = 1e-5  # tolerance that is used if an order is given, relative to the largest value
_SMALLEST = 1e-60
_RANGE = 1e-290, 1e290  # the largest value: beyond it weights and errors would leave float64
_SPAN = 1e-100, 1e100  # the last of given times: beyond it powers of rates would leave float64
_LATTICE = 1e-6  # times this close to a multiple of a step, in steps, count as multiples
_OFF_GRID = 1e-9  # rounding error of multiples of dt, relative to a step or to the time


@final
@dataclass(frozen=True)
class Request:
    """What the caller of ``exponential_sum`` requested: tolerance or order, largest order, and start time."""

    tol: float | None
    order: int | None
    max_order: int | None
    started: float
    """Value of ``time.perf_counter()`` at the start."""
    tell: Callable[[], object] = lambda: None
    """Function that is called after each round of a fit, and before each call of the kernel function."""


@final
@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of a kernel ρ on a grid, with one column per entry of a matrix-valued kernel."""

    times: np.ndarray
    """Increasing times (n,), from 0 or later."""
    values: np.ndarray
    """Values (n, q), float64, or complex128 for a complex kernel."""
    shape: tuple[int, ...]
    """Shape of the kernel, () or (d_out, d_in), whose product is q."""
    dt: float
    uniform: bool
    """Whether times = 0, dt, 2dt, …"""
    relative: bool
    even: tuple[np.ndarray, float] | None = None
    """Values at evenly spaced times from the first time, and the step; None if there are no such values."""
    panels: Panels | None = None
    """Panels of a function that is also fitted between the times."""
    function: Function | None = None
    """The function of these panels."""
    step: float | None = None
    """In discrete time, the step of which the times of the panels are multiples."""

    @property
    def horizon(self) -> int:
        """Return the number of steps of length dt between time 0 and the last sample."""
        return math.ceil(self.times[-1] / self.dt - 1e-9)

    @property
    def is_complex(self) -> bool:
        return np.iscomplexobj(self.values)

    @property
    def gap(self) -> float:
        """Return the shortest time that the samples resolve, which limits how fast the initial rates decay."""
        if self.panels is not None and self.panels.left[0] == 0:
            return float(self.panels.right[0])
        return self.dt if self.uniform else float(self.times[0] if self.times[0] > 0 else np.diff(self.times).min())

    @cached_property
    def lattice(self) -> float:
        """Return the shortest distance between sample times if all distances are its multiples; otherwise 0.

        It is also 0 for a function, which can be sampled at any time.
        """
        gaps = np.diff(self.times)
        least = float(gaps.min())
        steps = gaps / least
        return least if self.function is None and np.abs(steps - np.rint(steps)).max() < _LATTICE else 0.0

    @property
    def spacing(self) -> float:
        """Return the mean distance of the sample times, which is dt if they are evenly spaced from 0 on."""
        return self.dt if self.uniform else float(self.times[-1] - self.times[0]) / (len(self.times) - 1)

    @cached_property
    def weight(self) -> np.ndarray:
        """Return the weight of the error at each time, (n,): 1, or 1 / |ρ| for relative errors."""
        return self.weigh(self.values)

    def weigh(self, values: np.ndarray) -> np.ndarray:
        """Return the weights of errors at kernel values (…, entries), with shape (…,): 1, or 1 / |ρ| for relative
        errors.
        """
        size = np.abs(values).max(axis=-1)
        return 1 / np.maximum(size, np.finfo(np.float64).tiny) if self.relative else np.ones(size.shape)

    def scaled(self) -> tuple[float, Samples]:
        """Divide the samples by a power of two so that their size is about one; return the power and the new samples.

        A division by a power of two does not round.
        """
        unit = float(2.0 ** np.frexp(np.abs(self.values).max())[1])
        if unit == 1.0:
            return unit, self
        function = self.function
        return unit, replace(
            self,
            values=self.values / unit,
            even=None if self.even is None else (self.even[0] / unit, self.even[1]),
            panels=None if self.panels is None else self.panels.with_values(self.panels.values / unit),
            function=None if function is None else lambda t: function(t) / unit,
        )


def is_number(value: Any, low: float, *, whole: bool = False) -> bool:
    """Return True for a finite real number (Python or NumPy, but not a bool) that is at least ``low``.

    With ``whole``, the number must be whole.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) < math.inf:
        return False
    return not whole or float(value).is_integer()


def gather(
    kernel: Any, horizon: Any, dt: Any, continuous: bool, times: Any, relative: bool, request: Request
) -> Samples:
    """Check the arguments of ``exponential_sum`` that describe the kernel, and return its samples.

    A function of continuous time is sampled as finely as ``tol`` requires.
    """
    dt = real_number("dt", dt, 0)
    if isinstance(kernel, str):
        from stablessm.constructions.sums.expression import parse

        kernel = parse(kernel, "kernel")
    given = None if callable(kernel) else array("kernel", kernel)
    grid = _grid(given, horizon, dt, times, continuous)
    if given is not None:
        values, shape = _columns(given, len(grid))
        _check(grid, values, _largest(values), relative)
    else:

        def function(t: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
            request.tell()
            return _columns(evaluate(kernel, t), len(t))

        if continuous or (times is None and horizon > LONGEST):
            end = float(grid[-1] if times is not None else horizon * dt)
            return _function_samples(function, grid, end, dt, continuous, times is None, relative, request.tol)
        values, shape = function(grid)
        _check(grid, values, _largest(values), relative, is_function=True)
    return Samples(grid, values, shape, dt, times is None, relative, (values, dt) if times is None else None)


def _function_samples(
    sample: Callable[[np.ndarray], tuple[np.ndarray, tuple[int, ...]]],
    grid: np.ndarray,
    end: float,
    dt: float,
    continuous: bool,
    regular: bool,
    relative: bool,
    tol: float | None,
) -> Samples:
    """Sample a kernel function adaptively: in continuous time, or if there are too many steps to sample each of them.

    The samples lie between the first time of ``grid`` and the time ``end``. ``regular`` states that the caller gave no
    times. The other arguments are as in :func:`gather`.
    """
    head = _divided(grid, _BETWEEN) if continuous and len(grid) <= _MOST_BETWEEN else grid
    values, shape = sample(head)
    largest = _largest(values)
    _check(head, values, largest, relative, is_function=True)

    def function(t: np.ndarray) -> np.ndarray:
        seen = sample(t)[0].astype(values.dtype, copy=False)
        _check(t, seen, largest, relative, is_function=True)
        return seen

    one = 1.0 if relative else largest
    goal = max(_UNSEEN * (tol if tol is not None else _RESOLVED * one), _ROUNDED * one)
    step = None if continuous else dt
    panels = _sampling.resolve(function, grid, end, goal, relative, step)
    points, seen = panels.points()
    times, where = np.unique(np.concatenate([head, points]), return_index=True)
    seen = np.concatenate([values, seen])[where]
    _check(times, seen, _largest(seen), relative, is_function=True)
    if relative and continuous and seen.shape[1] == 1 and not np.iscomplexobj(seen):
        _no_zero(times, seen[:, 0])
    even = _sampling.even(function, panels, goal, relative) if continuous and regular and largest else None
    return Samples(times, seen, shape, dt, False, relative, even, panels, function, step)


def _divided(grid: np.ndarray, parts: int) -> np.ndarray:
    """Insert points into a grid of times: divide each interval into ``parts`` equal parts."""
    return np.interp(np.arange(parts * (len(grid) - 1) + 1) / parts, np.arange(len(grid)), grid)


def _largest(values: np.ndarray) -> float:
    largest = float(np.abs(values).max(where=np.isfinite(values), initial=0.0))
    if largest and not _RANGE[0] <= largest <= _RANGE[1]:
        raise ArgumentError("kernel", f"a largest value between {_RANGE[0]:g} and {_RANGE[1]:g}", f"{largest:g}")
    return largest


def _check(times: np.ndarray, values: np.ndarray, largest: float, relative: bool, *, is_function: bool = False) -> None:
    """Raise an error if a value is not finite or, with ``relative``, nearly 0 in comparison with ``largest``."""
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        i = int(np.argmax(bad))
        where = f"{values[i][~np.isfinite(values[i])][0]} at index {i}, t = {times[i]:g}"
        hint = "; start later with times= if the kernel is singular at 0" if times[i] == 0 and is_function else ""
        raise ArgumentError("kernel", "finite values" + hint, where)
    size = np.abs(values).max(axis=1)
    if relative and not size.min() > _SMALLEST * largest:
        i = int(np.argmin(size))
        expected = f"a kernel that stays above {_SMALLEST:g} of its largest value"
        raise ArgumentError("relative", expected, f"{size[i]:g} at index {i}, t = {times[i]:g}")


def _no_zero(times: np.ndarray, values: np.ndarray) -> None:
    """Raise an error if the values change sign, because relative errors are not defined at a zero."""
    changes = np.flatnonzero(values[:-1] * values[1:] < 0)
    if len(changes):
        i = int(changes[0])
        got = f"a change of sign between t = {times[i]:.6g} and {times[i + 1]:.6g}"
        raise ArgumentError("relative", "a kernel without zeros, where a relative error has no meaning", got)


def evaluate(function: Callable[[Any], Any], times: np.ndarray) -> np.ndarray:
    """Evaluate a function at an array of times, in one call or, if the function accepts only numbers, in one call per
    time.
    """
    try:
        values = array("kernel", function(times.copy()))  # a function may work in place
        if values.ndim == 0 or len(values) != len(times):
            raise ValueError
    except (TypeError, ValueError):
        try:
            return array("kernel", [function(float(t)) for t in times])
        except TypeError as error:
            expected = "a function of an array of times (NumPy, float64), or of a number"
            raise ArgumentError("kernel", expected, f"one that raises TypeError: {error}") from error
    return values


def _grid(given: np.ndarray | None, horizon: int | None, dt: float, times: Any, continuous: bool) -> np.ndarray:
    if given is not None and (given.dtype.kind not in "fiubc" or given.ndim == 0 or len(given) < 2):
        expected = "a function of time, a formula in t, or two or more samples"
        raise ArgumentError("kernel", expected, f"shape {given.shape}, dtype {given.dtype}")
    if times is not None:
        if horizon is not None:
            raise ArgumentError("horizon", "None, because times= already has an end", quoted(horizon))
        return _times(array("times", times), dt, continuous)
    if horizon is None:
        if given is None:
            raise ArgumentError("horizon", "a number of steps", "None")
        horizon = len(given) - 1
    if not is_number(horizon, 1, whole=True):
        raise ArgumentError("horizon", "a whole number of steps, at least 1", quoted(horizon))
    last = HEAD if given is None and horizon > LONGEST else int(horizon)
    return dt * np.arange(last + 1)


def _times(times: np.ndarray, dt: float, continuous: bool) -> np.ndarray:
    if times.dtype.kind not in "fiu" or times.ndim != 1 or len(times) < 2:
        raise ArgumentError("times", "two or more real numbers", f"shape {times.shape}, dtype {times.dtype}")
    grid = times.astype(np.float64)
    wrong = ~np.isfinite(grid)
    wrong[1:] |= ~(np.diff(grid) > 0)
    if wrong.any():
        i = int(np.argmax(wrong))
        after = f", after {grid[i - 1]:g}" if i else ""
        raise ArgumentError("times", "finite, increasing numbers", f"{grid[i]:g} at index {i}{after}")
    if not _SPAN[0] <= grid[-1] <= _SPAN[1]:
        expected = f"a last time between {_SPAN[0]:g} and {_SPAN[1]:g}, in another unit of time"
        raise ArgumentError("times", expected, f"{grid[-1]:g}")
    if grid[0] < 0:
        raise ArgumentError("times", "numbers from 0 up", grid[0])
    steps = grid / dt
    off = np.abs(steps - np.rint(steps)) > _OFF_GRID * np.maximum(steps, 1)
    if not continuous and off.any():
        expected = f"multiples of dt = {dt:g}, as only those exist in discrete time; use time='continuous'"
        raise ArgumentError("times", expected, grid[np.argmax(off)])
    return grid


def _columns(values: np.ndarray, count: int) -> tuple[np.ndarray, tuple[int, ...]]:
    if values.dtype.kind not in "fiubc":
        raise ArgumentError("kernel", "real or complex numbers", f"dtype {values.dtype}")
    if values.ndim not in (1, 3) or len(values) != count or 0 in values.shape:
        expected = f"samples at all {count} times, shape ({count},) or ({count}, d_out, d_in)"
        raise ArgumentError("kernel", expected, f"shape {values.shape}")
    kind = np.complex128 if np.iscomplexobj(values) and values.imag.any() else np.float64
    return np.asarray(values if kind is np.complex128 else values.real, dtype=kind).reshape(count, -1), values.shape[1:]
