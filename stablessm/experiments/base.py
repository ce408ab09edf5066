"""What an experiment is: a question, a claim of a paper, two sizes, and statements a machine can check."""

from __future__ import annotations

import datetime
import hashlib
import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar, final, get_args

from stablessm import record
from stablessm._errors import ArgumentError
from stablessm.experiments.run import Run
from stablessm.experiments.settings import changed
from stablessm.report.figure import Figure

Size: TypeAlias = Literal["smoke", "paper"]
Verdict: TypeAlias = Literal["reproduced", "partly", "not reproduced"]
C = TypeVar("C")

LARGEST_ARRAY = 2_000_000
"""Bytes up to which a stage belongs to the record; a larger one is kept for resuming only."""


@final
@dataclass(frozen=True)
class Claim:
    """One statement of a paper, checked."""

    statement: str
    paper: str
    """The paper's value, or what it says."""
    ours: str
    verdict: Verdict
    why: str
    """One sentence."""


@final
@dataclass(frozen=True)
class Experiment(Generic[C]):
    """One figure or table. ``run`` computes stages, ``figures`` and ``claims`` only read them."""

    id: str
    title: str
    source: str
    question: str
    claim: str
    configs: Mapping[Size, C]
    minutes: Mapping[Size, float]
    """How long each size takes, on two cores; where a record was made is in its ``computed``."""
    run: Callable[[C, Run], None]
    figures: Callable[[C, Run], Sequence[Figure]]
    claims: Callable[[C, Run], Sequence[Claim]]

    def config(self, size: Size) -> C:
        """The frozen settings of that size."""
        if size not in get_args(Size):
            raise ArgumentError("size", " or ".join(get_args(Size)), repr(size))
        return self.configs[size]


def execute(
    experiment: Experiment[Any],
    size: Size,
    out: Path,
    *,
    changes: Mapping[str, str] | None = None,
    fresh: bool = False,
    progress: bool = True,
) -> tuple[Path, bool]:
    """Run an experiment into ``out/ID/SIZE``, or go on with it; the folder, and whether it was all there before.

    With ``changes`` of settings, by name and as text, the folder is ``out/ID/SIZE-…``, another for each config.
    """
    config, settings = experiment.config(size), [f"{name}={text}" for name, text in (changes or {}).items()]
    label: str = size
    if settings and (custom := changed(config, changes or {})) != config:
        config, label = custom, f"{size}-{_digest(custom)}"
    folder = out / experiment.id / label
    if fresh and folder.exists():
        if not (folder / "config.json").exists():
            raise ArgumentError("--fresh", "a run folder, which has a config.json", str(folder))
        discarded = folder.with_name(f".{folder.name}-discarded")
        shutil.rmtree(discarded, ignore_errors=True)
        folder.rename(discarded)  # a kill while files are deleted leaves no half of a run behind
        shutil.rmtree(discarded)
    run = Run(folder, asdict(config), progress=progress)
    if is_complete(folder):
        return folder, True
    experiment.run(config, run)
    figures = list(experiment.figures(config, run))
    for figure in figures:
        figure.save(folder)
    claims = [asdict(claim) for claim in experiment.claims(config, run)]
    facts = {name: getattr(experiment, name) for name in ("id", "title", "source", "question", "claim")}
    content = {
        **facts,
        "size": label,
        "status": "complete",
        "config": asdict(config),
        "claims": claims,
        "figures": [figure.name for figure in figures],
        "arrays": [f"{name}.npz" for name in run.stages() if run.path(name).stat().st_size <= LARGEST_ARRAY],
        "command": shlex.join(["stablessm", "run", experiment.id, "--size", size, *_options(settings)]),
        **record.environment(),
        "computed": run.computed(),
        "wall_time_s": round(sum(place["seconds"] for place in run.computed()), 1),
        "date": datetime.date.today().isoformat(),
    }
    record.write_json(folder / "record.json", content)
    return folder, False


def _options(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def _digest(config: Any) -> str:
    """A short name for a config."""
    return hashlib.sha256(json.dumps(record.plain(asdict(config))).encode()).hexdigest()[:8]


def is_complete(folder: Path) -> bool:
    """Whether this run folder has come to its end."""
    try:
        content = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("status") == "complete"
