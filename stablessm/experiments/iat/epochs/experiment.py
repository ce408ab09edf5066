"""Trains tanh RNNs on targets with exponential and with polynomial memory, for growing numbers of epochs, and compares
the losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import torch

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.training import Training, noise, noisy, rnn_mean_square, train
from stablessm.experiments.frame.words import listed
from stablessm.layers import ContinuousRNN
from stablessm.report.figure import Figure, Panel
from stablessm.targets import NonlinearFunctional

TARGETS = {
    "exponential": NonlinearFunctional("exponential", rate=1.0, dt=0.1),
    "polynomial": NonlinearFunctional("polynomial", exponent=1.5, dt=0.1),
}


@dataclass(frozen=True)
class EpochsConfig:
    """Settings of ``ia-epochs``: widths, seeds, numbers of epochs and training. The options of the training are as in
    IAT, appendix C.
    """

    widths: tuple[int, ...] = (8, 32)
    seeds: int = 4
    length: int = 32
    epochs: tuple[int, ...] = (10, 100, 300)
    training: Training = Training(samples=12_800, batch=128, epochs=1, lr=0.005, graphed=True)  # noqa: RUF009 (frozen)
    many: float = 10.0
    """Smallest factor between relative losses that counts as a benefit of more epochs."""


@stage("training-{kind}-{epochs}", over=lambda config: product(TARGETS, config.epochs))
def scores(config: EpochsConfig, run: Run, kind: str, epochs: int) -> Mapping[str, np.ndarray]:
    """Train RNNs of all widths and seeds on the target with this kind of memory. Return the relative losses (widths,
    seeds): the loss in the last epoch divided by the mean square of the target's outputs.
    """
    target, training = TARGETS[kind], replace(config.training, epochs=epochs)
    starts = []
    for width, seed in product(config.widths, range(config.seeds)):
        torch.manual_seed(seed)
        starts.append(ContinuousRNN(1, width, 1, activation="tanh", dt=target.dt).double())
    name = f"losses-{kind}-{epochs}"
    found = train(run, name, starts, rnn_mean_square, cache(noisy(target, training, config.length)), training)
    variance = float(target(noise(0, 0, training.batch, config.length, 1)).square().mean())
    return {"score": found.losses[-1].reshape(len(config.widths), config.seeds) / variance}


def best(config: EpochsConfig, stages: Stages, kind: str) -> np.ndarray:
    """Return an array with one entry per number of epochs: the smallest relative loss over all widths and seeds."""
    return np.array([np.nanmin(scores(stages, kind, epochs)["score"]) for epochs in config.epochs])


def figures(config: EpochsConfig, stages: Stages) -> Figures:
    """Yield a figure of the relative losses against the number of epochs. It shows the smallest loss of all models, and
    the median loss for each width.
    """
    found = {f"{kind}, best": best(config, stages, kind) for kind in TARGETS}
    for kind, (i, width) in product(TARGETS, enumerate(config.widths)):
        middle = [float(np.median(scores(stages, kind, epochs)["score"][i])) for epochs in config.epochs]
        found[f"{kind}, m = {width}, median"] = np.array(middle)
    yield Figure(
        "epochs",
        "Loss of the last epoch relative to the variance of the target, after trainings of different lengths.",
        [Panel("tanh RNNs", "epochs", "relative loss", lines(config.epochs, found, "both"), "log", "log")],
    )


def claims(config: EpochsConfig, stages: Stages) -> Claims:
    """Yield claims with their verdicts: tanh RNNs need far fewer epochs to learn exponential memory than to learn
    polynomial memory.
    """
    fast, slow = (best(config, stages, kind) for kind in ("exponential", "polynomial"))
    first, last = config.epochs[0], config.epochs[-1]
    told = f"exponential {listed(fast, '.2g')}; polynomial {listed(slow, '.2g')}"
    yield Claim(
        f"exponential memory is learned in {first} epochs as well as polynomial memory in {last}",
        "section 4.3: 10 epochs, and 1000",
        told,
        rules.graded(bool(fast[0] <= slow[-1]), bool(config.many * fast[0] <= slow[0])),
        f"Relative losses after {listed(config.epochs, 'g')} epochs, best of {config.seeds} seeds and of the widths "
        f"{listed(config.widths, 'g')}. 'Partly': {config.many:g} times smaller after {first} epochs.",
    )
    gain, less = float(slow[0] / slow[-1]), float(fast[0] / fast[-1])
    yield Claim(
        "polynomial memory needs many epochs",
        "section 4.3: the optimization is difficult",
        f"{last} instead of {first} epochs reduce the loss {gain:.3g} times",
        rules.graded(gain >= config.many),
        f"{config.many:g} times or more counts. {told}.",
    )
    yield Claim(
        "more epochs improve exponential memory less than polynomial memory",
        "beyond the paper",
        f"{last} instead of {first} epochs reduce the loss {less:.3g} times",
        rules.ours(rules.graded(less < config.many)),
        f"Less than {config.many:g} times holds; polynomial: {gain:.3g} times.",
    )


run = computing(scores)
SMOKE = EpochsConfig(
    widths=(2, 4), seeds=2, length=4, epochs=(1, 2), training=Training(samples=32, batch=16, epochs=1, device="cpu")
)
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMOKE, paper=EpochsConfig(), minutes=(0.1, 150.0), jobs=scores.jobs
)
