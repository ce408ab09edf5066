"""A bar chart as SVG text: no library, so that the same numbers give the same file everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import final

_COLORS = ("#0b6e4f", "#c77d0a", "#3a6ea5", "#a23b72", "#7a7a7a", "#8c564b", "#5e9bb8", "#b8860b")
_BAR, _GAP, _HEAD, _PANEL, _LEFT, _TOP, _COLUMNS = 11, 8, 15, 400, 20, 64, 2


@final
@dataclass(frozen=True)
class Panel:
    """Groups of bars by label. A group has numbers by name, which determines the color; None leaves a gap."""

    title: str
    groups: Mapping[str, Mapping[str, float | None]]


def bars(title: str, panels: Sequence[Panel]) -> str:
    """Return horizontal bars on a logarithmic axis that starts below 1, with a line at 1.

    >>> text = bars("× floor", [Panel("float32", {"8x1024x256": {"ours": 1.2, "a peer": 12.0, "wrong": None}})])
    >>> text.count("<rect"), ">1.2<" in text, ">12<" in text
    (6, True, True)
    """
    values = [v for p in panels for group in p.groups.values() for v in group.values() if v is not None]
    low, high = min([0.5, *values]), 1.6 * max([10.0, *values])
    names = list(dict.fromkeys(name for p in panels for group in p.groups.values() for name in group))
    colors = {name: _COLORS[i % len(_COLORS)] for i, name in enumerate(names)}
    heights = [max(map(_height, panels[row : row + _COLUMNS])) for row in range(0, len(panels), _COLUMNS)]
    width, height = _LEFT + _COLUMNS * (_PANEL + _LEFT), _TOP + sum(heights)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        f' font-size="10" role="img"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="13" font-weight="bold">{escape(title)}</text>',
    ]
    x = float(_LEFT)
    for name in names:
        parts.append(f'<rect x="{x:.0f}" y="34" width="10" height="10" fill="{colors[name]}"/>')
        parts.append(f'<text x="{x + 14:.0f}" y="43">{escape(name)}</text>')
        x += 30 + 5.4 * len(name)
    for i, panel in enumerate(panels):
        left, top = _LEFT + i % _COLUMNS * (_PANEL + _LEFT), _TOP + sum(heights[: i // _COLUMNS])
        parts += _panel(panel, left, top, low, high, colors)
    return "\n".join([*parts, "</svg>\n"])


def _height(panel: Panel) -> int:
    return 2 * _HEAD + sum(_HEAD + _BAR * len(group) + _GAP for group in panel.groups.values()) + _GAP


def _panel(panel: Panel, left: float, top: float, low: float, high: float, colors: Mapping[str, str]) -> Sequence[str]:
    def at(value: float) -> float:
        return left + _PANEL * math.log(value / low) / math.log(high / low)

    bottom = top + _height(panel) - _GAP
    parts = [f'<text x="{left}" y="{top + 11}" font-weight="bold">{escape(panel.title)}</text>']
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        line, color = f"{at(10**power):.1f}", "#333" if power == 0 else "#ddd"
        parts.append(f'<path d="M{line} {top + 18}V{bottom - 12}" stroke="{color}"/>')
        parts.append(f'<text x="{line}" y="{bottom - 2}" text-anchor="middle" fill="#555">{10**power:g}</text>')
    y = top + _HEAD
    for label, group in panel.groups.items():
        y += _HEAD
        parts.append(f'<text x="{left}" y="{y - 3}" fill="#333">{escape(label)}</text>')
        for name, value in group.items():
            if value is None:
                parts.append(f'<text x="{left + 3}" y="{y + 9}" fill="{colors[name]}">no time</text>')
            else:
                end = at(value)
                parts.append(
                    f'<rect x="{left}" y="{y + 1}" width="{end - left:.1f}" height="{_BAR - 2}"'
                    f' fill="{colors[name]}"/>'
                    f'<text x="{end + 3:.1f}" y="{y + 9}">{_number(value)}</text>'
                )
            y += _BAR
        y += _GAP
    return parts


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"
