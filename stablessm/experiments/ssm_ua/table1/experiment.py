"""Measures the number of weights, the number of operations, and the memory functions of RNNs, SSMs, TCNs and
transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, described, memories, rules
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.stage import computing, stage
from stablessm.experiments.frame.words import each, listed, span
from stablessm.experiments.ssm_ua.table1.models import NAMES, Shape, core, formula, kept, linear_tcn, receiver
from stablessm.instruments import MemoryCurve, memory_function
from stablessm.report.figure import Figure, Panel, Series

ORDERS = {"RNN": 1, "SSM": 1, "TCN": 1, "transformer": 2}
WARM_UP = 16


@dataclass(frozen=True)
class TableConfig:
    """Settings of ``su-table1``: model size, lengths, horizons, seeds and thresholds. The published table has only
    formulas.
    """

    shape: Shape = field(default_factory=Shape)
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    horizon: int = 1024
    longer: int = 32
    """Factor by which the horizon of recurrent models is longer: the slowest mode of a RealSSM lasts 1000 steps."""
    channels: tuple[int, ...] = (1, 2, 4, 8)
    seeds: int = 8
    weights_within: float = 0.15
    """Largest relative difference between the measured number of weights and the number in the table."""
    width_within: float = 0.15
    """Largest difference between the exponent with which the weights grow with the width and 2."""
    depth_within: float = 0.05
    """Largest difference between the exponent with which the weights grow with the depth and 1."""
    steps_within: float = 0.1
    """Largest difference between the exponent with which a cost grows with the number of steps and the exponent in the
    table."""
    zero: float = 1e-10
    """Singular values up to this fraction of the largest one count as zero."""


def flops(name: str, shape: Shape, steps: int) -> int:
    """Return the number of floating-point operations of a forward pass over this number of steps. A scan counts as two
    operations per state and step.
    """
    scan = {torch.ops.stablessm.scan: lambda decay, drive, *_, **__: 2 * math.prod(drive)}
    model, x = memories.seeded(0, partial(core, name, shape)).float(), torch.zeros(1, steps, shape.width)
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=scan) as counter:
        model(x)
    return counter.get_total_flops()


def weights(name: str, shape: Shape) -> int:
    """Return the number of weights of an architecture with this shape."""
    return sum(weight.numel() for weight in memories.seeded(0, partial(core, name, shape)).parameters())


@stage("cost-{name}", over=lambda config: NAMES)
def costs(config: TableConfig, run: Run, name: str) -> dict[str, list[int]]:
    """Return for each length the number of operations (``flops``) and the number of values that must be stored to
    continue the sequence (``kept``). Also return three numbers of weights: of the model with the size in the settings,
    of a model twice as wide, and of a model twice as deep.
    """
    shape = config.shape
    larger = (shape, replace(shape, width=2 * shape.width), replace(shape, layers=2 * shape.layers))
    return {
        "flops": [flops(name, shape, steps) for steps in config.lengths],
        "kept": [kept(name, shape, steps) for steps in config.lengths],
        "weights": [weights(name, each) for each in larger],
    }


@memories.survey("memory-{name}", over=lambda config: NAMES)
def curves(config: TableConfig, seed: int, name: str) -> MemoryCurve:
    """Measure and return the memory function of an architecture with random weights from this seed."""
    model = memories.seeded(seed, partial(receiver, name, config.shape))
    horizon = config.horizon * (1 if name == "transformer" else config.longer)
    return memory_function(model, horizon, d_input=1, norm="unit", warm_up=WARM_UP, progress=False)


@stage("rank-{channels}", over=lambda config: config.channels)
def spectrum(config: TableConfig, run: Run, channels: int) -> Mapping[str, np.ndarray]:
    """Reshape the kernel of a random linear TCN with ``channels`` channels to a square matrix, and return the singular
    values of this matrix divided by the largest, (seeds, singular values).
    """
    side = config.shape.kernel ** (config.shape.layers // 2)
    impulse = torch.zeros(1, side * side, 1, dtype=torch.float64)
    impulse[0, 0] = 1

    @torch.no_grad()
    def values(seed: int) -> np.ndarray:
        rho = memories.seeded(seed, lambda: linear_tcn(config.shape, channels))(impulse).reshape(side, side)
        sigma = torch.linalg.svdvals(rho)
        return (sigma / sigma[0]).numpy()

    return {"sigma": np.stack([values(seed) for seed in range(config.seeds)])}


def figures(config: TableConfig, stages: Stages) -> Figures:
    """Yield two figures. The first shows the number of operations and the number of stored values against the length T,
    the second the memory functions and the singular values.
    """
    cost = costs.all(config, stages)

    def growing(title: str, label: str, key: str) -> Panel:
        drawn = lines(config.lengths, {name: found[key] for name, found in cost.items()}, "both")
        return Panel(title, "T", label, drawn, "log", "log")

    yield Figure(
        "cost",
        "Counted operations and state sizes; on logarithmic axes the slope is the exponent.",
        [growing("cost of inference", "operations", "flops"), growing("size of the state", "numbers", "kept")],
    )
    sigma = {c: np.maximum(found["sigma"][0], 1e-17) for c, found in spectrum.all(config, stages).items()}
    folded = [Series(f"{c} channel{'s' * (c > 1)}", np.arange(1, len(s) + 1), s, "both") for c, s in sigma.items()]
    first = {name: found[0] for name, found in curves.all(config, stages).items()}
    yield Figure(
        "memory",
        "One random model of each kind: RNN and SSM bend down, a TCN ends, attention is a power of t (a straight "
        "line). Right: the kernel of a TCN has at most as many singular values as channels.",
        [
            memories.panel("memory", first, "steps", "log"),
            Panel("linear TCN: folded kernel", "index", "singular value", folded, "linear", "log"),
        ],
    )


def exponent(values: np.ndarray, lengths: tuple[int, ...]) -> float:
    """Return the exponent p of a quantity that grows as length^p, computed from its values at the last two lengths."""
    return float(np.log(values[-1] / values[-2]) / np.log(lengths[-1] / lengths[-2]))


def claims(config: TableConfig, stages: Stages) -> Claims:
    """Yield a claim with its verdict for each row of the published table."""
    cost = costs.all(config, stages)
    ratio = {name: one["weights"][0] / formula(name, config.shape) for name, one in cost.items()}
    orders = [[math.log2(one["weights"][i] / one["weights"][0]) for i in (1, 2)] for one in cost.values()]
    ordered = all(abs(w - 2) < config.width_within and abs(d - 1) < config.depth_within for w, d in orders)
    farthest = max(abs(value - 1) for value in ratio.values())
    yield Claim(
        "the number of weights is as in the table",
        "L m (m + d_in + d_out), L C K d_in, 3 L m d_in",
        f"measured relative to the table: {listed(ratio, '.2f')}",
        rules.given(ordered, rules.graded(farthest <= config.weights_within, True)),
        f"All grow as L¹ m² (measured m^{span(wide for wide, _ in orders)}). The table gives every RNN layer an output "
        "matrix, counts only queries, keys and values of a transformer, a quarter of a usual block, and leaves out "
        "biases.",
    )
    growth, state = (
        {name: exponent(one[key], config.lengths) for name, one in cost.items()} for key in ("flops", "kept")
    )
    agree = sum(abs(growth[name] - ORDERS[name]) < config.steps_within for name in NAMES)
    yield Claim(
        "the cost of inference over T steps grows as in the table",
        "RNN and SSM O(T), TCN O(T), transformer O(T²)",
        each("{} T^{:.2f}", growth.items()),
        rules.most(agree, len(NAMES)),
        f"Operations counted from T = {config.lengths[-2]} to {config.lengths[-1]}; attention overtakes the rest of "
        f"its block at T = 6 m = {6 * config.shape.width}. Numbers kept between steps grow as "
        f"{', '.join(f'{name} T^{abs(value):.2g}' for name, value in state.items())}.",
    )
    yield from patterns(config, stages)


def patterns(config: TableConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on how the memory of each architecture decays."""
    found, n = curves.all(config, stages), config.seeds
    kinds = {name: memories.tally(measured) for name, measured in found.items()}
    rates = {name: span(memories.rates(measured)) for name, measured in found.items()}
    yield Claim(
        "the memory of RNN and SSM decays exponentially",
        "exponential decay",
        f"RNN {memories.listed(kinds['RNN'])}; SSM {memories.listed(kinds['SSM'])}",
        rules.most_seen(kinds["RNN"] + kinds["SSM"]),
        f"Rates per step: RNN {rates['RNN']}, SSM {rates['SSM']}, over {config.longer * config.horizon} steps: the "
        "same pattern on another time scale.",
    )
    lags = [fit.last_lag for curve in found["TCN"] if (fit := curve.decay()).last_lag is not None]
    ranks = {c: int((one["sigma"] > config.zero).sum(1).max()) for c, one in spectrum.all(config, stages).items()}
    low = all(rank <= c for c, rank in ranks.items())
    yield Claim(
        "the memory of a TCN is of low rank",
        "low rank",
        f"{each('C = {}: rank {}', ranks.items())} of {config.shape.kernel ** (config.shape.layers // 2)}; with tanh: "
        f"{memories.listed(kinds['TCN'])}",
        rules.graded(low and kinds["TCN"]["finite"] == n, low),
        "Folded by the digits of the lag, the kernel of a linear TCN has at most as many singular values above "
        f"{config.zero:g} as channels; memory ends at lag {span(lags)}, and K^L - 1 = "
        f"{config.shape.kernel**config.shape.layers - 1} is the largest possible lag.",
    )
    powers = [memories.octave_slopes(curve)[1] for curve in found["transformer"]]
    free = sum(map(memories.is_power, found["transformer"]))
    yield Claim(
        "the memory of a transformer is not restricted",
        "no restriction",
        f"{free} of {n} fall as a power of t, t^-{span(powers)} in the last octave",
        rules.most(free, n),
        f"After {WARM_UP} steps without input their share in an average is {WARM_UP}/(t + {WARM_UP}), whose derivative "
        f"falls as t^-2, not exponentially (classified as {memories.listed(kinds['transformer'])}). That is one "
        "pattern beyond the exponential, not a proof that every pattern is possible.",
    )


run = computing(costs, curves, spectrum)
SMOKE = TableConfig(shape=Shape(width=8), lengths=(64, 512, 1024), horizon=256, longer=64, channels=(1, 4), seeds=1)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=TableConfig(), minutes=(0.1, 1.0))
