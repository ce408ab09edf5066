"""The map that a stretch of sequence does to the state before it, and how two stretches join into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

from torch import Tensor


@final
@dataclass(frozen=True)
class Affine:
    """state ↦ factor · state + offset.

    A recurrence h[t] = a[t] h[t-1] + x[t] over a stretch has the product of its a as factor, and as offset the state
    that it reaches from zero. Joining is associative, which is all that a parallel scan needs.

    Args:
        factor: of the offset's shape; or with ``matrix`` (B, K, K), for states (B, K, W).
        offset: (B, …).
        matrix: whether the product is one of matrices.

    >>> import torch
    >>> halve, add = Affine(torch.tensor(0.5), torch.tensor(0.0)), Affine(torch.tensor(1.0), torch.tensor(3.0))
    >>> add.after(halve)(torch.tensor(8.0)).item(), halve.after(add)(torch.tensor(8.0)).item()
    (7.0, 5.5)
    """

    factor: Tensor
    offset: Tensor
    matrix: bool = False

    def times(self, value: Tensor) -> Tensor:
        """factor · value."""
        return self.factor @ value if self.matrix else self.factor * value

    def __call__(self, state: Tensor) -> Tensor:
        """The state after the stretch."""
        return self.times(state) + self.offset

    def after(self, earlier: Self) -> Affine:
        """Both stretches as one."""
        return Affine(self.times(earlier.factor), self(earlier.offset), self.matrix)

    def adjoint(self, gradient: Tensor) -> Affine:
        """What carries gradients from behind the stretch to before it, where ``gradient`` is added."""
        return Affine(self.factor.mH if self.matrix else self.factor.conj(), gradient, self.matrix)
