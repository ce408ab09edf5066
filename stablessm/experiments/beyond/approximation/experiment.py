"""Trains networks of three kinds on the same targets and compares their errors. The mixers of the networks are
attention, gated recurrences or linear recurrences. All networks have about the same number of parameters and training
steps.

In the functions below, ``kind`` is the name of a target, and ``found`` maps each pair (mixer, target) to the results of
:func:`measured`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

from stablessm.experiments.beyond.approximation.networks import FAMILIES, MIXERS, network, parameters
from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.memories import listed as kinds_listed
from stablessm.experiments.frame.memories import tally
from stablessm.experiments.frame.training import device_called, noise
from stablessm.experiments.frame.words import listed
from stablessm.experiments.stable_ssm.gradient_ratios import correlation
from stablessm.instruments import MemoryCurve, memory_function
from stablessm.report.figure import Figure, Panel
from stablessm.targets import LinearFunctional, NonlinearFunctional, PeakHold
from stablessm.training import TrainingConfig
from stablessm.training.divergence import Watch
from stablessm.training.gradient import Objective
from stablessm.training.optimizer import Optimizer
from stablessm.training.steps import StepLoop

TARGETS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "exponential": LinearFunctional("exponential", rate=0.2),
    "polynomial": LinearFunctional("polynomial", exponent=1.1),
    "delay": LinearFunctional("shift", delay=20.0),
    "saturated": NonlinearFunctional("polynomial", exponent=1.5),
    "peak": PeakHold(),
}
"""Three linear and two nonlinear targets; time is in steps."""
CONVOLUTIONS = ("exponential", "polynomial")
CHOOSING = "polynomial"
"""The target on which the learning rate is chosen."""
TRAIN, TEST = 0, 1
"""Seeds of the training inputs and of the test inputs."""


@dataclass(frozen=True)
class ApproximationConfig:
    """Settings of ``ext-approximation``: number of parameters, training, seeds, and thresholds of the claims. The
    defaults belong to the size ``reduced``.
    """

    budget: int = 4000
    """Largest number of parameters."""
    length: int = 64
    longer: int = 4
    """Ratio of the length of longer inputs, and of memory functions, to the training length."""
    batch: int = 32
    steps: int = 400
    rates: tuple[float, ...] = (0.001, 0.003, 0.01)
    seeds: int = 3
    rows: int = 64
    """Number of test inputs."""
    keeps: float = 2.0
    """An error that grows by at most this factor on longer inputs counts as unchanged."""
    device: str = "auto"


def trained(config: ApproximationConfig, mixer: str, kind: str, rate: float, seed: int) -> nn.Module:
    """Return a network with this mixer, trained at the learning rate ``rate`` to reproduce a target: for white noise as
    its input, the network's output should equal the output of the target ``kind``.
    """
    device, target = device_called(config.device), TARGETS[kind]
    model = network(mixer, config.budget, config.length, seed).to(device)
    options = TrainingConfig(lr=rate, weight_decay=0.0, clip=1.0, warmup=0.1)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        x = noise(TRAIN, seed * config.steps + step, config.batch, config.length, 1, dtype=torch.float32)
        return x.to(device), target(x).to(device)

    strategy = Objective(lambda x, y: (model(x) - y).square().mean(), batch, model.parameters())
    optimizer, watch = Optimizer(model, options, options.rates(config.steps)), Watch(device, forgiving=True)
    StepLoop(model, strategy, optimizer, watch, config.steps, [], look=lambda step: False).run(progress=False)
    return model.cpu().double().eval()


@torch.no_grad()
def error(config: ApproximationConfig, model: nn.Module, kind: str, length: int) -> float:
    """Return the error of a network on a target: the mean square error on new inputs of the given length, divided by
    the variance of the target's output.
    """
    x = noise(TEST, 0, config.rows, length, 1)
    y = TARGETS[kind](x)
    found = float((model(x) - y).square().mean() / y.var())
    return found if np.isfinite(found) else np.inf


@stage("rate-{mixer}", over=lambda config: MIXERS)
def chosen(config: ApproximationConfig, run: Run, mixer: str) -> Mapping[str, np.ndarray]:
    """Choose the learning rate for networks with this mixer: train one network per learning rate on the target
    ``CHOOSING``, with seed 0. Return the errors of these networks (``errors``), the learning rate with the smallest
    error (``best``), and the number of parameters of each network (``parameters``).
    """
    models = [trained(config, mixer, CHOOSING, rate, 0) for rate in config.rates]
    errors = np.array([error(config, model, CHOOSING, config.length) for model in models])
    best = np.array(config.rates[int(errors.argmin())])
    return {"errors": errors, "best": best, "parameters": np.array(parameters(models[0]))}


@stage("trained-{mixer}-{kind}", over=lambda config: product(MIXERS, TARGETS))
def measured(config: ApproximationConfig, run: Run, mixer: str, kind: str) -> Mapping[str, np.ndarray]:
    """Train and measure one network per seed. Return four arrays whose first axis is the seed: the relative errors on
    inputs of the training length (``error``) and on longer inputs (``longer``), the memory functions (``memory``) and
    their rounding levels (``floor``).
    """
    errors, curves = [], []
    for seed in range(config.seeds):
        model = trained(config, mixer, kind, float(chosen(run, mixer)["best"]), seed)
        errors.append([error(config, model, kind, config.length * factor) for factor in (1, config.longer)])
        horizon = config.length * config.longer
        before = config.length // 4
        curves.append(memory_function(model, horizon, d_input=1, linear=False, warm_up=before, progress=False))
    own, longer = np.array(errors).T
    memory = np.stack([curve.value for curve in curves])
    return {"error": own, "longer": longer, "memory": memory, "floor": np.array([curve.floor for curve in curves])}


def jobs(config: ApproximationConfig) -> dict[str, Callable[[Run], object]]:
    """Return one job per mixer. The job chooses the learning rate for networks with this mixer, then trains and
    measures such networks on all targets.
    """

    def job(mixer: str, run: Run) -> None:
        chosen.compute(config, run, mixer)
        for kind in TARGETS:
            measured.compute(config, run, mixer, kind)

    return {mixer: partial(job, mixer) for mixer in MIXERS}


Tables = Mapping[tuple[str, str], Mapping[str, np.ndarray]]


def curves(found: Tables, mixers: Iterable[str], kinds: Iterable[str] = tuple(TARGETS)) -> list[MemoryCurve]:
    """Return the measured memory functions of the networks with these mixers that were trained on these targets: one
    per mixer, target and seed.
    """
    tables = [found[mixer, kind] for mixer, kind in product(mixers, kinds)]
    return [
        MemoryCurve(np.arange(len(value)) * 1.0, value, floor=float(floor))
        for table in tables
        for value, floor in zip(table["memory"], table["floor"], strict=True)
    ]


def middle(found: Tables, kind: str, key: str = "error") -> dict[str, float]:
    """Return a dict from each mixer to its median relative error on a target over the seeds. ``key`` selects the errors
    on inputs of the training length (``error``) or on longer inputs (``longer``).
    """
    return {mixer: float(np.median(found[mixer, kind][key])) for mixer in MIXERS}


def spread(found: Tables, mixer: str, kind: str) -> float:
    """Return the spread of the error of a mixer on a target: the largest minus the smallest log₁₀ of the error, over
    the seeds.
    """
    return float(np.ptp(np.log10(found[mixer, kind]["error"])))


def figures(config: ApproximationConfig, stages: Stages) -> Figures:
    """Yield a figure of the errors, and a figure of the memory functions on each target."""
    found = measured.all(config, stages)
    names = ", ".join(f"{i} {kind}" for i, kind in enumerate(TARGETS))
    panels = []
    for title, key in (("training length", "error"), (f"{config.longer} times the length", "longer")):
        rows = {mixer: [middle(found, kind, key)[mixer] for kind in TARGETS] for mixer in MIXERS}
        panels.append(
            Panel(title, "target", "error / variance", lines(range(len(TARGETS)), rows, "points"), "linear", "log")
        )
    yield Figure(
        "errors",
        f"Mean square error of networks with at most {config.budget:,} parameters after {config.steps} steps, relative "
        f"to the variance of the target ({names}); medians over {config.seeds} seeds.",
        panels,
    )
    times, panels = np.arange(1, config.length * config.longer), []
    for kind in TARGETS:
        rows = {mixer: np.maximum(found[mixer, kind]["memory"][0, 1:], 1e-12).tolist() for mixer in MIXERS}
        panels.append(Panel(kind, "t [steps]", "memory M(t)", lines(times, rows), "log", "log"))
    yield Figure(
        "memory", f"Memory functions of the trained networks (seed 0). Training sees {config.length} steps.", panels
    )


def claims(config: ApproximationConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts: which networks approximate which target best, how their errors change on
    longer inputs, and how their memory decays.
    """
    found = measured.all(config, stages)
    for kind in CONVOLUTIONS:
        yield first(config, found, kind, "linear")
    yield first(config, found, "delay", "attention")
    yield first(config, found, "peak", "gated")
    yield kept(config, found)
    yield from forgetting(config, found)
    yield resembling(config, found)


