"""The memory of random RNNs, GRUs, LSTMs and SSMs, and its dependence on the size of the recurrent weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, memories, rules
from stablessm.instruments import MemoryCurve, memory_function
from stablessm.layers import ContinuousRNN
from stablessm.report.figure import Figure, Panel, Series

FAMILIES = ("RNN", "GRU", "LSTM", "SSM")


@dataclass(frozen=True)
class RandomConfig:
    """Sizes of the experiment. The paper gives none; the horizon comes from the authors' code."""

    width: int = 64
    layers: int = 2
    horizon: int = 1024
    seeds: int = 32
    gains: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 3.0)
    """Factors of the recurrent weights; with PyTorch's initialization, U(-1/√m, 1/√m), the spectral radius is 0.58."""
    gain_horizon: int = 512
    gain_seeds: int = 16
    shown: int = 6


def naive_ssm(d_input: int, width: int, gain: float) -> ContinuousRNN:
    """Return h[k+1] = W h[k] + U x + b, y = C h, with weights as in ``torch.nn.RNN`` and W multiplied by ``gain``."""
    layer = ContinuousRNN(d_input, width, width, activation="linear", dt=1.0)  # Euler: h + (W - 1) h + …
    with torch.no_grad():
        for weight in layer.parameters():
            nn.init.uniform_(weight, -(width**-0.5), width**-0.5)
        layer.M.mul_(gain).sub_(torch.eye(width))
    return layer


def build(config: RandomConfig, family: str, gain: float) -> memories.Chain:
    """Return a model with one input and one output channel."""
    m = config.width
    if family == "SSM":
        layers = [(naive_ssm(m if depth else 1, m, gain), nn.Tanh()) for depth in range(config.layers)]
        return memories.Chain(*[module for pair in layers for module in pair][:-1], nn.Linear(m, 1))
    recurrence = getattr(nn, family)(1, m, config.layers, batch_first=True)
    with torch.no_grad():
        for name, weight in recurrence.named_parameters():
            weight.mul_(gain if name.startswith("weight_hh") else 1.0)
    return memories.Chain(recurrence, nn.Linear(m, 1))


def scaled(config: RandomConfig, stages: Stages, family: str) -> dict[float, list[MemoryCurve]]:
    """Return the memory of every seed for every gain."""
    return {gain: memories.surveyed(stages, f"{family}-gain-{gain:g}") for gain in config.gains}


def _measure(config: RandomConfig, run: Run, name: str, family: str, gain: float, horizon: int, seeds: int) -> None:
    def measure(seed: int) -> MemoryCurve:
        model = memories.seeded(seed, partial(build, config, family, gain))
        return memory_function(model, horizon, d_input=1, norm="unit", progress=False)

    memories.survey(run, name, seeds, measure)


def run(config: RandomConfig, run: Run) -> None:
    """Measure every curve."""
    for family in FAMILIES:
        _measure(config, run, family, family, 1.0, config.horizon, config.seeds)
        for gain in config.gains:
            size = config.gain_horizon, config.gain_seeds
            _measure(config, run, f"{family}-gain-{gain:g}", family, gain, *size)
    for gain in config.gains:
        _measure_radii(config, run, gain)


def figures(config: RandomConfig, stages: Stages) -> list[Figure]:
    """Return the figure of the paper, and its dependence on the size of the weights."""
    panels = [
        memories.panel(f, {f"seed {i}": c for i, c in enumerate(memories.surveyed(stages, f)[: config.shown])}, "steps")
        for f in FAMILIES
    ]
    shares = [
        Series(f, list(gains), [memories.tally(found)["exponential"] / len(found) for found in gains.values()], "both")
        for f in FAMILIES
        if (gains := scaled(config, stages, f))
    ]
    share = Panel("who still decays", "gain of the recurrent weights", "share that decays exponentially", shares)
    at = {f"gain {gain:g}": found[0] for gain, found in scaled(config, stages, "RNN").items()}
    return [
        Figure("memory", "Memory of randomly initialized models above rounding: straight lines.", panels),
        Figure(
            "gain",
            f"Recurrent weights multiplied by a gain, over {config.gain_horizon} steps. Left: how many of "
            f"{config.gain_seeds} models decay exponentially. Right: one RNN.",
            [share, memories.panel("RNN, seed 0", at, "steps")],
        ),
    ]


