"""Measures how fast the outputs of linear layers and activations converge when the input converges exponentially."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.words import listed
from stablessm.layers import RealSSM
from stablessm.report.figure import Figure, Panel

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh, "relu": torch.relu, "gelu": F.gelu, "hardtanh": F.hardtanh, "sqrt": lambda x: x.abs().sqrt(),
}  # fmt: skip
LIPSCHITZ = ("tanh", "relu", "gelu", "hardtanh")
MODES = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class DecayConfig:
    """Settings of ``su-decay``: rates of inputs and layers, and thresholds of the claims. The paper gives no values."""

    input: float = 0.5
    """The rate c of the input."""
    slowest: tuple[float, ...] = (0.05, 0.1, 0.25, 0.6, 1.0, 2.0)
    """Slowest rates w of the layers."""
    limits: tuple[float, ...] = (0.3, 0.0)
    """Limits x* of the inputs of activations."""
    seeds: int = 8
    dt: float = 0.05
    decades: float = 12.0
    """Number of decades over which the distance from the limit is followed."""
    same: float = 0.95
    """The output has the rate of the input if its rate c₀ is at least this fraction of the input's rate c."""
    close: float = 0.03
    """Two rates count as equal up to this relative difference."""
    positive: float = 0.01
    """Smallest rate with which a convergence counts as exponential."""


