"""Functions on model states, which are nested tuples of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


def mapped(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a nested state in which every tensor is replaced by ``change(tensor)``.

    >>> import torch
    >>> mapped((torch.ones(1), (torch.zeros(1), None)), lambda tensor: tensor + 1)
    (tensor([2.]), (tensor([1.]), None))
    """
    if isinstance(state, Tensor):
        return change(state)
    return state if state is None else tuple(mapped(part, change) for part in state)


def tensors(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nested state, in order."""
    if isinstance(state, Tensor):
        yield state
    else:
        for part in state or ():
            yield from tensors(part)
