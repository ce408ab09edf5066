"""Helpers for memory functions of many random models: they are measured once per seed, stored in one file, and counted
by their kind of decay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from itertools import pairwise
from typing import Any, Concatenate, ParamSpec, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn

from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.stage import Name, Over, Stage
from stablessm.experiments.frame.stages import Stages
from stablessm.experiments.frame.words import span as span
from stablessm.instruments import MemoryCurve
from stablessm.report.figure import Panel, Scale, Series

M = TypeVar("M", bound=nn.Module)
P = ParamSpec("P")

POINTS = 240
"""Number of points of a curve that a figure shows."""


@final
class Chain(nn.Sequential):
    """A sequence of layers. Each layer gets the output of the previous layer; the states that layers return are
    dropped.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, d_input) to (batch, time, d_output)."""
        for layer in self:
            y = layer(x)
            x = y[0] if isinstance(y, tuple) else y
        return x


def seeded(seed: int, build: Callable[[], M]) -> M:
    """Call ``build`` with torch's random state set to a seed, and return the model in float64. The global random state
    is restored afterwards.

    >>> torch.equal(seeded(3, lambda: nn.Linear(2, 2)).weight, seeded(3, lambda: nn.Linear(2, 2)).weight)
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double().eval()


def survey(
    name: Name, over: Over | None = None, seeds: Callable[[Any], int] = lambda config: config.seeds
) -> Callable[[Callable[Concatenate[Any, int, P], MemoryCurve]], Stage[P, list[MemoryCurve]]]:
    """Return a decorator that declares stages, each of which contains one memory function per seed. The decorated
    function measures the memory function of one seed; its arguments are the config, the seed and the key of the stage.

    ``name`` and ``over`` are as in :func:`~stablessm.experiments.frame.stage.stage`; ``seeds`` returns the number of
    seeds for a config.
    """

    def declare(measure: Callable[Concatenate[Any, int, P], MemoryCurve]) -> Stage[P, list[MemoryCurve]]:
        @wraps(measure)
        def compute(config: Any, run: Any, /, *key: P.args, **named: P.kwargs) -> Mapping[str, Any]:
            curves = [measure(config, seed, *key, **named) for seed in range(seeds(config))]
            rows = np.stack([_short(curve.value) for curve in curves])
            return {"time": curves[0].time, "planes": planes(rows), "floor": [curve.floor for curve in curves]}

        return Stage(compute, name, over, Run.stage, surveyed)

    return declare


def surveyed(stages: Stages, name: str) -> list[MemoryCurve]:
    """Return the memory functions in the stage ``name``, which :func:`survey` declared: a list with one entry
    per seed.
    """
    if name not in stages.kept:
        arrays = stages[name]
        pairs = zip(from_planes(arrays["planes"]), arrays["floor"], strict=True)
        stages.kept[name] = [MemoryCurve(arrays["time"], value, floor=float(floor)) for value, floor in pairs]
    return list(stages.kept[name])


def _short(value: np.ndarray) -> np.ndarray:
    """Round the numbers to the seven digits of single precision. Further digits would be rounding errors of the
    measurement, and would make the file larger.
    """
    mantissa, exponent = np.frexp(value)
    return np.ldexp(mantissa.astype(np.float32).astype(np.float64), exponent)


def planes(rows: np.ndarray) -> np.ndarray:
    """Encode floats (seeds, time) without loss as bytes (8, seeds, time), which compress well.

    The bit pattern of a float is read as a 64-bit integer. The bytes are the differences of successive integers along a
    row. The first axis has the eight bytes of a difference, least significant first.

    >>> rows = np.array([[1.0, 0.5, -np.inf], [3e-300, 0.0, np.pi]])
    >>> np.array_equal(from_planes(planes(rows)), rows)
    True
    """
    differences = np.diff(rows.astype("<f8").view("<i8"), axis=1, prepend=0)
    return np.moveaxis(differences.view(np.uint8).reshape(*rows.shape, 8), -1, 0).copy()


def from_planes(planes: np.ndarray) -> np.ndarray:
    """Decode the rows of floats that :func:`planes` encoded."""
    differences = np.moveaxis(planes, 0, -1).copy().view("<i8")[..., 0]
    return differences.cumsum(axis=1).view("<f8")


def tally(curves: Iterable[MemoryCurve]) -> Counter[str]:
    """Count the memory functions by kind of decay."""
    return Counter(curve.decay().kind for curve in curves)


def listed(kinds: Counter[str]) -> str:
    """Return the number of memory functions of each kind of decay as text.

    >>> listed(Counter(["exponential", "none", "exponential"]))
    '2 exponential, 1 none'
    """
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def rates(curves: Iterable[MemoryCurve]) -> np.ndarray:
    """Return the decay rates of the memory functions that decay exponentially; the other memory functions are
    left out.
    """
    return np.array([fit.rate for curve in curves if (fit := curve.decay()).rate is not None])


def octave_slopes(curve: MemoryCurve) -> tuple[float, float]:
    """Return how steeply M(t) falls at its end, as two negated log-log slopes over successive octaves (doublings) of
    time above the rounding level.

    The first slope is from the third last to the second last octave, the second from the second last to the last. Each
    octave is represented by its maximum. For a power law both slopes are its exponent. For an exponential e^(-βt) the
    slope at time t is βt, so that the second slope is twice the first.

    >>> t = np.arange(1000.0)
    >>> [round(slope, 1) for slope in octave_slopes(MemoryCurve(t, (1 + t) ** -2))]
    [2.0, 2.0]
    >>> [round(slope, 1) for slope in octave_slopes(MemoryCurve(t, np.exp(-t / 50)))]
    [3.6, 7.2]
    """
    last = _end(curve)
    tops = [curve.value[last // 2 ** (k + 1) + 1 : last // 2**k + 1].max() for k in (2, 1, 0)]
    earlier, later = np.log2(tops[:2]) - np.log2(tops[1:])
    return float(earlier), float(later)


def _end(curve: MemoryCurve) -> int:
    """Return the index of the last sample of a memory function M(t) that is above the rounding level."""
    return int(np.searchsorted(curve.time, curve.decay().used[1] * (1 + 1e-9), side="right")) - 1


def is_power(curve: MemoryCurve) -> bool:
    """Return True if the end of the memory function looks like a power of t or a constant, and False if it looks like
    an exponential. The log-log slope of an exponential doubles from one octave of time to the next.
    """
    earlier, later = octave_slopes(curve)
    return later < max(1.5 * earlier, 0.1)


def series(name: str, curve: MemoryCurve, x_scale: Scale = "linear", *, group: str | None = None) -> Series:
    """Return a memory function as a line of a figure. Each point is the maximum over a short interval; values below the
    rounding level are left out. Lines with the same ``group`` have the same color.
    """
    first = 1 if x_scale == "log" else 0
    spacing = np.geomspace if x_scale == "log" else np.linspace
    edges = np.unique(spacing(first, max(_end(curve), first) + 1, POINTS + 1).round().astype(int))
    top = [a + int(curve.value[a:b].argmax()) for a, b in pairwise(edges)]
    return Series(name, curve.time[top].tolist(), curve.value[top].tolist(), group=group)


def panel(title: str, curves: dict[str, MemoryCurve], unit: str, x_scale: Scale = "linear") -> Panel:
    """Return a panel of memory functions with a logarithmic y axis. ``unit`` is the unit of time on the x axis. If the
    x axis is linear, exponential decay is a straight line.
    """
    lines = [series(name, curve, x_scale) for name, curve in curves.items()]
    return Panel(title, f"t [{unit}]", "memory M(t)", lines, x_scale, "log")
