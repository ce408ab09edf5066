"""Least-squares fits of noisy samples by more and more modes, and the number of modes that the samples support."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from stablessm.constructions.sums import _hankel
from stablessm.constructions.sums._atoms import next_modes
from stablessm.constructions.sums._modes import Domain
from stablessm.constructions.sums._polish import Problem, descend, fit_weights

_ROUGHLY, _CONVERGED = (1e-4, 1e-3), (1e-9, 1e-3)  # gain and damping of the last step
_AHEAD = 3  # higher orders that are fitted first: without one of their modes they may be better starts
_RIVALS = 2  # number of modes whose removal is tried
_DENSE = 800  # largest number of samples whose Hankel matrix is formed
_LONG = 24  # number of singular vectors that are computed for more samples
_UNEVEN = 1e-6
_FEW, _MODES = 32, 20  # samples from which noise can be told from structure, and the largest order of this fit
_ALIKE = 9  # largest ratio of the mean squares of white noise in different quarters of the times
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
        self._target = values = problem.values * problem.graded[:, None]
        self.count = int((problem.graded > 0).sum()) * values.shape[1] * (2 if np.iscomplexobj(values) else 1)
        """Number of real numbers in the samples."""
        self._least = max(_ROUNDING * float(np.abs(values).max()), _TINY) * np.sqrt(self.count)
        self.models = {0: Model(np.empty(0, dtype=np.complex128), float(np.linalg.norm(values)))}
        self._grown, self._subspaces = 0, self._decompose()
        self.even = bool(self._subspaces)
        """Whether the times are evenly spaced."""
        # models that were already tried at another order, or with other modes
        self._shrunk: dict[tuple[int, int], Model] = {}
        self._parts: dict[bytes, float] = {}

    def rms(self, order: int) -> float:
        """Return the root mean square of the residual of the fit with ``order`` states."""
        return self.models[order].size / np.sqrt(self.count)

    def level(self, order: int) -> float:
        """Return the standard deviation of the noise: the known value or, without one, an estimate from the fit with
        ``order`` states.
        """
        free = max(1, self.count - self.parameters(self.models[order].rates))
        return self.models[order].size / np.sqrt(free) if self._noise is None else self._noise

    def left(self, rates: np.ndarray) -> np.ndarray:
        """Return the residual: the samples (times, entries) minus the least-squares fit with the given rates."""
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
        frequencies. Noise of unknown level may be correlated from one sample to the next, which counts log n. The noise
        is at least as large as a known level: if the residual is larger, the criterion for an unknown level is used.
        """
        model, n = self.models[order], self.count
        used = self.parameters(model.rates)
        if used >= n:
            return np.inf
        cost = (used + int(self.domain.turns(model.rates).sum())) * np.log(n)
        square = model.size**2 + self._least**2
        if self._noise is None and self.even and n >= 2 * _FEW:
            cost += min(0.0, n * np.log(self._unpredicted(model.rates)) + np.log(n))
        elif self._noise is not None and square <= (n - used) * self._noise**2:
            return square / self._noise**2 + cost
        unit = 1.0 if self._noise is None else self._noise  # a larger residual is noise or modes, as the evidence says
        return n * np.log(square / (n - used) / unit**2) + (n - used) * (self._noise is not None) + cost

    def _unpredicted(self, rates: np.ndarray) -> float:
        """Return the part of the squared residual that remains after each residual is predicted from the one before.

        Where this part is clearly below one, the noise is correlated (an autoregressive process of order 1).
        """
        if rates.tobytes() not in self._parts:
            left = self.left(rates)
            slope = np.vdot(left[:-1], left[1:]).real / (np.vdot(left, left).real + self._least**2)
            self._parts[rates.tobytes()] = 1 - max(slope, 0.0) ** 2  # an overfit leaves negative correlations
        return self._parts[rates.tobytes()]

    def choose(self, most: int) -> int:
        """Fit sums with more and more states, up to ``most``, while the information criterion improves.

        Returns the best number of states.
        """
        best, order, most = 0, 0, min(most, self._limit)
        while order <= best and order < most:
            order += 1
            self._settle(order)
            best = min(range(min(self._grown, most) + 1), key=self.criterion)
        for fewer in range(best - 1, 0, -1):  # the best fit may have changed since
            self._shrink(fewer)
        return min(range(best + 1), key=self.criterion)

    def at_most(self, order: int) -> int:
        """Fit sums with 1 to ``order`` states; return the number of states with the smallest residual.

        The fit of each order is also an initial value for higher orders, so that the residual never increases with the
        order.
        """
        for last in range(1, order + 1):
            self._settle(last)
        return min(range(1, order + 1), key=self.rms)

    def _settle(self, order: int) -> None:
        """Fit sums with ``order`` states from fits with fewer states and from fits with a few states more."""
        ahead = min(order + _AHEAD, self._limit)
        self.grow(ahead)
        for fewer in range(max(ahead - 1, order), order - 1, -1):
            self._shrink(fewer)

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
                starts += sorted(fewer, key=lambda rates: np.linalg.norm(self.left(rates)))[:_RIVALS]
        self._offer(starts)
        self._offer(self.domain.parted(self.models[order].rates))
        self._exchange(order)

    def _exchange(self, order: int) -> None:
        """Try to improve the fit with ``order`` states by replacing one of its modes by a distant mode."""
        model = self.models[order]
        if self._shrunk.get((order, order)) is not model:
            new = [(a, b) for i, a in enumerate(model.rates) for b in self._extended(np.delete(model.rates, i))]
            far = [rates for old, rates in new if abs(rates[-1] - old) > -old.real]
            self._offer([rates for rates in far if self.domain.order(rates) == order])
            self._shrunk[order, order] = self.models[order]

    def _extended(self, rates: np.ndarray) -> list[np.ndarray]:
        """Return initial rates that add to the given rates one of the modes that reduce the residual most."""
        times, graded = self.problem.times, self.problem.graded
        found = next_modes(self.domain, times, self.left(rates), self._basis(rates), graded, self._gap)
        return [np.append(rates, rate) for rate in found]

    def _add(self, order: int) -> None:
        """Add a mode to the best fit with ``order`` states, optimize the result, and store it if it is better.

        A mode adds one or two states.
        """
        starts = self._extended(self.models[order].rates)
        starts += [self._evenly.admit(subspace.eigenvalues(order + 1)) for subspace in self._subspaces]
        self._offer([start for start in starts if order < self.domain.order(start) <= self._limit])

    def _basis(self, rates: np.ndarray) -> np.ndarray:
        """Return orthonormal columns that span the same space as the weighted modes of the given rates."""
        columns = self.domain.matrix(rates, self.problem.times) * self.problem.graded[:, None]
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


