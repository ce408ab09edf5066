"""Trains tanh RNNs on nonlinear targets with four kinds of memory, then perturbs their weights. The recurrent matrix is
trained directly or through a stable matrix map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import torch

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.families import STABILITY, improving, of_errors
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.training import Training, best_of_seeds, noise, noisy, rnn_mean_square, train
from stablessm.experiments.frame.words import listed
from stablessm.instruments import PerturbationFamily
from stablessm.layers import ContinuousRNN
from stablessm.layers.initialize import timescales
from stablessm.report.figure import Figure, Panel
from stablessm.targets import NonlinearFunctional

DT = 0.25
KERNELS = {
    "exponential": lambda t: torch.exp(-t),
    "polynomial": lambda t: (1 + t) ** -1.5,
    "stretched": lambda t: torch.exp(-t.sqrt()),
    "logarithmic": lambda t: 1 / ((1 + t) * (1 + torch.log1p(t)) ** 2),
}
"""The kernels ρ(t). The integral of the last kernel over all t > T is 1 / (1 + log(1 + T))."""
TARGETS = {kind: NonlinearFunctional(kernel, dt=DT) for kind, kernel in KERNELS.items()}
CONTRAST = "direct"
PARAMETERS: dict[str, str | None] = {"recurrent": "recurrent", "all": None}
"""Which weights are perturbed, as an argument of ``perturbation_error``."""
VALIDATION, TEST = 1, 2
"""Seeds of the validation and test inputs."""


@dataclass(frozen=True)
class NonlinearConfig:
    """Settings of ``ext-nonlinear``: maps, widths, training, perturbations, and thresholds of the claims. The defaults
    belong to the size ``reduced``.
    """

    maps: tuple[str, ...] = (CONTRAST, "neg_exp", "neg_softplus", "skew_minus_psd")
    widths: tuple[int, ...] = (2, 4, 8, 16)
    length: int = 48
    """Length of training inputs, in steps of 0.25."""
    horizon: int = 96
    """Length of the inputs on which errors are measured."""
    timescales: tuple[float, ...] = (0.6, 24.0)
    """The shortest and the longest initial time scale."""
    training: Training = Training(samples=640, batch=32, epochs=40, lr=0.01)  # noqa: RUF009 (frozen)
    seeds: int = 3
    radii: tuple[float, ...] = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
    draws: int = 2
    steps: int = 8
    """Number of steps of gradient ascent."""
    rows: int = 16
    """Number of inputs on which errors are measured."""
    good: float = 0.05
    """A target counts as approximated if the relative mean square error is at most this value."""
    factor: float = 2.0
    """A map counts as more tolerant if it tolerates perturbations at least this many times larger than the direct
    map."""


def start(config: NonlinearConfig, map: str, width: int, seed: int) -> ContinuousRNN:
    """Return an untrained RNN. RNNs of the same width and seed start with the same recurrent matrix W, input matrix U
    and output matrix C, whatever their map is.

    >>> direct, exp = (start(NonlinearConfig(), map, 4, 0) for map in ("direct", "neg_exp"))
    >>> bool((direct.recurrent_matrix() - exp.recurrent_matrix()).abs().max() < 1e-5)
    True
    """
    torch.manual_seed(seed)
    rates = -1 / timescales(width, *config.timescales)
    return ContinuousRNN(1, width, 1, activation="tanh", map=map, dt=DT, eigenvalues=rates).double()


@stage("errors-{kind}-{map}", over=lambda config: product(TARGETS, config.maps))
def errors(config: NonlinearConfig, run: Run, kind: str, map: str) -> Mapping[str, np.ndarray]:
    """Train RNNs of all widths and seeds. For each width, perturb the weights of the RNN with the smallest validation
    error, and return the errors of the perturbed RNN.

    Returns:
        ``recurrent`` and ``all`` (widths, radii): the perturbation error E_m(β), relative to the mean square of the
            target. For ``recurrent`` only the recurrent weights are perturbed, for ``all`` all weights. ``seeds``
            (widths, seeds): errors on the validation inputs. ``abscissa`` (widths,): the largest real part of the
            eigenvalues of the recurrent matrix.
    """
    target, device = TARGETS[kind], config.training.chosen_device()
    starts = [start(config, map, m, seed) for m in config.widths for seed in range(config.seeds)]
    batch = cache(noisy(target, config.training, config.length))
    models = train(run, f"training-{kind}-{map}", starts, rnn_mean_square, batch, config.training).models
    x, tested = (noise(seed, 0, config.rows, config.horizon, 1) for seed in (VALIDATION, TEST))
    best, scores = best_of_seeds(models, config.widths, x, target)
    best = {m: model.to(device) for m, model in best.items()}
    found = {
        name: PerturbationFamily.of(
            best, target, config.radii, norm="mse", search="ascent", parameters=parameters, samples=config.draws,
            steps=config.steps, inputs=tested.to(device), progress=False,
        ).errors / float(target(tested).square().mean())
        for name, parameters in PARAMETERS.items()
    }  # fmt: skip
    largest = [float(model.eigenvalues().real.max().detach()) for model in best.values()]
    return {**found, "seeds": (scores / target(x).square().mean()).numpy(), "abscissa": np.array(largest)}


def verdict(config: NonlinearConfig, table: np.ndarray) -> bool | None:
    """Return whether models of growing width approximate the target stably. ``table`` (widths, radii) has the errors of
    the models. Return None if the errors cannot decide this question, or if no model approximates the target.
    """
    family = improving(of_errors(config.widths, config.radii, table))
    return family.verdict().stable if family.errors[:, 0].min() <= config.good else None


def tolerated(config: NonlinearConfig, table: np.ndarray) -> float:
    """Return the largest radius of perturbations that the widest model tolerates: up to this radius, the error of the
    perturbed widest model is smaller than the error of the narrowest model without perturbation. ``table`` (widths,
    radii) has the errors.

    Between the radii of the settings the errors are interpolated linearly. Return 0 if the widest model tolerates no
    radius, and the largest radius of the settings if it tolerates all of them.
    """
    wide, limit, radii = table[-1], table[0, 0], np.array(config.radii)
    lost = np.flatnonzero(~(wide < limit))
    if not len(lost):
        return float(radii[-1])
    if lost[0] == 0:
        return 0.0
    low, high = lost[0] - 1, lost[0]
    part = (limit - wide[low]) / (wide[high] - wide[low]) if np.isfinite(wide[high]) else 0.0
    return float(radii[low] + part * (radii[high] - radii[low]))


def figures(config: NonlinearConfig, stages: Stages) -> Figures:
    """Yield a figure of the perturbation errors E_m(β) for each kind of memory, with one panel per map."""
    for kind in TARGETS:
        panels = []
        for map in config.maps:
            table = errors(stages, kind, map)["recurrent"]
            rows = dict(zip(config.widths, table[:, 1:], strict=True))
            label = "E_m(β) / mean square of the target"
            panels.append(Panel(map, "β", label, lines(config.radii[1:], rows, "both", name="m = {}"), "log", "log"))
        yield Figure(
            f"perturbation-{kind}",
            f"Mean square error of tanh RNNs trained on a nonlinear target of {kind} memory, with the worst recurrent "
            "weights within a distance β that gradient ascent finds.",
            panels,
        )


def claims(config: NonlinearConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts: are the targets approximated, with which maps is the approximation stable, and
    how large are the perturbations that the models tolerate?
    """
    found = errors.all(config, stages)
    widest = {key: float(table["recurrent"][-1, 0]) for key, table in found.items()}
    reached = sum(error <= config.good for error in widest.values())
    yield Claim(
        "the widest tanh RNN approximates every nonlinear target, with every map",
        "beyond the papers",
        "; ".join(f"{kind}: " + listed({m: widest[kind, m] for m in config.maps}, ".2g") for kind in TARGETS),
        rules.ours(rules.most(reached, len(widest))),
        f"Mean square error of width {config.widths[-1]} on new inputs of {config.horizon} steps, relative to the "
        f"target's mean square; at most {config.good:g} counts. Best of {config.seeds} seeds.",
    )
    stable = [map for map in config.maps if map != CONTRAST]
    for kind in TARGETS:
        yield from (stability(config, found, kind, maps) for maps in ([CONTRAST], stable))
    for name in PARAMETERS:
        yield tolerance(config, found, stable, name)


