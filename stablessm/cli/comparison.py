"""Compares the memory functions of several models, in a table, a picture and an interactive page."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from stablessm.cli import tables

SHOWN = ("decay", "half-life", "effective length", "last time above 1%", "stability radius")
"""Facts that the table has a column for."""


def show(facts: dict[str, dict[str, Any]]) -> None:
    """Print a table of the memory measurements, with one row per model. ``facts`` maps the name of each model to the
    measured values by name. Folders that all names start with are left out.
    """
    parts = [Path(name).parts for name in facts]
    folders = zip(*(part[:-1] for part in parts), strict=False)
    common = len(list(itertools.takewhile(lambda each: len(set(each)) == 1, folders)))
    names = [str(Path(*part[common:])) for part in parts]
    rows = [(name, *(each.get(fact, "") for fact in SHOWN)) for name, each in zip(names, facts.values(), strict=True)]
    tables.show(("model", *SHOWN), rows, title=f"memory of {len(rows)} models")


def save(curves: dict[str, Any], folder: Path) -> list[str]:
    """Write the memory function of each model, a picture of all memory functions in two formats and an interactive page
    to a folder; return the file names.
    """
    from stablessm.cli import pictures
    from stablessm.cli.options import slug
    from stablessm.instruments._axes import axes_or_new

    names = [f"{number:03d}-{slug(name, 'model')}.npz" for number, name in enumerate(curves)]
    ax = axes_or_new(None, 8)
    figure: Any = None
    for file, (name, curve) in zip(names, curves.items(), strict=True):
        curve.save(folder / file)
        curve.plot(ax, fit=False, label=name)
        drawn = curve.plotly(fit=False, label=name)
        # without another line for the rounding level
        figure = drawn if figure is None else figure.add_traces(drawn.data[:1])
    pictures.save(folder, ax.figure, figure)
    return ["record.json", *pictures.FILES, *names]
