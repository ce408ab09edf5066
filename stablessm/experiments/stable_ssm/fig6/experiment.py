"""Trains language models with each map at four learning rates.

In the functions below, ``ends[rate][map]`` is the final loss of a training run, and ``unrest[rate][map]`` is its
instability; ``rivals`` are the maps that the paper compares with ``best``; and ``limits`` are thresholds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Panel, Stages, rules
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.words import chosen, each, listed
from stablessm.experiments.stable_ssm import language_study as study
from stablessm.experiments.stable_ssm.language_stability import Instability, Limits, calmest, final_loss
from stablessm.experiments.stable_ssm.language_study import PAPERS, StudyConfig

Ends: TypeAlias = dict[float, dict[str, float]]
"""Final losses, by learning rate and map."""
Unrest: TypeAlias = dict[float, dict[str, Instability]]

RIVALS = ("direct", "relu", "exp", "softplus")
"""The maps that the paper compares with best."""
STABLE = ("exp", "softplus", "best-0.5", "best-1", "tanh")


def final(config: StudyConfig, stages: Stages) -> Ends:
    """Return the final loss of every training run as a nested dict, first by learning rate and then by map."""
    return {
        rate: {scheme: final_loss(found, config.limits) for scheme, found in study.at(config, stages, rate).items()}
        for rate in config.rates
    }


def figures(config: StudyConfig, stages: Stages) -> Figures:
    """Yield a figure of training losses, with one panel per learning rate and one of the final losses, and a figure of
    memory functions.
    """
    cells, ends = {rate: study.at(config, stages, rate) for rate in config.rates}, final(config, stages)
    over = lines(config.rates, {scheme: [losses[scheme] for losses in ends.values()] for scheme in config.maps}, "both")
    yield Figure(
        "losses",
        "The training loss of every map at every rate; a line that ends early diverged. Last panel: the mean loss of "
        "the last tenth of the steps.",
        [
            *(study.losses(f"rate {rate:g}", found) for rate, found in cells.items()),
            Panel("final", "learning rate", "cross-entropy [nats]", over, "log"),
        ],
    )
    yield Figure(
        "memory",
        "How much the output of each trained model still changes after t repetitions of a token: the largest over "
        f"{config.words} tokens. A missing model diverged, or its output is not finite.",
        [study.memories(f"rate {rate:g}", found) for rate, found in cells.items()],
    )


def claims(config: StudyConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on the statements in the captions of figure 6 of StableSSM, on the eigenvalues
    after training, and on the memory functions.
    """
    limits, ends, rates = config.limits, final(config, stages), sorted(config.rates)
    unrest = {rate: study.unrest(config, study.at(config, stages, rate)) for rate in config.rates}
    rivals = [scheme for scheme in RIVALS if scheme in config.maps]
    if PAPERS in config.maps and rivals:
        alike = [scheme for scheme in ("exp", "softplus") if scheme in rivals]
        if len(rates) > 1:
            yield calm(limits, rates[0], ends, unrest, rivals)
        if len(rates) > 2 and alike:
            yield comparable(limits, rates[1], ends, alike)
        if len(rates) > 1:
            yield advantage(limits, ends, rivals)
        yield wins(limits, rates[-1], ends, unrest, rivals)
        yield counted(limits, unrest, rivals, lost(config, stages))
    if set(STABLE) & set(config.maps):
        yield inside(config, stages)
        yield remembers(config, stages)


