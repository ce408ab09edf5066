"""Information processing capacity: the number of functions of past inputs that can be read from a state."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike

from stablessm._checked import Count, Seed, Size, checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm._progress import working
from stablessm.instruments._axes import Axes, axes_or_new

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
"""Number of delays, after a delay with significant capacity, at which a lower capacity is enough."""

ENOUGH = 0.995
"""Fraction of the largest possible capacity at which the search stops."""

ROUNDING = 1e-9
"""Capacity that rounding errors may cause."""


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
    """Whether the capacities sum to the rank (to 0.5 %), or all products up to ``max_degree`` and ``max_delay`` were
    tried, and products of the largest degree or delay have no capacity. If False, products that were not tried may have
    capacities."""
    reach: dict[int, int] = field(default_factory=dict)
    """Largest delay up to which all products of each degree were tried: ``max_delay`` for degree 1, and as many delays
    as ``most`` allows for higher degrees. A degree is missing if the capacities of lower degrees sum to the rank."""

    @property
    def nonlinear(self) -> float:
        """Return the nonlinear capacity: the sum of the capacities of all degrees above 1."""
        return sum(value for degree, value in self.by_degree.items() if degree > 1)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the capacity of each degree and the largest possible total."""
        ax = axes_or_new(ax)
        ax.bar(list(self.by_degree), list(self.by_degree.values()))
        ax.axhline(self.rank, color="0.6", linewidth=0.8)
        ax.set(xlabel="degree", ylabel="capacity", title=f"total {self.total:.3g} of {self.rank}")
        return ax

    def __str__(self) -> str:
        parts = ", ".join(f"degree {degree}: {value:.4g}" for degree, value in self.by_degree.items() if value)
        tried = ", ".join(f"{delay} (degree {degree})" for degree, delay in self.reach.items())
        open_end = "" if self.complete else f"; longer delays or higher degrees may add more than delays up to {tried}"
        return f"capacity {self.total:.4g} of {self.rank} ({parts or 'none'}){open_end}"


