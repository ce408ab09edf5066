"""Trains language models with three billion parameters for 100 steps at learning rate 0.01, and checks with which maps
training converges.

In the claims below, ``found`` maps each triple (number of warm-up steps, map, seed) to the results of a training run,
and ``schemes`` are the maps.
"""

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
from stablessm.experiments.stable_ssm.language_study import check_maps, memories, remembered, start, thinned
from stablessm.experiments.stable_ssm.language_text import SYNTHETIC, loaded
from stablessm.experiments.stable_ssm.language_training import LanguageTraining, fit
from stablessm.experiments.stable_ssm.wide_start import scaled_start
from stablessm.report.figure import Figure, Panel, Series

PUBLISHED = {"best-0.5": 3, "exp": 0, "softplus": 0, "direct": 0}
"""Number of runs, of three, that converge in the paper."""


@dataclass(frozen=True)
class Config:
    """Settings of ``st-table3``: text, model, maps and training. Maps, learning rate, steps and seeds are as in
    StableSSM, appendix D.2.
    """

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
    scaled: bool = False
    """Whether start and updates are scaled by width and depth (``wide_start.scaled_start``)."""
    beyond: int | None = None
    """Number of steps after the warm-up (default: the number of steps of ``training`` in all)."""
    healthy: float = 0.05
    """Largest difference between the untrained loss and the logarithm of the vocabulary size, and largest rise of the
    loss by the first update."""

    def __post_init__(self) -> None:
        check_maps(self.maps)
        if len(set(self.warmups)) < len(self.warmups):
            raise ArgumentError("warmups", "different ones", self.warmups)
        if self.training.warmup:
            raise ArgumentError("training.warmup", "0: warmups says them", self.training.warmup)
        for warmup in self.warmups:
            self.options(warmup)

    def options(self, warmup: int) -> LanguageTraining:
        """Return the options of a training run with this number of warm-up steps."""
        steps = self.training.steps if self.beyond is None else warmup + self.beyond
        return replace(self.training, warmup=warmup, steps=steps)


def cells(config: Config) -> list[tuple[int, str, int]]:
    """Return one tuple (number of warm-up steps, map, seed) for each training run of the experiment."""
    return list(product(config.warmups, config.maps, range(config.seeds)))


@stage("warmup-{warmup}-{scheme}-{seed}", over=cells)
def one(config: Config, run: Run, warmup: int, scheme: str, seed: int) -> Mapping[str, Any]:
    """Train and measure one model. Return the arrays of ``language_training.fit``, the memory function of the trained
    model, and its number of ``parameters``.
    """
    options, label = config.options(warmup), f"{scheme}, seed {seed}, warm-up {warmup}"
    task, device = loaded(config.text, config.vocabulary, config.length), device_called(config.training.device)
    if device.type == "cuda":
        gc.collect()  # frees a previous model that is part of a reference cycle: two do not fit
    model = start(task, config.preset, scheme, seed, config.timescales, device)
    if config.scaled:
        scaled_start(model)
    model.body.gradient_checkpointing = config.checkpointing
    found = fit(model, task, options, config.rate, seed, run=run, stage=label, resumable=False)
    memory = remembered(model, task, config.words, config.horizon, found)
    return {**found, **memory, "parameters": sum(p.numel() for p in model.parameters())}


def run(config: Config, run: Run) -> None:
    """Train all models, each as a stage, one seed after the other."""
    for cell in sorted(cells(config), key=lambda cell: (cell[2], cell[0])):
        one.compute(config, run, *cell)


def converged(config: Config, found: Mapping[str, np.ndarray]) -> bool:
    """Return whether a training run did not diverge and ended with a lower loss than it started with."""
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
    """Yield a claim for each number of warm-up steps and each map of the table. If the setting ``beyond`` is not None,
    yield three claims on all training runs instead.
    """
    schemes = [scheme for scheme in PUBLISHED if scheme in config.maps]
    if config.beyond is None:
        yield from (survival(config, stages, *key) for key in product(config.warmups, schemes))
    else:
        found = one.all(config, stages)
        yield from (check(config, found, schemes) for check in (started, only_best, caused))