def stability(
    config: NonlinearConfig, found: Mapping[tuple[str, str], Mapping[str, np.ndarray]], kind: str, maps: list[str]
) -> Claim:
    """Return a claim with its verdict: the models with the given maps approximate this kind of memory stably. For the
    direct map and slow memory, the claim is that the models do not approximate this memory stably. ``found`` maps each
    pair (kind of memory, map) to the result of :func:`errors`.
    """
    judged = {map: verdict(config, found[kind, map]["recurrent"]) for map in maps}
    expected = maps != [CONTRAST] or kind == "exponential"
    agree = [None if one is None else one is expected for one in judged.values()]
    name = "stable maps" if maps != [CONTRAST] else CONTRAST
    at_0 = {map: listed(found[kind, map]["recurrent"][:, 0], ".2g", " → ") for map in maps}
    return Claim(
        f"{name}: {kind} memory of a nonlinear target has {'a' if expected else 'no'} stable approximation",
        "beyond the papers" if maps != [CONTRAST] else "beyond the paper (theorem 4.8 without a map)",
        ", ".join(f"{map} {STABILITY[one]}" for map, one in judged.items()),
        rules.ours(rules.some(agree)),
        f"Recurrent weights perturbed, widths {listed(config.widths, '')}, up to the last that improves. Relative "
        f"errors without perturbation: {'; '.join(f'{map} {text}' for map, text in at_0.items())}. A map that does not "
        f"reach {config.good:g} is undecided.",
    )


