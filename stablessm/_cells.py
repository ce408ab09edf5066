"""Reads CSV and similar text files: encodings, separators, decimal marks and missing values.

This module does not import torch.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import math
import re
from collections.abc import Sequence
from typing import Final

from stablessm._dates import MISSING, dates

_MARKS: Final = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_SEPARATORS: Final = ";\t|,"
_SAMPLE: Final = 100
"""Number of lines from which the separator is determined."""
_QUOTED: Final = re.compile(r'"(?:[^"]|"")*"')
_DECIMAL: Final = re.compile(r"[+-]?(\d*|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?")
_THOUSANDS: Final = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
_POINT: Final = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?")
_DOTTED: Final = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
_SPACES: Final = " \u00a0\u2009\u202f'\u2019"
"""Characters that may separate thousands, besides commas and dots."""
_GROUPED: Final = re.compile(rf"[+-]?[1-9]\d{{0,2}}([{_SPACES}]\d{{3}})+([.,]\d*)?")
_SPACED: Final = re.compile(r"[+-]?\d[\d.,]*( +[+-]?\d[\d.,]*)+")
_SIGN: Final = re.compile(r"^(?P<before>[(+\-\u2212]*)\s?[$€£¥₹₽₩₺]\s?|\s?[%$€£¥₹₽₩₺]\s?(?P<after>[)\-\u2212]*)$")
"""A currency sign before a number, or a currency or percent sign after a number."""
_DIGITS: Final = rf"[\d.,{_SPACES}]*\d[.,]?(?:[eE][+\-\u2212]?\d+)?"
_NUMBER: Final = re.compile(rf"\+?({_DIGITS})|[-\u2212]({_DIGITS})|({_DIGITS})[-\u2212]|\(\s?({_DIGITS})\s?\)")


def decoded(content: bytes) -> str:
    """Decode the bytes of a text file, whose encoding is given by its byte order mark. Without a mark, each line is
    decoded as UTF-8 or, if it is not valid UTF-8, as Windows-1252.

    >>> decoded("Straße".encode("cp1252")), decoded("é".encode("utf-16"))
    ('Straße', 'é')
    >>> decoded("é\\n".encode() + "ß".encode("cp1252"))
    'é\\nß'
    """
    if content.startswith(b"PK\x03\x04"):
        raise ValueError("the file is a ZIP archive or an Excel workbook; save the table as CSV")
    marked = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    if marked is not None:
        text = content.decode(marked)
    else:
        text = "".join(map(_decoded_line, content.splitlines(keepends=True)))
    if "\0" in text:
        raise ValueError("the file contains bytes that are not text")
    return text


def _decoded_line(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        try:
            return line.decode("cp1252")
        except UnicodeDecodeError as error:
            raise ValueError("the file contains bytes that are no text in UTF-8 or Windows-1252") from error


def _lines(text: str) -> list[str]:
    """Divide a text at its line ends, which are kept. Unlike ``str.splitlines``, do not divide it at rare characters
    such as U+2028.
    """
    return list(io.StringIO(text, newline=""))


def without_comments(text: str) -> str:
    """Replace the comment lines at the start of a text by blank lines. A comment line begins with "#" or, in files
    written by Excel, with "sep=".

    The last comment line is kept if it has as many cells as the line after it, because it then holds column names.

    >>> without_comments("# station 7\\nx,y\\n1,2"), without_comments("# x,y\\n1,2")
    ('\\nx,y\\n1,2', '# x,y\\n1,2')
    """
    lines = _lines(text)
    comments = len(list(itertools.takewhile(lambda line: line.startswith(("#", "sep=")), lines)))
    if not 0 < comments < len(lines):
        return text
    separator = separator_of("".join(lines[comments:]))
    last, after = lines[comments - 1], lines[comments]
    if separator and last.startswith("#") and last.count(separator) == after.count(separator):
        comments -= 1
    return "".join(["\n"] * comments + lines[comments:])


def separator_of(text: str) -> str | None:
    """Return the character that separates cells (one of ; tab | ,), or None if there is none.

    A separator occurs equally often in every line, except that a line may end with an extra separator. A comma is a
    separator only if no other character is. If lines above the table or broken lines prevent a decision, the separator
    of the table is returned, or else the most frequent of these characters in the first line.

    >>> separator_of("a;b\\n1,5;2"), separator_of("a,b\\n1,2,\\n"), separator_of("load\\n1,5")
    (';', ',', None)
    >>> separator_of("a;b\\n1")  # the second line is broken
    ';'
    """
    lines = [line for line in _lines(_QUOTED.sub("cell", text)) if line.strip()][:_SAMPLE]
    if not lines:
        return None
    for separator in _SEPARATORS:
        first, *counts = (line.count(separator) for line in lines)
        if first and all(count in (first, first + 1) for count in counts):
            return separator
    for separator in _SEPARATORS:
        if lines[-1].count(separator) and _has_preamble(text, separator):
            return separator
    found = max(_SEPARATORS, key=lines[0].count)
    return found if found in lines[0] else None


def _has_preamble(text: str, separator: str) -> bool:
    try:
        rows = [row for _, row in split(text, separator, _SAMPLE)]
    except csv.Error:
        return False
    above = preamble(rows)
    return above > 0 and all(len(row) in (len(rows[above]), len(rows[above]) + 1) for row in rows[above:])


def preamble(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of rows above the row of column names, such as rows with a title.

    These rows have another number of cells than the table, or are padded with empty cells. The row of column names has
    a word in every column, and numbers or dates follow within two rows.

    >>> preamble([["Export of station 7"], ["load", "price"], ["1", "2"]])
    1
    >>> preamble([["Export", ""], ["", ""], ["day", "load"], ["", "kW"], ["2024-01-31", "1"]])
    2
    >>> preamble([["load", "price"], ["kW", "EUR"], ["1", "2"]]), preamble([["a", "", "b"], ["1", "2", "3"]])
    (0, 0)
    """
    rows = rows[:_SAMPLE]
    lengths = [len(row) for row in rows]
    width = max(set(lengths), key=lambda length: (lengths.count(length), length), default=0)
    used = [place for place in range(width) if any(row[place] for row in rows if len(row) > place)]
    for above, row in enumerate(rows if len(used) > 1 else ()):
        cells = [row[place] if place < len(row) else "" for place in used]
        if all(map(_is_word, cells)) and not any(row[width:]):
            below = {cell for row in rows[above + 1 : above + 3] for cell in row if cell.lower() not in MISSING}
            return above if not all(map(_is_word, below)) else 0
        if not any(row[width:]) and (all(cells) or (any(cells) and not cells[0])):
            return 0  # a row of the table
    return 0


