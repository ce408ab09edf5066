"""Figures as plain data: matplotlib draws them as PNG or SVG files, and a script draws them in the report."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, final, get_args

import numpy as np

from stablessm import record
from stablessm._errors import ArgumentError, quoted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Scale: TypeAlias = Literal["linear", "log"]
Style: TypeAlias = Literal["solid", "dashed", "dotted", "points", "both"]
"""How a series is drawn: a kind of line, points, or both."""

DIGITS = 6
"""Significant digits of the numbers in a figure file."""

_DASHES = {"solid": "-", "dashed": "--", "dotted": ":", "points": "none", "both": "-"}


@final
@dataclass(frozen=True)
class Series:
    """A line or a set of points. Series with the same ``group`` have the same color, and one switch in the legend of
    the report shows or hides them together.

    >>> Series("e^-t", np.arange(3), np.array([1.0, 0.37, 0.14])).y
    [1.0, 0.37, 0.14]
    """

    name: str
    x: Sequence[float] | np.ndarray
    """Kept as a list, as ``y`` is."""
    y: Sequence[float] | np.ndarray
    style: Style = "solid"
    group: str | None = None

    def __post_init__(self) -> None:
        for axis in ("x", "y"):
            values = getattr(self, axis)
            object.__setattr__(self, axis, values.tolist() if isinstance(values, np.ndarray) else list(values))
        if len(self.x) != len(self.y):
            raise ArgumentError("y", f"{len(self.x)} numbers (as x)", len(self.y))
        if self.style not in get_args(Style):
            raise ArgumentError("style", f"one of {', '.join(get_args(Style))}", quoted(self.style))


@final
@dataclass(frozen=True)
class Panel:
    """One plot of a figure: a pair of axes with lines and sets of points."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    y_range: tuple[float, float] | None = None
    """Range of the y axis (default: all values)."""


@final
@dataclass(frozen=True)
class ImageGrid:
    """Rows of small grayscale images, shown as one panel of a figure.

    >>> grid = ImageGrid.of("digits", {"seen": np.zeros((2, 3, 3)), "found": np.ones((2, 3, 3))})
    >>> grid.labels, grid.height, grid.pixels[0], grid.pixels[-1][:4]
    (['seen', 'found'], 3, [0, 0, 0, 0, 0, 0, 0], [255, 255, 255, 0])
    """

    title: str
    labels: Sequence[str]
    """Labels of the rows."""
    height: int
    """Height of one image in pixels; one empty line separates two images."""
    pixels: Sequence[Sequence[int]]
    """All images as one, from 0 (empty) to 255 (full)."""

    def __post_init__(self) -> None:
        lines = len(self.labels) * (self.height + 1) - 1
        widths = {len(line) for line in self.pixels}
        if len(self.pixels) != lines or len(widths) != 1:
            raise ArgumentError("pixels", f"{lines} lines of one width", f"{len(self.pixels)}, widths {widths}")

    @classmethod
    def of(cls, title: str, rows: Mapping[str, np.ndarray]) -> Self:
        """Return a grid of images; ``rows`` maps labels to images of shape (columns, height, width).

        Values are clipped to 0 … 1; NaN becomes 0.
        """
        shapes = {np.shape(images) for images in rows.values()}
        shape = next(iter(shapes), ())
        if len(shapes) != 1 or len(shape) != 3 or 0 in shape:
            got = ", ".join(map(str, sorted(shapes))) or "none"
            raise ArgumentError("rows", "arrays of one shape (columns, height, width)", got)
        tiles = np.nan_to_num(np.stack([np.asarray(images, dtype=float) for images in rows.values()])).clip(0, 1)
        levels = np.rint(255 * np.pad(tiles, ((0, 0), (0, 0), (0, 1), (0, 1)))).astype(int)
        whole = levels.transpose(0, 2, 1, 3).reshape(levels.shape[0] * levels.shape[2], -1)[:-1, :-1]
        return cls(title, list(rows), shape[1], whole.tolist())


