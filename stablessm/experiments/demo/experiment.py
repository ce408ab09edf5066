"""Direct against stable maps: train, measure, perturb."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.frame.training import Batch, Training, differentiate, mean_square, noise, train
from stablessm.instruments import (
    MemoryCurve,
    PerturbationCurve,
    gradient_over_weight,
    memory_function,
    perturbation_error,
    stability_radius,
)
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
    """Sizes of the demonstration; the defaults take about a minute and a half on two cores."""

    width: int = 32
    length: int = 200
    """Steps of a training sequence; memory and errors are measured over ten times as many."""
    training: Training = LEARNING
    radii: tuple[float, ...] = RADII
    samples: int = 10
    steps: int = 10
    """Number of steps of gradient ascent."""
    seed: int = 0
    explodes: float = 100.0
    """Ratio of the errors from which on the direct map explodes and the others do not."""


def start(config: Config, map: str) -> RealSSM:
    """Return a model, the same function for every map."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        eigenvalues = -1 / timescales(config.width, 0.7, float(config.length))
        layer = RealSSM(
            1, config.width, 1, map="exp", discretization="exponential", bias=False, eigenvalues=eigenvalues
        )
        return layer.double().with_map(map)


def batch(config: Config, index: int) -> Batch:
    """Return white noise and the output of the target."""
    x = noise(config.seed, index, config.training.batch, config.length, 1)
    return x, TARGET(x)


def trained(config: Config, run: Run, map: str) -> RealSSM:
    """Return the trained model."""
    done = train(run, f"train-{map}", [start(config, map)], mean_square, partial(batch, config), config.training)
    return done.models[0]


def _measure_memory(config: Config, run: Run, map: str) -> None:
    layer = trained(config, run, map)
    run.keep(f"memory-{map}", MemoryCurve, lambda: memory_function(layer, 10 * config.length))


def memory(stages: Stages, map: str) -> MemoryCurve:
    """Return the memory of the trained model."""
    return stages.load(f"memory-{map}", MemoryCurve)


def _measure_errors(config: Config, run: Run, map: str) -> None:
    layer = trained(config, run, map)
    run.keep(
        f"errors-{map}",
        PerturbationCurve,
        lambda: perturbation_error(
            layer,
            TARGET,
            config.radii,
            parameters="recurrent",
            search="ascent",
            samples=config.samples,
            steps=config.steps,
            horizon=10 * config.length,
            seed=config.seed,
            progress=run.progress,
        ),
    )


def errors(stages: Stages, map: str) -> PerturbationCurve:
    """Return the errors after perturbations of the recurrent weights."""
    return stages.load(f"errors-{map}", PerturbationCurve)


def _measure_numbers(config: Config, run: Run, map: str) -> None:
    def compute() -> dict[str, object]:
        layer = trained(config, run, map)
        fresh = start(config, map)
        differentiate(mean_square(fresh, *batch(config, 0)), fresh)
        ratio = gradient_over_weight(fresh, recurrent_only=True)["w"].ratio
        eigenvalues = layer.eigenvalues().detach()
        scales = -1 / fresh.eigenvalues().detach()
        return {
            "radius": stability_radius(layer),
            "eigenvalues": eigenvalues.numpy(),
            "gradient_over_weight": np.asarray(ratio),
            "time_scales": scales.numpy(),
        }

    run.stage(f"numbers-{map}", compute)


def numbers(stages: Stages, map: str) -> Mapping[str, np.ndarray]:
    """Return eigenvalues, stability radius, and gradient over weight before training."""
    return stages[f"numbers-{map}"]


def run(config: Config, run: Run) -> None:
    """Train and measure every map."""
    for map in MAPS:
        _measure_memory(config, run, map)
        _measure_errors(config, run, map)
        _measure_numbers(config, run, map)


