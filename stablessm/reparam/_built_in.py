"""Base classes of the maps that exist in both continuous and discrete time."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stablessm.reparam.base import Reparameterization
from stablessm.reparam.modulus import quadratic_modulus


class BuiltIn(Reparameterization):
    """Base class of the built-in maps.

    The methods use closed forms, and ``inverse`` raises an error for eigenvalues outside the range of the map.
    """

    @property
    def modulus_tolerance(self) -> float:
        return 0.0

    def inverse(self, eigenvalues: Tensor) -> Tensor:
        self._require_in_range(eigenvalues)
        return self._inverse(eigenvalues)

    @abstractmethod
    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        """Return weights w with f(w) = λ for eigenvalues λ that are known to be in the range of the map."""


class Identity(BuiltIn):
    """The map λ = w, which does not keep the recurrence stable."""

    name: ClassVar[str] = "direct"
    is_stable: ClassVar[bool] = False

    def __call__(self, w: Tensor) -> Tensor:
        return w

    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        return eigenvalues

    def derivative(self, w: Tensor) -> Tensor:
        return torch.ones_like(w)

    def _boundary_distance(self, w: Tensor) -> Tensor:
        return self.distance(w).clamp(min=0)


@dataclass(frozen=True, repr=False)
class Clipped(BuiltIn):
    """The map λ = w, clipped at a distance ``margin`` from the stability boundary; stable only for a margin > 0."""

    margin: float = 0.0
    name: ClassVar[str] = "clip"

    def _inverse(self, eigenvalues: Tensor) -> Tensor:
        return eigenvalues

    @property
    def is_stable(self) -> bool:
        return self.margin > 0

    def _boundary_distance(self, w: Tensor) -> Tensor:
        return self.distance(w).clamp(min=0)


@dataclass(frozen=True, repr=False)
class Quadratic(BuiltIn):
    """Base class of the map ``best``, whose eigenvalue λ depends on the weight w only through q = aw² + b.

    Of the two weights with the same λ, the inverse returns the non-negative one.
    """

    a: float = 1.0
    b: float = 1.0
    name: ClassVar[str] = "best"

    def _q(self, w: Tensor) -> Tensor:
        return self.a * w * w + self.b

    def _weight(self, q: Tensor) -> Tensor:
        return ((q - self.b) / self.a).clamp(min=0).sqrt()

    def derivative(self, w: Tensor) -> Tensor:
        return 2 * self.a * w / self._q(w) ** 2

    def _modulus(self, beta: float) -> float:
        return quadratic_modulus(beta, self.b / self.a)
