"""Search for a weight whose repeated products make values grow, in a recurrence of any form."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import final

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

OFTEN = 8
"""A weight that takes part in at least this many products of one pass counts as a recurrent weight."""

MATRIX_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "matmul", "linear"}
_PRODUCTS = MATRIX_PRODUCTS | {"mul", "addcmul", "lerp", "convolution"}
_LOOKUPS = {"embedding", "index", "index_select", "gather", "_embedding_bag"}
"""Operations whose results are values rather than weights, although they take parameters."""
_GROWN = math.log(1e3)
"""Smallest growth over all products of a pass that counts, as a logarithm."""


@final
class Growth:
    """Records, for each parameter of a model, the sizes of the products of this parameter with other tensors.

    The sizes are in the order of computation. A tensor that is computed from parameters alone, elementwise or by a
    transposition, counts as the first of these parameters.
    """

    def __init__(self) -> None:
        self._weights: list[Tensor] = []
        self._sizes: list[list[float]] = []
        self._origin = WeakTensorKeyDictionary()  # index of the parameter that a tensor was computed from

    def add(self, name: str, before: list[Tensor], made: list[Tensor]) -> None:
        """Record an operation, given the tensors that it took (``before``) and returned (``made``)."""
        origins = [self._index(tensor) for tensor in before]
        derived = before and None not in origins and name not in MATRIX_PRODUCTS | _LOOKUPS
        for tensor in made:
            self._origin.pop(tensor, None)
            if derived:
                self._origin[tensor] = origins[0]
        if name not in _PRODUCTS or not made:
            return
        factors = list(zip(before, origins, strict=True))
        if name.startswith(("add", "badd")):
            factors = factors[1:]  # the first tensor is added
        size = None
        for tensor, index in factors:
            if index is not None and tensor.numel():
                size = float(made[0].detach().abs().max()) if size is None and made[0].numel() else size
                if size is not None and 0 < size < math.inf:
                    self._sizes[index].append(math.log(size))

    def fastest(self) -> tuple[Tensor, float] | None:
        """Return the weight whose products grow fastest, and the growth factor per product; None if none grow."""
        rates = [_rate(sizes) for sizes in self._sizes]
        best = max(range(len(rates)), key=rates.__getitem__, default=0)
        return (self._weights[best], math.exp(rates[best])) if rates and rates[best] > 0 else None

    def _index(self, tensor: Tensor) -> int | None:
        if tensor in self._origin:
            index: int = self._origin[tensor]
            return index
        if not isinstance(tensor, nn.Parameter):
            return None
        self._origin[tensor] = len(self._weights)
        self._weights.append(tensor)
        self._sizes.append([])
        return len(self._weights) - 1


def _rate(sizes: list[float]) -> float:
    """Return the mean growth from each product to the next, as a logarithm, if the products grow steadily; otherwise 0.

    ``sizes`` contains the logarithms of the sizes of the products.
    """
    if len(sizes) < OFTEN or sizes[-1] - sizes[0] < _GROWN:
        return 0.0
    half = len(sizes) // 2
    late, early = sizes[-1] - sizes[half], sizes[half] - sizes[0]
    steady = min(late, early) > 0.2 * (late + early)
    return (sizes[-1] - sizes[0]) / (len(sizes) - 1) if steady else 0.0


def qualified_name(module: nn.Module, weight: Tensor) -> str | None:
    """Return the name of a parameter within a module; None if the module does not contain the parameter."""
    names: Iterable[str] = (name for name, parameter in module.named_parameters() if parameter is weight)
    return next(iter(names), None)
