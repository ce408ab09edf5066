"""Information processing capacity: the number of functions of past inputs that can be read from a state."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike

from stablessm._arguments import whole_number
from stablessm._checked import Seed, Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm._progress import working
from stablessm.instruments import _axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Term: TypeAlias = tuple[tuple[int, int], ...]
"""A product of Legendre polynomials of past inputs, as (delay, degree) of each factor."""

CHANCE = 1e-4
"""Probability that a function on which the states do not depend exceeds the threshold."""

CAUTION = 2.0
"""Safety factor of the threshold: functions of the same inputs are uncorrelated but dependent (Dambre et al. 2012)."""

SURROGATES = 200
BLOCK = 64
"""Number of functions that are projected onto the states at once."""

DEAD = 6
"""Number of further delays without a significant capacity after which the search stops."""

ENOUGH = 0.995
"""Fraction of the largest possible capacity at which the search stops."""


@final
@checked
@dataclass(frozen=True, eq=False, repr=False)
class InformationCapacity(Result):
    """The result of :func:`information_processing_capacity`: functions of past inputs with their capacities."""

    total: float
    """Sum of all capacities; at most ``rank``."""
    by_degree: dict[int, float]
    """Sum of the capacities of each degree: 1 is linear memory, 2 and more are nonlinear."""
    linear: np.ndarray
    """Capacity of the input at each delay (delays,): the linear memory function."""
    terms: tuple[tuple[Term, float], ...]
    """Each function with a significant capacity, as (delay, degree) of its factors, and its capacity."""
    rank: int
    """Number of linearly independent state variables, the largest possible total."""
    state_size: int
    """Number of state variables; a complex variable counts twice."""
    threshold: dict[int, float]
    """Capacity below which a function of each degree counts as zero, from shifted inputs."""
    complete: bool
    """Whether the search ended before its limit of functions and degrees."""

    @property
    def nonlinear(self) -> float:
        """Return the nonlinear capacity: the sum of the capacities of all degrees above 1."""
        return sum(value for degree, value in self.by_degree.items() if degree > 1)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the capacity of each degree and the largest possible total."""
        ax = _axes.on(ax)
        ax.bar(list(self.by_degree), list(self.by_degree.values()))
        ax.axhline(self.rank, color="0.6", linewidth=0.8)
        ax.set(xlabel="degree", ylabel="capacity", title=f"total {self.total:.3g} of {self.rank}")
        return ax

    def __str__(self) -> str:
        parts = ", ".join(f"degree {degree}: {value:.4g}" for degree, value in self.by_degree.items() if value)
        open_end = "" if self.complete else "; the search reached its limit before it was complete"
        return f"capacity {self.total:.4g} of {self.rank} ({parts or 'none'}){open_end}"