def claims(config: RandomConfig, stages: Stages) -> list[Claim]:
    """Check that all models decay exponentially, the SSM as long as it is stable."""
    found = []
    for family in FAMILIES:
        measured = memories.surveyed(stages, family)
        kinds = memories.tally(measured)
        found.append(
            Claim(
                f"a random {family} has exponentially decaying memory",
                "exponential",
                f"{memories.listed(kinds)} of {config.seeds} seeds; rates {memories.span(memories.rates(measured))} "
                "per step",
                rules.most_seen(kinds),
                f"Over {config.horizon} steps {kinds['exponential']} of {config.seeds} models fall to rounding level, "
                f"or to the end, along a straight line; the slowest e-folding time is "
                f"{1 / min(memories.rates(measured), default=float('nan')):.3g} steps.",
            )
        )
    return [*found, _bounded(config, stages)]


def _bounded(config: RandomConfig, stages: Stages) -> Claim:
    """Check that an SSM decays exponentially exactly if its eigenvalues are below 1 (theorem 3.13)."""
    pairs = [
        (radius, curve)
        for gain, found in scaled(config, stages, "SSM").items()
        for radius, curve in zip(radii(stages, gain), found, strict=True)
    ]
    stable, unstable = ([curve for radius, curve in pairs if (radius < 1) is inside] for inside in (True, False))
    clear = [(radius, kind) for radius, curve in pairs if (kind := curve.decay().kind) != "undecided"]
    against = [radius for radius, kind in clear if (radius < 1) is not (kind == "exponential")]
    others = {family: scaled(config, stages, family)[max(config.gains)] for family in FAMILIES if family != "SSM"}
    why = f"{len(clear) - len(against)} of the {len(clear)} models whose decay is clear agree"
    why += f"; the others have |λ| = {memories.span(against)}, too close to 1 for this horizon" if against else ""
    return Claim(
        "an SSM decays exponentially if its eigenvalues are bounded by 1",
        "theorem 3.13 assumes that W is stable",
        f"largest |λ| < 1: {memories.listed(memories.tally(stable))}; otherwise: "
        f"{memories.listed(memories.tally(unstable))}",
        rules.seen(len(pairs) - len(clear), len(pairs), rules.most(len(clear) - len(against), len(clear))),
        f"{why}. Recurrent weights {max(config.gains):g} times as large, over {config.gain_horizon} steps: "
        + "; ".join(f"{family} {memories.listed(memories.tally(measured))}" for family, measured in others.items())
        + ". Figure 5 therefore holds for the usual initialization, not for all random weights.",
    )


def _measure_radii(config: RandomConfig, run: Run, gain: float) -> None:
    @torch.no_grad()
    def compute() -> dict[str, list[float]]:
        models = [memories.seeded(seed, partial(build, config, "SSM", gain)) for seed in range(config.gain_seeds)]
        layers = [[layer for layer in model if isinstance(layer, ContinuousRNN)] for model in models]
        return {"radius": [max(float((1 + each.eigenvalues()).abs().max()) for each in group) for group in layers]}

    run.stage(f"radius-{gain:g}", compute)


def radii(stages: Stages, gain: float) -> list[float]:
    """Return the largest |λ| of the SSM of each seed."""
    return list(stages[f"radius-{gain:g}"]["radius"].tolist())


EXPERIMENT = Experiment(
    id="su-fig5",
    title="Memory of random recurrent models",
    source="SSM-UA, figure 5",
    question="How does the memory of randomly initialized RNNs, GRUs, LSTMs and SSMs decay?",
    claim="All decay exponentially: layer-wise nonlinearity does not change the decay of a state-space model.",
    configs={
        "smoke": RandomConfig(width=16, horizon=160, seeds=3, gains=(1.0, 3.0), gain_horizon=96, gain_seeds=2, shown=3),
        "paper": RandomConfig(),
    },
    minutes={"smoke": 0.1, "paper": 3.0},
    run=run,
    figures=figures,
    claims=claims,
)
