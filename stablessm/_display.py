"""The display of results: a few lines of text and, in notebooks, a table with a drawing."""

from __future__ import annotations

import html
import math
import textwrap
from typing import Any, ClassVar

from stablessm._errors import printable, quoted

LINES = 8
"""Largest number of lines of a ``repr`` and of a summary in a notebook."""

_WIDTH, _HEIGHT = 240, 90
"""Size of the drawing in a notebook, in pixels."""
_LEFT = 'style="text-align:left"'


class Result:
    """The base class of results; ``repr`` and notebooks show a summary of all fields that are not None.

    A subclass is a dataclass with ``repr=False``. If it defines ``__str__``, notebooks show that text above the fields.
    """

    _drawn: ClassVar[tuple[str, str] | None] = None
    """Names of the fields that notebooks draw: x and, on a logarithmic axis, y."""

    def _fields(self) -> dict[str, str]:
        fields = [name for name, field in getattr(self, "__dataclass_fields__", {}).items() if field.repr]
        return {name: _digits(value) for name in fields if (value := getattr(self, name)) is not None}

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value}" for name, value in self._fields().items())
        lines = textwrap.wrap(
            f"{type(self).__name__}({fields})", 118, subsequent_indent="    ", max_lines=LINES, placeholder=" …)"
        )
        return printable("\n".join(lines))

    def _repr_html_(self) -> str:
        title = f"<b>{html.escape(type(self).__name__)}</b>"
        summary = ""
        if type(self).__str__ is not object.__str__:
            lines = printable(str(self)).splitlines()
            text = "\n".join([*lines[:LINES], *(["…"] if len(lines) > LINES else [])])
            summary = f'<pre style="margin:0.3em 0">{html.escape(text)}</pre>'
        pairs = [(html.escape(name), html.escape(value)) for name, value in self._fields().items()]
        rows = "".join(f"<tr><th {_LEFT}>{name}</th><td {_LEFT}>{value}</td></tr>" for name, value in pairs)
        drawing = _drawing(*(getattr(self, name) for name in self._drawn)) if self._drawn else ""
        return f"<div>{title}{summary}{drawing}<details><summary>fields</summary><table>{rows}</table></details></div>"


def _digits(value: object) -> str:
    """Return the value of a field as text. Numbers get six significant digits."""
    if isinstance(value, tuple) and value and all(isinstance(part, float) for part in value):
        return f"({', '.join(map(_digits, value))})"
    return f"{value:.6g}" if isinstance(value, float) else printable(quoted(value))


def _drawing(x: Any, y: Any) -> str:
    """Return a drawing of a curve as a small SVG image with a logarithmic y axis.

    The result is an empty string if there are fewer than two positive values.
    """
    step = max(1, math.ceil(len(x) / 200))
    pairs = [(float(a), float(b)) for a, b in zip(x[::step], y[::step], strict=True)]
    points = [(a, math.log10(b)) for a, b in pairs if math.isfinite(a) and 0 < b < math.inf]
    if len(points) < 2:
        return ""
    (left, right), (low, high) = ((min(side), max(side)) for side in zip(*points, strict=True))
    scaled = (
        (4 + (_WIDTH - 8) * (a - left) / (right - left), 4 + (_HEIGHT - 8) * (high - b) / ((high - low) or 1))
        for a, b in points
    )
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in scaled)
    label = f"from {10**high:.3g} to {10**low:.3g} on a logarithmic axis"
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{label}" style="display:block">'
        f'<title>{label}</title><polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="1.5"/></svg>'
    )
