"""Formats rows as text for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm


def say(text: str) -> None:
    """Print text above the progress bar and flush it, so that a killed run has printed all its results."""
    tqdm.write(text)
    sys.stdout.flush()


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table with the first column aligned to the left and all others to the right.

    >>> print(columns(["", "ms"], [["ours", "1.2"], ["a peer", "30"]]))
            ms
    ours   1.2
    a peer  30
    """
    first, *others = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        " ".join([cells[0].ljust(first), *(c.rjust(w) for c, w in zip(cells[1:], others, strict=True))]).rstrip()
        for cells in (head, *rows)
    ]
    return "\n".join(lines)


def facts(values: Mapping[str, Any]) -> str:
    """Format named values as text, one line each.

    >>> print(facts({"least_ahead": 2.34567, "same_bits": True}))
    least ahead: 2.346
    same bits: True
    """
    said = {name.replace("_", " "): value for name, value in values.items()}
    return "\n".join(f"{name}: {f'{value:.4g}' if isinstance(value, float) else value}" for name, value in said.items())


def milliseconds(ms: float, quartiles: Sequence[float] | None) -> str:
    """Format a median and its quartiles as text. The number of decimals depends on the size of the median.

    >>> milliseconds(0.11012, (0.1091, 0.1123)), milliseconds(920.4, (918.0, 930.2))
    ('0.110 (0.109–0.112)', '920 (918–930)')
    """
    digits = 3 if ms < 1 else 2 if ms < 10 else 1 if ms < 100 else 0
    spread = "" if quartiles is None else f" ({quartiles[0]:.{digits}f}–{quartiles[1]:.{digits}f})"
    return f"{ms:.{digits}f}{spread}"


def times(ratio: float | None) -> str:
    """Format a ratio such as 2.31; return an empty text for None."""
    return "" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
