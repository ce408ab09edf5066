"""How far the runs in a folder are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from stablessm import _locks as locks
from stablessm.experiments.frame.base import is_complete
from stablessm.experiments.frame.run import JOBS
from stablessm.experiments.frame.stages import PACK, Stages
from stablessm.sweeps import notes
from stablessm.sweeps.notes import Notes
from stablessm.sweeps.worker import SWEEP


@final
@dataclass(frozen=True)
class RunStatus:
    """Of one run folder."""

    folder: Path
    state: Literal["complete", "running", "failed", "interrupted"]
    stages: int
    """That are there."""
    jobs: Mapping[str, Notes]
    """By name; none once the run is complete, or where it is not computed as a sweep."""

    @property
    def count(self) -> Counter[str]:
        """Of jobs, by state."""
        return Counter(note.state for note in self.jobs.values())


def runs(out: Path) -> list[RunStatus]:
    """Every run folder ``out/ID/SIZE`` of an experiment, in order.

    >>> runs(Path("nowhere"))
    []
    """
    folders = sorted({path.parent for name in ("config.json", PACK) for path in out.glob(f"[!.]*/[!.]*/{name}")})
    return [_status(folder) for folder in folders if not any(folder.glob("*.safetensors"))]  # those are models


def _status(folder: Path) -> RunStatus:
    stages = len(Stages(folder).stages())
    if is_complete(folder):
        return RunStatus(folder, "complete", stages, {})
    sweep = folder / JOBS / SWEEP
    names = json.loads(sweep.read_text(encoding="utf-8"))["jobs"] if sweep.exists() else []
    jobs = {name: notes.read(folder / JOBS / name) for name in names}
    found = {note.state for note in jobs.values()}
    if locks.taken(folder) or "running" in found:
        return RunStatus(folder, "running", stages, jobs)
    return RunStatus(folder, "failed" if "failed" in found else "interrupted", stages, jobs)