def tolerance(
    config: NonlinearConfig, found: Mapping[tuple[str, str], Mapping[str, np.ndarray]], stable: list[str], name: str
) -> Claim:
    """Return a claim with its verdict: for every slow memory, stable maps tolerate clearly larger perturbations than
    the direct map. ``name`` says which weights are perturbed: ``recurrent`` or ``all``. ``found`` maps each pair (kind
    of memory, map) to the result of :func:`errors`.
    """
    radii = {key: tolerated(config, table[name]) for key, table in found.items()}
    slow = [kind for kind in TARGETS if kind != "exponential"]
    cases = [(radii[kind, map], radii[kind, CONTRAST]) for kind, map in product(slow, stable)]
    hits = sum(own > 0 and own >= config.factor * direct for own, direct in cases)
    perturbed = "the recurrent weights" if name == "recurrent" else "all weights"
    return Claim(
        f"if {perturbed} are perturbed, stable maps tolerate {config.factor:g} times as much as direct",
        "beyond the papers",
        "; ".join(f"{kind}: " + listed({map: radii[kind, map] for map in config.maps}, ".2g") for kind in TARGETS),
        rules.ours(rules.most(hits, len(cases))),
        f"The largest β up to which the widest model is better than the narrowest model without perturbation (largest "
        f"tried: {config.radii[-1]:g}). {hits} of {len(cases)} pairs of a stable map and a slow memory agree.",
    )


run = computing(errors)
SMOKE = NonlinearConfig(
    widths=(2, 3, 4), length=6, horizon=8, training=Training(samples=16, batch=8, epochs=2, device="cpu"), seeds=2,
    radii=(0.0, 0.1, 1.0), draws=1, steps=1, rows=4,
)  # fmt: skip
LARGE = NonlinearConfig(
    widths=(2, 4, 8, 16, 32), length=64, horizon=128, timescales=(0.6, 32.0),
    training=Training(samples=12_800, batch=128, epochs=20, lr=0.01), seeds=8,
    radii=(0.0, *(1e-3 * 10 ** (k / 2) for k in range(7))), draws=4, steps=20, rows=64,
)  # fmt: skip
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMOKE, reduced=NonlinearConfig(), large=LARGE, minutes=(0.2, 12.0, 10.0),
    jobs=errors.jobs,
)  # fmt: skip
