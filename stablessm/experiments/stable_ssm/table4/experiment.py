"""Trains models on associative recall with each map, over sequences of 20 and of 131,072 tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from stablessm import tasks
from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Run, Stages, described, rules
from stablessm.experiments.frame.words import each
from stablessm.experiments.stable_ssm import map_tables as tables
from stablessm.experiments.stable_ssm.stacked_training import StackTraining
from stablessm.models import SequenceClassifier
from stablessm.tasks.base import Task

PUBLISHED = {
    "short": {"best": 99.8, "exp": 99.8, "clip": 76.6, "direct": 67.0},
    "long": {"best": 100.0, "exp": 100.0, "clip": 9.4, "direct": 5.6},
}
"""Test accuracies in the paper, in percent."""

TRAINED = {
    "short": "best 57.95 %, exp 54.55 %, clip 50 %, direct 43.18 %",
    "long": "best 53.57 %, exp 53.57 %, clip 13.91 %, direct 16.59 %",
}
"""Training accuracies in the paper."""

FAILING = ("direct", "clip")
"""Maps that fail in the paper."""


@dataclass(frozen=True)
class Recall:
    """Settings of one associative recall task: length, vocabulary, number of examples, training, and thresholds of the
    claims.
    """

    length: int
    vocabulary: int
    training: StackTraining
    grid: tables.Grid = field(default_factory=tables.Grid)
    examples: int = 4000
    tests: int = 500
    """Number of validation examples, by which the rate is chosen, and of test examples."""
    goal: float = 99.8
    """A map has solved the task if its accuracy is at least this value, in percent."""
    behind: float = 1.0
    """A map is called worse if it is at least this number of percentage points behind all stable maps."""
    near: float = 1.0
    """Percentage points within which a training accuracy counts as the attainable maximum."""


@dataclass(frozen=True)
class Config:
    """Settings of ``st-table4``: the model, and the task at each length. Lengths, vocabularies, width, layers and
    examples are as in StableSSM, appendix D.3.
    """

    preset: str = "paper-recall"
    d_model: int = 64
    d_state: int = 4
    """Number of conjugate pairs per channel."""
    dt: tuple[float, ...] = (0.01, 0.1)
    """Range of the initial steps, which are log-uniform: with Re λ = -1/2, time scales from 20 to 200 tokens."""
    short: Recall = field(default_factory=lambda: Recall(20, 10, StackTraining(batch=16, steps=3000, fast=True)))
    middle: Recall = field(default_factory=lambda: Recall(512, 30, StackTraining(batch=32, steps=3000, fast=True)))
    """The length at which the models of the long task are trained first."""
    long: Recall = field(
        default_factory=lambda: Recall(
            131_072,
            30,
            StackTraining(batch=4, steps=200, test_batch=4, fast=True),
            tables.Grid(rates=(1e-3,), at_once=8),
            goal=99.0,
        )
    )

    errors: float = 2.0
    """Number of standard errors by which a stable map must be ahead of another map in a column."""
    pretrained: bool = True
    """Whether the models of the long task are trained at the middle length first."""


def loaded(recall: Recall) -> Task:
    """Return the associative recall task with these settings."""
    return tasks.get(
        "recall",
        length=recall.length,
        vocabulary=recall.vocabulary,
        train_examples=recall.examples,
        valid_examples=recall.tests,
        test_examples=recall.tests,
        data_seed=1,  # settings were chosen with the examples of seed 0
    )


def studies(config: Config, stages: Stages) -> dict[str, tables.Study]:
    """Return the grids of models by name: ``short`` and ``long``, for the two lengths of the table. With
    ``config.pretrained`` there is a third grid, ``middle``, trained on a length in between; the models of ``long`` then
    start from the trained models of ``middle``.
    """

    size = {"d_model": config.d_model, "d_state": config.d_state}
    mixer = {"init": "lin", "dt_min": config.dt[0], "dt_max": config.dt[1]}

    def anew(recall: Recall, scheme: str, rate: float, seed: int) -> SequenceClassifier:
        return tables.start(loaded(recall), config.preset, scheme, seed, mixer_options=mixer, **size)

    def study(name: str, recall: Recall, start: tables.Start | None = None) -> tables.Study:
        task = partial(loaded, recall)
        return tables.Study(name, recall.grid, task, start or partial(anew, recall), recall.training)

    short, middle = study("short", config.short), study("middle", config.middle)

    def further(scheme: str, rate: float, seed: int) -> SequenceClassifier:
        scores = middle.scores(stages)
        return middle.trained(stages, scheme, config.middle.grid.rates[scores.chosen[scheme]], seed)

    if not config.pretrained:
        return {"short": short, "long": study("long", config.long)}
    return {"short": short, "middle": middle, "long": study("long", config.long, further)}


def run(config: Config, run: Run) -> None:
    """Train and score the grids of models, one after the other."""
    for study in studies(config, run).values():
        study.train(run)


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure of the test accuracy against the learning rate, and of the training losses."""
    found = {name: study.scores(stages) for name, study in studies(config, stages).items()}
    lengths = {"short": config.short.length, "middle": config.middle.length}
    yield Figure(
        "learning-rates",
        "Test accuracy over the learning rate, the mean over seeds; a model that diverged is scored with its last "
        "finite weights. Right: the loss of each map trained further at the full length. The loss counts every next "
        "token, and keys cannot be predicted.",
        [
            *(tables.sensitivity(found[name], f"length {n}") for name, n in lengths.items() if name in found),
            tables.losses(found["long"], f"length {config.long.length}"),
        ],
    )


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on which maps solve the task at each length, and on the published training
    accuracies.
    """
    found = {name: study.scores(stages) for name, study in studies(config, stages).items()}
    both: dict[str, Recall] = {"short": config.short, "long": config.long}
    for name, recall in both.items():
        if found[name].named(tables.STABLE):
            yield solved(found[name], name, recall)
            if found[name].named(FAILING):
                yield unsolved(found[name], name, recall)
    if found["long"].named(tables.STABLE):
        yield known(found["long"], config.long)
    if not config.pretrained:  # the paper's settings
        for name, scores in found.items():
            stable = scores.named(tables.STABLE)
            paper = f"train {TRAINED[name]}; test {published(name, ('best', 'exp', *FAILING))}"
            yield tables.ahead_in_columns(scores, stable, scores.named(FAILING), paper, config.errors)


def solved(scores: tables.Scores, name: str, recall: Recall) -> Claim:
    """Return a claim with its verdict: models with stable maps solve the task."""
    stable, goal = scores.named(tables.STABLE), recall.goal
    held = [100 * scores.of(scheme).mean() >= goal for scheme in stable]
    return Claim(
        f"stable maps recall over {recall.length} tokens of a vocabulary of {recall.vocabulary}: {goal:g} % or more",
        published(name, ("best", "exp")),
        scores.told(*stable),
        rules.some(held),
        f"Mean (deviation) over {scores.grid.seeds} seeds of {recall.tests} test examples, at the rate that held-out "
        f"examples prefer: {sum(held)} of {len(held)} maps reach the goal. Chance is "
        f"{100 * loaded(recall).chance:.1f} %.",
    )


def unsolved(scores: tables.Scores, name: str, recall: Recall) -> Claim:
    """Return a claim with its verdict: models with the maps direct or clip do not solve the task."""
    failing, goal = scores.named(FAILING), recall.goal
    stable = 100 * min(scores.of(scheme).mean() for scheme in scores.named(tables.STABLE))
    held = [100 * scores.of(scheme).mean() < min(goal, stable - recall.behind) for scheme in failing]
    beside = scores.named(("relu", tables.RELEASED))
    lost = {scheme: scores.diverged(scheme) for scheme in (*failing, *beside)}
    rows = {
        rate: ", ".join(f"{scheme} {tables.percent(np.asarray(scores.of(scheme, i)))}" for scheme in failing)
        for i, rate in enumerate(scores.grid.rates)
    }
    return Claim(
        f"direct and clip do not recall over {recall.length} tokens, from the eigenvalues that the others start from",
        published(name, ("clip", "direct")),
        scores.told(*failing),
        rules.some(held),
        f"{sum(held)} of {len(held)} are below {goal:g} % and at least {recall.behind:g} points behind every stable "
        f"map. Other maps: {scores.told(*beside)}. Not finite, over all rates and seeds: "
        f"{', '.join(f'{scheme} {int(d.sum())} of {d.size}' for scheme, d in lost.items())}. "
        + each("lr {:g}: {}.", rows.items(), " "),
    )


def known(scores: tables.Scores, recall: Recall) -> Claim:
    """Return a claim with its verdict: the training accuracy of the stable maps equals the fraction of tokens that can
    be predicted at all.
    """
    keys = (recall.vocabulary - 2) // 2
    bound = 100 * (1 + 1 / keys) / 2
    stable = scores.named(tables.STABLE)
    found = {scheme: 100 * float(scores.of(scheme, name="accuracies")[:, -1].mean()) for scheme in stable}
    near = [abs(value - bound) < recall.near for value in found.values()]
    return Claim(
        f"a training accuracy of {bound:.2f} % is the attainable maximum over {recall.length} tokens",
        "53.57 %, with a test accuracy of 100 %",
        ", ".join(f"{scheme} {value:.2f} %" for scheme, value in found.items()),
        rules.some(near),
        f"Every second token is one of {keys} random keys; the value after it can be predicted once the key has been "
        f"seen, which gives (1 + 1/{keys}) / 2. Within one point of it: {sum(near)} of {len(near)} stable maps, in the "
        "last part of the training.",
    )


def published(name: str, schemes: Sequence[str]) -> str:
    """Return the test accuracies that the paper reports for these maps, as text."""
    return ", ".join(f"{scheme} {PUBLISHED[name][scheme]:g} %" for scheme in schemes)


SMALL = Config(
    d_model=8,
    d_state=2,
    short=Recall(8, 8, StackTraining(batch=20, steps=15, device="cpu"), tables.Grid(rates=(0.01,), seeds=1), 200, 40),
    middle=Recall(
        12, 8, StackTraining(batch=20, steps=15, device="cpu"), tables.Grid(rates=(0.01, 0.05), seeds=1), 200, 40
    ),
    long=Recall(40, 8, StackTraining(batch=10, steps=10, device="cpu"), tables.Grid(rates=(1e-3,), seeds=1), 200, 40),
)

MAPS = ("best-0.5", "exp", "clip", "direct")
LARGE = Config(
    d_state=32,
    dt=(0.001, 0.1),
    short=Recall(
        20,
        10,
        StackTraining(batch=4, steps=50_000, weight_decay=0.1, clip=None, fast=True),
        tables.Grid(MAPS, rates=(0.001, 0.002, 0.005, 0.01)),
    ),
    long=Recall(
        131_072,
        30,
        StackTraining(batch=4, steps=1000, weight_decay=0.1, clip=None, test_batch=4, fast=True),
        tables.Grid(MAPS, rates=(1e-3,), at_once=4),
        goal=99.0,
    ),
    pretrained=False,
)


def jobs(config: Config) -> dict[str, Callable[[Run], object]]:
    """Return one job per stack of models. If the models for the long sequences start from other trained models, return
    a single job that trains all models.
    """
    if config.pretrained:
        return {"all": partial(run, config)}
    found = {name: study.jobs() for name, study in studies(config, Stages(Path())).items()}
    return {name: job for part in found.values() for name, job in part.items()}


EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMALL, paper=Config(), large=LARGE, minutes=(0.1, 2500.0, 50.0), jobs=jobs
)
