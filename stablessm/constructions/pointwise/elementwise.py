"""Construction of a model that applies a function at each step, with a proven error (SSM-UA, proposition 3.1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch

from stablessm._arguments import real_number, whole_number
from stablessm._checked import Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError, NumericalError, quoted
from stablessm._progress import working
from stablessm.constructions._checks import real_array
from stablessm.constructions.pointwise._function import Pointwise
from stablessm.constructions.pointwise._ridge import Ridge, in_a_box, on_an_interval
from stablessm.constructions.pointwise._stack import LayerStack, two_layers
from stablessm.constructions.pointwise._sup_bound import BUDGET, sup_bound

_AXES = 4
"""Largest number of inputs of f for which a Lipschitz constant gives a useful bound."""


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class Elementwise(Result):
    """The result of :func:`elementwise`: a two-layer SSM that applies a function at every step, and its error."""

    model: LayerStack = field(repr=False)
    """Model from (batch, time, d_in) to (batch, time, d_out), in float64."""
    error: float
    """Largest measured |f - y|, which is a lower bound of the supremum."""
    bound: float
    """Upper bound of |f - y| on the domain if ``lipschitz`` is a Lipschitz constant of f; inf if none was given."""
    certified: bool
    """Whether the bound is proved, which requires a given Lipschitz constant."""
    lipschitz: float
    """The given Lipschitz constant, or the estimate that was used instead."""
    width: int
    """Number of hidden units."""
    condition: float
    """Condition number of the least-squares problem for the readout."""
    seconds: float
    """Seconds that the construction took."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Run the model on points (n, d_in), as one sequence of n steps; return the values (n, d_out).

        If the domain is an interval, the points may have shape (n,).
        """
        points, d = real_array("x", x), self.model.d_input
        points = points[:, None] if points.ndim == d == 1 else points
        if points.ndim != 2 or points.shape[1] != d:
            raise ArgumentError("x", "points (n,)" if d == 1 else f"points (n, {d})", f"shape {points.shape}")
        with torch.no_grad():
            return self.model(torch.from_numpy(points)[None])[0][0].numpy()

    def __str__(self) -> str:
        if self.certified:
            above = f"at most {self.bound:.3g} (certified for the Lipschitz constant {self.lipschitz:.6g})"
        else:
            above = "no bound with an estimated Lipschitz constant (pass lipschitz= for a certified bound)"
        return f"{self.width} units, error at least {self.error:.3g}, {above}"


@checked
def elementwise(
    f: Callable[[np.ndarray], Any],
    domain: tuple[float, float] | Sequence[tuple[float, float]],
    tol: float,
    *,
    lipschitz: float | None = None,
    max_width: Size = 1024,
) -> Elementwise:
    """Construct a two-layer SSM that applies a function f at every step: |f(x) - y| ≤ tol on a domain (SSM-UA eq.
    11–13)::

        h1[k] = W1 h1[k-1] + U1 x[k] + b1,    y[k] = h2[k] = W2 h2[k-1] + U2 tanh(h1[k]) + b2,    W1 = W2 = 0

    Nothing is trained. U2 and b2 come from least squares. If the domain is an interval, each cell of a mesh has one
    hidden unit, whose slope is inversely proportional to the length of the cell. Cells with large errors are halved
    until ``tol`` is met, so that kinks and steep parts have many short cells. If the domain is a box, the hidden units
    are ridges (functions that vary along one direction) in fixed random directions, and their number is doubled until
    ``tol`` is met.

    Args:
        f: a vectorized function of points, (n,) on an interval and (n, d) on a box, to (n,) or (n, d_out).
        domain: interval (low, high), or a list of (low, high) for each axis of a box.
        tol: largest allowed error, over all components of f; it is proved if ``lipschitz`` is given.
        lipschitz: Lipschitz constant L: |f(x) - f(x')| ≤ L |x - x'|₂ for every component. Without it nothing is proved:
            L is estimated as 1.5 times the steepest slope on a grid, which misses narrow features of f, and the result
            has ``certified=False`` and ``bound=inf``. An L below a measured slope raises an error.
        max_width: largest number of hidden units.

    The proof divides the domain into cells. For each cell, four numbers are added: |f(x) - y| at the center, L times
    the half diagonal, the change of y along the sides, and a bound on the second-order change of y. The sum must be at
    most ``tol``. At most 3e6 cells are used, enough for tol = L · size / 1e6 on an interval, about L · size / 500 on a
    square and L · size / 40 on a cube.

    >>> sine = elementwise(lambda x: np.sin(8 * x), (-1, 1), tol=1e-3, lipschitz=8)
    >>> sine.certified, sine.error <= sine.bound <= 1e-3, sine.width < 40
    (True, True, True)
    >>> y, state = sine.model(torch.rand(4, 100, 1, dtype=torch.float64))
    >>> y.shape
    torch.Size([4, 100, 1])
    """
    started = time.perf_counter()
    low, high = _box(domain)
    tol, max_width = real_number("tol", tol, 0), whole_number("max_width", max_width, 8)
    target = Pointwise(f, low, high, interval=np.ndim(domain) == 1)
    L = target.lipschitz(lipschitz)
    with working("elementwise") as tell:
        ridge, error, bound = _proven(replace(target, tell=tell), tol, max_width, L, estimated=lipschitz is None)
    model = LayerStack(*two_layers(ridge.A, ridge.b, ridge.C, ridge.c, "tanh"))
    certified, seconds = lipschitz is not None, round(time.perf_counter() - started, 3)
    bound = bound if certified else np.inf
    return Elementwise(model, error, bound, certified, L, len(ridge.b), ridge.condition, seconds)


def _proven(
    f: Pointwise, tol: float, max_width: int, lipschitz: float, *, estimated: bool
) -> tuple[Ridge, float, float]:
    """Fit f by larger and larger networks until an error of at most ``tol`` is proven.

    Returns the last network, its measured error, and the proven upper bound of its error. The network has at most
    ``max_width`` hidden units. ``estimated`` states, for error messages, whether the Lipschitz constant is an estimate.
    """
    one = len(f.low) == 1
    if np.prod(lipschitz * (f.high - f.low) / tol) > BUDGET:
        constant = f"{'estimated ' if estimated else ''}Lipschitz constant {lipschitz:.3g}"
        what = f"tol = {tol:g} cannot be {'tested' if estimated else 'proven'} with the {constant}: too many cells"
        raise NumericalError(what, "a larger tol")
    share = 0.9 if one else 0.5  # fraction of tol for the error at the points; the rest is for the error between them
    proven, smallest, missed = np.inf, np.inf, list[np.ndarray]()
    for ridge, error in on_an_interval(f, tol, max_width, missed) if one else in_a_box(f, max_width):
        smallest = min(smallest, error)
        if error > share * tol:
            continue
        lower, upper, worst = sup_bound(f, ridge, f.low, f.high, lipschitz, tol)
        proven = min(proven, upper)
        if upper <= tol:
            return ridge, max(lower, error), upper
        if lower > tol:
            missed.append(worst)
        elif error < tol / 8:  # a better fit would not help
            break
    bound = "" if estimated else f", the smallest proven {proven:.3g}"
    raise NumericalError(
        f"tol = {tol:g} is not met: the smallest error seen is {smallest:.3g}{bound}",
        "a larger tol or max_width, or a smaller lipschitz where f allows it; f must be continuous",
    )


def _box(domain: Any) -> tuple[np.ndarray, np.ndarray]:
    ends = np.atleast_2d(real_array("domain", domain))
    if ends.ndim != 2 or ends.shape[1:] != (2,) or not 0 < len(ends) <= _AXES:
        raise ArgumentError("domain", f"(low, high), or one such pair for each of up to {_AXES} axes", quoted(domain))
    if not (np.isfinite(ends).all() and (ends[:, 0] < ends[:, 1]).all()):
        raise ArgumentError("domain", "finite low < high", quoted(domain))
    return ends[:, 0], ends[:, 1]
