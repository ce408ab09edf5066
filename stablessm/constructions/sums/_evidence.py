"""Noisy samples: least squares at every order, and the order that the evidence supports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from stablessm.constructions.sums import _hankel
from stablessm.constructions.sums._atoms import next_modes
from stablessm.constructions.sums._modes import Domain, solve
from stablessm.constructions.sums._polish import Problem, _real_rows, descend

_ROUGHLY, _CONVERGED = (1e-4, 1e-3), (1e-9, 1e-3)  # the gain of a last step, and its damping
_PATIENCE = 4  # real states that may be added without gain before the search ends
_DENSE = 400  # rows of the Hankel matrix that is formed; a longer one is only multiplied with
_ROUNDING = 1e-14  # of the largest sample: what no noise is below


@final
@dataclass(frozen=True, eq=False)
class Model:
    """Rates of one order and the norm of what their best weights leave."""

    rates: np.ndarray
    size: float


@final
class Path:
    """Least-squares fits of ever more modes to the same samples."""

    def __init__(self, problem: Problem, *, uniform: bool) -> None:
        self.problem, self._uniform = problem, uniform
        values = problem.values * problem.graded[:, None]
        self._target = values
        self.count = values.size * (2 if np.iscomplexobj(values) else 1)
        """How many real numbers the samples are."""
        self._least = _ROUNDING * float(np.abs(values).max()) * np.sqrt(self.count)
        self.models = {0: Model(np.empty(0, dtype=np.complex128), float(np.linalg.norm(values)))}
        self._subspaces = self._decompose() if uniform else []

    def parameters(self, rates: np.ndarray) -> int:
        """How many real numbers the rates and their weights are."""
        domain, entries = self.problem.domain, self.problem.values.shape[1]
        states, turning = domain.order(rates), len(rates) - int(domain.single(rates).sum())
        if domain.is_complex:
            return 2 * states * (1 + entries)
        return len(rates) + turning + states * entries

    def criterion(self, order: int, noise: float | None) -> float:
        """-2 log likelihood and what its parameters cost; ``noise`` is the standard deviation if it is known."""
        model = self.models[order]
        rates, n = model.rates, self.count
        used = self.parameters(rates)
        if used >= n:
            return np.inf
        waves = len(rates) if self.problem.domain.is_complex else len(rates) - int(self.problem.domain.single(rates).sum())
        cost = (used + waves) * np.log(n)
        square = model.size**2 + self._least**2
        if noise is not None:
            return square / noise**2 + cost
        return (n - used) * np.log(square / (n - used)) + cost

    def extend(self, most: int, noise: float | None = None, *, all_orders: bool = False) -> int:
        """Fit orders up to ``most``, as long as the evidence grows unless all are asked for; returns the best order."""
        best, order = 0, 0
        patience = _PATIENCE // 2 if self.problem.domain.is_complex else _PATIENCE
        while order < most:
            self._grow(order, most)
            order += 1
            if order not in self.models or self.models[order].size > self.models[order - 1].size:
                self.models[order] = self.models[order - 1]
            if self.criterion(order, noise) < self.criterion(best, noise):
                best = order
            if not all_orders and order >= best + patience:
                break
        return best

    def _grow(self, order: int, most: int) -> None:
        """One or two states more than the best fit of this order."""
        problem, rates = self.problem, self.models[order].rates
        columns = problem.domain.matrix(rates, problem.times) * problem.graded[:, None]
        basis = np.linalg.qr(columns)[0]
        left = self._target - basis @ (basis.conj().T @ self._target)
        found = next_modes(problem.domain, problem.times, left, basis, problem.graded)
        starts = [np.append(rates, rate) for rate in found]
        starts += [problem.domain.admit(subspace.eigenvalues(order + 1)) for subspace in self._subspaces]
        self._offer([start for start in starts if order < problem.domain.order(start) <= most])

    def _offer(self, starts: list[np.ndarray]) -> None:
        """Descend a little from every start, and to the end from the best of each order."""
        domain, best = self.problem.domain, dict[int, Model]()
        for start in starts:
            model = Model(*descend(self.problem, domain.clip(start), *_ROUGHLY))
            order = domain.order(model.rates)
            if np.isfinite(model.size) and (order not in best or model.size < best[order].size):
                best[order] = model
        for order, model in best.items():
            model = Model(*descend(self.problem, model.rates, *_CONVERGED))
            if order not in self.models or model.size < self.models[order].size:
                self.models[order] = model

    def _decompose(self) -> list[_hankel.Hankel]:
        values = self.problem.values
        if len(values) <= 2 * _DENSE:
            return [_hankel.hankel(values)]
        return [_hankel.long_hankel(values, 24)]
