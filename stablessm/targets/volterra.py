"""Volterra series with separable kernels: sums of products of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from stablessm._checked import Positive, checked
from stablessm._errors import ArgumentError, quoted
from stablessm.scan import causal_convolution
from stablessm.targets import kernels
from stablessm.targets.base import Target
from stablessm.targets.kernels import Rho


@final
@checked
@dataclass(frozen=True, init=False)
class Volterra(Target):
    """A nonlinear target, a sum of products of convolutions: y = Σ_r Π_j (ρ_{r,j} * x), where * is the convolution.

    This is a Volterra series (SSM-UA eq. 18, with h_0 = 0) whose kernels have finite rank (SSM-UA eq. 57).

    Term r is a product of n_r convolutions with kernels of one variable, ρ_{r,1} to ρ_{r,n_r}. All terms of n
    convolutions together form the Volterra kernel of order n, a function of n variables. The number of these terms is
    the rank of the kernel.

    Args:
        terms: for each term r, the list of its kernels ρ_{r,j}; each is a name or a function, as in
            :class:`LinearFunctional`.
        dt: time between samples, in any unit.

    For a Heaviside input of size x, (ρ * u^x)(t) = x R(t) with R(t) = ∫_0^t ρ. By the product rule, the derivative of
    the output is Σ_n a_n(t) x^n, where a_n sums ρ_i Π_{j≠i} R_j over the terms of order n. The memory function is the
    largest absolute value of this polynomial over |x| ≤ B, divided by B, where B is the ``bound`` of :meth:`memory`.
    The largest value is attained at an end of the interval or at a critical point. The memory function describes the
    sampled map, so times must be multiples of dt.

    >>> slow, fast = kernels.Exponential(0.5), kernels.Exponential(2.0)
    >>> target = Volterra([[slow], [fast, slow]], dt=0.1)
    >>> target.order, target(torch.randn(4, 100, 1)).shape
    (2, torch.Size([4, 100, 1]))
    >>> target.memory(torch.tensor([0.0, 1.0])).round(decimals=4).tolist()
    [1.1, 1.0132]
    """

    terms: tuple[tuple[Rho, ...], ...]
    dt: float

    d_input = d_output = 1

    def __init__(self, terms: Sequence[Sequence[str | Rho]], *, dt: Positive = 1.0) -> None:
        object.__setattr__(self, "dt", float(dt))
        if isinstance(terms, str) or not terms or any(isinstance(term, str) or not term for term in terms):
            raise ArgumentError("terms", "a list of lists of kernels, none of them empty", quoted(terms))
        found = tuple(tuple(kernels.get(kernel, self.dt, {}) for kernel in term) for term in terms)
        object.__setattr__(self, "terms", found)

    @property
    def order(self) -> int:
        """Order N of the series: the largest number of kernels in a term."""
        return max(len(term) for term in self.terms)

    def _samples(self, steps: int, device: torch.device | None = None) -> Tensor:
        """Return the values of all kernels at the first ``steps`` steps, ordered by term, as a tensor (steps, number of
        kernels).
        """
        times = self.dt * torch.arange(steps, dtype=torch.float64, device=device)
        return torch.stack([kernels.sample(rho, times) for term in self.terms for rho in term], 1)

    def _by_term(self, channels: Tensor) -> tuple[Tensor, ...]:
        return channels.split([len(term) for term in self.terms], dim=-1)

    def _respond(self, x: Tensor) -> Tensor:
        weights = self.dt * self._samples(x.shape[1], x.device)
        factors = causal_convolution(x.expand(-1, -1, weights.shape[1]), weights.to(x.dtype))
        return torch.stack([term.prod(-1) for term in self._by_term(factors)]).sum(0)[..., None]

    def _memory(self, times: Tensor, bound: float) -> Tensor:
        steps = (times / self.dt).round()
        between = times[(steps * self.dt - times).abs() > 0.01 * self.dt]  # times in single precision are accepted
        if len(between):
            raise ArgumentError("times", f"multiples of dt = {self.dt:g}", between[0].item())
        count = int(steps.max()) + 1 if len(steps) else 0
        slopes = self._slopes(count)[steps.long()].numpy()
        return torch.from_numpy(largest_values(slopes * bound ** np.arange(-1.0, self.order)))

    def _slopes(self, steps: int) -> Tensor:
        """Return the coefficients a_n(k dt), n = 0 … N, of the derivative of the output at the steps k, as a tensor
        (steps, N + 1).

        For an input that is constant at u from step 0 on, this derivative is Σ_n a_n(k dt) u^n.

        The differences of products are written as telescoping sums, so that no digits cancel.
        """
        slopes = torch.zeros(steps, self.order + 1, dtype=torch.float64)
        for rho in self._by_term(self._samples(steps)):
            after = self.dt * rho.cumsum(0)
            before = torch.cat([torch.zeros_like(after[:1]), after[:-1]])
            size = rho.shape[1]
            for i in range(size):
                slopes[:, size] += before[:, :i].prod(1) * rho[:, i] * after[:, i + 1 :].prod(1)
        return slopes


def largest_values(coefficients: np.ndarray) -> np.ndarray:
    """Return, for each row c of ``coefficients`` (K, N + 1), the maximum of |Σ_n c_n u^n| over |u| ≤ 1, as a tensor
    (K,).

    >>> largest_values(np.array([[0.0, 1.0, -1.0], [0.25, 0.0, -1.0]])).tolist()
    [2.0, 0.75]
    """
    from numpy.polynomial import polynomial

    values = []
    for row in coefficients:
        turns = polynomial.polyroots(polynomial.polyder(row)).real  # every u in the interval is a valid candidate
        candidates = np.concatenate([[-1.0, 1.0], turns.clip(-1, 1)])
        values.append(np.abs(polynomial.polyval(candidates, row)).max(initial=0.0))
    return np.array(values, dtype=np.float64)
