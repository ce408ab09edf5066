"""Functions on the states of models, which are nested tuples, lists and mappings of tensors. In a checkpoint, each
tensor of a state has a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from stablessm._errors import ArgumentError

State: TypeAlias = Any
"""A state: None, a tensor, or a tuple, list or mapping (with string keys) of states."""


def mapped(function: Callable[..., Tensor], *states: State) -> State:
    """Apply a function to every tensor of a nested state, or to the corresponding tensors of several states.

    >>> mapped(torch.add, (torch.tensor(1), [None]), (torch.tensor(2), [None]))
    (tensor(3), [None])
    """
    first = states[0]
    if isinstance(first, Tensor):
        return function(*states)
    if isinstance(first, Mapping) and all(isinstance(key, str) for key in first):
        return {key: mapped(function, *(state[key] for state in states)) for key in first}
    if type(first) in (tuple, list):  # a checkpoint cannot restore a named tuple
        parts = [mapped(function, *own) for own in zip(*states, strict=True)]
        return tuple(parts) if isinstance(first, tuple) else parts
    if first is None:
        return None
    expected = "a model whose state consists of tensors in plain tuples, lists and mappings with string keys"
    raise ArgumentError("model", expected, f"{type(first).__name__} in its state")


def named(state: State, name: str = "state") -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the tensor of every entry of a nested state. A complex tensor becomes a real tensor of shape
    (…, 2).

    >>> [name for name, _ in named((torch.ones(1), {"a": torch.ones(1)}))]
    ['state.0', 'state.1.a']
    """
    if isinstance(state, Tensor):
        yield name, torch.view_as_real(state) if state.is_complex() else state
    elif isinstance(state, Mapping):
        for key, part in state.items():
            yield from named(part, f"{name}.{key}")
    elif state is not None:
        for i, part in enumerate(state):
            yield from named(part, f"{name}.{i}")


def form(state: State) -> Any:
    """Return the structure of a nested state as JSON values, from which :func:`rebuilt` can restore the state.

    >>> form((torch.ones(1), [None]))
    {'tuple': ['real', {'list': [None]}]}
    """
    if isinstance(state, Tensor):
        return "complex" if state.is_complex() else "real"
    if isinstance(state, Mapping):
        return {"mapping": {key: form(part) for key, part in state.items()}}
    if state is None:
        return None
    return {"tuple" if isinstance(state, tuple) else "list": [form(part) for part in state]}


def rebuilt(form: Any, tensors: Mapping[str, Tensor], name: str = "state") -> State:
    """Restore a state from the structure that :func:`form` returned and the tensors that :func:`named` yielded.

    >>> state = (torch.tensor([1j]), {"a": None})
    >>> rebuilt(form(state), dict(named(state)))
    (tensor([0.+1.j]), {'a': None})
    """
    if form is None:
        return None
    if isinstance(form, str):
        return torch.view_as_complex(tensors[name]) if form == "complex" else tensors[name]
    ((kind, parts),) = form.items()
    if kind == "mapping":
        return {key: rebuilt(part, tensors, f"{name}.{key}") for key, part in parts.items()}
    found = [rebuilt(part, tensors, f"{name}.{i}") for i, part in enumerate(parts)]
    return tuple(found) if kind == "tuple" else found
