"""Compares how rounding the recurrent weights changes models with direct and with stable maps."""

from __future__ import annotations

from itertools import product

import numpy as np

from stablessm._typing import Time
from stablessm.experiments.beyond.precision import rounding
from stablessm.experiments.frame import Claim, Claims, Figures, Stages, computing, described, rules
from stablessm.experiments.frame.lines import paired
from stablessm.experiments.frame.words import each, listed
from stablessm.report.figure import Figure, Panel, Series

NO_VALUE = "— (ours; the papers compute in one precision)"


def figures(config: rounding.PrecisionConfig, stages: Stages) -> Figures:
    """Yield figures of the effect of rounding on modes, kernels, perturbation errors and memory functions."""
    yield Figure(
        "modes",
        "Relative change of a time scale τ by rounding of w, the largest in each tenth of a decade. A line ends where "
        "modes are lost.",
        [mode_panel(config, stages, time, "bfloat16") for time in rounding.TIMES],
    )
    yield Figure(
        "models",
        "Change of a model's kernel (L¹, relative) when its w is rounded. Dotted: the largest change of "
        f"{config.draws} random perturbations of the same size.",
        [
            *(model_panel(config, stages, time, "bfloat16") for time in rounding.TIMES),
            model_panel(config, stages, "continuous", "int8"),
        ],
    )
    yield Figure(
        "curves",
        f"Perturbation error, by ascent, of models of width {config.width} held in each format, discrete time. "
        "Where a curve is flat, rounding hides the perturbation.",
        [curve_panel(config, stages, map) for map in rounding.CURVES],
    )
    yield Figure(
        "memory",
        "Memory functions measured in each format, discrete time: the error against float64 and, dashed, the floor "
        "that the curve states.",
        [memory_panel(config, stages, "exp")],
    )


def mode_panel(config: rounding.PrecisionConfig, stages: Stages, time: Time, format: str) -> Panel:
    """Return a panel of the rounding errors of single modes: the relative change of a mode's time scale against the
    time scale.
    """
    bins, series = max(1, round(10 * np.log10(config.longest))), []
    for map in rounding.MAPS:
        found = rounding.single_modes(stages, time, map)
        scale, off = (np.array_split(found[name], bins) for name in ("scale", format))
        series.append(Series(map, [float(part[0]) for part in scale], [float(part.max()) for part in off]))
    title = f"{format}, {time} time"
    return Panel(title, "time scale τ, in steps", "|τ̃/τ − 1|", series, "log", "log", (1e-5, 10))


def model_panel(config: rounding.PrecisionConfig, stages: Stages, time: Time, format: str) -> Panel:
    """Return a panel of the rounding errors of whole models: the relative change of the kernel against the number of
    states.
    """
    rows, column = {}, rounding.FORMATS.index(format)
    for map in rounding.MAPS:
        found = rounding.whole_models(stages, time, map)
        rows[map] = found["change"][:, column], found["random"][:, column]
    series = paired(config.widths, rows, ", at random", ("both", "dotted"))
    title = f"{format}, {time} time"
    return Panel(title, "width m", "relative change of the kernel", series, "log", "log", (1e-4, 1e3))


def curve_panel(config: rounding.PrecisionConfig, stages: Stages, map: str) -> Panel:
    """Return a panel of the perturbation error E(β) as measured in each floating-point format."""
    curves = {format: rounding.measured(stages, "discrete", map, format) for format in rounding.ALL_FLOATS}
    series = [Series(name, curve.radius[1:], curve.lower[1:]) for name, curve in curves.items()]
    return Panel(f"{map} map", "β", "E(β) against the float64 model", series, "log", "log", (1e-9, 1e3))


