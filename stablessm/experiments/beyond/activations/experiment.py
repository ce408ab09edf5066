"""Memory and growth of random continuous RNNs with four activations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, memories, rules
from stablessm.instruments import MemoryCurve, memory_function
from stablessm.layers import ContinuousRNN
from stablessm.report.figure import Figure

ACTIVATIONS = ("hardtanh", "tanh", "sigmoid", "relu")
ENSEMBLES = ("dissipative", "Hurwitz", "unstable")
STABLE = ENSEMBLES[:2]


@dataclass(frozen=True)
class ActivationConfig:
    """Sizes."""

    width: int = 32
    margin: float = 0.25
    dt: float = 0.1
    horizon: int = 10000
    samples: int = 8
    seeds: int = 16
    explodes: float = 1e3
    """Growth from the first to the second half of the horizon from which on a memory explodes."""


def shifted(ensemble: str, width: int, margin: float) -> Tensor:
    """Return a shifted Gaussian matrix whose symmetric part or whose largest eigenvalue has the given margin."""
    G = torch.randn(width, width, dtype=torch.float64) * width**-0.5
    largest = torch.linalg.eigvalsh((G + G.mT) / 2) if ensemble == "dissipative" else torch.linalg.eigvals(G).real
    shift = float(largest.max()) + (-margin if ensemble == "unstable" else margin)
    return G - shift * torch.eye(width, dtype=torch.float64)


def build(config: ActivationConfig, activation: str, ensemble: str) -> ContinuousRNN:
    """Return a model; all activations have the same weights."""
    W = shifted(ensemble, config.width, config.margin)
    layer = ContinuousRNN(1, config.width, 1, activation=activation, dt=config.dt).double()
    with torch.no_grad():
        layer.M.copy_(W)
    return layer


def _measure_memories(config: ActivationConfig, run: Run, activation: str, ensemble: str) -> None:
    def measure(seed: int) -> MemoryCurve:
        model = memories.seeded(seed, partial(build, config, activation, ensemble))
        return memory_function(model, config.horizon, samples=config.samples, linear=False, progress=False)

    memories.survey(run, f"{activation}-{ensemble}", config.seeds, measure)


def growth(curves: list[MemoryCurve]) -> np.ndarray:
    """Return the largest memory in the second half over that in the first, for each."""
    halves = [np.array_split(curve.value, 2) for curve in curves]
    return np.array([late.max() / early.max() for early, late in halves])


def run(config: ActivationConfig, run: Run) -> None:
    """Measure every curve."""
    for ensemble in ENSEMBLES:
        for activation in ACTIVATIONS:
            _measure_memories(config, run, activation, ensemble)


def figures(config: ActivationConfig, stages: Stages) -> list[Figure]:
    """Return memories of one model of each ensemble with every activation."""
    panels = [
        memories.panel(
            f"{ensemble}, seed 0",
            {a: memories.surveyed(stages, f"{a}-{ensemble}")[0] for a in ACTIVATIONS},
            "time",
            "log",
        )
        for ensemble in ENSEMBLES
    ]
    caption = (
        "Memory with the same W, U and C and four activations. On these axes a power law is a straight line (sigmoid) "
        "and an exponential bends down."
    )
    return [Figure("memory", caption, panels)]


def claims(config: ActivationConfig, stages: Stages) -> list[Claim]:
    """Check that tanh and ReLU forget exponentially, a sigmoid as a power, and that only ReLU can explode."""
    found = {a: {e: memories.surveyed(stages, f"{a}-{e}") for e in ENSEMBLES} for a in ACTIVATIONS}
    stable = {a: [curve for e in STABLE for curve in found[a][e]] for a in ACTIVATIONS}
    n = len(stable["tanh"])
    claims = []
    for activation in ("hardtanh", "tanh", "relu"):
        kinds = {e: memories.tally(found[activation][e]) for e in STABLE}
        hits = sum(kind["exponential"] for kind in kinds.values())
        verdict = rules.most_seen(sum(kinds.values(), Counter()))
        linear = (
            ""
            if activation == "relu"
            else f"; the slowest linear mode of the Hurwitz models has the rate {config.margin:g}"
        )
        claims.append(
            Claim(
                f"a stable {activation} RNN forgets exponentially",
                "not treated" if activation == "relu" else "exponential (theorems 4.8 and A.6)",
                "; ".join(f"{e}: {memories.listed(kind)}" for e, kind in kinds.items()),
                rules.ours(verdict) if activation == "relu" else verdict,
                f"{hits} of {n}; rates "
                + ", ".join(f"{e} {memories.span(memories.rates(found[activation][e]))}" for e in STABLE)
                + f"{linear}.",
            )
        )
    slopes = np.array([memories.octave_slopes(curve) for curve in stable["sigmoid"]])
    powers = sum(map(memories.is_power, stable["sigmoid"]))
    claims.append(
        Claim(
            "a sigmoid RNN also forgets exponentially",
            "not treated; the argument for tanh needs σ(0) = 0",
            f"no: {powers} of {n} fall as a power of t, t^-{np.median(slopes[:, 1]):.2f} in the median",
            rules.ours(rules.graded(powers == 0, 2 * powers <= n)),
            f"dh/dt = σ(·) > 0 never settles: s = e^z obeys ds/dt = s W s (Lotka and Volterra), s falls as 1/t and "
            f"differences as other powers. Log-log slopes of the last octaves: medians {np.median(slopes[:, 0]):.2f}, "
            f"then {np.median(slopes[:, 1]):.2f}; an exponential doubles them. Classified as "
            f"{memories.listed(memories.tally(stable['sigmoid']))}.",
        )
    )
    factor = {a: growth(found[a]["unstable"]) for a in ACTIVATIONS}
    exploded = {a: int((ratio > config.explodes).sum()) for a, ratio in factor.items()}
    bounded = all(count == 0 for a, count in exploded.items() if a != "relu")
    decaying = memories.tally(found["relu"]["unstable"])["exponential"]
    claims.append(
        Claim(
            "an unstable ReLU RNN grows exponentially, bounded activations do not",
            "not treated",
            ", ".join(f"{a} {count} of {config.seeds}" for a, count in exploded.items())
            + f" grow more than {config.explodes:g}-fold",
            rules.ours(rules.graded(bounded and exploded["relu"] == config.seeds, bounded)),
            f"The largest growth is {factor['relu'].max():.1e} with ReLU and "
            f"{max(ratio.max() for a, ratio in factor.items() if a != 'relu'):.2g} with the others; {decaying} of "
            f"{config.seeds} ReLU models still decay: only the part of W between active units counts; tanh: "
            f"{memories.listed(memories.tally(found['tanh']['unstable']))}.",
        )
    )
    return claims


EXPERIMENT = Experiment(
    id="ext-activations",
    title="Activations and memory",
    source="beyond the papers; IAT, equation 1",
    question="Does the memory of random RNNs decay exponentially with hardtanh, tanh, sigmoid and ReLU?",
    claim="With tanh and hardtanh, if the RNN is stable; the papers do not treat sigmoid and ReLU.",
    configs={"smoke": ActivationConfig(width=8, horizon=400, samples=4, seeds=2), "paper": ActivationConfig()},
    minutes={"smoke": 0.1, "paper": 10.0},
    run=run,
    figures=figures,
    claims=claims,
)
