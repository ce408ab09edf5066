"""The matrix maps W = g(M) of IAT, section 4.4 (eq. 15), and the more general map :class:`SkewMinusPSD`."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from stablessm._arguments import real_number
from stablessm._errors import ArgumentError
from stablessm._typing import takes_tensor
from stablessm.reparam import spectral
from stablessm.reparam._continuous import Exp, Softplus
from stablessm.reparam.base import Reparameterization
from stablessm.reparam.spectral import skew_part, symmetric_part


def _widened(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorate a method that takes a matrix, so that it receives a half-precision matrix in float32.

    The result has the dtype of the original matrix. PyTorch's matrix decompositions require float32 or float64.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Tensor:
        M, *more = *args, *options.values()
        return method(self, M.to(torch.promote_types(M.dtype, torch.float32)), *more).to(M.dtype)

    return call


class MatrixMap(ABC):
    """A map W = g(M) from a real weight matrix M, (..., m, m), to a recurrent matrix W of the same shape and dtype."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        for name in ("__call__", "inverse"):
            if name in cls.__dict__:
                setattr(cls, name, takes_tensor(_widened(cls.__dict__[name]), square=True))

    @property
    @abstractmethod
    def is_stable(self) -> bool:
        """Return True if all eigenvalues of g(M) have negative real parts, for every M."""

    @abstractmethod
    def __call__(self, M: Tensor) -> Tensor:
        """Return the recurrent matrix g(M)."""

    @abstractmethod
    def inverse(self, W: Tensor) -> Tensor:
        """Return a matrix M with g(M) = W; raise an ArgumentError if there is none."""


@final
@dataclass(frozen=True)
class Direct(MatrixMap):
    """The map W = M, which does not keep the recurrence stable."""

    name: ClassVar[str] = "direct"
    is_stable: ClassVar[bool] = False

    def __call__(self, M: Tensor) -> Tensor:
        return M

    def inverse(self, W: Tensor) -> Tensor:
        return W


@final
@dataclass(frozen=True)
class NegExp(MatrixMap):
    """The map W = -e^S with S = (M + Mᵀ)/2; W is symmetric, and all its eigenvalues are negative.

    As in any dense matrix, rounding can make an eigenvalue positive if its absolute value is below about eps ‖W‖, where
    eps is the machine epsilon.

    >>> NegExp()(torch.zeros(2, 2))
    tensor([[-1., -0.],
            [-0., -1.]])
    """

    name: ClassVar[str] = "neg_exp"
    is_stable: ClassVar[bool] = True

    def __call__(self, M: Tensor) -> Tensor:
        return -torch.linalg.matrix_exp(symmetric_part(M))

    def inverse(self, W: Tensor) -> Tensor:
        return _of_negative_definite(W, Exp())

    def published(self, M: Tensor) -> Tensor:
        """Return -e^M, the map as published in IAT, which does not symmetrize M.

        The result is unstable if an eigenvalue μ of M has cos(Im μ) < 0.
        """
        return -torch.linalg.matrix_exp(M)


@final
@dataclass(frozen=True)
class NegSoftplus(MatrixMap):
    """The map W = -log(I + e^S) with S = (M + Mᵀ)/2; W is symmetric, and all its eigenvalues are negative.

    >>> NegSoftplus()(torch.zeros(1, 1))
    tensor([[-0.6931]])
    """

    name: ClassVar[str] = "neg_softplus"
    is_stable: ClassVar[bool] = True

    def __call__(self, M: Tensor) -> Tensor:
        return spectral.apply(symmetric_part(M), Softplus(), _softplus_difference)

    def inverse(self, W: Tensor) -> Tensor:
        return _of_negative_definite(W, Softplus())

    def published(self, M: Tensor) -> Tensor:
        """Return the complex matrix -log(I + e^M), the map as published in IAT, which does not symmetrize M.

        The result is unstable if an eigenvalue μ of M has |1 + e^μ| < 1.
        """
        mu, V = torch.linalg.eig(M)
        return torch.linalg.solve(V, V * -torch.log(1 + mu.exp())[..., None, :], left=False)


