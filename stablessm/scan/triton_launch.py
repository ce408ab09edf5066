"""Launching a Triton kernel with little work on the host.

Triton looks at every argument of every call to choose among compiled forms, which takes longer than a small scan. The
kernels here do not depend on the values of their numbers, so a compiled form is found by what it does depend on:
the kernel, its constants, the types of its pointers and their alignment.
"""

from __future__ import annotations

from typing import Any

import torch

_compiled: dict[Any, Any] = {}


def launch(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any], warps: int
) -> None:
    """``kernel[grid](*arguments, **constants)`` on the device of the first argument."""
    grid, device = (*grid, 1, 1)[:3], arguments[0].device
    if device.type != "cuda":  # the interpreter
        kernel[grid](*arguments, **constants, num_warps=warps)
        return
    if device.index != torch.cuda.current_device():  # where Triton launches
        with torch.cuda.device(device):
            launch(kernel, grid, arguments, constants, warps)
        return
    key: list[Any] = [kernel, device.index, warps, *constants.values()]
    for argument in arguments:
        if type(argument) is int:
            key.append(-(2**31) <= argument < 2**31)
        else:
            key.append(argument.dtype)
            key.append(argument.data_ptr() % 16 == 0)
    compiled = _compiled.get(tuple(key))
    if compiled is None:
        compiled = kernel.warmup(*arguments, grid=grid, **constants, num_warps=warps)
        _compiled[tuple(key)] = compiled
    compiled[grid](*arguments, *constants.values())
