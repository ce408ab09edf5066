"""Offsets beyond 2³¹: rows so far apart that 32 bits would wrap around, though no stride needs more.

The arrays are memory of which a few pages are touched, and no others taken. Triton's interpreter computes in the widths
that the kernels say, and wraps around where they do.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from scan_cases import chained, draw_decay
from torch import Tensor

pytest.importorskip("triton")

from stablessm.scan.protocol import Recurrence
from stablessm.scan.triton import linear

NUMBERS = 2**32
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE, which the module has from Python 3.13: a page is taken when it is touched."""


def far_apart(tensor: Tensor, dimension: int) -> Tensor:
    """The same numbers, spread in one dimension over NUMBERS places."""
    strides, step = [0, 0, 0], 1
    for other in sorted({0, 1, 2} - {dimension}):
        strides[other], step = step, step * tensor.shape[other]
    strides[dimension] = NUMBERS // tensor.shape[dimension]
    pages = mmap.mmap(-1, NUMBERS * tensor.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.frombuffer(pages, dtype=tensor.dtype).as_strided(tensor.shape, strides).copy_(tensor)


@pytest.fixture(params=[False, True], ids=["walk", "chain"])
def _form(request: pytest.FixtureRequest) -> Iterator[None]:
    """One program for all of time, or a chain of tiles."""
    with chained(rows=64) if request.param else nullcontext():
        yield


@pytest.mark.usefixtures("_form")
@pytest.mark.skipif(torch.cuda.is_available(), reason="looks at the arithmetic in Triton's interpreter")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "dimension"),
    [((4, 3, 2), 0), ((2, 4, 3), 1), ((1, 128, 2), 1), ((2, 3, 4), 2)],  # 128 steps are two tiles of the chain
    ids=str,
)
def test_scan(shape: tuple[int, int, int], dimension: int, reverse: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    near = [draw_decay(shape, torch.bfloat16, generator) for _ in range(3)]
    initial = draw_decay((shape[0], shape[2]), torch.bfloat16, generator)
    decay, drive, grad = (far_apart(array, dimension) for array in near)
    expected = linear.forward(Recurrence(near[0], initial, None, reverse), near[1])
    states = far_apart(torch.zeros_like(expected), dimension)
    linear.forward_into(states, Recurrence(decay, initial, None, reverse), drive)
    assert torch.equal(states, expected)
    ours = linear.backward(Recurrence(decay, initial, None, reverse), states, grad)
    theirs = linear.backward(Recurrence(near[0], initial, None, reverse), expected, near[2])
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
