"""Evaluation of many models in one computation; the models are perturbed copies, possibly of different widths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor, nn

from stablessm._errors import ArgumentError
from stablessm._tensors import padded
from stablessm.instruments._function_norms import Distance
from stablessm.instruments._weight_balls import Weights

CHUNK_BYTES = {"cpu": 2**23, "cuda": 2**30}
"""Bytes that a stack may keep for its gradient: a CPU is fastest within its caches, a GPU with large batches."""

ONE_BY_ONE = ("cpu",)
"""Devices on which models of different widths are not stacked, since padding costs more than it saves."""


@final
@dataclass(frozen=True)
class Stack:
    """M models with perturbed weights, and a function that computes the distance of a model from its target.

    :meth:`values` computes the distances of many perturbed copies of the models.

    The copies run at once by ``torch.vmap`` if possible, otherwise one by one.
    """

    distance: Distance
    weights: Weights
    """Weights of M models that are perturbed, each (M, …)."""
    fixed: Weights
    """Other weights of M models; empty for a single model, whose ``distance`` contains them."""

    @classmethod
    def of(cls, distance: Distance, weights: Weights) -> Stack:
        """Create a stack that contains one model.

        ``distance`` computes the distance of the model from the target, as a function of the weights. ``weights`` are
        the weights of the model that are perturbed.
        """
        return cls(distance, {name: w[None] for name, w in weights.items()}, {})

    @property
    def device(self) -> torch.device:
        """Return the device of the weights of the models."""
        return next(iter(self.weights.values())).device

    def of_one(self) -> float:
        """Return the distance of the unperturbed model from the target, for a stack of a single model."""
        with torch.no_grad():
            value = float(self.distance({name: w[0] for name, w in self.weights.items()}))
        return math.inf if math.isnan(value) else value

    def values(self, models: Weights, which: Tensor) -> Tensor:
        """Return the distances (P,) of P perturbed models from the target.

        ``models`` contains the weights of the perturbed models. Perturbed model i is a copy of model ``which[i]`` of
        the stack.
        """
        models = models | {name: w[which] for name, w in self.fixed.items()}
        if self.vectorized:
            values = self._mapped(models)
        else:
            values = torch.stack([self.distance({name: w[i] for name, w in models.items()}) for i in range(len(which))])
        return torch.where(values.isnan(), torch.inf, values)

    def values_and_gradients(self, models: Weights, which: Tensor) -> tuple[Tensor, Weights]:
        """Return the distances of perturbed models, as :meth:`values`, and the gradients of the logarithms of the
        distances.

        Unlike the distances, the logarithms have moderate gradients even if the output of a model explodes.
        """
        leaves = {name: w.detach().requires_grad_() for name, w in models.items()}
        with torch.enable_grad():
            values = self.values(leaves, which)
            if not values.requires_grad:
                raise ArgumentError("search", "'random', since the model gives no gradient", "'ascent'")
            gradients = torch.autograd.grad(values.log().sum(), list(leaves.values()), materialize_grads=True)
        return values.detach(), dict(zip(leaves, gradients, strict=True))

    def _mapped(self, models: Weights) -> Tensor:
        def distance(weights: Weights) -> Tensor:  # errors of vmap name the function by its repr
            return self.distance(weights)

        return torch.vmap(distance)(models)

    @cached_property
    def vectorized(self) -> bool:
        """Return True if ``torch.vmap`` can run the model: no branch or loop of the model may depend on the data."""
        try:
            with torch.no_grad():
                self._mapped({name: w[[0, 0]] for name, w in (self.weights | self.fixed).items()})
        except RuntimeError:
            return False
        return True

    @cached_property
    def chunk(self) -> int:
        """Return the number of models to run at once, so that autograd stays within its memory limit."""
        budget = CHUNK_BYTES.get(self.device.type, CHUNK_BYTES["cuda"])
        return max(1, budget // max(1, self._kept(2) - self._kept(1)))

    def _kept(self, count: int) -> int:
        """Return the number of bytes that autograd keeps for ``count`` models; shared tensors count once."""
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        which = torch.zeros(count, dtype=torch.long, device=self.device)
        leaves = {name: w[which].requires_grad_() for name, w in self.weights.items()}
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            self.values(leaves, which)
        return sum(sizes.values())


def joined(models: Sequence[nn.Module], stacks: Sequence[Stack]) -> Stack | None:
    """Combine models of different widths into one stack; return None if that is not faster or would change results.

    Narrow models are padded with zeros to the width of the widest model. The stack is run once to make sure that the
    padding neither changes the distance nor receives a gradient.
    """
    if len(models) < 2 or any(stack.device.type in ONE_BY_ONE or not stack.vectorized for stack in stacks):
        return None
    if (
        len({(type(model), _kinds(model)) for model in models}) > 1
        or len({tuple(stack.weights) for stack in stacks}) > 1
    ):
        return None
    at = max(range(len(models)), key=lambda i: sum(p.numel() for p in models[i].parameters()))
    shapes = {name: p.shape for name, p in models[at].named_parameters()}
    if any(p.shape[i] > n for m in models for name, p in m.named_parameters() for i, n in enumerate(shapes[name])):
        return None
    every = {
        name: torch.stack([padded(model.get_parameter(name).detach(), shape) for model in models])
        for name, shape in shapes.items()
    }
    own = stacks[at].weights.keys()
    together = Stack(
        stacks[at].distance,
        {name: every[name] for name in stacks[at].weights},
        {name: w for name, w in every.items() if name not in own},
    )
    return together if _same(together, models, stacks) else None


def _kinds(model: nn.Module) -> tuple[tuple[object, ...], ...]:
    """Return the name, number of dimensions, dtype and device of each parameter of a model.

    All models of a stack must give the same result.
    """
    return tuple((name, p.dim(), p.dtype, p.device) for name, p in model.named_parameters())


def _same(together: Stack, models: Sequence[nn.Module], stacks: Sequence[Stack]) -> bool:
    """Return True if each model has the same distance in the stack as alone, and the padded entries have no
    gradient.
    """
    if not together.vectorized:
        return False
    which = torch.arange(len(models), device=together.device)
    try:
        found, slopes = together.values_and_gradients(together.weights, which)
    except ArgumentError:  # without a gradient, the models run one by one (for a random search)
        return False
    expected = found.new_tensor([stack.of_one() for stack in stacks])
    tolerance = max(100 * torch.finfo(w.dtype).eps ** 0.75 for w in together.weights.values())
    for name, slope in slopes.items():
        real = torch.stack([padded(torch.ones_like(model.get_parameter(name)), slope.shape[1:]) for model in models])
        if bool((slope[real == 0] != 0).any()):
            return False
    return torch.allclose(found, expected, rtol=tolerance, atol=0)
