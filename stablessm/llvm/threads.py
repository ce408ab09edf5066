"""Runs a kernel on PyTorch's OpenMP threads if possible, otherwise on Python threads.

OpenMP threads of PyTorch keep spinning for a moment after every parallel operation. A kernel that runs on the OpenMP
threads starts at once, but a kernel on other threads would have to share the cores with the spinning threads. The
runtimes of GNU, LLVM and Intel all have the functions that this module calls. Python threads are used if PyTorch has
another runtime (Windows), and in a forked process that cannot use OpenMP (:mod:`stablessm._fork`); kernels do not hold
the GIL.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from stablessm import _fork

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


class Team(NamedTuple):
    """The functions of PyTorch's OpenMP runtime that are needed to run kernels on the threads of this runtime."""

    parallel: Callable[[int, Any, int, int], None]
    """The function GOMP_parallel(function, argument, threads, flags)."""
    symbols: dict[str, int]
    """Addresses of the functions that kernels call, by name."""


@functools.cache
def team() -> Team | None:
    """Return the OpenMP functions by which kernels run on PyTorch's threads, or None if this is not possible."""
    library = _fork.openmp()
    if library is None:
        return None
    parallel = library.GOMP_parallel
    parallel.argtypes, parallel.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    names = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
    symbols = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names}
    return Team(parallel, symbols) if all(symbols.values()) else None


def symbols() -> dict[str, int]:
    """Return the addresses of the OpenMP functions that kernels call, by name; none without these functions."""
    found = team()
    return {} if found is None else found.symbols


def _after_fork() -> None:
    """Discard the pool of Python threads in a forked child, where these threads do not exist."""
    global _pool, _pool_size
    _pool, _pool_size = None, 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def team_to_join() -> Team | None:
    """Return the result of :func:`team`, or None in a forked process whose OpenMP threads may be missing."""
    return team() if _fork.openmp_is_sound() else None


def in_ranges(work: Callable[[int, int], None], units: int, threads: int) -> None:
    """Divide ``range(units)`` into contiguous ranges, and run ``work(first, last)`` for each range on a Python thread.

    >>> seen = []
    >>> in_ranges(lambda first, last: seen.extend(range(first, last)), 5, threads=1)
    >>> seen
    [0, 1, 2, 3, 4]
    """
    global _pool, _pool_size
    edges = [units * i // threads for i in range(threads + 1)]
    if threads > 1 and (_pool is None or _pool_size < threads - 1):
        _pool, _pool_size = ThreadPoolExecutor(threads - 1, thread_name_prefix="stablessm-scan"), threads - 1
    futures = [_pool.submit(work, edges[i], edges[i + 1]) for i in range(1, threads)] if _pool else []
    work(edges[0], edges[1])
    for future in futures:
        future.result()