def below_preamble(rows: list[tuple[int, list[str]]]) -> tuple[list[tuple[int, list[str]]], list[str]]:
    """Return the rows from the row of column names on, and a list of notes that say which rows above were skipped.

    ``rows`` are the result of :func:`split`.
    """
    above = preamble([cells for _, cells in rows])
    if not above:
        return rows, []
    return rows[above:], [f"{skipped(1, rows[above - 1][0])} above the column names"]


def above_notes(rows: list[tuple[int, list[str]]]) -> tuple[list[tuple[int, list[str]]], list[str]]:
    """Remove rows that repeat the column names, and notes below the table. Return the other rows, and sentences that
    say what was removed.

    A row at the end is a note if its first cell that is not empty is a word, and one of these is true:

    - the column of this cell contains dates, or numbers that only increase or only decrease, such as years;
    - the column of this cell contains numbers, and all other cells of the row are empty.

    >>> table = [(1, ["day", "load"]), (2, ["2024-01-31", "1"]), (3, ["2024-02-01", "2"]), (4, ["Total", "3"])]
    >>> above_notes(table)[1]
    ['line 4 is skipped: it is below the table']
    """
    names, table, said = rows[0][1] if rows else [], rows, []
    upper = [cells for _, cells in rows[1 : 1 + len(rows) // 2]][:_SAMPLE]
    while len(table) > 1 + len(upper) and _is_note(table[-1][1], upper):
        table = table[:-1]
    if len(table) < len(rows):
        said = [f"{skipped(rows[len(table)][0], rows[-1][0])} below the table"]
    repeated = [line for line, cells in table[1:] if cells == names]
    if repeated and any(map(_is_word, names)):
        table = [table[0], *(row for row in table[1:] if row[1] != names)]
        said.append(f"lines that repeat the column names are skipped: {', '.join(map(str, repeated))}")
    return table, said


def skipped(first: int, last: int) -> str:
    """Return the beginning of a sentence about lines that are skipped.

    >>> skipped(3, 3), skipped(3, 5)
    ('line 3 is skipped: it is', 'lines 3 to 5 are skipped: they are')
    """
    return f"line {first} is skipped: it is" if first == last else f"lines {first} to {last} are skipped: they are"


def _is_note(cells: list[str], above: list[list[str]]) -> bool:
    place = next((place for place, cell in enumerate(cells) if cell), len(cells))
    if place == len(cells) or cells[place][0].isdigit() or not _is_word(cells[place]):
        return False
    column = [row[place] for row in above if place < len(row)]
    filled = [cell for cell in column if cell.lower() not in MISSING]
    if dates(column) or _is_monotone([number(cell) for cell in filled]):
        return True
    return bool(filled) and not any(cells[place + 1 :]) and not any(map(_is_word, filled))


def _is_monotone(numbers: Sequence[float | None]) -> bool:
    """Return True for at least three numbers that only increase or only decrease."""
    known = [one for one in numbers if one is not None and math.isfinite(one)]
    steps = {math.copysign(1, b - a) if b != a else 0 for a, b in itertools.pairwise(known)}
    return len(known) == len(numbers) > 2 and len(steps) == 1 and 0 not in steps


def _is_word(cell: str) -> bool:
    """Return True if a cell contains text that is not a number, a date or a missing value."""
    return number(cell) is None and number(cell, decimal_commas=True) is None and not dates([cell])


def split(text: str, separator: str | None, most: int | None = None) -> list[tuple[int, list[str]]]:
    """Split a text into lines and lines into cells; return the line number and cells of every line that is not blank.

    Line numbers start at 1. At most ``most`` lines are returned. A text that is not valid CSV raises csv.Error. Without
    a separator, a line is one cell. Lines at the end whose cells are all empty are left out.
    """
    reader = csv.reader(_lines(text), delimiter=separator or "\0", strict=True, skipinitialspace=True)
    try:
        filled = itertools.islice(filter(None, reader), most)
        rows = [(reader.line_num, [_tidy(cell, separator) for cell in row]) for row in filled]
    except csv.Error as error:
        raise csv.Error(f"line {reader.line_num}: {error}") from error
    while rows and not any(rows[-1][1]):
        rows.pop()
    return rows


def _tidy(cell: str, separator: str | None) -> str:
    """Return a cell without surrounding spaces. A number is returned without signs of units such as % and $, without
    spaces between thousands, and, if it is negative, with a minus sign in front.

    In a file without a separator of cells, ordinary spaces between digits are kept, because they may separate cells.

    >>> _tidy(" 1 234,5 ", ";"), _tidy("12.5 %", ","), _tidy("$1,200", ";"), _tidy("1 234", None), _tidy("3 men", ";")
    ('1234,5', '12.5', '1,200', '1 234', '3 men')
    >>> _tidy("\N{MINUS SIGN}2.5", ","), _tidy("-$ 2.5", ","), _tidy("($2.5)", ","), _tidy("2.5-", ",")
    ('-2.5', '-2.5', '-2.5', '-2.5')
    """
    cell = cell.strip()
    if not cell or cell.isalpha():
        return cell
    bare = _SIGN.sub(r"\g<before>\g<after>", cell, count=1).strip()
    found = _NUMBER.fullmatch(bare)
    if found is None:
        return cell
    positive, *negative = found.groups()
    cell = positive or f"-{next(filter(None, negative))}"
    if _GROUPED.fullmatch(cell):
        cell = re.sub(f"[{_SPACES}]" if separator else f"[{_SPACES[1:]}]", "", cell)
    return cell.replace("\N{MINUS SIGN}", "-")


def joined(rows: Sequence[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """Remove the spaces between thousands in a file with one cell per line; ``rows`` are the result of :func:`split`.

    If the spaces may separate cells, raise csv.Error, whose message names the line.

    >>> joined([(1, ["load"]), (2, ["1 234"]), (3, ["987"])])
    [(1, ['load']), (2, ['1234']), (3, ['987'])]
    """
    spaced = {line: cell for line, (cell,) in rows if _SPACED.fullmatch(cell)}
    wrong = {line: cell for line, cell in spaced.items() if not _GROUPED.fullmatch(cell)}
    counts = {len(cell.split()) for _, (cell,) in rows if cell.lower() not in MISSING}
    if len(counts) == 1:  # there may be several columns, with one word of the first line as the name of each
        wrong = wrong or spaced
    for line, cell in wrong.items():
        why = f"{cell!r}, whose spaces may separate cells: put a semicolon between cells and no spaces between digits"
        raise csv.Error(f"line {line}: {why}")
    return [(line, [cell.replace(" ", "") if line in spaced else cell]) for line, (cell,) in rows]


def decimal_mark(cells: Sequence[str], separator: str | None) -> tuple[bool, str]:
    """Return whether commas are decimal marks in a file. Also return a text: if the decimal mark had to be guessed, an
    ambiguous cell such as 1,040; otherwise, the empty text.

    A cell is unambiguous if it is a number under only one reading of its marks: 148.54, 1,234.5 and 1,234,567 are
    numbers only if the decimal mark is a point. The majority of the unambiguous cells decides. Without a majority,
    commas are decimal marks unless they separate cells.

    >>> decimal_mark(["1,5", "2"], ";"), decimal_mark(["1,040", "148.54"], ";"), decimal_mark(["1.040.000"], ";")
    ((True, ''), (False, ''), (True, ''))
    >>> decimal_mark(["1,234", "x, y"], ";"), decimal_mark(["1,500", "2"], ","), decimal_mark(["1.5"], ";")
    ((True, '1,234'), (False, '1,500'), (False, ''))
    """
    if not any("," in cell or cell.count(".") > 1 for cell in cells):
        return False, ""
    commas, points, either = 0, 0, ""
    for cell in cells:
        comma, point = _marks(cell)
        commas, points = commas + (comma > point), points + (point > comma)
        either = either or (cell if comma and point and "," in cell else "")
    if commas != points:
        return commas > points, ""
    return separator != "," and bool(commas or either), "" if commas else either


def _marks(cell: str) -> tuple[bool, bool]:
    """Return whether a cell that contains a comma or a point is a number if the decimal mark is a comma, and whether it
    is a number if the decimal mark is a point.
    """
    comma = bool(_DECIMAL.fullmatch(cell) or _DOTTED.fullmatch(cell))
    return comma, bool(_THOUSANDS.fullmatch(cell) or _POINT.fullmatch(cell))


def decides(cell: str) -> bool:
    """Return True if a cell shows which decimal mark its file uses: with the other mark the cell would not be a number.

    >>> decides("1,5"), decides("1.234"), decides("12")
    (True, False, False)
    """
    comma, point = _marks(cell)
    return comma != point


def separates_thousands(column: Sequence[str]) -> str:
    """Return the mark (comma or point) that separates thousands in a column whose cells are all ambiguous, or "".

    The evidence is a column with both cells such as 987 and several cells such as 2.730. If these were decimal numbers
    with three decimals, 987 would be 987.000; if zeros at the end were left out, 2.730 would be 2.73.

    >>> separates_thousands(["987", "2.730", "6.010"]), separates_thousands(["9.870", "2.730"])
    ('.', '')
    """
    marked = [cell for cell in column if "," in cell or "." in cell]
    mark = "," if marked and "," in marked[0] else "."
    grouped = [cell for cell in marked if (_THOUSANDS if mark == "," else _DOTTED).fullmatch(cell)]
    whole = any(re.fullmatch(r"[+-]?[1-9]\d{0,2}", cell) for cell in column)
    alike = len(grouped) == len(marked) and not any(("." if mark == "," else ",") in cell for cell in marked)
    return mark if alike and whole and sum(cell.endswith("0") for cell in marked) > 1 else ""


def reading(cell: str, decimal_commas: bool) -> str:
    """Return a sentence that tells the user how the ambiguous cell, such as 1,040, was read.

    >>> reading("1,040", True), reading("1,040", False)
    ('1,040 is read as 1.04 (decimal comma)', '1,040 is read as 1040 (comma between thousands)')
    """
    how = "decimal comma" if decimal_commas else "comma between thousands"
    return f"{cell} is read as {number(cell, decimal_commas):.15g} ({how})"


def number(cell: str, decimal_commas: bool = False) -> float | None:
    """Return the number in a cell; NaN for missing and infinite numbers, None for other text.

    >>> number("1.234,5", True), number("1,234.5"), number("TRUE"), number("n/a"), number("x")
    (1234.5, 1234.5, 1.0, nan, None)
    """
    word = cell.lower()
    if word in MISSING:
        return math.nan
    if word in ("true", "false"):
        return float(word == "true")
    if decimal_commas and (_DECIMAL.fullmatch(cell) or _DOTTED.fullmatch(cell)):
        cell = cell.replace(".", "").replace(",", ".")
    elif not decimal_commas and _THOUSANDS.fullmatch(cell):
        cell = cell.replace(",", "")
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else math.nan
