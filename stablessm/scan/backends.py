"""Which code runs the scan: a table of backends, what each needs, and the choice ``auto`` makes."""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType

import torch

from stablessm._errors import ArgumentError, BackendUnavailableError
from stablessm._optional import why_missing

NAMES = ("reference", "numba", "triton")
"""Every backend, by name."""

_DEVICES = {"numba": "cpu", "triton": "cuda"}
_PACKAGES = {"numba": "llvmlite", "triton": "triton"}
_REASONS: dict[str, str | None] = {"reference": None}


@torch.compiler.assume_constant_result  # a package's import cannot be traced
def why_not(name: str) -> str | None:
    """Return why a backend cannot be loaded here, or None if it can. The first call imports the package it needs.

    >>> why_not("reference") is None
    True
    """
    if name not in NAMES:
        raise ArgumentError("backend", f"one of {', '.join(map(repr, NAMES))}", repr(name))
    if name not in _REASONS:
        _REASONS[name] = why_missing(_PACKAGES[name])
    return _REASONS[name]


@functools.cache
def load(name: str) -> ModuleType:
    """The backend's module, with ``forward`` and ``backward``."""
    return importlib.import_module(f"stablessm.scan.{name}_backend")


def resolve(backend: str, device: torch.device) -> str:
    """The backend that will run on ``device``: the one asked for, or the choice of ``auto``.

    >>> resolve("reference", torch.device("cpu"))
    'reference'
    """
    if backend == "auto":
        fast = next((name for name, kind in _DEVICES.items() if kind == device.type), "reference")
        return fast if why_not(fast) is None else "reference"
    if backend not in NAMES:
        raise ArgumentError("backend", f"'auto' or one of {', '.join(map(repr, NAMES))}", repr(backend))
    if (reason := why_not(backend)) is not None:
        raise BackendUnavailableError(f"backend: {backend!r} was asked for, but {reason}")
    needed = _DEVICES.get(backend, device.type)
    if backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1":
        needed = device.type  # the interpreter runs anywhere
    if device.type != needed:
        raise ArgumentError("backend", f"one that runs on {device.type} tensors", f"{backend!r}, which needs {needed}")
    return backend
