"""The built-in continuous-time maps, for dh/dt = λh + …, which is stable when λ < 0 (StableSSM, table 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional

from stablessm._arguments import real_number
from stablessm._typing import Time
from stablessm.reparam._built_in import BuiltIn, Clipped, Identity, Quadratic
from stablessm.reparam.interval import Interval
from stablessm.reparam.modulus import exp_modulus


@final
@dataclass(frozen=True, repr=False)
class Direct(Identity):
    """The map λ = w, with gradient scale G = 1/w².

    The map is not stable, because a small change of w can make λ > 0 (StableSSM eq. 76).

    >>> Direct().stability_modulus(0.1)
    inf
    """

    time: ClassVar[Time] = "continuous"


@final
@dataclass(frozen=True, repr=False)
class Clip(Clipped):
    """The map λ = min(w, -margin), with gradient scale G = 1/w² where w < -margin and G = 0 elsewhere.

    The stability modulus is β/margin, so that the map is stable only for a margin > 0.

    >>> Clip(margin=0.5)(torch.tensor([-2.0, 1.0]))
    tensor([-2.0000, -0.5000])
    """

    time: ClassVar[Time] = "continuous"

    def __post_init__(self) -> None:
        real_number("margin", self.margin, 0, include_low=True)

    def __call__(self, w: Tensor) -> Tensor:
        return w.clamp(max=-self.margin)

    @property
    def range(self) -> Interval:
        return Interval(-math.inf, 0.0 - self.margin, closed=(False, True))

    def derivative(self, w: Tensor) -> Tensor:
        return (w <= -self.margin).to(w.dtype)

    def _modulus(self, beta: float) -> float:
        return beta / self.margin

    def _remedy(self, value: float) -> str:
        return f"margin <= {-value:.6g} reaches it" if value < 0 else super()._remedy(value)


class _Continuous(BuiltIn):
    """Base class of continuous-time maps, whose eigenvalues are never positive."""

    time: ClassVar[Time] = "continuous"


@final
@dataclass(frozen=True, repr=False)
class Relu(_Continuous):
    """The map λ = -ReLU(w), with gradient scale G = 1/w² where w > 0 and G = 0 elsewhere.

    The map is not stable, because λ = 0 for every w ≤ 0.

    >>> Relu().inverse(torch.tensor([-2.0]))
    tensor([2.])
    """

    name: ClassVar[str] = "relu"
    is_stable: ClassVar[bool] = False
    range: ClassVar[Interval] = Interval(-math.inf, 0.0, closed=(False, True))

    def __call__(self, w: Tensor) -> Tensor:
        return -w.relu()

    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        return (-eigenvalues).relu()

    def derivative(self, w: Tensor) -> Tensor:
        return -(w > 0).to(w.dtype)

    def _boundary_distance(self, w: Tensor) -> Tensor:
        return w.relu()


class _StrictlyNegative(_Continuous):
    """Base class of stable maps with λ < 0 for which log(-λ) is 1-Lipschitz in w.

    The stability modulus of these maps is e^β - 1.
    """

    is_stable: ClassVar[bool] = True
    range: ClassVar[Interval] = Interval(-math.inf, 0.0)

    def _modulus(self, beta: float) -> float:
        return exp_modulus(beta)


@final
@dataclass(frozen=True, repr=False)
class Exp(_StrictlyNegative):
    """The map λ = -e^w, with gradient scale G = e^(-w) and stability modulus e^β - 1 (StableSSM eq. 71).

    >>> Exp().inverse(torch.tensor([-1.0]))
    tensor([0.])
    """

    name: ClassVar[str] = "exp"

    def __call__(self, w: Tensor) -> Tensor:
        return -w.exp()

    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        return (-eigenvalues).log()

    def derivative(self, w: Tensor) -> Tensor:
        return -w.exp()

    def gradient_scale(self, w: Tensor) -> Tensor:
        return (-w).exp()


@final
@dataclass(frozen=True, repr=False)
class Softplus(_StrictlyNegative):
    """The map λ = -log(1 + e^w), with gradient scale G = e^w / ((1 + e^w) λ²) and stability modulus e^β - 1.

    The modulus is the limit of the relative change of the memory as w → -∞ (StableSSM eq. 72); no weight attains it.

    >>> Softplus()(torch.tensor([0.0]))
    tensor([-0.6931])
    """

    name: ClassVar[str] = "softplus"

    def __call__(self, w: Tensor) -> Tensor:
        # PyTorch's default threshold of 20 would cause an error of 2e-9, which float64 resolves.
        return -functional.softplus(w, threshold=40)

    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        return torch.log(-torch.expm1(eigenvalues)) - eigenvalues

    def derivative(self, w: Tensor) -> Tensor:
        return -w.sigmoid()

    def gradient_scale(self, w: Tensor) -> Tensor:
        # For very negative w the formula would be 0/0, but its value is e^(-w) (1 + O(e^2w)).
        return torch.where(w < -20, (-w).exp(), w.sigmoid() / self(w) ** 2)


@final
@dataclass(frozen=True, repr=False)
class Best(Quadratic):
    """The map λ = -1/(aw² + b) with a, b > 0 (StableSSM, appendix G).

    The gradient scale G = 2a|w| is proportional to |w|. The stability modulus is ``quadratic_modulus`` with c = b/a. Of
    the two weights with the same λ, the inverse returns the non-negative one.

    >>> f = Best(a=1.0, b=0.5)
    >>> f.inverse(torch.tensor([-2.0, -0.4])), f.gradient_scale(torch.tensor(3.0))
    (tensor([0.0000, 1.4142]), tensor(6.))
    """

    b: float = 0.5
    time: ClassVar[Time] = "continuous"
    is_stable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        real_number("a", self.a, 0)
        real_number("b", self.b, 0)

    def __call__(self, w: Tensor) -> Tensor:
        return -1 / self._q(w)

    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        return self._weight(-1 / eigenvalues)

    @property
    def range(self) -> Interval:
        return Interval(-1 / self.b, 0.0, closed=(True, False))

    def gradient_scale(self, w: Tensor) -> Tensor:
        return 2 * self.a * w.abs()

    def stability_modulus_published(self, beta: float, w: Tensor) -> Tensor:
        """Return a(β² + 2β|w|)/b, the expression that StableSSM eq. 75 gives for the stability modulus.

        This expression depends on w. By definition 3.2 of StableSSM, the stability modulus g(β) depends on β alone;
        :meth:`stability_modulus` returns this g(β).
        """
        return self.a * (beta * beta + 2 * beta * w.abs()) / self.b

    def _remedy(self, value: float) -> str:
        return f"b <= {-1 / value:.6g} reaches it" if value < 0 else super()._remedy(value)


MAPS = (Direct, Clip, Relu, Exp, Softplus, Best)