def rate(distance: np.ndarray, dt: float, decades: float) -> float:
    """Return the exponential rate at which a distance from a limit falls. The rate is fitted to the later half of the
    steps at which the distance is above 10^(-``decades``) times its maximum.

    >>> round(rate(np.exp(-0.3 * np.arange(100)), 1.0, 9.0), 6)
    0.3
    """
    above = np.flatnonzero(distance > 10**-decades * distance.max())
    last = int(above[-1]) + 1
    steps = np.arange(last // 2, last)
    return float(-np.polyfit(steps * dt, np.log(distance[steps]), 1)[0])


@stage("layer-{slowest:g}", over=lambda config: config.slowest)
def layer(config: DecayConfig, run: Run, slowest: float) -> Mapping[str, np.ndarray]:
    """Compute the output y(t) of random linear layers for an input that converges exponentially. ``slowest`` is the
    slowest decay rate among the modes of a layer. Return for each seed the rate at which y(t) converges to its limit
    y*, and for the first seed the distance |y(t) - y*|.
    """
    steps = int(1.3 * config.decades * np.log(10) / min(config.input, slowest) / config.dt)
    time = torch.arange(1, steps + 1, dtype=torch.float64) * config.dt
    x = 1 + torch.exp(-config.input * (time - config.dt))
    rates, first = [], np.zeros(0)
    for seed in range(config.seeds):
        generator = torch.Generator().manual_seed(seed)
        eigenvalues = -slowest * torch.tensor(MODES, dtype=torch.float64)
        with torch.random.fork_rng(devices=[]):  # the random weights are replaced below
            model = RealSSM(1, len(MODES), 1, map="direct", dt=config.dt, bias=False, eigenvalues=eigenvalues).double()
        with torch.no_grad():
            model.w.copy_(eigenvalues)
            for weight in (model.B, model.C):
                weight.copy_(torch.rand(weight.shape, generator=generator, dtype=torch.float64) + 0.1)
            y = model(x[None, :, None])[0][0, :, 0]
            limit = (model.C[0] * model.B[:, 0] / -eigenvalues).sum()
        distance = (y - limit).abs().numpy()
        rates.append(rate(distance, config.dt, config.decades))
        first = distance if seed == 0 else first
    every = max(1, steps // 200)
    return {"rates": np.array(rates), "time": time.numpy()[::every], "distance": first[::every]}


@stage("activations")
def activated(config: DecayConfig, run: Run) -> Mapping[str, np.ndarray]:
    """Return the convergence rates of the outputs of activations, (activations, limits, 2). The inputs converge to each
    limit x*, once from above and once from below (last axis).
    """
    steps = int(1.3 * config.decades * np.log(10) / config.input / config.dt)
    wave = torch.exp(-config.input * torch.arange(steps, dtype=torch.float64) * config.dt)
    found = np.full((len(ACTIVATIONS), len(config.limits), 2), np.inf)
    for i, sigma in enumerate(ACTIVATIONS.values()):
        for j, limit in enumerate(config.limits):
            for k, sign in enumerate((1.0, -1.0)):
                star = torch.tensor(limit, dtype=torch.float64)
                distance = (sigma(star + 0.2 * sign * wave) - sigma(star)).abs().numpy()
                if distance.max() > 0:
                    found[i, j, k] = rate(distance, config.dt, config.decades)
    return {"rates": found}


def figures(config: DecayConfig, stages: Stages) -> Figures:
    """Yield a figure of the convergence rate of the output against the slowest rate of the layer, and of the distance
    from the limit in some examples.
    """
    found = layer.all(config, stages)
    rates = {"measured, median of the seeds": [float(np.median(one["rates"])) for one in found.values()]}
    rates["min(c, w)"] = [min(config.input, slowest) for slowest in config.slowest]
    rates["c, as the proposition says"] = [config.input] * len(config.slowest)
    curves = [lines(one["time"], {f"w = {slowest:g}": one["distance"]})[0] for slowest, one in found.items()]
    yield Figure(
        "rates",
        f"Left: the rate at which the output of a linear layer converges when its input converges with the rate "
        f"{config.input:g}. Right: |y(t) - y*| of the first seed.",
        [
            Panel("rate of the output", "slowest rate w", "rate", lines(config.slowest, rates, "both"), "log", "log"),
            Panel("convergence", "time", "|y(t) - y*|", curves, y_scale="log"),
        ],
    )


def claims(config: DecayConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts: how fast do the outputs of a layer and of an activation converge, compared
    with the input?
    """
    found = {slowest: one["rates"] for slowest, one in layer.all(config, stages).items()}
    told = {f"w = {slowest:g}:": float(np.median(rates)) for slowest, rates in found.items()}
    rates = np.array([*found.values()])
    fit = [bool(row.min() > config.positive) for row in rates]
    yield Claim(
        "the output of a linear layer converges exponentially when its input does",
        "proposition 3.11",
        f"smallest rate {rates.min():.3g}",
        rules.most(sum(fit), len(fit)),
        f"Rates over {config.seeds} seeds; medians: {listed(told)}.",
    )
    same = config.same * config.input
    held = [bool(row.min() >= same) for row in rates]
    slow = [f"{slowest:g}" for slowest, good in zip(found, held, strict=True) if not good]
    yield Claim(
        "the output converges with the same constant c₀ as the input",
        "proposition 3.11: for the same constant c₀",
        f"holds for {sum(held)} of {len(held)} layers",
        rules.graded(all(held), any(held)),
        f"c₀ = {same:g}, the input has {config.input:g}. It fails for w = {', '.join(slow) or 'none'}; medians: "
        f"{listed(told)}. A mode of the layer decays with its own rate, so that no output converges faster.",
    )
    expected = np.minimum(config.input, np.array([*found]))[:, None]
    off = float(np.abs(rates / expected - 1).max())
    yield Claim(
        "the output converges with the smaller one of the rates of the input and of the layer",
        "beyond the paper",
        f"relative error at most {off:.2g}",
        rules.ours(rules.at_most(off, config.close)),
        f"Over {rates.size} layers; at most {config.close:g} holds.",
    )
    after = dict(zip(ACTIVATIONS, activated(stages)["rates"], strict=True))
    least = {name: float(after[name].min()) for name in LIPSCHITZ}
    good = [value >= (1 - config.close) * config.input for value in least.values()]
    yield Claim(
        "a Lipschitz activation keeps exponential convergence, with the same rate",
        "proposition 3.12",
        f"smallest rates: {listed(least)}",
        rules.most(sum(good), len(good)),
        f"At the limits {listed(config.limits, 'g')}, from above and below; the input has {config.input:g}. An output "
        "that is constant counts as infinitely fast.",
    )
    rough = float(after["sqrt"].min())
    yield Claim(
        "without the Lipschitz condition the rate can be smaller: √|x| halves it",
        "beyond the paper",
        f"rate {rough:.3g}, where the input has {config.input:g}",
        rules.ours(rules.at_most(abs(2 * rough / config.input - 1), config.close)),
        f"At x* = 0; within {config.close:g} of one half holds.",
    )


run = computing(layer, activated)
SMOKE = DecayConfig(slowest=(0.25, 1.0), seeds=2, dt=0.1, decades=5.0)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=DecayConfig(), minutes=(0.05, 0.1))