@final
@dataclass(frozen=True)
class Figure:
    """Several panels side by side, with one caption.

    >>> line = Series("e^-t", [0, 1, 2], [1.0, 0.37, 0.14])
    >>> figure = Figure("decay", "How it falls.", [Panel("memory", "t", "M", [line], y_scale="log")])
    >>> Figure.from_json(figure.to_json()) == figure
    True
    """

    name: str
    """A file name without suffix."""
    caption: str
    panels: Sequence[Panel | ImageGrid] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the figure as plain data for JSON. Numbers are rounded to ``DIGITS`` digits; infinite numbers and NaN
        become text.
        """
        return dict(_rounded(record.plain(asdict(self))))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the figure that :meth:`to_json` turned into plain data."""
        panels = [ImageGrid(**panel) if "pixels" in panel else _panel(panel) for panel in content["panels"]]
        return cls(content["name"], content["caption"], panels)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the figure to the file ``NAME.json`` in a folder, where NAME is the name of the figure."""
        record.write_json(Path(folder) / f"{self.name}.json", self.to_json(), indent=None)

    def save_pictures(self, folder: str | os.PathLike[str]) -> None:
        """Write the figure to the files ``NAME.png`` and ``NAME.svg`` in a folder, where NAME is the name of the
        figure.
        """
        for suffix, content in self.pictures("png", "svg").items():
            with record.atomic(Path(folder) / f"{self.name}.{suffix}") as path:
                path.write_bytes(content)

    def pictures(self, *formats: str) -> dict[str, bytes]:
        """Draw the figure in the given formats, ``png`` or ``svg``, and return a dict from each format to the content
        of the file. The same figure always gives the same bytes.
        """
        import matplotlib

        canvas = self.draw()
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # laid out once, not per file: the layout takes longer than the drawing
        drawn = {}
        for suffix in formats:
            metadata = {"Date": None} if suffix == "svg" else {"Software": None}
            content = io.BytesIO()
            with matplotlib.rc_context({"svg.hashsalt": self.name}), np.errstate(over="ignore"):  # the salt is read now
                canvas.savefig(content, format=suffix, dpi=110, metadata=metadata)
            drawn[suffix] = content.getvalue()
        return drawn

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a figure from its ``.json`` file."""
        content = record.read_json(path)
        with record.reading(path, "a figure that stablessm drew"):
            return cls.from_json(content)

    def draw(self) -> Canvas:
        """Draw the figure with matplotlib and return the matplotlib figure."""
        import matplotlib
        from matplotlib.figure import Figure as Canvas

        with matplotlib.rc_context({"font.size": 9}):
            canvas = Canvas(figsize=(4.6 * len(self.panels), 3.6), layout="constrained")
            for axes, panel in zip(np.atleast_1d(canvas.subplots(1, len(self.panels))), self.panels, strict=True):
                _draw_images(axes, panel) if isinstance(panel, ImageGrid) else _draw(axes, panel)
        return canvas


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _panel(content: Mapping[str, Any]) -> Panel:
    series = [Series(**line | {axis: [*map(float, line[axis])] for axis in "xy"}) for line in content["series"]]
    y_range = None if content["y_range"] is None else tuple(content["y_range"])
    return Panel(**{**content, "series": series, "y_range": y_range})


def _draw_images(axes: Axes, grid: ImageGrid) -> None:
    axes.imshow(np.asarray(grid.pixels), cmap="gray_r", vmin=0, vmax=255, interpolation="nearest")
    middles = [i * (grid.height + 1) + grid.height / 2 - 0.5 for i in range(len(grid.labels))]
    axes.set(title=grid.title, xticks=[])
    axes.set_yticks(middles, grid.labels)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw(axes: Axes, panel: Panel) -> None:
    colors: dict[str, str] = {}
    for series in panel.series:
        color = colors.setdefault(series.group or series.name, f"C{len(colors) % 10}")
        marker = "o" if series.style in ("points", "both") else None
        x, y = (_shown(v, scale) for v, scale in ((series.x, panel.x_scale), (series.y, panel.y_scale)))
        axes.plot(x, y, ls=_DASHES[series.style], marker=marker, ms=3, lw=1.4, color=color, label=series.name)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if np.isfinite(axes.dataLim.get_points()).all():  # matplotlib cannot draw a logarithmic axis of nothing
        axes.set_xscale(panel.x_scale)
        axes.set_yscale(panel.y_scale)
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    if len(panel.series) > 1:
        axes.legend(fontsize=7)


def _shown(values: Sequence[float] | np.ndarray, scale: Scale) -> np.ndarray:
    """Replace the values that an axis cannot show, such as values ≤ 0 on a logarithmic axis, by NaN. A line has a gap
    at such values.
    """
    array = np.asarray(values, dtype=float)
    hidden = ~np.isfinite(array) | ((array <= 0) if scale == "log" else False)
    return np.where(hidden, np.nan, array)
