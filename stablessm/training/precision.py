"""Context managers for the precision of float32 matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Return a context in which float32 matrix products have the precision that PyTorch calls ``name``, such as
    ``high``.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def tensor_float32(on: bool) -> AbstractContextManager[None]:
    """Return a context in which, if ``on``, float32 matrix products on a GPU may use TF32 (a mantissa of 10 bits).

    >>> with tensor_float32(True):
    ...     torch.get_float32_matmul_precision()
    'high'
    """
    # without TF32 nothing is read: that raises if torch.backends.cuda.matmul.fp32_precision set the precision
    return matmul_precision("high") if on else nullcontext()