def first(config: ApproximationConfig, found: Tables, kind: str, family: str) -> Claim:
    """Return a claim with its verdict: on one target, the best mixer of one family (attention, gated or linear
    recurrences) has a smaller error than the best mixer of every other family.
    """
    errors = middle(found, kind)
    best = {name: min(mixers, key=lambda mixer: errors[mixer]) for name, mixers in FAMILIES.items()}
    others = [name for name in FAMILIES if name != family]
    gaps = [float(np.log10(errors[best[other]] / errors[best[family]])) for other in others]
    margins = [max(spread(found, best[name], kind) for name in (other, family)) for other in others]
    return Claim(
        f"{kind}: {'attention' if family == 'attention' else f'a {family} recurrence'} is best",
        "beyond the papers",
        listed(errors, ".2g"),
        rules.ours(rules.ahead(gaps, margins)),
        f"Relative errors, medians over {config.seeds} seeds. {best[family]} against "
        + ", ".join(
            f"{best[other]}: a factor of {10**gap:.2g}, spread of the seeds {10**margin:.2g}"
            for other, gap, margin in zip(others, gaps, margins, strict=True)
        )
        + ".",
    )


def kept(config: ApproximationConfig, found: Tables) -> Claim:
    """Return a claim with its verdict: on longer inputs than in training, the errors of recurrences stay the same, and
    the errors of attention grow.
    """
    grown = {}
    for mixer in MIXERS:
        factors = [middle(found, kind, "longer")[mixer] / middle(found, kind)[mixer] for kind in TARGETS]
        grown[mixer] = float(np.median(factors))
    recurrent = [mixer for name in ("gated", "linear") for mixer in FAMILIES[name]]
    keep = [grown[mixer] <= config.keeps for mixer in recurrent]
    loses = all(grown[mixer] > config.keeps for mixer in FAMILIES["attention"])
    return Claim(
        f"recurrences keep their errors on {config.longer} times longer inputs, attention does not",
        "beyond the papers",
        listed(grown, ".3g"),
        rules.ours(rules.graded(all(keep) and loses, loses and 2 * sum(keep) >= len(keep))),
        f"Growth of the error, the median over the targets; at most {config.keeps:g} counts as kept.",
    )


