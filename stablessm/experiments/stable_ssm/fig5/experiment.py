"""Gradient over weight during the training of language models for each map."""

from __future__ import annotations

import numpy as np

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.stable_ssm import language_study as study
from stablessm.experiments.stable_ssm.fig3.experiment import listed
from stablessm.experiments.stable_ssm.language_stability import final_loss
from stablessm.experiments.stable_ssm.language_study import PAPERS, SMOKE, StudyConfig
from stablessm.report.figure import Figure, Panel, Series


def run(config: StudyConfig, run: Run) -> None:
    """Measure the models before training, then train them."""
    study.start_all(config, run, config.maps)
    study.train_all(config, run, config.rate)


def figures(config: StudyConfig, stages: Stages) -> list[Figure]:
    """Return figures of the largest and the median ratio, and of the loss."""
    cells, lines = study.at(config, stages, config.rate), []
    for scheme, found in cells.items():
        steps = found["looks"].astype(float).tolist()
        lines += [
            Series(scheme, steps, found["largest"].tolist(), "solid", scheme),
            Series(f"{scheme}, median", steps, found["typical"].tolist(), "dotted", scheme),
        ]
    return [
        Figure(
            "gradient-over-weight",
            "|gradient| / |weight| of the recurrent weights of all layers: the largest (solid), and the median over "
            f"layers of their medians (dotted). Right: the loss. Rate {config.rate:g}.",
            [
                Panel("through training", "step", "|gradient| / |weight|", lines, y_scale="log"),
                study.losses("loss", cells),
            ],
        )
    ]


def claims(config: StudyConfig, stages: Stages) -> list[Claim]:
    """Check that best has the smallest ratio, and that the ratio predicts stability."""
    cells = study.at(config, stages, config.rate)
    typical = {scheme: float(np.median(found["largest"])) for scheme, found in cells.items()}
    highest = {scheme: float(found["largest"].max()) for scheme, found in cells.items()}
    made = [smallest(typical, highest)] if PAPERS in cells and len(cells) > 1 else []
    if len(cells) < 3:
        return made
    unrest = study.unrest(config, cells)
    final = {scheme: final_loss(found, config.limits) for scheme, found in cells.items()}
    wild = np.array([(told.diverged, told.spikes, final[scheme]) for scheme, told in unrest.items()])
    start = np.array([study.beginning(stages, scheme)["ratio"].max() for scheme in cells])
    bound = np.array([study.beginning(stages, scheme)["bound"].max() for scheme in cells])
    decides = correlation(ranks(np.array([*highest.values()])), ranks_of_rows(wild))
    known = correlation(ranks(start), ranks(bound))
    told = "; ".join(f"{scheme}: {instability}" for scheme, instability in unrest.items())
    return [
        *made,
        Claim(
            "a map with a larger |gradient| / |weight| trains less stably",
            "figure 5: crucial for the training stability",
            f"rank correlation {decides:.2f} over {len(cells)} maps",
            rules.graded(*(decides > limit for limit in config.limits.decides)),
            f"Correlation of the highest ratio with instability: divergence first, then spikes, then the final "
            f"loss. {told}.",
        ),
        Claim(
            "the bound G(w)/|w| puts the maps in the order of the measured ratios",
            "theorem 3.4: |∂loss/∂w| ≤ C G(w)",
            f"rank correlation {known:.2f} over {len(cells)} maps at the start",
            rules.graded(*(known > limit for limit in config.limits.ordered)),
            f"Largest ratios {listed(dict(zip(cells, start, strict=True)))}; largest bounds "
            f"{listed(dict(zip(cells, bound, strict=True)))}.",
        ),
    ]


def smallest(typical: dict[str, float], highest: dict[str, float]) -> Claim:
    """Check figure 5; the map with b = 1 is our addition and not a rival."""
    rivals = [scheme for scheme in typical if not scheme.startswith("best")] or ["best-1"]
    ratios = [numbers[PAPERS] / min(numbers[scheme] for scheme in rivals) for numbers in (typical, highest)]
    held = [ratio < 1 for ratio in ratios]
    return Claim(
        "best (b = 0.5) has the lowest peak gradient-to-weight ratio during training",
        "figure 5: the smallest",
        "median over steps: " + listed(typical) + "; highest: " + listed(highest),
        rules.some(held),
        f"Its median is {ratios[0]:.2g} times the median of the next map of another kind, its highest value "
        f"{ratios[1]:.2g} times.",
    )


def ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 0; equal values share the mean of their ranks.

    >>> ranks(np.array([0.3, 0.1, 0.3])).tolist()
    [1.5, 0.0, 1.5]
    """
    return ranks_of_rows(values[:, None])


def ranks_of_rows(rows: np.ndarray) -> np.ndarray:
    """Return ranks of rows that are compared by their first number, then by the next."""
    unique, places = np.unique(rows, axis=0, return_inverse=True)
    sizes = np.bincount(places.ravel(), minlength=len(unique))
    return np.asarray((np.cumsum(sizes) - (sizes + 1) / 2)[places.ravel()])


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two rankings; 0 if one of them has only ties."""
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else 0.0


EXPERIMENT = Experiment(
    id="st-fig5",
    title="Gradient over weight in language models",
    source="StableSSM, figure 5",
    question="Which parameterization has the smallest |gradient| / |weight| while a language model is trained?",
    claim="The best map, 1 - 1/(w² + 0.5), which is crucial for the stability of training.",
    configs={"smoke": SMOKE, "paper": StudyConfig()},
    minutes={"smoke": 0.1, "paper": 4000.0},
    run=run,
    figures=figures,
    claims=claims,
    jobs=lambda config: study.jobs(config, (config.rate,)),
)
