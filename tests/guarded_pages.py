"""Arrays that lie against pages which must not be touched, on Linux: an access outside kills the process.

Programs that use them run in a process of their own (:func:`run`).
"""

from __future__ import annotations

import ctypes
import math
import os
from pathlib import Path
from typing import Any

import fresh_process
import torch
from torch import Tensor

PAGE = 4096
SIDES = ("nothing before the beginning", "nothing after the end")
at_the_end = False
"""Whether arrays end at a forbidden page, unaligned as their size wants it; otherwise they begin behind one."""


def empty(*shape: Any, dtype: torch.dtype, device: None = None) -> Tensor:
    """As ``torch.empty``."""
    shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    memory = (ctypes.c_char * (math.prod(shape) * dtype.itemsize)).from_address(
        _place(math.prod(shape) * dtype.itemsize)
    )
    return torch.frombuffer(memory, dtype=dtype).view(*shape)


def zeros(*shape: Any, dtype: torch.dtype) -> Tensor:
    """As ``torch.zeros``."""
    return empty(*shape, dtype=dtype).zero_()


def guarded(tensor: Tensor) -> Tensor:
    """The same numbers with the same strides, and no element between the last of them and the forbidden page."""
    if not tensor.numel():
        return tensor
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    copy = empty(extent, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
    if written_apart(tensor):
        return copy.copy_(tensor)
    places = tuple(slice(None) if stride else slice(1) for stride in tensor.stride())
    copy[places].copy_(tensor[places])
    return copy


def written_apart(tensor: Tensor) -> bool:
    """Whether every element has a place of its own."""
    return all(size == 1 or stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def run(program: str, seed: int = 0, **environment: str) -> None:
    """Run a program, which prints SIDES, in a process of its own."""
    tests = Path(__file__).parent
    paths = os.pathsep.join([str(tests), str(tests.parent)])
    variables = os.environ | {"PYTHONPATH": paths} | environment
    ran = fresh_process.run(f"import sys; sys.argv = ['-c', '{seed}']\n{program}", variables)
    assert (ran.returncode, ran.stdout.splitlines()) == (0, list(SIDES)), (
        ran.returncode,
        ran.stdout,
        ran.stderr[-2000:],
    )


def _place(size: int) -> int:
    """The address of so many bytes of memory of their own."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    inside = -(-size // PAGE) * PAGE
    region = libc.mmap(None, inside + 2 * PAGE, 0, 0x22, -1, 0)
    libc.mprotect(region + PAGE, inside, 3)
    return region + PAGE + (inside - size if at_the_end else 0)
