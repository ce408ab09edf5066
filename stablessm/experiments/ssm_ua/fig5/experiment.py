"""Measures memory functions of random RNNs, GRUs, LSTMs and SSMs, with recurrent weights of several sizes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import nn

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, described, memories, rules
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.stage import computing, stage
from stablessm.experiments.frame.words import span
from stablessm.instruments import MemoryCurve, memory_function
from stablessm.layers import ContinuousRNN
from stablessm.report.figure import Figure, Panel

FAMILIES = ("RNN", "GRU", "LSTM", "SSM")


@dataclass(frozen=True)
class RandomConfig:
    """Settings of ``su-fig5``: sizes, horizons, seeds and gains. The paper gives no values; the default horizon is as
    in the authors' code. A gain is a factor by which the recurrent weights are multiplied.
    """

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
    """Return a linear layer h[k+1] = W h[k] + U x + b, y = C h. All weights are initialized as in ``torch.nn.RNN``, and
    then W is multiplied by ``gain``.
    """
    layer = ContinuousRNN(d_input, width, width, activation="linear", dt=1.0)  # Euler: h + (W - 1) h + …
    with torch.no_grad():
        for weight in layer.parameters():
            nn.init.uniform_(weight, -(width**-0.5), width**-0.5)
        layer.M.mul_(gain).sub_(torch.eye(width))
    return layer


def build(config: RandomConfig, family: str, gain: float) -> memories.Chain:
    """Return a random model of an architecture (``RNN``, ``GRU``, ``LSTM`` or ``SSM``) with one input and one output
    channel. The recurrent weights of the model are multiplied by ``gain``.
    """
    m = config.width
    if family == "SSM":
        layers = [(naive_ssm(m if depth else 1, m, gain), nn.Tanh()) for depth in range(config.layers)]
        return memories.Chain(*[module for pair in layers for module in pair][:-1], nn.Linear(m, 1))
    recurrence = getattr(nn, family)(1, m, config.layers, batch_first=True)
    with torch.no_grad():
        for name, weight in recurrence.named_parameters():
            weight.mul_(gain if name.startswith("weight_hh") else 1.0)
    return memories.Chain(recurrence, nn.Linear(m, 1))


def measured(config: RandomConfig, seed: int, family: str, gain: float, horizon: int) -> MemoryCurve:
    """Return the memory function of one random model with this seed, architecture (``family``) and gain of the
    recurrent weights.
    """
    model = memories.seeded(seed, partial(build, config, family, gain))
    return memory_function(model, horizon, d_input=1, norm="unit", progress=False)


@memories.survey("{family}", over=lambda config: FAMILIES)
def plain(config: RandomConfig, seed: int, family: str) -> MemoryCurve:
    """Return the memory function of a random model of an architecture (``family``), whose recurrent weights are not
    scaled (gain 1).
    """
    return measured(config, seed, family, 1.0, config.horizon)


@memories.survey(
    "{family}-gain-{gain:g}",
    over=lambda config: product(FAMILIES, config.gains),
    seeds=lambda config: config.gain_seeds,
)
def scaled(config: RandomConfig, seed: int, family: str, gain: float) -> MemoryCurve:
    """Return the memory function of a random model of an architecture (``family``), whose recurrent weights are
    multiplied by ``gain``.
    """
    return measured(config, seed, family, gain, config.gain_horizon)


@stage("radius-{gain:g}", over=lambda config: config.gains)
def radii(config: RandomConfig, run: Run, gain: float) -> dict[str, list[float]]:
    """Return for each seed the largest modulus |λ| of the eigenvalues of the random SSM whose recurrent weights are
    multiplied by ``gain``.
    """
    models = [memories.seeded(seed, partial(build, config, "SSM", gain)) for seed in range(config.gain_seeds)]
    layers = [[layer for layer in model if isinstance(layer, ContinuousRNN)] for model in models]
    with torch.no_grad():
        return {"radius": [max(float((1 + each.eigenvalues()).abs().max()) for each in group) for group in layers]}


def figures(config: RandomConfig, stages: Stages) -> Figures:
    """Yield the published figure of memory functions, and a figure of how the memory depends on the size of the
    recurrent weights.
    """
    panels = []
    for family, curves in plain.all(config, stages).items():
        named = {f"seed {i}": curve for i, curve in enumerate(curves[: config.shown])}
        panels.append(memories.panel(family, named, "steps"))
    yield Figure("memory", "Memory of randomly initialized models above rounding: straight lines.", panels)
    gains = {family: [scaled(stages, family, gain) for gain in config.gains] for family in FAMILIES}
    shares = {f: [memories.tally(found)["exponential"] / len(found) for found in rows] for f, rows in gains.items()}
    drawn = lines(config.gains, shares, "both")
    at = {f"gain {gain:g}": found[0] for gain, found in zip(config.gains, gains["RNN"], strict=True)}
    yield Figure(
        "gain",
        f"Recurrent weights multiplied by a gain, over {config.gain_horizon} steps. Left: how many of "
        f"{config.gain_seeds} models decay exponentially. Right: one RNN.",
        [
            Panel("exponential decay", "gain of the recurrent weights", "share that decays exponentially", drawn),
            memories.panel("RNN, seed 0", at, "steps"),
        ],
    )


def claims(config: RandomConfig, stages: Stages) -> Claims:
    """Yield claims with their verdicts: the memory of all randomly initialized models decays exponentially; with larger
    recurrent weights, the memory of an SSM does so only while the SSM is stable.
    """
    for family, curves in plain.all(config, stages).items():
        kinds, rates = memories.tally(curves), memories.rates(curves)
        yield Claim(
            f"a random {family} has exponentially decaying memory",
            "exponential",
            f"{memories.listed(kinds)} of {config.seeds} seeds; rates {span(rates)} per step",
            rules.most_seen(kinds),
            f"Over {config.horizon} steps {kinds['exponential']} of {config.seeds} models fall to rounding level, or "
            "to the end, along a straight line; the slowest e-folding time is "
            f"{1 / min(rates, default=float('nan')):.3g} steps.",
        )
    pairs = [
        (radius, curve, curve.decay().kind)
        for gain, found in radii.all(config, stages).items()
        for radius, curve in zip(found["radius"].tolist(), scaled(stages, "SSM", gain), strict=True)
    ]
    stable, unstable = (memories.tally(c for radius, c, _ in pairs if (radius < 1) is low) for low in (True, False))
    clear = [(radius, kind) for radius, _, kind in pairs if kind != "undecided"]
    against = [radius for radius, kind in clear if (radius < 1) is not (kind == "exponential")]
    others = {f: memories.tally(scaled(stages, f, max(config.gains))) for f in FAMILIES if f != "SSM"}
    near = f"; the others have |λ| = {span(against)}, too close to 1 for this horizon" if against else ""
    yield Claim(
        "an SSM decays exponentially if its eigenvalues are bounded by 1",
        "theorem 3.13 assumes that W is stable",
        f"largest |λ| < 1: {memories.listed(stable)}; otherwise: {memories.listed(unstable)}",
        rules.seen(len(pairs) - len(clear), len(pairs), rules.most(len(clear) - len(against), len(clear))),
        f"{len(clear) - len(against)} of the {len(clear)} models whose decay is clear agree{near}. Recurrent weights "
        f"{max(config.gains):g} times as large, over {config.gain_horizon} steps: "
        + "; ".join(f"{family} {memories.listed(kinds)}" for family, kinds in others.items())
        + ". Figure 5 therefore holds for the usual initialization, not for all random weights.",
    )


run = computing(plain, scaled, radii)
SMOKE = RandomConfig(width=16, horizon=160, seeds=3, gains=(1.0, 3.0), gain_horizon=96, gain_seeds=2, shown=3)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=RandomConfig(), minutes=(0.1, 3.0))
