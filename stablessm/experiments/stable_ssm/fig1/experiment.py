"""Perturbation errors of trained state-space models for each map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np
import torch

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.frame.families import improving, lines
from stablessm.experiments.frame.training import Training
from stablessm.experiments.stable_ssm.fig1 import models
from stablessm.instruments import PerturbationFamily
from stablessm.instruments.family import StabilityVerdict
from stablessm.report.figure import Figure, Panel

Families: TypeAlias = Mapping[tuple[str, int, str], PerturbationFamily]
"""Families by map, length and search."""


def models_of(config: models.Config, map: str, length: int, run: Run) -> None:
    """Train the models of one map and length, then perturb them."""
    models.train_models(config, run, map, length)
    for kind in models.SEARCHES:
        models.measure_family(config, run, map, length, kind)


def jobs(config: models.Config) -> dict[str, Callable[[Run], None]]:
    """Return one job for each map and length; all widths are trained together."""
    return {f"{map}-{T}": partial(models_of, config, map, T) for T in config.lengths for map in config.maps}


def run(config: models.Config, run: Run) -> None:
    """Compute all jobs."""
    for compute in jobs(config).values():
        compute(run)


def panel(config: models.Config, stages: Stages, map: str, length: int) -> Panel:
    """Return a panel of E_m(β) against β for one map."""
    drawn, climbed = (models.family(config, stages, map, length, kind) for kind in ("draws", "ascent"))
    series = [*lines(drawn, "points", ", draws"), *lines(climbed)]
    return Panel(map, "β", "E_m(β), L¹ of the kernel", series, "log", "log", y_range=(1e-3, 1e3))


def figures(config: models.Config, stages: Stages) -> list[Figure]:
    """Return the panels of the paper, and one for the best map."""
    return [
        Figure(
            f"perturbation-{length}",
            f"Perturbation error over {length} steps of models trained on 1/(t+1)^1.1 with perturbed recurrent "
            "weights. "
            "Lines: the worst weights that gradient ascent finds; points: random weights, as published.",
            [panel(config, stages, map, length) for map in config.maps],
        )
        for length in config.lengths
    ]


def claims(config: models.Config, stages: Stages) -> list[Claim]:
    """Check that direct explodes, earlier for wider models, and that stable maps do not."""
    families = {
        (map, length, kind): models.family(config, stages, map, length, kind)
        for map in config.maps
        for length in config.lengths
        for kind in models.SEARCHES
    }
    stable = [map for map in config.maps if map != "direct"]
    return [
        bounded(config, families),
        shrinking(config, stages, families),
        *(stability(config, map, families) for map in stable),
        s4(config, families),
    ]


def bounded(config: models.Config, families: Families) -> Claim:
    """Check that the errors of stable maps are bounded where direct explodes."""
    found, held = [], []
    for length in config.lengths:
        worst = {map: float(families[map, length, "ascent"].errors[:, -1].max() / norm(length)) for map in config.maps}
        held += [(error > config.bounded) is (map == "direct") for map, error in worst.items()]
        found.append(f"{length} steps: " + ", ".join(f"{map} {error:.2g}" for map, error in worst.items()))
    return Claim(
        f"at β = {config.radii[-1]:.3g} the error of direct explodes and the errors of stable maps are bounded",
        "β = 0.032, m = 64: direct 3.6e34, softplus 0.66, S4 0.22 (mean squares, from the authors' logs)",
        "; ".join(found),
        rules.some(held),
        "The largest error over all widths that ascent finds, in units of the target's norm; more than "
        f"{config.bounded:g} is called an explosion. {sum(held)} of {len(held)} cases agree with the claim.",
    )


def shrinking(config: models.Config, stages: Stages, families: Families) -> Claim:
    """Check that smaller perturbations destroy wider direct models (figure 1a)."""
    radii, slowest = {}, {}
    for length in config.lengths:
        found = families["direct", length, "ascent"]
        level = np.log(norm(length))
        with np.errstate(divide="ignore"):
            logs = np.log(np.clip(found.errors[:, 1:], 1e-300, 1e300))
        radii[length] = [float(np.exp(np.interp(level, row, np.log(found.radius[1:])))) for row in logs]
        layers = models.trained(config, stages, "direct", length)
        slowest[length] = [float(1 / layer.eigenvalues().detach().abs().min()) for layer in layers]
    moves = [r[i + 1] < r[i] for r in radii.values() for i in range(len(r) - 1)]
    reach = {length: r[-1] * length for length, r in radii.items()}
    return Claim(
        "direct: smaller perturbations destroy wider models",
        "figure 1a: the intersections move left",
        "; ".join(f"{T} steps: β = {row(r)} for m = {row(config.widths)}" for T, r in radii.items()),
        rules.some(moves),
        "The β at which the error is as large as the target. It falls as long as wider models learn longer time "
        "scales: "
        + "; ".join(f"over {T} steps the longest are {row(s)}" for T, s in slowest.items())
        + ". It stops falling when these approach the length: β of the widest model times the length is "
        + ", ".join(f"{value:.2g}" for value in reach.values())
        + f". It falls in {sum(moves)} of {len(moves)} steps. The stability test used for stable maps says, by ascent: "
        + "; ".join(f"{T} steps, {words(improving(families['direct', T, 'ascent']).verdict())}" for T in radii)
        + ".",
    )


def stability(config: models.Config, map: str, families: Families) -> Claim:
    """Check that wider models are no worse up to some β, among the widths that improve the trained model."""
    found = {key: improving(families[map, *key]) for key in product(config.lengths, models.SEARCHES)}
    said = {key: one.verdict() for key, one in found.items()}
    every = [families[map, *key].verdict().stable for key in found]
    return Claim(
        f"{map}: the approximation is stable",
        {"best": "theorem 3.3: stable"}.get(map, "figure 1b, c: stable"),
        "; ".join(f"{length} steps, {kind}: {words(v)}" for (length, kind), v in said.items()),
        rules.some([*every, *(v.stable for v in said.values())]),
        " ".join(
            f"{T} steps, ascent, m = {row(found[T, 'ascent'].widths)}: {'; '.join(said[T, 'ascent'].evidence)}."
            for T in config.lengths
        )
        + " Wider models that are no better after training than narrower ones are left out; with all widths "
        f"{every.count(True)} of {len(every)} are stable, {every.count(None)} undecided, {every.count(False)} not.",
    )


def s4(config: models.Config, families: Families) -> Claim:
    """Compare exp (figure 1c) with softplus (figure 1b)."""
    at = int(np.argmin(np.abs(np.array(config.radii) - 0.032)))
    pairs = [
        [families[map, length, "ascent"].errors[-1, at] for map in ("exp", "softplus")] for length in config.lengths
    ]
    less = [exp < softplus for exp, softplus in pairs]
    return Claim(
        "the exponential map of S4 is more stable than softplus",
        "β = 0.032, m = 64: 0.22 against 0.66",
        "; ".join(f"{T} steps: {exp:.3g} against {s:.3g}" for T, (exp, s) in zip(config.lengths, pairs, strict=True)),
        rules.some(less),
        f"E_m(β) by ascent at β = {config.radii[at]:.3g} of the widest model, m = {config.widths[-1]}: "
        + ", ".join(f"{exp / softplus:.2g}" for exp, softplus in pairs)
        + " times the error of softplus, each the best of a few seeds.",
    )


def norm(length: int) -> float:
    """Return the norm of the target."""
    return float(models.TARGET.kernel(torch.arange(length)).sum())


def words(said: StabilityVerdict) -> str:
    """Return a verdict in a few words."""
    return {True: f"stable up to β = {said.radius:.3g}", False: "unstable", None: "undecided"}[said.stable]


def row(numbers: Sequence[float]) -> str:
    """Return numbers with a few digits, in words."""
    return ", ".join(f"{number:.3g}" for number in numbers)


EXPERIMENT = Experiment(
    id="st-fig1",
    title="Trained state-space models under perturbation",
    source="StableSSM, figure 1",
    question="Which parameterizations approximate a polynomial memory stably when they are trained?",
    claim="Softplus and exp (S4) do. With direct weights errors explode, at smaller perturbations for wider models.",
    configs={
        "smoke": models.Config(
            widths=(2, 4, 8),
            length=20,
            longer=(),
            training=Training(samples=160, batch=16, epochs=15, device="cpu"),
            seeds=2,
            radii=(0.0, 1e-3, 0.032, 1.0),
            draws=4,
            steps=5,
        ),
        "paper": models.Config(),
    },
    minutes={"smoke": 0.1, "paper": 70.0},
    run=run,
    figures=figures,
    claims=claims,
    jobs=jobs,
)
