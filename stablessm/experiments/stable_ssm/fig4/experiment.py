"""Language models: |gradient| / |weight| from the same eigenvalues, and the loss at a large learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.stable_ssm import language_study as study
from stablessm.experiments.stable_ssm.language_stability import calmest, final_loss
from stablessm.experiments.stable_ssm.language_study import PAPERS, SMOKE, StudyConfig
from stablessm.report.figure import Figure, Panel, Series

UNSTABLE = ("direct", "relu")
"""Maps with wide ranges in the paper."""


def shown(config: StudyConfig) -> tuple[str, ...]:
    """Return the maps of the figure before training, which include tanh."""
    return tuple(dict.fromkeys((*config.maps, "tanh")))


def run(config: StudyConfig, run: Run) -> None:
    """Measure the models before training, then train them."""
    study.start_all(config, run, shown(config))
    study.train_all(config, run, config.rate)


def spread(ratio: np.ndarray, left_out: float) -> tuple[float, float]:
    """Return the range of ratios over all modes without the given share at either end."""
    low, high = np.quantile(ratio, [left_out, 1 - left_out], method="nearest")
    return float(low), float(high)


def figures(config: StudyConfig, stages: Stages) -> list[Figure]:
    """Return panels (a) and (b)."""
    starts = {scheme: study.beginning(stages, scheme) for scheme in shown(config)}
    modes = []
    for scheme, found in starts.items():
        order = np.argsort(found["eigenvalues"].ravel(), kind="stable")
        tau = -1 / np.log(found["eigenvalues"].ravel()[order].astype(float))
        modes.append(Series(scheme, tau.tolist(), found["ratio"].ravel()[order].tolist(), "points"))
    return [
        Figure(
            "start-and-loss",
            "Left: |gradient| / |weight| of every mode of every layer before training; all maps have the same "
            f"eigenvalues. Right: the training loss at the rate {config.rate:g}; a line that ends early diverged.",
            [
                Panel("at the start", "time scale of the mode [tokens]", "|gradient| / |weight|", modes, "log", "log"),
                study.losses(f"training, rate {config.rate:g}", study.at(config, stages, config.rate)),
            ],
        )
    ]


def claims(config: StudyConfig, stages: Stages) -> list[Claim]:
    """Check the ranges of ratios, and which maps train stably."""
    stable = [scheme for scheme in shown(config) if scheme not in UNSTABLE]
    unstable = [scheme for scheme in config.maps if scheme in UNSTABLE]
    made = [narrower(config, stages, stable, unstable)] if unstable else []
    rivals = [scheme for scheme in ("relu", "exp") if scheme in config.maps]
    return [*made, calmer(config, stages, rivals)] if rivals and PAPERS in config.maps else made


def narrower(config: StudyConfig, stages: Stages, stable: list[str], unstable: list[str]) -> Claim:
    """Check figure 4 (a)."""
    ends = {
        scheme: spread(study.beginning(stages, scheme)["ratio"], config.limits.ends) for scheme in (*stable, *unstable)
    }
    width = {scheme: high - low for scheme, (low, high) in ends.items()}
    held = [width[a] < width[b] for a in stable for b in unstable]
    decades = {scheme: np.log10(high / low) if low > 0 else np.inf for scheme, (low, high) in ends.items()}
    return Claim(
        "from the same eigenvalues, stable maps have a narrower range of |gradient| / |weight| than direct and relu",
        "figure 4 (a): narrower",
        "; ".join(f"{scheme} {low:.2g} to {high:.2g}" for scheme, (low, high) in ends.items()),
        rules.most(sum(held), len(held)),
        f"In {sum(held)} of {len(held)} pairs of a stable and another map the stable map has the narrower range (of "
        f"{1 - 2 * config.limits.ends:.0%} of the modes). In decades: {_listed(decades)}.",
    )


def calmer(config: StudyConfig, stages: Stages, rivals: Sequence[str]) -> Claim:
    """Check figure 4 (b)."""
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
        "losses: "
        f"{_listed(final)}.",
    )


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.3g}" for name, number in numbers.items())


EXPERIMENT = Experiment(
    id="st-fig4",
    title="Language models from the same eigenvalues",
    source="StableSSM, figure 4",
    question=(
        "How large are the relative gradients of each map in a language model, and which maps train stably at "
        "a large rate?"
    ),
    claim="Stable maps have a narrower range of |gradient| / |weight|; best trains more stably than relu and exp.",
    configs={"smoke": SMOKE, "paper": StudyConfig()},
    minutes={"smoke": 0.1, "paper": 4000.0},
    run=run,
    figures=figures,
    claims=claims,
    jobs=lambda config: study.jobs(config, (config.rate,)),
)
