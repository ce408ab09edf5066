"""Measures gradient-to-weight ratios during the training of state-space models, for each map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Panel, Run, Stages, described, rules, stage
from stablessm.experiments.frame.lines import lines, paired
from stablessm.experiments.frame.training import Training, differentiate, mean_square, noisy, train
from stablessm.experiments.stable_ssm.gradient_ratios import RATIO, ascending, predicted
from stablessm.instruments import gradient_over_weight
from stablessm.instruments.modes import ratio
from stablessm.layers import RealSSM
from stablessm.layers.initialize import timescales
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
    """Settings of ``st-fig3``: maps, model size, training and thresholds. Defaults are as in StableSSM,
    appendix C.1.
    """

    maps: tuple[str, ...] = ("direct", "relu", "exp", "softplus", "tanh", "best")
    width: int = 64
    length: int = 100
    training: Training = PUBLISHED
    seeds: int = 3
    similar: float = 2.0
    """Losses within this factor are similar; losses within its cube are partly similar."""
    ordered: tuple[float, ...] = (0.9, 0.5)
    """Rank correlations above which the orders of the maps count as equal, and as partly equal."""


def spread(config: Config) -> Tensor:
    """Return the initial time scales of the modes, in steps."""
    return timescales(config.width, SHORTEST, float(config.length))


def start(config: Config, map: str, seed: int) -> RealSSM:
    """Return the untrained model with the given map. All maps give the same initial eigenvalues, so that the untrained
    models of all maps compute the same function.
    """
    torch.manual_seed(seed)
    eigenvalues = (-1 / spread(config)).exp()
    layer = RealSSM(1, config.width, 1, map="direct", time="discrete", activation="tanh", eigenvalues=eigenvalues)
    return layer.double().with_map(map, **OPTIONS.get(map, {}))


def ratios(weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> Tensor:
    """Return quantiles of |gradient| / |weight| over the modes, (models, quantiles). ``weights`` and ``gradients`` map
    the names of parameters to tensors whose first axis is the model.
    """
    at = torch.tensor(QUANTILES).to(weights["w"])
    return ratio(gradients["w"], weights["w"]).quantile(at, dim=1, interpolation="higher").mT


@stage("start-{map}")
def beginning(config: Config, run: Run, map: str) -> Mapping[str, Any]:
    """Return the ratio |gradient| / |weight| of each mode before training, and a bound on it: up to a constant, the
    ratio is at most G(w)/|w|, the gradient scale over the weight (StableSSM, theorem 3.4).
    """
    layer = start(config, map, 0).to(config.training.chosen_device())
    differentiate(mean_square(layer, *noisy(TARGET, config.training, config.length)(0)), layer)
    found = gradient_over_weight(layer, recurrent_only=True)["w"]
    assert found.ratio is not None
    assert found.predicted is not None
    return {"ratio": found.ratio.cpu(), "bound": found.predicted.cpu()}


def run(config: Config, run: Run) -> None:
    """Measure the ratios before training and train the models, one map after the other. The models of all seeds are
    trained together.
    """
    for map in config.maps:
        beginning.compute(config, run, map)
        starts = [start(config, map, seed) for seed in range(config.seeds)]
        batches = noisy(TARGET, config.training, config.length)
        train(run, f"training-{map}", starts, mean_square, batches, config.training, observe=ratios)


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure of the gradient-to-weight ratios and losses during training, and of the ratios before training
    against the time scale of the mode.
    """
    found = {map: stages[f"training-{map}"] for map in config.maps}
    losses = {map: arrays["losses"][:, 0] for map, arrays in found.items()}
    seen = {map: (arrays["seen"][:, 0, -1], arrays["seen"][:, 0, 0]) for map, arrays in found.items()}
    steps = config.training.steps_per_row * np.arange(max(map(len, losses.values())))
    at_start = lines(spread(config).numpy(), {map: beginning(stages, map)["ratio"] for map in config.maps}, "both")
    yield Figure(
        "gradient-over-weight",
        "The largest (solid) and the median (dotted) |gradient| / |weight| of recurrent weights, and the loss, for "
        "seed 0. Right: each mode before training; all maps have the same eigenvalues.",
        [
            Panel("through training", "step", RATIO, paired(steps, seen, ", median"), y_scale="log"),
            Panel("loss", "step", "mean square", lines(steps, losses), y_scale="log"),
            Panel("at the start", "time scale τ", RATIO, at_start, "log", "log"),
        ],
    )


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims with their verdicts: the map ``best`` has the smallest gradient-to-weight ratio; the losses are
    similar with all maps; and the theoretical bound ranks the maps in the same order as the measured ratio does.
    """
    seen = {map: stages[f"training-{map}"]["seen"][..., -1] for map in config.maps}
    typical = {map: float(np.median(values)) for map, values in seen.items()}
    highest = {map: float(values.max()) for map, values in seen.items()}
    ahead = [numbers["best"] / min(v for m, v in numbers.items() if m != "best") for numbers in (typical, highest)]
    wins = [min(numbers, key=lambda map: numbers[map]) == "best" for numbers in (typical, highest)]
    words = ["the smallest" if win else "not the smallest" for win in wins]
    yield Claim(
        "best has the lowest peak gradient-to-weight ratio during training",
        "figure 3: the smallest",
        f"median over steps and seeds: {ascending(typical)}; highest: {ascending(highest)}",
        rules.some(wins),
        f"By the median best is {words[0]}, {ahead[0]:.2g} times the next map; by the highest value it is {words[1]}, "
        f"{ahead[1]:.2g} times.",
    )
    final = {map: float(stages[f"training-{map}"]["losses"][-1].mean()) for map in config.maps}
    factor = max(final.values()) / min(final.values())
    yield Claim(
        "the losses of the maps are similar",
        "section 4.1: similar",
        f"final: {ascending(final)}",
        rules.graded(factor < config.similar, factor < config.similar**3),
        f"The largest final loss is {factor:.2g} times the smallest; up to {config.similar:g} times is called similar.",
    )
    yield predicted({map: beginning(stages, map) for map in config.maps}, config.ordered)


SMOKE = Config(
    width=8, length=20, training=Training(samples=160, batch=16, epochs=4, rows_per_epoch=5, device="cpu"), seeds=2
)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=Config(), minutes=(0.1, 60.0))
