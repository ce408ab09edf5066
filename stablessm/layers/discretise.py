"""From dh/dt = λ h + u to h[k] = a h[k-1] + g u[k]: three ways to take a step of length dt."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stablessm._errors import ArgumentError


def phi(z: Tensor) -> Tensor:
    """(e^z - 1) / z, and 1 at 0, with a gradient there.

    >>> phi(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 1.7183])
    """
    small = z.abs() < torch.finfo(z.dtype).eps ** 0.2  # from there on z⁵/720 is below rounding
    safe = torch.where(small, torch.ones_like(z), z)
    series = 1 + z / 2 * (1 + z / 3 * (1 + z / 4 * (1 + z / 5)))
    return torch.where(small, series, torch.expm1(safe) / safe)


def zero_order_hold(eigenvalues: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """a = e^{λ dt}, g = (e^{λ dt} - 1) / λ: exact when the input is constant between samples."""
    z = eigenvalues * dt
    return z.exp(), phi(z) * dt


def bilinear(eigenvalues: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """a = (1 + λ dt/2) / (1 - λ dt/2), g = dt / (1 - λ dt/2): the trapezoidal rule, stable whenever λ is."""
    half = eigenvalues * dt / 2
    return (1 + half) / (1 - half), dt / (1 - half)


def exponential(eigenvalues: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """a = e^{λ dt}, g = dt: the sampled kernel is exactly that of continuous time."""
    z = eigenvalues * dt
    return z.exp(), dt.to(z.dtype).expand_as(z)


METHODS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "zoh": zero_order_hold,
    "bilinear": bilinear,
    "exponential": exponential,
}
"""Every discretisation, by name."""


def get(name: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The discretisation called ``name``.

    >>> decay, gain = get("zoh")(torch.tensor([-1.0]), torch.tensor(0.1))
    >>> round(decay.item(), 4), round(gain.item(), 4)
    (0.9048, 0.0952)
    """
    if name not in METHODS:
        raise ArgumentError("discretisation", f"one of {', '.join(map(repr, METHODS))}", repr(name))
    return METHODS[name]