def figures(config: Config, stages: Stages) -> list[Figure]:
    """Return figures of losses, memories, errors and gradients."""
    step = config.training.steps_per_row
    learned, remembered, broken, pushed = [], [], [], []
    times = np.unique(np.geomspace(1, 10 * config.length, 200).astype(int)) - 1
    exact = TARGET.kernel(torch.from_numpy(times * 1.0)).flatten().numpy()
    for map in MAPS:
        losses = stages[f"train-{map}"]["losses"][:, 0]
        learned.append(Series(map, (step * (1 + np.arange(len(losses)))).tolist(), losses.tolist()))
        curve, error, found = memory(stages, map), errors(stages, map), numbers(stages, map)
        remembered.append(Series(map, (1 + times).tolist(), curve.value[times].tolist()))
        beta = error.radius[1:].tolist()
        broken.append(Series(map, beta, error.lower[1:].tolist(), "both", group=map))
        assert error.upper is not None  # the models are linear and diagonal
        broken.append(Series(f"{map}, upper bound", beta, error.upper[1:].tolist(), "dashed", group=map))
        pushed.append(Series(map, found["time_scales"].tolist(), found["gradient_over_weight"].tolist(), "both"))
    remembered.append(Series("target", (1 + times).tolist(), exact.tolist(), "dotted"))
    trained_to = f"1 + t (trained to {config.length})"
    return [
        Figure(
            "demo",
            "Four models with the same start and training: their memory; the largest error that perturbed recurrent "
            "weights give, found by ascent, with its upper bound (dashed); gradient over weight before training.",
            [
                Panel("what they remember", trained_to, "M(t)", remembered, "log", "log", (1e-5, 2.0)),
                Panel("error under perturbation", "β", "E(β), L¹ of the kernel", broken, "log", "log", (0.1, 1e6)),
                Panel("gradient over weight", "time scale of the mode", "|∂loss/∂w| / |w|", pushed, "log", "log"),
            ],
        ),
        Figure("training", "The training loss.", [Panel("training", "step", "mean square", learned, "linear", "log")]),
    ]


def claims(config: Config, stages: Stages) -> list[Claim]:
    """Check that direct explodes, stable maps do not, and best has the smallest relative gradients."""
    radii = {map: float(numbers(stages, map)["radius"]) for map in MAPS}
    worst = {map: float(errors(stages, map).lower[-1]) for map in MAPS}
    stable = [map for map in MAPS if map != "direct"]
    largest = {map: float(numbers(stages, map)["gradient_over_weight"].max()) for map in MAPS}
    smallest = min(largest, key=lambda map: largest[map])
    infinite, bounded = (
        all(radii[m] == math.inf for m in stable),
        all(worst[m] < worst["direct"] / config.explodes for m in stable),
    )
    return [
        Claim(
            "a stable map cannot become unstable",
            "infinite for a stable map (theorem 3.3)",
            ", ".join(f"{map}: {radius:.2g}" for map, radius in radii.items()),
            rules.graded(infinite and radii["direct"] < math.inf),
            f"The stability radius of the direct model is {radii['direct']:.2g}.",
        ),
        Claim(
            f"perturbed by β = {config.radii[-1]:.2g}, direct explodes and stable maps do not",
            "direct explodes, the others stay bounded (figure 1)",
            ", ".join(f"{map}: {error:.2g}" for map, error in worst.items()),
            rules.graded(bounded, any(worst[m] < worst["direct"] for m in stable)),
            f"Over {10 * config.length} steps; the target's own norm is about {_norm(config):.2g}.",
        ),
        Claim(
            "the map best has the smallest gradient over weight",
            "the smallest maximum (section 4.2, figure 3)",
            ", ".join(f"{map}: {value:.2g}" for map, value in largest.items()),
            rules.graded(smallest == "best"),
            "The largest |∂loss/∂w| / |w| over modes before training, where all maps give the same function; "
            "smallest for "
            f"{smallest}.",
        ),
    ]


def _norm(config: Config) -> float:
    return float(TARGET.kernel(torch.arange(10.0 * config.length)).sum())


SMOKE = Training(samples=8 * 20, batch=8, epochs=1, rows_per_epoch=5, device="cpu")
EXPERIMENT = Experiment(
    id="demo",
    title="The stability demonstration",
    source="StableSSM, figures 1 and 3, reduced",
    question=(
        "What do models with a direct and with stable maps remember after the same training, and how robust are they?"
    ),
    claim="All models learn. The direct model explodes under a small perturbation, stable maps do not.",
    configs={
        "smoke": Config(width=8, length=30, training=SMOKE, radii=(0.0, 0.1, 1.0), samples=2, steps=2),
        "paper": Config(),
    },
    minutes={"smoke": 0.1, "paper": 1.5},
    run=run,
    figures=figures,
    claims=claims,
)
