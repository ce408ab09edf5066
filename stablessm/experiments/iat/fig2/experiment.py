"""Perturbation errors of tanh RNNs trained on a nonlinear functional with polynomial memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Literal

import torch

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.frame.families import improving, lines
from stablessm.experiments.frame.training import Batch, Training, mean_square, noise, rnn_mean_square, train
from stablessm.instruments import PerturbationCurve, PerturbationFamily, perturbation_error
from stablessm.layers import ContinuousRNN
from stablessm.report.figure import Figure, Panel
from stablessm.targets import NonlinearFunctional

TARGET = NonlinearFunctional("polynomial", exponent=1.5, dt=0.1)
PUBLISHED = Training(samples=12_800, batch=128, epochs=1000, lr=0.005, graphed=True)
NORMS: dict[Literal["mse", "sobolev"], str] = {"mse": "mean square", "sobolev": "Sobolev norm"}
SEARCHES: tuple[Literal["random", "ascent"], ...] = ("random", "ascent")
VALIDATION, TEST = 1, 2
"""Seeds of the validation and test inputs."""


@dataclass(frozen=True)
class Config:
    """Sizes of the experiment. The defaults are the sizes in IAT, appendix C, where the paper gives them."""

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
    """Training loss of the widest model at which the functional counts as approximated."""


def start(width: int, seed: int) -> ContinuousRNN:
    """Return an RNN with time scales from 0.1 to 100 in a random basis."""
    torch.manual_seed(seed)
    return ContinuousRNN(1, width, 1, activation="tanh", dt=TARGET.dt).double()


def trained(config: Config, run: Run) -> list[ContinuousRNN]:
    """Return for each width the best of the seeds over the whole horizon."""
    device = config.training.chosen_device()

    @cache
    def batch(k: int) -> Batch:
        x = noise(0, k, config.training.batch, config.length, 1).to(device)
        return x, TARGET(x)

    starts = [start(m, seed) for m in config.widths for seed in range(config.seeds)]
    models = train(run, "training", starts, rnn_mean_square, batch, config.training).models
    x = noise(VALIDATION, 0, config.rows, max(config.horizons), 1)
    with torch.no_grad():
        errors = torch.stack([mean_square(model, x, TARGET(x)) for model in models]).reshape(-1, config.seeds)
    best = errors.nan_to_num(torch.inf).argmin(1).tolist()
    return [models[i * config.seeds + seed] for i, seed in enumerate(best)]


def _measure_family(
    config: Config, run: Run, horizon: int, norm: Literal["mse", "sobolev"], search: Literal["random", "ascent"]
) -> None:
    inputs = noise(TEST, 0, config.rows, horizon, 1) if norm == "mse" else None

    def measure(i: int) -> PerturbationCurve:
        return perturbation_error(
            trained(config, run)[i], TARGET, config.radii, norm=norm, search=search, samples=config.draws,
            steps=config.steps, horizon=horizon, inputs=inputs, progress=False,
        )  # fmt: skip

    for i, m in enumerate(config.widths):
        run.keep(f"{norm}-{horizon}-{m}-{search}", PerturbationCurve, partial(measure, i))


def family(config: Config, stages: Stages, horizon: int, norm: str, search: str) -> PerturbationFamily:
    """Return E_m(β) with all weights perturbed."""
    names = {m: f"{norm}-{horizon}-{m}-{search}" for m in config.widths}
    return PerturbationFamily({m: stages.load(name, PerturbationCurve) for m, name in names.items()})


def run(config: Config, run: Run) -> None:
    """Train the models, then perturb them."""
    models = trained(config, run)
    run.stage("spectrum", lambda: {"abscissa": torch.stack([m.eigenvalues().real.max() for m in models]).detach()})
    for horizon, norm, search in product(config.horizons, NORMS, SEARCHES):
        _measure_family(config, run, horizon, norm, search)


def panel(config: Config, stages: Stages, horizon: int, norm: Literal["mse", "sobolev"]) -> Panel:
    """Return a panel of E_m(β) against β."""
    drawn, climbed = (family(config, stages, horizon, norm, search) for search in SEARCHES)
    series = [*lines(drawn, "points", f", {config.draws} draws"), *lines(climbed)]
    return Panel(f"{NORMS[norm]}, t ≤ {horizon * TARGET.dt:.3g}", "β", "E_m(β)", series, "log", "log")


def figures(config: Config, stages: Stages) -> list[Figure]:
    """Return the published panel, in two norms and over two horizons."""
    caption = (
        "Perturbation error of tanh RNNs trained on a nonlinear functional of memory C/(t+1)^1.5. Lines: the worst "
        "weights that gradient ascent finds; points: random draws, as published."
    )
    return [
        Figure(
            "perturbation",
            caption,
            [panel(config, stages, horizon, norm) for horizon, norm in product(config.horizons, NORMS)],
        )
    ]


def claims(config: Config, stages: Stages) -> list[Claim]:
    """Check how well the target is approximated, and that the approximation is not stable."""
    families = {
        f"t ≤ {horizon * TARGET.dt:.3g}, {NORMS[norm]}, {search}": improving(
            family(config, stages, horizon, norm, search)
        )
        for horizon, norm, search in product(config.horizons, NORMS, SEARCHES)
    }
    verdicts = {name: one.verdict() for name, one in families.items()}
    agree = [None if verdict.stable is None else not verdict.stable for verdict in verdicts.values()]
    losses = stages["training"]["losses"][-1].reshape(-1, config.seeds).min(1)
    rightmost = ", ".join(f"{value:.2g}" for value in stages["spectrum"]["abscissa"])
    closest = next(name for name in families if name.endswith("ascent"))
    meets = ", ".join(f"{min(c.radii):.2g}" if c.radii else "none" for c in families[closest].crossings())
    words = {True: "stable", False: "unstable", None: "undecided"}
    falls = bool((losses[1:] < losses[:-1]).all())
    return [
        Claim(
            "wider tanh RNNs approximate the functional better",
            "achieved at 1000 epochs; training stops at a loss of 1e-8",
            f"training loss {', '.join(f'{loss:.1e}' for loss in losses)} for m = {', '.join(map(str, config.widths))}",
            rules.graded(falls and losses[-1] <= config.goal, losses[-1] < losses[0]),
            f"Best of {config.seeds} seeds after {config.training.epochs} epochs: {losses[0] / losses[-1]:.2g} times "
            f"lower at m = {config.widths[-1]} than at m = {config.widths[0]}, {losses[-1] / config.goal:.2g} times "
            "the "
            "published threshold.",
        ),
        Claim(
            "polynomial memory has no stable approximation: the crossings move left as m grows",
            "figure 2: intersections shift left",
            "; ".join(f"{name}: {words[v.stable]}" for name, v in verdicts.items()),
            rules.some(agree),
            " ".join(
                f"{name}, m ≤ {families[name].widths[-1]}: {'; '.join(v.evidence)}." for name, v in verdicts.items()
            )
            + f" Consecutive curves first cross, {closest}, at β = {meets}."
            + " Wider models that are no better after training than narrower ones are left out. The largest"
            f" real parts of eigenvalues are {rightmost}.",
        ),
    ]


EXPERIMENT = Experiment(
    id="ia-fig2",
    title="Tanh RNNs under perturbation",
    source="IAT, figure 2",
    question="Can tanh RNNs approximate a nonlinear functional of polynomial memory stably?",
    claim="No: as the width grows, the curves of perturbed errors cross at smaller and smaller perturbations.",
    configs={
        "smoke": Config(
            widths=(2, 4, 8),
            length=16,
            horizons=(16, 32),
            training=Training(samples=128, batch=16, epochs=3, lr=0.005, device="cpu"),
            seeds=2,
            radii=(0.0, 1e-6, 1e-3, 0.1),
            draws=2,
            steps=3,
            rows=8,
        ),
        "paper": Config(),
    },
    minutes={"smoke": 0.1, "paper": 120.0},
    run=run,
    figures=figures,
    claims=claims,
)
