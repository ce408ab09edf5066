"""Least-squares fits of noisy samples by more and more modes, and the number of modes that the samples support."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from stablessm.constructions.sums import _hankel
from stablessm.constructions.sums._atoms import next_modes
from stablessm.constructions.sums._polish import Problem, descend, fit_weights

_ROUGHLY, _CONVERGED = (1e-4, 1e-3), (1e-9, 1e-3)  # gain and damping of the last step
_PATIENCE = 4  # number of real states without gain after which the search ends
_AHEAD = 3  # higher orders that are fitted first: without one of their modes they may be better starts
_RIVALS = 2  # number of modes whose removal is tried
_DENSE = 800  # largest number of samples whose Hankel matrix is formed
_LONG = 24  # number of singular vectors that are computed for more samples
_UNEVEN = 1e-6
_ROUNDING, _TINY = 1e-14, 1e-150  # smallest noise: of the largest sample, and of samples that are all zero


@final
@dataclass(frozen=True, eq=False)
class Model:
    """The rates of a least-squares fit, and the norm of its residual with the best weights."""

    rates: np.ndarray
    size: float


@final
class Path:
    """A series of least-squares fits of the same samples with increasing order; the residual never increases."""

    def __init__(self, problem: Problem, limit: int, *, noise: float | None = None, gap: float | None = None) -> None:
        """Prepare least-squares fits of the samples by exponential sums with at most ``limit`` states.

        ``noise`` is the standard deviation of the noise, if it is known, and ``gap`` the shortest time over which the
        kernel may change (default: the shortest time between samples).
        """
        self.problem, self.domain, self._limit, self._noise = problem, problem.domain, limit, noise
        self._gap = float(np.diff(problem.times).min()) if gap is None else gap
        values = problem.values * problem.graded[:, None]
        self._target = values
        self.count = int((problem.graded > 0).sum()) * values.shape[1] * (2 if np.iscomplexobj(values) else 1)
        """Number of real numbers in the samples."""
        self._least = max(_ROUNDING * float(np.abs(values).max()), _TINY) * np.sqrt(self.count)
        self.models = {0: Model(np.empty(0, dtype=np.complex128), float(np.linalg.norm(values)))}
        self._subspaces = self._decompose()
        self._grown = 0
        self._shrunk: dict[tuple[int, int], Model] = {}  # models that were already reduced from one order to another

    def rms(self, order: int) -> float:
        """Return the root mean square of the residual of the fit with ``order`` states."""
        return self.models[order].size / np.sqrt(self.count)

    def level(self, order: int) -> float:
        """Return the standard deviation of the noise: the known value or, without one, an estimate from the fit with
        ``order`` states.
        """
        free = max(1, self.count - self.parameters(self.models[order].rates))
        return self.models[order].size / np.sqrt(free) if self._noise is None else self._noise

    def left(self, order: int) -> np.ndarray:
        """Return the residual, which is the samples (times, entries) minus the fit of the given order."""
        return self._left(self.models[order].rates)

    def _left(self, rates: np.ndarray) -> np.ndarray:
        basis = self._basis(rates)
        return self._target - basis @ (basis.conj().T @ self._target)

    def parameters(self, rates: np.ndarray) -> int:
        """Return the number of real parameters of an exponential sum with the given rates, including its weights."""
        states = self.domain.order(rates) * (2 if self.domain.is_complex else 1)
        return len(rates) + int(self.domain.turns(rates).sum()) + states * self.problem.values.shape[1]

    def criterion(self, order: int) -> float:
        """Return the information criterion (BIC) of the fit with ``order`` states; lower is better.

        The criterion is -2 log(likelihood) plus log n for each parameter. A frequency counts 2 log n, because n samples
        determine a frequency with an error proportional to 1/n, so that noise can be fitted by the best of about n
        frequencies.
        """
        model = self.models[order]
        rates, n = model.rates, self.count
        used = self.parameters(rates)
        if used >= n:
            return np.inf
        cost = (used + int(self.domain.turns(rates).sum())) * np.log(n)
        square = model.size**2 + self._least**2
        if self._noise is not None:
            return square / self._noise**2 + cost
        return n * np.log(square / (n - used)) + cost  # n, not n - used: units must cancel between orders

    def choose(self, most: int) -> int:
        """Fit sums with more and more states, up to ``most``, while the information criterion improves.

        Returns the best number of states.
        """
        best = 0
        patience = _PATIENCE // 2 if self.domain.is_complex else _PATIENCE
        for order in range(1, min(most, self._limit) + 1):
            self.grow(order)
            if self.criterion(order) < self.criterion(best):
                best = order
            if order >= best + patience:
                break
        order = best + 1
        while order > max(1, best - patience):  # a fit of fewer modes, started here, may have more evidence
            order -= 1
            self._shrink(order)
            best = min(range(self._grown + 1), key=self.criterion)
        return best

    def at_most(self, order: int) -> int:
        """Fit sums with 1 to ``order`` states, each to convergence; return the number of states with the smallest
        residual.

        The fit of each order is also an initial value for higher orders, so that the residual never increases with the
        order.
        """
        for last in range(1, order + 1):
            self.grow(min(last + _AHEAD, self._limit))
            for fewer in range(min(last + _AHEAD - 1, self._limit), last - 1, -1):
                self._shrink(fewer)
        return min(range(1, order + 1), key=self.rms)

    def grow(self, order: int) -> Model:
        """Fit all orders up to the given order; each fit adds a mode to a fit with one or two states fewer."""
        while self._grown < order:
            self._add(self._grown)
            self._grown += 1
            if self._grown not in self.models or self.models[self._grown].size > self.models[self._grown - 1].size:
                self.models[self._grown] = self.models[self._grown - 1]
        return self.models[order]

    def _shrink(self, order: int) -> None:
        """Try to improve the fit with ``order`` states by removing a mode from fits with one or two more states."""
        starts = []
        for more in (order + 1, order + 2):
            model = self.models.get(more)
            if model is not None and self._shrunk.get((more, order)) is not model:
                self._shrunk[more, order] = model
                fewer = [np.delete(model.rates, i) for i in range(len(model.rates))]
                fewer = [rates for rates in fewer if self.domain.order(rates) == order]
                starts += sorted(fewer, key=self._unfitted)[:_RIVALS]
        self._offer(starts)
        self._offer(self.domain.parted(self.models[order].rates))

    def _unfitted(self, rates: np.ndarray) -> float:
        """Return the norm of the residual of the least-squares fit with the given rates."""
        return float(np.linalg.norm(self._left(rates)))

    def _add(self, order: int) -> None:
        """Add a mode to the best fit with ``order`` states, optimize the result, and store it if it is better.

        A mode adds one or two states.
        """
        problem, rates = self.problem, self.models[order].rates
        left, basis = self.left(order), self._basis(rates)
        found = next_modes(problem.domain, problem.times, left, basis, problem.graded, self._gap)
        starts = [np.append(rates, rate) for rate in found]
        starts += [self._evenly.admit(subspace.eigenvalues(order + 1)) for subspace in self._subspaces]
        self._offer([start for start in starts if order < problem.domain.order(start) <= self._limit])

    def _basis(self, rates: np.ndarray) -> np.ndarray:
        """Return orthonormal columns that span the same space as the weighted modes of the given rates."""
        problem = self.problem
        columns = problem.domain.matrix(rates, problem.times) * problem.graded[:, None]
        return np.linalg.qr(columns)[0]

    def _descend(self, rates: np.ndarray, how: tuple[float, float]) -> Model:
        rates, size = descend(self.problem, self.domain.clip(rates), *how)
        while self.domain.positive:  # modes with negative weights are dropped
            fit = fit_weights(self.problem, rates, "")
            if len(fit.rates) == len(rates):
                values = self.domain.matrix(rates, self.problem.times) @ fit.coefficients
                left = (self.problem.values - values) * self.problem.graded[:, None]
                return Model(rates, float(np.linalg.norm(left)))
            rates, size = descend(self.problem, fit.rates, *how)
        return Model(rates, size)

    def _offer(self, starts: list[np.ndarray]) -> None:
        """Optimize sums from all given initial rates, and store the results that are better than the stored fits.

        All sums are optimized briefly, and then the best sum of each order until convergence.
        """
        best = dict[int, Model]()
        for start in starts:
            self._keep(best, self._descend(start, _ROUGHLY))
        for model in best.values():
            self._keep(self.models, self._descend(model.rates, _CONVERGED))

    def _keep(self, models: dict[int, Model], model: Model) -> None:
        """Store a fit in ``models``, unless a better fit with the same number of states is stored there already."""
        order = self.domain.order(model.rates)
        if np.isfinite(model.size) and (order not in models or model.size < models[order].size):
            models[order] = model

    def _decompose(self) -> list[_hankel.Hankel]:
        """Return a list with the decomposed Hankel matrix of the samples; an empty list if the times are not evenly
        spaced.
        """
        gaps = np.diff(self.problem.times)
        if gaps.max() - gaps.min() > _UNEVEN * gaps.min():
            return []
        self._evenly = replace(self.domain, dt=float(gaps.mean()))
        values = self.problem.values
        return [_hankel.hankel(values) if len(values) <= _DENSE else _hankel.long_hankel(values, _LONG)]
