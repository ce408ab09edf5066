"""Measures gradient-to-weight ratios during the training of language models, for each map."""

from __future__ import annotations

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Panel, Series, Stages, rules
from stablessm.experiments.frame.lines import paired
from stablessm.experiments.stable_ssm import language_study as study
from stablessm.experiments.stable_ssm.gradient_ratios import RATIO, ascending, correlation, predicted
from stablessm.experiments.stable_ssm.language_stability import final_loss
from stablessm.experiments.stable_ssm.language_study import PAPERS, StudyConfig


def figures(config: StudyConfig, stages: Stages) -> Figures:
    """Yield a figure of three quantities during training: the largest and the median gradient-to-weight ratio, and the
    loss.
    """
    cells, lines = study.at(config, stages, config.rate), list[Series]()
    for scheme, found in cells.items():
        lines += paired(found["looks"].astype(float), {scheme: (found["largest"], found["typical"])}, ", median")
    yield Figure(
        "gradient-over-weight",
        "|gradient| / |weight| of the recurrent weights of all layers: the largest (solid), and the median over "
        f"layers of their medians (dotted). Right: the loss. Rate {config.rate:g}.",
        [Panel("through training", "step", RATIO, lines, y_scale="log"), study.losses("loss", cells)],
    )


def claims(config: StudyConfig, stages: Stages) -> Claims:
    """Yield claims with their verdicts: the map ``best`` has the smallest gradient-to-weight ratio, and maps with a
    smaller ratio train more stably.
    """
    cells = study.at(config, stages, config.rate)
    typical = {scheme: float(np.median(found["largest"])) for scheme, found in cells.items()}
    highest = {scheme: float(found["largest"].max()) for scheme, found in cells.items()}
    if PAPERS in cells and len(cells) > 1:
        yield smallest(typical, highest)
    if len(cells) < 3:
        return
    unrest = study.unrest(config, cells)
    wild = [(told.diverged, told.spikes, final_loss(cells[scheme], config.limits)) for scheme, told in unrest.items()]
    decides = correlation(np.array([*highest.values()]), np.array(wild))
    told = "; ".join(f"{scheme}: {instability}" for scheme, instability in unrest.items())
    yield Claim(
        "a map with a larger |gradient| / |weight| trains less stably",
        "figure 5: crucial for the training stability",
        f"rank correlation {decides:.2f} over {len(cells)} maps",
        rules.graded(*(decides > limit for limit in config.limits.decides)),
        "Correlation of the highest ratio with instability: divergence first, then spikes, then the final loss. "
        f"{told}.",
    )
    yield predicted({scheme: study.beginning(stages, scheme) for scheme in cells}, config.limits.ordered)


def smallest(typical: dict[str, float], highest: dict[str, float]) -> Claim:
    """Return the claim of figure 5 of StableSSM with its verdict: the map ``best`` (with its parameter b = 0.5) has the
    smallest gradient-to-weight ratio. ``best`` with b = 1, which is not in the paper, is left out. For each map,
    ``typical`` and ``highest`` are the median and the maximum over the steps of the largest ratio.
    """
    rivals = [scheme for scheme in typical if not scheme.startswith("best")] or ["best-1"]
    ratios = [numbers[PAPERS] / min(numbers[scheme] for scheme in rivals) for numbers in (typical, highest)]
    return Claim(
        "best (b = 0.5) has the lowest peak gradient-to-weight ratio during training",
        "figure 5: the smallest",
        f"median over steps: {ascending(typical)}; highest: {ascending(highest)}",
        rules.some([ratio < 1 for ratio in ratios]),
        f"Its median is {ratios[0]:.2g} times the median of the next map of another kind, its highest value "
        f"{ratios[1]:.2g} times.",
    )


EXPERIMENT = study.experiment(__file__, figures, claims, 4000.0, untrained=lambda config: config.maps)
