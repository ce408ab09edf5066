"""Compiles all Triton kernels of an operation in parallel when the first of them is needed.

Triton compiles each kernel when it is first launched, one after the other, which takes seconds for an operation with
many kernels. Here, the first launch that requires a compilation runs the whole operation, forward and backward, with
``meta`` tensors, which have a shape but no memory. The launches of this run are recorded, and threads compile their
kernels. Triton releases Python's global interpreter lock (GIL) while it compiles.
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
"""While an operation is recorded: its launches, each as a signature and a function that compiles the kernel."""
_started: dict[Any, Future[None]] = {}
"""The kernels whose compilation has begun, by signature."""
_operation: Callable[[], object] | None = None
"""Function that runs the current operation with meta tensors. Another thread may replace it by its own operation; then
fewer kernels are compiled in advance."""


def running(operation: Callable[[], object] | None) -> None:
    """Tell this module which operation is about to run.

    ``operation`` is a function that runs the operation on meta tensors, or None if no operation is about to run.
    """
    global _operation
    _operation = operation


def meta(tensor: Any) -> Any:
    """Return a tensor on the meta device with the same shape, strides and dtype; return any other value unchanged."""
    if not isinstance(tensor, Tensor):
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def compiled(signature: Any, compile: Callable[[], Any], device: torch.device) -> Any:
    """Return the compiled kernel; first start compiling all other kernels of the current operation in parallel.

    If another thread is compiling the kernel, wait for it.

    Args:
        signature: everything that the compiled kernel depends on.
        compile: function that compiles the kernel or finds it in Triton's cache.
        device: the GPU for which the kernel is compiled.
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

    The call ``operation()`` runs the operation on meta tensors, which records its kernels. If the operation fails with
    meta tensors, only the kernels before the failure are compiled here; the others are compiled when they are launched,
    and the operation raises its error when it runs with its own tensors.
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
