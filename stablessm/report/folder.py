"""Reads one run folder: returns the intact parts, and reports damaged or missing parts."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, final

from stablessm import record
from stablessm.report import training
from stablessm.report.claim import VERDICTS, Claim
from stablessm.report.figure import Figure

NOT_SHOWN = ("measure", "fit")
"""Kinds of records that the report skips: ``stablessm measure`` and ``stablessm fit`` write them."""

_Read = TypeVar("_Read")


@final
@dataclass(frozen=True)
class File:
    """A file of a run folder that the report links to."""

    name: str
    size: int


@final
@dataclass(frozen=True, eq=False)
class Record:
    """The content of one run folder, for the report; ``faults`` lists the parts that could not be read."""

    folder: Path
    id: str
    title: str = ""
    question: str = ""
    source: str = ""
    claim: str = ""
    deviations: str = ""
    """How the experiment differs from the paper; paragraphs are separated by empty lines."""
    size: str = ""
    status: str = "complete"
    command: str = ""
    commit: str = ""
    date: str = ""
    wall_time_s: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    computed: tuple[Mapping[str, Any], ...] = ()
    """The machines that computed the stages; figures and claims may have been made on another."""
    claims: tuple[Claim, ...] = ()
    figures: tuple[Figure, ...] = ()
    files: tuple[File, ...] = ()
    faults: tuple[str, ...] = ()


def read_run(folder: Path) -> Record | None:
    """Return the content of a run folder, or None if its record is of a kind that the report does not show.

    Raises:
        ValueError, OSError: The folder has no readable record.

    >>> read_run(Path("/nowhere"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/record.json'
    """
    raw = record.inside(folder / "record.json", folder).read_bytes()
    faults: list[str] = []
    content = _parsed(raw, faults)
    if content.get("kind") in NOT_SHOWN:
        return None
    drawn = None
    known = _expect(content.get("files"), dict, "files", faults)
    if content.get("kind") == "training":
        try:
            content = training.described(content, folder)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a whole record of a training run: {type(error).__name__}: {error}") from error
        drawn = _attempt(folder / "metrics.jsonl", lambda path: training.curves(content, path), faults, known)
    if not isinstance(content.get("id"), str) or not content["id"]:
        raise ValueError("it has no id: not the record of an experiment")
    texts = [field.name for field in fields(Record) if field.type == "str"]
    shown: dict[str, Any] = {name: _text(content[name]) for name in texts if content.get(name) is not None}
    for name in ("config", "versions", "hardware"):
        shown[name] = _expect(content.get(name), dict, name, faults)
    computed = _expect(content.get("computed"), list, "computed", faults)
    names = _names(content, "figures", faults)
    figures = [_attempt(folder / f"{name}.json", Figure.load, faults, known) for name in names]
    return Record(
        folder=folder,
        wall_time_s=_number(content.get("wall_time_s")),
        computed=tuple(place for place in computed if isinstance(place, dict)),
        claims=tuple(_claims(content, faults)),
        figures=tuple(figure for figure in (*figures, drawn) if figure is not None),
        files=(File("record.json", len(raw)), *_files(folder, _names(content, "arrays", faults), faults, known)),
        faults=tuple(faults),
        **shown,
    )


def _parsed(raw: bytes, faults: list[str]) -> dict[str, Any]:
    """Return the content of a record file. If its checksum is wrong, say so in ``faults``."""
    try:
        return record.parsed(raw, "it was damaged, or edited")
    except ValueError as error:
        content = json.loads(raw.decode("utf-8"))
        if not isinstance(content, dict):
            raise
        faults.append(f"record.json: {error}")
        return content


def _claims(content: Mapping[str, Any], faults: list[str]) -> list[Claim]:
    claims = []
    for number, claim in enumerate(_expect(content.get("claims"), list, "claims", faults), start=1):
        if not isinstance(claim, dict):
            faults.append(f"claim {number}: an object was expected, not {_text(claim)}")
            continue
        claims.append(Claim(**{field.name: _text(claim.get(field.name)) for field in fields(Claim)}))
        if claims[-1].verdict and claims[-1].verdict not in VERDICTS:
            faults.append(f"claim {number}: unknown verdict {claims[-1].verdict!r}; known are {', '.join(VERDICTS)}")
    return claims


def _files(folder: Path, names: list[str], faults: list[str], known: Mapping[str, Any]) -> list[File]:
    """Return the files ``names`` of a run folder and, if there is one, its file of metrics. A file that cannot be read
    is left out and named in ``faults``. ``known`` maps file names to SHA-256 checksums.
    """
    paths = [folder / name for name in names]
    if (folder / "metrics.jsonl").exists() or "metrics.jsonl" in known:
        paths.append(folder / "metrics.jsonl")
    files = (_attempt(path, _file, faults, known) for path in paths)
    return [file for file in files if file is not None]


def _attempt(path: Path, read: Callable[[Path], _Read], faults: list[str], known: Mapping[str, Any]) -> _Read | None:
    """Read a file of the run folder with the function ``read``. If this fails, say so in ``faults`` and return None.
    ``known`` maps file names to SHA-256 checksums.
    """
    try:
        with record.reading(path, "a file of the run"), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            record.inside(path, path.parent)
            record.require_digest(path, known.get(path.name))
            found = read(path)
        faults += [str(warning.message) for warning in warned]
        return found
    except FileNotFoundError:
        faults.append(f"{path.name}: no such file")
    except (OSError, ValueError) as error:
        faults.append(f"{path.name}: {error}")
    return None


def _file(path: Path) -> File:
    if path.suffix == ".npz":
        zipfile.ZipFile(path).close()  # fails for a truncated file, whose table of contents is missing
    return File(path.name, path.stat().st_size)


def _names(content: Mapping[str, Any], key: str, faults: list[str]) -> list[str]:
    """Return the file names that the record lists under ``key``. Names that contain a folder are left out, because a
    record must not link to other files on the disk of the reader.
    """
    names = []
    for name in _expect(content.get(key), list, key, faults):
        if isinstance(name, str) and name not in ("", "..") and not {"/", "\\", "\0"} & set(name):
            names.append(name)
        else:
            faults.append(f"{key}: a file name was expected, not {_text(name)}")
    return names


def _expect(value: Any, kind: type, name: str, faults: list[str]) -> Any:
    if value is None:
        return kind()
    if isinstance(value, kind):
        return value
    faults.append(f"{name}: expected {'a list' if kind is list else 'an object'}, not {_text(value)}")
    return kind()


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
