"""Gradient over weight during training for each map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.frame.training import Batch, Training, differentiate, mean_square, noise, train
from stablessm.instruments import gradient_over_weight
from stablessm.instruments.modes import ratio
from stablessm.layers import RealSSM
from stablessm.layers.initialize import timescales
from stablessm.report.figure import Figure, Panel, Series
from stablessm.targets import LinearFunctional

TARGET = LinearFunctional("polynomial", exponent=1.1)
PUBLISHED = Training(samples=153_600, batch=512, epochs=5, rows_per_epoch=20)
QUANTILES = (0.5, 0.9, 1.0)
"""Quantiles over modes: the median, 90 % and the largest."""
OPTIONS = {"best": {"b": 0.5}}
"""Options of the published map, 1 - 1/(w² + 0.5)."""
SHORTEST = 2.0
"""The shortest time scale; a time scale of 1 is w = 0 under the exp map, where the ratio is infinite."""


@dataclass(frozen=True)
class Config:
    """Sizes of the experiment. The defaults are the sizes in StableSSM, appendix C.1."""

    maps: tuple[str, ...] = ("direct", "relu", "exp", "softplus", "tanh", "best")
    width: int = 64
    length: int = 100
    training: Training = PUBLISHED
    seeds: int = 3
    similar: float = 2.0
    """Losses within this factor are similar; losses within its cube are partly similar."""
    ordered: tuple[float, ...] = (0.9, 0.5)
    """Rank correlations from which on two orders are the same, and partly the same."""


def spread(config: Config) -> Tensor:
    """Return time scales, in steps."""
    return timescales(config.width, SHORTEST, float(config.length))


def start(config: Config, map: str, seed: int) -> RealSSM:
    """Return a model, the same function for every map."""
    torch.manual_seed(seed)
    eigenvalues = (-1 / spread(config)).exp()
    layer = RealSSM(1, config.width, 1, map="direct", time="discrete", activation="tanh", eigenvalues=eigenvalues)
    return layer.double().with_map(map, **OPTIONS.get(map, {}))


def batch(config: Config, k: int) -> Batch:
    """Return inputs and targets."""
    x = noise(0, k, config.training.batch, config.length, 1).to(config.training.chosen_device())
    return x, TARGET(x)


def ratios(weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> Tensor:
    """Return quantiles of |gradient| / |weight| over modes, (models, quantiles)."""
    at = torch.tensor(QUANTILES).to(weights["w"])
    return ratio(gradients["w"], weights["w"]).quantile(at, dim=1, interpolation="higher").mT


def bound(config: Config, map: str) -> Mapping[str, np.ndarray]:
    """Return the ratio of each mode before training, and its bound G(w)/|w| (theorem 3.4)."""
    layer = start(config, map, 0).to(config.training.chosen_device())
    differentiate(mean_square(layer, *batch(config, 0)), layer)
    found = gradient_over_weight(layer, recurrent_only=True)["w"]
    assert found.ratio is not None
    assert found.predicted is not None
    return {"ratio": found.ratio.cpu().numpy(), "bound": found.predicted.cpu().numpy()}


def run(config: Config, run: Run) -> None:
    """Train each map in turn, all seeds at once."""
    for map in config.maps:
        run.stage(f"start-{map}", lambda map=map: bound(config, map))  # type: ignore[misc]
        starts = [start(config, map, seed) for seed in range(config.seeds)]
        train(
            run, f"training-{map}", starts, mean_square, lambda k: batch(config, k), config.training, observe=ratios
        )  # fmt: skip


def figures(config: Config, stages: Stages) -> list[Figure]:
    """Return ratios and losses during training, and ratios before training against time scales."""
    through, losses, at_start = [], [], []
    tau = spread(config).tolist()
    for map in config.maps:
        arrays = stages[f"training-{map}"]
        steps = (config.training.steps_per_row * np.arange(len(arrays["losses"]))).tolist()
        largest, median = (arrays["seen"][:, 0, i].tolist() for i in (-1, 0))
        through += [Series(map, steps, largest, "solid", map), Series(f"{map}, median", steps, median, "dotted", map)]
        losses.append(Series(map, steps, arrays["losses"][:, 0].tolist()))
        at_start.append(Series(map, tau, stages[f"start-{map}"]["ratio"].tolist(), "both"))
    return [
        Figure(
            "gradient-over-weight",
            "The largest (solid) and the median (dotted) |gradient| / |weight| of recurrent weights, and the loss, for "
            "seed 0. Right: each mode before training; all maps have the same eigenvalues.",
            [
                Panel("through training", "step", "|gradient| / |weight|", through, y_scale="log"),
                Panel("loss", "step", "mean square", losses, y_scale="log"),
                Panel("at the start", "time scale τ", "|gradient| / |weight|", at_start, "log", "log"),
            ],
        )
    ]


def claims(config: Config, stages: Stages) -> list[Claim]:
    """Check that best has the smallest ratio, losses are similar, and the bound predicts the order."""
    seen = {map: stages[f"training-{map}"]["seen"][..., -1] for map in config.maps}
    typical = {map: float(np.median(values)) for map, values in seen.items()}
    highest = {map: float(values.max()) for map, values in seen.items()}
    final = {map: float(stages[f"training-{map}"]["losses"][-1].mean()) for map in config.maps}
    wins = [min(numbers, key=lambda map: numbers[map]) == "best" for numbers in (typical, highest)]
    spread = max(final.values()) / min(final.values())
    measured, predicted = (
        np.array([stages[f"start-{map}"][key].max() for map in config.maps]) for key in ("ratio", "bound")
    )
    order = float(np.corrcoef(measured.argsort().argsort(), predicted.argsort().argsort())[0, 1])
    return [
        Claim(
            "best has the lowest peak gradient-to-weight ratio during training",
            "figure 3: the smallest",
            "median over steps and seeds: " + listed(typical) + "; highest: " + listed(highest),
            rules.some(wins),
            f"By the median best is {'the smallest' if wins[0] else 'not the smallest'}, "
            f"{typical['best'] / min(v for m, v in typical.items() if m != 'best'):.2g} times the next map; by the "
            f"highest value it is {'the smallest' if wins[1] else 'not the smallest'}, "
            f"{highest['best'] / min(v for m, v in highest.items() if m != 'best'):.2g} times.",
        ),
        Claim(
            "the losses of the maps are similar",
            "section 4.1: similar",
            "final: " + listed(final),
            rules.graded(spread < config.similar, spread < config.similar**3),
            f"The largest final loss is {spread:.2g} times the smallest; up to {config.similar:g} times is called "
            "similar.",
        ),
        Claim(
            "the bound G(w)/|w| puts the maps in the order of the measured ratios",
            "theorem 3.4: |∂loss/∂w| ≤ C G(w)",
            f"rank correlation {order:.2f} over {len(config.maps)} maps at the start",
            rules.graded(*(order > limit for limit in config.ordered)),
            f"Largest ratios {listed(dict(zip(config.maps, measured, strict=True)))}; largest bounds "
            f"{listed(dict(zip(config.maps, predicted, strict=True)))}.",
        ),
    ]


def listed(numbers: Mapping[str, float]) -> str:
    """Return values by map in words, smallest first."""
    return ", ".join(f"{name} {number:.2g}" for name, number in sorted(numbers.items(), key=lambda item: item[1]))


EXPERIMENT = Experiment(
    id="st-fig3",
    title="Gradient over weight",
    source="StableSSM, figure 3",
    question="Which parameterization has the smallest |gradient| / |weight| during training?",
    claim="The best map, 1 - 1/(w² + 0.5); its loss is similar to the losses of the other maps.",
    configs={
        "smoke": Config(
            width=8,
            length=20,
            training=Training(samples=160, batch=16, epochs=4, rows_per_epoch=5, device="cpu"),
            seeds=2,
        ),
        "paper": Config(),
    },
    minutes={"smoke": 0.1, "paper": 60.0},
    run=run,
    figures=figures,
    claims=claims,
)
