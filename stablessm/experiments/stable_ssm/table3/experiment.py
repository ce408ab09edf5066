"""Three billion parameters at a learning rate of 0.01: who converges in a hundred steps?"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.frame.training import device_called
from stablessm.experiments.stable_ssm.language_study import SCHEMES, memories, remembered, start, thinned
from stablessm.experiments.stable_ssm.language_text import SYNTHETIC, loaded
from stablessm.experiments.stable_ssm.language_training import LanguageTraining, fit
from stablessm.report.figure import Figure, Panel, Series

PUBLISHED = {"best-0.5": 3, "exp": 0, "softplus": 0, "direct": 0}
"""How many of three runs converge."""


@dataclass(frozen=True)
class Config:
    """Sizes; map, rate, steps and seeds are those of StableSSM, appendix D.2."""

    text: str = "wikifa"
    """A text of the task ``lm``, or ``synthetic``: a Markov chain, for a first try."""
    vocabulary: int = 8192
    length: int = 1024
    preset: str = "lm-3b"
    timescales: tuple[float, ...] = (2.0, 1000.0)
    """The shortest and the longest at the start, in tokens, of every layer and map."""
    maps: tuple[str, ...] = tuple(PUBLISHED)
    rate: float = 0.01
    warmups: tuple[int, ...] = (10, 1000)
    """Steps over which the rate rises: few, so that 0.01 is reached; and what the paper has for its smaller model."""
    seeds: int = 3
    checkpointing: bool = True
    """Whether blocks are computed again in the backward pass, to hold less."""
    training: LanguageTraining = field(
        default_factory=lambda: LanguageTraining(
            steps=100, batch=8, warmup=0, planned=115_200, recurrent=1.0, look_every=1
        )
    )
    words: int = 8
    """Tokens that are repeated to measure a memory."""
    horizon: int = 1024
    """How long."""
    last: int = 10
    """Steps whose mean loss is the final one."""

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
    """Warm-up, map and seed of every training."""
    return list(product(config.warmups, config.maps, range(config.seeds)))


def run(config: Config, run: Run) -> None:
    """Every training, one seed after the other; each is a stage."""
    for cell in sorted(cells(config), key=lambda cell: (cell[0], cell[2])):
        _measure_one(config, run, *cell)


def _measure_one(config: Config, run: Run, warmup: int, scheme: str, seed: int) -> None:
    run.stage(_name(warmup, scheme, seed), lambda: _trained(config, run, warmup, scheme, seed))


def one(stages: Stages, warmup: int, scheme: str, seed: int) -> Mapping[str, np.ndarray]:
    """What ``fit`` and ``remembered`` return, and how many ``parameters`` there are."""
    return stages[_name(warmup, scheme, seed)]


def jobs(config: Config) -> dict[str, Callable[[Run], object]]:
    """Every training can be computed apart."""
    return {_name(*cell): partial(_job, config, cell) for cell in cells(config)}


def _name(warmup: int, scheme: str, seed: int) -> str:
    return f"warmup-{warmup}-{scheme}-{seed}"


def _job(config: Config, cell: tuple[int, str, int], run: Run) -> None:
    _measure_one(config, run, *cell)


def _trained(config: Config, run: Run, warmup: int, scheme: str, seed: int) -> Mapping[str, np.ndarray]:
    options, label = replace(config.training, warmup=warmup), f"{scheme}, seed {seed}, warm-up {warmup}"
    task, device = loaded(config.text, config.vocabulary, config.length), device_called(config.training.device)
    if device.type == "cuda":
        gc.collect()  # the model before this one may hang in a cycle, and two do not fit
    model = start(task, config.preset, scheme, seed, config.timescales, device)
    model.body.gradient_checkpointing = config.checkpointing
    found = fit(model, task, options, config.rate, seed, name=label, progress=run.progress)
    memory = remembered(model, task, config.words, config.horizon, found)
    return {**found, **memory, "parameters": np.array(sum(p.numel() for p in model.parameters()))}


def converged(config: Config, found: Mapping[str, np.ndarray]) -> bool:
    """Not diverged, and in the end below the loss of the untrained model."""
    return int(found["diverged"]) < 0 and bool(found["losses"][-config.last :].mean() < found["losses"][0])


def figures(config: Config, stages: Stages) -> list[Figure]:
    """For each warm-up losses, |gradient| / |weight|, and memories."""
    return [_figure(config, stages, warmup) for warmup in config.warmups]


def _figure(config: Config, stages: Stages, warmup: int) -> Figure:
    losses, ratios, found = [], [], {}
    for scheme, seed in product(config.maps, range(config.seeds)):
        label = f"{scheme}, seed {seed}"
        cell = found[label] = one(stages, warmup, scheme, seed)
        losses.append(Series(label, *thinned(cell["losses"]), group=scheme))
        ratios.append(Series(label, cell["looks"].astype(float).tolist(), cell["largest"].tolist(), group=scheme))
    return Figure(
        f"losses-warmup-{warmup}",
        f"The training loss at the rate {config.rate:g}, to which it rises over {warmup} steps, and the largest "
        "|gradient| / |weight| of recurrent weights. A line that ends before the last step diverged. Last: how "
        "strongly the output of each model, with the weights it ended with, still moves after t repetitions of a "
        f"token, the largest over {config.words}; one that is not there has an output that is not finite, or "
        "diverged.",
        [
            Panel("loss", "step", "cross-entropy [nats]", losses),
            Panel("ratio", "step", "largest |gradient| / |weight|", ratios, y_scale="log"),
            memories("memory", found),
        ],
    )


def claims(config: Config, stages: Stages) -> list[Claim]:
    """One for each warm-up and map of the table."""
    schemes = [scheme for scheme in PUBLISHED if scheme in config.maps]
    return [survival(config, stages, warmup, scheme) for warmup in config.warmups for scheme in schemes]


def survival(config: Config, stages: Stages, warmup: int, scheme: str) -> Claim:
    """How many seeds of a map converge, and what became of the others."""
    found = [one(stages, warmup, scheme, seed) for seed in range(config.seeds)]
    count, total, published = sum(converged(config, cell) for cell in found), config.seeds, PUBLISHED[scheme]
    verdict = rules.graded(count == (total if published else 0), 0 < count < total)
    steps = config.training.steps
    when = f"in {steps} steps at {config.rate:g}, to which the rate rises in {warmup}"
    if warmup > steps:
        when = f"in {steps} of the {warmup} steps in which the rate rises to {config.rate:g}"
    return Claim(
        f"{scheme} {'converges' if published else 'diverges'} {when}; {int(found[0]['parameters']):,} parameters",
        f"{published} of 3 converge",
        f"{count} of {total} converge: " + "; ".join(_told(config, seed, cell) for seed, cell in enumerate(found)),
        verdict,
        _cause(found),
    )


def _told(config: Config, seed: int, found: Mapping[str, np.ndarray]) -> str:
    first, last = found["losses"][:1], found["losses"][-config.last :]
    if int(found["diverged"]) >= 0:
        return f"seed {seed} diverged at step {int(found['diverged'])}"
    note = "" if converged(config, found) else ", not below the start"
    return f"seed {seed} loss {first.mean():.2f} to {last.mean():.2f}{note}"


def _cause(found: list[Mapping[str, np.ndarray]]) -> str:
    """What trace_divergence says of those that diverged."""
    reports = [" / ".join(str(cell["report"]).splitlines()) for cell in found]
    told = [f"Seed {seed}: {report}." for seed, report in enumerate(reports) if report]
    return " ".join(told) or f"No loss or gradient of {len(found)} seeds broke the rule of the README."


EXPERIMENT = Experiment(
    id="st-table3",
    title="Three billion parameters at a large rate",
    source="StableSSM, table 3",
    question="Which parameterizations survive a hundred steps at the rate 0.01 in a model of 3 billion parameters?",
    claim="Best converges in 3 of 3 runs; exp, softplus and direct diverge in all.",
    configs={
        "smoke": Config(
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
        ),
        "paper": Config(),
    },
    minutes={"smoke": 0.1, "paper": 100000.0},
    run=run,
    figures=figures,
    claims=claims,
    jobs=jobs,
)
