"""The table of scan backends: what each requires, which backend ``auto`` chooses, and old names of backends."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from stablessm import _fork, _renamed
from stablessm._errors import ArgumentError, BackendUnavailableError, quoted, unknown_name
from stablessm._optional import why_missing
from stablessm.scan.dispatch import constant_result
from stablessm.scan.protocol import Backend


def _reference() -> Backend:
    from stablessm.scan.reference import linear, selective, ssm

    return Backend(linear, ssm, selective)


def _cpu() -> Backend:
    from stablessm.scan.cpu import linear, selective, ssm

    return Backend(linear, ssm, selective)


def _triton() -> Backend:
    from stablessm.scan.triton import selective
    from stablessm.scan.triton.operators import SSM, Linear

    return Backend(Linear(), SSM(), selective)


class _Row(NamedTuple):
    load: Callable[[], Backend]
    device: str | None = None
    """The type of device that the backend runs on; None for every type."""
    package: str | None = None
    """The package that the backend requires."""


_TABLE = {
    "reference": _Row(_reference),
    "cpu": _Row(_cpu, "cpu", "llvmlite"),
    "triton": _Row(_triton, "cuda", "triton"),
}
_OLD_NAMES = {"numba": "cpu"}
_reasons: dict[str, str | None] = {}

NAMES = tuple(_TABLE)
"""The names of all backends."""


@constant_result  # torch.compile cannot trace a warning
def current_name(name: str) -> str:
    """Return the current name of a backend. If ``name`` is an old name of the backend, issue a DeprecationWarning.

    >>> current_name("cpu")
    'cpu'
    """
    if name not in _OLD_NAMES:
        return name
    new = _OLD_NAMES[name]
    message = f"backend: {name!r} is the old name of {new!r} and will be removed; use {new!r}"
    _renamed.warn(message)
    return new


def why_not(name: str) -> str | None:
    """Return the reason why a backend cannot be loaded here, or None if it can be loaded.

    The first call for a backend imports the package that the backend requires.

    >>> why_not("reference") is None
    True
    """
    if not isinstance(name, str) or current_name(name) not in _TABLE:
        raise unknown_name("backend", NAMES, name, f"one of {', '.join(map(repr, NAMES))}")
    name = current_name(name)
    return _why_not(name)


@constant_result  # torch.compile cannot trace the import of a package
def _why_not(name: str) -> str | None:
    package = _TABLE[name].package
    if name not in _reasons:
        with _fork.compiling:  # a child process forked during an import would wait for its lock forever
            _reasons[name] = None if package is None else why_missing(package)
    return _reasons[name]


def load(name: str) -> Backend:
    """Import a scan backend by name, and return its operators as a :class:`Backend`.

    Old names are accepted too, because programs can contain old names if an earlier version exported the programs.
    """
    return _load(name if name in _TABLE else current_name(name))


@functools.cache
def _load(name: str) -> Backend:
    with _fork.compiling:
        return _TABLE[name].load()


@functools.cache
def cpu_kernels(operator: str) -> Any:
    """Return a module of the CPU backend that has no counterpart in other backends; None without llvmlite."""
    if _why_not("cpu") is not None:
        return None
    with _fork.compiling:
        return importlib.import_module(f"stablessm.scan.cpu.{operator}")


def resolve(backend: str, device: torch.device) -> str:
    """Return the name of the backend that runs on ``device``: ``backend`` itself or, if ``backend`` is "auto", the
    default backend of the device.

    >>> resolve("reference", torch.device("cpu"))
    'reference'
    """
    if not isinstance(backend, str):
        raise ArgumentError("backend", f"'auto' or one of {', '.join(map(repr, NAMES))}", quoted(backend))
    if not isinstance(device, torch.device):
        raise ArgumentError("device", "a torch.device", quoted(device))
    if backend == "auto":
        fast = next((name for name, row in _TABLE.items() if row.device == device.type), "reference")
        return fast if _why_not(fast) is None else "reference"
    if backend not in _TABLE:
        backend = current_name(backend)
    if backend not in _TABLE:
        raise unknown_name("backend", NAMES, backend, f"'auto' or one of {', '.join(map(repr, NAMES))}")
    if (reason := _why_not(backend)) is not None:
        raise BackendUnavailableError(f"backend: {backend!r} was requested, but {reason}")
    needed = _TABLE[backend].device or device.type
    if backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1":
        needed = device.type  # Triton's interpreter runs on any device
    if device.type != needed:
        raise ArgumentError("backend", f"a backend for {device.type} tensors", f"{backend!r}, which requires {needed}")
    return backend