def _softplus_difference(x: Tensor, y: Tensor) -> Tensor:
    """Return the divided difference (φ(x) - φ(y))/(x - y) of φ(s) = -log(1 + e^s), without cancellation if x ≈ y."""
    h = x - y
    close = torch.log1p(y.sigmoid() * torch.expm1(h.clamp(-1, 1))) / h
    far = (Softplus()(y) - Softplus()(x)) / h
    return -torch.where(h == 0, y.sigmoid(), torch.where(h.abs() < 1, close, far))


@final
@dataclass(frozen=True)
class Project(MatrixMap):
    """The map W = (M - Mᵀ)/2 + S', where S' is the symmetric part of M with eigenvalues clipped to at most -margin.

    Of all matrices whose symmetric part has no eigenvalue above -margin, W is nearest to M in the Frobenius norm. The
    eigenvalues of W have Re λ ≤ -margin. The map is stable for a margin > 0; with margin 0, an eigenvalue can be on the
    imaginary axis.

    >>> Project()(torch.tensor([[1.0, 2.0], [-2.0, -3.0]]))
    tensor([[ 0.,  2.],
            [-2., -3.]])
    """

    margin: float = 0.0
    name: ClassVar[str] = "project"

    def __post_init__(self) -> None:
        real_number("margin", self.margin, 0, include_low=True)

    @property
    def is_stable(self) -> bool:
        return self.margin > 0

    def _clip(self, s: Tensor) -> Tensor:
        return s.clamp(max=-self.margin)

    def _difference(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.where(x == y, (x <= -self.margin).to(x.dtype), (self._clip(x) - self._clip(y)) / (x - y))

    def __call__(self, M: Tensor) -> Tensor:
        return skew_part(M) + spectral.apply(symmetric_part(M), self._clip, self._difference)

    def inverse(self, W: Tensor) -> Tensor:
        top = torch.linalg.eigvalsh(symmetric_part(W))[..., -1]
        if bool((top > -self.margin + _slack(W)).any()):
            raise _outside(0.0 - self.margin, top)
        return W


@final
@dataclass(frozen=True)
class SkewMinusPSD(MatrixMap):
    """The map W = A - Aᵀ - L Lᵀ - margin I, where A is the strict upper triangle of M and L is the rest of M.

    The map reaches every W whose symmetric part has no eigenvalue above -margin. The eigenvalues of W have
    Re λ ≤ -margin. This is the most general of the stable dense maps.

    >>> SkewMinusPSD(margin=0.5)(torch.tensor([[1.0, 3.0], [0.0, 2.0]]))
    tensor([[-1.5000,  3.0000],
            [-3.0000, -4.5000]])
    """

    margin: float = 1e-6
    name: ClassVar[str] = "skew_minus_psd"
    is_stable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        real_number("margin", self.margin, 0)

    def __call__(self, M: Tensor) -> Tensor:
        A, L = M.triu(1), M.tril()
        return A - A.mT - L @ L.mT - self._floor(M)

    def inverse(self, W: Tensor) -> Tensor:
        S = symmetric_part(W)
        L, failed = torch.linalg.cholesky_ex(-S - self._floor(W))
        if bool(failed.any()):
            raise _outside(-self.margin, torch.linalg.eigvalsh(S)[..., -1])
        return skew_part(W).triu(1) + L

    def _floor(self, M: Tensor) -> Tensor:
        return self.margin * torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)


def _slack(W: Tensor) -> float:
    return 1e2 * torch.finfo(W.dtype).eps * float(W.abs().amax())


def _of_negative_definite(W: Tensor, map: Reparameterization) -> Tensor:
    """Apply the inverse of ``map`` to the eigenvalues of a symmetric matrix W, which must be negative definite."""
    if bool((skew_part(W).abs() > _slack(W)).any()):
        raise ArgumentError("W", "a symmetric matrix (map 'skew_minus_psd' reaches the others)", "one that is not")
    s, V = torch.linalg.eigh(symmetric_part(W))
    if bool((s >= 0).any()):
        raise _outside(0.0, s[..., -1])
    return (V * map.inverse(s)[..., None, :]) @ V.mT


def _outside(bound: float, top: Tensor) -> ArgumentError:
    return ArgumentError("W", f"a symmetric part with eigenvalues below {bound:.6g}", f"{float(top.max()):.6g}")
