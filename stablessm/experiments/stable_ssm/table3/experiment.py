"""Language models with three billion parameters: with which maps do 100 steps at learning rate 0.01 converge?"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, described, rules, stage
from stablessm.experiments.frame.training import device_called
from stablessm.experiments.stable_ssm.language_study import SCHEMES, memories, remembered, start, thinned
from stablessm.experiments.stable_ssm.language_text import SYNTHETIC, loaded
from stablessm.experiments.stable_ssm.language_training import LanguageTraining, fit
from stablessm.report.figure import Figure, Panel, Series

PUBLISHED = {"best-0.5": 3, "exp": 0, "softplus": 0, "direct": 0}
"""Number of runs, of three, that converge in the paper."""


@dataclass(frozen=True)
class Config:
    """Settings of the experiment. Maps, learning rate, steps and seeds are as in StableSSM, appendix D.2."""

    text: str = "wikifa"
    """A text of the task ``lm``, or ``synthetic``: a Markov chain, for a quick test."""
    vocabulary: int = 8192
    length: int = 1024
    preset: str = "lm-3b"
    timescales: tuple[float, ...] = (2.0, 1000.0)
    """The shortest and the longest initial time scale of every layer and map, in tokens."""
    maps: tuple[str, ...] = tuple(PUBLISHED)
    rate: float = 0.01
    warmups: tuple[int, ...] = (10, 1000)
    """Numbers of warm-up steps: few, so that 0.01 is reached; and the paper's number for its smaller model."""
    seeds: int = 3
    checkpointing: bool = True
    """Whether blocks are recomputed in the backward pass, to save memory."""
    training: LanguageTraining = field(
        default_factory=lambda: LanguageTraining(
            steps=100, batch=8, warmup=0, planned=115_200, recurrent=1.0, look_every=1
        )
    )
    words: int = 8
    """Number of tokens whose repetition is measured."""
    horizon: int = 1024
    """Number of repetitions."""
    last: int = 10
    """Number of last steps over which the final loss is averaged."""

    def __post_init__(self) -> None:
        for name in self.maps:
            if name not in SCHEMES:
                raise ArgumentError("maps", f"some of {', '.join(SCHEMES)}", repr(name))
        if len(set(self.warmups)) < len(self.warmups):
            raise ArgumentError("warmups", "different ones", self.warmups)
        if self.training.warmup:
            raise ArgumentError("training.warmup", "0: warmups says them", self.training.warmup)
        for warmup in self.warmups:
            replace(self.training, warmup=warmup)


def cells(config: Config) -> list[tuple[int, str, int]]:
    """Return the number of warm-up steps, the map and the seed of every training."""
    return list(product(config.warmups, config.maps, range(config.seeds)))


@stage("warmup-{warmup}-{scheme}-{seed}", over=cells)
def one(config: Config, run: Run, warmup: int, scheme: str, seed: int) -> Mapping[str, Any]:
    """Train and measure one model; return the arrays of ``fit`` and ``remembered``, and the number of
    ``parameters``.
    """
    options, label = replace(config.training, warmup=warmup), f"{scheme}, seed {seed}, warm-up {warmup}"
    task, device = loaded(config.text, config.vocabulary, config.length), device_called(config.training.device)
    if device.type == "cuda":
        gc.collect()  # frees a previous model that is part of a reference cycle: two do not fit
    model = start(task, config.preset, scheme, seed, config.timescales, device)
    model.body.gradient_checkpointing = config.checkpointing
    found = fit(model, task, options, config.rate, seed, name=label, progress=run.progress)
    memory = remembered(model, task, config.words, config.horizon, found)
    return {**found, **memory, "parameters": sum(p.numel() for p in model.parameters())}


def run(config: Config, run: Run) -> None:
    """Run all trainings, each as a stage."""
    for cell in sorted(cells(config), key=lambda cell: (cell[0], cell[2])):
        one.compute(config, run, *cell)


