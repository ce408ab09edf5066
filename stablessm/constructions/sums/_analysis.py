"""Analysis of the samples of a kernel before a search: Hankel matrices, initial rates, noise, and bounds of orders."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from stablessm.constructions.sums import _hankel, _starts
from stablessm.constructions.sums._graded_hankel import GradedHankel, graded_hankel
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Problem
from stablessm.constructions.sums._samples import Request, Samples

_POINTS, _POINTS_MONOTONE = 4000, 1600  # number of points at which a longer grid is fitted
_MOST_LONG = 120  # the highest order tried on a grid whose Hankel matrix is not formed
_MONOTONE = 0.02  # a kernel counts as completely monotone if the mixture leaves less than this part
_FAITHFUL = 1e-11  # a mixture that leaves less than this part replaces the samples
_HANKEL_TO_SUP, _MIXTURE_TO_SUP = 20.0, 10.0  # approximate ratio of singular values to minimax errors
_BLOCKS = (12, 48)  # numbers of singular values of a long horizon: the first often suffices
_RISES = 1.2  # a kernel rises if a value in its last tenth is larger than this multiple of all earlier values
RESOLVED = 4 * float(np.finfo(np.float64).eps)
"""Smallest error that float64 resolves, as a fraction of the kernel; smaller errors are rounding."""
_FEW, _GROWN = 32, 8  # numbers of samples below which noise cannot be estimated, and growth is not recognized
_NOISE_TO_HANKEL = 0.47  # third quartile of the singular values of an N x N Hankel matrix of unit noise, over √N


@final
class Analysis:
    """The results of an analysis of the samples of a kernel, on which a search for exponential sums relies."""

    def __init__(self, samples: Samples, domain: Domain, request: Request, close: float, grows: bool) -> None:
        """Analyze the samples; the arguments are as in :class:`~stablessm.constructions.sums._search.Search`."""
        self.samples, self.domain, self.request, self.close = samples, domain, request, close
        self.scale = float((np.abs(samples.values).max(axis=1) * samples.weight).max())
        self.problem = self._problem(_POINTS_MONOTONE, monotone=True)
        self.mixture = _starts.mixture(self.problem, samples.gap, uniform=samples.uniform)
        self.monotone = self.mixture is not None and self.mixture.error < _MONOTONE * self.scale
        if not self.monotone:
            self.problem = self._problem(_POINTS, monotone=False)
        self.hankel = self._decompose()
        self.graded = self._decompose_graded()
        self.uneven = samples.even is None and not self.monotone
        self.grows = grows or (self.uneven and self.graded is None)
        self.rank = self._numerical_rank()
        self._padded: _hankel.Hankel | None = None

    @property
    def jump(self) -> float:
        """Return the size of the largest jump of the kernel.

        Exponential sums are continuous, so that the error of every sum is at least half of the jump.
        """
        panels = self.samples.panels
        return 0.0 if panels is None or self.samples.step is not None or self.samples.relative else panels.jump()[0]

    def hopeless(self, tol: float) -> bool:
        """Return True if no sum can meet the tolerance, because of a large jump of the kernel or because of rounding
        errors.
        """
        return self.jump > 2 * tol or tol < RESOLVED * self.scale

    def rises(self, tol: float) -> bool:
        """Return True if the kernel is largest at the end of the horizon, so that decaying modes hardly fit it."""
        size = np.abs(self.samples.values).max(axis=1)
        cut = max(1, 9 * len(size) // 10)
        last = float(size[-1] * self.samples.weight[-1])
        return last > tol and bool(size[cut:].max(initial=0.0) > _RISES * size[:cut].max())

    @property
    def dense(self) -> bool:
        """Return True if the samples are evenly spaced and few enough to store the whole Hankel matrix."""
        return self.samples.even is not None and len(self.samples.even[0]) <= _hankel.DENSE + 1

    @property
    def most(self) -> int:
        """Return the highest order that the search tries.

        This order is at most ``max_order``. Without ``max_order``, it is at most half the number of samples if there
        are enough samples to recognize noise, or growth: as many states as samples would reproduce both. If the Hankel
        matrix is too large to be stored, the order is also at most a fixed limit.
        """
        count, limit = len(self.samples.times), self.request.max_order
        most = count if limit or count < (_GROWN if self.rises(0.0) else _FEW) else (count + 1) // 2
        return min(most, limit or most, most if self.dense and self.samples.uniform else _MOST_LONG)

    @property
    def noise(self) -> float:
        """Return an estimate of the standard deviation of noise in the samples, from Hankel singular values.

        Returns 0 if the noise cannot be estimated.
        """
        if not self.samples.uniform or len(self.samples.times) < _FEW:
            return 0.0
        if self.dense and self.hankel is not None:
            values = self.hankel[0].singular_values
        else:
            values = _hankel.hankel(self.samples.values[-_hankel.DENSE // 2 :]).singular_values
        return float(values[3 * len(values) // 4] / np.sqrt(len(values)) / _NOISE_TO_HANKEL)

    def noise_exceeds(self, tol: float) -> bool:
        """Return True if noise alone is expected to exceed the tolerance at some sample."""
        return self.noise * np.sqrt(2 * np.log(len(self.samples.times))) > tol

    def above(self, noise: float) -> int:
        """Return the number of Hankel singular values that are too large to come from white noise.

        ``noise`` is the standard deviation of the noise.
        """
        if self.hankel is None:
            return self.guess(noise)
        rows = (len(self.samples.times) + 1) // 2
        return max(1, int((self.hankel[0].singular_values > 3 * noise * np.sqrt(rows)).sum()))

    def least_order(self, tol: float) -> tuple[int, int]:
        """Return a lower bound of the order that meets the tolerance, and the number of Hankel singular values on which
        it is based.

        The Hankel matrix of every sum of order m differs from the Hankel matrix of the kernel by at least the singular
        value σ_{m+1} of the kernel. The ℓ1 norm of the error is at least as large as this difference. (For a matrix
        kernel, the ℓ1 norm is the sum of the Frobenius norms of the errors at all times.)
        """
        if self.samples.even is None or self.hankel is None:
            return 1, len(self.samples.times)
        values, even = self.hankel[0].singular_values, self.samples.even[0]
        limit = tol * np.sqrt(even.shape[1]) * (1 / self.samples.weigh(even)).sum()
        rounding = len(even) * np.finfo(np.float64).eps * values[0]
        return max(1, int((values > limit + rounding).sum())), len(values)

    def lower_bound(self, order: int) -> float:
        """Return a lower bound of the ℓ1 error of every exponential sum with ``order`` states; NaN if unknown."""
        if self.samples.even is None:
            return float("nan")
        even, step = self.samples.even
        if self.hankel is not None:
            values = self.hankel[0].singular_values
        else:
            assert self.mixture is not None
            values = self.mixture.hankel_singular_values((len(even) + 1) // 2, step)
        outputs = (self.samples.shape or (1, 1))[0]
        rounding = len(even) * np.finfo(np.float64).eps * values[0]
        return max(float(values[order] - rounding), 0.0) / math.sqrt(outputs) if order < len(values) else 0.0

    @property
    def bound(self) -> bool:
        """Return True if even the slowest allowed mode decays by more than a factor of e within the horizon."""
        return self.domain.slowest * float(self.samples.times[-1]) > 1

    def starts(self, order: int) -> list[tuple[str, np.ndarray]]:
        starts = []
        if self.hankel is not None and not self.near(_FAITHFUL):
            decomposition, step = self.hankel
            eigenvalues = decomposition.eigenvalues(order)
            starts.append(("Hankel", _starts.from_eigenvalues(self.domain, eigenvalues, step)))
            if self.dense and not self.monotone and (np.abs(eigenvalues) > 1).any():
                if self._padded is None:
                    assert self.samples.even is not None
                    self._padded = _hankel.hankel(self.samples.even[0], padded=True)
                rates = _starts.from_eigenvalues(self.domain, self._padded.eigenvalues(order), step)
                starts.append(("padded Hankel", rates))
        if self.mixture is not None and (self.monotone or self.domain.real):
            starts.append(("mixture", self.domain.clip(self.mixture.rates(order))))
        if self.graded is not None:
            starts.append(("graded Hankel", self.domain.admit_rates(self.graded.rates(order))))
        starts = [(method, rates) for method, rates in starts if len(rates)]
        if not starts or self.bound:  # rates that meet at the margin do not separate again
            starts.append(("spread", self._spread(order)))
        return starts

    def _spread(self, order: int) -> np.ndarray:
        """Return initial rates with evenly spaced logarithms, for use if no rates can be computed from the samples."""
        times = self.samples.times
        slow = max(1 / times[-1], 1.01 * self.domain.slowest)
        rates = -np.geomspace(slow, max(1 / min(self.samples.gap, times[-1] / 2), 2 * slow), order)
        return self.domain.clip(rates.astype(np.complex128))

    def near(self, part: float) -> bool:
        """Return True if the kernel is close to a sum of many decays with positive weights (:class:`Mixture`).

        The relative error of this sum must be below ``part``.
        """
        scalar = self.samples.values.shape[1] == 1
        return scalar and self.mixture is not None and self.mixture.error < part * self.scale

    def _decompose(self) -> tuple[_hankel.Hankel, float] | None:
        """Return the decomposed Hankel matrix of the samples, from which initial rates are computed, and its time step.

        Returns None if a :class:`Mixture` fits the samples so well that it gives good initial rates.
        """
        samples = self.samples
        if self.near(self.close) and not (self.dense and samples.uniform):
            return None
        if samples.even is None:
            count = min(max(200, len(samples.times)), _hankel.DENSE // 2)
            values, step = _starts.resampled(samples.times, samples.values, count)
            return _hankel.hankel(values), step
        even, step = samples.even
        if self.dense:
            return _hankel.hankel(even), step
        for width in _BLOCKS:
            decomposition = _hankel.long_hankel(even, width)
            values = decomposition.singular_values
            if values[-1] < 1e-10 * values[0]:
                break
        return decomposition, step

    def _decompose_graded(self) -> GradedHankel | None:
        """Return the decomposed Hankel matrix of a function of continuous time, from which initial rates are computed.

        Returns None for other kernels, and if a :class:`Mixture` fits the samples so well that it gives good initial
        rates.
        """
        panels = self.samples.panels
        if panels is None or self.samples.step is not None or self.near(self.close):
            return None
        return graded_hankel(self.samples, panels)

    def _numerical_rank(self) -> int:
        """Return the numerical rank of the Hankel matrix; sums of higher order would only fit rounding errors."""
        if not self.dense or self.hankel is None:
            return len(self.samples.times)
        values = self.hankel[0].singular_values
        return max(1, int((values > len(values) * np.finfo(np.float64).eps * values[0]).sum()))

    def guess(self, tol: float) -> int:
        """Return an estimate of the order that meets the tolerance, from which the search starts."""
        if self.mixture is not None and self.monotone:
            values = self.mixture.singular_values / (_MIXTURE_TO_SUP if self.samples.uniform else 1.0)
        elif self.graded is not None:
            values = self.graded.singular_values
        else:
            assert self.hankel is not None
            values = self.hankel[0].singular_values / _HANKEL_TO_SUP * float(np.median(self.samples.weight))
        return max(1, int((values > tol).sum()))

    def _problem(self, count: int, *, monotone: bool) -> Problem:
        chosen = subset(len(self.samples.times), count)
        return self.weighed(self.samples.times[chosen], self.samples.values[chosen], monotone)

    def weighed(self, times: np.ndarray, values: np.ndarray, monotone: bool) -> Problem:
        # For a monotone kernel, every octave of time has the same weight. For a function, every point has the same
        # weight, because the points are dense where the function changes.
        early = 0.0 if times[0] > 0 else self.samples.gap
        adapted = self.samples.panels is not None and self.samples.step is None
        spacing = np.gradient(np.log(times + early) if monotone else np.arange(len(times)) if adapted else times)
        weight = self.samples.weigh(values)
        graded = weight * np.sqrt(spacing / spacing.sum())
        return Problem(times, values, weight, graded, self.domain, self.request.tell)


def subset(n: int, count: int) -> np.ndarray:
    """Return the indices of at most ``count`` of n times: half of them geometrically spaced, half random."""
    if n <= max(count, _hankel.DENSE + 1):
        return np.arange(n)
    graded = np.geomspace(1, n, count // 2).astype(np.int64) - 1
    return np.unique(np.concatenate([graded, np.random.default_rng(0).integers(0, n, count // 2)]))
