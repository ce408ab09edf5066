"""Functions of symmetric matrices by their eigenvalues, with gradients that are finite for repeated eigenvalues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stablessm._errors import NumericalError


def symmetric_part(M: Tensor) -> Tensor:
    """Return the symmetric part (M + Mᵀ)/2 of matrices (..., m, m)."""
    return (M + M.mT) / 2


def skew_part(M: Tensor) -> Tensor:
    """Return the skew-symmetric part (M - Mᵀ)/2 of matrices (..., m, m)."""
    return (M - M.mT) / 2


def apply(S: Tensor, value: Callable[[Tensor], Tensor], difference: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Compute the matrix function V φ(s) Vᵀ for symmetric matrices S = V s Vᵀ of shape (..., m, m).

    ``value`` is φ, and ``difference(x, y)`` its divided difference (φ(x) - φ(y))/(x - y), or φ'(x) at x = y.

    Let G be the gradient with respect to the result, and D the matrix of the divided differences of all pairs of
    eigenvalues. The gradient with respect to S is V (D ∘ (Vᵀ G V)) Vᵀ (Daleckii-Krein formula). The gradient of
    ``torch.linalg.eigh`` contains terms 1/(s_i - s_j), so that it is NaN at repeated eigenvalues; this formula does not
    contain such terms.

    >>> S = torch.zeros(2, 2, requires_grad=True)
    >>> apply(S, torch.square, torch.add).sum().backward()
    >>> S.grad
    tensor([[0., 0.],
            [0., 0.]])
    """
    W: Tensor = _Spectral.apply(S, value, difference)[0]
    return W


class _Spectral(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        S: Tensor, value: Callable[[Tensor], Tensor], difference: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        s, V = torch.linalg.eigh(S)
        return symmetric_part((V * value(s)[..., None, :]) @ V.mT), s, V

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        _, s, V = output
        ctx.save_for_backward(s, V)
        ctx.mark_non_differentiable(s, V)
        ctx.difference = inputs[2]

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():  # with create_graph: the saved eigenvectors are constants
            raise NumericalError(
                "the matrix maps 'project' and 'neg_softplus' have no second derivative",
                "use 'skew_minus_psd' or 'neg_exp', which have them all",
            )
        s, V = ctx.saved_tensors
        D = ctx.difference(s[..., :, None], s[..., None, :])
        return V @ (D * (V.mT @ symmetric_part(grad[0]) @ V)) @ V.mT, None, None
