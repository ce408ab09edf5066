"""Defines an experiment: a question, a claim of a paper, settings for each size, and statements that a program
checks.
"""

from __future__ import annotations

import datetime
import hashlib
import inspect
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar, final

from stablessm import _locks as locks
from stablessm import record
from stablessm._errors import ArgumentError, quoted
from stablessm.experiments.frame.run import Run, settings
from stablessm.experiments.frame.settings import changed
from stablessm.experiments.frame.stages import PACK, Stages
from stablessm.experiments.listing import judged_size
from stablessm.report.claim import Claim as Claim
from stablessm.report.figure import Figure

Size: TypeAlias = Literal["smoke", "reduced", "paper", "large"]
C = TypeVar("C")


@final
@dataclass(frozen=True)
class Experiment(Generic[C]):
    """A figure or table of a paper to reproduce, or a question of our own. ``run`` computes and stores the stages;
    ``figures`` and ``claims`` only read the stored stages.
    """

    id: str
    title: str
    source: str
    question: str
    claim: str
    configs: Mapping[Size, C]
    minutes: Mapping[Size, float]
    """Minutes that each size takes on two cores; the field ``computed`` of a record names its machine."""
    run: Callable[[C, Run], None]
    figures: Callable[[C, Stages], Sequence[Figure]]
    claims: Callable[[C, Stages], Sequence[Claim]]
    jobs: Callable[[C], Mapping[str, Callable[[Run], object]]] | None = None
    """Independent jobs by name: each job has stages of its own and waits for no other job. ``run`` computes the same
    stages and the stages that need several jobs. Without this field the experiment is one job."""
    readme: Path | None = None
    """The file whose section "Differences from the paper" or "Limits" a record repeats."""

    def config(self, size: Size) -> C:
        """Return the settings of a size. Every experiment has settings for the size ``smoke`` and for at least one of
        the sizes ``paper`` and ``reduced``.
        """
        if size not in self.configs:
            raise ArgumentError("size", " or ".join(self.configs), quoted(size))
        return self.configs[size]