def calm(limits: Limits, rate: float, ends: Ends, unrest: Unrest, rivals: list[str]) -> Claim:
    """Return the claim of figure 6 (a) of StableSSM with its verdict: at the smallest learning rate, the loss of the
    model with the map ``best`` does not fluctuate, but is not the smallest.
    """
    told, losses = unrest[rate], ends[rate]
    quiet = told[PAPERS] == Instability(False, 0)
    behind = losses[PAPERS] - min(losses[scheme] for scheme in rivals)
    return Claim(
        f"at the smallest rate, {rate:g}, best has no large fluctuation, and not the smallest loss",
        "figure 6 (a): not optimal in loss, but no large fluctuation; exp is stable too",
        f"best: {told[PAPERS]}, final loss {losses[PAPERS]:.3f}; {chosen(losses, rivals, '.3f')}",
        rules.graded(quiet and behind > limits.clear, quiet),
        f"Best is {abs(behind):.3f} nats {'behind' if behind > 0 else 'ahead of'} the lowest of the others; more "
        f"than {limits.clear:g} counts. " + "; ".join(f"{scheme}: {told[scheme]}" for scheme in rivals) + ".",
    )


def comparable(limits: Limits, rate: float, ends: Ends, alike: Sequence[str]) -> Claim:
    """Return the claim of figure 6 (b) of StableSSM with its verdict: at the second smallest learning rate, the final
    loss with the map ``best`` is close to the final losses with the maps in ``alike``.
    """
    losses = ends[rate]
    behind = {scheme: losses[PAPERS] - losses[scheme] for scheme in alike}
    held = [gap < limits.comparable for gap in behind.values()]
    return Claim(
        f"at the rate {rate:g} the final loss of best is comparable with the final loss of {' and '.join(alike)}",
        "figure 6 (b): not optimal, but comparable",
        f"best {losses[PAPERS]:.3f}; {chosen(losses, alike, '.3f')}",
        rules.some(held),
        f"The final loss of best is higher by {each('{1:+.3f} ({0})', behind.items())} nats; below "
        f"{limits.comparable:g} is called comparable.",
    )


def advantage(limits: Limits, ends: Ends, rivals: list[str]) -> Claim:
    """Return the claim in the caption of figure 6 of StableSSM with its verdict: the larger the learning rate, the more
    the loss with the map ``best`` is below the losses with the other maps.
    """
    rates = sorted(ends)
    gap = [_gap(ends[rate], rivals) for rate in rates]
    grows = [after >= before for before, after in pairwise(gap)]
    return Claim(
        "the advantage of best grows with the learning rate",
        "figure 6: its advantage is usually better when the rate is larger",
        each("{:g}: {:+.3f}", zip(rates, gap, strict=True), "; "),
        rules.given(gap[-1] > gap[0] + limits.clear, rules.graded(all(grows), True)),
        "Nats by which its final loss is below the median of the other maps; a diverged map counts as infinite. It "
        f"does not shrink in {sum(grows)} of {len(grows)} steps from one rate to the next.",
    )


def wins(limits: Limits, rate: float, ends: Ends, unrest: Unrest, rivals: list[str]) -> Claim:
    """Return the claim of figure 6 (c) of StableSSM with its verdict: at the largest learning rate, the map ``best``
    has the smallest loss.
    """
    losses, told = ends[rate], unrest[rate]
    next_best = min(losses[scheme] for scheme in rivals)
    finite, lead = np.isfinite(losses[PAPERS]), next_best - losses[PAPERS]
    return Claim(
        f"at the largest rate, {rate:g}, best has the smallest loss",
        "figure 6 (c): the smallest",
        f"best {losses[PAPERS]:.3f}; {chosen(losses, rivals, '.3f')}",
        rules.graded(finite and lead > limits.clear, finite and lead > -limits.comparable),
        f"'Reproduced' requires a loss more than {limits.clear:g} nats below each other map, 'partly' at most this "
        "much above: "
        f"{limits.comparable:g}. " + "; ".join(f"{scheme}: {told[scheme]}" for scheme in (PAPERS, *rivals)) + ".",
    )


def lost(config: StudyConfig, stages: Stages) -> str:
    """Return as text a list of the training runs that diverged, each with the step of the divergence."""
    cells = ((scheme, rate, study.cell(stages, scheme, rate)) for scheme in config.maps for rate in config.rates)
    found = [
        f"{scheme} at {rate:g} (step {int(cell['diverged'])})" for scheme, rate, cell in cells if cell["diverged"] >= 0
    ]
    return ", ".join(found) or "none"


