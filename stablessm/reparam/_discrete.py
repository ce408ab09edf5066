"""The built-in discrete-time maps, for h[k+1] = λh[k] + …, which is stable when |λ| < 1 (StableSSM, table 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from stablessm._arguments import real_number
from stablessm._typing import Time
from stablessm.reparam._built_in import BuiltIn, Clipped, Identity, Quadratic
from stablessm.reparam.interval import Interval
from stablessm.reparam.modulus import TOLERANCE, exp_modulus, search


@final
@dataclass(frozen=True, repr=False)
class Direct(Identity):
    """The map λ = w, with gradient scale G = 1/(1 - |w|)².

    The map is not stable, because a small change of w can make |λ| > 1.

    >>> Direct().gradient_scale(torch.tensor(-0.5)), Direct().gradient_scale_published(torch.tensor(-0.5))
    (tensor(4.), tensor(0.4444))
    """

    time: ClassVar[Time] = "discrete"


@final
@dataclass(frozen=True, repr=False)
class Clip(Clipped):
    """The map λ = w clamped to |λ| ≤ 1 - margin, with gradient scale G = 1/(1 - |w|)² where w is not clamped, else 0.

    The map is stable only for a margin > 0. The stability modulus is β/margin for β ≤ 1 - margin. For a larger β, the
    modulus is (1 - margin)/margin if margin ≤ 1/2. If margin > 1/2, it is larger than this value, because λ can then
    change its sign.

    >>> Clip(margin=0.1).stability_modulus(0.5)
    5.0
    """

    time: ClassVar[Time] = "discrete"

    def __post_init__(self) -> None:
        real_number("margin", self.margin, 0, 1, include_low=True)

    def __call__(self, w: Tensor) -> Tensor:
        return w.clamp(self.margin - 1, 1 - self.margin)

    @property
    def range(self) -> Interval:
        return Interval(self.margin - 1, 1 - self.margin, closed=(True, True))

    def derivative(self, w: Tensor) -> Tensor:
        return (w.abs() <= 1 - self.margin).to(w.dtype)

    def _modulus(self, beta: float) -> float:
        m, top = self.margin, 1 - self.margin
        if beta <= top:
            return beta / m
        # From λ = -r to λ̃ = 1 - m the change is (1 - r)(r + 1 - m) / (m (1 + r)), largest at r = √(2m) - 1.
        r = max(0.0, min(beta - top, top, math.sqrt(2 * m) - 1))
        return (1 - r) * (r + top) / (m * (1 + r))

    def _remedy(self, value: float) -> str:
        return f"margin <= {1 - abs(value):.6g} reaches it" if abs(value) < 1 else super()._remedy(value)


class _Discrete(BuiltIn):
    """Base class of discrete-time maps, whose eigenvalues satisfy |λ| ≤ 1."""

    time: ClassVar[Time] = "discrete"


@final
@dataclass(frozen=True, repr=False)
class Relu(_Discrete):
    """The map λ = exp(-ReLU(w)), with gradient scale G = e^(-w)/(1 - e^(-w))² where w > 0 and G = 0 elsewhere.

    The map is not stable, because λ = 1 for every w ≤ 0.

    >>> Relu()(torch.tensor([-1.0, 1.0]))
    tensor([1.0000, 0.3679])
    """

    name: ClassVar[str] = "relu"
    is_stable: ClassVar[bool] = False
    range: ClassVar[Interval] = Interval(0.0, 1.0, closed=(False, True))

    def __call__(self, w: Tensor) -> Tensor:
        return (-w.relu()).exp()

    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        return (-eigenvalues.log()).relu()

    def derivative(self, w: Tensor) -> Tensor:
        return torch.where(w > 0, -(-w).exp(), 0.0)

    def distance(self, w: Tensor) -> Tensor:
        return -torch.expm1(-w.relu())

    def gradient_scale(self, w: Tensor) -> Tensor:
        return torch.where(w > 0, (2 * (w / 2).sinh()) ** -2, 0.0)

    def _boundary_distance(self, w: Tensor) -> Tensor:
        return w.clamp(min=0)


class _Stable(_Discrete):
    """Base class of stable maps for which log(1 - |λ|) has the Lipschitz constant ``rate`` as a function of w.

    The stability modulus of these maps is e^(rate β) - 1.
    """

    rate: ClassVar[float] = 1.0
    is_stable: ClassVar[bool] = True
    range: ClassVar[Interval] = Interval(0.0, 1.0)

    def _modulus(self, beta: float) -> float:
        return exp_modulus(self.rate * beta)


@final
@dataclass(frozen=True, repr=False)
class Exp(_Stable):
    """The map λ = exp(-e^w), with gradient scale G = e^w λ / (1 - λ)² and stability modulus e^β - 1.

    The modulus is the limit of the relative change of the memory as w → -∞; no weight attains it.

    >>> Exp().inverse(torch.tensor([0.5]))
    tensor([-0.3665])
    """

    name: ClassVar[str] = "exp"

    def __call__(self, w: Tensor) -> Tensor:
        # For w > 10, λ is 0 in every dtype, and an overflowing e^w would make the gradient 0 times infinity.
        return (-w.clamp(max=10).exp()).exp()

    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        return (-eigenvalues.log()).log()

    def derivative(self, w: Tensor) -> Tensor:
        return -(w - w.exp()).exp()

    def distance(self, w: Tensor) -> Tensor:
        return -torch.expm1(-w.clamp(max=10).exp())

    def gradient_scale(self, w: Tensor) -> Tensor:
        # u e^(-u)/(1 - e^(-u))² = u/(2 sinh(u/2))² with u = e^w. For very negative w it is 0/0, with the limit e^(-w).
        u = w.clamp(max=10).exp()
        return torch.where(w < -20, (-w).exp(), u / (2 * (u / 2).sinh()) ** 2)


@final
@dataclass(frozen=True, repr=False)
class Softplus(_Stable):
    """The map λ = 1/(1 + e^w), with gradient scale G = e^(-w) and stability modulus e^β - 1.

    The modulus is the limit of the relative change of the memory as w → -∞; no weight attains it.

    >>> Softplus()(torch.tensor([0.0]))
    tensor([0.5000])
    """

    name: ClassVar[str] = "softplus"

    def __call__(self, w: Tensor) -> Tensor:
        return (-w).sigmoid()

    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        return torch.log1p(-eigenvalues) - eigenvalues.log()

    def derivative(self, w: Tensor) -> Tensor:
        return -w.sigmoid() * (-w).sigmoid()

    def distance(self, w: Tensor) -> Tensor:
        return w.sigmoid()

    def gradient_scale(self, w: Tensor) -> Tensor:
        return (-w).exp()


@final
@dataclass(frozen=True, repr=False)
class Tanh(_Stable):
    """The map λ = tanh(w), with gradient scale G = e^(2|w|) and stability modulus e^(2β) - 1.

    The modulus is the limit of the relative change of the memory as |w| → ∞; no weight attains it. StableSSM (table 1)
    prints G = e^(2w).

    >>> Tanh().gradient_scale(torch.tensor(-1.0)), Tanh().gradient_scale_published(torch.tensor(-1.0))
    (tensor(7.3891), tensor(0.1353))
    """

    name: ClassVar[str] = "tanh"
    rate: ClassVar[float] = 2.0
    range: ClassVar[Interval] = Interval(-1.0, 1.0)

    def __call__(self, w: Tensor) -> Tensor:
        return w.tanh()

    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        return eigenvalues.atanh()

    def derivative(self, w: Tensor) -> Tensor:
        return w.cosh() ** -2

    def distance(self, w: Tensor) -> Tensor:
        return 2 * (-2 * w.abs()).sigmoid()

    def gradient_scale(self, w: Tensor) -> Tensor:
        return (2 * w.abs()).exp()


@final
@dataclass(frozen=True, repr=False)
class Best(Quadratic):
    """The map λ = 1 - 1/(aw² + b) with a > 0 and b ≥ 1/2 (StableSSM, section 3.3).

    With b ≥ 1, λ is in [0, 1), the gradient scale is G = 2a|w|, and the stability modulus is ``quadratic_modulus`` with
    c = b/a.

    With b < 1 (the paper uses 1/2), λ is negative where q = aw² + b < 1. There the distance to the stability boundary
    is (2q - 1)/q, and G = 2a|w|/(2q - 1)². The stability modulus is found by a search.

    Of the two weights with the same λ, the inverse returns the non-negative one.

    >>> Best().inverse(torch.tensor([0.0, 0.9]))
    tensor([0.0000, 3.0000])
    >>> Best(b=0.5).is_stable
    False
    """

    time: ClassVar[Time] = "discrete"

    def __post_init__(self) -> None:
        real_number("a", self.a, 0)
        real_number("b", self.b, 0.5, include_low=True)

    def __call__(self, w: Tensor) -> Tensor:
        return 1 - 1 / self._q(w)

    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        return self._weight(1 / (1 - eigenvalues))

    @property
    def range(self) -> Interval:
        return Interval(1 - 1 / self.b, 1.0, closed=(True, False))

    @property
    def note(self) -> str:
        if self.b >= 1:
            return ""
        if self.b > 0.5:
            return f"b = {self.b} < 1: near w = 0 λ is negative, down to {1 - 1 / self.b:.6g}, and G > 2a|w|"
        return "b = 0.5: λ(0) = -1 is on the stability boundary and G/|w| is unbounded near w = 0; use b >= 1"

    def distance(self, w: Tensor) -> Tensor:
        q = self._q(w)
        return (2 * q - 1).clamp(max=1) / q

    def gradient_scale(self, w: Tensor) -> Tensor:
        return torch.where(w == 0, 0.0, 2 * self.a * w.abs() / (2 * self._q(w) - 1).clamp(max=1) ** 2)

    @property
    def is_stable(self) -> bool:
        return self.b > 0.5

    @property
    def modulus_tolerance(self) -> float:
        return 0.0 if self.b >= 1 else TOLERANCE

    def _modulus(self, beta: float) -> float:
        if self.b >= 1:
            return super()._modulus(beta)
        # Beyond |w| = √(b/a) the change only decreases, as in the closed form.
        reach = beta + 2 / math.sqrt(self.a)
        return search(self, beta, (-reach, reach))

    def _boundary_distance(self, w: Tensor) -> Tensor:
        return w.abs()  # b = 1/2: λ = -1 at w = 0, and only there

    def _remedy(self, value: float) -> str:
        return f"b <= {1 / (1 - value):.6g} reaches it" if -1 <= value < 1 else super()._remedy(value)


MAPS = (Direct, Clip, Relu, Exp, Softplus, Tanh, Best)
