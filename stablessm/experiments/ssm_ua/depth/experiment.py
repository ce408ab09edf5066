"""Compares measured memory functions of deep linear RNNs with equation 38 of SSM-UA, which is for two layers with
different rates, and with the limit of equal rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, described, memories, rules
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.stage import computing, kept, stage
from stablessm.experiments.frame.words import span
from stablessm.instruments import MemoryCurve, memory_function
from stablessm.layers import ContinuousRNN
from stablessm.report.figure import Figure, Panel

FORMULAS = ("ours", "quotient", "printed")
MODES = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class DepthConfig:
    """Settings of ``su-depth``: rates, gaps between rates, depths and thresholds.

    All values are our own, because the paper gives only a formula and no numbers.
    """

    rate: float = 0.25
    """The slowest rate."""
    gaps: tuple[float, ...] = (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 0.1, 0.3)
    depths: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    dt: float = 0.1
    horizon: int = 2000
    seeds: int = 8
    exact: float = 1e-8
    """A formula counts as exact up to this relative error."""
    fair: float = 1e-3
    """A formula counts as partly right up to this relative error."""
    met: float = 1e-6
    """A memory function has reached its limit if its relative change is below this value."""


def chain(rates: list[Tensor], between: list[Tensor], U: Tensor, C: Tensor, dt: float) -> ContinuousRNN:
    """Return one RNN that computes a stack of linear layers dh_l/dt = Λ_l h_l + U_l h_(l+1), where h_l is the state of
    layer l. Λ_l is diagonal with the entries ``rates[l]``, and U_l is ``between[l]``. The input enters the last layer
    through ``U``, and the output is read from the first layer by ``C``.
    """
    ends = np.cumsum([0, *(len(rate) for rate in rates)]).tolist()
    model = ContinuousRNN(1, ends[-1], 1, activation="linear", solver="exponential", dt=dt, bias=False).double()
    with torch.no_grad():
        model.M.copy_(torch.block_diag(*map(torch.diag, rates)))
        for layer, weights in enumerate(between):
            model.M[ends[layer] : ends[layer + 1], ends[layer + 1] : ends[layer + 2]] = weights
        model.U.zero_()[ends[-2] :] = U
        model.C.zero_()[:, : ends[1]] = C
    return model


def equation(formula: str, first: Tensor, second: Tensor, C: Tensor, U1: Tensor, U2: Tensor, times: Tensor) -> Tensor:
    """Return the memory function of two linear layers at the given times by equation 38 of SSM-UA. ``first`` and
    ``second`` are the eigenvalues of the two layers; ``C``, ``U1`` and ``U2`` are the weights of the output, of the
    connection between the layers and of the input.

    ``formula`` selects one of three versions of the equation: ``printed``; ``ours``, which is corrected; and
    ``quotient``, which is corrected but computed with the printed quotient, and inaccurate for nearly equal rates. For
    the rates a and b, the other two versions replace the quotient by an expression without cancellation: (e^(bt) -
    e^(at)) / (b - a) = e^((a+b)t/2) · t · sinh(z)/z with z = (b - a)t/2.
    """
    a, b, t = first[:, None], second[None, :], times[:, None, None]
    if formula == "quotient":
        return (C.mT * U1 * U2.mT * ((b * t).exp() - (a * t).exp()) / (b - a)).sum((1, 2))
    z = (b - a) * t / 2
    sinhc = torch.where(z.abs() < 1e-4, 1 + z**2 / 6, z.sinh() / torch.where(z == 0, 1.0, z))
    weights = C.mT * U1 * U2.mT if formula == "ours" else U1 * (C @ U2)
    return (weights * ((a + b) * t / 2).exp() * t * sinhc).sum((1, 2))


@stage("two-layers-{gap:g}", over=lambda config: config.gaps)
def errors(config: DepthConfig, run: Run, gap: float) -> Mapping[str, np.ndarray]:
    """Compare the memory functions of two-layer RNNs, whose rates differ by ``gap``, with equation 38 of SSM-UA. Return
    for each seed the largest relative error of each version of the equation (see :func:`equation`), and the memory
    function of the first seed.
    """

    def one(seed: int) -> tuple[list[float], MemoryCurve]:
        generator = torch.Generator().manual_seed(seed)
        shapes = ((1, len(MODES)), (len(MODES), len(MODES)), (len(MODES), 1))
        C, U1, U2 = (torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.1 for shape in shapes)
        first = -config.rate * torch.tensor(MODES, dtype=torch.float64)
        second = first - gap
        model = chain([first, second], [U1], U2, C, config.dt)
        curve = memory_function(model, config.horizon, linear=True, progress=False)
        times = torch.from_numpy(curve.time[1:])  # the memory at 0 is zero
        ratios = (equation(name, first, second, C, U1, U2, times).numpy() / curve.value[1:] for name in FORMULAS)
        return [off_by(ratio, scaled=name == "printed") for name, ratio in zip(FORMULAS, ratios, strict=True)], curve

    rows, curves = zip(*(one(seed) for seed in range(config.seeds)), strict=True)
    return {"time": curves[0].time, "value": curves[0].value, **dict(zip(FORMULAS, np.array(rows).T, strict=True))}


def off_by(ratio: np.ndarray, *, scaled: bool) -> float:
    """Return the largest |ratio - 1| over all ratios. With ``scaled``, all ratios are first multiplied by the constant
    for which this result is smallest.
    """
    low, high = float(ratio.min()), float(ratio.max())
    return (high - low) / (high + low) if scaled else max(high - 1, 1 - low)


@kept(MemoryCurve, "depth-{depth}", over=lambda config: config.depths)
def deep(config: DepthConfig, run: Run, depth: int) -> MemoryCurve:
    """Return the measured memory function of a stack of ``depth`` linear layers, each with one mode of the same
    rate.
    """
    one = torch.ones(1, 1, dtype=torch.float64)
    model = chain([-config.rate * one[0]] * depth, [one] * (depth - 1), one, one, config.dt)
    return memory_function(model, config.horizon, linear=True, progress=False)


def gamma(config: DepthConfig, depth: int, time: np.ndarray) -> np.ndarray:
    """Return the memory function that theory predicts for L = ``depth`` linear layers, each with one mode of the same
    eigenvalue λ: t^(L-1) e^(λt) / (L-1)!.
    """
    return time ** (depth - 1) * np.exp(-config.rate * time) / math.factorial(depth - 1)


def figures(config: DepthConfig, stages: Stages) -> Figures:
    """Yield a figure with two panels. The first shows the errors of the three versions of equation 38 of SSM-UA (see
    :func:`equation`) against the gap between the rates, the second the memory functions for several depths.
    """
    gaps = [gap for gap in config.gaps if gap > 0]
    labels = ("per-mode weights, no cancellation", "the quotient as printed", "weights as printed, best factor")
    worst = {
        label: [float(errors(stages, gap)[name].max()) for gap in gaps]
        for name, label in zip(FORMULAS, labels, strict=True)
    }
    drawn = lines(gaps, worst, "both")
    curves = {f"{depth} layer{'s' * (depth > 1)}": curve for depth, curve in deep.all(config, stages).items()}
    yield Figure(
        "depth",
        f"Left: the largest relative error of equation 38 over {config.seeds} random models. Right: layers with "
        "the same rate have the memory t^(L-1) e^(-βt) / (L-1)!, in the end parallel to a single layer.",
        [
            Panel("two layers: formula against measurement", "gap of the rates", "relative error", drawn, "log", "log"),
            memories.panel(f"depth, β = {config.rate:g}", curves, "time"),
        ],
    )


def claims(config: DepthConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on equation 38 of SSM-UA as corrected and as printed, on its limit for equal
    rates, and on the effect of depth.
    """
    found = errors.all(config, stages)
    ours = max(float(one["ours"].max()) for one in found.values())
    smallest = min(gap for gap in config.gaps if gap > 0)
    yield Claim(
        "equation 38, with a weight for each pair of modes and the confluent limit, is the memory of two layers",
        "an identity",
        f"relative error at most {ours:.1e} over gaps {span(config.gaps)}",
        rules.graded(ours <= config.exact, ours <= config.fair),
        "The quotient as printed is NaN at gap 0 and has a relative error of "
        f"{float(found[smallest]['quotient'].max()):.1e} at gap {smallest:g}; e^((a+b)t/2) t sinh(z)/z is the same "
        "function without cancellation.",
    )
    printed = min(float(one["printed"].min()) for one in found.values())
    yield Claim(
        "equation 38 as printed, with the weights U₁,ᵢⱼ C U₂, is the memory of two layers",
        "C U₂ is one factor for every pair of modes",
        f"relative error {printed:.0%} or more in each of {config.seeds * len(config.gaps)} random models, after the "
        "best constant factor",
        rules.graded(printed <= config.exact),
        "C multiplies e^(Λ₁t) from the left and U₂ multiplies e^(Λ₂t) from the right: the weight of a pair is "
        "Cᵢ U₁,ᵢⱼ U₂,ⱼ, but C U₂ sums over the modes before they have decayed (an erratum).",
    )
    moved = float(np.abs(found[smallest]["value"][1:] / found[0.0]["value"][1:] - 1).max())
    yield Claim(
        "rates that meet give t e^(λt), an unbounded combination of exponentials",
        "unbounded as λ₂ⱼ and λ₁ᵢ come close",
        f"coefficients of order {1 / smallest:.0e}, memory within {moved:.0e} of the limit t e^(λt)",
        rules.graded(False, moved < config.met),
        "Only the coefficients are unbounded: the memory converges with the gap, to a curve whose peak per pair, "
        f"1/(e β) = {1 / (math.e * config.rate):.3g} at β = {config.rate:g}, is finite.",
    )
    curves = deep.all(config, stages)
    exact = max(float(np.abs(c.value[1:] / gamma(config, d, c.time[1:]) - 1).max()) for d, c in curves.items())
    fits = {depth: curve.decay() for depth, curve in curves.items()}
    yield Claim(
        "depth does not change exponential decay",
        "exponential at every depth",
        ", ".join(f"L = {depth}: {fit.kind}, rate {fit.rate or math.nan:.3g}" for depth, fit in fits.items()),
        rules.most(sum(fit.kind == "exponential" for fit in fits.values()), len(fits)),
        f"Measured memories agree with t^(L-1) e^(-βt)/(L-1)! to {exact:.1e}; β = {config.rate:g}; depth delays the "
        f"peak to (L-1)/β, {(max(fits) - 1) / config.rate:g} at L = {max(fits)}.",
    )


run = computing(errors, deep)
SMOKE = DepthConfig(gaps=(0.0, 1e-12, 1e-6, 0.3), depths=(1, 2, 4), horizon=800, seeds=2)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=DepthConfig(), minutes=(0.1, 0.5))
