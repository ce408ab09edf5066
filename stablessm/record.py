"""One run as plain files: JSON and NPZ, written whole or not at all, never pickled."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stablessm import _provenance
from stablessm._errors import ArgumentError

_META = "meta.json"
_WINDOWS = os.name == "nt"


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside ``path`` that becomes ``path`` when the block ends well, and vanishes otherwise.

    The block must close the file.
    """
    path = Path(path)
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


def replace(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename ``source`` to ``target``, which may exist if it is a file.

    Windows refuses while another process has either of them open, if only to look for viruses, so the rename is tried
    again for two seconds.
    """
    for pause in (0.01, 0.03, 0.1, 0.3, 0.56, 1.0):
        try:
            os.replace(source, target)
        except PermissionError:
            if not _WINDOWS:
                raise
            time.sleep(pause)
        else:
            return
    os.replace(source, target)


def write_json(path: str | os.PathLike[str], content: Mapping[str, Any], *, compact: bool = False) -> None:
    """``content`` as JSON; numpy numbers and arrays become plain ones, infinities and NaN become strings.

    ``compact``: in one line, for numbers that nobody reads.
    """
    style: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    text = json.dumps(plain(content), ensure_ascii=False, allow_nan=False, **style)
    with atomic(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def plain(value: Any) -> Any:
    """What JSON can hold: floats that are not finite are written ``"inf"``, ``"-inf"``, ``"nan"``.

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


def save_arrays(path: str | os.PathLike[str], kind: str, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Arrays and a few plain facts in one ``.npz`` file that needs no pickle. ``kind`` says what it holds."""
    if Path(path).suffix != ".npz":
        raise ArgumentError("path", "a file name that ends in .npz", str(path))
    text = json.dumps({"kind": kind, **plain(meta)}, ensure_ascii=False)
    contents: dict[str, Any] = {_META: text, **arrays}
    with atomic(path) as temporary:
        np.savez_compressed(temporary, **contents)


def load_arrays(path: str | os.PathLike[str], kind: str | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the facts and the arrays that :func:`save_arrays` wrote.

    ``FILE.npz/NAME`` is a part of a file that :func:`save_parts` wrote. Without ``kind``, facts of any kind are
    returned, the kind among them.
    """
    path, prefix = Path(path), ""
    if path.parent.suffix == ".npz":
        path, prefix = path.parent, f"{path.name}/"
    try:
        with np.load(path, allow_pickle=False) as stored:
            meta = json.loads(str(stored[prefix + _META])) if prefix + _META in stored.files else {}
            if kind is not None and meta.pop("kind", None) != kind:
                raise ArgumentError("path", f"a file of kind {kind!r}", str(path))
            names = [name for name in stored.files if name.startswith(prefix) and name != prefix + _META]
            return meta, {name.removeprefix(prefix): stored[name] for name in names}
    except ArgumentError:
        raise
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise ArgumentError("path", f"a whole file of kind {kind!r}", f"{path} ({error})") from error


def save_parts(
    path: str | os.PathLike[str], parts: Mapping[str, tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]
) -> None:
    """Write several sets of facts and arrays, by name, to one ``.npz`` file, as small as it gets.

    The facts have the ``kind`` of :func:`save_arrays`. Equal parts give equal files.
    """
    try:
        import lzma  # noqa: F401 - zipfile needs it, and some builds of Python lack it

        method = zipfile.ZIP_LZMA
    except ImportError:
        method = zipfile.ZIP_DEFLATED
    with atomic(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        for part, (meta, arrays) in parts.items():
            text = np.array(json.dumps(plain(meta), ensure_ascii=False))
            for name, array in {_META: text, **arrays}.items():
                content = io.BytesIO()
                np.lib.format.write_array(content, np.asarray(array), allow_pickle=False)
                file.writestr(zipfile.ZipInfo(f"{part}/{name}.npy"), content.getvalue(), method)


def part_names(path: str | os.PathLike[str]) -> set[str]:
    """Return the names of the parts in a file that :func:`save_parts` wrote; none where there is no file."""
    if not Path(path).exists():
        return set()
    try:
        with zipfile.ZipFile(path) as file:
            return {name.partition("/")[0] for name in file.namelist()}
    except zipfile.BadZipFile as error:
        raise ArgumentError("path", "a whole .npz file", f"{path} ({error})") from error


def environment() -> dict[str, Any]:
    """Versions, machine and commit: what someone needs to run it again."""
    return {
        "versions": _provenance.versions(),
        "commit": _provenance.commit(),
        "hardware": _provenance.hardware(),
    }


def write_record(folder: str | os.PathLike[str], *, started: float, **content: Any) -> Path:
    """``folder/record.json``: what you pass, with command, environment and wall time since ``started``.

    ``started`` is a ``time.perf_counter()``.
    """
    path = Path(folder) / "record.json"
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    seconds = round(time.perf_counter() - started, 3)
    write_json(path, {"command": command, **content, **environment(), "wall_time_s": seconds})
    return path
