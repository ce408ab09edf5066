"""How every script here measures: what ``stablessm bench`` uses, and where records go."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from stablessm.bench.machine import copy_bandwidth, keep_memory
from stablessm.bench.measure import timings
from stablessm.bench.records import write_record

__all__ = ["RESULTS", "copy_bandwidth", "same_allocator_for_all", "synchronize", "times", "write_record"]

RESULTS = Path(__file__).parent / "results"
same_allocator_for_all = keep_memory


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def times(contenders: dict[str, Callable[[], object]], *, seconds: float, wait: Callable[[object], None]) -> dict:
    """Milliseconds a call, median over turns; ``wait`` returns when a result is there."""

    def clock(call: Callable[[], object], repeat: int) -> float:
        start = time.perf_counter()
        for _ in range(repeat):
            result = call()
        wait(result)
        return (time.perf_counter() - start) * 1e3

    taken = timings(contenders, seconds=seconds, clocks=dict.fromkeys(contenders, clock))
    return {name: timing.median for name, timing in taken.items()}
