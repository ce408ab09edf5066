"""Tests whether the memory functions of random S4D models stay below an exponential. On a logarithmic axis an
exponential is a straight line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, described, memories, rules
from stablessm.experiments.frame.stage import computing, stage
from stablessm.experiments.frame.words import span
from stablessm.instruments import MemoryCurve, memory_function
from stablessm.layers import S4D
from stablessm.report.figure import Figure, Panel, Series


@dataclass(frozen=True)
class S4Config:
    """Settings of ``su-fig6``: model sizes, horizons, seeds and thresholds. The paper gives no values."""

    channels: int = 8
    states: int = 32
    layers: int = 2
    horizons: tuple[int, int] = (1024, 32768)
    """The horizon of the authors' code, and a horizon over which the slowest mode decays."""
    seeds: int = 16
    shown: int = 5
    slope: float = 0.9
    """Slope of the straight line in units of the slowest rate: a little less steep, so that an exponential falls below
    the line."""
    early: float = 0.75
    """The curve must touch the straight line within this fraction of the horizon."""


def build(config: S4Config) -> memories.Chain:
    """Return a random S4D stack with one input and one output channel."""
    h = config.channels
    blocks = [(S4D(h, config.states), nn.GELU(), nn.Linear(h, h)) for _ in range(config.layers)]
    return memories.Chain(nn.Linear(1, h), *[module for block in blocks for module in block], nn.Linear(h, 1))


@memories.survey("memory-{horizon}", over=lambda config: config.horizons)
def curves(config: S4Config, seed: int, horizon: int) -> MemoryCurve:
    """Return the memory function of one random S4D stack."""
    model = memories.seeded(seed, partial(build, config))
    return memory_function(model, horizon, d_input=1, norm="unit", progress=False)


@stage("slowest")
def slowest(config: S4Config, run: Run) -> dict[str, list[float]]:
    """Return for each seed the slowest decay rate per step of the model: the minimum of |Re λ| times the time step over
    all layers, channels and states.
    """

    @torch.no_grad()
    def rate(seed: int) -> float:
        layers = [layer for layer in memories.seeded(seed, partial(build, config)) if isinstance(layer, S4D)]
        return min(float((-layer.eigenvalues().real * layer.log_dt.exp()[:, None]).min()) for layer in layers)

    return {"rate": [rate(seed) for seed in range(config.seeds)]}


def cap(curve: MemoryCurve, rate: float, start: int) -> tuple[float, float]:
    """Find the lowest straight line of slope -rate that lies above log M(t) from step ``start`` on. Return the height
    of the line at t = 0, and the time at which the line touches log M(t).
    """
    clear = (curve.value > 10 * curve.floor) & (np.arange(len(curve.time)) >= start)
    excess = np.log(curve.value[clear]) + rate * curve.time[clear]
    best = int(excess.argmax())
    return float(excess[best]), float(curve.time[clear][best])


def figures(config: S4Config, stages: Stages) -> Figures:
    """Yield a figure of memory functions with two panels, over the short horizon and over the long horizon. The panel
    of the long horizon also shows the straight lines above the memory functions (see :func:`cap`).
    """
    short, long = (found[: config.shown] for found in curves.all(config, stages).values())
    lines: list[Series] = []
    for seed, (curve, rate) in enumerate(zip(long, config.slope * slowest(stages)["rate"], strict=False)):
        ends = curve.time[[config.horizons[0], -1]]
        line = np.exp(cap(curve, rate, config.horizons[0])[0] - rate * ends)
        lines.append(memories.series(f"seed {seed}", curve, group=f"seed {seed}"))
        lines.append(Series(f"cap {seed}", ends, line, "dashed", group=f"seed {seed}"))
    yield Figure(
        "memory",
        f"Upper envelope of the memory of randomly initialized S4D stacks. Dashed: lines with {config.slope} times the "
        f"slowest rate of each model's eigenvalues, touching the curve after step {config.horizons[0]}.",
        [
            memories.panel(f"{config.horizons[0]} steps", {f"seed {i}": c for i, c in enumerate(short)}, "steps"),
            Panel(f"{config.horizons[1]} steps, with caps", "t [steps]", "memory M(t)", lines, "linear", "log"),
        ],
    )


def claims(config: S4Config, stages: Stages) -> Claims:
    """Yield claims with their verdicts: on a logarithmic axis every memory function stays below a straight line, which
    means that it decays at least exponentially.
    """
    (short, long), rate, n = curves.all(config, stages).values(), slowest(stages)["rate"], config.seeds
    pairs = list(zip(long, rate, strict=True))
    touched = np.array([cap(curve, config.slope * r, config.horizons[0])[1] for curve, r in pairs])
    capped = int((touched < config.early * config.horizons[1]).sum())
    yield Claim(
        "the memory of S4 is capped by a straight line in logarithmic scale",
        "for each model",
        f"{capped} of {n} models touch their cap before {config.early:.0%} of {config.horizons[1]} steps",
        rules.most(capped, n),
        f"The caps have {config.slope} of the slope of the slowest mode, {span(rate)} per step, and are touched at "
        f"{touched.min():.0f} to {touched.max():.0f} steps; afterwards the memories fall below them.",
    )
    kinds, early = memories.tally(long), memories.tally(short)
    ratio = [fit.rate / r for curve, r in pairs if (fit := curve.decay()).rate is not None]
    near = sum(abs(q - 1) < 0.25 for q in ratio)
    yield Claim(
        "the memory of S4 decays exponentially asymptotically",
        "exponential",
        f"{config.horizons[1]} steps: {memories.listed(kinds)}, rates {span(memories.rates(long))}",
        rules.most_seen(kinds),
        f"The fitted rate is {span(ratio)} times the slowest rate of the eigenvalues, within a quarter of it for "
        f"{near} of {len(ratio)}; over {config.horizons[0]} steps, about half of the slowest e-folding time, the "
        f"memories are classified as: {memories.listed(early)}.",
    )


run = computing(slowest, curves)
SMOKE = S4Config(channels=2, states=4, horizons=(512, 16384), seeds=2, shown=2)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=S4Config(), minutes=(0.1, 1.0))
