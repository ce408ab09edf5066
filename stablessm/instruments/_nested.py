"""Search for tensors in the nested arguments and results of modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from torch import Tensor


def is_numeric(value: Any) -> TypeGuard[Tensor]:
    """Return True for a tensor of real or complex floating-point numbers that is not on the meta device."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()) and not value.is_meta


def tensors_in(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Yield every floating-point tensor in nested tuples, lists and mappings, with its place as text, such as
    ``[0]['h']``.

    >>> import torch
    >>> [where for where, _ in tensors_in((torch.ones(1), {"state": torch.ones(2), "step": 3}), "output")]
    ['output[0]', "output[1]['state']"]
    """
    if is_numeric(value):
        yield path, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from tensors_in(part, f"{path}[{key!r}]")
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            yield from tensors_in(part, f"{path}[{i}]")