def noise_level(times: np.ndarray, values: np.ndarray, domain: Domain, tell: Callable[[], object]) -> float:
    """Return the standard deviation of noise in samples at any times, or 0 if there is no evidence of noise.

    There is evidence of noise if the BIC prefers a fit with few states, and if the residual of this fit looks like
    white noise: residuals at neighboring times differ as much as independent numbers, and the residuals in each quarter
    of the times have about the same size. ``tell`` is called after each round of the fit; Ctrl-C ends the fit, and the
    result is 0.
    """
    most, one = min(_MODES, len(times) // 4), np.ones(len(times))
    if len(times) < _FEW:
        return 0.0
    free = replace(domain, real=False, positive=False)
    path = Path(Problem(times, values, one, one, free, tell), len(times) // 2)
    try:
        chosen = path.choose(most)
    except KeyboardInterrupt:
        return 0.0
    left = path.left(path.models[chosen].rates)
    square = np.linalg.norm(left) ** 2
    rough = np.linalg.norm(np.diff(left, axis=0)) ** 2 > 2 * square * (1 - 3 / np.sqrt(path.count))
    parts = [np.mean(np.abs(part) ** 2) for part in np.array_split(left, 4)]
    return path.level(chosen) if chosen < most and rough and max(parts) < _ALIKE * min(parts) else 0.0
