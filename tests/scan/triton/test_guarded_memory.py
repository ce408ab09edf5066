"""The GPU scan touches nothing outside its arrays, in Triton's interpreter."""

from __future__ import annotations

import sys

import guarded_pages
import pytest

PROGRAM = """
from contextlib import nullcontext

import guarded_pages, torch, triton_interpreter
from guarded_pages import guarded
from scan_cases import chained
from stablessm.scan.protocol import Recurrence
from stablessm.scan.triton import linear

triton_interpreter.speed_up()


class Torch:
    empty = staticmethod(guarded_pages.empty)

    def __getattr__(self, name):
        return getattr(torch, name)


def check(shape, dtype, per_step, initial, reverse, chain):
    x = guarded(torch.randn(shape, dtype=dtype))
    a = guarded(torch.rand(shape if per_step else (1, 1, shape[2])).to(dtype))
    start = guarded(torch.randn(shape[0], shape[2], dtype=dtype)) if initial else None
    recurrence = Recurrence(a, start, None, reverse)
    with chained() if chain else nullcontext():
        states = linear.forward(recurrence, x)
        linear.backward(recurrence, states, x)


linear.torch = Torch()
linear.board = lambda device, words: guarded_pages.zeros(words, dtype=torch.int64)
for guarded_pages.at_the_end, side in enumerate(guarded_pages.SIDES):
    check((2, 64, 64), torch.float32, False, False, False, False)
    check((1, 64, 64), torch.float32, True, True, True, False)
    check((1, 43, 33), torch.float32, True, True, False, True)
    check((2, 43, 8), torch.complex64, False, True, True, True)
    check((2, 43, 16), torch.complex64, True, False, True, False)
    print(side, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected by Linux calls")
def test_nothing_outside_is_touched() -> None:
    guarded_pages.run(PROGRAM, TRITON_INTERPRET="1")
