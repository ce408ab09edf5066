"""Builds lines of a figure that share their x values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from stablessm.report.figure import Series, Style

Values: TypeAlias = Sequence[float] | np.ndarray


def lines(x: Values, table: Mapping[Any, Values], style: Style = "solid", name: str = "{}") -> list[Series]:
    """Return one line of a figure for each entry of a table. The format string ``name`` turns the key of an entry into
    the name of its line.

    >>> [line.name for line in lines([1, 2], {16: [0.1, 0.2], 32: [0.3, 0.4]}, name="N = {}")]
    ['N = 16', 'N = 32']
    """
    return [Series(name.format(key), x, y, style) for key, y in table.items()]


def paired(
    x: Values, table: Mapping[str, tuple[Values, Values]], note: str, styles: tuple[Style, Style] = ("solid", "dotted")
) -> list[Series]:
    """Return two lines of a figure for each entry of a table. Both lines have the same color; the name of the second
    line ends with ``note``.

    >>> [line.name for line in paired([1, 2], {"exp": ([0.1, 0.2], [0.3, 0.4])}, ", median")]
    ['exp', 'exp, median']
    """
    rows = table.items()
    return [*chain(*((Series(k, x, a, styles[0], k), Series(k + note, x, b, styles[1], k)) for k, (a, b) in rows))]
