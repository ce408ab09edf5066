"""Read-only access to the stages of a run folder, for figures and claims."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, final

import numpy as np

from stablessm import record
from stablessm._errors import ArgumentError
from stablessm._renamed import NAMES, OLD

PACK = "stages.npz"
"""The file of a complete run that holds every array that its figures and claims read."""

FACTS = "stages.json"
"""The file with the time, the machine and the checksum of each stage."""

JOBS = "jobs"
"""The folder in a run folder with the notes of the jobs of a sweep, until the run is complete."""


class Kept(Protocol):
    """A measurement with methods ``save`` and ``load`` that is stored as one stage, such as a memory curve."""

    def save(self, path: Path) -> None:
        """Write the measurement to a ``.npz`` file."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a measurement that :meth:`save` wrote."""
        ...


K = TypeVar("K", bound=Kept)


@final
class Arrays(Mapping[str, np.ndarray]):
    """A mapping from names to the arrays of one stage. Whenever an array is read, its name is added to the set
    ``read``.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], stage: str, command: str, read: set[str]) -> None:
        self._arrays, self._stage, self._command, self._read = arrays, stage, command, read

    def __getitem__(self, name: str) -> np.ndarray:
        name = name if name in self._arrays else OLD.get(name, name)
        if name not in self._arrays:
            raise ArgumentError(f"stage {self._stage}", f"{name}, which this command computes: {self._command}", "none")
        self._read.add(name)
        return self._arrays[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an array by name, or the default if the stage has no such array."""
        return self[name] if name in self else default  # noqa: SIM401 - this is get

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays or OLD.get(str(name)) in self._arrays


class Stages:
    """The completed stages of a run folder, read-only.

    Each stage is a file ``NAME.npz`` or a part of the file ``stages.npz``. ``command`` is the shell command that
    computes the stages; if a stage is missing, the error message says to run this command.
    """

    def __init__(self, folder: Path, *, command: str = "") -> None:
        self.folder = folder
        self.command = command or shlex.join(["stablessm", "run", folder.parent.name, "--size", folder.name])
        self._read: dict[str, set[str]] = {}
        self.kept: dict[str, Any] = {}
        """Cached results by name: fits of a curve are computed once for figures and claims."""

    def __getitem__(self, name: str) -> Arrays:
        """Return the arrays of the stage with this name, read from the run folder."""
        name = self._stored(name)
        arrays = record.load_arrays(self._there(name), "stage")[1]
        return Arrays(arrays, name, self.command, self._read.setdefault(name, set()))

    def load(self, name: str, kind: type[K]) -> K:
        """Return the result of a stage whose result is a single object, such as a memory curve."""
        name = self._stored(name)
        self._read[name] = set(record.load_arrays(self._there(name))[1])
        return kind.load(self.path(name))

    def __contains__(self, name: str) -> bool:
        name = self._stored(name)
        return (self.folder / f"{name}.npz").exists() or name in self._packed

    def _stored(self, name: str) -> str:
        """Return the name under which this folder stores a stage. Folders that earlier versions wrote may use an old
        name.
        """
        names = (name, *(name.replace(new, old) for old, new in NAMES.items() if new in name))
        return next((each for each in names if (self.folder / f"{each}.npz").exists() or each in self._packed), name)

    def stages(self) -> list[str]:
        """Return the names of the complete stages."""
        return sorted({path.stem for path in self.folder.glob("[!.]*.npz") if path.name != PACK} | self._packed)

    def path(self, name: str) -> Path:
        """Return the path of a stage: its own file, or ``stages.npz`` if the stages were packed."""
        own = self.folder / f"{name}.npz"
        if not own.exists() and name in self._packed:
            return self.folder / PACK / name
        if (known := self._digests.pop(name, None)) is not None:  # checked once
            record.require_digest(own, known)
        return record.inside(own, self.folder)

    def pack(self) -> None:
        """Store in the file ``stages.npz`` all arrays that figures and claims have read. Arrays that are already in
        this file are kept.
        """
        parts: dict[str, tuple[Mapping[str, Any], Mapping[str, np.ndarray]]] = {}
        for name in sorted({*self._packed, *self._read}):
            meta, arrays = record.load_arrays(self.path(name))
            packed = set(record.load_arrays(self.folder / PACK / name)[1]) if name in self._packed else set()
            parts[name] = meta, {key: arrays[key] for key in arrays if key in packed | self._read.get(name, set())}
        record.save_parts(self.folder / PACK, parts)
        del self._packed

    @cached_property
    def _packed(self) -> set[str]:
        return record.part_names(record.inside(self.folder / PACK, self.folder))

    @cached_property
    def _digests(self) -> dict[str, str | None]:
        """Return a dict from the name of each stage to the recorded SHA-256 checksum of its file. :meth:`path` checks a
        file once and then removes its entry.
        """
        places = (self.folder, *sorted((self.folder / JOBS).glob("*/")))
        noted = [(name, fact) for place in places for name, fact in facts_of(place)["stages"].items()]
        return {name: fact.get("sha256") for name, fact in noted}

    def _there(self, name: str) -> Path:
        if name not in self:
            raise ArgumentError(
                "stage", f"{name}, which this command computes: {self.command}", f"none in {self.folder}"
            )
        return self.path(name)


def facts_of(folder: Path) -> dict[str, Any]:
    """Return the times and machines of the stages that a run folder records, in the format of :meth:`Run.facts`. If the
    file with this record is damaged, warn and return a dict without machines and stages.
    """

    def whole(found: dict[str, Any]) -> dict[str, Any]:
        for fact in found["stages"].values():
            dict(found["environments"][fact["environment"]], seconds=float(fact["seconds"]))
        return found

    return record.read_side(folder / FACTS, whole, {"environments": [], "stages": {}}, "The times of stages are lost")
