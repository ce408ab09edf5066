"""Trains tanh RNNs on a nonlinear functional with polynomial memory, and measures their perturbation errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal, TypeAlias

import torch

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Run, Stages, described, families, kept, rules
from stablessm.experiments.frame.training import Training, best_of_seeds, noise, noisy, rnn_mean_square, train
from stablessm.experiments.frame.words import listed
from stablessm.experiments.iat.exponential_sums import SEARCHES, Search
from stablessm.instruments import PerturbationCurve, PerturbationFamily, perturbation_error
from stablessm.layers import ContinuousRNN
from stablessm.targets import NonlinearFunctional

Norm: TypeAlias = Literal["mse", "sobolev"]

TARGET = NonlinearFunctional("polynomial", exponent=1.5, dt=0.1)
PUBLISHED = Training(samples=12_800, batch=128, epochs=1000, lr=0.005, graphed=True)
NORMS: dict[Norm, str] = {"mse": "mean square", "sobolev": "Sobolev norm"}
VALIDATION, TEST = 1, 2
"""Seeds of the validation and test inputs."""


@dataclass(frozen=True)
class Config:
    """Settings of ``ia-fig2``: widths, training, perturbations and thresholds. Where IAT, appendix C gives a value,
    this value is the default.
    """

    widths: tuple[int, ...] = (2, 4, 8, 16, 32)
    length: int = 32
    """Length of training inputs, in steps of 0.1."""
    horizons: tuple[int, ...] = (32, 100)
    """Horizons of the errors: the training length and the published horizon."""
    training: Training = PUBLISHED
    seeds: int = 4
    radii: tuple[float, ...] = (0.0, *(1e-11 * 2.0**k for k in range(36)))
    draws: int = 3
    steps: int = 20
    """Number of steps of gradient ascent."""
    rows: int = 64
    """Number of inputs on which errors are measured."""
    goal: float = 1e-8
    """The functional counts as approximated if the training loss of the widest model is at most this value."""


def start(width: int, seed: int) -> ContinuousRNN:
    """Return an untrained RNN whose time scales range from 0.1 to 100; its recurrent matrix has random eigenvectors."""
    torch.manual_seed(seed)
    return ContinuousRNN(1, width, 1, activation="tanh", dt=TARGET.dt).double()


def trained(config: Config, run: Run) -> dict[int, ContinuousRNN]:
    """Train RNNs of all widths and seeds. For each width, return the RNN with the smallest error on inputs that are as
    long as the longest horizon.
    """
    batch = cache(noisy(TARGET, config.training, config.length))
    starts = [start(m, seed) for m in config.widths for seed in range(config.seeds)]
    models = train(run, "training", starts, rnn_mean_square, batch, config.training).models
    x = noise(VALIDATION, 0, config.rows, max(config.horizons), 1)
    return best_of_seeds(models, config.widths, x, TARGET)[0]


@kept(PerturbationCurve, "{norm}-{horizon}-{width}-{search}")
def curve(config: Config, run: Run, horizon: int, norm: Norm, search: Search, width: int) -> PerturbationCurve:
    """Return the perturbation errors E_m(β) of the trained RNN of width m: the largest error after a perturbation of
    size β of all weights.
    """
    inputs = noise(TEST, 0, config.rows, horizon, 1) if norm == "mse" else None
    return perturbation_error(
        trained(config, run)[width], TARGET, config.radii, norm=norm, search=search, samples=config.draws,
        steps=config.steps, horizon=horizon, inputs=inputs, progress=False,
    )  # fmt: skip


def family(config: Config, stages: Stages, horizon: int, norm: Norm, search: Search) -> PerturbationFamily:
    """Return the perturbation errors of the trained RNNs of all widths as a :class:`PerturbationFamily`."""
    return PerturbationFamily({m: curve(stages, horizon, norm, search, m) for m in config.widths})


def run(config: Config, run: Run) -> None:
    """Train the RNNs of all widths and seeds. Then measure the perturbation errors of one RNN per width, the one with
    the smallest error.
    """
    models = trained(config, run).values()
    run.stage("spectrum", lambda: {"abscissa": torch.stack([m.eigenvalues().real.max() for m in models]).detach()})
    for key in product(config.horizons, NORMS, SEARCHES, config.widths):
        curve.compute(config, run, *key)


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure of the perturbation errors. It has one panel for each combination of two norms and two horizons;
    one of the panels repeats the published figure.
    """
    panels = []
    for horizon, norm in product(config.horizons, NORMS):
        found = (family(config, stages, horizon, norm, search) for search in SEARCHES)
        title = f"{NORMS[norm]}, t ≤ {horizon * TARGET.dt:.3g}"
        panels.append(families.panel(title, found, f", {config.draws} draws", "E_m(β)"))
    yield Figure(
        "perturbation",
        "Perturbation error of tanh RNNs trained on a nonlinear functional of memory C/(t+1)^1.5. Lines: the worst "
        "weights that gradient ascent finds; points: random draws, as published.",
        panels,
    )


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on how well the RNNs approximate the target, and on whether the approximation
    is stable.
    """
    losses = stages["training"]["losses"][-1].reshape(-1, config.seeds).min(1)
    falls = bool((losses[1:] < losses[:-1]).all())
    yield Claim(
        "wider tanh RNNs approximate the functional better",
        "achieved at 1000 epochs; training stops at a loss of 1e-8",
        f"training loss {listed(losses, '.1e')} for m = {listed(config.widths, '')}",
        rules.graded(falls and losses[-1] <= config.goal, losses[-1] < losses[0]),
        f"Best of {config.seeds} seeds after {config.training.epochs} epochs: {losses[0] / losses[-1]:.2g} times lower "
        f"at m = {config.widths[-1]} than at m = {config.widths[0]}, {losses[-1] / config.goal:.2g} times the "
        "published threshold.",
    )
    found = {
        f"t ≤ {horizon * TARGET.dt:.3g}, {NORMS[norm]}, {search}": families.improving(
            family(config, stages, horizon, norm, search)
        )
        for horizon, norm, search in product(config.horizons, NORMS, SEARCHES)
    }
    verdicts = {name: one.verdict() for name, one in found.items()}
    closest = next(name for name in found if name.endswith("ascent"))
    meets = ", ".join(f"{min(c.radii):.2g}" if c.radii else "none" for c in found[closest].crossings())
    evidence = families.evidence({f"{name}, m ≤ {found[name].widths[-1]}": v for name, v in verdicts.items()})
    yield Claim(
        "polynomial memory has no stable approximation: the crossings move left as m grows",
        "figure 2: intersections shift left",
        "; ".join(f"{name}: {families.STABILITY[v.stable]}" for name, v in verdicts.items()),
        rules.some([None if verdict.stable is None else not verdict.stable for verdict in verdicts.values()]),
        f"{evidence} Consecutive curves first cross, {closest}, at β = {meets}. Wider models that are no better after "
        "training than narrower ones are left out. The largest real parts of eigenvalues are "
        f"{listed(stages['spectrum']['abscissa'], '.2g')}.",
    )


SMOKE = Config(
    widths=(2, 4, 8), length=16, horizons=(16, 32),
    training=Training(samples=128, batch=16, epochs=3, lr=0.005, device="cpu"), seeds=2, radii=(0.0, 1e-6, 1e-3, 0.1),
    draws=2, steps=3, rows=8,
)  # fmt: skip
LARGE = Config(length=100, horizons=(100, 1000))
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMOKE, paper=Config(), large=LARGE, minutes=(0.1, 120.0, 25.0)
)
