"""Sampling of a function: on adaptive subintervals (panels), and at evenly spaced times for a Hankel matrix."""

from __future__ import annotations

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.constructions.sums import _panels
from stablessm.constructions.sums._panels import Function, Panels

_POINTS_A_PANEL = 16
_FIRST_PANELS = 4096
_MOST = 2**22  # points
_SINGULAR = 1e9  # times the largest value on the grid: larger values are a singularity
_A_PANEL = 8  # even samples per panel: at least 2.5 per resolved cycle
_MINOR = 1e-4  # part of the energy that even samples need not resolve
_EVEN = 64, 2**15  # smallest and largest number of even samples
_WATCHED = 2**12, 2**11, 1e-6  # times that look for narrow features: evenly, in the logarithm; the first, relative


def resolve(
    function: Function, grid: np.ndarray, end: float, goal: float, relative: bool, step: float | None
) -> Panels:
    """Sample a function on subintervals (panels) that are halved until the interpolation error is at most ``goal``.

    The panels cover the time from the first point of ``grid`` to ``end``; the points of ``grid`` determine the initial
    panels. If a ``step`` is given, all times are its multiples. With ``relative``, the error is relative to the size of
    the function.
    """
    edges = np.append(grid[:-1:_POINTS_A_PANEL], grid[-1])
    edges = edges[np.unique(np.linspace(0, len(edges) - 1, _FIRST_PANELS).astype(np.int64))]
    if end > grid[-1]:  # a long horizon: the grid contains its first steps only
        late = np.geomspace(grid[-1], end, _FIRST_PANELS // 4)
        late = late if step is None else _apart(step * np.rint(late / step), _panels.SHORTEST_STEPS * step)
        edges = np.union1d(edges, late) if step is None else late  # the first steps are all evaluated
    largest = 0.0

    def coarse(panels: Panels) -> np.ndarray:
        size = np.abs(panels.values).max(axis=2)
        limit = _SINGULAR * max(largest, float(size[:, 0].max()))
        if largest and not size.max() <= limit:
            i = np.unravel_index(np.argmax(size), size.shape)
            got = f"{size[i]:.3g} at t = {panels.times[i]:g}, where the kernel seems to be singular"
            raise ArgumentError("kernel", "finite values also between the times", got)
        misfit = panels.misfit()
        bound = goal * size[:, -misfit.shape[1] :] if relative else goal
        missed: np.ndarray = np.any(misfit > bound, axis=1)
        return missed

    panels = _panels.build(function, edges[:-1], edges[1:], step)
    largest = float(np.abs(panels.values).max())
    panels, resolved = _panels.refined(panels, function, coarse, most=_MOST, step=step)
    if step is None and resolved:
        edges = np.union1d(np.append(panels.left, panels.right[-1]), _unseen(function, panels, goal, relative))
        if len(edges) > len(panels) + 1:
            panels = _panels.build(function, edges[:-1], edges[1:])
            panels, resolved = _panels.refined(panels, function, coarse, most=_MOST)
    if step is not None:
        resolved = not coarse(panels).any()
    if not resolved:
        shortest = float((panels.right - panels.left).min())
        if step is not None:
            expected = "a function that is smooth at late times where the horizon is longer than a million steps"
            raise ArgumentError("kernel", expected, f"one that changes within {shortest:.3g}; take fewer steps")
        expected = f"a function that {_MOST} samples resolve to {goal:.2g}"
        got = f"one that still changes within {shortest:.3g}: it oscillates too fast for this horizon, or is noisy"
        raise ArgumentError("kernel", expected, f"{got}; take a larger tol, a shorter horizon, or give samples")
    return panels


def _unseen(function: Function, panels: Panels, goal: float, relative: bool) -> np.ndarray:
    """Evaluate the function at several thousand times; return the times at which it differs from the interpolation.

    At these times the function has narrow features, such as a pulse between the points of a panel (subinterval). A
    difference counts if it is clearly above ``goal`` or, with ``relative``, above ``goal`` times the size of the
    function.
    """
    (even, late, first), start, end = _WATCHED, panels.left[0], panels.right[-1]
    place = np.arange(even) + np.random.default_rng(even).random(even)
    times = np.union1d(start + (end - start) * place / even, start + (end - start) * np.geomspace(first, 1, late)[:-1])
    values = function(times).reshape(len(times), -1)
    interpolated, _ = panels.interpolated(times)
    bound = goal * np.abs(values).max(axis=1) if relative else goal
    unseen: np.ndarray = times[np.abs(values - interpolated).max(axis=1) > 10 * bound]
    return unseen


def even(function: Function, panels: Panels, floor: float, relative: bool) -> tuple[np.ndarray, float]:
    """Sample the kernel at evenly spaced times until it stays below ``floor``; return the values and the time step.

    The step resolves all but a small part of the energy of the kernel, so that a cusp at 0 does not determine the step.
    With ``relative``, the kernel counts as equally large at all times.
    """
    size = np.abs(panels.values).max(axis=2)
    if relative:
        size = np.ones_like(size)
    width = panels.right - panels.left
    start, end = panels.left[0], panels.right[np.flatnonzero(size.max(axis=1) > floor)[-1:].sum()]
    narrow = np.argsort(width)
    unit = np.ldexp(1.0, np.frexp(size.max())[1])  # squares of kernels of any scale are numbers
    energy = np.cumsum((((size / unit) ** 2).mean(axis=1) * width)[narrow])
    followed = width[narrow[np.searchsorted(energy, _MINOR * energy[-1])]] / _A_PANEL
    count = int(np.clip(np.ceil((end - start) / followed), *_EVEN)) + 1
    times = np.linspace(start, end, count)
    return function(times), float(times[1] - times[0])


def _apart(times: np.ndarray, least: float) -> np.ndarray:
    """Select from increasing times the first, the last, and intermediate times with distances of at least ``least``."""
    kept = [times[0]]
    for time in times[1:-1]:
        if time - kept[-1] >= least and times[-1] - time >= least:
            kept.append(time)
    return np.array([*kept, times[-1]])
