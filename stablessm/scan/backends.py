"""Which code runs the scan: a table of backends, what each needs, and the choice ``auto`` makes."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from types import ModuleType

import torch

from stablessm._errors import ArgumentError, BackendUnavailableError

NAMES = ("reference", "numba", "triton")
"""Every backend, by name."""

_DEVICES = {"numba": "cpu", "triton": "cuda"}
_PACKAGES = {"numba": "llvmlite", "triton": "triton"}
_REMEDY = {"numba": "pip install llvmlite", "triton": "pip install 'stablessm[gpu]'"}


def _missing(name: str) -> str | None:
    package = _PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        return f"{package} is not installed ({_REMEDY[name]})"
    return None


_REASONS = {name: _missing(name) for name in NAMES}  # once, at import: torch.compile cannot trace the question


def why_not(name: str) -> str | None:
    """Why a backend cannot be loaded here, or None if it can.

    >>> why_not("reference") is None
    True
    """
    if name not in NAMES:
        raise ArgumentError("backend", f"one of {', '.join(map(repr, NAMES))}", repr(name))
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
