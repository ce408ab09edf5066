"""Trains state-space models with each map and measures their perturbation errors.

In the functions below, ``found`` maps each triple (map, length, search) to the perturbation errors of the models of all
widths. The search is the method that looks for the worst perturbation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import TypeAlias

import numpy as np
import torch

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Run, Stages, described, families, rules
from stablessm.experiments.frame.families import improving, said
from stablessm.experiments.frame.training import Training
from stablessm.experiments.frame.words import listed
from stablessm.experiments.stable_ssm.fig1 import models
from stablessm.instruments import PerturbationFamily

Families: TypeAlias = Mapping[tuple[str, int, str], PerturbationFamily]
"""Families by map, length and search."""


def models_of(config: models.Config, map: str, length: int, run: Run) -> None:
    """Train the models of all widths with one map on sequences of one length, then measure their perturbation
    errors.
    """
    models.train_models(config, run, map, length)
    for kind, m in product(models.SEARCHES, config.widths):
        models.curve.compute(config, run, map, length, m, kind)


def jobs(config: models.Config) -> dict[str, Callable[[Run], None]]:
    """Return one job for each map and length of the sequences; a job trains the models of all widths together."""
    return {f"{map}-{T}": partial(models_of, config, map, T) for T in config.lengths for map in config.maps}


def run(config: models.Config, run: Run) -> None:
    """Compute all jobs, one after the other."""
    for compute in jobs(config).values():
        compute(run)


def figures(config: models.Config, stages: Stages) -> Figures:
    """Yield one figure of the perturbation errors per sequence length. Each figure has the panels of the published
    figure and a panel for the map ``best``.
    """
    for length in config.lengths:
        panels = []
        for map in config.maps:
            found = (models.family(config, stages, map, length, kind) for kind in ("draws", "ascent"))
            panels.append(families.panel(map, found, ", draws", y_range=(1e-3, 1e3)))
        yield Figure(
            f"perturbation-{length}",
            f"Perturbation error over {length} steps of models trained on 1/(t+1)^1.1 with perturbed recurrent "
            "weights. Lines: the worst weights that gradient ascent finds; points: random weights, as published.",
            panels,
        )


def claims(config: models.Config, stages: Stages) -> Claims:
    """Yield claims with their verdicts. With the direct map the errors explode under perturbation, and the wider the
    model, the smaller the perturbation that suffices. With stable maps the errors do not explode.
    """
    found = {key: models.family(config, stages, *key) for key in product(config.maps, config.lengths, models.SEARCHES)}
    yield bounded(config, found)
    yield shrinking(config, stages, found)
    yield from (stability(config, map, found) for map in config.maps if map != "direct")
    yield s4(config, found)
    if models.OWN in config.maps:
        yield at_published(config, found)


def bounded(config: models.Config, found: Families) -> Claim:
    """Return a claim with its verdict: at radii at which the perturbation errors with the direct map explode, the
    perturbation errors with stable maps stay bounded.
    """
    told, held = [], []
    for length in config.lengths:
        worst = {map: float(found[map, length, "ascent"].errors[:, -1].max() / norm(length)) for map in config.maps}
        held += [(error > config.bounded) is (map == "direct") for map, error in worst.items()]
        told.append(f"{length} steps: {listed(worst, '.2g')}")
    return Claim(
        f"at β = {config.radii[-1]:.3g} the error of direct explodes and the errors of stable maps are bounded",
        "β = 0.032, m = 64: direct 3.6e34, softplus 0.66, S4 0.22 (mean squares, from the authors' logs)",
        "; ".join(told),
        rules.some(held),
        "The largest error over all widths that ascent finds, in units of the target's norm; more than "
        f"{config.bounded:g} is called an explosion. {sum(held)} of {len(held)} cases agree with the claim.",
    )


def shrinking(config: models.Config, stages: Stages, found: Families) -> Claim:
    """Return a claim with its verdict: with the direct map, a smaller perturbation suffices to make the error of a
    wider model explode (StableSSM, figure 1a).
    """
    radii, slowest = {}, {}
    for length in config.lengths:
        family = found["direct", length, "ascent"]
        logs = np.log(np.clip(family.errors[:, 1:], 1e-300, 1e300))
        level, radius = np.log(norm(length)), np.log(family.radius[1:])
        radii[length] = [float(np.exp(np.interp(level, row, radius))) for row in logs]
        layers = models.trained(config, stages, "direct", length)
        slowest[length] = [float(1 / layer.eigenvalues().detach().abs().min()) for layer in layers]
    moves = [after < before for row in radii.values() for before, after in pairwise(row)]
    verdicts = {T: said(improving(found["direct", T, "ascent"]).verdict(), ".3g") for T in radii}
    return Claim(
        "direct: smaller perturbations destroy wider models",
        "figure 1a: the intersections move left",
        "; ".join(f"{T} steps: β = {listed(row)} for m = {listed(config.widths)}" for T, row in radii.items()),
        rules.some(moves),
        "The β at which the error is as large as the target. It falls as long as wider models learn longer time "
        f"scales: {'; '.join(f'over {T} steps the longest are {listed(row)}' for T, row in slowest.items())}. It stops "
        "falling when these approach the length: β of the widest model times the length is "
        f"{listed((row[-1] * T for T, row in radii.items()), '.2g')}. It falls in {sum(moves)} of {len(moves)} steps. "
        "The stability test used for stable maps says, by ascent: "
        f"{'; '.join(f'{T} steps, {words}' for T, words in verdicts.items())}.",
    )


def stability(config: models.Config, map: str, every: Families) -> Claim:
    """Return a claim with its verdict: the models with this map approximate the target stably. This means that, for
    perturbations of up to some size β, no wider model has a larger error than a narrower model. Wider models that do
    not fit better than narrower models are left out. ``every`` maps each triple (map, length, search) to perturbation
    errors.
    """
    found = {key: improving(every[map, *key]) for key in product(config.lengths, models.SEARCHES)}
    verdicts = {key: one.verdict() for key, one in found.items()}
    whole = [every[map, *key].verdict().stable for key in found]
    ascents = {
        f"{T} steps, ascent, m = {listed(found[T, 'ascent'].widths)}": verdicts[T, "ascent"] for T in config.lengths
    }
    return Claim(
        f"{map}: the approximation is stable",
        {"best": "theorem 3.3: stable"}.get(map, "figure 1b, c: stable"),
        "; ".join(f"{length} steps, {kind}: {said(v, '.3g')}" for (length, kind), v in verdicts.items()),
        rules.some([*whole, *(v.stable for v in verdicts.values())]),
        f"{families.evidence(ascents)} Wider models that are no better after training than narrower ones are left out; "
        f"with all widths {whole.count(True)} of {len(whole)} are stable, {whole.count(None)} undecided, "
        f"{whole.count(False)} not.",
    )


def _at_published(config: models.Config) -> int:
    """Return the index of the radius next to β = 0.032, the radius that the logs of the authors state."""
    return int(np.argmin(np.abs(np.array(config.radii) - 0.032)))


def s4(config: models.Config, found: Families) -> Claim:
    """Return a claim, with its verdict, that compares the perturbation errors with the map exp (as in S4; StableSSM,
    figure 1c) and with softplus (figure 1b).
    """
    at = _at_published(config)
    pairs = {T: [found[map, T, "ascent"].errors[-1, at] for map in ("exp", "softplus")] for T in config.lengths}
    return Claim(
        "the exponential map of S4 is more stable than softplus",
        "β = 0.032, m = 64: 0.22 against 0.66",
        "; ".join(f"{T} steps: {exp:.3g} against {softplus:.3g}" for T, (exp, softplus) in pairs.items()),
        rules.some([exp < softplus for exp, softplus in pairs.values()]),
        f"E_m(β) by ascent at β = {config.radii[at]:.3g} of the widest model, m = {config.widths[-1]}: "
        f"{listed((exp / softplus for exp, softplus in pairs.values()), '.2g')} times the error of softplus, each the "
        "best of a few seeds.",
    )


def at_published(config: models.Config, found: Families) -> Claim:
    """Return a claim, with its verdict, that compares the perturbation errors of all maps at β = 0.032, the radius that
    the logs of the authors state.
    """
    at = _at_published(config)
    told, held = [], []
    for length in config.lengths:
        error = {map: float(found[map, length, "ascent"].errors[-1, at] / norm(length)) for map in config.maps}
        held += [error["direct"] > config.larger * error[map] for map in config.maps if map != "direct"]
        told.append(f"{length} steps: {listed(error, '.2g')}")
    return Claim(
        f"at β = {config.radii[at]:.3g} the widest direct model has {config.larger:g} times the error of each other",
        "β = 0.032, m = 64: direct 3.6e34, softplus 0.66, S4 0.22 (mean squares, from the authors' logs)",
        "; ".join(told),
        rules.most(sum(held), len(held)),
        f"E_m(β) by ascent for m = {config.widths[-1]}, in units of the target's norm; {sum(held)} of {len(held)} "
        f"comparisons agree. {models.OWN}: S4D with its own map and complex eigenvalues.",
    )


def norm(length: int) -> float:
    """Return the norm of the target for sequences of this length: the sum of the target's kernel."""
    return float(models.TARGET.kernel(torch.arange(length)).sum())


SMOKE = models.Config(
    widths=(2, 4, 8), length=20, longer=(), training=Training(samples=160, batch=16, epochs=15, device="cpu"), seeds=2,
    radii=(0.0, 1e-3, 0.032, 1.0), draws=4, steps=5,
)  # fmt: skip
LARGE = models.Config(
    maps=("direct", "softplus", "exp", "best", models.OWN), training=replace(models.PUBLISHED, clip=None)
)
EXPERIMENT = described(
    __file__,
    run,
    figures,
    claims,
    smoke=SMOKE,
    paper=models.Config(),
    large=LARGE,
    minutes=(0.1, 70.0, 15.0),
    jobs=jobs,
)
