"""``stablessm list``: lists the experiments, one line each."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from stablessm._errors import ArgumentError, printable
from stablessm.cli.options import RUNS
from stablessm.cli.output import note

LEGEND = "Claims: ✓ reproduced, ◐ partly, ? inconclusive, ✗ not reproduced."
_PLAIN = str.maketrans({"✓": "+", "◐": "~", "✗": "-", "…": ".", "·": "-", "λ": "l", "–": "-"})
"""Replacements for terminals whose encoding lacks a sign."""


def list_experiments(out: Path = RUNS) -> list[dict[str, Any]]:
    """List the experiments, grouped by paper.

    Each line shows the id, the title, the duration of a run and the verdicts on the paper's claims. The duration is for
    the size that gives verdicts: paper or, if the experiment does not have this size, reduced. The verdicts come from
    your own runs in --out. For experiments that you have not run, the verdicts come from the records that belong to
    this version of stablessm.

    Examples:

      stablessm list
      stablessm list --out results
      stablessm list --json
    """
    from stablessm.experiments import listing

    rows = [_row(id, out) for id in listing.ids()]
    width = max(80, min(shutil.get_terminal_size().columns, 100)) if sys.stdout.isatty() else 80
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        group = row["id"].partition("-")[0]
        groups.setdefault(group if row["id"] in listing.IDS else "", []).append(row)
    for number, (group, members) in enumerate(groups.items()):
        _echo(("\n" if number else "") + listing.PAPERS[group])
        widths = max(len(row["id"]) for row in members), max(len(_signs(row)) for row in members)
        for row in members:
            _echo(_line(row, *widths, width))
    note("")
    for line in _legend(any(row["own"] for row in rows), out):
        note(line if _can_print(line) else line.translate(_PLAIN))
    return rows


def _row(id: str, out: Path) -> dict[str, Any]:
    from stablessm.experiments import listing

    summary = listing.summaries().get(id)
    if summary is None:
        summary = _of_a_package(id)
    own = _own_verdicts(out / id / listing.judged_size(summary.minutes))
    return {"id": id, **asdict(summary), "own": own is not None, **({} if own is None else {"verdicts": own})}


def _of_a_package(id: str) -> Any:
    """Return the summary of the experiment with the id ``id``, which another installed package defines. If the
    experiment cannot be imported, the error is the title of the summary.
    """
    from stablessm.experiments import catalog, listing

    try:
        found = catalog.get(id)
    except Exception as error:
        return listing.Summary(f"cannot be imported: {error}", "", {}, {})
    return listing.Summary(found.title, found.question, {str(size): time for size, time in found.minutes.items()}, {})


def _own_verdicts(folder: Path) -> dict[str, int] | None:
    """Return how many claims have each verdict in the user's run of an experiment; None if there is no run."""
    path = folder / "record.json"
    if not path.exists():
        return None
    from stablessm import record

    try:
        with record.reading(path, "the record of an experiment"):
            found = record.read_json(record.inside(path, folder))
            return dict(Counter(str(claim["verdict"]) for claim in found["claims"]))
    except (OSError, ArgumentError):
        return {"unreadable": 1}


def _line(row: Mapping[str, Any], id_width: int, sign_width: int, width: int) -> str:
    from stablessm.experiments import listing

    minutes = row["minutes"]
    time = duration(minutes[listing.judged_size(minutes)]) if minutes else ""
    end = f" {time:>7}  {_signs(row):<{sign_width}}"
    start = f"  {row['id']:<{id_width}}  "
    room = width - len(start) - len(end)
    title = row["title"] if len(row["title"]) <= room else f"{row['title'][: room - 1]}…"
    return f"{start}{title:<{room}}{end}".rstrip()


def _signs(row: Mapping[str, Any]) -> str:
    """Return a text with the number of claims for each verdict of an experiment (``row``). A star marks the numbers of
    a run by the user, in contrast to the committed record.
    """
    from stablessm.report.claim import VERDICTS

    verdicts, mine = row["verdicts"], "*" if row["own"] else ""
    if "unreadable" in verdicts:
        return "unreadable" + mine
    counts: Counter[str] = Counter()
    for verdict, count in verdicts.items():
        counts[VERDICTS.get(verdict, "?")] += count
    return " ".join(f"{sign}{counts[sign]}" for sign in dict.fromkeys(VERDICTS.values()) if counts[sign]) + mine


def _legend(own: bool, out: Path) -> list[str]:
    source = "the records of this version"
    return [
        LEGEND,
        f"Verdicts come from {source}{f', or from your own run in {out} (*)' if own else ''}.",
        "Durations are for two cores, at the paper size or else at the reduced size.",
        "stablessm run ID tries an experiment in seconds; --size paper gives verdicts.",
    ]


def duration(minutes: float) -> str:
    """Return a duration as text with a suitable unit, such as minutes.

    >>> duration(0.1), duration(1.5), duration(240), duration(15000)
    ('6 s', '2 min', '4 h', '10 days')
    """
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 72 * 60 else f"{minutes / 60 / 24:.0f} days"


def _can_print(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _echo(text: str) -> None:
    typer.echo(printable(text if _can_print(text) else text.translate(_PLAIN)))
