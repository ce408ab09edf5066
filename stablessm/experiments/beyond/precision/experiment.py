"""The effect of rounding recurrent weights with direct and stable maps."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np

from stablessm._typing import Time
from stablessm.experiments.beyond.precision import rounding
from stablessm.experiments.beyond.precision.claims import claims
from stablessm.experiments.frame import Experiment, Run, Stages
from stablessm.report.figure import Figure, Panel, Series

MODES: tuple[tuple[Time, str], ...] = (("continuous", "bfloat16"), ("discrete", "bfloat16"))
MODELS: tuple[tuple[Time, str], ...] = (("continuous", "bfloat16"), ("discrete", "bfloat16"), ("continuous", "int8"))
"""Models that are drawn; the arrays have all of them."""


def run(config: rounding.PrecisionConfig, run: Run) -> None:
    """Compute single modes, whole models, and curves in every format."""
    for time, map in product(rounding.TIMES, rounding.MAPS):
        run.stage(f"modes-{time}-{map}", partial(rounding.single_modes, config, map, time))
        run.stage(f"models-{time}-{map}", partial(rounding.whole_models, config, map, time))
    for time, map, format in product(rounding.TIMES, rounding.CURVES, ("float64", *rounding.FLOATS)):
        rounding.measure_curve(config, run, time, map, format)
        rounding.measure_memory(config, run, time, map, format)


def figures(config: rounding.PrecisionConfig, stages: Stages) -> list[Figure]:
    """Return figures of modes, models, perturbation curves and memory functions."""
    return [
        Figure(
            "modes",
            "Relative change of a time scale τ by rounding of w, the largest in each tenth of a decade. A line ends "
            "where modes "
            "are lost.",
            [mode_panel(config, stages, time, format) for time, format in MODES],
        ),
        Figure(
            "models",
            "Change of a model's kernel (L¹, relative) when its w is rounded. Dotted: the largest change of "
            f"{config.draws} random perturbations of the same size.",
            [model_panel(config, stages, time, format) for time, format in MODELS],
        ),
        Figure(
            "curves",
            f"Perturbation error, by ascent, of models of width {config.width} held in each format, discrete time. "
            "Where a curve is flat, rounding hides the perturbation.",
            [curve_panel(config, stages, map) for map in rounding.CURVES],
        ),
        Figure(
            "memory",
            "Memory functions measured in each format, discrete time: the error against float64 and, dashed, the floor "
            "that the curve states.",
            [memory_panel(config, stages, "exp")],
        ),
    ]


def mode_panel(config: rounding.PrecisionConfig, stages: Stages, time: Time, format: str) -> Panel:
    """Return a panel of the change of a time scale by rounding."""
    bins = max(1, round(10 * np.log10(config.longest)))
    series = []
    for map in rounding.MAPS:
        scale, off = (np.array_split(stages[f"modes-{time}-{map}"][name], bins) for name in ("scale", format))
        series.append(Series(map, [float(part[0]) for part in scale], [float(part.max()) for part in off]))
    title = f"{format}, {time} time"
    return Panel(title, "time scale τ, in steps", "|τ̃/τ − 1|", series, "log", "log", (1e-5, 10))


def model_panel(config: rounding.PrecisionConfig, stages: Stages, time: Time, format: str) -> Panel:
    """Return a panel of the change of the kernel of a whole model by rounding."""
    series, widths = [], list(config.widths)
    for map in rounding.MAPS:
        change, random = (
            stages[f"models-{time}-{map}"][name][:, rounding.FORMATS.index(format)] for name in ("change", "random")
        )
        series.append(Series(map, widths, change.tolist(), "both", map))
        series.append(Series(f"{map}, at random", widths, random.tolist(), "dotted", map))
    title = f"{format}, {time} time"
    return Panel(title, "width m", "relative change of the kernel", series, "log", "log", (1e-4, 1e3))


def curve_panel(config: rounding.PrecisionConfig, stages: Stages, map: str) -> Panel:
    """Return a panel of E(β) of models in each format."""
    curves = {format: rounding.measured(stages, "discrete", map, format) for format in ("float64", *rounding.FLOATS)}
    series = [Series(name, curve.radius[1:].tolist(), curve.lower[1:].tolist()) for name, curve in curves.items()]
    return Panel(f"{map} map", "β", "E(β) against the float64 model", series, "log", "log", (1e-9, 1e3))


def memory_panel(config: rounding.PrecisionConfig, stages: Stages, map: str) -> Panel:
    """Return a panel of a memory function, and the errors and floors in other formats."""
    truth = rounding.memory(stages, "discrete", map, "float64")
    series = [Series("M(t), float64", truth.time.tolist(), truth.value.tolist())]
    for format in rounding.FLOATS:
        curve = rounding.memory(stages, "discrete", map, format)
        off = np.abs(curve.value - truth.value)
        series.append(Series(f"error in {format}", curve.time.tolist(), off.tolist(), group=format))
        series.append(Series(f"floor of {format}", truth.time[[1, -1]].tolist(), [curve.floor] * 2, "dashed", format))
    return Panel(f"{map} map", "t, in steps", "M(t)", series, "log", "log", (1e-14, 2))


EXPERIMENT = Experiment(
    id="ext-precision",
    title="Rounding as a perturbation",
    source="beyond the papers",
    question="When does storing weights in fewer bits act as a perturbation, and which map survives it?",
    claim="A stable map keeps working in float32, float16 and bfloat16; a direct map may lose its slowest modes.",
    configs={
        "smoke": rounding.PrecisionConfig(
            widths=(8, 64),
            horizon=500,
            draws=2,
            scales=200,
            width=8,
            steps=100,
            radii=(0.0, 1e-6, 1e-3, 1e-1),
            samples=2,
            climb=3,
        ),
        "paper": rounding.PrecisionConfig(),
    },
    minutes={"smoke": 0.05, "paper": 2.0},
    run=run,
    figures=figures,
    claims=claims,
)
