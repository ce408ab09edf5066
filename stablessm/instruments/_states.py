"""Functions for states of any structure: list the arrays in a state, and copy a state with other arrays."""

from __future__ import annotations

import copy
import dataclasses
import io
from collections import UserList
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm.instruments._nested import is_numeric


def leaves(state: Any, path: str = "state") -> list[tuple[str, Any]]:
    """Return every array in a state as a pair (place, array), where the place is text such as ``state['h'][0]``.

    A state is a tensor, a NumPy or JAX array, or an object that contains arrays: tuples, lists, mappings and objects
    with attributes, such as a cache of the ``transformers`` library. Each array is listed once.

    >>> leaves({"h": torch.zeros(2), "steps": 3, "parts": [np.ones(4)]})
    [("state['h']", tensor([0., 0.])), ("state['parts'][0]", array([1., 1., 1., 1.]))]
    """
    return list(_walk(state, path, set()))


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(value) in seen or isinstance(value, str | int | float | complex | type | None):
        return
    seen.add(id(value))
    if is_array(value):
        yield path, value
        return
    if isinstance(value, Mapping):
        parts = [(f"{path}[{key!r}]", part) for key, part in value.items()]
    elif isinstance(value, tuple | list):
        parts = [(f"{path}[{i}]", part) for i, part in enumerate(value)]
    else:
        parts = [(f"{path}.{name}", part) for name, part in getattr(value, "__dict__", {}).items()]
    for where, part in parts:
        yield from _walk(part, where, seen)


def is_array(value: Any) -> bool:
    """Return True for a tensor and for a NumPy or JAX array."""
    return isinstance(value, Tensor | np.ndarray) or (hasattr(value, "__array__") and hasattr(value, "dtype"))


def mapped(state: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a state in which every array is replaced by ``change(array)``. The state is not changed.

    >>> mapped((torch.ones(2), {"steps": 3}), lambda array: 5 * array)
    (tensor([5., 5.]), {'steps': 3})
    """
    return copy.deepcopy(state, {id(array): change(array) for _, array in leaves(state)})


def copied(state: Any) -> Any:
    """Return a copy of a state that shares no memory with the original."""
    return mapped(state, lambda array: array.detach().clone() if isinstance(array, Tensor) else copy.deepcopy(array))


def saved(state: Any) -> Any:
    """Return a copy of a state whose arrays were written in a file format and read back."""

    def change(array: Any) -> Any:
        if not isinstance(array, Tensor):
            library = array.__array_namespace__() if hasattr(array, "__array_namespace__") else np
            return library.asarray(_read(np.asarray(array)))
        plain = array.detach().cpu()
        # NumPy has no bfloat16: its bytes are written
        raw = plain.contiguous().reshape(-1).view(torch.uint8).numpy() if plain.numel() else None
        back = plain if raw is None else torch.from_numpy(_read(raw)).view(plain.dtype).reshape(plain.shape)
        return back.to(array.device)

    return mapped(state, change)


def _read(array: np.ndarray) -> np.ndarray:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def moved(state: Any) -> Any:
    """Return a copy of a state whose tensors were moved to a GPU (without a GPU, to other memory) and back."""
    other = "cuda" if torch.cuda.is_available() else "cpu"

    def change(array: Any) -> Any:
        if not isinstance(array, Tensor):
            return copy.deepcopy(array)
        return array.detach().to(other, copy=True).to(array.device)

    return mapped(state, change)


def rounded(state: Any, dtype: torch.dtype) -> Any:
    """Return a copy of a state whose real and complex tensors were rounded to another real dtype and keep their own.

    >>> rounded((torch.tensor([1.001]), torch.tensor(3)), torch.bfloat16)
    (tensor([1.]), tensor(3))
    """

    def change(array: Any) -> Any:
        if isinstance(array, Tensor) and array.is_complex():
            return torch.view_as_complex(torch.view_as_real(array.detach()).to(dtype).to(array.real.dtype))
        if isinstance(array, Tensor) and array.is_floating_point():
            return array.detach().to(dtype).to(array.dtype)
        return copy.deepcopy(array)

    return mapped(state, change)


def _opened(value: Any) -> bool:
    """Return True if the attributes of an object count as parts of a state, as for dataclasses and ``transformers``
    caches.
    """
    known = type(value).__module__.startswith("transformers.cache_utils") or dataclasses.is_dataclass(value)
    return known and hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module)


def _is_number(value: Any) -> bool:
    if isinstance(value, np.generic) or (is_array(value) and not isinstance(value, Tensor)):
        return np.dtype(value.dtype).kind in "fc"
    return is_numeric(value) or (isinstance(value, float | complex) and not isinstance(value, bool))


def numbers_in(state: Any) -> Iterator[Any]:
    """Yield the floating-point tensors, arrays and numbers in a nested structure or a cache.

    >>> [float(part) for part in numbers_in({"h": (torch.ones(()), 2.0), "steps": 3})]
    [1.0, 2.0]
    """
    found: list[Any] = []
    rebuilt(state, found.append)
    yield from found


def rebuilt(value: Any, made: Callable[[Any], Any], other: Callable[[Tensor], Any] | None = None) -> Any:
    """Return a copy of a nested structure in which ``made`` was applied to every floating-point number, tensor and
    array.

    ``other``, if given, is applied to all other tensors.

    >>> rebuilt({"h": (1.0, 2.0), "steps": 3}, lambda number: -number)
    {'h': (-1.0, -2.0), 'steps': 3}
    """
    if _is_number(value):
        return made(value)
    if isinstance(value, Tensor):
        return value if other is None else other(value)
    if isinstance(value, Mapping):
        entries: Any = copy.copy(value)
        for key, part in value.items():
            entries[key] = rebuilt(part, made, other)
        return entries
    if isinstance(value, tuple | list | UserList):
        parts = [rebuilt(part, made, other) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if _opened(value):
        result = copy.copy(value)
        for name, part in vars(value).items():
            object.__setattr__(result, name, rebuilt(part, made, other))
        return result
    return value
