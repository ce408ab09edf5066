"""Search for the best sum of a given order, and for the smallest order that meets a tolerance."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np

from stablessm.constructions.sums import _starts
from stablessm.constructions.sums._analysis import Analysis
from stablessm.constructions.sums._evidence import Path
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Fit, fit_weights, least_squares, minimax
from stablessm.constructions.sums._samples import Request, Samples
from stablessm.constructions.sums._supremum import Error, compare

_LEAST_SQUARES, _MINIMAX = 64, 150  # highest order for least squares, and number of unknowns for minimax
_PURSUED = 10  # highest order to which modes are added one by one if the graded Hankel operator suggests rates too
_RIVALS, _SMALL = 4, 50  # the best start may not give the best result: starts, and largest number of unknowns
_SAME = 1e-4  # fits whose errors differ by a smaller relative amount are the same local minimum
_WITHIN = 40.0  # largest factor that minimax can gain; it is not tried further above the tolerance
_CLOSE = 1e-8  # a mixture that leaves less than this part is tried alone
_REPAIRS = 5
_ROUNDED = 1e-13  # smaller errors, relative to the kernel, are rounding errors and are not reduced further
_HOPEFUL = 30.0  # least squares starts at rates whose error is at most this multiple of the smallest
_ALIKE, _ENOUGH = 1.02, 1.2
_NEARLY = 1.2
_HOPELESS = 8  # order of the fit if no order can meet the tolerance
_PATIENCE, _STUCK = 8, 0.7  # the search ends if this number of orders leaves more than this part of the error
_LARGEST_RING = 2 * 10**7  # largest product of samples and states
_TRAILING, _QUIET = 32, 0.9  # a kernel ends (and is not noise) if so many last samples, or this part of all, are small


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
            close: if a :class:`Mixture` fits a long kernel up to this relative error, the Hankel matrix of the kernel
                is not computed.
            grows: try one order after the other and add modes one by one. This is always done for uneven samples,
                unless the kernel is nearly completely monotone.
        """
        self.samples, self.domain, self.request = samples, domain, request
        self.facts = Analysis(samples, domain, request, close, grows)
        self.problem, self.grows = self.facts.problem, self.facts.grows
        self._fits: dict[int, Fit] = {}
        self._candidates: dict[int, list[Fit]] = {}
        self._polished: dict[int, Fit] = {}
        self._whole: dict[int, Fit] = {}
        self._path: Path | None = None
        self._pursued = _LEAST_SQUARES if self.grows else _PURSUED if self.facts.uneven else 0

    def best(self, order: int) -> Fit:
        """Return the best fit of the given order after minimax optimization.

        Its ``error`` is the supremum over all times, not only over the sample times of the optimization.
        """
        if order not in self._whole:
            self._whole[order] = self._repaired(self._polish(order, 0.0), order)
        return self._whole[order]

    def _repaired(self, fit: Fit, order: int) -> Fit:
        """Return the best of the given fit and further fits, with errors measured at all times.

        The further fits use additional sample times, at which the error of the previous fit was large.
        """
        problem, best = self.problem, fit
        if fit.method == "ring" or (self.samples.panels is None and len(problem.times) == len(self.samples.times)):
            return replace(fit, error=self.error(fit).sup)
        for attempt in range(_REPAIRS):
            error = self.error(fit)
            whole = replace(fit, error=error.sup)
            best = whole if attempt == 0 or whole.error < best.error else best
            rounded = whole.error < _ROUNDED * self.facts.scale
            if rounded or whole.error <= _ALIKE * fit.error or not self._polishable(order) or attempt == _REPAIRS - 1:
                break
            times, where = np.unique(np.concatenate([problem.times, error.times]), return_index=True)
            values = np.concatenate([problem.values, error.values])[where]
            problem = self.facts.weighed(times, values, self.facts.monotone)
            fit = minimax(problem, whole)
        return best

    def error(self, fit: Fit) -> Error:
        """Return the error of a fit at every sample and, for a kernel function, between the samples."""
        return compare(self.samples, self.domain, fit)[1]

    def at_most(self, order: int) -> Fit:
        """Return the best fit with ``order`` states or fewer.

        Fewer states are tried because a search may fail at the highest order. Orders are skipped for which the Hankel
        matrix shows that no sum can be better than the best fit.
        """
        best = self.best(order)
        for lower in range(order - 1, 0, -1):
            if lower < self.facts.least_order(best.error)[0]:
                break
            fit = self.best(lower)
            best = fit if fit.error < best.error else best
        return best

    def smallest(self, tol: float) -> Fit | None:
        """Return the fit of the lowest order that meets the tolerance, or None if none was found."""
        least, known = self.facts.least_order(tol)
        if self.facts.hopeless(tol):
            self.best(min(_HOPELESS, self.facts.most))
            return None
        if self.grows:
            return self._upward(tol, least)
        ring, most = self._ended(tol), self.facts.most
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
        """Try increasing orders, from ``least`` up, until the fit of an order meets the tolerance; return this fit.

        Returns None if the error hardly decreases over several orders.
        """
        levels: list[float] = []
        for order in range(min(least, self.facts.most), self.facts.most + 1):
            if self._meets(order, tol) and self.best(order).error <= tol:
                return self.best(order)
            levels.append(self._fits[order].error)
            if len(levels) > _PATIENCE and levels[-1] > _STUCK * levels[-1 - _PATIENCE]:
                return None
        return None

    def _search(self, tol: float, least: int, most: int) -> Fit | None:
        """Return the fit of the smallest order between ``least`` and ``most`` that meets the tolerance, or None.

        The search starts from a guess of the order, moves by steps that double, and then bisects.
        """
        # the singular values of a kernel that ends, such as a lag, are all alike, like those of noise
        ends = self.samples.uniform and not (np.abs(self.samples.values[most:]) > tol).any()
        if not ends and self.facts.noise_exceeds(tol):  # no short sum follows noise, and the search for one takes long
            above = min(self.facts.above(self.facts.noise), most)  # usually the best fit
            if not self._meets(min(above, _LEAST_SQUARES), tol) and not self._meets(above, tol):
                return None
        high = low = max(min(self.facts.guess(tol), most), least)
        step = 1
        if self._meets(high, tol):
            while low >= least and self._meets(low, tol):
                low, high, step = max(low - step, least - 1), low, 2 * step
        else:
            while not self._meets(high, tol):
                if high >= most:
                    far = self.facts.rises(tol) or self.so_far().error > _WITHIN * tol
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
        """Return the given fit, or a fit with fewer states (at least ``least``) if one meets the tolerance after
        further optimization.

        Nothing is tried for kernels that are nearly completely monotone, whose initial rates are good at every order.
        """
        for order in (
            range(self.domain.order(fit.rates) - 1, least - 1, -1) if not self.facts.near(self.facts.close) else ()
        ):
            lower = self.best(order)
            if lower.error > tol:
                break
            fit = lower
        return fit

    def _ended(self, tol: float) -> Fit | None:
        """Return an exact fit if the kernel becomes zero before the horizon, as for a pure delay; otherwise None."""
        size = np.abs(self.samples.values).max(axis=1) * self.samples.weight
        order = int(np.flatnonzero(size > tol / 2)[-1:].sum()) + 1
        if (
            self.facts.near(self.facts.close)
            or not self.samples.uniform
            or order == len(size)
            or order * len(size) > _LARGEST_RING
        ):
            return None
        if order + _TRAILING > len(size) and np.mean(size <= tol / 2) < _QUIET and self.facts.noise_exceeds(tol):
            return None  # noise whose last samples happen to be small
        echo = float(np.clip(tol / 2 / size.max(), _starts.ECHO, 0.5))
        fit = _starts.ring(self.domain, self.samples.values, order, echo)
        return None if fit is None else replace(fit, error=self.error(fit).sup)

    @property
    def tried(self) -> dict[int, Fit]:
        """Return the best fit so far for each order that was tried."""
        return {**self._fits, **self._polished, **self._whole}

    def so_far(self) -> Fit:
        """Return the best of all fits so far, without further optimization."""
        return min(self.tried.values(), key=lambda fit: fit.error)

    def least(self) -> Fit:
        """Return the fit with the fewest states whose error is at most 1.2 times the smallest error so far."""
        while True:
            error = min(fit.error for fit in self.tried.values())
            order = min(order for order, fit in self.tried.items() if fit.error <= _ENOUGH * error)
            if order in self._whole:
                return self._whole[order]
            self.best(order)  # its error between the points may be larger

    def _meets(self, order: int, tol: float) -> bool:
        return self._polish(order, tol).error <= tol

    def _polish(self, order: int, goal: float) -> Fit:
        """Return the best fit with ``order`` states that was found by least squares and minimax optimization.

        The minimax optimization is left out if the least-squares fit meets the goal or is far from it.
        """
        if order in self._polished:
            return self._polished[order]
        if order not in self._candidates:
            self._candidates[order] = _distinct(self._fitted(order, goal))
            self._fits[order] = self._candidates[order][0]
        fit = self._fits[order]
        settled = fit.error <= goal or fit.error < _ROUNDED * self.facts.scale or fit.error > _WITHIN * goal > 0
        if settled or not self._polishable(order) or fit.method == "ring":
            return fit
        small = order * (1 + self.problem.values.shape[1]) <= _SMALL
        for start in self._candidates[order][: _RIVALS if small or self.facts.bound else 1]:
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
        if order > self.facts.rank:  # more states would fit rounding, unless stability removed some
            exact = self._polish(self.facts.rank, 0.0)
            if exact.error < 1e-10 * self.facts.scale:
                return [exact]
        found = [fit_weights(self.problem, rates, method) for method, rates in self.facts.starts(order)]
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


def _distinct(fits: list[Fit]) -> list[Fit]:
    """Sort fits by error, and keep only one of several fits whose errors agree to four digits."""
    kept: list[Fit] = []
    for fit in sorted(fits, key=lambda fit: fit.error):
        if not kept or fit.error > (1 + _SAME) * kept[-1].error:
            kept.append(fit)
    return kept
