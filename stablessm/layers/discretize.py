"""Three discretizations of dh/dt = λ h + u, as h[k] = a h[k-1] + g u[k] with time steps dt."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from stablessm._arguments import one_of
from stablessm.layers.zero_order_hold import zero_order_hold


def bilinear(eigenvalues: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the factors of the trapezoidal rule: a = (1 + λ dt/2) / (1 - λ dt/2) and g = dt / (1 - λ dt/2).

    If Re λ < 0, then |a| < 1 for every dt.
    """
    half = eigenvalues * dt / 2
    return (1 + half) / (1 - half), dt / (1 - half)


def exponential(eigenvalues: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Compute a = e^{λ dt} and g = dt; the sampled kernel then equals the kernel in continuous time."""
    z = eigenvalues * dt
    return z.exp(), dt.to(z.dtype).expand_as(z)


def forgotten(name: str, z: Tensor) -> Tensor:
    """Compute 1 - a² for the factor a of the discretization ``name`` at z = λ dt ≤ 0, accurately even if a is close
    to 1.

    The stationary variance of a state that is driven by white noise is g² / (1 - a²) times the variance of the noise.
    """
    return -2 * z / (1 - z / 2) ** 2 if name == "bilinear" else -(2 * z).expm1()


METHODS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "zoh": zero_order_hold,
    "bilinear": bilinear,
    "exponential": exponential,
}
"""Every discretization, by name."""


def get(name: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the discretization with a given name, as a function from (eigenvalues, dt) to (a, g).

    >>> import torch
    >>> decay, gain = get("zoh")(torch.tensor([-1.0]), torch.tensor(0.1))
    >>> round(decay.item(), 4), round(gain.item(), 4)
    (0.9048, 0.0952)
    """
    return METHODS[one_of("discretization", name, METHODS)]
