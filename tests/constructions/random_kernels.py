"""Random kernels of every family, in both times, as functions and as samples, and what the error of a fit really is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablessm.constructions import ExponentialSum

FAMILIES = ("waves", "power", "stretched", "lag", "log-periodic", "bump", "sum")
GRIDS = ("uniform", "irregular", "geometric", "gap")
Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel and how it is presented to ``exponential_sum``."""

    name: str
    family: str
    function: Function
    time: str
    dt: float
    horizon: int
    times: np.ndarray | None
    """None for the uniform grid 0, dt, …, horizon dt."""
    sampled: bool
    """Whether the fit sees samples alone."""
    goal: dict[str, Any]

    @property
    def grid(self) -> np.ndarray:
        return self.dt * np.arange(self.horizon + 1) if self.times is None else self.times

    @property
    def arguments(self) -> dict[str, Any]:
        place: dict[str, Any] = {"dt": self.dt, "time": self.time}
        if self.times is not None:
            place["times"] = self.times
        elif not self.sampled:
            place["horizon"] = self.horizon
        return {"kernel": self.function(self.grid) if self.sampled else self.function, **place, **self.goal}

    def true_error(self, es: ExponentialSum) -> float:
        """sup |ρ - ρ̂|, where the fit claims it: on the samples, the grid, or a dense set of times between its ends."""
        if self.time == "discrete" or self.sampled:
            return float(np.abs(self.function(self.grid) - es(self.grid)).max())
        first, last = self.grid[0], self.grid[-1]
        rng, span = np.random.default_rng(12345), last - first
        near = first + np.geomspace(1e-14 * span, span, 4000)
        times = np.unique(
            np.concatenate([self.grid, np.linspace(first, last, 60_001), near, rng.uniform(first, last, 20_000)])
        )
        times = times[times <= last]
        size = np.abs(self.function(times) - es(times))
        around = [
            np.linspace(times[max(i - 1, 0)], times[min(i + 1, len(times) - 1)], 101) for i in np.argsort(-size)[:20]
        ]
        zoomed = np.concatenate(around)
        return float(max(size.max(), np.abs(self.function(zoomed) - es(zoomed)).max()))


def draw(seed: int, *, complex_too: bool = False, small: bool = False) -> Case:
    """The case of a seed; a small one has few steps and a modest goal."""
    rng = np.random.default_rng(seed)
    time = str(rng.choice(["discrete", "continuous"]))
    dt = float(rng.choice([0.05, 0.5, 1.0, 3.0]))
    horizon = int(10 ** (rng.uniform(1.3, 2) if small else rng.uniform(1.5, 3)))
    sampled = bool(rng.random() < 0.4)
    grid = str(rng.choice(GRIDS, p=[0.55, 0.15, 0.15, 0.15]))
    limit = 0.5 if time == "discrete" else 0.4 if sampled else 3.0  # cycles a step
    family = str(rng.choice(FAMILIES))
    function = _family(family, rng, dt, horizon, limit, time == "discrete")
    if complex_too and rng.random() < 0.4:
        function = _rotated(function, rng, dt, horizon, limit)
        family = f"complex {family}"
    most, finest = (5, -4) if small else (9, -6)
    goal = (
        {"order": int(rng.integers(1, most))} if rng.random() < 0.5 else {"tol": 10 ** float(rng.uniform(finest, -1))}
    )
    times = None if grid == "uniform" else _times(grid, rng, dt, horizon, time == "discrete")
    name = f"{seed}: {family}, {time}, {grid}, {'samples' if sampled else 'function'}, {goal}"
    return Case(name, family, function, time, dt, horizon, times, sampled, goal)


def waves(rng: np.random.Generator, dt: float, horizon: int, limit: float, count: int | None = None) -> Function:
    """Damped waves of up to ``limit`` cycles a step, and decays without."""
    count = int(rng.integers(1, 5)) if count is None else count
    decay = 10 ** rng.uniform(-0.5, 1.5, count) / (dt * horizon)
    frequency = 2 * np.pi * rng.uniform(0, limit, count) * (rng.random(count) < 0.85) / dt
    size, phase = rng.uniform(0.3, 1.0, count), rng.uniform(0, 2 * np.pi, count) * (rng.random(count) < 0.5)

    def value(t: np.ndarray) -> np.ndarray:
        t = np.asarray(t, dtype=np.float64)[..., None]
        return (size * np.exp(-decay * t) * np.cos(frequency * t + phase)).sum(-1)

    return value


