"""Kernels ρ(t) (impulse responses) that are available by name, with their integrals in closed form."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from stablessm._arguments import real_number
from stablessm._errors import ArgumentError, quoted, unknown_name
from stablessm._typing import takes_tensor

Rho: TypeAlias = Callable[[Tensor], Tensor]
"""A function from times, a float64 tensor, to values of the same shape."""


@dataclass(frozen=True)
class Kernel(ABC):
    """A kernel ρ(t), t ≥ 0, whose options are the fields of a dataclass; all options are positive numbers."""

    def __init_subclass__(cls) -> None:
        if "__call__" in cls.__dict__:
            cls.__call__ = takes_tensor(cls.__call__)  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        for option in fields(self):
            object.__setattr__(self, option.name, real_number(option.name, getattr(self, option.name), 0))

    @abstractmethod
    def __call__(self, t: Tensor) -> Tensor:
        """Return the values ρ(t) of the kernel, in the shape of t."""

    @property
    @abstractmethod
    def l1_norm(self) -> float:
        """The integral ∫_0^∞ |ρ(t)| dt, which may be infinite.

        The integral equals the largest output of the convolution with ρ for inputs of size at most 1 (IAT appendix
        A.1).
        """


@final
@dataclass(frozen=True)
class Exponential(Kernel):
    """The kernel ρ(t) = e^(-rate t). The kernel 0.9^t of IAT eq. 109 has rate = -log 0.9; the code of the authors of
    IAT and StableSSM has rate 1.

    >>> Exponential(rate=0.5).l1_norm
    2.0
    """

    rate: float = 0.1

    def __call__(self, t: Tensor) -> Tensor:
        """Return the values ρ(t) of the kernel, in the shape of t."""
        return torch.exp(-self.rate * t)

    @property
    def l1_norm(self) -> float:
        """The integral of |ρ|: 1 / rate."""
        return 1 / self.rate


@final
@dataclass(frozen=True)
class Polynomial(Kernel):
    """The kernel ρ(t) = (1 + rate t)^(-exponent). StableSSM section 4.1 uses rate 1.

    >>> Polynomial(exponent=1.5)(torch.tensor([0.0, 3.0])).tolist()
    [1.0, 0.125]
    """

    exponent: float = 1.1
    rate: float = 1.0

    def __call__(self, t: Tensor) -> Tensor:
        """Return the values ρ(t) of the kernel, in the shape of t."""
        return (1 + self.rate * t) ** -self.exponent

    @property
    def l1_norm(self) -> float:
        """The integral of |ρ|: 1 / (rate (exponent - 1)), or infinity if the exponent is at most 1."""
        return 1 / (self.rate * (self.exponent - 1)) if self.exponent > 1 else math.inf


@final
@dataclass(frozen=True)
class Shift(Kernel):
    """The kernel of a delay: a triangle of area 1 around t = delay, ρ(t) = max(0, 1 - |t - delay| / width) / width.

    With width = dt, the sampled output is exactly x(t - delay), interpolated linearly if the delay falls between
    samples. The code of the authors of IAT and StableSSM has ρ = 1 for 9 < t < 11, which for dt = 1 is the same as
    delay 10 and width 1.

    >>> Shift(delay=3.0, width=1.0)(torch.arange(5.0)).tolist()
    [0.0, 0.0, 0.0, 1.0, 0.0]
    """

    delay: float = 10.0
    width: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width > self.delay:
            raise ArgumentError("width", f"at most the delay, {self.delay:g}, so that the kernel is causal", self.width)

    def __call__(self, t: Tensor) -> Tensor:
        """Return the values ρ(t) of the kernel, in the shape of t."""
        return (1 - (t - self.delay).abs() / self.width).clamp(min=0) / self.width

    @property
    def l1_norm(self) -> float:
        """The integral of |ρ|, which is 1 for every delay and width."""
        return 1.0


@final
@dataclass(frozen=True)
class TwoPart(Kernel):
    """The kernel ρ(t) = e^(-rate t) + e^(-((t - delay) / width)²): an exponential decay followed by a bump at t =
    delay.

    The default options are the values in the code of the authors of IAT and StableSSM.

    >>> TwoPart()(torch.tensor([0.0, 4.5, 9.0]).double()).round(decimals=3).tolist()
    [1.0, 0.011, 1.0]
    """

    rate: float = 1.0
    delay: float = 9.0
    width: float = 1.0

    def __call__(self, t: Tensor) -> Tensor:
        """Return the values ρ(t) of the kernel, in the shape of t."""
        return torch.exp(-self.rate * t) + torch.exp(-(((t - self.delay) / self.width) ** 2))

    @property
    def l1_norm(self) -> float:
        """The integral of |ρ|: 1 / rate + width (√π / 2) erfc(-delay / width)."""
        return 1 / self.rate + self.width * math.sqrt(math.pi) / 2 * math.erfc(-self.delay / self.width)


@final
@dataclass(frozen=True)
class Airy(Kernel):
    """The Airy kernel ρ(t) = Ai(t - delay), which oscillates until about t = delay, then decays superexponentially.

    The default delay is the value in the code of the authors of IAT and StableSSM. The values are not differentiable
    with respect to t.

    >>> Airy()(torch.tensor([0.0, 6.0, 12.0]).double()).round(decimals=4).tolist()
    [-0.3291, 0.355, 0.0]
    """

    delay: float = 6.0

    def __call__(self, t: Tensor) -> Tensor:
        """Return the values ρ(t) of the kernel, in the shape of t."""
        from scipy.special import airy

        values = airy(t.detach().cpu().numpy() - self.delay)[0]
        return torch.as_tensor(values, dtype=t.dtype, device=t.device)

    @property
    def l1_norm(self) -> float:
        """The integral of |Ai| from -delay to infinity, summed between the zeros of Ai; accurate to about 1e-7."""
        from scipy.special import ai_zeros, itairy

        count = 1 + int(2 * self.delay**1.5 / (3 * math.pi))  # zeros lie near -(3π n / 2)^(2/3)
        zeros = -ai_zeros(count + 1)[0]
        knots = np.array([0.0, *zeros[zeros < self.delay], self.delay])
        before = itairy(knots)[2]  # ∫ of Ai from -knot to 0
        return float(abs(1 / 3 + before[1]) + np.abs(np.diff(before[1:])).sum())


@final
@dataclass(frozen=True)
class Sine(Kernel):
    """The kernel ρ(t) = e^(-rate t) sin(frequency t).

    The code of the authors of IAT and StableSSM uses the kernel sin(t), which is not integrable. To reproduce it, pass
    ``torch.sin`` as the kernel.

    >>> round(Sine(rate=0.1, frequency=1.0).l1_norm, 4)
    6.3549
    """

    rate: float = 0.1
    frequency: float = 1.0

    def __call__(self, t: Tensor) -> Tensor:
        """Return the values ρ(t) of the kernel, in the shape of t."""
        return torch.exp(-self.rate * t) * torch.sin(self.frequency * t)

    @property
    def l1_norm(self) -> float:
        """The integral of |ρ|: ω coth(π rate / 2ω) / (rate² + ω²), where ω is the frequency."""
        r, omega = self.rate, self.frequency
        return omega / (math.tanh(math.pi * r / (2 * omega)) * (r**2 + omega**2))


RELEASED = Polynomial(exponent=1.1, rate=0.1)
"""The kernel that is called polynomial in the authors' code."""

