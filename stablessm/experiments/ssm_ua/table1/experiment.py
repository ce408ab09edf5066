"""Weights, operations and memory of RNNs, SSMs, TCNs and transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, memories, rules
from stablessm.experiments.ssm_ua.table1.models import NAMES, Shape, core, formula, kept, linear_tcn, receiver
from stablessm.instruments import MemoryCurve, memory_function
from stablessm.report.figure import Figure, Panel, Series

ORDERS = {"RNN": 1, "SSM": 1, "TCN": 1, "transformer": 2}
WARM_UP = 16


@dataclass(frozen=True)
class TableConfig:
    """Sizes of the experiment. The table only has formulas."""

    shape: Shape = field(default_factory=Shape)
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    horizon: int = 1024
    longer: int = 32
    """Factor of the horizon of recurrent models: the slowest mode of a RealSSM lasts 1000 steps."""
    channels: tuple[int, ...] = (1, 2, 4, 8)
    seeds: int = 8
    weights_within: float = 0.15
    """Largest relative difference from the table's number of weights."""
    width_within: float = 0.15
    """Largest difference of the exponent of the width from 2."""
    depth_within: float = 0.05
    """Largest difference of the exponent of the depth from 1."""
    steps_within: float = 0.1
    """Largest difference of the exponent of the number of steps from the table."""
    zero: float = 1e-10
    """Singular values up to this, relative to the largest, count as zero."""


def flops(name: str, shape: Shape, steps: int) -> int:
    """Return the operations of a forward pass over a number of steps; a scan takes two per state and step."""
    scan = {torch.ops.stablessm.scan: lambda decay, drive, *_, **__: 2 * math.prod(drive)}
    model, x = memories.seeded(0, partial(core, name, shape)).float(), torch.zeros(1, steps, shape.width)
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=scan) as counter:
        model(x)
    return counter.get_total_flops()


def weights(name: str, shape: Shape) -> int:
    """Return the number of weights."""
    return sum(weight.numel() for weight in memories.seeded(0, partial(core, name, shape)).parameters())


def _measure_costs(config: TableConfig, run: Run, name: str) -> None:
    shape = config.shape
    larger = (shape, replace(shape, width=2 * shape.width), replace(shape, layers=2 * shape.layers))

    def compute() -> dict[str, list[int]]:
        return {
            "flops": [flops(name, shape, steps) for steps in config.lengths],
            "kept": [kept(name, shape, steps) for steps in config.lengths],
            "weights": [weights(name, each) for each in larger],
        }

    run.stage(f"cost-{name}", compute)


def costs(stages: Stages, name: str) -> Mapping[str, np.ndarray]:
    """Return operations and state sizes for every length, and weights for one, twice the width and twice the depth."""
    return stages[f"cost-{name}"]


def _measure_memories(config: TableConfig, run: Run, name: str) -> None:
    horizon = config.horizon * (1 if name == "transformer" else config.longer)

    def measure(seed: int) -> MemoryCurve:
        model = memories.seeded(seed, partial(receiver, name, config.shape))
        return memory_function(model, horizon, d_input=1, norm="unit", warm_up=WARM_UP, progress=False)

    memories.survey(run, f"memory-{name}", config.seeds, measure)


