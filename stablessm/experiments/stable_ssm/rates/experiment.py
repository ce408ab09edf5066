"""Trains language models with seven maps at increasing learning rates, up to rates at which training fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np
import torch

from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Figure, Figures, Panel, Run, Series, Stages, computing, described, stage
from stablessm.experiments.frame.survival import entropy
from stablessm.experiments.stable_ssm import language_study, stacked_language
from stablessm.experiments.stable_ssm.gradient_ratios import RATIO
from stablessm.experiments.stable_ssm.language_stability import LIMITS, Limits, spikes
from stablessm.experiments.stable_ssm.language_text import loaded
from stablessm.experiments.stable_ssm.rates.claims import claims
from stablessm.experiments.stable_ssm.stacked_language import Member, StackOptions
from stablessm.models.sequence_model import SequenceModel
from stablessm.report.figure import Scale
from stablessm.tasks.base import Task

SETS = ("plain", "clipped", "recurrent", "equal")
"""Names of the sets of training runs. The sets differ in which learning rates grow, as the README describes."""
Table: TypeAlias = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RatesConfig:
    """Settings of ``st-rates``: text, model, maps, learning rates, training, and thresholds of the claims."""

    text: str = "wikitext2"
    """A text of the task ``lm``, or ``synthetic``: a Markov chain, for a quick test."""
    vocabulary: int = 2048
    length: int = 256
    d_model: int = 128
    n_layers: int = 4
    d_state: int = 32
    timescales: tuple[float, ...] = (2.0, 1000.0)
    """The shortest and the longest initial time scale of every layer and map, in tokens."""
    maps: tuple[str, ...] = tuple(language_study.SCHEMES)
    sets: tuple[str, ...] = SETS
    rates: tuple[float, ...] = (0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)
    seeds: int = 3
    base: float = 0.003
    """Rate of the other weights in the sets ``recurrent`` and ``equal``."""
    clip: float = 0.5
    """Largest norm of the gradient in the set ``clipped``."""
    training: StackOptions = field(default_factory=lambda: StackOptions(steps=600))
    limits: Limits = LIMITS
    moves: float = 0.1
    """A map has moved its time scales if the median |change of log τ| is at least this value."""
    breaks: tuple[float, ...] = (0.8, 0.4)
    """Rank correlations (absolute values) above which |gradient| / |weight| predicts which maps fail, and partly
    predicts it."""

    def __post_init__(self) -> None:
        for name, given, known in (("maps", self.maps, tuple(language_study.SCHEMES)), ("sets", self.sets, SETS)):
            if not set(given) <= set(known):
                raise ArgumentError(name, f"some of {', '.join(known)}", given)

    def task(self) -> Task:
        """Return the task ``lm`` with the text that these settings name."""
        return loaded(self.text, self.vocabulary, self.length)

    def members(self, set: str) -> list[Member]:
        """Return the models of one set (a name in ``SETS``), which are trained together: first the models of all seeds
        at the first learning rate, then the models of all seeds at the second, and so on.
        """
        alone = set in ("recurrent", "equal")
        cells = product(self.rates, range(self.seeds))
        return [Member(s, self.base, r / self.base) if alone else Member(s, r, 1.0) for r, s in cells]


def _start(config: RatesConfig, task: Task, map: str, seed: int) -> SequenceModel:
    device = torch.device("cpu")
    sizes = {"d_model": config.d_model, "n_layers": config.n_layers, "d_state": config.d_state}
    return language_study.start(task, "lm-tiny", map, seed, config.timescales, device, **sizes)


@stage("training-{set}-{map}", over=lambda config: product(config.sets, config.maps))
def training(config: RatesConfig, run: Run, set: str, map: str) -> Mapping[str, np.ndarray]:
    """Train models with one map at all learning rates and with all seeds. ``set`` is a name in ``SETS`` that says which
    learning rates grow and whether gradients are clipped.

    Return the arrays of ``stacked_language.train``, whose axis of models is split into (rates, seeds), and three more:
    ``final``, the mean loss over the last tenth of the steps; ``spikes``, the number of loss spikes; and ``entropy``,
    the entropy of the token frequencies.
    """
    task, options = config.task(), config.training
    found = stacked_language.train(
        run, training.name(set, map), partial(_start, config, task, map), config.members(set), task, options,
        config.clip if set == "clipped" else None, equal=set == "equal",
    )  # fmt: skip
    last = max(1, round(config.limits.final * options.steps))
    seen = [row[: at if at >= 0 else None] for row, at in zip(found["losses"].T, found["diverged"], strict=True)]
    counts = np.array([len(spikes(row, options.warmup, config.limits)) for row in seen])
    each = {**found, "final": found["losses"][-last:].mean(0), "spikes": counts}
    first, shape = {"diverged", "test", "before", "after", "final", "spikes"}, (len(config.rates), config.seeds)
    split = {
        name: values.reshape(*shape, *values.shape[1:]) if name in first else values.reshape(-1, *shape)
        for name, values in each.items() if name != "looks"
    }  # fmt: skip
    return {**split, "looks": found["looks"], "entropy": np.array(entropy(task, options.batch, batches=64))}


def _over_rates(config: RatesConfig, table: Mapping[str, np.ndarray]) -> list[Series]:
    """Return lines and points of a quantity against the learning rate. ``table`` maps each map to the values (rates,
    seeds) of the quantity. A line shows the median over the seeds, and points show the minimum and the maximum.
    """
    found = []
    for map, values in table.items():
        ends = np.concatenate([np.fmin.reduce(values, 1), np.fmax.reduce(values, 1)])
        found.append(Series(map, config.rates, np.median(values, 1), "solid", map))
        found.append(Series(f"{map}, range", [*config.rates, *config.rates], ends, "points", map))
    return found


def figures(config: RatesConfig, stages: Stages) -> Figures:
    """Yield three figures, each of one quantity against the learning rate: the final loss, the change of the time
    scales in training, and the gradient-to-weight ratio.
    """
    trained = {set: {map: training(stages, set, map) for map in config.maps} for set in config.sets}
    level = float(trained[config.sets[0]][config.maps[0]]["entropy"])
    flat = Series("token frequencies", config.rates, [level] * len(config.rates), "dashed")

    def panels(label: str, of: Callable[[Table], np.ndarray], scale: Scale = "log", *more: Series) -> list[Panel]:
        return [
            Panel(
                set, "learning rate", label,
                [*_over_rates(config, {map: of(found) for map, found in row.items()}), *more], "log", scale,
            )
            for set, row in trained.items()
        ]  # fmt: skip

    def final(found: Table) -> np.ndarray:
        return np.where(found["diverged"] >= 0, np.nan, found["final"])

    yield Figure(
        "losses",
        "Training loss over the last tenth of the steps: median of the seeds (lines), and their range (points). A "
        "training that diverged has no point; above the dashed line a model has learned nothing but the token "
        "frequencies.",
        panels("cross-entropy [nats]", final, "linear", flat),
    )
    yield Figure(
        "moves",
        "How far the modes have moved at the end: median over modes of the absolute change of log τ.",
        panels("median |change of log τ|", lambda found: found["moved"][-1]),
    )
    yield Figure(
        "ratios",
        "The largest |gradient| / |weight| of the recurrent weights before a divergence, over all measured steps.",
        panels(RATIO, lambda found: np.nanmax(found["largest"], 0)),
    )


SMOKE = RatesConfig(
    text="synthetic", vocabulary=12, length=16, d_model=8, n_layers=1, d_state=4, timescales=(2.0, 20.0),
    maps=("direct", "exp", "best-0.5"), rates=(0.01, 3.0), seeds=2,
    training=StackOptions(steps=4, batch=4, warmup=1, look_every=2, scored=1, autocast=False, device="cpu"),
)  # fmt: skip

EXPERIMENT = described(
    __file__, computing(training), figures, partial(claims, training), smoke=SMOKE, paper=RatesConfig(),
    minutes=(0.1, 2000.0), jobs=training.jobs,
)  # fmt: skip