def forgetting(config: ApproximationConfig, found: Tables) -> Claims:
    """Yield claims with their verdicts: the memory of trained recurrences decays exponentially, and the memory of
    attention does not.
    """
    for family, mixers in FAMILIES.items():
        kinds = tally(curves(found, mixers))
        total, undecided, hits = kinds.total(), kinds["undecided"], kinds["exponential"]
        hits = total - undecided - hits if family == "attention" else hits
        yield Claim(
            f"the memory of trained {family} networks decays exponentially"
            if family != "attention"
            else "the memory of trained attention does not decay exponentially",
            "beyond the papers (SSM-UA, theorem 3.13 for recurrences)",
            kinds_listed(kinds),
            rules.ours(rules.seen(undecided, total, rules.most(hits, total - undecided))),
            f"{total} networks: {', '.join(mixers)}, {len(TARGETS)} targets, {config.seeds} seeds; "
            f"{config.length * config.longer} steps, of which training saw {config.length}. A memory that ends "
            "or does not fall is not exponential.",
        )


def resembling(config: ApproximationConfig, found: Tables) -> Claim:
    """Return a claim with its verdict: a network with a smaller error on a target has a memory function that is closer
    to the target's memory function.
    """
    kinds = [*CONVOLUTIONS, "saturated"]
    ranks = []
    for kind in kinds:
        target: LinearFunctional | NonlinearFunctional = TARGETS[kind]  # type: ignore[assignment]
        exact = target.memory(np.arange(config.length)).numpy()
        distance = {
            mixer: float(np.median(np.abs(found[mixer, kind]["memory"][:, : config.length] - exact).sum(1)))
            for mixer in MIXERS
        }
        errors = middle(found, kind)
        ranks.append(correlation(np.array([*errors.values()]), np.array([*distance.values()])))
    return Claim(
        "a network with a smaller error has a memory closer to the target's",
        "beyond the papers",
        f"rank correlations {listed(dict(zip(kinds, ranks, strict=True)), '.2f')}",
        rules.ours(rules.at_least(float(np.median(ranks)), 0.7, 0.3)),
        f"Of the error with the L¹ distance of the memory functions over {config.length} steps, for {len(MIXERS)} "
        "mixers; the median over the targets counts, from 0.7 on; partly from 0.3 on.",
    )


run = computing(chosen, measured)
SMOKE = ApproximationConfig(budget=900, length=40, longer=2, batch=4, steps=2, rates=(0.003, 0.01), seeds=1, rows=4)
LARGE = ApproximationConfig(budget=50_000, length=256, batch=64, steps=1000, seeds=3)
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMOKE, reduced=ApproximationConfig(), large=LARGE, minutes=(0.2, 15.0, 10.0),
    jobs=jobs,
)  # fmt: skip
