"""Linear functionals: the output is the input, weighted by how long ago it came."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm._typing import Sequence
from stablessm.scan import causal_convolution


@final
class LinearFunctional:
    """H_t(x) = ∫_0^∞ ρ(s) x(t-s) ds (paper 000 eq. 3), sampled: y[k] = dt Σ_{j ≤ k} ρ(j dt) x[k-j].

    Args:
        kernel: ρ: ``polynomial``, (1 + t)^(-exponent) (paper 004 section 4.1); ``exponential``, e^(-rate t); or a
            function from times, a float64 tensor, to values of the same shape.
        exponent: of the polynomial kernel.
        rate: of the exponential kernel, per unit of time.
        dt: the time between samples, in your unit.

    Its memory function is |ρ(t)|, in every normalisation up to a constant.

    >>> target = LinearFunctional("polynomial", exponent=1.1, dt=0.1)
    >>> target(torch.ones(8, 500, 1)).shape, round(target.kernel(torch.tensor([9.0])).item(), 6)
    (torch.Size([8, 500, 1]), 0.079433)
    """

    d_input = d_output = 1

    def __init__(
        self, kernel: str | Callable[[Tensor], Tensor], *, exponent: float = 1.1, rate: float = 0.1, dt: float = 1.0
    ) -> None:
        for name, value in (("exponent", exponent), ("rate", rate), ("dt", dt)):
            if not 0 < value < math.inf:
                raise ArgumentError(name, "a positive number", value)
        named: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
            "polynomial": (f"polynomial, exponent={exponent:g}", lambda t: (1 + t) ** -exponent),
            "exponential": (f"exponential, rate={rate:g}", lambda t: (-rate * t).exp()),
        }
        if isinstance(kernel, str) and kernel not in named:
            raise ArgumentError("kernel", f"a function or one of {', '.join(named)}", repr(kernel))
        self._name, self._rho = named[kernel] if isinstance(kernel, str) else (repr(kernel), kernel)
        self.dt = dt

    def kernel(self, times: Tensor) -> Tensor:
        """ρ(t): (len(times), 1, 1), in float64."""
        return self._rho(times.double())[:, None, None]

    def __call__(self, x: Sequence) -> Sequence:
        """The output (B, T, 1), in the dtype of the input."""
        if x.dim() != 3 or x.shape[-1] != 1:
            raise ArgumentError("x", "shape (batch, time, 1)", f"shape {tuple(x.shape)}")
        times = self.dt * torch.arange(x.shape[1], dtype=torch.float64, device=x.device)
        return causal_convolution(x, self.dt * self.kernel(times)[:, 0].to(x.dtype))

    def __repr__(self) -> str:
        return f"LinearFunctional({self._name}, dt={self.dt:g})"
