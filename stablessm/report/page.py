"""Writes the report from run folders: one HTML file, which needs no network."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path

from stablessm import record
from stablessm._errors import ArgumentError
from stablessm.report.folder import Record
from stablessm.report.front import front, navigation
from stablessm.report.markup import Html, element, join
from stablessm.report.runs import Collection, collect
from stablessm.report.section import section


def write(out: str | os.PathLike[str], runs: Sequence[str | os.PathLike[str]] | None = None) -> Collection:
    """Write the report on these run folders (or folders above them) to ``out``; return the runs that were found.

    The page contains claims, settings and plotted numbers. The arrays stay in the run folders, and the page links to
    them.

    Args:
        out: The file to write; its name ends in ``.html``.
        runs: Folders with at least one run (default: ``results`` and ``runs``).

    >>> write("report.html", ["/nowhere"])
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: runs: expected folders with a run, got /nowhere: no such folder
    """
    if not str(out).endswith((".html", ".htm")):
        raise ArgumentError("out", "a file name that ends in .html", str(out))
    collection = collect(runs)
    if runs and not collection.runs:
        faults = "; ".join(f"{problem.where}: {problem.reason}" for problem in collection.problems)
        raise ArgumentError("runs", "folders with a run", faults or ", ".join(map(str, runs)))
    with record.atomic(out) as path:
        path.write_text(render(collection, Path(out).parent), encoding="utf-8", errors="replace")
    return collection


def render(collection: Collection, base: Path = Path()) -> str:
    """Return the report as HTML text, with links that are relative to the folder ``base``.

    >>> render(Collection()).startswith("<!doctype html>")
    True
    """
    anchors = _anchors(collection)
    main = [
        front(collection, anchors),
        [section(run, anchors[run], base) for run in collection.runs],
        element("footer", f"stablessm {metadata.version('stablessm')}. This file needs no network."),
    ]
    drawn = any(run.figures for run in collection.runs)
    parts = {
        "css": _asset("page.css"),
        "theme.js": _asset("theme.js"),
        "links": _links(collection),
        "navigation": navigation(collection, anchors),
        "main": join(main),
        "plots.js": _asset("plots.js") if drawn else "",
        "page.js": _asset("page.js"),
    }
    # one pass, so that braces in the text of a run are not replaced
    return re.sub(r"\{\{([a-z.]+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def _anchors(collection: Collection) -> dict[Record, str]:
    """Return a unique HTML id for the section of each run."""
    anchors: dict[Record, str] = {}
    for run in collection.runs:
        name = "run-" + re.sub(r"[^a-z0-9]+", "-", f"{run.id} {run.size}".lower()).strip("-")
        number = sum(other == name or other.startswith(f"{name}~") for other in anchors.values())
        anchors[run] = f"{name}~{number + 1}" if number else name
    return anchors


def _links(collection: Collection) -> Html:
    """Return links to the parts of the page: claims, figures, problems. Parts that this report does not contain are
    left out.
    """
    parts = {
        "claims": any(run.claims for run in collection.front),
        "figures": bool(collection.runs),
        "problems": bool(collection.problems),
    }
    return join([element("a", name, href=f"#{name}") for name, there in parts.items() if there])


def _asset(name: str) -> str:
    return (resources.files("stablessm.report") / "assets" / name).read_text(encoding="utf-8")
