"""Triton's interpreter, made quick enough for a test run.

It applies the combine function of a scan or reduction element by element, which takes seconds for one tile. Row by
row is the same arithmetic in the same order.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _row(op: Any, tensors: tuple[Any, ...], i: int) -> tuple[Any, ...]:
    return tuple(op.to_tensor(np.ascontiguousarray(tensor.handle.data[i]), tensor.dtype) for tensor in tensors)


def _running(op: Any, tensors: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    assert op.axis == 0
    rows = [_row(op, tensors, 0)]
    for i in range(1, tensors[0].handle.data.shape[0]):
        combined = op.combine_fn.fn(*rows[-1], *_row(op, tensors, i))
        rows.append(combined if isinstance(combined, tuple) else (combined,))
    return rows


def _scan(op: Any, tensors: tuple[Any, ...]) -> list[Any]:
    columns = zip(*_running(op, tensors), strict=True)
    return [op.to_tensor(np.stack([part.handle.data for part in column]), column[0].dtype) for column in columns]


def _reduce(op: Any, tensors: tuple[Any, ...]) -> list[Any]:
    assert op.keep_dims
    return [op.to_tensor(part.handle.data[None], part.dtype) for part in _running(op, tensors)[-1]]


def speed_up() -> None:
    from triton.runtime import interpreter

    interpreter.ScanOps.generic_scan = _scan
    interpreter.ReduceOps.generic_reduce = _reduce
