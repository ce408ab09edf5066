"""Every drawing and text of the instruments and the report as plain data: what is drawn, where, and in which style.

``python tests/drawings.py`` draws them again and writes ``drawings.json``; look at the drawings that changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

import stablessm as ssm
from stablessm.instruments import GradientTracker, MemoryCurve, PerturbationFamily, bernstein_bound
from stablessm.instruments.divergence import Divergence
from stablessm.instruments.gradients import GradientHistory, GradientOverWeight, ParameterRatio
from stablessm.instruments.modes import Initialization, Mode, report_modes
from stablessm.instruments.perturbation import PerturbationCurve
from stablessm.instruments.readback import Readback
from stablessm.instruments.streaming import StreamingDifference, StreamingReport
from stablessm.report.figure import Figure, ImageGrid, Panel, Series

PATH = Path(__file__).with_suffix(".json")
T = np.arange(60) * 0.5


def curve(value: np.ndarray, **options: Any) -> MemoryCurve:
    """A memory in milliseconds."""
    return MemoryCurve(T, value, unit="ms", **options)


def perturbed(factor: float, upper: bool = True) -> PerturbationCurve:
    """An error that grows with the radius."""
    radius = np.array([0.0, 0.01, 0.1, 1.0])
    lower = factor * (0.1 + radius)
    bounds = (2 * lower, 3 * lower) if upper else (None, None)
    return PerturbationCurve(
        radius, lower, *bounds, "kernel_l1", "entry_max", "random", ("w",), 3, 0, 40, 0.1, 7, 10
    )  # fmt: skip


def history() -> GradientHistory:
    """Two parameters over three steps."""
    table = np.arange(1.0, 25).reshape(3, 2, 4)
    return GradientHistory(np.array([0, 2, 4]), ("w", "layer.B"), table[..., 3], table[..., :3])


def tracked() -> Axes:
    """What a tracker of one training step draws."""
    layer = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(layer.weight, 0.5), torch.nn.init.constant_(layer.bias, 2.0)
    layer(torch.tensor([[1.0, 3.0]])).square().sum().backward()
    tracker = GradientTracker(layer)
    tracker.update()
    return tracker.plot()


def figure() -> Figure:
    """All styles and scales, and images."""
    lines = [
        Series("solid", [1, 2], [3.0, 4.0]),
        Series("dashed", [1, 2], [-3.0, 4.0], "dashed", "both"),
        Series("dotted", [1, 2], [5.0, np.inf], "dotted", "both"),
        Series("points", [1, 2], [6.0, 7.0], "points"),
        Series("joined", [0, 2], [6.0, 8.0], "both"),
    ]
    grid = ImageGrid.of("digits", {"seen": np.eye(3)[None].repeat(2, 0), "found": np.full((2, 3, 3), 0.25)})
    panels = [
        Panel("left", "t", "M", lines, "log", "log", (1.0, 100.0)), Panel("right", "x", "y", lines[:1]), grid,
        Panel("nothing", "x", "y", [Series("none", [1.0], [-1.0])], y_scale="log"),
    ]  # fmt: skip
    return Figure("name", "caption", panels)


STABLE, GROWING = (
    Mode("", (1,), -0.5 + 0.25j, 2.0, 4.0, 8.0, 0.5, -0.05),
    Mode("layers.0", (2, 3), 0.125, float("inf"), 4.0, 8.0, -0.125, 0.0125),
)


def texts() -> list[str]:
    """What results say."""
    found = [Divergence("forward", "", "LRU", "output[0]", 3e38, (1, 7, 2), 1, 7, 2, None)]
    found += [Divergence("gradient", "a.b", "RNN", "x", float("nan"), (4,), None, None, None, STABLE, "overflow")]
    blamed = ("recurrent weight", "a.weight_hh", 1.25)
    found += [Divergence("input", "a", "RNN", "x", 1.0, (), None, None, None, GROWING, *blamed)]
    differs = [StreamingDifference("step", 0.5, 0.25, 1, 7, 2, first, 0.125) for first in (None, 6)]
    reports = [StreamingReport(tuple(differs), tol) for tol in (0.25, 0.2)]
    ratios = {
        "bias": ParameterRatio(9.0, (1.0, 2.0, 3.0), None, None),
        "w": ParameterRatio(7.0, (1.0, 2.0, 3.0), None, torch.tensor([2.0, 5.0]), True),
        "layer.C": ParameterRatio(8.0, (1.0, 2.0, 3.0), None, None, True),
    }
    read = [Readback(T[:3], np.array(part), np.ones(3), 4) for part in ([0.9, 0.6, 0.1], [0.1, 0.9, 0.1])]
    start = torch.tensor([-1.0, 0.25, -1e-3])
    model = torch.nn.Sequential(
        ssm.RealSSM(1, 3, 1, map="direct", eigenvalues=start),
        ssm.LRU(1, 2, 1, eigenvalues=torch.tensor([0.5 + 0.5j, 0.9j])),
    )
    curves = [curve(np.exp(-0.4 * T), exact=exact) for exact in (False, True)]
    proof = ssm.lyapunov_certificate(np.array([[-1.0, 3.0], [0.0, -2.0]]))
    whole = [*reports, GradientOverWeight(ratios), *read, *curves, proof, report_modes(model)]
    whole += [Initialization(()), Initialization(("first", "second")), perturbed(1.0), perturbed(1.0, upper=False)]
    return [str(one) for one in (*found, *(one.remedy for one in found), *differs, STABLE, GROWING, *whole)]


def verdicts() -> list[str]:
    """What families of three widths say, for errors E(beta) = floor + slope beta^power of each."""
    radius, said = np.array([0.0, *np.geomspace(1e-3, 1, 7)]), []
    for powers, slopes, floors in (
        ((1, 1, 1), (1, 1, 1), (0.1, 0.05, 0.025)),
        ((1, 1, 1), (1, 8, 64), (0.1, 0.01, 0.001)),
        ((1, 1, 6), (1, 1, 500), (0.1, 0.05, 0.025)),
        ((1, 1, 1), (1, 2, 2), (0.1, 0.05, 0.02)),
        ((1, 1, 1), (1, 1, 1), (0.1, 0.05, 0.049)),
        ((1, 2, 1), (1, 1, 3), (0.1, 0.05, 0.03)),
    ):
        errors = [floor + slope * radius**power for power, slope, floor in zip(powers, slopes, floors, strict=True)]
        curves = {
            width: PerturbationCurve(
                radius, error, None, None, "mse", "entry_max", "random", ("w",), 3, 0, 4, 1.0, 0, 1
            )
            for width, error in zip((4, 8, 16), errors, strict=True)
        }
        for family in (PerturbationFamily(curves), PerturbationFamily({w: curves[w] for w in (4, 8)})):
            limit = family.extrapolated
            parts = [family.verdict(), family.crossings(), family.crossings(0.1)]
            said.append("; ".join(map(repr, parts)) + f"; {np.round(limit.error, 6)}, {np.round(limit.uncertainty, 6)}")
    return said


DRAWN: dict[str, Callable[[], Any]] = {
    "memory": lambda: curve(3 * np.exp(-0.4 * T), floor=1e-4).plot(),
    "memory with a style": lambda: curve(np.exp(-0.4 * T), floor=1e-4).plot(fit=False, label="ours", color="C3"),
    "power": lambda: curve((1 + T) ** -1.5).plot(),
    "stretched": lambda: curve(np.exp(-((T / 8) ** 2))).plot(),
    "interactive memory": lambda: curve(3 * np.exp(-0.4 * T), floor=1e-4).plotly(),
    "interactive memory without a fit": lambda: curve(np.where(T < 20, 1.0, 0.0)).plotly(fit=False, label="ours"),
    "perturbation": lambda: perturbed(1.0).plot(),
    "perturbation without a bound": lambda: perturbed(1.0, upper=False).plot(label="ours"),
    "interactive perturbation": lambda: perturbed(1.0).plotly(),
    "family": lambda: PerturbationFamily({4: perturbed(1.0), 2: perturbed(3.0), 8: perturbed(0.5)}).plot(),
    "bound": lambda: bernstein_bound(T, rate=0.5, theta_max=2.0).plot(),
    "bound and memory": lambda: bernstein_bound(T, rate=0.5, theta_max=2.0).against(T, np.exp(-T)).plot(),
    "gradients": lambda: history().plot(),
    "tracker": tracked,
    "figure": lambda: figure().draw(),
    "texts": texts,
    "verdicts": verdicts,
}


def described(drawn: Any) -> Any:
    """Axes, a matplotlib figure, a plotly figure or texts as plain data."""
    if isinstance(drawn, list):
        return drawn
    if hasattr(drawn, "to_plotly_json"):
        traces = [{**trace.to_plotly_json(), "x": _numbers(trace.x), "y": _numbers(trace.y)} for trace in drawn.data]
        return [traces, {key: value for key, value in drawn.layout.to_plotly_json().items() if key != "template"}]
    if isinstance(drawn, Axes):
        return _axes(drawn)
    size = [float(inches) for inches in drawn.get_size_inches()]
    return [size, *(_axes(axes) for axes in drawn.axes)]


def _numbers(array: np.ndarray) -> list[float]:
    """The number of points, the first, the last and the sum of those that are drawn."""
    array = np.ma.filled(np.ma.asarray(array, dtype=float), np.nan).ravel()
    there = array[np.isfinite(array)]
    return [len(array), len(there), *(float(f"{x:.6g}") for x in (*there[:1], *there[-1:], there.sum()))]


def _axes(axes: Axes) -> dict[str, Any]:
    legend = axes.get_legend()
    found: dict[str, Any] = {
        "labels": [axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale(), axes.get_yscale()],
        "size": [float(inches) for inches in axes.figure.get_size_inches()],
        "legend": legend and [(text.get_text(), text.get_fontsize()) for text in legend.get_texts()],
        "lines": [
            [
                line.get_label().lstrip("_"), to_hex(line.get_color()), line.get_linestyle(), line.get_linewidth(),
                line.get_marker(), line.get_markersize(), _numbers(line.get_xdata()), _numbers(line.get_ydata()),
            ]
            for line in axes.lines
        ],
        "areas": [
            [
                to_hex(area.get_facecolor()[0]), area.get_alpha(), float(area.get_linewidth()[0]),
                *(float(f(area.get_paths()[0].vertices[:, 1])) for f in (np.min, np.max)),
            ]
            for area in axes.collections
        ],
        "images": [
            [image.cmap.name, *image.get_clim(), image.get_interpolation(), _numbers(image.get_array())]
            for image in axes.images
        ],
    }  # fmt: skip
    if axes.images:
        ticks = [
            (float(at), text.get_text()) for at, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        ]
        sizes = [tick.tick1line.get_markersize() for tick in axes.yaxis.get_major_ticks()]
        found["ticks"] = [list(axes.get_xticks()), ticks, sizes, [side.get_visible() for side in axes.spines.values()]]
    if axes.get_ylim() == (1.0, 100.0):
        found["range"] = [1.0, 100.0]
    return found


def main() -> None:
    """Draw and write."""
    rows = (f" {json.dumps(name)}: {json.dumps(described(draw()), ensure_ascii=False)}" for name, draw in DRAWN.items())
    PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
