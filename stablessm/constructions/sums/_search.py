"""Search for the best sum of a given order, and for the smallest order that meets a tolerance."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import numpy as np

from stablessm.constructions.sums import _hankel, _starts
from stablessm.constructions.sums._evidence import Path
from stablessm.constructions.sums._graded_hankel import GradedHankel, graded_hankel
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Fit, Problem, fit_weights, least_squares, minimax
from stablessm.constructions.sums._samples import Request, Samples
from stablessm.constructions.sums._supremum import Error, compare

_POINTS, _POINTS_MONOTONE = 4000, 1600  # number of points at which a longer grid is fitted
_MOST_LONG = 120  # the highest order tried on a grid whose Hankel matrix is not formed
_LEAST_SQUARES, _MINIMAX = 64, 150  # highest order for least squares, and number of unknowns for minimax
_PURSUED = 10  # highest order to which modes are added one by one if the graded Hankel operator suggests rates too
_RIVALS, _SMALL = 4, 50  # the best start may not give the best result: starts, and largest number of unknowns
_SAME = 1e-4  # fits whose errors differ by a smaller relative amount are the same local minimum
_WITHIN = 40.0  # largest factor that minimax can gain; it is not tried further above the tolerance
_MONOTONE = 0.02  # a kernel counts as completely monotone if the mixture leaves less than this part
_CLOSE = 1e-8  # a mixture that leaves less than this part is tried alone
_FAITHFUL = 1e-11  # a mixture that leaves less than this part replaces the samples
_HANKEL_TO_SUP, _MIXTURE_TO_SUP = 20.0, 10.0  # approximate ratio of singular values to minimax errors
_BLOCKS = (12, 48)  # numbers of singular values of a long horizon: the first often suffices
_REPAIRS = 5
_ROUNDED = 1e-13  # smaller errors, relative to the kernel, are rounding errors and are not reduced further
_HOPEFUL = 30.0  # least squares starts at rates whose error is at most so many times the smallest
_ALIKE, _ENOUGH = 1.02, 1.2
_NEARLY = 1.2
_RISES = 1.2  # a kernel that rises has values in the last tenth so many times larger than all before
_HOPELESS = 8  # order of the fit if no order can meet the tolerance
RESOLVED = 4 * float(np.finfo(np.float64).eps)
"""Smallest error that float64 resolves, as a fraction of the kernel; smaller errors are rounding."""

_PATIENCE, _STUCK = 8, 0.7  # the search ends if so many orders together reduce the error by a smaller factor
_LARGEST_RING = 2 * 10**7  # largest product of samples and states
_FEW = 32  # number of samples below which noise cannot be estimated
_TRAILING, _QUIET = 32, 0.9  # a kernel ends, and is not noise, with so many (or such a part of) small samples
_NOISE_TO_HANKEL = 0.47  # third quartile of the singular values of an N x N Hankel matrix of unit noise, over √N


@final
class Search:
    """A search for exponential sums that approximate one kernel; fits of several orders share intermediate results."""

    def __init__(
        self, samples: Samples, domain: Domain, request: Request, *, close: float = _CLOSE, grows: bool = False
    ) -> None:
        """Prepare the search for exponential sums that approximate a kernel.

        Args:
            samples: samples of the kernel.
            domain: the allowed rates.
            request: what the caller of ``exponential_sum`` requested.
            close: no Hankel matrix of a long kernel is computed if a :class:`Mixture` fits it up to this relative
                error.
            grows: try one order after the other and add modes one by one. This is always done for uneven samples,
                unless the kernel is nearly completely monotone.
        """
        self.samples, self.domain, self.request, self._closest = samples, domain, request, close
        self.scale = float((np.abs(samples.values).max(axis=1) * samples.weight).max())
        self._fits: dict[int, Fit] = {}
        self._candidates: dict[int, list[Fit]] = {}
        self._polished: dict[int, Fit] = {}
        self._whole: dict[int, Fit] = {}
        self.problem = self._problem(_POINTS_MONOTONE, monotone=True)
        self.mixture = _starts.mixture(self.problem, samples.gap, uniform=samples.uniform)
        self.monotone = self.mixture is not None and self.mixture.error < _MONOTONE * self.scale
        if not self.monotone:
            self.problem = self._problem(_POINTS, monotone=False)
        self._path: Path | None = None
        self.hankel = self._decompose()
        self._graded = self._decompose_graded()
        uneven = samples.even is None and not self.monotone
        self.grows = grows or (uneven and self._graded is None)
        self._pursued = _LEAST_SQUARES if self.grows else _PURSUED if uneven else 0
        self._rank = self._numerical_rank()
        self._padded: _hankel.Hankel | None = None

    @property
    def jump(self) -> float:
        """Size of the largest jump of the kernel; sums are continuous, so every sum has an error of at least half the
        jump.
        """
        panels = self.samples.panels
        return 0.0 if panels is None or self.samples.step is not None or self.samples.relative else panels.jump()[0]

    def hopeless(self, tol: float) -> bool:
        """Return True if no sum can meet the tolerance, because of a large jump of the kernel or because of rounding
        errors.
        """
        return self.jump > 2 * tol or tol < RESOLVED * self.scale

    def rises(self, tol: float) -> bool:
        """Return True if the kernel increases at the end of the horizon, which decaying modes can hardly
        approximate.
        """
        size = np.abs(self.samples.values).max(axis=1)
        cut = max(1, 9 * len(size) // 10)
        last = float(size[-1] * self.samples.weight[-1])
        return last > tol and bool(size[cut:].max(initial=0.0) > _RISES * size[:cut].max())

    @property
    def dense(self) -> bool:
        """Whether the samples are evenly spaced and few enough to store the whole Hankel matrix."""
        return self.samples.even is not None and len(self.samples.even[0]) <= _hankel.DENSE + 1

    @property
    def most(self) -> int:
        """Highest order that the search tries: the minimum of half the number of samples, a fixed limit and
        ``max_order``.
        """
        half = (len(self.samples.times) + 1) // 2
        half = half if self.dense and self.samples.uniform else min(_MOST_LONG, half)
        return min(half, self.request.max_order or half)

    @property
    def noise(self) -> float:
        """Estimated standard deviation of noise in the samples, from Hankel singular values; 0 if unknown."""
        if not self.samples.uniform or len(self.samples.times) < _FEW:
            return 0.0
        if self.dense and self.hankel is not None:
            values = self.hankel[0].singular_values
        else:
            values = _hankel.hankel(self.samples.values[-_hankel.DENSE // 2 :]).singular_values
        return float(values[3 * len(values) // 4] / np.sqrt(len(values)) / _NOISE_TO_HANKEL)

    def _noise_exceeds(self, tol: float) -> bool:
        """Return True if noise alone is expected to exceed the tolerance at some sample."""
        return self.noise * np.sqrt(2 * np.log(len(self.samples.times))) > tol

    def _above(self, noise: float) -> int:
        """Return the number of Hankel singular values that exceed the singular values of white noise of deviation
        ``noise``.
        """
        if self.hankel is None:
            return self._guess(noise)
        rows = (len(self.samples.times) + 1) // 2
        return max(1, int((self.hankel[0].singular_values > 3 * noise * np.sqrt(rows)).sum()))

    def best(self, order: int) -> Fit:
        """Return the best fit of the given order after minimax optimization, with the largest error at all times."""
        if order not in self._whole:
            self._whole[order] = self._repaired(self._polish(order, 0.0), order)
        return self._whole[order]

    def _repaired(self, fit: Fit, order: int) -> Fit:
        """Refit with extra sample times where the error between the samples is large; return the best of all these
        fits.
        """
        problem, best = self.problem, fit
        if fit.method == "ring" or (self.samples.panels is None and len(problem.times) == len(self.samples.times)):
            return replace(fit, error=self.error(fit).sup)
        for attempt in range(_REPAIRS):
            error = self.error(fit)
            whole = replace(fit, error=error.sup)
            best = whole if attempt == 0 or whole.error < best.error else best
            rounded = whole.error < _ROUNDED * self.scale
            if rounded or whole.error <= _ALIKE * fit.error or not self._polishable(order) or attempt == _REPAIRS - 1:
                break
            times, where = np.unique(np.concatenate([problem.times, error.times]), return_index=True)
            values = np.concatenate([problem.values, error.values])[where]
            problem = self._weighed(times, values, self.monotone)
            fit = minimax(problem, whole)
        return best

    def error(self, fit: Fit) -> Error:
        """Return the error of a fit at every sample and, for a kernel function, between the samples."""
        return compare(self.samples, self.domain, fit)[1]

    def at_most(self, order: int) -> Fit:
        """Return the best fit with ``order`` states or fewer, so that the error never grows with the order.

        Orders that the Hankel matrix excludes are skipped.
        """
        best = self.best(order)
        for lower in range(order - 1, 0, -1):
            if lower < self._least_order(best.error)[0]:
                break
            fit = self.best(lower)
            best = fit if fit.error < best.error else best
        return best

    def smallest(self, tol: float) -> Fit | None:
        """Return the fit of the lowest order that meets the tolerance, or None if none was found."""
        least, known = self._least_order(tol)
        if self.hopeless(tol):
            self.best(min(_HOPELESS, self.most))
            return None
        if self.grows:
            return self._upward(tol, least)
        ring, most = self._ended(tol), self.most
        if ring is not None:
            order = self.domain.order(ring.rates)
            if ring.error <= tol:
                if least >= min(order, _LEAST_SQUARES, known):  # no lower order exists or can be polished
                    return ring
                self._polished[order] = ring
                most = min(most, order)
            else:
                if order > most:
                    self._fits[order] = ring  # it may still be the best fit
                ring = None
        return self._search(tol, min(least, most), most) or ring

    def _upward(self, tol: float, least: int) -> Fit | None:
        """Try increasing orders, starting from previous fits; return None if the error hardly decreases over several
        orders.
        """
        levels: list[float] = []
        for order in range(least, self.most + 1):
            if self._meets(order, tol) and self.best(order).error <= tol:
                return self.best(order)
            levels.append(self._fits[order].error)
            if len(levels) > _PATIENCE and levels[-1] > _STUCK * levels[-1 - _PATIENCE]:
                return None
        return None

    def _search(self, tol: float, least: int, most: int) -> Fit | None:
        """Search for the smallest order between ``least`` and ``most``: double the step from a guess, then bisect."""
        # the singular values of a kernel that ends, such as a lag, are all alike, like those of noise
        ends = self.samples.uniform and not (np.abs(self.samples.values[most:]) > tol).any()
        if not ends and self._noise_exceeds(tol):  # no short sum follows noise, and the search for one takes long
            above = min(self._above(self.noise), most)  # usually the best fit
            if not self._meets(min(above, _LEAST_SQUARES), tol) and not self._meets(above, tol):
                return None
        high = low = max(min(self._guess(tol), most), least)
        step = 1
        if self._meets(high, tol):
            while low >= least and self._meets(low, tol):
                low, high, step = max(low - step, least - 1), low, 2 * step
        else:
            while not self._meets(high, tol):
                if high >= most:
                    far = self.rises(tol) or self.so_far().error > _WITHIN * tol
                    if far or most > _LEAST_SQUARES:  # no hope, or too many orders to try them all
                        return None
                    fit = self.at_most(most)
                    return self._lowest(fit, tol, least) if fit.error <= tol else None
                low, high, step = high, min(high + step, most), 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._meets(middle, tol) else (middle, high)
        for order in range(high, most + 1):  # the error may be larger between the fitted points
            fit = self.best(order)
            if fit.error <= tol:
                return self._lowest(fit, tol, least)
        return None

    def _lowest(self, fit: Fit, tol: float, least: int) -> Fit:
        """Return the given fit, or a fit with fewer states if one meets the tolerance after further optimization.

        Nothing is tried for kernels that are nearly completely monotone, whose starts are good at every order.
        """
        for order in range(self.domain.order(fit.rates) - 1, least - 1, -1) if not self._near(self._closest) else ():
            lower = self.best(order)
            if lower.error > tol:
                break
            fit = lower
        return fit

    def _least_order(self, tol: float) -> tuple[int, int]:
        """Return a lower bound of the order that meets the tolerance, and the number of Hankel singular values
        computed.

        The Hankel matrix of every sum of order m differs from that of the kernel by at least σ_{m+1}, and the ℓ1 norm
        of the error (of Frobenius norms) is at least as large.
        """
        if self.samples.even is None or self.hankel is None:
            return 1, len(self.samples.times)
        values, even = self.hankel[0].singular_values, self.samples.even[0]
        limit = tol * np.sqrt(even.shape[1]) * (1 / self.samples.weigh(even)).sum()
        rounding = len(even) * np.finfo(np.float64).eps * values[0]
        return max(1, int((values > limit + rounding).sum())), len(values)

    def _ended(self, tol: float) -> Fit | None:
        """Return an exact fit if the kernel becomes zero before the horizon, as for a pure delay; otherwise None."""
        size = np.abs(self.samples.values).max(axis=1) * self.samples.weight
        order = int(np.flatnonzero(size > tol / 2)[-1:].sum()) + 1
        if (
            self._near(self._closest)
            or not self.samples.uniform
            or order == len(size)
            or order * len(size) > _LARGEST_RING
        ):
            return None
        if order + _TRAILING > len(size) and np.mean(size <= tol / 2) < _QUIET and self._noise_exceeds(tol):
            return None  # noise whose last samples happen to be small
        echo = float(np.clip(tol / 2 / size.max(), _starts.ECHO, 0.5))
        fit = _starts.ring(self.domain, self.samples.values, order, echo)
        return None if fit is None else replace(fit, error=self.error(fit).sup)

    @property
    def tried(self) -> dict[int, Fit]:
        """The best fit so far for each order that was tried."""
        return {**self._fits, **self._polished, **self._whole}

    def so_far(self) -> Fit:
        """Return the best of all fits so far, without further optimization."""
        return min(self.tried.values(), key=lambda fit: fit.error)

    def least(self) -> Fit:
        """Return the fit with the fewest states of all fits that are about as good as the best fit so far."""
        while True:
            error = min(fit.error for fit in self.tried.values())
            order = min(order for order, fit in self.tried.items() if fit.error <= _ENOUGH * error)
            if order in self._whole:
                return self._whole[order]
            self.best(order)  # its error between the points may be larger

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

    def _meets(self, order: int, tol: float) -> bool:
        return self._polish(order, tol).error <= tol

    def _polish(self, order: int, goal: float) -> Fit:
        """Return the best fit with ``order`` states, after minimax optimization unless the least-squares fit is far
        from the goal.
        """
        if order in self._polished:
            return self._polished[order]
        if order not in self._candidates:
            self._candidates[order] = _distinct(self._fitted(order, goal))
            self._fits[order] = self._candidates[order][0]
        fit = self._fits[order]
        settled = fit.error <= goal or fit.error < _ROUNDED * self.scale or fit.error > _WITHIN * goal > 0
        if settled or not self._polishable(order) or fit.method == "ring":
            return fit
        small = order * (1 + self.problem.values.shape[1]) <= _SMALL
        for start in self._candidates[order][: _RIVALS if small or self._bound else 1]:
            polished = start if start.method == "ring" else minimax(self.problem, start)
            if goal < polished.error < _NEARLY * goal:  # a new trust region may gain the rest
                polished = minimax(self.problem, polished)
            fit = min(fit, polished, key=lambda each: each.error)
            if fit.error <= goal:
                break
        self._polished[order] = fit
        return fit

    def _polishable(self, order: int) -> bool:
        return order * (1 + self.problem.values.shape[1]) <= _MINIMAX

    def _fitted(self, order: int, goal: float) -> list[Fit]:
        """Fit exponential sums with ``order`` states from all initial rates; stop early if one meets the goal."""
        if order > self._rank:  # more states would fit rounding, unless stability removed some
            exact = self._polish(self._rank, 0.0)
            if exact.error < 1e-10 * self.scale:
                return [exact]
        found = [fit_weights(self.problem, rates, method) for method, rates in self._starts(order)]
        self._fits[order] = min(found, key=lambda fit: fit.error)  # the result if the search is interrupted
        least = self._fits[order].error
        if order <= _LEAST_SQUARES and least > goal:
            near = [fit for fit in found if fit.error <= _HOPEFUL * least]
            found += [least_squares(self.problem, fit.rates, fit.method) for fit in near]
        lost = all(self.domain.order(fit.rates) < order for fit in found)  # modes outside the domain were dropped
        if order <= (_LEAST_SQUARES if lost else self._pursued):
            self._path = self._path or Path(self.problem, _LEAST_SQUARES, gap=self.samples.gap)
            found.append(fit_weights(self.problem, self._path.grow(order).rates, "pursuit"))
        beyond = np.abs(self.samples.values[order:]).max(axis=1) * self.samples.weight[order:]
        if self.samples.uniform and all(beyond.max(initial=0.0) < fit.error for fit in found):
            around = _starts.ring(self.domain, self.samples.values, order)
            found += [] if around is None else [replace(around, error=self.error(around).sup)]
        return found

    @property
    def _bound(self) -> bool:
        """Whether the decay of every allowed rate is visible within the horizon."""
        return self.domain.slowest * float(self.samples.times[-1]) > 1

    def _starts(self, order: int) -> list[tuple[str, np.ndarray]]:
        starts = []
        if self.hankel is not None and not self._near(_FAITHFUL):
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
        if self._graded is not None:
            starts.append(("graded Hankel", self.domain.admit_rates(self._graded.rates(order))))
        starts = [(method, rates) for method, rates in starts if len(rates)]
        if not starts or self._bound:  # rates that meet at the margin do not separate again
            starts.append(("spread", self._spread(order)))
        return starts

    def _spread(self, order: int) -> np.ndarray:
        """Return initial rates with evenly spaced logarithms, for use if no rates can be computed from the samples."""
        times = self.samples.times
        slow = max(1 / times[-1], 1.01 * self.domain.slowest)
        rates = -np.geomspace(slow, max(1 / min(self.samples.gap, times[-1] / 2), 2 * slow), order)
        return self.domain.clip(rates.astype(np.complex128))

    def _near(self, part: float) -> bool:
        """Return True if a sum of many positively weighted decays has a relative error of at most ``part``."""
        scalar = self.samples.values.shape[1] == 1
        return scalar and self.mixture is not None and self.mixture.error < part * self.scale

    def _decompose(self) -> tuple[_hankel.Hankel, float] | None:
        """Return a decomposed Hankel matrix of the samples, which yields initial rates, and its time step; None if not
        needed.
        """
        samples = self.samples
        if self._near(self._closest) and not (self.dense and samples.uniform):
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
        """Return a decomposed Hankel matrix of a function of continuous time, which yields initial rates; None if not
        needed.
        """
        panels = self.samples.panels
        if panels is None or self.samples.step is not None or self._near(self._closest):
            return None
        return graded_hankel(self.samples, panels)

    def _numerical_rank(self) -> int:
        """Return the numerical rank of the Hankel matrix; sums of higher order would only fit rounding errors."""
        if not self.dense or self.hankel is None:
            return len(self.samples.times)
        values = self.hankel[0].singular_values
        return max(1, int((values > len(values) * np.finfo(np.float64).eps * values[0]).sum()))

    def _guess(self, tol: float) -> int:
        """Return an estimate of the order that meets the tolerance, from which the search starts."""
        if self.mixture is not None and self.monotone:
            values = self.mixture.singular_values / (_MIXTURE_TO_SUP if self.samples.uniform else 1.0)
        elif self._graded is not None:
            values = self._graded.singular_values
        else:
            assert self.hankel is not None
            values = self.hankel[0].singular_values / _HANKEL_TO_SUP * float(np.median(self.samples.weight))
        return max(1, int((values > tol).sum()))

    def _problem(self, count: int, *, monotone: bool) -> Problem:
        chosen = subset(len(self.samples.times), count)
        return self._weighed(self.samples.times[chosen], self.samples.values[chosen], monotone)

    def _weighed(self, times: np.ndarray, values: np.ndarray, monotone: bool) -> Problem:
        # For a monotone kernel, every octave of time has the same weight. For a function, every point has the same
        # weight, because the points are dense where the function changes.
        early = 0.0 if times[0] > 0 else self.samples.gap
        adapted = self.samples.panels is not None and self.samples.step is None
        spacing = np.gradient(np.log(times + early) if monotone else np.arange(len(times)) if adapted else times)
        weight = self.samples.weigh(values)
        graded = weight * np.sqrt(spacing / spacing.sum())
        return Problem(times, values, weight, graded, self.domain, self.request.tell)


def _distinct(fits: list[Fit]) -> list[Fit]:
    """Sort fits by error, and keep only one of several fits whose errors agree to four digits."""
    kept: list[Fit] = []
    for fit in sorted(fits, key=lambda fit: fit.error):
        if not kept or fit.error > (1 + _SAME) * kept[-1].error:
            kept.append(fit)
    return kept


def subset(n: int, count: int) -> np.ndarray:
    """Return the indices of at most ``count`` of n times: half of them geometrically spaced, half random."""
    if n <= max(count, _hankel.DENSE + 1):
        return np.arange(n)
    graded = np.geomspace(1, n, count // 2).astype(np.int64) - 1
    return np.unique(np.concatenate([graded, np.random.default_rng(0).integers(0, n, count // 2)]))