def memory_panel(config: rounding.PrecisionConfig, stages: Stages, map: str) -> Panel:
    """Return a panel of the memory function in float64, and of the error and the rounding level of the memory function
    in every other floating-point format.
    """
    truth = rounding.memory(stages, "discrete", map, "float64")
    series = [Series("M(t), float64", truth.time, truth.value)]
    for format in rounding.FLOATS:
        curve = rounding.memory(stages, "discrete", map, format)
        series.append(Series(f"error in {format}", curve.time, np.abs(curve.value - truth.value), group=format))
        series.append(Series(f"floor of {format}", truth.time[[1, -1]], [curve.floor] * 2, "dashed", format))
    return Panel(f"{map} map", "t, in steps", "M(t)", series, "log", "log", (1e-14, 2))


def claims(config: rounding.PrecisionConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on the effect of rounding on single modes, kernels, perturbation errors and
    memory functions.
    """
    yield stable_claim(config, stages)
    yield direct_claim(config, stages)
    yield from (kernel_claim(config, stages, format) for format in rounding.FORMATS)
    yield size_claim(config, stages)
    yield curve_claim(config, stages)
    yield memory_claim(config, stages)


def stable_claim(config: rounding.PrecisionConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: with stable maps, rounding makes no mode unstable."""
    lost, single = (dict.fromkeys(rounding.MAPS, 0) for _ in range(2))
    for time, map in product(rounding.TIMES, rounding.MAPS):
        lost[map] += int(rounding.whole_models(stages, time, map)["lost"].sum())
        modes = rounding.single_modes(stages, time, map)
        single[map] += sum(int(np.isinf(modes[format]).sum()) for format in rounding.FLOATS)
    return Claim(
        "a stable map keeps every mode, in every format",
        NO_VALUE,
        f"modes lost in models: {listed(lost, '')}",
        rules.ours(rules.some([lost[map] + single[map] == 0 for map in rounding.STABLE])),
        f"Of single modes up to the longest time scale, {each('{} loses {}', single.items())}.",
    )


def direct_claim(config: rounding.PrecisionConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: with direct maps, rounding makes slow modes unstable."""
    first, lost = {}, {}
    for time in rounding.TIMES:
        modes, models = rounding.single_modes(stages, time, "direct"), rounding.whole_models(stages, time, "direct")
        for format in rounding.FLOATS:
            first[f"{time} {format}"] = float(modes["scale"][np.isinf(modes[format])].min(initial=np.inf))
        for column, format in enumerate(rounding.FORMATS):
            lost[f"{time} {format}"] = int(models["lost"][-1, column])
    limits = [f"{name} from τ = {tau:.3g}" for name, tau in first.items() if np.isfinite(tau)]
    safe = [name for name, tau in first.items() if np.isinf(tau)]
    return Claim(
        "a direct map loses its slowest modes",
        NO_VALUE,
        f"of {config.widths[-1]} modes: {listed(lost, '')}",
        rules.ours(rules.some([count > 0 or np.isfinite(first.get(name, np.inf)) for name, count in lost.items()])),
        f"Single modes are lost in {', '.join(limits) or 'no format'}; up to τ = {config.longest:.0e} none in "
        f"{', '.join(safe) or 'no other'}. Relative rounding keeps the sign of λ = −1/τ, but not λ = e^(−1/τ) below 1.",
    )


def kernel_claim(config: rounding.PrecisionConfig, stages: Stages, format: str) -> Claim:
    """Return a claim with its verdict: rounding hardly changes the kernels of models with stable maps."""
    column = rounding.FORMATS.index(format)
    worst = {
        map: [float(rounding.whole_models(stages, t, map)["change"][:, column].max()) for t in rounding.TIMES]
        for map in rounding.MAPS
    }
    return Claim(
        f"{format}: a stable map keeps working (its kernel changes by at most {config.works:.0%})",
        NO_VALUE,
        listed({map: max(worst[map]) for map in rounding.STABLE}, ".2g"),
        rules.ours(rules.some([change <= config.works for map in rounding.STABLE for change in worst[map]])),
        f"Largest relative changes over widths up to {config.widths[-1]}, continuous and discrete: "
        f"{', '.join(f'{map} {a:.2g} and {b:.2g}' for map, (a, b) in worst.items())}.",
    )


def size_claim(config: rounding.PrecisionConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: a rounding error of size β changes the kernel about as much as a random
    perturbation of size β, and by no more than the theoretical bound on E(β), the largest change by a perturbation of
    size β.
    """
    ratios, below = {}, []
    for map, time in product(rounding.MAPS, rounding.TIMES):
        found = rounding.whole_models(stages, time, map)
        below.append(bool((found["change"] <= found["bound"]).all()))
        ratios[f"{map} {time}"] = found["change"] / found["random"]
    alike = [bool((r > 1 / config.alike).all() and (r < config.alike).all()) for r in ratios.values()]
    return Claim(
        "rounding acts as a random perturbation of its size β",
        NO_VALUE,
        f"below the bound of E(β) in {sum(below)} of {len(below)} families; like random draws in {sum(alike)}",
        rules.ours(rules.graded(all(below) and all(alike), all(below))),
        "Change by rounding over the largest by random draws of the same β: "
        f"{', '.join(f'{name} {r.min():.2g} to {r.max():.2g}' for name, r in ratios.items())}; within a factor "
        f"{config.alike:g} counts as alike.",
    )


def curve_claim(config: rounding.PrecisionConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: the perturbation error E(β) is the same whether it is measured in float32 or in
    float64, wherever E(β) is above the rounding error.
    """
    off, hidden = {}, {}
    for time, map in product(rounding.TIMES, rounding.CURVES):
        truth, single, half = (rounding.measured(stages, time, map, f) for f in ("float64", "float32", "bfloat16"))
        seen = (truth.lower > single.lower[0] / config.agrees) & (truth.lower < np.finfo(np.float32).max ** 0.5)
        off[f"{map} {time}"] = float(np.abs(single.lower[seen] / truth.lower[seen] - 1).max(initial=0))
        hidden[f"{map} {time}"] = (half.lower[0], float(truth.radius[truth.lower > half.lower[0]].min(initial=np.inf)))
    agree = [value <= 2 * config.agrees for value in off.values()]  # half of it may be rounding
    return Claim(
        "E_m(β) measured in float32 equals E_m(β) measured in float64",
        NO_VALUE,
        f"relative difference at most {max(off.values()):.1e} where E is {1 / config.agrees:.0f} times the rounding "
        "error",
        rules.ours(rules.some(agree)),
        f"Float32: {listed(off, '.1e')}. In bfloat16 the curve begins at its rounding error and is meaningful only "
        "from larger β on: "
        f"{', '.join(f'{name} {error:.1e} (β = {radius:.1g})' for name, (error, radius) in hidden.items())}.",
    )


def memory_claim(config: rounding.PrecisionConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: memory functions measured in low precision are correct wherever they are above
    the rounding level that the measurement reports.
    """
    worst, floors = {}, {}
    for format in rounding.FLOATS:
        pairs = [
            (rounding.memory(stages, time, map, "float64"), rounding.memory(stages, time, map, format))
            for time, map in product(rounding.TIMES, rounding.CURVES)
        ]
        worst[format] = max(float(np.abs(curve.value - truth.value).max()) / curve.floor for truth, curve in pairs)
        floors[format] = max(curve.floor for _, curve in pairs)
    return Claim(
        "a measured memory function equals the float64 one down to its stated floor",
        NO_VALUE,
        f"largest error over floor: {listed(worst, '.2g')}",
        rules.ours(rules.some([ratio <= 1 for ratio in worst.values()])),
        f"Over {config.steps} steps and {len(rounding.CURVES) * len(rounding.TIMES)} models the floors are "
        f"{each('{1:.1e} ({0})', floors.items())}.",
    )


run = computing(rounding.single_modes, rounding.whole_models, rounding.measured, rounding.memory)
SMOKE = rounding.PrecisionConfig(
    widths=(8, 64), horizon=500, draws=2, scales=200, width=8, steps=100, radii=(0.0, 1e-6, 1e-3, 1e-1), samples=2,
    climb=3,
)  # fmt: skip
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMOKE, paper=rounding.PrecisionConfig(), minutes=(0.05, 2.0)
)
