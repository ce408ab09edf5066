"""Reads and writes the files of a run: JSON, NPZ and safetensors, written atomically and checked when read.

Every file reaches the disk before it replaces another. JSON and safetensors files contain a SHA-256 of their content,
and NPZ files have checksums of their own, so that reading a damaged file raises an error that names the file. Files
without a checksum, as earlier versions wrote them, are read without this check. Nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stablessm import _provenance
from stablessm._errors import ArgumentError, BackendUnavailableError

Place = str | os.PathLike[str]
_Read = TypeVar("_Read")
_META = "meta.json"
_SEAL = "checksum"
"""The key of a JSON object's SHA-256."""
_MOST_WRONG = 3
"""Largest number of wrong characters in a damaged key."""
_WINDOWS = os.name == "nt"
RESTORE = "Restore it from a copy, or remove it and make it again"
"""Remedy in the message about a damaged file."""


class DamagedFileError(ArgumentError):
    """The error for a file that is damaged or was replaced; the message names the file and the remedy."""


@contextmanager
def atomic(path: Place) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces ``path`` if the ``with`` block succeeds and is
    otherwise deleted.

    The block must close the temporary file. Its content is written to the disk before the file is renamed to ``path``.
    An ``OSError`` names ``path``, whatever failed.
    """
    path = Path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
        os.close(handle)
        try:
            yield Path(name)
            if not _WINDOWS:
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(name, 0o666 & ~umask)  # mkstemp makes it private
            replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)


@contextmanager
def writing(path: Place) -> Iterator[None]:
    """Return a context that adds the name of the file and a remedy to the message of an ``OSError``."""
    path = Path(path)
    try:
        yield
    except OSError as error:
        if error.filename is not None and not Path(str(error.filename)).is_relative_to(path.parent):
            raise  # the error is about another file
        full = error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
        remedy = "free some space or choose another disk" if full else "choose a folder that can be written to"
        raise OSError(error.errno, f"{error.strerror or error}; {remedy}", str(path)) from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # safetensors raises it instead of an OSError
            raise
        raise OSError(errno.EIO, f"{error}; free some space or choose another folder", str(path)) from error


def replace(source: Place, target: Place) -> None:
    """Write the content of ``source`` to the disk, then rename ``source`` to ``target``, replacing an existing file.

    Windows refuses to rename a file while another process, such as a virus scanner, has it open. The rename is
    therefore tried again for two seconds.
    """
    for part in (*Path(source).rglob("*"), Path(source)):
        _to_disk(part)
    for pause in (0.01, 0.03, 0.1, 0.3, 0.56, 1.0, None):
        try:
            os.replace(source, target)
            break
        except PermissionError:
            if not _WINDOWS or pause is None:
                raise
            time.sleep(pause)
    _to_disk(Path(target).parent)


def _to_disk(path: Path) -> None:
    """Wait until the content of a file, or a folder's list of files, is on the disk."""
    is_folder = path.is_dir()
    if is_folder and _WINDOWS:  # Windows cannot open a folder
        return
    with suppress(OSError) if is_folder else nullcontext():  # some file systems cannot do it for a folder
        handle = os.open(path, os.O_RDWR if _WINDOWS else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def reading(path: Place, expected: str, *, arguments: bool = True) -> Iterator[None]:
    """Return a context that converts errors about the content of the file ``path`` to a DamagedFileError.

    The error names the file and says what was ``expected``. An ``OSError`` keeps its type and names the file too. With
    ``arguments=False``, an ArgumentError passes unchanged.
    """
    if b"\0" in os.fsencode(Path(path)):  # an error about the argument, not about the content of a file
        raise ValueError("embedded null byte")
    try:
        _require_plain(Path(path), expected)
        yield
    except (DamagedFileError, BackendUnavailableError):
        raise
    except OSError as error:
        raise error if error.filename else type(error)(error.errno, error.strerror or str(error), str(path)) from error
    except Exception as error:  # every format raises its own kinds
        if isinstance(error, ArgumentError) and not arguments:
            raise
        why = str(error) if isinstance(error, ArgumentError) else f"{type(error).__name__}: {error}"
        raise DamagedFileError(str(path), expected, f"{why}. {RESTORE}") from error


def inside(path: Path, folder: Path) -> Path:
    """Return ``path``, or raise an error if symbolic links lead it to a place outside of ``folder``, or if it is a pipe
    or a device.
    """
    target = Path(os.path.realpath(path))  # unlike Path.resolve, also of links that lead to themselves
    if not target.is_relative_to(os.path.realpath(folder)):
        raise DamagedFileError(str(path), f"a file in {folder}", f"a symbolic link to {target}. Copy the file")
    return _require_plain(path, f"a file in {folder}")


def _require_plain(path: Path, expected: str) -> Path:
    """Return ``path``, or raise an error if it is a pipe, a socket or a device, whose content may have no end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DamagedFileError(str(path), expected, f"a pipe, a socket or a device. {RESTORE}")
    return path


# JSON


def write_json(path: Place, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write ``content`` to a file as JSON with a checksum.

    :func:`plain` describes how arrays and numbers that are not finite are written. With ``indent=None``, the file has
    only one line and no checksum; this is for content whose checksum is stored elsewhere.
    """
    given = plain(content)
    if indent is not None:
        given[_SEAL] = _seal({key: value for key, value in given.items() if key != _SEAL})
    style: dict[str, Any] = {"separators": (",", ":")} if indent is None else {"indent": indent}
    text = json.dumps(given, ensure_ascii=False, allow_nan=False, **style)
    with atomic(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")  # names of files may need it


def read_json(path: Place, expected: str = "a whole JSON file") -> dict[str, Any]:
    """Return the content of a JSON file; raise an error, which says what was ``expected``, if the file is damaged."""
    with reading(path, expected):
        return parsed(Path(path).read_bytes(), f"its {_SEAL} entry, if you edited the file yourself, can be removed")


def read_side(path: Place, read: Callable[[dict[str, Any]], _Read], otherwise: _Read, lost: str) -> _Read:
    """Read a JSON file that is not essential: return ``read(content)``, or ``otherwise`` if the file cannot be read.

    If the file exists, a warning says why it cannot be read and ends with the text ``lost``, which states the
    consequence.
    """
    try:
        with reading(path, "a whole JSON file"):
            return read(read_json(path))
    except FileNotFoundError:
        return otherwise
    except (OSError, ArgumentError) as error:
        warnings.warn(f"{error}. {lost}", stacklevel=3)
        return otherwise


def parsed(raw: bytes, remedy: str) -> dict[str, Any]:
    """Parse bytes as a JSON object, verify its checksum, and return the object without the checksum.

    The error about a wrong checksum ends with ``remedy``.
    """
    found = json.loads(raw.decode("utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"an object was expected, not {type(found).__name__}")
    seal = sealed(found, _SEAL, "[0-9a-f]{64}")
    content = {name: value for name, value in found.items() if name != _SEAL}
    if seal is not None and seal != _seal(content):
        raise ValueError(f"its content does not have its checksum ({remedy})")
    return content


def sealed(entries: Mapping[str, Any], key: str, like: str) -> Any:
    """Return the entry ``key`` of a file, or None if there is none, as in files of earlier versions.

    An entry with a similar key, whose value matches the regular expression ``like``, is the damaged entry ``key`` and
    raises an error.
    """
    for name, value in entries.items() if key not in entries else ():
        wrong = sum(a != b for a, b in zip(name, key, strict=False)) + abs(len(name) - len(key))
        if wrong <= _MOST_WRONG and re.fullmatch(like, str(value), re.DOTALL):
            raise ValueError(f"its entry {name!r} was {key!r} before it was damaged")
    return entries.get(key)


def plain(value: Any) -> Any:
    """Convert a value to plain JSON values: arrays to lists, infinities and NaN to "inf", "-inf" and "nan".

    >>> plain({"radius": float("inf"), "lags": np.arange(3), 2: (1, None)})
    {'radius': 'inf', 'lags': [0, 1, 2], '2': [1, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    return value if isinstance(value, str | int | bool | None) else str(value)


def number(value: Any) -> float:
    """Convert a number that :func:`plain` wrote to a JSON file back to a float; NaN for any other value.

    >>> number(2), number("-inf"), number("two")
    (2.0, -inf, nan)
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


# arrays


def save_arrays(path: Place, kind: str, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write arrays and plain JSON values (``meta``) to an ``.npz`` file without pickle. The text ``kind`` says what the
    file contains; :func:`load_arrays` can check the kind.
    """
    if Path(path).suffix != ".npz":
        raise ArgumentError("path", "a file name that ends in .npz", str(path))
    text = json.dumps({"kind": kind, **plain(meta)}, ensure_ascii=False)
    contents: dict[str, Any] = {_META: text, **arrays}
    with atomic(path) as temporary:
        np.savez_compressed(temporary, **contents)


def load_arrays(path: Place, kind: str | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the plain values and the arrays of a file that :func:`save_arrays` wrote.

    The path ``FILE.npz/NAME`` means the part NAME of a file that :func:`save_parts` wrote. A file of another ``kind``
    raises an error; with ``kind=None``, any kind is accepted, and the returned values include the kind.
    """
    path, prefix = Path(path), ""
    if path.parent.suffix == ".npz":
        path, prefix = path.parent, f"{path.name}/"
    expected = "a whole .npz file" if kind is None else f"a whole .npz file of kind {kind!r}"
    with reading(path, expected), np.load(path, allow_pickle=False) as stored:
        meta = json.loads(str(stored[prefix + _META])) if prefix + _META in stored.files else {}
        if kind is not None and (came := meta.pop("kind", None)) != kind:
            raise ValueError("no kind" if came is None else f"kind {came!r}")
        names = [name for name in stored.files if name.startswith(prefix) and name != prefix + _META]
        arrays = {name.removeprefix(prefix): stored[name] for name in names}
        if wrong := [name for name, array in arrays.items() if isinstance(array, bytes)]:
            raise ValueError(f"{wrong[0]} is not an array")
        return meta, arrays


def save_parts(path: Place, parts: Mapping[str, tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]) -> None:
    """Write several named parts to one compressed ``.npz`` file; each part has plain values and arrays.

    The plain values of a part include the entry ``kind``, as described in :func:`save_arrays`. Equal parts give equal
    files.
    """
    try:
        import lzma  # noqa: F401 - zipfile needs it, and some builds of Python lack it

        method = zipfile.ZIP_LZMA
    except ImportError:
        method = zipfile.ZIP_DEFLATED
    with atomic(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        for part, (meta, arrays) in parts.items():
            text = np.array(json.dumps(plain(meta)))
            for name, array in {_META: text, **arrays}.items():
                content = io.BytesIO()
                np.lib.format.write_array(content, np.asarray(array), allow_pickle=False)
                file.writestr(zipfile.ZipInfo(f"{part}/{name}.npy"), content.getvalue(), method)


def part_names(path: Place) -> set[str]:
    """Return the names of the parts in a file that :func:`save_parts` wrote, or an empty set if there is no file."""
    if not Path(path).exists():
        return set()
    with reading(path, "a whole .npz file"), zipfile.ZipFile(path) as file:
        return {name.partition("/")[0] for name in file.namelist()}


# whole files


def digest_of(path: Path) -> str:
    """Compute the SHA-256 of a file's content."""
    with _require_plain(path, "a file").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_digest(path: Path, digest: str | None, expected: str = "the file that was written") -> None:
    """Raise a DamagedFileError unless a file has the given SHA-256; do nothing if the SHA-256 is None."""
    if digest is not None and digest_of(path) != digest:
        raise DamagedFileError(str(path), expected, f"other content. {RESTORE}")


def environment() -> dict[str, Any]:
    """Return the versions, machine and commit of this process, for a record."""
    return {"versions": _provenance.versions(), "commit": _provenance.commit(), "hardware": _provenance.hardware()}


def write_record(folder: str | os.PathLike[str], *, started: float, **content: Any) -> Path:
    """Write ``folder/record.json``: ``content``, command, environment, and the wall time since ``started``.

    ``started`` is a value of ``time.perf_counter()``.
    """
    path = Path(folder) / "record.json"
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    seconds = round(time.perf_counter() - started, 3)
    write_json(path, {"command": command, **content, **environment(), "wall_time_s": seconds})
    return path
