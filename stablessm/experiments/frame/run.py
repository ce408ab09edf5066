"""A run folder that can be resumed: each stage is computed once, and long loops write checkpoints."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from stablessm import _lines, _progress, record
from stablessm._errors import ArgumentError
from stablessm._renamed import as_now
from stablessm.experiments.frame.stages import FACTS, JOBS, Arrays, K, Stages, facts_of
from stablessm.report.section import flat
from stablessm.training.checkpoint import Checkpoint, Checkpoints
from stablessm.training.steps import Cadence, StepLoop

CHECKPOINT_SECONDS = 5.0
"""Seconds of work that an interruption can lose, or twenty times the time that saving takes if that is longer."""

_CHECKPOINT = ".checkpoints"
_METRICS = "metrics.jsonl"
_RESUMABLE = "checkpoints of this stage; without the folder it is computed from its start"


@final
class Run(Stages):
    """The folder of one experiment at one size, open for writing.

    Every number comes from a *stage*: a computation that depends only on the config, and whose resulting arrays are
    written to ``NAME.npz``. A resumed run skips complete stages, and continues an interrupted loop from its last
    checkpoint; the results are bitwise the same as without the interruption. ``metrics.jsonl`` has the logged metrics.
    ``stages.json`` has the seconds and the machine of each stage, because a run may be started on one machine and
    resumed on another.

    Several processes, called jobs, may compute different stages of one folder. A job writes its times and metrics to
    the folder ``jobs/JOB``, and :meth:`gather` merges them into the run.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        progress: bool = True,
        job: str | None = None,
        command: str = "",
    ) -> None:
        super().__init__(folder, command=command)
        self.config, self.progress = dict(record.plain(config)), progress
        self._notes = folder if job is None else self.notes(job)
        self._elsewhere = 0.0
        self._spent: dict[str, float] = {}
        path = folder / "config.json"
        known = settings(folder)
        if known is not None and not agree(known, self.config):
            raise ArgumentError("config", f"the one in {path}, or --fresh to start again", "another")
        if known is None and self.stages():
            raise ArgumentError("folder", "a run folder, which has a config.json, or an empty one", str(folder))
        record.write_json(path, self.config)
        if not (folder / JOBS).exists():
            self._tidy()  # jobs share the folder with other processes
        self._notes.mkdir(exist_ok=True, parents=True)

    def stage(self, name: str, compute: Callable[[], Mapping[str, Any]]) -> Arrays:
        """Return the arrays of a stage: read them from its file, or compute and write them."""

        def computed() -> Callable[[Path], None]:
            arrays = {key: np.asarray(value) for key, value in compute().items()}
            self.log(name, **{key: value.item() for key, value in arrays.items() if value.size == 1})
            return lambda path: record.save_arrays(path, "stage", {}, arrays)

        self._once(name, computed)
        return self[name]

    def keep(self, name: str, kind: type[K], measure: Callable[[], K]) -> K:
        """Return the result of a stage whose result is one object with methods ``save`` and ``load``, such as a memory
        curve. The object is read from the file of the stage; if there is no file, it is measured and written.
        """
        self._once(name, lambda: measure().save)
        return self.load(name, kind)

    def adopt(self, name: str, folder: Path) -> None:
        """Copy a stage from another run folder, with its computing time and machine.

        The caller makes sure that both runs compute the same stage.
        """
        facts = facts_of(folder)
        source, known = folder / f"{name}.npz", facts["stages"].get(name)
        if known is not None:
            record.require_digest(source, known.get("sha256"))
            self._note(name, known["seconds"], facts["environments"][known["environment"]], record.digest_of(source))
        with record.atomic(self._own(name)) as temporary:
            shutil.copyfile(source, temporary)

    def log(self, stage: str, **values: Any) -> None:
        """Append a line to ``metrics.jsonl``. In a loop, pass ``step``: when the stage is resumed, the lines of steps
        after the last checkpoint are removed.
        """
        _lines.append(self._metrics, {"stage": stage, **values})

    def facts(self) -> dict[str, Any]:
        """Return a dict with two entries. ``environments`` is a list with the commit, versions and hardware of each
        machine. ``stages`` maps each stage to its ``seconds``, the index of its machine (``environment``), and the
        SHA-256 of its file.

        The time of an interrupted stage is counted up to its last checkpoint.
        """
        return facts_of(self._notes)

    def gather(self, jobs: Sequence[str]) -> None:
        """Merge the files that the jobs wrote (computing times, machines and metrics) into the run, in the given order.
        A second call changes nothing.
        """
        facts, said = self.facts(), _said(self._metrics)
        for notes in map(self.notes, jobs):
            theirs = facts_of(notes)
            for name, fact in theirs["stages"].items():
                place = _index(facts["environments"], theirs["environments"][fact["environment"]])
                facts["stages"][name] = {**fact, "environment": place}
            lines = _said(notes / _METRICS)
            first = {line["stage"]: _step(line) for line in reversed(lines)}
            said = [line for line in said if line["stage"] not in first or _step(line) < first[line["stage"]]] + lines
        if (self.folder / JOBS).exists():
            record.write_json(self._notes / FACTS, facts)
            _lines.write(self._metrics, said)
        self.__dict__.pop("_digests", None)  # the jobs have added stages

    def notes(self, job: str) -> Path:
        """Return the folder in which a job writes its state, metrics and times."""
        return self.folder / JOBS / job

    def tidy(self) -> None:
        """Delete the files in which the jobs wrote their states. No job may be running."""
        shutil.rmtree(self.folder / JOBS, ignore_errors=True)
        self._tidy()

    def loop(
        self,
        name: str,
        steps: int,
        save: Callable[[], Mapping[str, np.ndarray]],
        restore: Callable[[Mapping[str, np.ndarray]], None],
    ) -> Iterator[int]:
        """Yield the numbers of the steps of a loop inside a stage, up to ``steps``, and write checkpoints in between. A
        resumed loop starts at the last checkpoint. ``save`` returns the arrays to write to a checkpoint; ``restore``
        gets the arrays of the last checkpoint when the loop is resumed.

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
        first, spent, checkpoints, cadence = 0, 0.0, self.checkpoints(name), self.cadence()
        with record.reading(checkpoints.folder, _RESUMABLE):
            found = checkpoints.load()
        if found is not None:
            first, spent = found.step, float(found.facts["seconds"])
            self._spent[name] = spent
            restore({key: tensor.numpy() for key, tensor in found.tensors.items()})
        started = time.perf_counter()
        with _progress.bar(self.progress, total=steps, initial=first, desc=name, mininterval=0.5) as bar:
            for step in range(first, steps):
                yield step
                bar.update()
                if cadence.due(step + 1):
                    now = time.perf_counter()
                    tensors = {key: torch.from_numpy(np.asarray(array)) for key, array in save().items()}
                    checkpoints.save(Checkpoint(step + 1, tensors, {"seconds": spent + now - started}))
                    cadence.wrote(now)

    def train(self, name: str, build: Callable[..., StepLoop]) -> None:
        """Run a training loop inside a stage, from its last checkpoint if there is one. ``build(checkpoints=…,
        cadence=…)`` returns the loop, which writes checkpoints with these two objects.
        """
        loop = build(checkpoints=self.checkpoints(name), cadence=self.cadence())
        with record.reading(self.checkpoints(name).folder, _RESUMABLE):
            loop.resume()
        self._spent[name] = loop.seconds_before
        loop.run(progress=self.progress, name=name)

    def checkpoints(self, name: str) -> Checkpoints:
        """Return an object that writes the checkpoints of a stage, and that reads the last checkpoint after an
        interruption.
        """
        return Checkpoints(self.folder / f"{name}{_CHECKPOINT}", {"stage": name, **flat(self.config)})

    def cadence(self) -> Cadence:
        """Return the :class:`Cadence` that decides when a stage writes its next checkpoint."""
        return Cadence(seconds=CHECKPOINT_SECONDS)

    def _once(self, name: str, compute: Callable[[], Callable[[Path], None]]) -> None:
        """Compute and write a stage unless it is complete; also record its computing time and machine. ``compute``
        returns a function that writes the result to a path.
        """
        if name not in self:
            started, outside, self._elsewhere = time.perf_counter(), self._elsewhere, 0.0
            self._forget(name)
            write = compute()
            took = time.perf_counter() - started
            written = self.folder / f".{name}-new.npz"  # renamed when its checksum has been noted
            write(written)
            took += self._spent.pop(name, 0.0) - self._elsewhere
            self._note(name, took, self._environment, record.digest_of(written))
            record.replace(written, self._own(name))
            self._elsewhere = outside + time.perf_counter() - started  # the time of a nested stage counts once
        shutil.rmtree(self.checkpoints(name).folder, ignore_errors=True)

    def _note(self, name: str, seconds: float, environment: dict[str, Any], digest: str) -> None:
        facts = self.facts()
        place = _index(facts["environments"], environment)
        self._digests[name] = digest
        facts["stages"][name] = {"seconds": round(seconds, 3), "environment": place, "sha256": digest}
        record.write_json(self._notes / FACTS, facts)

    def _forget(self, name: str) -> None:
        """Remove the lines of ``metrics.jsonl`` that an interrupted stage wrote after its last checkpoint. If the last
        line was cut off, remove it too.
        """
        if not self._metrics.exists():
            return
        first = self.checkpoints(name).last_step()
        lines = [line for line in _said(self._metrics) if line["stage"] != name or _step(line) < first]
        _lines.write(self._metrics, lines)

    def _tidy(self) -> None:
        for torn in self.folder.glob(".*-*"):  # temporary files of interrupted writes
            torn.unlink(missing_ok=True)

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return dict(record.plain(record.environment()))

    @property
    def _metrics(self) -> Path:
        return self._notes / _METRICS

    def _own(self, name: str) -> Path:
        return self.folder / f"{name}.npz"


def agree(known: Any, config: Any) -> bool:
    """Return whether the settings ``known`` of a run folder agree with the settings ``config``. Settings that an
    earlier version of this package did not have may be missing from ``known``.

    >>> agree({"size": 2}, {"size": 2, "limit": 0.1}), agree({"size": 2, "limit": 0.2}, {"size": 2, "limit": 0.1})
    (True, False)
    """
    if isinstance(known, Mapping) and isinstance(config, Mapping):
        return all(name in config and agree(value, config[name]) for name, value in as_now(known, config).items())
    return bool(known == config)


def settings(folder: Path) -> Any:
    """Read the settings of a run folder from ``config.json`` or from its record; return None if it has neither."""
    expected = "the settings of a run, or --fresh to start again"
    for path in (folder / "config.json", folder / "record.json"):
        if path.exists():
            found = record.read_json(record.inside(path, folder), expected)
            return found if path.stem == "config" else found.get("config")
    return None


def _said(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a file ``metrics.jsonl``. If an interruption cut off the last line, this line is
    left out.
    """
    return _lines.read(path, stage=str)


def _step(said: Mapping[str, Any]) -> float:
    """Return the step of an entry of ``metrics.jsonl``. For the last entry of a stage, which has no step, return
    infinity.
    """
    return record.number(said.get("step", math.inf))


def _index(places: list[dict[str, Any]], place: dict[str, Any]) -> int:
    """Return the index of the machine ``place`` in the list ``places``. If the machine is not in the list, it is added
    at the end.
    """
    if place not in places:
        places.append(place)
    return places.index(place)
