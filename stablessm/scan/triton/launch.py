"""Launching a Triton kernel with little work on the host.

Triton looks at every argument of every call to choose among compiled forms, which takes longer than a small scan. The
kernels here take their pointers first, then numbers on whose values no compiled form depends. So all but the pointers
is decided once, and a call finds its compiled form by what they point to and their alignment.

The call that this takes is internal to Triton. It is used in releases with which it has been tested; in any other
release Triton's own launch runs, which gives the same results more slowly.
"""

from __future__ import annotations

from typing import Any, final

import torch
import triton
from torch import Tensor

from stablessm.scan.dispatch import raw_stream

OLDEST, NEWEST = (3, 6), (3, 9)
"""The releases of Triton whose internal launch is known."""


def _knows(version: str) -> bool:
    return OLDEST <= tuple(int(part) for part in version.split(".")[:2]) <= NEWEST


_direct = _knows(triton.__version__)


@final
class Launch:
    """A kernel with all but its pointers: ``launch(*tensors)`` on their device.

    Args:
        programs: how many.
        numbers: the arguments between the pointers and the constants.
        constants: the ``tl.constexpr`` arguments, in the kernel's order.
        offsets: bytes from the start of each tensor to where its pointer points; none by default.
    """

    __slots__ = ("_compiled", "_constants", "_kernel", "_numbers", "_offsets", "_programs", "_rest", "_warps")

    def __init__(
        self,
        kernel: Any,
        programs: int,
        numbers: tuple[int, ...],
        constants: dict[str, Any],
        *,
        offsets: tuple[int, ...] = (),
        warps: int,
    ) -> None:
        self._kernel, self._programs, self._warps = kernel, programs, warps
        self._numbers, self._constants, self._offsets = numbers, constants, offsets
        self._rest = (*numbers, *constants.values())
        self._compiled: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}

    def __call__(self, *tensors: Tensor) -> None:
        """Launch."""
        device = tensors[0].device
        if device.type != "cuda":  # the interpreter
            self._launch(tensors)
            return
        index = device.index
        if index != torch.cuda.current_device():  # where Triton launches
            with torch.cuda.device(device):
                self(*tensors)
            return
        if not _direct:
            self._launch(tensors)
            return
        pointers = [tensor.data_ptr() for tensor in tensors]
        if self._offsets:
            pointers = [pointer + offset for pointer, offset in zip(pointers, self._offsets, strict=True)]
        key = (index, *[tensor.dtype for tensor in tensors], *[not pointer % 16 for pointer in pointers])
        run, function, metadata = self._compiled.get(key) or self._compile(key, tensors)
        run(self._programs, 1, 1, raw_stream(index), function, metadata, None, None, None, *pointers, *self._rest)

    def _launch(self, tensors: tuple[Tensor, ...]) -> None:
        """Launch as Triton documents it."""
        self._kernel[(self._programs,)](*self._places(tensors), *self._numbers, **self._options())

    def compile(self, tensors: tuple[Tensor, ...]) -> Any:
        """What Triton makes of the kernel for pointers like these."""
        return self._kernel.warmup(*self._places(tensors), *self._numbers, grid=(self._programs,), **self._options())

    def _compile(self, key: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> tuple[Any, Any, Any]:
        made = self.compile(tensors)
        self._compiled[key] = made.run, made.function, made.packed_metadata  # .run loads it, so it comes first
        return self._compiled[key]

    def _options(self) -> dict[str, Any]:
        return {**self._constants, "num_warps": self._warps}

    def _places(self, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        """Real tensors that begin where the pointers point."""
        real = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
        offsets = self._offsets or (0,) * len(real)
        return [
            tensor.as_strided((1,), (1,), tensor.storage_offset() + offset // tensor.element_size())
            if offset
            else tensor
            for tensor, offset in zip(real, offsets, strict=True)
        ]
