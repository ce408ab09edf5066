"""Launches Triton kernels by an internal function of Triton, which takes less CPU time than the public interface.

At every call, Triton inspects all arguments to choose a compiled version of the kernel, which takes longer than a small
scan. The kernels of this library take their pointers first, then numbers whose values do not affect compilation.
Therefore all arguments except the pointers are processed once, and a call looks up the compiled version by the device,
dtypes and alignment of its tensors.

The fast call uses a launch function that is internal to Triton, and only in the releases of Triton with which it has
been tested. With any other release, Triton's public launch is used, which is slower and gives the same results.
"""

from __future__ import annotations

from typing import Any, final

import torch
import triton
from torch import Tensor

from stablessm.scan.dispatch import current_device, raw_stream
from stablessm.scan.triton import ahead

OLDEST, NEWEST = (3, 6), (3, 9)
"""Oldest and newest release of Triton for which the internal launch function has been tested."""


def _knows(version: str) -> bool:
    return OLDEST <= tuple(int(part) for part in version.split(".")[:2]) <= NEWEST


_direct = _knows(triton.__version__)


@final
class Launch:
    """A Triton kernel with fixed arguments, except for its pointers; ``launch(*tensors)`` runs it on these tensors.

    Args:
        kernel: Function decorated with ``triton.jit``.
        programs: Number of programs of the grid.
        numbers: Values of the arguments between the pointers and the constants.
        constants: Values of the ``tl.constexpr`` arguments by name, in the order of the kernel's signature.
        offsets: Distance in bytes from the start of each tensor to the address that is passed (default: 0).
        warps: Number of warps per program.
        registers: Largest number of registers per thread (default: chosen by the compiler).
    """

    __slots__ = ("_compiled", "_constants", "_kernel", "_limit", "_numbers", "_offsets", "_programs", "_rest", "_warps")

    def __init__(
        self,
        kernel: Any,
        programs: int,
        numbers: tuple[float, ...],
        constants: dict[str, Any],
        *,
        offsets: tuple[int, ...] = (),
        warps: int,
        registers: int | None = None,
    ) -> None:
        self._kernel, self._programs, self._warps = kernel, programs, warps
        self._numbers, self._constants, self._offsets = numbers, constants, offsets
        self._limit = {} if registers is None else {"maxnreg": registers}
        self._rest = (*numbers, *constants.values())
        self._compiled: dict[tuple[Any, ...], tuple[Any, Any, Any]] = {}

    def __call__(self, *tensors: Tensor) -> None:
        """Launch the kernel with pointers to these tensors."""
        device = tensors[0].device
        if device.type != "cuda":
            if device.type == "meta":
                self._record(tensors)
            else:  # Triton's interpreter runs on the CPU.
                self._launch(tensors)
            return
        index = device.index
        if index != current_device():  # Triton launches on the current device.
            with torch.cuda.device(device):
                self(*tensors)
            return
        if not _direct:
            self._launch(tensors)
            return
        pointers = [tensor.data_ptr() for tensor in tensors]
        if self._offsets:
            pointers = [pointer + offset for pointer, offset in zip(pointers, self._offsets, strict=True)]
        key: tuple[Any, ...] = (index, *[tensor.dtype for tensor in tensors])
        bits = 0
        for pointer in pointers:
            bits |= pointer
        if bits & 15:
            key += (*[not pointer & 15 for pointer in pointers],)
        run, function, metadata = self._compiled.get(key) or self._compile(key, tensors)
        run(self._programs, 1, 1, raw_stream(index), function, metadata, None, None, None, *pointers, *self._rest)

    def _launch(self, tensors: tuple[Tensor, ...]) -> None:
        """Launch the kernel through Triton's public interface."""
        self._kernel[(self._programs,)](*self._places(tensors), *self._numbers, **self._options())

    def compile(self, tensors: tuple[Tensor, ...]) -> Any:
        """Compile the kernel for the dtypes and alignment of these tensors, and return the compiled kernel."""
        return self._kernel.warmup(*self._places(tensors), *self._numbers, grid=(self._programs,), **self._options())

    def _record(self, tensors: tuple[Tensor, ...]) -> None:
        """Record a launch with meta tensors instead of running the kernel, so that :mod:`.ahead` can compile the
        kernel.

        The storages of the tensors are assumed to be aligned.
        """
        launches = ahead.recorded.get()
        if launches is None:
            raise RuntimeError("a kernel cannot be launched with meta tensors")
        offsets = self._offsets or (0,) * len(tensors)
        places = [
            tensor.storage_offset() * tensor.element_size() + offset
            for tensor, offset in zip(tensors, offsets, strict=True)
        ]
        aligned = [not place & 15 for place in places]
        key = (*[tensor.dtype for tensor in tensors], *([] if all(aligned) else aligned))
        launches.append((self._signature(key), lambda: self._build(tensors)))

    def _signature(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._kernel, self._warps, *self._constants.values(), *key

    def _compile(self, key: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> tuple[Any, Any, Any]:
        self._compiled[key] = ahead.compiled(self._signature(key[1:]), lambda: self._build(tensors), tensors[0].device)
        return self._compiled[key]

    def _build(self, tensors: tuple[Tensor, ...]) -> tuple[Any, Any, Any]:
        """Return the internal launch function, the compiled kernel and its metadata.

        The kernel is compiled for the dtypes and alignment of ``tensors``. Reading the attribute ``run`` of the
        compiled kernel compiles the launch function.
        """
        made = self.compile(tensors)
        return made.run, made.function, made.packed_metadata

    def _options(self) -> dict[str, Any]:
        return {**self._constants, "num_warps": self._warps, **self._limit}

    def _places(self, tensors: tuple[Tensor, ...]) -> list[Tensor]:
        """Return views of the given tensors, whose addresses are passed to the kernel.

        Each view starts ``offsets`` bytes after its tensor.
        """
        real = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
        offsets = self._offsets or (0,) * len(real)
        return [
            tensor.as_strided((1,), (1,), tensor.storage_offset() + offset // tensor.element_size())
            if offset
            else tensor
            for tensor, offset in zip(real, offsets, strict=True)
        ]
