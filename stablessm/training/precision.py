"""Precision of float32 matrix products on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tensor_float32(on: bool) -> Iterator[None]:
    """Allow TF32 (10 bits of mantissa, as in half precision) for float32 matrix products in the block, if ``on``.

    >>> with tensor_float32(True):
    ...     torch.get_float32_matmul_precision()
    'high'
    """
    if not on:  # the getter raises if the precision was set by torch.backends.cuda.matmul.fp32_precision
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
