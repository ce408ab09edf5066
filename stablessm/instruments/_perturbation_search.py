"""The supremum over a ball of weights from below: many perturbed models at once, drawn at random or climbing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.instruments._function_norms import Distance
from stablessm.instruments._weight_balls import WeightBall, Weights

CHUNK_BYTES = 2**26
"""What a stack of models may keep for its gradient; more gains no speed."""

FIRST_STEP, LAST_STEP = 2.0, 0.1
"""Lengths of the steps of an ascent, relative to the radius; in between they shrink geometrically."""


@final
@dataclass(frozen=True)
class Stack:
    """A distance for many models at once: by ``torch.vmap`` where the model allows it, else one by one."""

    distance: Distance
    weights: Weights

    def of_one(self) -> float:
        """The distance of the model as it is."""
        with torch.no_grad():
            value = float(self.distance(self.weights))
        return math.inf if math.isnan(value) else value

    def values(self, models: Weights) -> Tensor:
        """(P,) distances of P models; NaN, from ∞ - ∞ in a model that exploded, counts as ∞."""
        if self.vectorised:
            values = self._mapped(models)
        else:
            count = len(next(iter(models.values())))
            values = torch.stack([self.distance({name: w[i] for name, w in models.items()}) for i in range(count)])
        return torch.where(values.isnan(), torch.inf, values)

    def values_and_gradients(self, models: Weights) -> tuple[Tensor, Weights]:
        """Distances and the gradients of their logarithms, which stay of order one when a model explodes."""
        leaves = {name: w.detach().requires_grad_() for name, w in models.items()}
        with torch.enable_grad():
            values = self.values(leaves)
            if not values.requires_grad:
                raise ArgumentError("search", "'random', since the model gives no gradient", "'ascent'")
            gradients = torch.autograd.grad(values.log().sum(), list(leaves.values()), materialize_grads=True)
        return values.detach(), dict(zip(leaves, gradients, strict=True))

    def _mapped(self, models: Weights) -> Tensor:
        def distance(weights: Weights) -> Tensor:  # vmap names its argument, and the repr of a distance is long
            return self.distance(weights)

        return torch.vmap(distance)(models)

    @cached_property
    def vectorised(self) -> bool:
        """Whether ``torch.vmap`` can run the model; it cannot where a branch or a loop depends on the data."""
        try:
            with torch.no_grad():
                self._mapped({name: torch.stack([w, w]) for name, w in self.weights.items()})
        except RuntimeError:
            return False
        return True

    @cached_property
    def chunk(self) -> int:
        """How many models make a stack: counted in what autograd keeps for one more."""
        return max(1, CHUNK_BYTES // max(1, self._kept(2) - self._kept(1)))

    def _kept(self, count: int) -> int:
        """The bytes that autograd keeps of a stack of so many models; what they share, once."""
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        leaves = {name: torch.stack([w] * count).requires_grad_() for name, w in self.weights.items()}
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            self.values(leaves)
        return sum(sizes.values())


def largest_distances(
    stack: Stack, ball: WeightBall, radii: Tensor, *, samples: int, steps: int, seed: int, progress: bool
) -> Tensor:
    """(R,) the largest distance found at each radius, by ascent of ``steps`` steps from random starts.

    The starts are the same directions for every radius, on the boundary; with 0 steps they are all there is. A step
    goes along the steepest change of the logarithm, as far as the ball is wide at first and less and less later,
    and is projected back. The best point ever seen counts.
    """
    from tqdm import tqdm

    if not len(radii):
        return radii
    starts = ball.sample(stack.weights, samples, seed)
    pairs = torch.cartesian_prod(torch.arange(len(radii)), torch.arange(samples)).split(stack.chunk)
    best = []
    with tqdm(total=len(radii) * samples * (steps + 1), unit="model", disable=None if progress else True) as bar:
        for pair in pairs:
            radius, start = pair.unbind(1)
            change = {name: s[start.to(s.device)] for name, s in starts.items()}
            highest = torch.zeros(len(pair))
            for step in range(steps + 1):
                models = {name: w + _times(radii[radius], change[name]) for name, w in stack.weights.items()}
                if step == steps:
                    with torch.no_grad():
                        values = stack.values(models)
                else:
                    values, gradients = stack.values_and_gradients(models)
                    length = FIRST_STEP * (LAST_STEP / FIRST_STEP) ** (step / max(1, steps - 1))
                    uphill = ball.steepest(gradients)
                    change = ball.project({name: c + length * uphill[name] for name, c in change.items()})
                highest = values.cpu().double().maximum(highest)
                bar.update(len(pair))
            best.append(highest)
    return torch.cat(best).reshape(len(radii), samples).amax(1)


def _times(radius: Tensor, change: Tensor) -> Tensor:
    """β_i change_i of P stacked changes."""
    return radius.to(change).reshape(-1, *(1,) * (change.dim() - 1)) * change
