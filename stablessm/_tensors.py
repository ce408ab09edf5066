"""Writes and reads ``.safetensors`` files that contain tensors, a text, and a SHA-256 of both."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stablessm import record
from stablessm._errors import ArgumentError

_EXPECTED = "a whole .safetensors file"
_SEALED = "sealed"
"""The entry of a file's metadata with the text and the SHA-256."""


def as_tensor(value: Any, **options: Any) -> Tensor:
    """Convert a value as ``torch.as_tensor`` does, including arrays that PyTorch cannot share: arrays with negative
    strides, in another byte order, read-only, or at an odd address, where PyTorch's vector instructions crash.

    >>> as_tensor(np.arange(3.0)[::-1])
    tensor([2., 1., 0.], dtype=torch.float64)
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "fciub":
        value = np.require(value, value.dtype.newbyteorder("="), ("C", "A", "W"))
    return torch.as_tensor(value, **options)


def padded(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Pad a tensor with zeros at the end of every axis to the given shape.

    >>> padded(torch.ones(1, 2), (2, 3)).tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    gaps = [n - m for n, m in zip(shape, tensor.shape, strict=True)]
    return functional.pad(tensor, [side for gap in reversed(gaps) for side in (0, gap)])


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors on the CPU that are contiguous and share no memory, as safetensors requires."""
    return {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def save(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], content: str = "") -> str:
    """Write tensors and the text ``content`` to a ``.safetensors`` file, together with a SHA-256 of both; return this
    SHA-256. The tensors must be as :func:`packed` returns them.
    """
    from safetensors.torch import save_file

    seal = digest(content, tensors)
    with record.atomic(path) as temporary:
        # one entry, because safetensors writes several in any order, and equal tensors must give equal files
        save_file(dict(tensors), temporary, metadata={_SEALED: json.dumps({"content": content, "sha256": seal})})
    return seal


def load(path: str | os.PathLike[str], expected: str = _EXPECTED) -> tuple[str, dict[str, Tensor], str | None]:
    """Return the text, the tensors and the SHA-256 of a file that :func:`save` wrote.

    For a file of another origin, the text is empty and the SHA-256 is None. ``expected`` describes the file for error
    messages.
    """
    with _opened(path, expected) as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        text, seal = _unsealed(metadata)
        if seal is not None and digest(text, tensors) != seal:
            raise ValueError("its content does not have its checksum")
    return text, tensors, seal


@contextmanager
def _opened(path: str | os.PathLike[str], expected: str) -> Iterator[Any]:
    from safetensors import safe_open

    with record.reading(path, expected):
        with Path(path).open("rb"):  # safetensors says less about a file that cannot be opened
            pass
        with safe_open(path, framework="pt") as file:
            yield file


def header(path: str | os.PathLike[str], expected: str = _EXPECTED) -> tuple[dict[str, tuple[int, ...]], str | None]:
    """Return the shapes of the tensors in a ``.safetensors`` file, and the SHA-256 that :func:`save` stored in the file
    (or None), without reading the tensors.

    ``expected`` describes the file for error messages.
    """
    with _opened(path, expected) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
        return shapes, _unsealed(file.metadata())[1]


def require_sizes(folder: Path, *, fewest: int = 1) -> None:
    """Raise an error if ``config.json`` in a model folder states larger sizes than the tensors in its ``.safetensors``
    files allow.

    The number of layers may be at most the number of tensors, or at most ``fewest`` if ``fewest`` is larger. No state
    size or width may be larger than the number of entries of the largest tensor. Without this check, a folder from an
    unknown source could make this process allocate any amount of memory.
    """
    config, files = folder / "config.json", sorted(folder.glob("*.safetensors"))
    if not config.is_file() or not files:
        return
    shapes = [shape for path in files for shape in header(path)[0].values()]
    layers, width = max(len(shapes), fewest), max(map(math.prod, shapes), default=0)
    limits = dict.fromkeys(("n_layers", "num_hidden_layers"), layers)
    limits |= dict.fromkeys(("d_model", "d_state", "hidden_size", "state_size"), width)
    for name, size in record.read_json(config).items():
        if name in limits and isinstance(size, int) and size > limits[name]:
            held = f"the weights are {len(shapes)} tensors of at most {width} numbers"
            raise ArgumentError(f"{name} in {config}", f"at most {limits[name]}, since {held}", size)


def _unsealed(metadata: Mapping[str, str] | None) -> tuple[str, str | None]:
    """Return the text and the SHA-256 that :func:`save` stored in a file's metadata."""
    given = metadata or {}
    if (text := record.sealed(given, _SEALED, r'\{"content": .*')) is not None:
        found = json.loads(text)
        return found["content"], found["sha256"]
    return given.get("content", given.get("stablessm", "")), given.get("sha256")  # as in older files


def digest(content: str, tensors: Mapping[str, Tensor]) -> str:
    """Compute the SHA-256 of a text and of all tensors, with their names, shapes and dtypes."""
    found = hashlib.sha256(content.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
