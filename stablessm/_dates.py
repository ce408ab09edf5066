"""Recognizes the dates in a column of text cells.

This module does not import torch.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

MISSING: Final = frozenset({
    *("", "na", "n/a", "nan", "null", "none", "-", "--", "?", "#n/a", "<na>", ".", "missing"),
    *("#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!"),
})  # fmt: skip
"""Spellings of a missing value, in lower case."""
_DAYS: Final = (
    *("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%Y-%m", "%m/%Y"),
    *("%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%y/%m/%d", "%d-%m-%y", "%m-%d-%y", "%y-%m-%d"),
)
_NAMED_DAYS: Final = tuple(
    day.replace("%b", month).replace(" ", mark)
    for day in ("%d %b %Y", "%d %b %y", "%b %d %Y", "%b %d, %Y", "%b %Y")
    for month in ("%b", "%B")
    for mark in (" ", "-")
)
_MONTHS: Final = frozenset(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"])
_TIMES: Final = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
_WEEKDAY: Final = re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*\.?,?\s+(?=\S*\d)")
_DIGITS: Final = re.compile(r"(19|20)\d{6}(\d\d){0,3}")
"""Year, month, day, and maybe hour, minute and second, without marks between them."""
_COUNT: Final = re.compile(r"\d{9,19}([.,]\d*)?")
_UNITS: Final = (1, 1000, 10**6, 10**9)
_AFTER_1973: Final = (1e8, 4.2e9)
"""Seconds since 1970 of the years 1973 to 2103."""
_YEAR_LAST: Final = re.compile(
    r"(?:[A-Z][a-z]{2} )?(?P<day>[A-Z][a-z]{2} +\d{1,2}) (?P<time>\d\d?:\d\d(?::\d\d)?(?: [A-Z]{1,5})?) (?P<year>\d{4})"
)
"""A date as the functions ctime and date of Unix write it."""
_QUARTER: Final = re.compile(
    r"(?P<year>(?:19|20)\d\d)[-/ ]?Q(?P<quarter>[1-4])|Q(?P<first>[1-4])[-/ ]?(?P<last>(?:19|20)\d\d)"
)
_HOURS: Final = {
    **dict.fromkeys(("UTC", "GMT", "Z", "WET"), 0), **dict.fromkeys(("CET", "MEZ", "BST", "WEST"), 1),
    **dict.fromkeys(("CEST", "MESZ", "EET"), 2), "EEST": 3, "EDT": -4, "EST": -5, "CDT": -5, "CST": -6, "MDT": -6,
    "MST": -7, "PDT": -7, "PST": -8,
}  # fmt: skip
"""Hours by which time zones in Europe and North America are ahead of UTC."""
_ZONE: Final = re.compile(
    r"(?P<local>.*\d(?:\s?[AP]M)?)(?P<zone>\s?(?:UTC|GMT)?[+-]\d{1,2}(?::?\d\d){0,2}|\s?[A-Z]{1,5}|\s[A-Z]\w+/\w+)"
    r"(?:\s?[(\[][^\d]*[)\]])?",
)
_OFFSET: Final = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2}):?(\d\d)?(?::?\d\d)?")
_MOST_ZONES: Final = 4
"""A column with more time zones has, for example, the ends of intervals in place of offsets."""
_LIKE_DATE: Final = re.compile(
    r"(?<![\d.])\d{1,4}([-./])\d{1,2}\1\d{1,4}(?![\d.])"
    r"|(?<!\d)(19|20)\d\d([-./\s][WQ]?|[WQ])\d{1,3}(?![\d.])|(?<![\d.])[WQ]?\d{1,3}[-/.\s](19|20)\d\d(?!\d)"
    r"|\d[-./\s]+[^\W\d]{3,}[-./,\s]+\d|[^\W\d]{3,}[-./\s]+(\d{1,2},?\s+)?(19|20)\d\d(?!\d)"
    r"|(19|20)\d\d.*\d:\d\d|\d:\d\d.*(19|20)\d\d"
)
"""A day, a week, a quarter or a month of a year, perhaps with a time."""


def dates(cells: Sequence[str]) -> list[datetime | None]:
    """Return the dates in the cells of a column, with None for a missing date.

    The list is empty if a cell is neither a date nor missing. The dates are in ISO 8601, or all in one of these forms:
    day.month.year, day and month and year in any order with slashes or hyphens, year-month, month/year, or with the
    English name of the month, such as 31-Jan-2024 and Jan 31, 2024, or quarters such as 2024-Q1. Years have two or four
    digits. A weekday may precede the date, and a time of day may follow. If several forms fit every cell, the form that
    gives the most even steps is used; among equally even forms, the form with the shortest time between the first and
    the last date. A time with an offset or a time zone is converted to UTC, so that daylight saving time does not make
    the steps uneven. The time zone may be unknown if it is the same in all cells.

    Numbers such as 20240131 and 202401311230 are dates if all cells are such numbers of the same length, three or more
    of them differ, and they only increase or only decrease.

    >>> dates(["2024-02-01T12:30:00+02:00", "", "2024-02-01"])
    [datetime.datetime(2024, 2, 1, 10, 30), None, datetime.datetime(2024, 2, 1, 0, 0)]
    >>> dates(["1/2/2024", "1/13/2024"])[0].month, dates(["1/2/2024", "13/2/2024"])[0].month, dates(["12.5"])
    (1, 2, [])
    >>> dates(["1/2/2024 23:00", "2/2/2024 00:00", "2/2/2024 01:00"])[0].month
    2
    >>> dates(["31-Jan-2024"]) == dates(["January 31, 2024"]) == dates(["31.01.24"]) == dates(["Wed 31 Jan 2024"])
    True
    >>> dates(["31.1.2024 12:00 CET"]) == dates(["1/31/2024 6:00 AM -05:00"]) == dates(["20240131T110000Z"])
    True
    """
    cells = [_usual(cell) for cell in cells]
    there = {cell for cell in cells if cell.lower() not in MISSING}
    if there and all(map(_DIGITS.fullmatch, there)):
        return _from_digits(cells, there)
    readers = [read for read in _readers(next(iter(there), "")) if all(map(_may_be_date, there))]
    found = {cell: _without_zone(cell) for cell in there} if readers else {}
    zones = {zone for _, zone in found.values()}
    if len(zones) > (_MOST_ZONES if zones <= {"", *filter(_is_known, zones)} else 1):
        return []
    ahead, fitting = {zone: _ahead(zone) for zone in zones}, []
    for read in readers:
        with contextlib.suppress(ValueError, OverflowError):
            times = {cell: read(local) - ahead[zone] for cell, (local, zone) in found.items()}
            fitting.append([times.get(cell) for cell in cells])
            if read is _iso:
                break
    return min(fitting, key=_oddness, default=[])


def since_1970(cells: Sequence[str]) -> list[datetime | None]:
    """Return the dates in a column of numbers that count the time since 1970, with None for a missing number.

    The numbers count seconds, milliseconds, microseconds or nanoseconds, and the dates are after 1973. The list is
    empty if a cell is neither such a number nor missing, or if fewer than three cells differ.

    >>> since_1970(["1700000000", "", "1700003600.5", "1700007200"])[2], since_1970(["1990", "1991", "1992"])
    (datetime.datetime(2023, 11, 14, 23, 13, 20, 500000), [])
    """
    there = {cell for cell in cells if cell.lower() not in MISSING}
    if len(there) < 3 or not all(map(_COUNT.fullmatch, there)):
        return []
    counts = {cell: float(cell.replace(",", ".")) for cell in there}
    first, last = min(counts.values()), max(counts.values())
    unit = next((unit for unit in _UNITS if _AFTER_1973[0] <= first / unit <= last / unit < _AFTER_1973[1]), None)
    if unit is None:
        return []
    found = {cell: datetime(1970, 1, 1) + timedelta(seconds=count / unit) for cell, count in counts.items()}
    return [found.get(cell) for cell in cells]


def like_date(cells: Sequence[str]) -> str:
    """Return the first cell of a column that looks like a date; an empty text if the column does not seem to contain
    dates.

    A column seems to contain dates if more than half of its cells look like dates (missing cells do not count), and if
    more than √n of these n cells are different from each other, since otherwise the cells are categories.

    >>> like_date(["31 janvier 2024", "1 février 2024"]), like_date(["12 men", "14 men"])
    ('31 janvier 2024', '')
    """
    there = [cell for cell in cells if cell.lower() not in MISSING]
    alike = [cell for cell in there if _LIKE_DATE.search(cell) or (_DIGITS.fullmatch(cell) and _digits([cell]))]
    return alike[0] if 2 * len(alike) > len(there) and len(set(alike)) ** 2 > len(alike) > 1 else ""


def _usual(cell: str) -> str:
    """Return a date in a more usual form: the year before the time of day, and the first month instead of a quarter.

    >>> _usual("Wed Jan 31 12:00:00 CET 2024"), _usual("2024-Q2"), _usual("Q4/2024"), _usual("5.1")
    ('Jan 31 2024 12:00:00 CET', '2024-04', '2024-10', '5.1')
    """
    if found := _YEAR_LAST.fullmatch(cell):
        return f"{found['day']} {found['year']} {found['time']}"
    if found := _QUARTER.fullmatch(cell):
        year, quarter = found["year"] or found["last"], int(found["quarter"] or found["first"])
        return f"{year}-{3 * quarter - 2:02d}"
    return cell


def _from_digits(cells: Sequence[str], there: set[str]) -> list[datetime | None]:
    """Return the dates in a column of numbers without marks between year, month and day, or an empty list.

    ``there`` are the different cells of the column that are not missing.
    """
    found = _digits(there) if len({len(cell) for cell in there}) == 1 and len(there) > 2 else {}
    order = [cell for cell in cells if cell in found]
    return [found.get(cell) for cell in cells] if found and order in (sorted(order), sorted(order)[::-1]) else []


def _digits(cells: Collection[str]) -> dict[str, datetime]:
    with contextlib.suppress(ValueError):
        return {cell: datetime.strptime(cell, "%Y%m%d%H%M%S"[: len(cell) - 2]) for cell in cells}
    return {}


def _readers(cell: str) -> list[Callable[[str], datetime]]:
    """Return the functions, one for each form of dates, that can read a cell."""
    local, _ = _without_zone(cell)
    forms = _NAMED_DAYS if _month_in(local) else _DAYS
    readers: list[Callable[[str], datetime]] = [_iso, *(functools.partial(_formatted, day) for day in forms)]
    found = []
    for read in readers:
        with contextlib.suppress(ValueError):
            read(local)
            found.append(read)
    return found if _may_be_date(cell) else []


def _without_zone(cell: str) -> tuple[str, str]:
    """Return a cell without the weekday and the time zone, and the time zone ("" if there is none).

    >>> _without_zone("Wed, 31 Jan 2024 12:00 CET"), _without_zone("2024-01"), _without_zone("1:30 PM")
    (('31 Jan 2024 12:00', 'CET'), ('2024-01', ''), ('1:30 PM', ''))
    """
    cell = _WEEKDAY.sub("", cell, count=1)
    found = _ZONE.fullmatch(cell)
    if found is None or (zone := found["zone"].strip()) in ("AM", "PM"):
        return cell, ""
    timed = re.search(r"\d:\d\d|\d[T ]\d\d", found["local"])
    separate = found["zone"][0] in " +" and _is_known(zone)
    return (found["local"], zone) if timed or separate or zone in _HOURS else (cell, "")


def _is_known(zone: str) -> bool:
    return zone in _HOURS or bool(_OFFSET.fullmatch(zone))


def _ahead(zone: str) -> timedelta:
    """Return the time by which a time zone is ahead of UTC; zero for an unknown time zone."""
    if offset := _OFFSET.fullmatch(zone):
        sign, hours, minutes = offset.groups("0")
        return timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if sign == "-" else 1)
    return timedelta(hours=_HOURS.get(zone, 0))


def _may_be_date(cell: str) -> bool:
    """Return True unless a quick look shows that a cell is not a date."""
    cell = _WEEKDAY.sub("", cell, count=1)
    if not cell[:1].isdigit():
        return cell[:3].lower() in _MONTHS and any(map(str.isdigit, cell))
    return any(mark in cell for mark in "-./T") or (" " in cell and (_month_in(cell) or bool(_DIGITS.match(cell))))


def _month_in(cell: str) -> bool:
    return any(word[:3].lower() in _MONTHS for word in re.findall(r"[A-Za-z]{3,}", cell))


def _oddness(found: list[datetime | None]) -> tuple[bool, float, float]:
    """Return a sort key for one way to read a column's dates; the key is lower the more regular the dates are.

    The tuple states whether a date is before the previous date, the ratio of the longest step to the mean step, and the
    time between the first and the last date.
    """
    first = next(filter(None, found))
    times = [(date - first).total_seconds() for date in found if date is not None]
    span = times[-1]
    ratios = [(b - a) * (len(times) - 1) / span for a, b in itertools.pairwise(times)] if span else [1.0]
    return min(ratios) < 0, round(max(ratios), 1), abs(span)


def _iso(cell: str) -> datetime:
    found = datetime.fromisoformat(cell)
    if found.tzinfo is not None:
        raise ValueError(cell)
    return found


def _formatted(day: str, cell: str) -> datetime:
    for time in _TIMES:
        with contextlib.suppress(ValueError):
            return datetime.strptime(cell, day + time)
    raise ValueError(cell)
