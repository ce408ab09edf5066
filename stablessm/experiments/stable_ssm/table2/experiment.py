"""Trains language models with each map and computes their perplexity."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Panel, Stages, rules
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.words import chosen, listed
from stablessm.experiments.stable_ssm import language_study as study
from stablessm.experiments.stable_ssm.language_study import StudyConfig
from stablessm.experiments.stable_ssm.language_training import LanguageTraining

PUBLISHED = {
    "train": {"softplus": 14.570, "exp": 15.721, "best-0.5": 17.182, "direct": 18.916},
    "test": {"softplus": 20.136, "exp": 20.218, "best-0.5": 20.811, "direct": 28.167},
}
"""Published perplexities on WikiText-103; only their order can be compared."""


def table(config: StudyConfig, stages: Stages) -> dict[str, dict[str, float]]:
    """Return the losses in nats per token as a nested dict, first by split (``train`` and ``test``) and then by map.
    The loss is infinite if the training run diverged.
    """
    cells = study.at(config, stages, config.rate)
    return {
        part: {scheme: float(np.nan_to_num(found[part], nan=np.inf)) for scheme, found in cells.items()}
        for part in ("train", "test")
    }


def figures(config: StudyConfig, stages: Stages) -> Figures:
    """Yield a figure of perplexities, losses and memory functions."""
    cells, losses = study.at(config, stages, config.rate), table(config, stages)
    bars = {part: np.exp([*found.values()]) for part, found in losses.items()}
    names = ", ".join(f"{place} {scheme}" for place, scheme in enumerate(config.maps))
    yield Figure(
        "perplexity",
        f"Left: perplexity per token of every map ({names}) at the rate {config.rate:g}; a missing map diverged. "
        "Middle: the training loss. Right: how much the output still changes after t repetitions of a token, the "
        f"largest over {config.words}.",
        [
            Panel("perplexity", "map", "perplexity", lines(range(len(config.maps)), bars, "points")),
            study.losses("training", cells),
            study.memories("memory", cells),
        ],
    )


def claims(config: StudyConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts: language models with stable maps have lower losses than language models with
    the direct map, and sorted by loss the maps are in the published order.
    """
    losses = table(config, stages)
    known = [scheme for scheme in PUBLISHED["test"] if scheme in config.maps]
    if len(known) > 1:
        if "direct" in known:
            yield ahead(losses, config, known)
        yield from (order(found, config, part, known) for part, found in losses.items())


def ahead(losses: dict[str, dict[str, float]], config: StudyConfig, known: list[str]) -> Claim:
    """Return the claim in the caption of table 2 of StableSSM with its verdict: language models with stable maps have
    lower losses than language models with the direct map. ``losses`` is the result of :func:`table`, and ``known`` are
    the maps of the settings for which the paper gives a perplexity.
    """
    stable, clear = [scheme for scheme in known if scheme != "direct"], config.limits.clear
    held = [found[scheme] < found["direct"] - clear for found in losses.values() for scheme in stable]
    return Claim(
        f"stable maps have lower train and test perplexities than direct, at the rate {config.rate:g}",
        "table 2: " + "; ".join(f"{part} {chosen(PUBLISHED[part], known, '.2f')}" for part in losses),
        "; ".join(
            f"{part} " + listed({scheme: np.exp(found[scheme]) for scheme in config.maps}, ".2f")
            for part, found in losses.items()
        ),
        rules.some(held),
        f"{sum(held)} of {len(held)} comparisons agree by more than {clear:g} nats; inf marks a diverged map. On "
        f"{config.text}, whose perplexities cannot be compared with the paper's; one seed.",
    )


def order(losses: dict[str, float], config: StudyConfig, part: str, known: list[str]) -> Claim:
    """Return a claim with its verdict: sorted by loss, the maps are in the order of the paper: softplus, exp, ``best``,
    direct. ``losses`` are the losses on one split, ``part``; ``known`` are the maps of the settings that are also in
    the paper, in the order of the paper.
    """
    gaps, clear = [_minus(losses[after], losses[before]) for before, after in pairwise(known)], config.limits.clear
    found = {scheme: np.exp(losses[scheme]) for scheme in sorted(losses, key=lambda scheme: losses[scheme])}
    return Claim(
        f"{part} perplexities are in the order {', '.join(known)}",
        chosen(PUBLISHED[part], known, ".2f"),
        listed(found, ".2f"),
        rules.ahead(gaps, [clear] * len(gaps)),
        f"From each map to the next the loss rises by {listed(gaps, '+.3f')} nats: "
        f"{sum(gap > 0 for gap in gaps)} of {len(gaps)} as published, {sum(gap > clear for gap in gaps)} by more "
        f"than {clear:g}, the difference that one seed can show. Best has b = 0.5.",
    )


def _minus(a: float, b: float) -> float:
    """Return a - b for two losses; 0 if both are infinite because both training runs diverged."""
    return 0.0 if np.isinf(a) and np.isinf(b) else a - b


LARGE = StudyConfig(
    preset="lm-paper", timescales=(20.0, 2000.0), maps=("direct", "exp", "softplus", "best-0.5"), rates=(0.005,),
    training=LanguageTraining(steps=6000, warmup=1000, graph=True),
)  # fmt: skip
EXPERIMENT = study.experiment(__file__, figures, claims, 4000.0, large=(LARGE, 20.0))
