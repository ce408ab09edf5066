"""Random CSV files as people have them, with the table that each stands for."""

from __future__ import annotations

import csv
import dataclasses
import io
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

SPELLINGS = ("", "NA", "N/A", "nan", "NaN", "null", "None", "-", "?", "#N/A", "n/a", ".")
WORDS = ("wet", "dry", "cold; windy", "a, b", 'say "ha"', "Straße", "été", "two\u2028lines", "two\x0bpages")
NAMES = ("load", "Außenluft", "wind speed", "température", "x_1", "p (kW)", "y")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "cp1252")


@dataclass(frozen=True)
class CsvFile:
    content: bytes
    names: list[str]
    """Columns of numbers, in their order."""
    values: np.ndarray
    """(rows, columns), NaN where a cell is missing."""
    features: dict[str, Any]
    """What the file is like."""


def random_file(seed: int) -> CsvFile:
    rng = np.random.default_rng(seed)
    pick = lambda *choices: choices[rng.integers(len(choices))]  # noqa: E731
    rows, count = int(rng.integers(8, 30)), int(rng.integers(1, 4))
    separator, quoting = pick(",", ";", "\t", "|"), pick(csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    decimal = pick(".", ",")
    extra = [kind for kind in ("date", "text") if rng.random() < 0.5]
    if not extra and count == 1:
        count = 2
    values = np.round(rng.normal(size=(rows, count)) * 10.0 ** rng.integers(0, 4, count), 3)
    values[0] = np.round(values[0], 1)  # 1,234 alone may be either: a decimal comma, or thousands
    absent = (rng.random((rows, count)) < pick(0.0, 0.2)) & (np.arange(rows)[:, None] > 0)
    absent[:, absent.sum(0) > rows // 3] = False
    absent[-1] = False  # a last line without any value would be left out
    grouping = pick("", "", " ", "\u00a0", "'", "’", "\u202f", ",."[decimal == ","])
    minus = pick("-", "-", "\N{MINUS SIGN}")
    unit = pick("", "", "", "%", " %", "€", " €", "$")
    header = bool(rng.random() < 0.8)
    names = [str(name) for name in rng.permutation(NAMES)[:count]]
    columns = [[_spelled(v, decimal, grouping, minus) + unit for v in column] for column in values.T.tolist()]
    spelling = pick(*SPELLINGS) if rng.random() < 0.7 else None
    for j, column in enumerate(columns):
        for i in np.flatnonzero(absent[:, j]):
            column[i] = pick(*SPELLINGS) if spelling is None else spelling
    places = list(range(count))
    for kind in extra:
        place = int(rng.integers(0, len(columns) + 1))
        columns.insert(place, _dates(rng, rows, pick) if kind == "date" else [pick(*WORDS) for _ in range(rows)])
        names.insert(place, {"date": "when", "text": "remark"}[kind])
        places = [p + (p >= place) for p in places]
    text, ends = io.StringIO(), pick("\n", "\r\n")
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=ends)
    trailing, blank, comment = rng.random() < 0.2, rng.random() < 0.3, rng.random() < 0.2 and len(columns) > 1
    if rng.random() < 0.1 and len(columns) > 1:
        text.write(f"sep={separator}{ends}")
    if comment:
        text.write(f"# Export of station 7{ends}# units as in the manual{ends}")
    if header and rng.random() < 0.2 and count > 1:
        names[places[1]] = names[places[0]]
    for i, line in enumerate([names, *zip(*columns, strict=True)] if header else zip(*columns, strict=True)):
        writer.writerow([*line, ""] if trailing else line)
        if blank and rng.random() < 0.2 and i:
            text.write(ends)
    content = text.getvalue()
    if quoting == csv.QUOTE_ALL and rng.random() < 0.3:  # spaces after the separators
        content = content.replace(f'"{separator}"', f'"{separator} "')
    encoding = pick(*ENCODINGS)
    if any(sign in text.getvalue() for sign in "’€\u202f\u2028\N{MINUS SIGN}"):
        encoding = pick(*ENCODINGS[:3])
    found = names if header else [f"column {i + 1}" for i in range(len(columns))]
    if header and count > 1 and names[places[1]] == names[places[0]]:
        found[max(places[:2])] = f"{names[places[0]]} (2)"
    features = {
        "separator": separator, "decimal": decimal, "quoting": quoting, "header": header, "encoding": encoding,
        "missing": bool(absent.any()), "trailing": trailing, "blank": blank, "extra": tuple(extra),
        "grouping": grouping, "unit": unit, "comment": comment,
    }  # fmt: skip
    values[absent] = np.nan
    file = content.encode(encoding)
    if encoding == "cp1252" and rng.random() < 0.5:  # a line that another program appended
        lines = content.splitlines(keepends=True)
        file = "".join(lines[:-1]).encode(encoding) + lines[-1].encode("utf-8")
    return CsvFile(file, [found[p] for p in places], values, features)


TITLES = (
    "Export of station 7",
    "Created 2024-01-31",
    "Report: load, hourly",
    "Source; ENTSO",
    "Unit kW",
    '"a, title"',
    "",
)


def with_preamble(seed: int) -> tuple[CsvFile, list[str]]:
    """Return a file in UTF-8 that begins with column names, and one to three lines of text to put above them."""
    rng = np.random.default_rng([seed, 1])
    while True:
        file = random_file(int(rng.integers(10**9)))
        fitting = file.features["encoding"] == "utf-8" and file.features["header"] and not file.features["comment"]
        if fitting and not file.content.startswith(b"sep=") and len(file.names) + len(file.features["extra"]) > 1:
            return file, [str(title) for title in rng.permutation([TITLES[0], *rng.choice(TITLES, rng.integers(0, 3))])]


NOTES = ("Total", "Source: ENTSO", "# end", "Created 2024-01-31", "valid until further notice")


def with_notes_below(seed: int) -> CsvFile:
    """Return a file whose first column holds dates or numbers, with one to three notes below or repeated names."""
    rng = np.random.default_rng([seed, 2])
    while True:
        file = random_file(int(rng.integers(10**9)))
        fitting = file.features["encoding"] == "utf-8" and file.features["header"] and not file.features["comment"]
        if not fitting or "text" in file.features["extra"] or file.content.startswith(b"sep="):
            continue
        if len(file.names) + len(file.features["extra"]) > 1:
            break
    lines = file.content.decode().splitlines()
    first, separator = csv.reader(lines[1:2], delimiter=str(file.features["separator"])), file.features["separator"]
    cells = next(first)
    whole = len(cells[0]) > 8 and "date" in file.features["extra"] and cells[0][:1].isdigit()
    if rng.random() < 0.3:
        lines.insert(len(lines) - 2, lines[0])
    else:
        for note in rng.choice(NOTES, rng.integers(1, 4)):
            padding = str(separator) * int(rng.choice([0, len(cells) - 1]))
            lines.append(
                f"Total{separator}" + str(separator).join(cells[1:]) if whole and note == "Total" else note + padding
            )
    return dataclasses.replace(file, content="\n".join(lines).encode() + b"\n")


def right(file: CsvFile, path: Path) -> bool:
    """Write the file and return whether the reader finds the numbers that it stands for."""
    from stablessm.tasks import csv_file

    path.write_bytes(file.content)
    return same(file, csv_file.read(path))


def same(file: CsvFile, table: Any) -> bool:
    """Return whether a table has the numbers of the file."""
    names = list(table.numeric())
    return names == file.names and np.array_equal(table.numbers(names, "columns"), file.values, equal_nan=True)


def _spelled(value: float, decimal: str, grouping: str, minus: str) -> str:
    whole, _, rest = repr(abs(value)).partition(".")
    return (minus if value < 0 else "") + f"{int(whole):,}".replace(",", grouping) + decimal + rest


def _dates(rng: np.random.Generator, rows: int, pick) -> list[str]:
    style = pick(
        "%Y-%m-%d",
        "%Y-%m-%dT%H:%M:%S",
        "%d.%m.%Y",
        "%m/%d/%Y",
        "%d/%m/%Y",
        "%Y/%m/%d",
        "%d-%m-%Y",
        "%d-%b-%Y",
        "%b %d, %Y",
        "%d.%m.%y",
        "%m/%d/%y",
    )
    style += pick("", " %H:%M", " %H:%M:%S", " %I:%M %p") if "T" not in style else ""
    start = datetime(2024, 1, 1) + timedelta(days=int(rng.integers(0, 300)))
    return [(start + timedelta(days=i)).strftime(style) for i in range(rows)]
