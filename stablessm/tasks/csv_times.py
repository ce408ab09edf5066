"""Finds the time of each row in a table of text cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Final, final

import numpy as np

from stablessm import _dates

_UNEVEN: Final = 1.2
"""Dates are irregular if the longest step is more than this many times the shortest; monthly dates stay below."""
_MOST_REPEATED: Final = 0.1
"""A note says that dates repeat if more than this fraction of the rows has the date of the row before."""
_NAMES_TIME: Final = re.compile(r"time|dat[eu]|zeit|epoch|unix|utc|stamp|fecha|heure|^column \d+$|^(t|ts|ds)$", re.I)
"""Names of columns in which numbers such as 1700000000 count the time since 1970."""
_CLOCK: Final = re.compile(r"\d{1,2}(:\d\d){1,2}(\.\d+)?(\s?[AaPp][Mm])?|\d\d\.\d\d\.\d\d")


@final
@dataclass(frozen=True, eq=False)
class Times:
    """The times of the rows of a table, according to its first column of dates that only increase or only decrease, or
    otherwise to its first column of dates.

    If this column has dates without a time of day, some rows have the same date, and another column has times of day
    such as 18:30, then the time of a row is the date together with the time of day.

    >>> rows = (("31.1.2024", "22:00", "5"), ("31.1.2024", "23:00", "5"), ("1.2.2024", "0:00", "6"))
    >>> times = Times(("day", "at", "load"), rows)
    >>> times.name, times.steps.tolist(), times.clock
    ('day', [3600.0, 3600.0], 'at')
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    _found: dict[str, list[datetime | None]] = field(init=False, default_factory=dict)
    """A cache for :meth:`at`: the dates of each column that was read so far, by the name of the column."""

    def at(self, name: str) -> list[datetime | None]:
        """Return the dates in a column, with None for missing cells; an empty list if the column has cells that are not
        dates.
        """
        if name not in self._found:
            cells = self._cells(name)
            counted = _NAMES_TIME.search(name)
            self._found[name] = _dates.dates(cells) or (_dates.since_1970(cells) if counted else [])
        return self._found[name]

    @cached_property
    def name(self) -> str:
        """The name of the column of dates that gives the times of the rows; an empty text without dates."""
        found = [name for name in self.header if self.at(name)]
        ordered = (name for name in found if len({*np.sign(_steps(self.at(name))).tolist()} - {0}) == 1)
        return next(ordered, found[0] if found else "")

    @cached_property
    def clock(self) -> str:
        """The name of the column of times of day that belongs to the column of dates; an empty text without one."""
        return self._with_clock[0]

    @cached_property
    def steps(self) -> np.ndarray:
        """The seconds between consecutive rows with dates."""
        return self._with_clock[1]

    @cached_property
    def _with_clock(self) -> tuple[str, np.ndarray]:
        alone = _steps(self.at(self.name)) if self.name else np.empty(0)
        if not (alone == 0).any() or (alone % 86400).any():
            return "", alone
        days = self._cells(self.name)
        for name in self.header:
            clocks = self._cells(name)
            if all(map(_CLOCK.fullmatch, clocks)) and len(set(clocks)) > 1:
                cells = [f"{day} {clock.replace('.', ':', 2)}" for day, clock in zip(days, clocks, strict=True)]
                steps = _steps(_dates.dates(cells))
                if len(steps) and ((steps >= 0).all() or (steps <= 0).all()):
                    return name, steps
        return "", alone

    @cached_property
    def increasing(self) -> np.ndarray | None:
        """The seconds between consecutive rows, (rows - 1,); None if there are no dates, if dates are missing, or if
        the dates do not increase. Some rows may have the same date, as in the hour that daylight saving time repeats.
        """
        whole = len(self.steps) == len(self.rows) - 1
        return self.steps if whole and (self.steps > 0).any() and (self.steps >= 0).all() else None

    @cached_property
    def irregular(self) -> bool:
        """Return True if the rows have dates that are unevenly spaced in time."""
        steps = self.increasing
        return steps is not None and steps.max() > _UNEVEN * steps.min()

    @cached_property
    def seconds(self) -> float | None:
        """The median time in seconds between consecutive rows with different dates; None if there are no dates, or if
        the dates do not increase.
        """
        steps = self.increasing
        return None if steps is None else float(np.median(steps[steps > 0]))

    def order(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return the row numbers in the order of time, and notes for the user: if the file has another order, if the
        order is unknown because dates were not understood, and if many rows have the same date.

        If the dates are neither in order nor all different, the rows keep their order, or are reversed if most dates
        decrease: the file may contain several series, or the hour that daylight saving time repeats.
        """
        places = np.arange(len(self.rows))
        if not self.name:
            like = ((name, _dates.like_date(self._cells(name))) for name in self.header)
            name, cell = next(((name, cell) for name, cell in like if cell), ("", ""))
            why = f"{name} looks like dates that were not understood, such as {cell!r}"
            remedy = "rows are used in the order of the file; write dates as in 2024-01-31 12:30"
            return places, ((f"{why}; {remedy}",) if name else ())
        back, ahead, same = (int((np.sign(self.steps) == sign).sum()) for sign in (-1, 1, 0))
        times, notes, used = self.steps.cumsum().round(3).tolist(), list[str](), "used in the order of the file"
        if ahead and back and len({0.0, *times}) == len(self.rows):
            places, used = np.argsort([0.0, *times]), "sorted by date"
        elif back > ahead:
            places, used = places[::-1], "used in reverse order"
        if back:
            why = f"the dates in {self.name} are not in order" if ahead else f"the newest row is first by {self.name}"
            notes.append(f"{why}; rows are {used}")
        if same > _MOST_REPEATED * len(self.steps):
            why = f"{same} of {len(self.rows)} rows have the same date in {self.name} as the row before"
            notes.append(f"{why}; if the file contains several series, write a file for each series")
        return places, tuple(notes)

    def remark(self, name: str, with_dt: bool) -> str:
        """Return the remark on a column that is not used as input; an empty text if the column has no dates.

        ``with_dt`` states whether the steps of the dates are an input of the model.
        """
        if name == self.clock:
            return f" (times of day of {self.name})"
        if found := self.at(name):
            uneven = " (dates; their steps are uneven)" if self.irregular else " (dates)"
            dates = " (dates; their steps are the column dt)" if with_dt else uneven
            return " (dates, some of them missing)" if None in found else dates
        first, *rest = self._cells(name)
        odd = next((cell for cell in rest if not _dates.dates([first, cell])), "") if _dates.dates([first]) else ""
        return f" (begins with {first}, but {odd!r} is not such a date)" if odd else ""

    def _cells(self, name: str) -> list[str]:
        place = self.header.index(name)
        return [row[place] for row in self.rows]


def _steps(dates: Sequence[datetime | None]) -> np.ndarray:
    known = [date for date in dates if date is not None]
    return np.array([(b - a).total_seconds() for a, b in pairwise(known)])