def converged(config: Config, found: Mapping[str, np.ndarray]) -> bool:
    """Return whether a training did not diverge and ended with a lower loss than it started with."""
    return int(found["diverged"]) < 0 and bool(found["losses"][-config.last :].mean() < found["losses"][0])


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure of losses, gradient-to-weight ratios and memory functions, for each number of warm-up steps."""
    for warmup in config.warmups:
        losses, ratios, found = [], [], {}
        for scheme, seed in product(config.maps, range(config.seeds)):
            label = f"{scheme}, seed {seed}"
            cell = found[label] = one(stages, warmup, scheme, seed)
            losses.append(Series(label, *thinned(cell["losses"]), group=scheme))
            ratios.append(Series(label, cell["looks"].astype(float), cell["largest"], group=scheme))
        yield Figure(
            f"losses-warmup-{warmup}",
            f"The training loss at the rate {config.rate:g} with {warmup} warm-up steps, and the largest "
            "|gradient| / |weight| of recurrent weights. A line that ends before the last step diverged. Last: how "
            "much the output of each model, with its last weights, still changes after t repetitions of a token, the "
            f"largest over {config.words}; a missing model diverged, or its output is not finite.",
            [
                Panel("loss", "step", "cross-entropy [nats]", losses),
                Panel("ratio", "step", "largest |gradient| / |weight|", ratios, y_scale="log"),
                memories("memory", found),
            ],
        )


def claims(config: Config, stages: Stages) -> Claims:
    """Yield one claim for each number of warm-up steps and each map of the table."""
    schemes = [scheme for scheme in PUBLISHED if scheme in config.maps]
    yield from (survival(config, stages, *key) for key in product(config.warmups, schemes))


def survival(config: Config, stages: Stages, warmup: int, scheme: str) -> Claim:
    """Check with how many seeds the training of a map converges."""
    found = [one(stages, warmup, scheme, seed) for seed in range(config.seeds)]
    count, total, published = sum(converged(config, cell) for cell in found), config.seeds, PUBLISHED[scheme]
    steps = config.training.steps
    when = f"within {steps} steps at the rate {config.rate:g} after {warmup} warm-up steps"
    if warmup > steps:
        when = f"within the first {steps} of {warmup} warm-up steps to the rate {config.rate:g}"
    return Claim(
        f"{scheme} {'converges' if published else 'diverges'} {when}; {int(found[0]['parameters']):,} parameters",
        f"{published} of 3 converge",
        f"{count} of {total} converge: " + "; ".join(_told(config, seed, cell) for seed, cell in enumerate(found)),
        rules.graded(count == (total if published else 0), 0 < count < total),
        _cause(found),
    )


def _told(config: Config, seed: int, found: Mapping[str, np.ndarray]) -> str:
    first, last = found["losses"][:1], found["losses"][-config.last :]
    if int(found["diverged"]) >= 0:
        return f"seed {seed} diverged at step {int(found['diverged'])}"
    note = "" if converged(config, found) else ", not below the start"
    return f"seed {seed} loss {first.mean():.2f} to {last.mean():.2f}{note}"


def _cause(found: Sequence[Mapping[str, np.ndarray]]) -> str:
    """Return what ``trace_divergence`` reports about the diverged trainings, as text."""
    reports = [" / ".join(str(cell["report"]).splitlines()) for cell in found]
    told = [f"Seed {seed}: {report}." for seed, report in enumerate(reports) if report]
    return " ".join(told) or f"No training of {len(found)} seeds diverged (the README defines divergence)."


SMOKE = Config(
    text=SYNTHETIC,
    vocabulary=16,
    length=24,
    preset="lm-tiny",
    timescales=(2.0, 20.0),
    warmups=(2, 10),
    seeds=1,
    training=LanguageTraining(
        steps=8, batch=8, warmup=0, planned=20, recurrent=1.0, look_every=1, autocast=False, device="cpu"
    ),
    words=2,
    horizon=24,
)
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMOKE, paper=Config(), minutes=(0.1, 100000.0), jobs=one.jobs
)
