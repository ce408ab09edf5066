"""The GPU scan touches nothing outside its arrays: each lies against a page that must not be touched.

An access there kills the process, so this runs in one of its own, in Triton's interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, math
import numpy as np, torch
import triton_interpreter
from scan_cases import forget_plans
from stablessm.scan.protocol import Recurrence
from stablessm.scan.triton import linear

triton_interpreter.speed_up()
PAGE, libc = 4096, ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def empty(*shape, dtype, device=None):
    shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    size = math.prod(shape) * dtype.itemsize
    inside = -(-size // PAGE) * PAGE
    region = libc.mmap(None, inside + 2 * PAGE, 0, 0x22, -1, 0)
    libc.mprotect(region + PAGE, inside, 3)
    start = region + PAGE + (inside - size if at_the_end else 0)
    memory = (ctypes.c_char * size).from_address(start)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)


def guarded(tensor):
    return empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


class Torch:
    empty = staticmethod(empty)

    def __getattr__(self, name):
        return getattr(torch, name)


def check(shape, dtype, per_step, initial, reverse, cut):
    linear.SHORT = 0 if cut else 2048
    forget_plans()
    x = guarded(torch.randn(shape, dtype=dtype))
    a = guarded(torch.rand(shape if per_step else (1, 1, shape[2])).to(dtype))
    start = guarded(torch.randn(shape[0], shape[2], dtype=dtype)) if initial else None
    recurrence = Recurrence(a, start, None, reverse)
    states = linear.forward(recurrence, x)
    linear.backward(recurrence, states, x)
    plan = linear._Plan(*map(linear._layout, (a, x, states)), None, initial, reverse)
    made = linear._cut(plan, linear.WHOLE)
    assert (made.chunks > 1) == cut


linear.torch = Torch()
for at_the_end in (False, True):
    check((2, 96, 64), torch.float32, False, False, False, False)
    check((2, 96, 64), torch.float32, True, True, True, False)
    check((1, 300, 33), torch.float32, True, True, False, True)
    check((2, 300, 16), torch.complex64, False, True, False, True)
    check((2, 75, 16), torch.complex64, True, False, True, False)
    print("nothing after the end" if at_the_end else "nothing before the beginning", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected by Linux calls")
def test_nothing_outside_is_touched() -> None:
    tests = Path(__file__).parents[2]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert ran.stdout.splitlines() == ["nothing before the beginning", "nothing after the end"], ran.stderr[-2000:]
