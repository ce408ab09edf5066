"""A nonlinear functional with slowly decaying memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm.layers import activations
from stablessm.targets.base import Target
from stablessm.targets.kernels import Polynomial, Rho
from stablessm.targets.linear_functional import LinearFunctional

PUBLISHED = Polynomial(exponent=1.5)
"""ρ of IAT figure 2: (t + 1)^(-1.5)."""


@final
@checked
@dataclass(frozen=True, init=False)
class NonlinearFunctional(Target):
    """H_t(x) = ∫_0^∞ ρ(s) σ(x(t-s)) ds, sampled as a linear functional is.

    IAT figure 2 and appendix C say that the target is nonlinear, that ρ(t) = (t + 1)^(-1.5), and (section 4.3)
    that its memory function is C ρ(t); the functional itself is not printed. This is the simplest one for which that
    holds exactly: a Heaviside input x gives σ(x) ρ(t), so M(t) = C |ρ(t)| with C = max(|σ(B)|, |σ(-B)|) / B.

    Args:
        kernel, dt, options: ρ, as of :class:`LinearFunctional`.
        nonlinearity: σ: ``tanh``, ``hardtanh``, ``relu``, ``linear``, or an elementwise function, nowhere falling,
            with σ(0) = 0.

    >>> target = NonlinearFunctional(dt=0.1)
    >>> target(torch.randn(4, 100, 1)).shape
    torch.Size([4, 100, 1])
    >>> target.memory(torch.tensor([0.0, 3.0])).round(decimals=4).tolist()        # tanh(1) ρ(t)
    [0.7616, 0.0952]
    """

    linear: LinearFunctional
    """The outer function, applied after σ."""
    sigma: Callable[[Tensor], Tensor]
    dt: float = field(repr=False)

    d_input = d_output = 1

    def __init__(
        self,
        kernel: str | Rho = PUBLISHED,
        *,
        nonlinearity: str | Callable[[Tensor], Tensor] = "tanh",
        dt: float = 1.0,
        **options: float,
    ) -> None:
        object.__setattr__(self, "linear", LinearFunctional(kernel, dt=dt, **options))
        object.__setattr__(self, "dt", self.linear.dt)
        sigma = activations.get(nonlinearity).value if isinstance(nonlinearity, str) else nonlinearity
        if float(sigma(torch.zeros(1, dtype=torch.float64))) != 0:
            raise ArgumentError("nonlinearity", "a function with σ(0) = 0", repr(nonlinearity))
        object.__setattr__(self, "sigma", sigma)

    def _respond(self, x: Tensor) -> Tensor:
        return self.linear(self.sigma(x))

    def _memory(self, times: Tensor, bound: float) -> Tensor:
        ends = self.sigma(torch.tensor([-bound, bound], dtype=torch.float64))
        return ends.abs().max() / bound * self.linear.memory(times)
