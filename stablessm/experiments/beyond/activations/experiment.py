"""Measures memory functions of random continuous-time RNNs, stable and unstable, with four activation functions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Stages, computing, described, memories, rules
from stablessm.experiments.frame.words import span
from stablessm.instruments import MemoryCurve, memory_function
from stablessm.layers import ContinuousRNN

ACTIVATIONS = ("hardtanh", "tanh", "sigmoid", "relu")
ENSEMBLES = ("dissipative", "Hurwitz", "unstable")
STABLE = ENSEMBLES[:2]


@dataclass(frozen=True)
class ActivationConfig:
    """Settings of ``ext-activations``: size and number of the RNNs, time grid, and horizon. A memory function explodes
    if its maximum over the second half of the horizon is more than ``explodes`` times its maximum over the first half.
    """

    width: int = 32
    margin: float = 0.25
    dt: float = 0.1
    horizon: int = 10000
    samples: int = 8
    seeds: int = 16
    explodes: float = 1e3
    """Smallest growth, from the first to the second half of the horizon, of a memory function that counts as
    exploding."""


def shifted(ensemble: str, width: int, margin: float) -> Tensor:
    """Return a random matrix G - s I, where G is Gaussian, I is the identity matrix, and the number s depends on
    ``ensemble``.

    ``dissipative``: the largest eigenvalue of the symmetric part of G - s I is -margin. ``Hurwitz``: the largest real
    part of the eigenvalues of G - s I is -margin. ``unstable``: this largest real part is +margin.
    """
    G = torch.randn(width, width, dtype=torch.float64) * width**-0.5
    largest = torch.linalg.eigvalsh((G + G.mT) / 2) if ensemble == "dissipative" else torch.linalg.eigvals(G).real
    shift = float(largest.max()) + (-margin if ensemble == "unstable" else margin)
    return G - shift * torch.eye(width, dtype=torch.float64)


def build(config: ActivationConfig, activation: str, ensemble: str) -> ContinuousRNN:
    """Return a random RNN. Its recurrent matrix is drawn by :func:`shifted` for this ``ensemble``. The weights do not
    depend on the activation: for the same ``ensemble``, calls with the same state of torch's random generator return
    RNNs with the same weights.
    """
    W = shifted(ensemble, config.width, config.margin)
    layer = ContinuousRNN(1, config.width, 1, activation=activation, dt=config.dt).double()
    with torch.no_grad():
        layer.M.copy_(W)
    return layer


@memories.survey("{activation}-{ensemble}", over=lambda config: [(a, e) for e in ENSEMBLES for a in ACTIVATIONS])
def curves(config: ActivationConfig, seed: int, activation: str, ensemble: str) -> MemoryCurve:
    """Return the memory function of the random RNN with this seed, activation and kind of matrix (dissipative, Hurwitz
    or unstable).
    """
    model = memories.seeded(seed, partial(build, config, activation, ensemble))
    return memory_function(model, config.horizon, samples=config.samples, linear=False, progress=False)


def growth(curves: list[MemoryCurve]) -> np.ndarray:
    """Return the growth of each memory function, (curves,): its maximum over the second half of the horizon divided by
    its maximum over the first half.
    """
    halves = [np.array_split(curve.value, 2) for curve in curves]
    return np.array([late.max() / early.max() for early, late in halves])


def figures(config: ActivationConfig, stages: Stages) -> Figures:
    """Yield a figure of the memory functions: one panel per kind of matrix, one line per activation."""
    panels = []
    for ensemble in ENSEMBLES:
        first = {a: curves(stages, a, ensemble)[0] for a in ACTIVATIONS}
        panels.append(memories.panel(f"{ensemble}, seed 0", first, "time", "log"))
    yield Figure(
        "memory",
        "Memory with the same W, U and C and four activations. On these axes a power law is a straight line (sigmoid) "
        "and an exponential bends down.",
        panels,
    )


def claims(config: ActivationConfig, stages: Stages) -> Claims:
    """Yield claims with their verdicts. Stable RNNs forget exponentially with each of the four activations (hardtanh,
    tanh, ReLU and sigmoid). Among unstable RNNs, only the memory of RNNs with ReLU explodes.
    """
    found = curves.all(config, stages)
    n = len(STABLE) * config.seeds
    for activation in ("hardtanh", "tanh", "relu"):
        kinds = {e: memories.tally(found[activation, e]) for e in STABLE}
        total = sum(kinds.values(), Counter())
        rates = ", ".join(f"{e} {span(memories.rates(found[activation, e]))}" for e in STABLE)
        linear = f"; the slowest linear mode of the Hurwitz models has the rate {config.margin:g}"
        yield Claim(
            f"a stable {activation} RNN forgets exponentially",
            "not treated" if activation == "relu" else "exponential (theorems 4.8 and A.6)",
            "; ".join(f"{e}: {memories.listed(kind)}" for e, kind in kinds.items()),
            rules.ours(rules.most_seen(total)) if activation == "relu" else rules.most_seen(total),
            f"{total['exponential']} of {n}; rates {rates}{'' if activation == 'relu' else linear}.",
        )
    sigmoid = [curve for e in STABLE for curve in found["sigmoid", e]]
    earlier, later = np.median([memories.octave_slopes(curve) for curve in sigmoid], axis=0)
    powers = sum(map(memories.is_power, sigmoid))
    yield Claim(
        "a sigmoid RNN also forgets exponentially",
        "not treated; the argument for tanh needs σ(0) = 0",
        f"no: {powers} of {n} fall as a power of t, t^-{later:.2f} in the median",
        rules.ours(rules.graded(powers == 0, 2 * powers <= n)),
        "dh/dt = σ(·) > 0 never settles: s = e^z obeys ds/dt = s W s (Lotka and Volterra), s falls as 1/t and "
        f"differences as other powers. Log-log slopes of the last octaves: medians {earlier:.2f}, then {later:.2f}; an "
        f"exponential doubles them. Classified as {memories.listed(memories.tally(sigmoid))}.",
    )
    factor = {a: growth(found[a, "unstable"]) for a in ACTIVATIONS}
    exploded = {a: int((ratio > config.explodes).sum()) for a, ratio in factor.items()}
    bounded = all(count == 0 for a, count in exploded.items() if a != "relu")
    kinds = {a: memories.tally(found[a, "unstable"]) for a in ("relu", "tanh")}
    yield Claim(
        "an unstable ReLU RNN grows exponentially, bounded activations do not",
        "not treated",
        ", ".join(f"{a} {count} of {config.seeds}" for a, count in exploded.items())
        + f" grow more than {config.explodes:g}-fold",
        rules.ours(rules.graded(bounded and exploded["relu"] == config.seeds, bounded)),
        f"The largest growth is {factor['relu'].max():.1e} with ReLU and "
        f"{max(ratio.max() for a, ratio in factor.items() if a != 'relu'):.2g} with the others; "
        f"{kinds['relu']['exponential']} of {config.seeds} ReLU models still decay: only the part of W between active "
        f"units counts; tanh: {memories.listed(kinds['tanh'])}.",
    )


run = computing(curves)
SMOKE = ActivationConfig(width=8, horizon=400, samples=4, seeds=2)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=ActivationConfig(), minutes=(0.1, 10.0))
