"""Compares how rounding the recurrent weights changes models with direct and with stable maps."""

from __future__ import annotations

import numpy as np

from stablessm._typing import Time
from stablessm.experiments.beyond.precision import rounding
from stablessm.experiments.beyond.precision.claims import claims
from stablessm.experiments.frame import Figure, Figures, Panel, Series, Stages, computing, described
from stablessm.experiments.frame.lines import paired


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


run = computing(rounding.single_modes, rounding.whole_models, rounding.measured, rounding.memory)
SMOKE = rounding.PrecisionConfig(
    widths=(8, 64), horizon=500, draws=2, scales=200, width=8, steps=100, radii=(0.0, 1e-6, 1e-3, 1e-1), samples=2,
    climb=3,
)  # fmt: skip
EXPERIMENT = described(
    __file__, run, figures, claims, smoke=SMOKE, paper=rounding.PrecisionConfig(), minutes=(0.05, 2.0)
)
