"""A nonlinear target with slowly decaying memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from stablessm._checked import checked
from stablessm._errors import ArgumentError, quoted
from stablessm.layers import activations
from stablessm.targets.base import Target
from stablessm.targets.kernels import Polynomial, Rho
from stablessm.targets.linear_functional import LinearFunctional

PUBLISHED = Polynomial(exponent=1.5)
"""The kernel ρ(t) = (t + 1)^(-1.5) of IAT figure 2."""


@final
@checked
@dataclass(frozen=True, init=False)
class NonlinearFunctional(Target):
    """A nonlinear target, the convolution of σ(x) with a kernel ρ: H_t(x) = ∫_0^∞ ρ(s) σ(x(t-s)) ds, computed from
    samples of x.

    IAT (figure 2, appendix C and section 4.3) states that the target is nonlinear, that ρ(t) = (t + 1)^(-1.5), and that
    the memory function is C ρ(t), but does not print the functional. This class is the simplest functional with these
    properties: the derivative of the output for a Heaviside input of size x is σ(x) ρ(t), so M(t) = C |ρ(t)| with
    C = max(|σ(B)|, |σ(-B)|) / B for inputs of size at most B.

    Args:
        kernel, dt, options: the kernel ρ and the time between samples, as in :class:`LinearFunctional`.
        nonlinearity: σ: ``tanh``, ``hardtanh``, ``relu``, ``linear``, or a nondecreasing elementwise function with
            σ(0) = 0.

    >>> target = NonlinearFunctional(dt=0.1)
    >>> target(torch.randn(4, 100, 1)).shape
    torch.Size([4, 100, 1])
    >>> target.memory(torch.tensor([0.0, 3.0])).round(decimals=4).tolist()        # tanh(1) ρ(t)
    [0.7616, 0.0952]
    """

    linear: LinearFunctional
    """The convolution with ρ, which is applied after σ."""
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
            raise ArgumentError("nonlinearity", "a function with σ(0) = 0", quoted(nonlinearity))
        object.__setattr__(self, "sigma", sigma)

    def _respond(self, x: Tensor) -> Tensor:
        return self.linear(self.sigma(x))

    def _memory(self, times: Tensor, bound: float) -> Tensor:
        ends = self.sigma(torch.tensor([-bound, bound], dtype=torch.float64))
        return ends.abs().max() / bound * self.linear.memory(times)