def _family(family: str, rng: np.random.Generator, dt: float, horizon: int, limit: float, discrete: bool) -> Function:
    end = dt * horizon
    scale = end * 10 ** rng.uniform(-3, 0)
    power = rng.uniform(0.1, 3)
    if family == "waves":
        return waves(rng, dt, horizon, limit)
    if family == "power":
        return lambda t: (1 + t / scale) ** -power
    if family == "stretched":
        exponent = rng.uniform(0.3, 1.6)
        return lambda t: np.exp(-((t / scale) ** exponent))
    if family == "lag":
        late = int(rng.integers(1, min(horizon, 40)))
        if discrete:
            return lambda t: (np.rint(t / dt) == late).astype(float)
        return lambda t: np.where(t >= dt * (late + 0.3), np.exp(-np.maximum(t - dt * (late + 0.3), 0) / scale), 0.0)
    if family == "log-periodic":
        depth, speed, phase = rng.uniform(0.1, 0.9), rng.uniform(0.5, 8), rng.uniform(0, 6)
        return lambda t: (1 + t / scale) ** -power * (1 + depth * np.cos(speed * np.log1p(t / scale) + phase))
    if family == "bump":
        center, width = rng.uniform(0.05, 0.9) * end, max(3 * dt, end * 10 ** rng.uniform(-1.5, -0.5))
        return lambda t: np.exp(-(((t - center) / width) ** 2))
    parts = [_family(str(rng.choice(FAMILIES[:3])), rng, dt, horizon, limit, discrete) for _ in range(2)]
    return lambda t: parts[0](t) + 0.3 * parts[1](t)


def _rotated(function: Function, rng: np.random.Generator, dt: float, horizon: int, limit: float) -> Function:
    """The kernel times a slow rotation, plus damped complex waves."""
    turn, other = rng.uniform(-0.2, 0.2) * limit / dt, waves(rng, dt, horizon, limit, 1)
    return lambda t: function(t) * np.exp(2j * math.pi * turn * t) + 0.5j * other(t)


def _times(grid: str, rng: np.random.Generator, dt: float, horizon: int, discrete: bool) -> np.ndarray:
    end, count = dt * horizon, min(horizon, 400)
    if grid == "irregular":
        times = np.sort(rng.uniform(0, end, count))
    elif grid == "geometric":
        times = np.geomspace(end * 1e-3, end, count)
    else:
        times = np.linspace(0, end, horizon + 1)
        first = rng.uniform(0.2, 0.5)
        times = np.concatenate([times[times < first * end], times[times > (first + rng.uniform(0.1, 0.4)) * end]])
    return dt * np.unique(np.rint(times / dt)) if discrete else np.unique(times)


def draw_long(seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Ten thousand irregular times or more, the values of a kernel there, and a tolerance."""
    rng = np.random.default_rng(seed)
    count, end = int(10 ** rng.uniform(4, 5)), float(10 ** rng.uniform(1, 5))
    even = np.linspace(0, end, count)
    first = rng.uniform(0.1, 0.6)
    times = {
        "irregular": lambda: np.sort(rng.uniform(0, end, count)),
        "geometric": lambda: np.geomspace(end * 10 ** rng.uniform(-6, -2), end, count),
        "jitter": lambda: end * (np.arange(count) + rng.uniform(0, 0.9, count)) / count,
        "gap": lambda: even[(even < first * end) | (even > (first + 0.2) * end)],
    }[str(rng.choice(["irregular", "geometric", "jitter", "gap"]))]()
    modes = int(rng.integers(1, 4))
    decay = 10 ** rng.uniform(-0.3, 2, modes) / end
    frequency = 2 * np.pi * 10 ** rng.uniform(0, np.log10(0.05 * count), modes) / end
    wave = (np.exp(-decay * times[:, None]) * np.cos(frequency * times[:, None] + rng.uniform(0, 6, modes))).sum(1)
    law = (1 + times / (end * 10 ** rng.uniform(-4, -1))) ** -rng.uniform(0.2, 2)
    kind = str(rng.choice(["waves", "power", "both", "complex"]))
    values = {"waves": wave, "power": law, "both": 0.3 * wave + law, "complex": law * np.exp(1j * frequency[0] * times)}
    return times, values[kind], 10 ** float(rng.uniform(-6, -2))


def draw_matrix(seed: int) -> dict[str, Any]:
    """Arguments of ``exponential_sum`` for several inputs and outputs, without ``order``."""
    rng = np.random.default_rng(seed)
    horizon, dt, modes = int(rng.integers(20, 120)), float(rng.choice([0.1, 1.0, 2.0])), int(rng.integers(2, 6))
    shape = (modes, int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    decay = 10 ** rng.uniform(-0.5, 1.5, modes) / (horizon * dt)
    frequency = rng.uniform(0, 2, modes) / dt * (rng.random(modes) < 0.7)
    phase, size, power = rng.uniform(0, 6, modes), rng.standard_normal(shape), rng.uniform(0.3, 2)
    is_complex = bool(rng.random() < 0.4)

    def value(t: np.ndarray) -> np.ndarray:
        turn = 1j * (frequency * t[:, None] + phase)
        waves = np.exp(turn - decay * t[:, None])
        sums = np.einsum("tm,moi->toi", waves if is_complex else waves.real, size)
        return sums + ((1 + t / dt) ** -power)[:, None, None]

    place = {"dt": dt, "time": str(rng.choice(["discrete", "continuous"]))}
    if rng.random() < 0.4:
        return {"kernel": value, "horizon": horizon, **place}
    return {"kernel": value(dt * np.arange(horizon + 1)), **place}
