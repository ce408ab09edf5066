"""A pool of threads that follows ``torch.get_num_threads()`` and survives ``fork``.

The kernels release the GIL, so plain Python threads are enough. numba's own threading layers are avoided: the
default one kills forked DataLoader workers after a parallel call, and none may be entered by two threads at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def _forget_pool() -> None:
    """A forked child has the pool's bookkeeping but none of its threads."""
    global _pool, _pool_size
    _pool, _pool_size = None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def _workers(count: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    if _pool is None or _pool_size < count:
        _pool, _pool_size = ThreadPoolExecutor(count, thread_name_prefix="stablessm-scan"), count
    return _pool


def in_ranges(work: Callable[[int, int], None], units: int, *, threads: int | None = None) -> None:
    """Call ``work(first, last)`` on contiguous ranges that cover ``range(units)``, in parallel.

    >>> seen = []
    >>> in_ranges(lambda first, last: seen.extend(range(first, last)), 5, threads=1)
    >>> seen
    [0, 1, 2, 3, 4]
    """
    count = min(torch.get_num_threads() if threads is None else threads, units)
    if count <= 1:
        work(0, units)
        return
    edges = [units * i // count for i in range(count + 1)]
    pool = _workers(count - 1)
    futures = [pool.submit(work, edges[i], edges[i + 1]) for i in range(1, count)]
    work(edges[0], edges[1])
    for future in futures:
        future.result()
