"""Trains models with direct and stable maps, measures their memory and perturbs their recurrent weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, kept, rules, stage
from stablessm.experiments.frame.lines import lines, paired
from stablessm.experiments.frame.training import Training, differentiate, mean_square, noisy, train
from stablessm.experiments.frame.words import each
from stablessm.instruments import (
    MemoryCurve,
    PerturbationCurve,
    gradient_over_weight,
    memory_function,
    perturbation_error,
    stability_radius,
)  # fmt: skip
from stablessm.layers import RealSSM
from stablessm.layers.initialize import timescales
from stablessm.report.figure import Figure, Panel, Series
from stablessm.targets import LinearFunctional

TARGET = LinearFunctional("polynomial", exponent=1.1)
MAPS = ("direct", "exp", "softplus", "best")
RADII = (0.0, *(1e-3 * 2.0**k for k in range(11)))


LEARNING = Training(samples=64 * 1000, batch=64, epochs=1, rows_per_epoch=100, device="cpu")


@dataclass(frozen=True)
class Config:
    """Settings of ``demo``; with the defaults, the experiment takes about a minute and a half on two cores."""

    width: int = 32
    length: int = 200
    """Number of steps of a training sequence; memory and errors are measured over ten times as many steps."""
    training: Training = LEARNING
    radii: tuple[float, ...] = RADII
    samples: int = 10
    steps: int = 10
    """Number of steps of gradient ascent."""
    seed: int = 0
    explodes: float = 100.0
    """The direct map counts as exploding if its largest error is more than this many times the largest errors of the
    stable maps."""


def start(config: Config, map: str) -> RealSSM:
    """Return the untrained model with the given map. All maps give the same initial eigenvalues, so that the untrained
    models of all maps compute the same function.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        eigenvalues = -1 / timescales(config.width, 0.7, float(config.length))
        layer = RealSSM(
            1, config.width, 1, map="exp", discretization="exponential", bias=False, eigenvalues=eigenvalues
        )
        return layer.double().with_map(map)


def trained(config: Config, run: Run, map: str) -> RealSSM:
    """Train the model with the given map, and return the trained model."""
    batches = noisy(TARGET, config.training, config.length, config.seed)
    return train(run, f"train-{map}", [start(config, map)], mean_square, batches, config.training).models[0]


@kept(MemoryCurve, "memory-{map}", over=lambda config: MAPS)
def memory(config: Config, run: Run, map: str) -> MemoryCurve:
    """Return the memory function of the trained model with the given map."""
    return memory_function(trained(config, run, map), 10 * config.length)


@kept(PerturbationCurve, "errors-{map}", over=lambda config: MAPS)
def errors(config: Config, run: Run, map: str) -> PerturbationCurve:
    """Perturb the recurrent weights of the trained model with the given map; return the errors for each size of the
    perturbation.
    """
    return perturbation_error(
        trained(config, run, map), TARGET, config.radii, parameters="recurrent", search="ascent",
        samples=config.samples, steps=config.steps, horizon=10 * config.length, seed=config.seed, progress=run.progress,
    )  # fmt: skip


@stage("numbers-{map}", over=lambda config: MAPS)
def numbers(config: Config, run: Run, map: str) -> Mapping[str, Any]:
    """Return four numbers on the model with the given map: the stability radius and the eigenvalues of the trained
    model, and the gradient-to-weight ratio and the time scale of each mode of the untrained model.
    """
    layer, fresh = trained(config, run, map), start(config, map)
    differentiate(mean_square(fresh, *noisy(TARGET, config.training, config.length, config.seed)(0)), fresh)
    return {
        "radius": stability_radius(layer),
        "eigenvalues": layer.eigenvalues().detach(),
        "gradient_over_weight": gradient_over_weight(fresh, recurrent_only=True)["w"].ratio,
        "time_scales": -1 / fresh.eigenvalues().detach(),
    }


