"""Trains language models with equal initial eigenvalues, and measures gradient-to-weight ratios and the losses at a
large learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Panel, Series, Stages, rules
from stablessm.experiments.frame.words import listed
from stablessm.experiments.stable_ssm import language_study as study
from stablessm.experiments.stable_ssm.gradient_ratios import RATIO
from stablessm.experiments.stable_ssm.language_stability import calmest, final_loss
from stablessm.experiments.stable_ssm.language_study import PAPERS, StudyConfig

UNSTABLE = ("direct", "relu")
"""Maps with wide ranges in the paper."""


def shown(config: StudyConfig) -> tuple[str, ...]:
    """Return the maps that are compared before training: the maps of the config, and tanh."""
    return tuple(dict.fromkeys((*config.maps, "tanh")))


def spread(ratio: np.ndarray, left_out: float) -> tuple[float, float]:
    """Return the smallest and the largest gradient-to-weight ratio over the modes that remain when extreme modes are
    removed: the fraction ``left_out`` of the modes with the smallest ratios, and the same fraction with the largest.
    """
    low, high = np.quantile(ratio, [left_out, 1 - left_out], method="nearest")
    return float(low), float(high)


def figures(config: StudyConfig, stages: Stages) -> Figures:
    """Yield the published figure: gradient-to-weight ratios before training (a), and training losses (b)."""
    modes = []
    for scheme in shown(config):
        found = study.beginning(stages, scheme)
        order = np.argsort(found["eigenvalues"].ravel(), kind="stable")
        tau = -1 / np.log(found["eigenvalues"].ravel()[order].astype(float))
        modes.append(Series(scheme, tau, found["ratio"].ravel()[order], "points"))
    yield Figure(
        "start-and-loss",
        "Left: |gradient| / |weight| of every mode of every layer before training; all maps have the same "
        f"eigenvalues. Right: the training loss at the rate {config.rate:g}; a line that ends early diverged.",
        [
            Panel("at the start", "time scale of the mode [tokens]", RATIO, modes, "log", "log"),
            study.losses(f"training, rate {config.rate:g}", study.at(config, stages, config.rate)),
        ],
    )


def claims(config: StudyConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts: how wide the ranges of the gradient-to-weight ratios are, and with which maps
    training is stable.
    """
    stable = [scheme for scheme in shown(config) if scheme not in UNSTABLE]
    if unstable := [scheme for scheme in config.maps if scheme in UNSTABLE]:
        yield narrower(config, stages, stable, unstable)
    rivals = [scheme for scheme in ("relu", "exp") if scheme in config.maps]
    if rivals and PAPERS in config.maps:
        yield calmer(config, stages, rivals)


def narrower(config: StudyConfig, stages: Stages, stable: list[str], unstable: list[str]) -> Claim:
    """Return the claim of figure 4 (a) of StableSSM with its verdict: the range of the gradient-to-weight ratios is
    narrower with stable maps than with unstable maps.
    """
    ends = {s: spread(study.beginning(stages, s)["ratio"], config.limits.ends) for s in (*stable, *unstable)}
    width = {scheme: high - low for scheme, (low, high) in ends.items()}
    held = [width[a] < width[b] for a in stable for b in unstable]
    decades = {scheme: np.log10(high / low) if low > 0 else np.inf for scheme, (low, high) in ends.items()}
    return Claim(
        "from the same eigenvalues, stable maps have a narrower range of |gradient| / |weight| than direct and relu",
        "figure 4 (a): narrower",
        "; ".join(f"{scheme} {low:.2g} to {high:.2g}" for scheme, (low, high) in ends.items()),
        rules.most(sum(held), len(held)),
        f"In {sum(held)} of {len(held)} pairs of a stable and another map the stable map has the narrower range (of "
        f"{1 - 2 * config.limits.ends:.0%} of the modes). In decades: {listed(decades)}.",
    )


def calmer(config: StudyConfig, stages: Stages, rivals: Sequence[str]) -> Claim:
    """Return the claim of figure 4 (b) of StableSSM with its verdict: training with the map ``best`` is more stable
    than training with the other maps.
    """
    cells = study.at(config, stages, config.rate)
    found = study.unrest(config, cells)
    final = {scheme: final_loss(cell, config.limits) for scheme, cell in cells.items()}
    return Claim(
        f"at the rate {config.rate:g} best (b = 0.5) trains more stably than {' and '.join(rivals)}",
        "figure 4 (b): more stable",
        "; ".join(f"{scheme}: {told}" for scheme, told in found.items()),
        calmest(found[PAPERS], [found[scheme] for scheme in rivals]),
        f"A spike is a loss {config.limits.height:g} nats above the median of the {config.limits.window} before it, "
        "after the warm-up. 'Reproduced' requires fewer spikes than each rival, 'partly' at most as many. Final "
        f"losses: {listed(final)}.",
    )


EXPERIMENT = study.experiment(__file__, figures, claims, 4000.0, untrained=shown)
