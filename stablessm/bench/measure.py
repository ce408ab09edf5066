"""Measures the time of functions. The functions are called in turns, and a result is the median with quartiles. There
is one clock for the CPU, and there are two for GPUs.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch

Call: TypeAlias = Callable[[], Any]
Clock: TypeAlias = Callable[[Call, int], float]
"""Function of a call and a number that returns the duration, in milliseconds, of this number of consecutive calls."""
_LONG = 200
"""Duration in milliseconds above which warm caches and spinning threads do not matter."""
_TURN = 5
"""Approximate duration of a turn on a GPU in milliseconds, long enough that the first launch does not matter."""
_QUEUED = 10
"""Number of calls in the queue at once; the driver holds about a thousand launches."""
_PAUSE = 4.0
"""Initial estimate of the time, in milliseconds, that queueing ``_QUEUED`` calls takes."""
_FILLER_NUMBERS = 1 << 26
"""Number of float32 values that are cleared repeatedly to keep a GPU busy for a while."""


@final
@dataclass(frozen=True)
class Timing:
    """The duration of a call in milliseconds. Each turn gives one duration; the median and the quartiles are over the
    turns.
    """

    median: float
    quartiles: tuple[float, float]
    """The lower and the upper quartile."""
    turns: int


def finish(result: Any) -> None:
    """Wait until the computation of ``result`` has finished.

    PyTorch's CPU operations have always finished when they return.
    """
    for part in result if isinstance(result, tuple) else (result,):
        if hasattr(part, "block_until_ready"):
            part.block_until_ready()
        elif isinstance(part, torch.Tensor) and part.is_cuda:
            torch.cuda.synchronize(part.device)


def host_clock(call: Call, repeat: int) -> float:
    """Measure with the clock of the CPU how many milliseconds ``repeat`` calls and their computations take."""
    start = time.perf_counter()
    for _ in range(repeat):
        result = call()
    finish(result)
    return (time.perf_counter() - start) * 1e3


def event_clock(call: Call, repeat: int) -> float:
    """Measure with CUDA events how many milliseconds ``repeat`` calls take. The time includes gaps between kernel
    launches in which the GPU is idle.
    """
    start, end = _recorded(call, repeat)
    end.synchronize()
    return start.elapsed_time(end)


def _recorded(call: Call, repeat: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Run a call ``repeat`` times; return the CUDA events that were recorded before and after, without waiting for
    them.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeat):
        call()
    end.record()
    return start, end


def queued_clock(call: Call, repeat: int) -> float:
    """Measure how many milliseconds ``repeat`` calls take on the GPU alone, without the overhead of kernel launches.

    The GPU is first kept busy while the CPU queues all calls. CUDA events then measure how long the GPU takes for the
    queued calls.
    """
    pause = _PAUSE
    while True:
        _pause(pause)
        begun = time.perf_counter()
        start, end = _recorded(call, repeat)
        queueing = (time.perf_counter() - begun) * 1e3
        end.synchronize()
        if queueing < pause:
            return start.elapsed_time(end)
        pause = 2 * queueing


def _pause(milliseconds: float) -> None:
    """Keep the GPU busy for at least this number of milliseconds, without waiting for it."""
    filler, each = _filler()
    for _ in range(math.ceil(milliseconds / each)):
        filler.zero_()


@functools.cache
def _filler() -> tuple[torch.Tensor, float]:
    """Return a large array, and the time in milliseconds that the GPU takes to fill it with zeros (the smallest of five
    measurements).
    """
    filler = torch.empty(_FILLER_NUMBERS, device="cuda")
    return filler, min(event_clock(filler.zero_, 10) / 10 for _ in range(5))


def timings(
    calls: Mapping[str, Call], *, seconds: float, clocks: Mapping[str, Clock] | None = None
) -> dict[str, Timing]:
    """Time several functions in turns, over many rounds, so that a slow moment of the machine affects all of them.

    ``seconds`` limits the total time of each function. On a GPU, a short function is called repeatedly within its turn.
    This makes the resolution of the clock and the cost of the first launch negligible.
    """
    clock = {name: (clocks or {}).get(name, host_clock) for name in calls}
    once, repeat, turns = {}, {}, {}
    for name, call in calls.items():
        finish(call())  # the first call compiles
        once[name] = max(clock[name](call, 1), 1e-4)
        most = 1 if not torch.cuda.is_available() else _QUEUED if clock[name] is queued_clock else 100
        repeat[name] = max(1, min(most, math.ceil(_TURN / once[name])))
        turns[name] = max(3, min(40, int(seconds * 1e3 / (once[name] * (repeat[name] + 1)))))
    measured: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(max(turns.values(), default=0)):
        for name, call in calls.items():
            if turn < turns[name]:
                if once[name] < _LONG:
                    finish(call())  # not timed: caches and spinning threads of the previous contender
                measured[name].append(clock[name](call, repeat[name]) / repeat[name])
    return {name: _timing(values) for name, values in measured.items()}


def _timing(values: Sequence[float]) -> Timing:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(middle, (low, high), len(values))


def copies(device: str, size_bytes: int) -> int:
    """Return how many sets of inputs a benchmark has to use in turn, so that the inputs of each call are not in the
    GPU's cache any more. ``size_bytes`` is the size of one set. On a CPU, return 1.
    """
    if device == "cpu":
        return 1
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return max(1, min(64, math.ceil(4 * cache / size_bytes)))


def rotating(calls: Sequence[Call]) -> Call:
    """Return a function that runs the functions in ``calls`` in turn: each call runs the next function, and the first
    function follows the last.

    The results of a round of calls are kept in memory, so that the outputs of successive calls use different memory,
    like their inputs.
    """
    if len(calls) == 1:
        return calls[0]
    following = itertools.cycle(calls)
    kept = deque((call() for call in calls), maxlen=len(calls))  # allocates all memory before the first turn

    def call() -> Any:
        kept.append(next(following)())
        return kept[-1]

    return call
