"""The result of a training run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from stablessm._display import Result
from stablessm.training.divergence import DivergenceReport
from stablessm.training.metrics import losses, write_means


@final
@dataclass(frozen=True, eq=False, repr=False)
class TrainingResult(Result):
    """The result of a training run, with the same numbers as ``record.json`` and ``metrics.jsonl`` in
    the run folder.
    """

    folder: Path
    steps: int
    """Number of updates of the weights."""
    seconds: float
    """Wall time in seconds, summed over all parts of an interrupted run, each up to its last checkpoint."""
    losses: np.ndarray
    """Training losses (rows, 2): the step, and the mean loss since the previous row."""
    best: Mapping[str, Any] | None
    """Scores of the validation with the best metric, and its step; None if there was no validation."""
    last: Mapping[str, Any] | None
    """Scores of the last validation, and its step."""
    scores: Mapping[str, Mapping[str, float]]
    """Scores of the selected weights by split; empty if the run diverged."""
    diverged: DivergenceReport | None
    """Report on the divergence; None if the run did not diverge."""
    replicas: tuple[TrainingResult, ...] = ()
    """Result of each model, with ``TrainingConfig(replicas=)``. Scores and losses are then means over the models that
    did not diverge, ``best`` and ``last`` are None, and ``diverged`` is the report on the first model that diverged."""
    early: str | None = None
    """The reason if early stopping (``TrainingConfig(patience=)``) ended the run."""
    history: tuple[Mapping[str, Any], ...] = ()
    """The source of the initial weights (``init_from``), and the settings that ``extend`` changed, with the steps."""

    def __str__(self) -> str:
        if self.replicas:
            return "\n".join(self._told_together())
        lines = [f"{self.steps} steps in {self.seconds:.1f} s, written to {self.folder}"]
        if len(self.losses) == 1:
            lines.append(f"training loss {self.losses[0, 1]:.4g} on average")
        elif len(self.losses):
            lines.append(f"training loss {self.losses[0, 1]:.4g} at first, {self.losses[-1, 1]:.4g} at last")
        for split, scores in self.scores.items():
            told = ", ".join(f"{name} {_number(value)}" for name, value in scores.items() if name != "step")
            lines.append(f"{split}: {told}")
        lines.extend(_told(event) for event in self.history)
        lines.extend(str(why) for why in (self.early, self.diverged) if why is not None)
        return "\n".join(lines)

    def _told_together(self) -> Iterator[str]:
        yield f"{len(self.replicas)} replicas, {self.steps} steps in {self.seconds:.1f} s, written to {self.folder}"
        for split, scores in self.scores.items():
            each = {name: [one.scores[split][name] for one in self.replicas if split in one.scores] for name in scores}
            told = (f"{name} {np.mean(found):.4g} ± {np.std(found):.2g}" for name, found in each.items())
            yield f"{split}: {', '.join(told)}"
        yield from map(_told, self.history)
        for one in self.replicas:
            yield from (f"{one.folder.name} {why}" for why in (one.early, one.diverged) if why is not None)


def together(folder: Path, seconds: float, replicas: Sequence[TrainingResult]) -> TrainingResult:
    """Combine the results of all replicas into one result with mean scores, and write the mean metrics to ``folder``.
    ``seconds`` is the training time.
    """
    splits = dict.fromkeys(split for one in replicas for split in one.scores)
    scores = {split: _means([one.scores[split] for one in replicas if split in one.scores]) for split in splits}
    rows = write_means(folder, [one.folder for one in replicas])
    diverged = next((one.diverged for one in replicas if one.diverged is not None), None)
    steps = max(one.steps for one in replicas)
    return TrainingResult(
        folder, steps, seconds, losses(rows), None, None, scores, diverged, tuple(replicas), history=replicas[0].history
    )


def _means(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = [name for name in scores[0] if name not in ("step", "examples")]
    return {name: float(np.mean([one[name] for one in scores])) for name in names}


def _told(event: Mapping[str, Any]) -> str:
    """Return a sentence that describes an event in the history of a run, such as a changed setting."""
    if "init_from" in event:
        return f"initial weights from {event['init_from']['folder']}"
    changes = ", ".join(f"{name} from {old} to {new}" for name, (old, new) in event["changed"].items())
    return f"changed after step {event['step']}: {changes}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"