Trainings = Mapping[tuple[int, str, int], Mapping[str, np.ndarray]]


def started(config: Config, found: Trainings, schemes: list[str]) -> Claim:
    """Return a claim with its verdict: before training, all models have the loss of a uniform guess, and the first
    update does not raise the loss of any model.
    """
    uniform = float(np.log(config.vocabulary))
    off = {key: abs(float(cell["losses"][0]) - uniform) for key, cell in found.items()}
    rises = {key: float(np.diff(cell["losses"][:2]).sum()) for key, cell in found.items()}
    good = [off[key] <= config.healthy and rises[key] <= config.healthy for key in found]
    return Claim(
        "every map starts at the loss of a uniform guess, and no first update raises the loss",
        "beyond the paper",
        f"untrained losses within {max(off.values()):.3f} of ln {config.vocabulary}; first updates change them by "
        f"{max(rises.values()):+.3f} at most",
        rules.ours(rules.most(sum(good), len(good))),
        f"{sum(good)} of {len(good)} trainings of {', '.join(schemes)} are within {config.healthy:g} nats of both; the "
        "losses before and after the first update are of different batches.",
    )


def only_best(config: Config, found: Trainings, schemes: list[str]) -> Claim:
    """Return a claim with its verdict: for some number of warm-up steps, training with the map ``best`` converges for
    all seeds, and training with the other maps converges for no seed.
    """
    counts = {
        warmup: {
            scheme: sum(converged(config, found[warmup, scheme, seed]) for seed in range(config.seeds))
            for scheme in schemes
        }
        for warmup in config.warmups
    }
    full, part = False, False
    for count in counts.values():
        best, *others = (count[scheme] for scheme in sorted(schemes, key=lambda scheme: not PUBLISHED[scheme]))
        full |= best == config.seeds and not any(others)
        part |= all(best > other for other in others)
    alike = len({number for count in counts.values() for number in count.values()}) == 1
    told = "; ".join(
        f"warm-up {warmup}: " + ", ".join(f"{scheme} {number}" for scheme, number in count.items())
        for warmup, count in counts.items()
    )
    return Claim(
        f"only best converges at the rate {config.rate:g}, at some number of warm-up steps",
        "best 3 of 3; exp, softplus and direct 0 of 3",
        f"of {config.seeds} seeds, {told}",
        rules.decided(not alike, rules.graded(full, part)),
        f"{config.beyond} steps at the full rate after each warm-up. Partly: best converges with more seeds than every "
        "other map at some warm-up. If all maps share one fate at every warm-up, the run cannot tell.",
    )


def caused(config: Config, found: Trainings, schemes: list[str]) -> Claim:
    """Return a claim with its verdict: an eigenvalue outside the unit circle causes every divergence with the map
    ``direct``, and no divergence with a stable map.
    """
    lost = {key: str(cell["report"]) for key, cell in found.items() if int(cell["diverged"]) >= 0}
    agree = [("unstable" in report) is (scheme == "direct") for (_, scheme, _), report in lost.items()]
    direct = sum(scheme == "direct" for _, scheme, _ in lost)
    told = [
        f"warm-up {key[0]}, {key[1]}, seed {key[2]}: " + " / ".join(text.splitlines()) for key, text in lost.items()
    ]
    return Claim(
        "direct diverges because an eigenvalue leaves the unit circle; stable maps diverge for other reasons",
        "beyond the paper",
        f"{sum(agree)} of {len(lost)} divergences agree, {direct} of them with direct",
        rules.decided(direct > 0, rules.ours(rules.most(sum(agree), len(lost)))),
        "; ".join(told) + "." if told else "No training diverged.",
    )


def survival(config: Config, stages: Stages, warmup: int, scheme: str) -> Claim:
    """Return a claim with its verdict: if training with this map converges in the paper, it converges here with every
    seed; otherwise it converges with no seed.
    """
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
    """Return as text the cause that ``trace_divergence`` reports for each diverged training."""
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
LARGE = Config(warmups=(30, 100, 300), scaled=True, beyond=50)
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMOKE, paper=Config(), large=LARGE, minutes=(0.1, 100000.0, 60.0),
    jobs=one.jobs,
)  # fmt: skip