@final
@dataclass(frozen=True)
class Plan:
    """An experiment with its settings and its run folder: ``out/ID/SIZE`` or, if settings were changed,
    ``out/ID/SIZE-HASH``.
    """

    experiment: Experiment[Any]
    size: Size
    changes: Mapping[str, str]
    config: Any
    folder: Path

    @staticmethod
    def of(experiment: Experiment[Any], size: Size, out: Path, changes: Mapping[str, str] | None = None) -> Plan:
        """Return the plan (settings and run folder) of an experiment at a size. ``changes`` maps the names of settings
        to new values, given as text. Each combination of settings has a run folder of its own.
        """
        config, label = experiment.config(size), str(size)
        if changes and (custom := changed(config, changes)) != config:
            config, label = custom, f"{size}-{_digest(custom)}"
        return Plan(experiment, size, changes or {}, config, out / experiment.id / label)

    @property
    def id(self) -> str:
        """Return ``ID/SIZE``, the name of the run. It is the same on every machine."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    def jobs(self) -> dict[str, Callable[[Run], object]]:
        """Return a dict from the name of each independent job of the run to its function."""
        if self.experiment.jobs is None:
            return {"all": lambda run: self.experiment.run(self.config, run)}
        return dict(self.experiment.jobs(self.config))

    @contextmanager
    def begun(self, *, fresh: bool = False, progress: bool = True) -> Iterator[Run]:
        """Open the run folder, lock the folder for this process, and yield the run (a context manager for a ``with``
        statement). With ``fresh``, an earlier run in the folder is first deleted.
        """
        with locks.alone(self.folder):
            if fresh and self.folder.exists():
                self._discard()
            new = not self.folder.exists()
            run = Run(self.folder, asdict(self.config), progress=progress, command=self.command)
            if is_complete(self.folder):
                run.tidy()
            try:
                yield run
            except ArgumentError:
                if new and [path.name for path in self.folder.iterdir()] == ["config.json"]:  # nothing was computed
                    shutil.rmtree(self.folder)
                raise

    def _discard(self) -> None:
        if settings(self.folder) is None:
            raise ArgumentError("--fresh", "a run folder, which has a config.json", str(self.folder))
        discarded = self.folder.with_name(f".{self.folder.name}-discarded")
        shutil.rmtree(discarded, ignore_errors=True)
        self.folder.rename(discarded)  # renamed first, so that an interrupted deletion leaves no incomplete run
        shutil.rmtree(discarded)

    @property
    def command(self) -> str:
        """Return the shell command that computes this run."""
        options = [word for name, text in self.changes.items() for word in ("--set", f"{name}={text}")]
        return shlex.join(["stablessm", "run", self.experiment.id, "--size", self.size, *options])

    def finish(self, run: Run) -> None:
        """Compute the missing stages, then draw the figures, check the claims and write the record."""
        run.gather(list(self.jobs()))
        self.experiment.run(self.config, run)
        facts = run.facts()
        for name in self.conclude(facts["stages"], facts["environments"]):
            Figure.load(self.folder / f"{name}.json").save_pictures(self.folder)
        run.tidy()

    def conclude(self, timed: Mapping[str, Any], places: Sequence[Mapping[str, Any]]) -> list[str]:
        """Draw the figures, check the claims and write the record, all from the stored stages; return the names of the
        figures.

        Args:
            timed: A dict from the name of each stage to its ``seconds`` and its ``environment``, the index of its
                machine in ``places``.
            places: Commit, versions and hardware of each machine that computed stages.
        """
        stages = Stages(self.folder, command=self.command)
        figures = list(self.experiment.figures(self.config, stages))
        for figure in figures:
            figure.save(self.folder)
        claims = list(self.experiment.claims(self.config, stages))
        if self.size == "smoke":
            minutes: Mapping[Any, float] = self.experiment.minutes
            main = judged_size(minutes)
            small = f"Too small to judge; --size {main} takes {minutes[main]:g} minutes."
            claims = [replace(claim, verdict="", why=small) for claim in claims]
        stages.pack()
        computed = []
        for i, place in enumerate(places):
            seconds = [fact["seconds"] for fact in timed.values() if fact["environment"] == i]
            computed.append({**place, "stages": len(seconds), "seconds": round(sum(seconds), 1)})
        files = [self.folder / name for name in (PACK, "metrics.jsonl", *(f"{figure.name}.json" for figure in figures))]
        about = {name: getattr(self.experiment, name) for name in ("id", "title", "source", "question", "claim")}
        content = {
            **about,
            "deviations": deviations(self.experiment),
            "size": self.folder.name,
            "status": "complete",
            "config": asdict(self.config),
            "claims": [asdict(claim) for claim in claims],
            "figures": [figure.name for figure in figures],
            "arrays": [PACK],
            "files": {path.name: record.digest_of(path) for path in files if path.exists()},
            "command": self.command,
            **record.environment(),
            "computed": computed,
            "stages": timed,
            "wall_time_s": round(sum(place["seconds"] for place in computed), 1),
            "date": datetime.date.today().isoformat(),
        }
        record.write_json(self.folder / "record.json", content)
        return content["figures"]


def execute(
    experiment: Experiment[Any],
    size: Size,
    out: Path,
    *,
    changes: Mapping[str, str] | None = None,
    fresh: bool = False,
    progress: bool = True,
) -> tuple[Path, bool]:
    """Run or resume an experiment in this process; return the run folder, and whether the run was already complete.

    ``changes`` maps the names of settings to new values, given as text. With ``fresh``, an earlier run is first
    deleted, and all stages are computed again.
    """
    plan = Plan.of(experiment, size, out, changes)
    with plan.begun(fresh=fresh, progress=progress) as run:
        complete = is_complete(plan.folder)
        if not complete:
            if busy := [job for job in plan.jobs() if locks.running(run.notes(job))]:
                raise ArgumentError("folder", "no running job of a sweep in it", f"{', '.join(busy)} in {plan.folder}")
            plan.finish(run)
    return plan.folder, complete


def deviations(experiment: Experiment[Any]) -> str:
    """Return the section "Differences from the paper" or "Limits" of an experiment's README as plain text. Return an
    empty string if there is no such section.

    The file is ``experiment.readme``, or else the README.md beside the module that defines ``experiment.run``.

    >>> from stablessm.experiments import catalog
    >>> deviations(catalog.get("lr-fig6"))
    'The paper does not say which eigenfunctions it uses.'
    """
    try:
        path = experiment.readme or Path(inspect.getfile(experiment.run)).with_name("README.md")
        text = path.read_text(encoding="utf-8")
    except (TypeError, OSError):  # a callable without a file, or a file without a README
        return ""
    found = re.search(r"\*\*(?:Differences from the paper|Limits)\.\*\* (.*?)(?=\n\n\*\*|\Z)", text, re.DOTALL)
    paragraphs = found[1].split("\n\n") if found else []
    return "\n\n".join(" ".join(paragraph.split()).replace("`", "") for paragraph in paragraphs)


def _digest(config: Any) -> str:
    """Return a short hash of the settings. It is part of the name of a run folder, so that runs with different settings
    have different folders.
    """
    return hashlib.sha256(json.dumps(record.plain(asdict(config))).encode()).hexdigest()[:8]


def is_complete(folder: Path) -> bool:
    """Return whether the run in this folder is complete."""
    try:
        return record.read_json(record.inside(folder / "record.json", folder)).get("status") == "complete"
    except (OSError, ArgumentError):
        return False
