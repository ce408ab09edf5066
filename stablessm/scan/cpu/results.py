"""Memory for large result tensors: mapped in huge pages, and reused after the tensors are deleted.

By default, glibc returns a block above 32 MB to the system as soon as the block is freed. The next result of that size
then pays for one page fault per 4 KB, which takes several times longer than the scan itself. Here every large result
has a mapping of its own. When the last user of the memory is gone (a tensor, a view, a NumPy array, a tensor that
autograd saved), the mapping becomes idle, and the next result uses this mapping. If the sizes differ, the mapping is
resized, which keeps the pages that both sizes need.

Idle mappings do not raise the peak memory use: before a result uses a mapping of another size, idle mappings of at
least the size of the result are returned to the system. The environment variable ``STABLESSM_POOL`` sets the largest
number of idle megabytes (default: 1024); with 0, PyTorch allocates all results.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from stablessm._errors import ArgumentError, quoted

VARIABLE = "STABLESSM_POOL"
DEFAULT_MEGABYTES = "1024"
LARGE_BYTES = 4 << 20
"""Smallest size of a result that has a memory mapping of its own."""


@final
class Pool:
    """A pool of memory mappings that no tensor uses at the moment, kept so that later results can reuse the memory.

    A lock protects the pool, but no method waits for the lock. If another call holds the lock, memory is mapped and
    freed without the pool. Therefore a call from a signal handler, from a garbage collection or in a forked process
    cannot hang, even if the call that holds the lock was interrupted.

    >>> pool = Pool(limit=8192)
    >>> pool.give_back(pool.take(4096))
    >>> pool.idle_bytes
    4096
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Largest number of idle bytes; 0 turns the pool off."""
        self._idle: list[mmap.mmap] = []  # the mapping that became idle first comes first
        self._lock = threading.Lock()

    @property
    def idle_bytes(self) -> int:
        """Return the total size, in bytes, of the mappings that no tensor uses at the moment."""
        return sum(map(len, self._idle))

    def take(self, size: int) -> mmap.mmap:
        """Return a mapping of ``size`` bytes that no tensor uses, from the pool or newly created.

        The content of the mapping is undefined.
        """
        idle = None
        if self._lock.acquire(blocking=False):
            try:
                idle = self._released(size)
            finally:
                self._lock.release()
        if idle is not None:
            with contextlib.suppress(SystemError, OSError, BufferError):  # not every system can resize a mapping
                if len(idle) != size:
                    idle.resize(size)
                return idle
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(AttributeError, OSError):  # not every system has huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
        return mapping

    def _released(self, size: int) -> mmap.mmap | None:
        """Remove the mapping whose size is closest to ``size`` from the pool and return it; None if the pool is empty.

        Of several equally close mappings, the method returns the mapping that became idle last. The caller changes the
        size of the returned mapping to ``size``. If this requires a change, the oldest other mappings are freed first,
        so that the total memory does not grow.
        """
        if not self._idle:
            return None
        closest = min(reversed(range(len(self._idle))), key=lambda index: abs(len(self._idle[index]) - size))
        rest = self.idle_bytes - size
        mapping = self._idle.pop(closest)
        while len(mapping) != size and self._idle and self.idle_bytes > rest:
            self._idle.pop(0)
        return mapping

    def give_back(self, mapping: mmap.mmap) -> None:
        """Keep a mapping for a later result; if the kept mappings exceed the limit, free the oldest."""
        if self._lock.acquire(blocking=False):
            try:
                self._idle.append(mapping)
                while self.idle_bytes > self.limit:
                    self._idle.pop(0)
            finally:
                self._lock.release()


def _limit() -> int:
    text = os.environ.get(VARIABLE) or DEFAULT_MEGABYTES
    if not text.isdecimal():
        raise ArgumentError(VARIABLE, "a number of megabytes (0: off)", quoted(text))
    return int(text) << 20 if hasattr(mmap, "MAP_ANONYMOUS") else 0  # Windows has no private mappings


pool = Pool(_limit())


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a new tensor with undefined content; large tensors take their memory from the pool."""
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE_BYTES or not pool.limit:
        return torch.empty(shape, dtype=dtype, device="cpu")
    try:
        mapping = pool.take(size)
    except OSError:  # no more memory or mappings: PyTorch's allocator finds some or raises its usual error
        return torch.empty(shape, dtype=dtype, device="cpu")
    user = np.frombuffer(mapping, np.uint8)  # lives as long as the tensor's storage
    weakref.finalize(user, pool.give_back, mapping).atexit = False
    # Not a view of another tensor: autograd would refuse to change a view in place.
    return torch.empty(0, dtype=dtype, device="cpu").set_(torch.from_numpy(user).untyped_storage()).resize_(shape)


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a new tensor of zeros; large tensors take their memory from the pool."""
    return empty(shape, dtype).zero_()


def converted(array: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the array in another dtype, or the array itself if it has this dtype."""
    return array if array.dtype == dtype else empty(array.shape, dtype).copy_(array)


def rows(array: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the array in the given dtype, with the numbers of each row adjacent in memory; copy only if necessary.

    A dimension that is expanded (with stride 0) stays expanded, so that its numbers are copied only once.
    """
    adjacent = array.stride(-1) == 1 or array.shape[-1] <= 1
    if adjacent and array.dtype == dtype and not array.is_conj() and not array.is_neg():
        return array
    distinct = array
    for axis in range(array.dim() - 1):
        if array.stride(axis) == 0 and array.shape[axis] > 1:
            distinct = distinct.narrow(axis, 0, 1)
    return empty(distinct.shape, dtype).copy_(distinct).expand(array.shape)
