"""A context manager that allows TF32 in the float32 matrix products of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tensor_float32(on: bool) -> Iterator[None]:
    """Return a context in which, if ``on``, float32 matrix products on a GPU may use TF32 (a mantissa of 10 bits).

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