def counted(limits: Limits, unrest: Unrest, rivals: list[str], diverged: str) -> Claim:
    """Return a claim with its verdict: over all learning rates, training with the map ``best`` diverges least often and
    has the fewest loss spikes. ``diverged`` is the text that :func:`lost` returns.
    """
    total = {
        scheme: tuple(sum(getattr(told[scheme], key) for told in unrest.values()) for key in ("diverged", "spikes"))
        for scheme in (PAPERS, *rivals)
    }
    return Claim(
        "over all rates, best diverges and spikes least",
        "section 4.2: it enhances training stability",
        "; ".join(f"{scheme}: {lost} diverged, {spikes} spikes" for scheme, (lost, spikes) in total.items()),
        calmest(total[PAPERS], [total[scheme] for scheme in rivals]),
        f"Of {len(unrest)} rates. A spike is a loss {limits.height:g} nats above the median of the {limits.window} "
        "before it, after the warm-up; the README defines divergence. 'Reproduced' requires fewer than each other map, "
        f"'partly' at most as many. Diverged: {diverged}.",
    )


def inside(config: StudyConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: stable maps keep all eigenvalues stable during training."""
    ends = {
        scheme: [float(np.abs(study.cell(stages, scheme, rate)["eigenvalues"]).max()) for rate in config.rates]
        for scheme in config.maps
    }
    stable = [scheme for scheme in config.maps if scheme in STABLE]
    held = [value <= 1 for scheme in stable for value in ends[scheme]]
    left = [scheme for scheme in config.maps if scheme not in STABLE and max(ends[scheme]) > 1]
    return Claim(
        "no rate moves an eigenvalue of a stable map out of the unit circle",
        "definition 3.2: f maps every weight to a stable eigenvalue",
        "; ".join(f"{scheme} {max(values):.6f}" for scheme, values in ends.items()),
        rules.graded(all(held)),
        f"The largest |λ| of each map over layers and rates, after training; above 1: {', '.join(left) or 'none'}. In "
        "float32 a λ that rounds to 1 is written 1.",
    )


def remembers(config: StudyConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: the memory function of every model with a stable map falls to a small fraction
    of its maximum.
    """
    told, fade = [], []
    for scheme in config.maps:
        curves = [study.memory(study.cell(stages, scheme, rate)) for rate in config.rates]
        left = [np.inf if curve is None else _left(curve.value) for curve in curves]
        kinds = ["not finite" if curve is None else curve.decay().kind for curve in curves]
        told.append(f"{scheme} " + ", ".join(f"{100 * a:.2g} % ({b})" for a, b in zip(left, kinds, strict=True)))
        fade += [part < config.limits.faded for part in left if scheme in STABLE]
    return Claim(
        "the memory of every model with a stable map fades",
        "section 2.2: a model without an unstable eigenvalue has decaying memory",
        "; ".join(told),
        rules.some(fade),
        f"{sum(fade)} of {len(fade)} fade: the largest M(t) over the last tenth of {config.horizon} tokens is below "
        f"{config.limits.faded:.0%} of its maximum. In brackets: the fitted kind of decay, one "
        f"for each of the rates {listed(config.rates, 'g')}.",
    )


def _left(value: np.ndarray) -> float:
    """Return the largest value of a memory function in the last tenth of its horizon, divided by its maximum."""
    return float(value[-max(1, len(value) // 10) :].max() / max(value.max(), np.finfo(float).tiny))


def _gap(losses: dict[str, float], rivals: list[str]) -> float:
    with np.errstate(invalid="ignore"):
        gap = float(np.median([losses[scheme] for scheme in rivals]) - losses[PAPERS])
    return -np.inf if np.isnan(gap) else gap


EXPERIMENT = study.experiment(__file__, figures, claims, 15000.0, rates=lambda config: config.rates)
