"""Reading CSV and similar text files: encodings, separators, decimal marks, missing values, dates. No torch."""

from __future__ import annotations

import codecs
import csv
import math
import re
from datetime import UTC, datetime
from typing import Final

_MARKS: Final = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_SEPARATORS: Final = ";\t|,"
_SAMPLE: Final = 100
"""Number of lines that decide on the separator."""
_QUOTED: Final = re.compile(r'"(?:[^"]|"")*"')
_DECIMAL: Final = re.compile(r"[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?")
_THOUSANDS: Final = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
_DOTTED: Final = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
MISSING: Final = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "--", "?", "#n/a", ".", "missing"})
"""Spellings of a missing value, in lower case."""
_DATES: Final = ("%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%d.%m.%Y", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M", "%m/%d/%Y")


def decoded(content: bytes) -> str:
    """Return the text of a file: by its byte order mark, in UTF-8, or else in Windows-1252.

    >>> decoded("Straße".encode("cp1252")), decoded("é".encode("utf-16"))
    ('Straße', 'é')
    """
    marked = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    try:
        text = content.decode(marked or "utf-8")
    except UnicodeDecodeError:
        if marked is not None:
            raise
        text = content.decode("cp1252")
    if "\0" in text:
        raise ValueError("the file holds bytes that are no text")
    return text


def separator_of(text: str) -> str | None:
    """Return the separator: a semicolon, tab, bar or comma that occurs equally often in every line, or None.

    A line may end with an extra separator. A comma is a separator only if no other character is.

    >>> separator_of("a;b\\n1,5;2"), separator_of("a,b\\n1,2,\\n"), separator_of("load\\n1,5")
    (';', ',', None)
    >>> separator_of("a;b\\n1")  # the second line is broken
    ';'
    """
    lines = [line for line in _QUOTED.sub("cell", text).splitlines() if line.strip()][:_SAMPLE]
    if not lines:
        return None
    for separator in _SEPARATORS:
        first, *counts = (line.count(separator) for line in lines)
        if first and all(count in (first, first + 1) for count in counts):
            return separator
    found = max(_SEPARATORS, key=lines[0].count)
    return found if found in lines[0] else None


def split(text: str, separator: str | None) -> list[tuple[int, list[str]]]:
    """Return the cells of each line that is not blank, with its number, starting at 1. Raises csv.Error.

    Without a separator a line is one cell. Lines at the end whose cells are all empty are left out.
    """
    reader = csv.reader(text.splitlines(keepends=True), delimiter=separator or "\0", strict=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except csv.Error as error:
        raise csv.Error(f"line {reader.line_num}: {error}") from error
    while rows and not any(rows[-1][1]):
        rows.pop()
    return rows


def has_decimal_commas(cells: list[str], separator: str | None) -> bool:
    """Return whether numbers among the cells have decimal commas; otherwise a comma divides thousands.

    >>> has_decimal_commas(["1,5", "2"], ";"), has_decimal_commas(["1,500", "2"], ","), has_decimal_commas(["1"], ";")
    (True, False, False)
    >>> has_decimal_commas(["1,234", "x, y"], ";"), has_decimal_commas(["1,234.5", "1,234"], ";")
    (True, False)
    """
    found = [cell for cell in cells if "," in cell and (_DECIMAL.fullmatch(cell) or _THOUSANDS.fullmatch(cell))]
    decimal = [bool(_DECIMAL.fullmatch(cell)) for cell in found]
    certain = any(_DECIMAL.fullmatch(cell) and not _THOUSANDS.fullmatch(cell) for cell in found)
    return certain or (bool(found) and separator != "," and all(decimal))


def number(cell: str, decimal_commas: bool = False) -> float | None:
    """Return the number in a cell, NaN for a missing one, None for anything else; infinity counts as missing.

    >>> number("1.234,5", True), number("1,234.5"), number("n/a"), number("x")
    (1234.5, 1234.5, nan, None)
    """
    if cell.lower() in MISSING:
        return math.nan
    if decimal_commas and (_DECIMAL.fullmatch(cell) or _DOTTED.fullmatch(cell)):
        cell = cell.replace(".", "").replace(",", ".")
    elif not decimal_commas and _THOUSANDS.fullmatch(cell):
        cell = cell.replace(",", "")
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else math.nan


def date(cell: str) -> datetime | None:
    """Return the date in a cell: ISO 8601, day.month.year or month/day/year, with or without a time of day.

    A time with an offset is converted to UTC, so that daylight saving time does not make the steps uneven.

    >>> date("2024-02-01T12:30:00+02:00")
    datetime.datetime(2024, 2, 1, 10, 30)
    >>> date("2024-02-01T12:30:00"), date("31.1.2024"), date("12.5")
    (datetime.datetime(2024, 2, 1, 12, 30), datetime.datetime(2024, 1, 31, 0, 0), None)
    """
    if not cell[:1].isdigit() or not any(mark in cell for mark in "-./"):
        return None
    try:
        found = datetime.fromisoformat(cell)
        return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)
    except ValueError:
        pass
    for form in _DATES:
        try:
            return datetime.strptime(cell, form)
        except ValueError:
            continue
    return None
