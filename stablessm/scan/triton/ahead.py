"""Compiles the kernels of a whole operation in parallel, when the first of them is needed.

Triton compiles a kernel when it is first launched, one after the other, which takes seconds for an operation of many
kernels. Here the first launch that has to be compiled runs the operation once more, forward and backward, with tensors
that have shapes and no memory (``meta``). Their launches are recorded, and threads compile all of them. Triton releases
Python's lock while it compiles.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

THREADS = 16
"""Largest number of kernels that are compiled at the same time."""

recorded: ContextVar[list[tuple[Any, Callable[[], Any]]] | None] = ContextVar("recorded", default=None)
"""While an operation is recorded, its launches: what a compiled kernel depends on, and a function that compiles it."""
_started: dict[Any, Future[None]] = {}
"""The kernels whose compilation has begun, by everything that it depends on."""
_operation: Callable[[], object] | None = None
"""Runs the present operation with meta tensors. Operations of several threads may replace each other's; then fewer
kernels are compiled ahead."""


def running(operation: Callable[[], object] | None) -> None:
    """Set the function that launches all kernels of the present operation with meta tensors; None at its end."""
    global _operation
    _operation = operation


def meta(tensor: Any) -> Any:
    """Return a tensor of the same shape, strides and dtype without memory; other values are returned unchanged."""
    if not isinstance(tensor, Tensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def compiled(signature: Any, compile: Callable[[], Any], device: torch.device) -> Any:
    """Return ``compile()``, after starting the other kernels of the operation; wait if another thread compiles it.

    Args:
        signature: everything that the compiled kernel depends on.
        compile: compiles the kernel, or finds it in Triton's cache.
        device: the GPU that it is compiled for.
    """
    global _operation
    operation, _operation = _operation, None
    if operation is not None and signature not in _started:
        _begin(operation, device)
    if signature in _started:
        _started[signature].result()
    return compile()


def _begin(operation: Callable[[], object], device: torch.device) -> None:
    """Start threads that compile all kernels of an operation.

    If the operation cannot run with meta tensors, nothing is started beyond the point where it fails: its kernels are
    then compiled one by one, and an error of the operation itself is raised where it runs with its own tensors.
    """
    launches: list[tuple[Any, Callable[[], Any]]] = []
    token = recorded.set(launches)
    try:
        with torch.no_grad(), suppress(Exception):
            operation()
    finally:
        recorded.reset(token)

    def work(compile: Callable[[], Any]) -> None:
        with torch.cuda.device(device):
            compile()

    pool = ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1))
    for signature, compile in launches:
        if signature not in _started:
            _started[signature] = pool.submit(work, compile)
    pool.shutdown(wait=False)
