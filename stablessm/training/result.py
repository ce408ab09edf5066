"""What a training run gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from stablessm.training.divergence import DivergenceReport


@final
@dataclass(frozen=True, eq=False)
class TrainingResult:
    """A finished run; the same is in ``record.json`` and ``metrics.jsonl`` of its folder."""

    folder: Path
    steps: int
    """Updates that were made."""
    seconds: float
    """Over all interruptions, as far as checkpoints tell."""
    losses: np.ndarray
    """(rows, 2): step, and the mean training loss since the row before."""
    best: Mapping[str, Any] | None
    """The validation scores with the best metric, and their step; None if nothing was validated."""
    last: Mapping[str, Any] | None
    """The validation scores of the last weights that were validated."""
    scores: Mapping[str, Mapping[str, float]]
    """By split, of the weights that were selected; empty if the run diverged."""
    diverged: DivergenceReport | None
    replicas: tuple[TrainingResult, ...] = ()
    """One for each model that was trained, of ``TrainingConfig(replicas=)``."""

    def __str__(self) -> str:
        lines = [f"{self.steps} steps in {self.seconds:.1f} s, written to {self.folder}"]
        if len(self.losses) == 1:
            lines.append(f"training loss {self.losses[0, 1]:.4g} on average")
        elif len(self.losses):
            lines.append(f"training loss {self.losses[0, 1]:.4g} at first, {self.losses[-1, 1]:.4g} at last")
        for split, scores in self.scores.items():
            told = ", ".join(f"{name} {_number(value)}" for name, value in scores.items() if name != "step")
            lines.append(f"{split}: {told}")
        if self.diverged is not None:
            lines.append(str(self.diverged))
        return "\n".join(lines)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"