@checked
def information_processing_capacity(
    states: ArrayLike,
    inputs: ArrayLike,
    *,
    max_degree: Size = 5,
    max_delay: Size | None = None,
    washout: Count = 0,
    most: Size = 20_000,
    seed: Seed = 0,
    progress: bool = True,
) -> InformationCapacity:
    """Measure which functions of past inputs a linear readout of the states can compute, and how well (Dambre 2012).

    The functions are products of Legendre polynomials of inputs at different delays, which are orthogonal if the inputs
    are independent and uniform. The capacity of a function z is the share of its variance that a linear combination of
    the states explains, from 0 to 1. The sum over all functions is at most the number of linearly independent state
    variables. The sum equals this number if the inputs alone determine the states, and if old inputs are forgotten.

    A function is included if its capacity is above a threshold. The states cannot depend on inputs that are shifted in
    time; the capacity of a function of such inputs exceeds the threshold with probability 1e-4. For degree 1, delays in
    short gaps between significant delays are included as well. Each function is made orthogonal to the previous
    functions, so that the total is at most the rank for inputs of any distribution.

    The input at every single delay up to ``max_delay`` is tried. There are C(D + d, d) products of degree d with delays
    up to D; for degrees above 1, D is the largest delay for which this number is at most ``most``. With the default, D
    is 198 for degree 2, 47 for degree 3, 23 for degree 4 and 15 for degree 5. The field ``reach`` contains D for each
    degree, and ``complete`` states whether functions that were not tried may have a capacity.

    Args:
        states: (time, state) states after each input, real or complex.
        inputs: (time,) inputs; independent uniform inputs have the clearest meaning. They are scaled to [-1, 1].
        max_degree: Largest degree of a product.
        max_delay: Largest delay (default: a tenth of the time, at most 1000). This number of first steps is left out.
        washout: Number of further first steps to leave out.
        most: Largest number of functions of each degree above 1.
        seed: Seed of the shifts.
        progress: Whether a long computation shows a progress bar.

    >>> u = np.random.default_rng(0).uniform(-1, 1, 2000)
    >>> delays = np.stack([np.roll(u, k) for k in range(3)], 1)     # the last three inputs
    >>> found = information_processing_capacity(delays, u)
    >>> round(found.total, 6), found.terms[2][0]
    (3.0, ((2, 1),))
    """
    x, u = _checked_arrays(states, inputs)
    delay = min(1000, len(u) // 10) if max_delay is None else max_delay
    first = delay + washout
    if len(u) - first < 2 * x.shape[1] + 20:
        expected = f"more than {first + 2 * x.shape[1] + 20} steps (delays, washout and twice the state size)"
        raise ArgumentError("states", expected, len(u))
    basis = _orthonormal(x[first:])
    with working("information_processing_capacity", progress) as tell:
        search = _Search(basis, _Polynomials(u, first, max_degree), delay, most, np.random.default_rng(seed), tell)
        for degree in range(1, max_degree + 1):
            if not search.full:
                search.degree(degree)
    return search.result(x.shape[1], max_degree)


def _checked_arrays(states: Any, inputs: Any) -> tuple[np.ndarray, np.ndarray]:
    x, u = (np.asarray(part.numpy(force=True) if hasattr(part, "numpy") else part) for part in (states, inputs))
    u = u[:, 0] if u.ndim == 2 and u.shape[1] == 1 else u
    if u.ndim != 1 or u.dtype.kind not in "fiu":
        raise ArgumentError("inputs", "real numbers (time,)", f"{u.dtype}, shape {u.shape}")
    if x.ndim != 2 or not x.shape[1] or x.dtype.kind not in "fciu":
        raise ArgumentError("states", f"numbers ({len(u)}, state)", f"{x.dtype}, shape {x.shape}")
    if len(x) != len(u):
        raise ArgumentError("states", f"{len(u)} steps, as many as the inputs", f"{len(x)} steps")
    for name, part in (("inputs", u), ("states", x)):
        if not np.isfinite(part).all():
            first = int((~np.isfinite(part)).reshape(len(part), -1).any(1).argmax())
            raise ArgumentError(name, "finite numbers", f"NaN or infinity, first at step {first}")
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
        table = np.stack([self._product(term, self.first) for term in terms], 1)
        table -= table.mean(0)
        size = np.linalg.norm(table, axis=0)
        return table / np.where(size > 1e-12, size, np.inf)

    def functions(self, degree: int, reach: int) -> Iterator[tuple[Term, np.ndarray]]:
        """Yield all products of one degree with delays up to ``reach``, each with its values, which are not centered.

        The product of each combination of polynomials is computed once, and shifted to all delays.
        """
        stop = len(self.values[0])
        for span in range(reach + 1):
            for term in (each for each in _terms(degree, span) if each[0][0] == 0):
                product = self._product(term, self.first - reach + span)
                for shift in range(reach - span + 1):
                    start = reach - span - shift
                    later = tuple((delay + shift, own) for delay, own in term)
                    yield later, product[start : start + stop - self.first]

    def _product(self, term: Term, first: int) -> np.ndarray:
        stop = len(self.values[0])
        return math.prod(self.values[degree][first - delay : stop - delay] for delay, degree in term)


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
    kept: dict[Term, float] = field(default_factory=dict)
    """Capacity that each function adds to the functions before it."""
    threshold: dict[int, float] = field(default_factory=dict)
    reach: dict[int, int] = field(default_factory=dict)
    directions: np.ndarray = field(init=False)
    """Orthonormal basis of the functions in ``kept``."""

    def __post_init__(self) -> None:
        self.directions = self.basis[:, :0]

    @property
    def full(self) -> bool:
        """Return True if the functions have almost the largest possible capacity."""
        return sum(self.kept.values()) >= ENOUGH * self.basis.shape[1]

    def degree(self, degree: int) -> None:
        """Search for functions of one degree with significant capacity, with delays as far as ``most`` allows."""
        limit = self.threshold[degree] = self._threshold(degree)
        allowed = (delay for delay in range(self.delay, 0, -1) if math.comb(delay + degree, degree) <= self.most)
        reach = self.reach[degree] = self.delay if degree == 1 else next(allowed, 0)
        capacity = self._capacities(degree, reach)
        if degree == 1:
            self._keep([((each, 1),) for each in _memory(capacity, limit, self.delay)], ROUNDING)
        else:
            terms = (term for delay in range(reach + 1) for term in _terms(degree, delay))
            self._keep([term for term in terms if capacity[term] > limit], limit)

    def _capacities(self, degree: int, reach: int) -> dict[Term, float]:
        """Return the capacity of each single function of this degree with delays up to ``reach``, in float32."""
        rows, basis, found = np.empty((BLOCK, len(self.basis)), np.float32), self.basis.astype(np.float32), {}
        functions = self.polynomials.functions(degree, reach)
        while block := list(itertools.islice(functions, BLOCK)):
            for row, (_, values) in zip(rows, block, strict=False):
                np.subtract(values, values.mean(), out=row, casting="same_kind")
            part = rows[: len(block)]
            size = np.einsum("st,st->s", part, part)
            explained = np.square(part @ basis).sum(1) / np.where(size > 1e-24, size, np.inf)
            found.update({term: float(value) for (term, _), value in zip(block, explained, strict=True)})
            self.tell()
        return found

    def _keep(self, terms: list[Term], limit: float) -> None:
        """Make each of the functions ``terms`` orthogonal to the functions in ``kept``, and add it to ``kept`` if the
        capacity of the result is above ``limit``.
        """
        for start in range(0, len(terms), BLOCK):
            if self.full:
                return
            block = self.polynomials.columns(terms[start : start + BLOCK])
            for _ in range(2):  # twice, for rounding
                block -= self.directions @ (self.directions.T @ block)
            gram, onto, added = block.T @ block, self.basis.T @ block, []
            for i, term in enumerate(terms[start : start + BLOCK]):
                value = min(float(np.square(onto[:, i]).sum() / gram[i, i]), 1.0) if gram[i, i] > 1e-10 else 0.0
                if value > limit:
                    self.kept[term] = value
                    added.append(i)
                    onto = onto - np.outer(onto[:, i], gram[i] / gram[i, i])
                    gram = gram - np.outer(gram[i], gram[i] / gram[i, i])
            self.directions = np.concatenate([self.directions, np.linalg.qr(block[:, added])[0]], 1)
            self.tell()

    def _threshold(self, degree: int) -> float:
        """Return the capacity above which a function of this degree is significant.

        The threshold is estimated from the capacities of functions of inputs that are shifted in time, on which the
        states do not depend.
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

    def result(self, state_size: int, max_degree: int) -> InformationCapacity:
        """Return the capacities of all functions that were found, as an :class:`InformationCapacity`."""
        by_degree, rank = dict.fromkeys(range(1, max_degree + 1), 0.0), self.basis.shape[1]
        memory = {term[0][0]: value for term, value in self.kept.items() if term[0][1] == len(term) == 1}
        linear = np.zeros(max(memory, default=-1) + 1)
        linear[list(memory)] = list(memory.values())
        for term, value in self.kept.items():
            by_degree[sum(degree for _, degree in term)] += value
        tried = list(self.reach.values()) == [self.delay] * max_degree
        open_end = by_degree[max_degree] > 0.01 * rank or any(term[-1][0] == self.delay for term in self.kept)
        return InformationCapacity(
            total=min(sum(by_degree.values()), float(rank)), by_degree=by_degree, linear=linear,
            terms=tuple(self.kept.items()), rank=rank, state_size=state_size, threshold=self.threshold,
            complete=self.full or (tried and not open_end), reach=self.reach,
        )  # fmt: skip


def _memory(capacity: dict[Term, float], limit: float, longest: int) -> Iterator[int]:
    """Yield the delays at which the states contain the input, from the capacity of each delay.

    A delay counts if its capacity is above ``limit``. A lower capacity is enough if one of the previous ``DEAD`` delays
    counts. All delays in a gap between two delays that count are included as well, if the gap is short compared with
    the delay or with the delay ``longest``.
    """
    last = -DEAD - 1
    for delay, value in enumerate(capacity.values()):
        if value > (limit / CAUTION if delay - last <= DEAD else limit):
            gap = delay - last > max(DEAD, last // 4, longest // 10)
            yield from range(delay if gap else max(last + 1, 0), delay + 1)
            last = delay


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
