"""A chart of shapes as SVG text: steps and sequences × channels on two axes, a number as color."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import final

_SIDE, _LEFT, _TOP, _GAP = 330, 60, 76, 80
_STEPS = {1.3: "#0b6e4f", 1.6: "#5a9e3d", 2.0: "#c9b52a", 2.5: "#c77d0a", 4.0: "#b5482a", math.inf: "#7d1d3f"}
"""Color of a number, by the upper limit of the color's range."""


@final
@dataclass(frozen=True)
class Dot:
    """One shape: the number that the color shows, and whether a peer is faster."""

    shape: tuple[int, int, int]
    value: float
    behind: bool


def dots(title: str, panels: Mapping[str, Sequence[Dot]]) -> str:
    """Return one panel per title, with logarithmic axes. A ring marks a shape where a peer is faster.

    >>> text = dots("× floor", {"forward": [Dot((8, 1024, 64), 1.2, False), Dot((1, 64, 16), 3.0, True)]})
    >>> text.count("<circle"), text.count('stroke="black"')
    (2, 1)
    """
    width, height = _LEFT + len(panels) * (_SIDE + _GAP), _TOP + _SIDE + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        f' font-size="10" role="img"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="20" y="22" font-size="13" font-weight="bold">{escape(title)}</text>',
    ]
    low = 0.0
    for i, (high, color) in enumerate(_STEPS.items()):
        name = f"{low:g} to {high:g}" if high < math.inf else f"above {low:g}"
        parts.append(f'<rect x="{20 + 90 * i}" y="34" width="10" height="10" fill="{color}"/>')
        parts.append(f'<text x="{34 + 90 * i}" y="43">{name}</text>')
        low = high
    for i, (name, found) in enumerate(panels.items()):
        parts += _panel(name, found, _LEFT + i * (_SIDE + _GAP))
    return "\n".join([*parts, "</svg>\n"])


def _panel(name: str, found: Sequence[Dot], left: int) -> list[str]:
    bottom = _TOP + _SIDE
    parts = [
        f'<text x="{left}" y="{_TOP - 10}" font-weight="bold">{escape(name)}</text>',
        f'<rect x="{left}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#999"/>',
        f'<text x="{left + _SIDE / 2}" y="{bottom + 32}" text-anchor="middle">steps</text>',
        f'<text transform="translate({left - 44} {_TOP + _SIDE / 2}) rotate(-90)" text-anchor="middle">'
        "sequences × channels</text>",
    ]

    def across(steps: int) -> float:
        return left + _SIDE * (math.log2(steps) - 5.5) / (17.5 - 5.5)

    def up(channels: int) -> float:
        return bottom - _SIDE * (math.log2(channels) - 3.5) / (20.5 - 3.5)

    for power in range(6, 18, 2):
        x = f"{across(2**power):.1f}"
        parts.append(f'<path d="M{x} {_TOP}V{bottom}" stroke="#eee"/>')
        parts.append(f'<text x="{x}" y="{bottom + 14}" text-anchor="middle" fill="#555">{2**power:,}</text>')
    for power in range(4, 21, 4):
        y = f"{up(2**power):.1f}"
        parts.append(f'<path d="M{left} {y}H{left + _SIDE}" stroke="#eee"/>')
        parts.append(f'<text x="{left - 4}" y="{y}" text-anchor="end" fill="#555">{2**power:,}</text>')
    for dot in found:
        batch, steps, channels = dot.shape
        color = next(color for high, color in _STEPS.items() if dot.value <= high)
        ring = ' stroke="black" stroke-width="2"' if dot.behind else ""
        label = f"{batch}×{steps}×{channels}: {dot.value:.2f}"
        parts.append(
            f'<circle cx="{across(steps):.1f}" cy="{up(batch * channels):.1f}" r="6" fill="{color}"{ring}>'
            f"<title>{label}</title></circle>"
        )
    return parts
