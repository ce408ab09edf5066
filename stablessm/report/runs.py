"""Finds run folders and sorts the runs for the report."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from stablessm._errors import ArgumentError
from stablessm._similar import did_you_mean
from stablessm.report.folder import Record, read_run

FOLDERS = ("results", "runs")
"""The folders searched by default."""


@final
@dataclass(frozen=True)
class Problem:
    """A file or folder that could not be read, with the reason."""

    where: str
    reason: str


@final
@dataclass(frozen=True)
class Collection:
    """All runs that were found, grouped by experiment id, and the files that could not be read."""

    runs: tuple[Record, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def front(self) -> tuple[Record, ...]:
        """Return the best run of each id. Runs are compared by status (complete first), then by size (paper first),
        then by date (newest first).
        """
        best: dict[str, Record] = {}
        for run in self.runs:
            best.setdefault(run.id, run)
        return tuple(best.values())


def collect(paths: Sequence[str | os.PathLike[str]] | None = None) -> Collection:
    """Return the runs in these folders and below them (default: ``results`` and ``runs``, if they exist).

    >>> collect(["/nowhere"]).problems
    (Problem(where='/nowhere', reason='no such folder'),)
    """
    runs: dict[Path, Record] = {}
    problems: list[Problem] = []
    roots = [Path(name) for name in FOLDERS if Path(name).is_dir()] if not paths else [Path(path) for path in paths]
    for root in roots:
        folders = list(_folders(root))
        if not folders and paths:
            missing = f"no such folder{did_you_mean(root)}"
            problems.append(Problem(str(root), "no record.json in it" if root.is_dir() else missing))
        for folder in folders:
            if folder.resolve() in runs:
                continue
            try:
                run = read_run(folder)
            except (OSError, ValueError, RecursionError) as error:
                named = type(error) is ValueError or isinstance(error, ArgumentError)
                what = str(error) if named else f"{type(error).__name__}: {error}"
                problems.append(Problem(str(folder / "record.json"), what))
                continue
            if run is not None:
                runs[folder.resolve()] = run
                problems += [Problem(str(folder), fault) for fault in run.faults]
    return Collection(tuple(_ordered(list(runs.values()))), tuple(dict.fromkeys(problems)))


def _folders(root: Path) -> Iterator[Path]:
    if root.name == "record.json" and root.is_file():
        yield root.parent
    for path in sorted(root.rglob("record.json")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield path.parent


def _ordered(runs: list[Record]) -> list[Record]:
    """Return the runs sorted by paper and id; runs that belong to no paper come last.

    Runs with the same id are sorted by status (complete first), then by size (paper first), then by date (newest
    first). The front page shows only the first run of each id.
    """
    runs.sort(key=lambda run: str(run.folder))
    runs.sort(key=lambda run: (run.status == "complete", run.size == "paper", run.date), reverse=True)
    sources: dict[str, str] = {}
    for run in runs:
        sources.setdefault(run.id, run.source)
    beyond = {id: not source or source.startswith("beyond") for id, source in sources.items()}
    return sorted(runs, key=lambda run: (beyond[run.id], _natural(sources[run.id]), _natural(run.id)))


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key for ids. Numbers inside an id are compared by value, so that ``fig10`` comes after ``fig9``."""
    return [(int(part or 0), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]
