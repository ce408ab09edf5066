"""Triton's interpreter, made quick enough for a test run.

It applies the combine function of a scan or reduction element by element, which takes seconds for one tile. Here a few
applications to half a tile do it, in a tree, as a GPU has it. And it prepares the language anew in every call of a
function by a kernel; once a kernel is enough. What follows from a type is worked out once, not for every tensor.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


def _combined(op: Any, tensors: tuple[Any, ...], first: list[np.ndarray], second: list[np.ndarray]) -> list[np.ndarray]:
    parts = [
        op.to_tensor(np.ascontiguousarray(data), tensor.dtype)
        for side in (first, second)
        for data, tensor in zip(side, tensors, strict=True)
    ]
    combined = op.combine_fn.fn(*parts)
    return [part.handle.data for part in (combined if isinstance(combined, tuple) else (combined,))]


def _packed(op: Any, tensors: tuple[Any, ...], columns: list[np.ndarray]) -> list[Any]:
    return [op.to_tensor(data, tensor.dtype) for data, tensor in zip(columns, tensors, strict=True)]


def _scan(op: Any, tensors: tuple[Any, ...]) -> list[Any]:
    """Of each two neighboring blocks of rows, the last row of the first is put before every row of the second."""
    assert op.axis == 0
    columns = [tensor.handle.data.copy() for tensor in tensors]
    rows, *others = columns[0].shape
    size = 1
    while size < rows:
        blocks = [data.reshape(-1, 2, size, *others) for data in columns]
        before = [np.broadcast_to(block[:, 0, -1:], block[:, 1].shape).reshape(-1, *others) for block in blocks]
        after = [block[:, 1].reshape(-1, *others) for block in blocks]
        for block, data in zip(blocks, _combined(op, tensors, before, after), strict=True):
            block[:, 1] = data.reshape(block[:, 1].shape)
        size *= 2
    return _packed(op, tensors, columns)


def _reduce(op: Any, tensors: tuple[Any, ...]) -> list[Any]:
    """Neighboring rows are combined until one is left."""
    assert op.axis == 0
    assert op.keep_dims
    columns = [tensor.handle.data for tensor in tensors]
    while len(columns[0]) > 1:
        columns = _combined(op, tensors, [data[::2] for data in columns], [data[1::2] for data in columns])
    return _packed(op, tensors, columns)


def _types_once() -> None:
    from triton.language import core
    from triton.runtime import interpreter

    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    make_type, make_tensor = core.block_type.__init__, core.tensor.__init__
    numpy_type = functools.cache(interpreter._get_np_dtype)

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = (size.value if isinstance(size, core.constexpr) else size for size in shape)
        key = (element_ty.name, *sizes)
        if key not in known or element_ty.is_ptr():
            make_type(self, element_ty, shape)
            known[key] = dict(self.__dict__)
        else:
            self.__dict__.update(known[key])

    def tensor(self: Any, handle: Any, type: Any) -> None:
        if (facts := type.__dict__.get("of_tensors")) is None:
            make_tensor(self, handle, type)
            facts = type.__dict__["of_tensors"] = {name: self.__dict__[name] for name in ("shape", "numel", "dtype")}
        self.__dict__.update(facts, handle=handle, type=type)

    def of_numpy(type: Any) -> Any:
        element = type.scalar
        return np.dtype(np.uint64) if element.is_ptr() else numpy_type(element)

    core.block_type.__init__, core.tensor.__init__ = block_type, tensor
    interpreter._get_np_dtype = of_numpy


def speed_up() -> None:
    from triton.runtime import interpreter

    _types_once()

    prepared: set[int] = set()  # modules whose functions the running kernel has called
    launch = interpreter.GridExecutor.__call__

    def run(executor: Any, *arguments: Any, **options: Any) -> None:
        prepared.clear()
        launch(executor, *arguments, **options)

    def call(function: Any, *arguments: Any, **options: Any) -> Any:
        module = id(function.fn.__globals__)
        if module not in prepared:
            prepared.add(module)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*arguments, **options)

    interpreter.GridExecutor.__call__ = run
    interpreter.InterpretedFunction.__call__ = call
    interpreter.ScanOps.generic_scan = _scan
    interpreter.ReduceOps.generic_reduce = _reduce
