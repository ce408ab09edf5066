"""Calls of the modules of a traced model, and the tensors whose gradients are watched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from stablessm.instruments._bad_values import Order, is_bad
from stablessm.instruments._nested import tensors_in


@final
@dataclass(frozen=True)
class Call:
    """A running call of a module, with the arguments of the call."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def inputs(self) -> Iterator[tuple[str, Tensor, Order]]:
        return sequence_first(chain(tensors_in(self.args, "input"), tensors_in(self.kwargs, "input")), self.module)


@final
@dataclass
class Seen:
    """A tensor whose gradient is watched: the module and output that produced it, and the modules that read it."""

    producer: str
    path: str
    order: Order
    readers: list[str] = field(default_factory=list)
    final: bool = False
    """Whether the tensor is an output of the whole model (which a part of the model may have produced)."""
    handle: RemovableHandle | None = None


def sequence_first(tensors: Iterable[tuple[str, Tensor]], module: nn.Module) -> Iterator[tuple[str, Tensor, Order]]:
    """Yield (path, tensor, order) for the given tensors of a module.

    The first tensor counts as a sequence if it has three dimensions. Its order is then the name of its first axis,
    "batch" or "time". The order of all other tensors is None.
    """
    first: Order = "time" if getattr(module, "batch_first", True) is False else "batch"
    for i, (path, tensor) in enumerate(tensors):
        yield path, tensor, first if i == 0 and tensor.dim() == 3 else None


def grows(module: nn.Module) -> bool:
    """Return False if a recurrent module has a tanh nonlinearity, so that its values cannot grow; otherwise True."""
    return "tanh" not in str(getattr(module, "mode", getattr(module, "nonlinearity", ""))).lower()


def within(name: str, outer: str) -> bool:
    return not outer or f"{name}.".startswith(f"{outer}.")


@torch.no_grad()
def first_bad_step(module: Any, x: Tensor, state: Any = None, *, limit: float | None) -> tuple[int, Tensor, Any] | None:
    """Run a module step by step until an output is bad; return the index, output and state of this step.

    Returns None if no output is bad or if the module cannot run step by step. An output is bad if it has an entry that
    is NaN, infinite or, with a ``limit``, above the limit in modulus. The outputs of one pass would not show the step,
    because a convolution spreads one overflow over all times.
    """
    try:
        for time, x_t in enumerate(x.unbind(1)):
            y, state = module.step(x_t, state)
            if is_bad(y, limit):
                return time, y, state
    except Exception:  # the module has no step(), or one with another signature
        pass
    return None
