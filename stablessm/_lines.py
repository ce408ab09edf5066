"""Files of JSON lines, such as ``metrics.jsonl``, to which a run appends while it computes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stablessm import record

_DIGITS = 300
"""Largest number of digits of a whole number; a float can hold 308."""


def append(path: Path, row: Mapping[str, Any]) -> bytes:
    """Append an object as one line to a file of JSON lines, in a single write; return the line."""
    line = _line(row)
    with record.writing(path), path.open("ab", buffering=0) as file:
        file.write(line)
    return line


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write objects to a file of JSON lines, replacing the file in one step."""
    with record.atomic(path) as temporary:
        temporary.write_bytes(b"".join(map(_line, rows)))


def read(path: Path, **kinds: type) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines, or an empty list if there is no file.

    ``kinds`` maps keys to types; a line is damaged if it is not an object whose keys have values of these types. An
    incomplete last line, which a killed process leaves, is left out. Other damaged lines are left out with a warning.
    For a file that cannot be read, or that is a symbolic link to a file outside its folder, there is a warning, and the
    list is empty.
    """
    rows, damaged = [], 0
    try:
        lines = record.inside(path, path.parent).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except (record.DamagedFileError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        warnings.warn(f"{path} cannot be read and is left out: {why}", stacklevel=2)
        return []
    for line in filter(None, lines):
        try:
            row = json.loads(line.decode("utf-8"), parse_int=_counted)
            whole = isinstance(row, dict) and all(type(row.get(key)) is kind for key, kind in kinds.items())
            row = row if whole else None
        except (ValueError, RecursionError):
            row = None
        if row is not None:
            rows.append(row)
        elif line is not lines[-1]:
            damaged += 1
    if damaged:
        warnings.warn(f"{path}: {damaged} damaged lines are left out", stacklevel=2)
    return rows


def _counted(digits: str) -> int:
    """Convert digits to a whole number; raise an error if no float can hold the number."""
    if len(digits) > _DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(record.plain(row), ensure_ascii=False) + "\n").encode(errors="backslashreplace")
