"""Linear functionals: convolutions of the input with a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from stablessm._checked import Positive, checked
from stablessm._typing import Times
from stablessm.scan import causal_convolution
from stablessm.targets import kernels
from stablessm.targets.base import Target
from stablessm.targets.kernels import Kernel, Rho


@final
@checked
@dataclass(frozen=True, init=False)
class LinearFunctional(Target):
    """A linear target, the convolution of the input with a kernel ρ: y[k] = dt Σ_{j ≤ k} ρ(j dt) x[k-j].

    This sum approximates the functional H_t(x) = ∫_0^∞ ρ(s) x(t-s) ds (IAT eq. 3) at times t = k dt.

    Args:
        kernel: the kernel ρ: ``exponential``, ``polynomial``, ``polynomial_released``, ``shift``, ``two_part``,
            ``airy``, ``sine``; or a function from times, a float64 tensor, to values of the same shape.
        dt: time between samples, in any unit.
        options: options of the kernel, such as ``exponent=1.1`` and ``rate=1.0`` of the polynomial kernel; see
            :mod:`stablessm.targets.kernels`.

    The memory function is |ρ(t)| for every bound (IAT eq. 5).

    >>> target = LinearFunctional("polynomial", exponent=1.1, dt=0.1)
    >>> target(torch.ones(8, 500, 1)).shape, round(target.kernel(torch.tensor([9.0])).item(), 6)
    (torch.Size([8, 500, 1]), 0.079433)
    """

    rho: Rho
    dt: float

    d_input = d_output = 1

    def __init__(self, kernel: str | Rho, *, dt: Positive = 1.0, **options: float) -> None:
        object.__setattr__(self, "dt", float(dt))
        object.__setattr__(self, "rho", kernels.get(kernel, self.dt, options))

    @property
    def l1_norm(self) -> float | None:
        """The integral ∫ |ρ(t)| dt, which is the norm of the functional (IAT appendix A.1); None if the kernel was
        given as a function.
        """
        return self.rho.l1_norm if isinstance(self.rho, Kernel) else None

    def kernel(self, times: Times) -> Tensor:
        """Return the values ρ(t) of the kernel at the given times, as a float64 tensor (len(times), 1, 1)."""
        return kernels.sample(self.rho, times)[:, None, None]

    def _respond(self, x: Tensor) -> Tensor:
        times = self.dt * torch.arange(x.shape[1], dtype=torch.float64, device=x.device)
        return causal_convolution(x, self.dt * self.kernel(times)[:, 0].to(x.dtype))

    def _memory(self, times: Tensor, bound: float) -> Tensor:
        return self.kernel(times)[:, 0, 0].abs()