def figures(config: Config, stages: Stages) -> Figures:
    """Yield two figures: the first shows memory functions, perturbation errors and gradient-to-weight ratios, the
    second the training losses.
    """
    times = np.unique(np.geomspace(1, 10 * config.length, 200).astype(int)) - 1
    remembered = lines(1 + times, {map: curve.value[times] for map, curve in memory.all(config, stages).items()})
    exact = TARGET.kernel(torch.from_numpy(times * 1.0)).flatten().numpy()
    remembered.append(Series("target", 1 + times, exact, "dotted"))
    broken, trained_to = [], f"1 + t (trained to {config.length})"
    for map, error in errors.all(config, stages).items():
        assert error.upper is not None  # the models are linear and diagonal
        broken += paired(
            error.radius[1:], {map: (error.lower[1:], error.upper[1:])}, ", upper bound", ("both", "dashed")
        )
    pushed = [
        Series(map, found["time_scales"], found["gradient_over_weight"], "both")
        for map, found in numbers.all(config, stages).items()
    ]
    yield Figure(
        "demo",
        "Four models with the same start and training: their memory; the largest error that perturbed recurrent "
        "weights give, found by ascent, with its upper bound (dashed); gradient over weight before training.",
        [
            Panel("memory of the trained models", trained_to, "M(t)", remembered, "log", "log", (1e-5, 2.0)),
            Panel("error under perturbation", "β", "E(β), L¹ of the kernel", broken, "log", "log", (0.1, 1e6)),
            Panel("gradient over weight", "time scale of the mode", "|∂loss/∂w| / |w|", pushed, "log", "log"),
        ],
    )
    losses = {map: stages[f"train-{map}"]["losses"][:, 0] for map in MAPS}
    steps = config.training.steps_per_row * (1 + np.arange(len(losses["direct"])))
    panel = Panel("training", "step", "mean square", lines(steps, losses), "linear", "log")
    yield Figure("training", "The training loss.", [panel])


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims with their verdicts: under perturbation, the errors of models with direct maps explode, and the
    errors of models with stable maps do not; the map ``best`` has the smallest gradient-to-weight ratios.
    """
    found, stable = numbers.all(config, stages), [map for map in MAPS if map != "direct"]
    radii = {map: float(one["radius"]) for map, one in found.items()}
    infinite = all(radii[map] == math.inf for map in stable)
    yield Claim(
        "a stable map cannot become unstable",
        "infinite for a stable map (theorem 3.3)",
        each("{}: {:.2g}", radii.items()),
        rules.graded(infinite and radii["direct"] < math.inf),
        f"The stability radius of the direct model is {radii['direct']:.2g}.",
    )
    worst = {map: float(curve.lower[-1]) for map, curve in errors.all(config, stages).items()}
    bounded = all(worst[map] < worst["direct"] / config.explodes for map in stable)
    yield Claim(
        f"perturbed by β = {config.radii[-1]:.2g}, direct explodes and stable maps do not",
        "direct explodes, the others stay bounded (figure 1)",
        each("{}: {:.2g}", worst.items()),
        rules.graded(bounded, any(worst[map] < worst["direct"] for map in stable)),
        f"Over {10 * config.length} steps; the target's own norm is about "
        f"{float(TARGET.kernel(torch.arange(10.0 * config.length)).sum()):.2g}.",
    )
    largest = {map: float(one["gradient_over_weight"].max()) for map, one in found.items()}
    smallest = min(largest, key=lambda map: largest[map])
    yield Claim(
        "the map best has the smallest gradient over weight",
        "the smallest maximum (section 4.2, figure 3)",
        each("{}: {:.2g}", largest.items()),
        rules.graded(smallest == "best"),
        "The largest |∂loss/∂w| / |w| over modes before training, where all maps give the same function; smallest for "
        f"{smallest}.",
    )


run = computing(memory, errors, numbers)
SMOKE = Training(samples=8 * 20, batch=8, epochs=1, rows_per_epoch=5, device="cpu")
SMALL = Config(width=8, length=30, training=SMOKE, radii=(0.0, 0.1, 1.0), samples=2, steps=2)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMALL, paper=Config(), minutes=(0.1, 1.5))
