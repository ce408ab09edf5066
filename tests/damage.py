"""Damaged files: every kind that the package writes, random damage to one file of it, and what its readers make of it.

A *kind* makes a small real folder once. A *member* is a copy of it with one file damaged, read in this process. What
comes out is one of ``OUTCOMES``.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import re
import shutil
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stablessm import ArgumentError

GOOD = ("same", "reported", "refused", "edited")
BAD = ("silent", "unnamed", "traceback", "hang", "leak")
OUTCOMES = (*GOOD, *BAD)
"""``same``: the result of the whole file. ``reported``: another result, and a message that names the file.
``refused``: an error that names the file or its folder. ``edited``: another result of a file that was changed in a
valid way and has no checksum, as a file from an earlier version. ``silent``: another result without a message.
``unnamed``: an error that does not say where. ``traceback``: any other exception. ``hang``: no result in time.
``leak``: the content of a file outside the folder is in the result, or codes that a terminal obeys are printed."""
SECRET = "the-content-of-a-file-outside"
ESCAPE = "\x1b[2J\x1b]0;owned\x07"
"""A text that clears a terminal."""
SECONDS = 60.0
COPY = "copy"
"""The folder that holds the damaged copy."""
Reader = Callable[[Path], Any]


class LateError(BaseException):
    """A reader took too long; nothing may catch it."""


class RefusedError(Exception):
    """A command ended with 1 or 2; its message."""


@dataclass(frozen=True)
class Kind:
    """Files of one kind.

    Attributes:
        make: writes them into an empty folder; another ``seed`` gives other numbers in files of the same names.
        readers: by name, what reads the folder and returns plain values and arrays.
        parts: patterns of the files that are damaged.
        alone: whether each file stands for itself, so that another of its kind in its place is no damage; it is then
            exchanged for another file of the folder.
        sealed: whether the files have checksums; those of another library have none, and valid changes are ``edited``.
    """

    make: Callable[[Path, int], None]
    readers: Mapping[str, Reader]
    parts: tuple[str, ...] = ("**/*",)
    alone: bool = False
    sealed: bool = True


@dataclass(frozen=True)
class Member:
    """One damaged file, read once."""

    kind: str
    reader: str
    file: str
    damage: str
    outcome: str
    message: str


class Workshop:
    """Whole folders of kinds, made when they are first needed, below ``root``."""

    def __init__(self, root: Path, kinds: Mapping[str, Kind]) -> None:
        self.root, self.kinds = root, kinds
        self._expected: dict[tuple[str, str], Any] = {}

    def whole(self, kind: str, seed: int = 0) -> Path:
        """Return the undamaged folder of a kind."""
        folder = self.root / f"{kind}-{seed}".replace(" ", "-")
        if not folder.exists():
            folder.mkdir(parents=True)
            with quiet():
                self.kinds[kind].make(folder, seed)
        return folder

    def expected(self, kind: str, reader: str) -> Any:
        """Return what a reader makes of the undamaged folder."""
        if (kind, reader) not in self._expected:
            self._expected[kind, reader] = self._read(kind, reader, self._copy(kind))[0]
        return self._expected[kind, reader]

    def member(self, kind: str, number: int, seed: int) -> Member:
        """Damage one file at random, read the folder and say what came out."""
        rng = random.Random(f"{kind}/{number}/{seed}")
        reader = rng.choice(sorted(self.kinds[kind].readers))
        expected = self.expected(kind, reader)
        folder = self._copy(kind)
        files = sorted({p for part in self.kinds[kind].parts for p in folder.glob(part) if p.is_file()})
        path = rng.choice(files)
        name = path.relative_to(folder).as_posix()
        damage = rng.choice([way for way in DAMAGES if way in _possible(path)])
        twin = self.whole(kind, 1) / name
        if self.kinds[kind].alone:
            twin = rng.choice([p for p in self.whole(kind).iterdir() if p.name != name and p.suffix == path.suffix])
        DAMAGES[damage](path, rng, twin)
        sealed = self.kinds[kind].sealed
        outcome, message = self.outcome(kind, reader, folder, path, expected, may_change=damage in EDITS or not sealed)
        return Member(kind, reader, name, damage, outcome, message)

    def outcome(
        self, kind: str, reader: str, folder: Path, path: Path, expected: Any, *, may_change: bool = False
    ) -> tuple[str, str]:
        """Read a damaged folder; return what came out, and what was said."""
        try:
            result, said = self._read(kind, reader, folder)
        except LateError:
            return "hang", ""
        except (ArgumentError, OSError, RefusedError) as error:
            text = str(error)
            if ESCAPE in text:
                return "leak", text
            return ("refused" if _names(text, path, folder) else "unnamed"), text
        except Exception as error:
            return "traceback", f"{type(error).__name__}: {error}"
        if SECRET in repr(result) or ESCAPE in said:
            return "leak", said
        if result == expected:
            return "same", said
        if _names(said, path, folder):
            return "reported", said
        return ("edited" if may_change else "silent"), said or _difference(expected, result)

    def damaged(self, kind: str, file: Path, damage: str) -> Path:
        """Return a copy of the folder of a kind with one file damaged."""
        folder = self._copy(kind)
        DAMAGES[damage](folder / file, random.Random(0), self.whole(kind, 1) / file)
        return folder

    def _copy(self, kind: str) -> Path:
        copy = self.root / COPY / "run"
        shutil.rmtree(copy.parent, ignore_errors=True)
        shutil.copytree(self.whole(kind), copy, symlinks=True)
        return copy

    def _read(self, kind: str, reader: str, folder: Path) -> tuple[Any, str]:
        with quiet() as said, _limited(SECONDS), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            result = frozen(self.kinds[kind].readers[reader](folder))
        return result, "\n".join([said.getvalue(), *(str(warning.message) for warning in warned)])


def command(*arguments: object) -> str:
    """Run a command of the command line in this process; return what it printed."""
    from typer.testing import CliRunner

    from stablessm.cli.main import app

    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code in (1, 2):
        raise RefusedError(result.output)
    assert result.exit_code in (0, 130), result.output
    print(result.output)  # the tests of what is said
    return result.stdout


def frozen(value: Any) -> Any:
    """Return plain values that can be compared to the last bit."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): frozen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [frozen(item) for item in value]
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), value.shape, np.ascontiguousarray(value).tobytes()]
    return value if isinstance(value, str | int | bool | None) else repr(value)


