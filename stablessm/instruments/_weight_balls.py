"""The selection of the weights that are perturbed, and balls |θ̃ - θ| ≤ β in the two published weight norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn

from stablessm._errors import ArgumentError, quoted

Weights: TypeAlias = dict[str, Tensor]
"""Values of parameters by name; the values of P stacked models have a leading dimension P."""

WeightNorm: TypeAlias = Literal["tensor_max", "entry_max"]


def select(model: nn.Module, parameters: Sequence[str] | str | None) -> Weights:
    """Return the selected trainable parameters of a model, by name.

    ``parameters`` is None for all parameters, ``recurrent`` for the recurrent parameters, or a name or pattern of
    names, or several of these.

    >>> list(select(nn.LSTM(1, 2), ["weight_*"]))
    ['weight_ih_l0', 'weight_hh_l0']
    """
    trainable = {name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad}
    if parameters is None:
        chosen = set(trainable)
    elif parameters == "recurrent":
        modules = model.modules()
        recurrent = {id(getattr(m, name)) for m in modules for name in getattr(m, "recurrent_parameters", ())}
        chosen = {name for name, tensor in trainable.items() if id(tensor) in recurrent}
    else:
        patterns = [parameters] if isinstance(parameters, str) else list(parameters)
        matches = {pattern: {name for name in trainable if fnmatchcase(name, pattern)} for pattern in patterns}
        for pattern, names in matches.items():
            if not names:
                raise ArgumentError("parameters", f"names or patterns of {', '.join(trainable)}", quoted(pattern))
        chosen = set().union(*matches.values())
    if not chosen:
        what = "a model that lists recurrent_parameters" if parameters == "recurrent" else "trainable parameters"
        raise ArgumentError("parameters", what, f"none in {type(model).__name__}")
    weights = {name: tensor.detach() for name, tensor in trainable.items() if name in chosen}
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            raise ArgumentError("parameters", "real floating-point tensors", f"{name} of {tensor.dtype}")
    return weights


@final
@dataclass(frozen=True)
class WeightBall:
    """The unit ball of changes of weights, in which every tensor of a change has an ``order``-norm of at most 1.

    The weight norm ``tensor_max`` (StableSSM, below eq. 7) has order 2, and ``entry_max`` has order ∞. A change in the
    unit ball is multiplied by the radius β before it is added to the weights.

    >>> change = WeightBall.of("tensor_max").sample({"w": torch.zeros(64)}, count=3, seed=0)
    >>> change["w"].shape, change["w"].norm(dim=1).round(decimals=6).tolist()
    (torch.Size([3, 64]), [1.0, 1.0, 1.0])
    """

    order: float

    @classmethod
    def of(cls, norm: WeightNorm) -> WeightBall:
        """Return the ball of the weight norm with the given name."""
        return cls(2.0 if norm == "tensor_max" else math.inf)

    def sample(self, weights: Weights, count: int, seed: int) -> Weights:
        """Return ``count`` random changes of the weights; every tensor of a change has norm 1."""
        generator = torch.Generator().manual_seed(seed)
        draw = torch.randn if self.order == 2 else _symmetric
        changes = {
            name: draw(count, *tensor.shape, generator=generator, dtype=torch.float64)
            for name, tensor in weights.items()
        }
        return {name: (c / self._size(c)).to(weights[name]) for name, c in changes.items()}

    def project(self, change: Weights) -> Weights:
        """Return the nearest change in the ball for each of several stacked changes of weights."""
        if self.order == 2:
            return {name: c / self._size(c).clamp(min=1) for name, c in change.items()}
        return {name: c.clamp(-1, 1) for name, c in change.items()}

    def steepest(self, gradient: Weights) -> Weights:
        """Return the change of norm 1 along which a function with the given gradient grows fastest.

        Where the gradient is not finite, the change is 0.
        """
        finite = {name: torch.where(g.isfinite(), g, 0) for name, g in gradient.items()}
        if self.order != 2:
            return {name: g.sign() for name, g in finite.items()}
        scaled = {name: g / _largest(g) for name, g in finite.items()}  # the square of a tiny gradient would be 0
        return {name: g / self._size(g).clamp(min=1) for name, g in scaled.items()}

    def _size(self, stack: Tensor) -> Tensor:
        """Return the norm of each of P stacked tensors, in a shape that broadcasts with the stack."""
        norms = torch.linalg.vector_norm(stack.reshape(len(stack), -1), self.order, dim=1)
        return norms.reshape(-1, *(1,) * (stack.dim() - 1))


def _largest(stack: Tensor) -> Tensor:
    """Return the largest modulus in each of P stacked tensors, or 1 for a tensor of zeros."""
    size = stack.reshape(len(stack), -1).abs().amax(1).reshape(-1, *(1,) * (stack.dim() - 1))
    return torch.where(size == 0, 1, size)


def _symmetric(*shape: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Return random numbers with a uniform distribution in [-1, 1]."""
    return 2 * torch.rand(*shape, generator=generator, dtype=dtype) - 1
