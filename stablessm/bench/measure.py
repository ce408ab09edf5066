"""How everything is timed: contenders in turns, medians with quartiles, on the clock that fits the device."""

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
"""Milliseconds that so many calls in a row take together."""
_LONG = 200
"""Milliseconds from which caches and threads that spin do not matter."""
_TURN = 5
"""Milliseconds of a turn on a GPU, about: so many calls that the first launch does not show."""
_QUEUED = 10
"""Calls that are queued at once: the driver holds about a thousand launches."""
_PAUSE = 4.0
"""Milliseconds in which they are queued, at first."""
_FILLER_NUMBERS = 1 << 26
"""Float32 numbers that are cleared, again and again, to keep a GPU busy for a while."""


@final
@dataclass(frozen=True)
class Timing:
    """Milliseconds a call, over the turns."""

    median: float
    quartiles: tuple[float, float]
    """A quarter of the turns took less than the first, a quarter more than the second."""
    turns: int


def finish(result: Any) -> None:
    """Return when ``result`` is computed; PyTorch's CPU operations always are."""
    for part in result if isinstance(result, tuple) else (result,):
        if hasattr(part, "block_until_ready"):
            part.block_until_ready()
        elif isinstance(part, torch.Tensor) and part.is_cuda:
            torch.cuda.synchronize(part.device)


def host_clock(call: Call, repeat: int) -> float:
    """By the processor's clock, until the last result is there."""
    start = time.perf_counter()
    for _ in range(repeat):
        result = call()
    finish(result)
    return (time.perf_counter() - start) * 1e3


def event_clock(call: Call, repeat: int) -> float:
    """By CUDA events around the calls: the GPU's own clock, with the gaps that slow launches leave."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeat):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def queued_clock(call: Call, repeat: int) -> float:
    """By CUDA events around calls that were all queued behind a pause: what the GPU needs, whatever the host takes."""
    pause = _PAUSE
    while True:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        _pause(pause)
        begun = time.perf_counter()
        start.record()
        for _ in range(repeat):
            call()
        end.record()
        queueing = (time.perf_counter() - begun) * 1e3
        end.synchronize()
        if queueing < pause:
            return start.elapsed_time(end)
        pause = 2 * queueing


def _pause(milliseconds: float) -> None:
    """Keep the GPU busy for at least so long, without waiting for it."""
    filler, each = _filler()
    for _ in range(math.ceil(milliseconds / each)):
        filler.zero_()


@functools.cache
def _filler() -> tuple[torch.Tensor, float]:
    """Return an array, and the shortest time in milliseconds that it takes to clear it."""
    filler = torch.empty(_FILLER_NUMBERS, device="cuda")
    return filler, min(event_clock(filler.zero_, 10) / 10 for _ in range(5))


def timings(
    calls: Mapping[str, Call], *, seconds: float, clocks: Mapping[str, Clock] | None = None
) -> dict[str, Timing]:
    """Time ``calls`` in rounds in which each has its turn, so that a slow moment of the machine meets them all.

    ``seconds`` bounds what one of them may take. Where a GPU is used, a call so short that the clock or the first
    launch would show is repeated within its turn.
    """
    clock = {name: (clocks or {}).get(name, host_clock) for name in calls}
    once, repeat, turns = {}, {}, {}
    for name, call in calls.items():
        finish(call())  # compiles
        once[name] = max(clock[name](call, 1), 1e-4)
        most = 1 if not torch.cuda.is_available() else _QUEUED if clock[name] is queued_clock else 100
        repeat[name] = max(1, min(most, math.ceil(_TURN / once[name])))
        turns[name] = max(3, min(40, int(seconds * 1e3 / (once[name] * (repeat[name] + 1)))))
    measured: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(max(turns.values(), default=0)):
        for name, call in calls.items():
            if turn < turns[name]:
                if once[name] < _LONG:
                    finish(call())  # not timed: the one before left its data in the caches and its threads spinning
                measured[name].append(clock[name](call, repeat[name]) / repeat[name])
    return {name: _timing(values) for name, values in measured.items()}


def _timing(values: Sequence[float]) -> Timing:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(middle, (low, high), len(values))


def copies(device: str, size_bytes: int) -> int:
    """How many sets of inputs to take turns with, so that a GPU's cache does not hold what the next call reads."""
    if device == "cpu":
        return 1
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return max(1, min(64, math.ceil(4 * cache / size_bytes)))


def rotating(calls: Sequence[Call]) -> Call:
    """One call that is each of ``calls`` in turn. Results live for a round, so that outputs move in memory too."""
    if len(calls) == 1:
        return calls[0]
    following = itertools.cycle(calls)
    kept = deque((call() for call in calls), maxlen=len(calls))  # full from the start: no turn pays for new memory

    def call() -> Any:
        kept.append(next(following)())
        return kept[-1]

    return call