def _possible(path: Path) -> Sequence[str]:
    others = {".json": ("retyped",), ".jsonl": ("retyped",), ".safetensors": _OF_JSON, ".npz": _OF_JSON}
    never = others.get(path.suffix, (*_OF_JSON, "retyped")) + (() if path.parent.name == "model" else ("swap folder",))
    return [way for way in DAMAGES if way not in never]


def _names(text: str, path: Path, folder: Path) -> bool:
    """Whether a message names the damaged file, or the folder that holds it, however the lines are broken."""
    joined = re.sub(r"\s", "", text)
    places = {path.name, str(path), str(folder), *(str(above) for above in path.relative_to(folder).parents)} - {"."}
    return any(re.sub(r"\s", "", place) in joined for place in places)


def _difference(expected: Any, result: Any, place: str = "") -> str:
    if isinstance(expected, dict) and isinstance(result, dict):
        for key in expected.keys() | result.keys():
            if expected.get(key) != result.get(key):
                return _difference(expected.get(key), result.get(key), f"{place}/{key}")
    if isinstance(expected, list) and isinstance(result, list) and len(expected) == len(result):
        for i, pair in enumerate(zip(expected, result, strict=True)):
            if pair[0] != pair[1]:
                return _difference(*pair, f"{place}/{i}")
    return f"{place}: {str(expected)[:200]} became {str(result)[:200]}"


@contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Catch what is printed."""
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        yield text


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise LateError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# the damage: each changes the file at ``path``; ``twin`` is the file of the same name and other numbers


def _flip(path: Path, rng: random.Random, twin: Path) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _truncate(path: Path, rng: random.Random, twin: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(max(len(content), 1))])


def _overwrite(path: Path, rng: random.Random, twin: Path) -> None:
    """A sector of zeros or noise, as a failing disk leaves it."""
    content = bytearray(path.read_bytes())
    at, size = rng.randrange(max(len(content), 1)), rng.choice((1, 16, 512))
    end = min(at + size, len(content))
    content[at:end] = bytes(end - at) if rng.random() < 0.5 else rng.randbytes(end - at)
    path.write_bytes(content)


def _folder(path: Path, rng: random.Random, twin: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path, rng: random.Random, twin: Path) -> None:
    target = next(above for above in path.parents if above.name == COPY).with_name(f"secret{path.suffix}")
    content = SECRET
    if path.suffix == ".json":
        content = json.dumps({"name": SECRET, "title": SECRET, "id": SECRET, "caption": SECRET, "panels": []})
    if path.suffix == ".jsonl":
        content = json.dumps({"step": 1, "stage": SECRET, "loss": 0.5, "text": SECRET})
    target.write_text(content, encoding="utf-8")
    path.unlink()
    path.symlink_to(target)


def _link_to_twin(path: Path, rng: random.Random, twin: Path) -> None:
    path.unlink()
    path.symlink_to(twin)


def _special(path: Path, rng: random.Random, twin: Path) -> None:
    """A pipe that nobody writes to, a device without end, or a link to itself."""
    path.unlink()
    if (target := rng.choice(("pipe", "/dev/zero", path.name))) == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(target)


VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 3, 0.5, 1e308, 10**12, 10**30, 10**400, "", "x", "nan", "\ud800", "../../etc/passwd", [], {},
    [None], {"x": 1},
)  # fmt: skip


def _nodes(content: Any) -> Iterator[tuple[Any, Any]]:
    """Containers and keys of every value in a JSON document."""
    for key in content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ():
        yield content, key
        yield from _nodes(content[key])


def _change(path: Path, rng: random.Random, value: Any, *, seal: bool) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    at = rng.randrange(len(lines))
    content = json.loads(lines[at])
    if not seal:
        content = _unsealed(content)
    where = list(_nodes(content))
    if not where or rng.random() < 0.05:
        content = value
    else:
        container, key = rng.choice(where)
        if rng.random() < 0.15:
            del container[key]
        else:
            container[key] = value
    lines[at] = json.dumps(content)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _unsealed(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: value for key, value in content.items() if key not in ("checksum",)}
    return content


def _swap_folder(path: Path, rng: random.Random, twin: Path) -> None:
    """Replace the folder ``model`` by the folder of another run."""
    shutil.rmtree(path.parent)
    shutil.copytree(twin.parent, path.parent)


def _retype(path: Path, rng: random.Random, twin: Path) -> None:
    """A whole file without checksums in which one array has another type or shape, other values, or no name."""
    from safetensors.numpy import load_file, save_file

    if path.suffix == ".npz":
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in stored.files}
    else:
        arrays = load_file(path)
    name = rng.choice(sorted(arrays))
    ways: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda a: np.full_like(a, np.nan) if a.dtype.kind == "f" else a,
        lambda a: a.reshape(-1)[:-1],
        lambda a: np.zeros((3, 1, 2)),
        lambda a: np.zeros(a.shape, np.int32),
        lambda a: np.zeros((0,), a.dtype if a.dtype.kind != "U" else float),
    ]
    changed = rng.choice(ways)(arrays.pop(name))
    if rng.random() < 0.9:
        arrays[name if rng.random() < 0.9 else "another"] = changed
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, path)


DAMAGES: dict[str, Callable[[Path, random.Random, Path], None]] = {
    "flip": _flip,
    "flip again": _flip,
    "truncate": _truncate,
    "overwrite": _overwrite,
    "empty": lambda path, rng, twin: path.write_bytes(b""),
    "noise": lambda path, rng, twin: path.write_bytes(rng.randbytes(rng.randrange(1, 2000))),
    "swap": lambda path, rng, twin: shutil.copyfile(twin, path),
    "swap folder": _swap_folder,
    "delete": lambda path, rng, twin: path.unlink(),
    "folder": _folder,
    "link": _link,
    "link to twin": _link_to_twin,
    "special file": _special,
    "json value": lambda path, rng, twin: _change(path, rng, rng.choice(VALUES), seal=True),
    "json value, no checksum": lambda path, rng, twin: _change(path, rng, rng.choice(VALUES), seal=False),
    "escape codes": lambda path, rng, twin: _change(path, rng, ESCAPE, seal=False),
    "retyped": _retype,
}
_OF_JSON = ("json value", "json value, no checksum", "escape codes")
EDITS = (*_OF_JSON[1:], "retyped", "delete")
"""Damage that may change a result without a message: nothing is left that could tell."""


def rows(members: Sequence[Member]) -> list[dict[str, Any]]:
    """Return the number of members of each kind and damage, by outcome."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for member in members:
        counts = found.setdefault((member.kind, member.damage), dict.fromkeys(OUTCOMES, 0))
        counts[member.outcome] += 1
    return [{"kind": kind, "damage": damage, **found[kind, damage]} for kind, damage in sorted(found)]