def _measure_spectrum(config: TableConfig, run: Run, channels: int) -> None:
    side = config.shape.kernel ** (config.shape.layers // 2)

    @torch.no_grad()
    def values(seed: int) -> np.ndarray:
        impulse = torch.zeros(1, side * side, 1, dtype=torch.float64)
        impulse[0, 0] = 1
        rho = memories.seeded(seed, lambda: linear_tcn(config.shape, channels))(impulse).reshape(side, side)
        sigma = torch.linalg.svdvals(rho)
        return (sigma / sigma[0]).numpy()

    run.stage(f"rank-{channels}", lambda: {"sigma": np.stack([values(seed) for seed in range(config.seeds)])})


def spectrum(stages: Stages, channels: int) -> np.ndarray:
    """Return singular values of the folded kernel of a linear TCN relative to the largest, (seeds, K^(L/2))."""
    return stages[f"rank-{channels}"]["sigma"]


def run(config: TableConfig, run: Run) -> None:
    """Compute costs, memories and ranks."""
    for name in NAMES:
        _measure_costs(config, run, name)
        _measure_memories(config, run, name)
    for channels in config.channels:
        _measure_spectrum(config, run, channels)


def figures(config: TableConfig, stages: Stages) -> list[Figure]:
    """Return figures of cost and state size against T, of memories, and of singular values."""

    def growing(key: str) -> list[Series]:
        return [Series(n, list(config.lengths), costs(stages, n)[key].tolist(), "both") for n in NAMES]

    cost = [
        Panel("cost of inference", "T", "operations", growing("flops"), "log", "log"),
        Panel("size of the state", "T", "numbers", growing("kept"), "log", "log"),
    ]
    curves = {name: memories.surveyed(stages, f"memory-{name}")[0] for name in NAMES}
    folded = [
        Series(f"{c} channel{'s' * (c > 1)}", np.arange(1, len(s) + 1).tolist(), s.tolist(), "both")
        for c in config.channels
        if (s := np.maximum(spectrum(stages, c)[0], 1e-17)) is not None
    ]
    rank = Panel("linear TCN: folded kernel", "index", "singular value", folded, "linear", "log")
    return [
        Figure("cost", "Counted operations and state sizes; on logarithmic axes the slope is the exponent.", cost),
        Figure(
            "memory",
            "One random model of each kind: RNN and SSM bend down, a TCN ends, attention is a power of t (a "
            "straight line). "
            "Right: the kernel of a TCN has at most as many singular values as channels.",
            [memories.panel("memory", curves, "steps", "log"), rank],
        ),
    ]


def exponent(values: np.ndarray, lengths: tuple[int, ...]) -> float:
    """Return the exponent of the growth over the last doubling."""
    return float(np.log(values[-1] / values[-2]) / np.log(lengths[-1] / lengths[-2]))


def claims(config: TableConfig, stages: Stages) -> list[Claim]:
    """Check the table row by row."""
    cost = {name: costs(stages, name) for name in NAMES}
    ratio = {name: cost[name]["weights"][0] / formula(name, config.shape) for name in NAMES}
    orders = {n: [math.log2(cost[n]["weights"][i] / cost[n]["weights"][0]) for i in (1, 2)] for n in NAMES}
    ordered = all(
        abs(wide - 2) < config.width_within and abs(deep - 1) < config.depth_within for wide, deep in orders.values()
    )
    farthest = max(abs(value - 1) for value in ratio.values())
    count = rules.given(ordered, rules.graded(farthest <= config.weights_within, True))
    growth = {name: exponent(cost[name]["flops"], config.lengths) for name in NAMES}
    agree = sum(abs(growth[name] - ORDERS[name]) < config.steps_within for name in NAMES)
    state = {name: exponent(cost[name]["kept"], config.lengths) for name in NAMES}
    return [
        Claim(
            "the number of weights is as in the table",
            "L m (m + d_in + d_out), L C K d_in, 3 L m d_in",
            "measured relative to the table: " + ", ".join(f"{name} {value:.2f}" for name, value in ratio.items()),
            count,
            f"All grow as L¹ m² (measured m^{memories.span([wide for wide, _ in orders.values()])}). The table gives "
            "every RNN layer an output matrix, counts only queries, keys and values of a transformer, a quarter of a "
            "usual block, and leaves out biases.",
        ),
        Claim(
            "the cost of inference over T steps grows as in the table",
            "RNN and SSM O(T), TCN O(T), transformer O(T²)",
            ", ".join(f"{name} T^{value:.2f}" for name, value in growth.items()),
            rules.most(agree, len(NAMES)),
            f"Operations counted from T = {config.lengths[-2]} to {config.lengths[-1]}; attention overtakes the rest "
            f"of its block at T = 6 m = {6 * config.shape.width}. Numbers kept between steps grow as "
            + ", ".join(f"{name} T^{abs(value):.2g}" for name, value in state.items())
            + ".",
        ),
        *patterns(config, stages),
    ]


def patterns(config: TableConfig, stages: Stages) -> list[Claim]:
    """Check the memory of each architecture."""
    found = {name: memories.surveyed(stages, f"memory-{name}") for name in NAMES}
    kinds, n = {name: memories.tally(curves) for name, curves in found.items()}, config.seeds
    reach = config.shape.kernel**config.shape.layers - 1
    lags = [fit.last_lag for curve in found["TCN"] if (fit := curve.decay()).last_lag is not None]
    ranks = {c: int((spectrum(stages, c) > config.zero).sum(1).max()) for c in config.channels}
    low = all(rank <= c for c, rank in ranks.items())
    powers = [memories.octave_slopes(curve)[1] for curve in found["transformer"]]
    free = sum(map(memories.is_power, found["transformer"]))
    return [
        Claim(
            "the memory of RNN and SSM decays exponentially",
            "exponential decay",
            f"RNN {memories.listed(kinds['RNN'])}; SSM {memories.listed(kinds['SSM'])}",
            rules.most_seen(kinds["RNN"] + kinds["SSM"]),
            f"Rates per step: RNN {memories.span(memories.rates(found['RNN']))}, SSM "
            f"{memories.span(memories.rates(found['SSM']))}, over {config.longer * config.horizon} steps: the same "
            "pattern on another time scale.",
        ),
        Claim(
            "the memory of a TCN is of low rank",
            "low rank",
            ", ".join(f"C = {c}: rank {rank}" for c, rank in ranks.items())
            + f" of {config.shape.kernel ** (config.shape.layers // 2)}; with tanh: {memories.listed(kinds['TCN'])}",
            rules.graded(low and kinds["TCN"]["finite"] == n, low),
            "Folded by the digits of the lag, the kernel of a linear TCN has at most as many singular values above "
            f"{config.zero:g} as channels; memory ends at lag {memories.span(lags)}, and K^L - 1 = {reach} is "
            "the largest possible lag.",
        ),
        Claim(
            "the memory of a transformer is not restricted",
            "no restriction",
            f"{free} of {n} fall as a power of t, t^-{memories.span(powers)} in the last octave",
            rules.most(free, n),
            f"After {WARM_UP} steps without input their share in an average is {WARM_UP}/(t + {WARM_UP}), "
            "whose derivative falls as t^-2, not exponentially (classified as "
            f"{memories.listed(kinds['transformer'])}). That is one pattern beyond the exponential, not a proof that "
            "every pattern is possible.",
        ),
    ]


EXPERIMENT = Experiment(
    id="su-table1",
    title="Cost and memory by architecture",
    source="SSM-UA, table 1",
    question="What do RNNs, SSMs, TCNs and transformers cost over T steps, and how does their memory decay?",
    claim=(
        "The costs are O(T), O(T), O(T), O(T²); memory: exponential decay, exponential decay, low rank, no restriction."
    ),
    configs={
        "smoke": TableConfig(
            shape=Shape(width=8), lengths=(64, 512, 1024), horizon=256, longer=64, channels=(1, 4), seeds=1
        ),
        "paper": TableConfig(),
    },
    minutes={"smoke": 0.1, "paper": 1.0},
    run=run,
    figures=figures,
    claims=claims,
)
