"""Describes the machine, and measures how fast it copies arrays and multiplies matrices. These rates limit the speed of
all contenders.
"""

from __future__ import annotations

import ctypes
import platform
from functools import partial

import torch

from stablessm._provenance import cpu_model, versions
from stablessm.bench.measure import Call, event_clock, host_clock, timings
from stablessm.training.precision import matmul_precision

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # malloc.h


def keep_memory() -> None:
    """Tell the C library (glibc) to keep freed memory, so that the time of a contender does not include page faults
    that another contender caused.

    By default, glibc returns every block above 32 MB to the system, and the next allocation causes page faults, whose
    time would count for one contender. Other allocators are not changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if platform.system() == "Linux" else None
    if mallopt is not None:
        for parameter, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, 10**9)):
            mallopt(parameter, value)


def copy_bandwidth(device: str, megabytes: int, seconds: float = 1.0) -> float:
    """Measure the number of bytes that a plain copy of an array reads and writes per second. The size of the array,
    ``megabytes``, must be too large for the caches. The measurement takes about ``seconds`` seconds.
    """
    source = torch.randn(megabytes * 2**18, device=device)
    target = torch.empty_like(source)
    took = _milliseconds("copy", lambda: target.copy_(source), device, seconds)
    return 2 * source.numel() * 4 / took * 1e3


def matmul_rates(device: str, size: int, seconds: float = 1.0) -> dict[str, float]:
    """Measure products of two square matrices (``size``, ``size``); return a dict from the name of a dtype or precision
    to the number of floating-point operations per second.
    """
    kinds = {"float32": ("highest", torch.float32)}
    if device == "cuda":
        kinds |= {"tf32": ("high", torch.float32), "bfloat16": ("highest", torch.bfloat16)}
    rates = {}
    for name, (precision, dtype) in kinds.items():
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        with matmul_precision(precision):
            took = _milliseconds(name, partial(torch.matmul, left, right), device, seconds)
        rates[name] = 2 * size**3 / took * 1e3
    return rates


def limits(device: str, *, smoke: bool) -> dict[str, float]:
    """Measure the copy bandwidth (GB/s) and the rates of matrix products (teraflops) of a device. Return a dict whose
    keys are the names in the record of a benchmark.
    """
    megabytes, size, seconds = (16, 256, 0.05) if smoke else (1024, 8192, 1.0) if device == "cuda" else (256, 2048, 1.0)
    rates = matmul_rates(device, size, seconds)
    return {"copy_gigabytes_per_second": copy_bandwidth(device, megabytes, seconds) / 1e9} | {
        f"matmul_{name}_teraflops": rate / 1e12 for name, rate in rates.items()
    }


def describe(device: str) -> dict[str, object]:
    """Return a description of the machine for the record of a benchmark: the device, the number of threads and the
    versions.
    """
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu_model(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "system": platform.system(),
        "versions": versions(),
    }


def _milliseconds(name: str, call: Call, device: str, seconds: float) -> float:
    clock = event_clock if device == "cuda" else host_clock
    return timings({name: call}, seconds=seconds, clocks={name: clock})[name].median