KERNELS: dict[str, type[Kernel] | Kernel] = {
    "exponential": Exponential,
    "polynomial": Polynomial,
    "polynomial_released": RELEASED,
    "shift": Shift,
    "two_part": TwoPart,
    "airy": Airy,
    "sine": Sine,
}
"""All named kernels; a kernel that is not a class takes no options."""


def get(kernel: str | Rho, dt: float, options: dict[str, float]) -> Rho:
    """Return the kernel ρ of the given name with the given options; a kernel given as a function is returned unchanged.

    The default width of the ``shift`` kernel is one sample (``dt``).

    >>> get("shift", 0.5, {"delay": 4.0})
    Shift(delay=4.0, width=0.5)
    """
    found: type[Kernel] | Rho
    if isinstance(kernel, str):
        if kernel not in KERNELS:
            raise unknown_name("kernel", KERNELS, kernel, f"a function or one of {', '.join(KERNELS)}")
        found, name = KERNELS[kernel], f"the {kernel} kernel"
    elif callable(kernel):
        found, name = kernel, "a kernel given as a function"
    else:
        raise ArgumentError("kernel", "a name or a function", quoted(kernel))
    known = [field.name for field in fields(found)] if isinstance(found, type) else []
    for option, value in options.items():
        if option not in known:
            raise ArgumentError(option, f"no such option of {name} (it has {', '.join(known) or 'none'})", value)
    if not isinstance(found, type):
        return found
    return found(**({"width": dt} if found is Shift else {}) | options)


def sample(rho: Rho, times: Tensor) -> Tensor:
    """Return the values of a kernel at the given times, in float64; raise an ArgumentError if the kernel returns values
    of a wrong shape.
    """
    times = times.double()
    values = rho(times)
    if not isinstance(values, Tensor) or values.shape != times.shape:
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ArgumentError("kernel", f"values of the times' shape {tuple(times.shape)}", got)
    return values.double()