@checked
def information_processing_capacity(
    states: ArrayLike,
    inputs: ArrayLike,
    *,
    max_degree: Size = 5,
    max_delay: Size | None = None,
    washout: int = 0,
    most: Size = 20_000,
    seed: Seed = 0,
    progress: bool = True,
) -> InformationCapacity:
    """Measure which functions of past inputs a linear readout of the states can compute, and how well (Dambre 2012).

    The functions are products of Legendre polynomials of inputs at different delays, which are orthogonal if the inputs
    are independent and uniform. The capacity of a function z is the share of its variance that a linear combination of
    the states explains, from 0 to 1. The sum over all functions is at most the number of linearly independent state
    variables. It equals this number if the inputs alone determine the states, and if old inputs are forgotten.

    A function is included if its capacity is above a threshold. The states cannot depend on inputs that are shifted in
    time; the capacity of a function of such inputs exceeds the threshold with probability 1e-4. For degree 1, all
    delays up to the largest significant delay are included. Each function is made orthogonal to the previous functions,
    so that the total is at most the rank for inputs of any distribution.

    Args:
        states: (time, state) states after each input, real or complex.
        inputs: (time,) inputs; independent uniform inputs have the clearest meaning. They are scaled to [-1, 1].
        max_degree: Largest degree of a product.
        max_delay: Largest delay (default: a tenth of the time, at most 1000). This number of first steps is left out.
        washout: Number of further first steps to leave out.
        most: Largest number of functions of each degree.
        seed: Seed of the shifts.
        progress: Whether a long computation shows a progress bar.

    >>> u = np.random.default_rng(0).uniform(-1, 1, 2000)
    >>> delays = np.stack([np.roll(u, k) for k in range(3)], 1)     # the last three inputs
    >>> found = information_processing_capacity(delays, u)
    >>> round(found.total, 6), found.terms[2][0]
    (3.0, ((2, 1),))
    """
    x, u = _checked_arrays(states, inputs)
    delay = min(1000, len(u) // 10) if max_delay is None else whole_number("max_delay", max_delay)
    first = delay + whole_number("washout", washout, 0)
    if len(u) - first < 2 * x.shape[1] + 20:
        expected = f"more than {first + 2 * x.shape[1] + 20} steps (delays, washout and twice the state size)"
        raise ArgumentError("states", expected, len(u))
    basis = _orthonormal(x[first:])
    with working("information_processing_capacity", progress) as tell:
        search = _Search(basis, _Polynomials(u, first, max_degree), delay, most, np.random.default_rng(seed), tell)
        for degree in range(1, max_degree + 1):
            search.degree(degree)
            if search.total() >= ENOUGH * basis.shape[1]:
                break
    return search.result(x.shape[1], max_degree)


def _checked_arrays(states: Any, inputs: Any) -> tuple[np.ndarray, np.ndarray]:
    x, u = (np.asarray(part.numpy(force=True) if hasattr(part, "numpy") else part) for part in (states, inputs))
    u = u[:, 0] if u.ndim == 2 and u.shape[1] == 1 else u
    if u.ndim != 1 or u.dtype.kind not in "fiu" or not np.isfinite(u).all():
        raise ArgumentError("inputs", "finite real numbers (time,)", f"{u.dtype}, shape {u.shape}")
    if x.ndim != 2 or len(x) != len(u) or not x.shape[1] or x.dtype.kind not in "fciu" or not np.isfinite(x).all():
        raise ArgumentError("states", f"finite numbers ({len(u)}, state)", f"{x.dtype}, shape {x.shape}")
    low, high = float(u.min()), float(u.max())
    if low == high:
        raise ArgumentError("inputs", "numbers that vary", f"{low} at all times")
    rough = x.dtype in (np.float32, np.complex64)
    x = np.concatenate([x.real, x.imag], 1) if x.dtype.kind == "c" else x
    return x.astype(np.float32 if rough else np.float64), 2 * (u.astype(np.float64) - low) / (high - low) - 1


def _orthonormal(x: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis (T, rank) of the centered states, with variables scaled to similar sizes."""
    centered = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    size = np.linalg.norm(centered, axis=0)
    centered = centered[:, size > 1e-14 * (1 + np.abs(x).max())] / size[size > 1e-14 * (1 + np.abs(x).max())]
    if not centered.shape[1]:
        raise ArgumentError("states", "at least one state variable that varies", "constant states")
    left, values, _ = np.linalg.svd(centered, full_matrices=False)
    return left[:, values > (1e-6 if x.dtype == np.float32 else 1e-11) * values[0]]


@final
class _Polynomials:
    """Evaluates Legendre polynomials of the inputs at every delay, scaled to variance one for uniform inputs."""

    def __init__(self, u: np.ndarray, first: int, max_degree: int) -> None:
        self.first = first
        legendre = np.polynomial.legendre.legvander(u, max_degree)
        self.values = [math.sqrt(2 * n + 1) * column for n, column in enumerate(legendre.T)]

    def columns(self, terms: Iterable[Term]) -> np.ndarray:
        """Return the values (T, n) of products of Legendre polynomials, centered and with norm 1."""
        stop = len(self.values[0])
        made = []
        for term in terms:
            product = np.ones(stop - self.first)
            for delay, degree in term:
                product = product * self.values[degree][self.first - delay : stop - delay]
            made.append(product)
        table = np.stack(made, 1)
        table -= table.mean(0)
        size = np.linalg.norm(table, axis=0)
        return table / np.where(size > 1e-12, size, np.inf)


@final
@dataclass
class _Search:
    """The search for functions with significant capacity, and the functions found so far."""

    basis: np.ndarray
    polynomials: _Polynomials
    delay: int
    most: int
    rng: np.random.Generator
    tell: Callable[[], object]
    kept: list[Term] = field(default_factory=list)
    threshold: dict[int, float] = field(default_factory=dict)
    reached: int = 0
    """Largest delay of an included function."""
    complete: bool = True

    def degree(self, degree: int) -> None:
        """Search for functions of one degree with significant capacity, in the order of their largest delay."""
        limit = self.threshold[degree] = self._threshold(degree)
        seen = alive = 0
        shells: list[list[Term]] = []
        for delay in range(self.delay + 1):
            terms = list(_terms(degree, delay))
            seen += len(terms)
            if seen > self.most:
                self.complete = False
                break
            capacity = self._capacities(terms)
            near = (
                degree == 1 and delay - alive <= DEAD
            )  # a weak function is included if functions at similar delays are
            least = limit / CAUTION if near else limit
            counted = [term for term, value in zip(terms, capacity, strict=True) if value > least]
            shells.append(counted if degree > 1 else terms)
            if counted:
                alive = delay
                self.reached = max(self.reached, delay) if degree == 1 else self.reached
            patience = max(DEAD, alive // 4, self.reached // 2 if degree > 1 else self.delay // 10)
            if delay - alive >= patience:
                break
        else:
            self.complete = self.complete and not shells[-1]
        if degree == 1 and not any(self._capacities(shells[0]) > limit) and alive == 0:
            return
        self.kept += [term for shell in shells[: alive + 1] for term in shell]

    def _capacities(self, terms: list[Term]) -> np.ndarray:
        found = []
        for start in range(0, len(terms), BLOCK):
            columns = self.polynomials.columns(terms[start : start + BLOCK])
            found.append(np.square(self.basis.T @ columns).sum(0))
            self.tell()
        return np.concatenate(found)

    def _threshold(self, degree: int) -> float:
        """Return the capacity above which a function of this degree is significant.

        It is estimated from the capacities of functions that are shifted in time, on which the states do not depend.
        """
        steps, low = len(self.basis), min(self.delay + 1, len(self.basis) // 3)
        near = list(itertools.islice(itertools.chain.from_iterable(_terms(degree, k) for k in itertools.count()), 2000))
        chosen = [near[i] for i in self.rng.integers(0, len(near), SURROGATES)]
        chosen = [term for term in chosen if term[-1][0] <= self.delay] or [((0, degree),)]
        found = []
        for start in range(0, len(chosen), BLOCK):
            columns = self.polynomials.columns(chosen[start : start + BLOCK])
            shifts: Any = self.rng.integers(low, steps - low, columns.shape[1])
            shifted = np.stack([np.roll(column, shift) for column, shift in zip(columns.T, shifts, strict=True)], 1)
            found.append(np.square(self.basis.T @ shifted).sum(0))
        sample = np.concatenate(found)
        return CAUTION * max(_gamma_quantile(float(sample.mean()), float(sample.var())), float(sample.max()))

    def capacities(self) -> np.ndarray:
        """Return the capacities of the functions that were found, each made orthogonal to the functions before it."""
        if not self.kept:
            return np.zeros(0)
        blocks = [self.kept[start : start + BLOCK] for start in range(0, len(self.kept), BLOCK)]
        table = np.concatenate([self.polynomials.columns(block) for block in blocks], 1)
        gram, onto = table.T @ table, self.basis.T @ table
        lower = np.linalg.cholesky(gram + 1e-10 * np.eye(len(gram)))
        return np.square(np.linalg.solve(lower, onto.T)).sum(1)

    def total(self) -> float:
        """Return the sum of the capacities of all functions that were found."""
        return float(self.capacities().sum())

    def result(self, state_size: int, max_degree: int) -> InformationCapacity:
        """Return the capacities of all functions that were found, as an :class:`InformationCapacity`."""
        values = np.minimum(self.capacities(), 1.0)
        degrees = np.array([sum(degree for _, degree in term) for term in self.kept], dtype=int)
        limits = np.array([self.threshold[degree] if degree > 1 else 0.0 for degree in degrees])
        values = np.where(values > limits, values, 0.0)  # functions of outliers share their values
        rank = self.basis.shape[1]
        by_degree = {degree: float(values[degrees == degree].sum()) for degree in range(1, max_degree + 1)}
        total = min(sum(by_degree.values()), float(rank))
        more = total < ENOUGH * rank and by_degree[max_degree] > 0.01 * rank
        return InformationCapacity(
            total=total, by_degree=by_degree, linear=values[degrees == 1],
            terms=tuple(zip(self.kept, values.tolist(), strict=True)), rank=rank, state_size=state_size,
            threshold=self.threshold, complete=(self.complete or total >= ENOUGH * rank) and not more,
        )  # fmt: skip


def _terms(degree: int, delay: int) -> Iterator[Term]:
    """Yield all products of polynomials with the given total degree and the given largest delay.

    >>> list(_terms(2, 1))
    [((0, 1), (1, 1)), ((1, 2),)]
    """
    for own in range(1, degree + 1):
        for rest in itertools.combinations_with_replacement(range(delay), degree - own):
            counts = [(each, len(list(group))) for each, group in itertools.groupby(rest)]
            yield (*counts, (delay, own))


def _gamma_quantile(mean: float, variance: float) -> float:
    """Return the value that a gamma-distributed number with the given mean and variance exceeds with probability
    ``CHANCE``.
    """
    if not variance > 0:
        return mean
    shape = mean**2 / variance
    deviation = 3.719  # normal quantile for the probability 1e-4 (Wilson and Hilferty's approximation)
    return mean * (1 - 1 / (9 * shape) + deviation / (3 * math.sqrt(shape))) ** 3
