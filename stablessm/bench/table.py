"""Formats rows as text for a terminal, and shows a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
_CLEAR = "\r\x1b[K"


def progress(cases: Sequence[T]) -> Iterator[T]:
    """Yield the cases one by one; in a terminal, also show a progress bar.

    While the bar is shown, print with :func:`say`.
    """
    for number, case in enumerate(cases):
        if sys.stderr.isatty():
            done = 30 * number // len(cases)
            bar = f"[{'█' * done}{'·' * (30 - done)}] case {number + 1} of {len(cases)}"
            print(f"{_CLEAR}{bar}", end="", file=sys.stderr, flush=True)
        yield case
    if sys.stderr.isatty():
        print(_CLEAR, end="", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print text above the progress bar and flush it, so that a killed run has printed all its results."""
    if sys.stderr.isatty():
        print(_CLEAR, end="", file=sys.stderr, flush=True)
    print(text, flush=True)


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
