"""A run folder that survives being killed: stages are computed once, long loops leave checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, final

import numpy as np

from stablessm import record
from stablessm._errors import ArgumentError

CHECKPOINT_SECONDS = 5.0
"""How much work a kill can cost, or ten times what it takes to save it."""

_CHECKPOINT = ".checkpoint.npz"


class Kept(Protocol):
    """What a stage can keep: a curve, say."""

    def save(self, path: Path) -> None:
        """Write to a ``.npz`` file."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it."""
        ...


K = TypeVar("K", bound=Kept)


@final
class Run:
    """One experiment at one size in one folder.

    Every number comes from a *stage*: a function of the config alone whose arrays are written to ``NAME.npz`` when it
    ends. A run that is started again skips the stages that are there and goes on in the middle of a loop from its last
    checkpoint, to the same bits. ``metrics.jsonl`` has what stages said on their way, ``stages.json`` how long each
    took and where: a folder may be begun on one machine and ended on another.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], *, progress: bool = True) -> None:
        self.folder, self.config, self.progress = folder, dict(record.plain(config)), progress
        self._elsewhere = 0.0
        self._spent: dict[str, float] = {}
        path = folder / "config.json"
        if path.exists() and json.loads(path.read_text(encoding="utf-8")) != self.config:
            raise ArgumentError("config", f"the one in {path}, or --fresh to start again", "another")
        if not path.exists() and self.stages():
            raise ArgumentError("folder", "a run folder, which has a config.json, or an empty one", str(folder))
        record.write_json(path, self.config)
        for torn in folder.glob(".*-*"):  # what a kill left of record.atomic
            torn.unlink()

    def stage(self, name: str, compute: Callable[[], Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """The arrays of this stage, from its file or else computed and written."""

        def computed() -> Callable[[Path], None]:
            arrays = {key: np.asarray(value) for key, value in compute().items()}
            self.log(name, **{key: value.item() for key, value in arrays.items() if value.size == 1})
            return lambda path: record.save_arrays(path, "stage", {}, arrays)

        self._once(name, computed)
        return self[name]

    def keep(self, name: str, kind: type[K], measure: Callable[[], K]) -> K:
        """A stage that is one measured thing, such as a curve, with its own ``save`` and ``load``."""
        self._once(name, lambda: measure().save)
        return kind.load(self.path(name))

    def __getitem__(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a stage that has been computed."""
        return record.load_arrays(self.path(name), "stage")[1]

    def stages(self) -> list[str]:
        """Names of the stages that are there."""
        names = (path.name for path in self.folder.glob("[!.]*.npz"))
        return sorted(name.removesuffix(".npz") for name in names if not name.endswith(_CHECKPOINT))

    def log(self, stage: str, **values: Any) -> None:
        """A line of ``metrics.jsonl``. In a loop, give its ``step``: after a kill the lines since the checkpoint go."""
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record.plain({"stage": stage, **values}), ensure_ascii=False) + "\n")

    def computed(self) -> list[dict[str, Any]]:
        """Where the stages were computed, and how long they took over all interruptions, as far as checkpoints tell."""
        facts = self._facts()
        places = []
        for i, where in enumerate(facts["environments"]):
            seconds = [stage["seconds"] for stage in facts["stages"].values() if stage["environment"] == i]
            places.append({**where, "stages": len(seconds), "seconds": round(sum(seconds), 1)})
        return places

    def path(self, name: str) -> Path:
        """Where a stage is kept."""
        return self.folder / f"{name}.npz"

    def loop(
        self,
        name: str,
        steps: int,
        save: Callable[[], Mapping[str, np.ndarray]],
        restore: Callable[[Mapping[str, np.ndarray]], None],
    ) -> Iterator[int]:
        """Count to ``steps`` inside a stage, with checkpoints of what ``save`` returns; from the last one, if any.

        >>> import tempfile
        >>> total = np.zeros(1)
        >>> def restore(arrays):
        ...     total[:] = arrays["total"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for i in Run(Path(folder), {}, progress=False).loop("sum", 4, lambda: {"total": total}, restore):
        ...         total += i
        >>> total
        array([6.])
        """
        from tqdm import tqdm

        first, spent = 0, 0.0
        if self._checkpoint(name).exists():
            meta, arrays = record.load_arrays(self._checkpoint(name), "checkpoint")
            first, spent = int(meta["step"]), float(meta["seconds"])
            self._spent[name] = spent
            restore(arrays)
        started = last = time.perf_counter()
        cost = 0.0
        bar = tqdm(total=steps, initial=first, desc=name, disable=None if self.progress else True, mininterval=0.5)
        with bar:
            for step in range(first, steps):
                yield step
                bar.update()
                now = time.perf_counter()
                if now - last > max(CHECKPOINT_SECONDS, 10 * cost):
                    meta = {"step": step + 1, "seconds": spent + now - started}
                    record.save_arrays(self._checkpoint(name), "checkpoint", meta, save())
                    last = time.perf_counter()
                    cost = last - now

    def _once(self, name: str, compute: Callable[[], Callable[[Path], None]]) -> None:
        """Unless it is there: compute a stage, note how long that took and where, and write it with what came back."""
        if not self.path(name).exists():
            started, outside, self._elsewhere = time.perf_counter(), self._elsewhere, 0.0
            self._forget(name)
            write = compute()
            took = time.perf_counter() - started
            self._note(name, self._spent.pop(name, 0.0) + took - self._elsewhere)
            write(self.path(name))
            self._elsewhere = outside + time.perf_counter() - started  # what a stage waits for another is the other's
        self._checkpoint(name).unlink(missing_ok=True)

    def _note(self, name: str, seconds: float) -> None:
        facts = self._facts()
        if self._environment not in facts["environments"]:
            facts["environments"].append(self._environment)
        place = facts["environments"].index(self._environment)
        facts["stages"][name] = {"seconds": round(seconds, 3), "environment": place}
        record.write_json(self.folder / "stages.json", facts)

    def _forget(self, name: str) -> None:
        """Leave out what a killed stage said after its last checkpoint, and a line that was cut off."""
        if not self._metrics.exists():
            return
        checkpoint, first, kept = self._checkpoint(name), 0, []
        if checkpoint.exists():
            first = int(record.load_arrays(checkpoint, "checkpoint")[0]["step"])
        for line in self._metrics.read_text(encoding="utf-8").splitlines(keepends=True):
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if said["stage"] != name or said.get("step", math.inf) < first:
                kept.append(line)
        with record.atomic(self._metrics) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return dict(record.plain(record.environment()))

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    def _facts(self) -> dict[str, Any]:
        path = self.folder / "stages.json"
        text = path.read_text(encoding="utf-8") if path.exists() else '{"environments": [], "stages": {}}'
        return dict(json.loads(text))

    def _checkpoint(self, name: str) -> Path:
        return self.folder / f"{name}{_CHECKPOINT}"
