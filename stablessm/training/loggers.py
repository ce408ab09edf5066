"""Loggers: objects that receive the metrics of a training run, in addition to the file ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from stablessm._optional import why_missing
from stablessm.training.result import TrainingResult


@runtime_checkable
class Logger(Protocol):
    """The interface of loggers: three methods, which a training run calls (with ``torchrun``, only on rank 0).

    No base class is required.
    """

    def begin(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        """Prepare for logging; called when a run starts or is resumed.

        Args:
            folder: Folder of the run.
            settings: ``config``, ``task`` and ``model`` as plain values.
            step: Number of steps that the run has already made. Steps after ``step`` that were logged before an
                interruption are logged again.
        """

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the metrics of the training run after a step.

        Args:
            step: Number of steps made.
            values: A row of ``metrics.jsonl`` without its ``step``: ``loss``, ``lr``, … of training, or ``split`` and
                the scores of a validation. With ``TrainingConfig(replicas=)`` the row also has ``replica``, the number
                of the model. Infinity and NaN are Python floats here, not texts as in the file.
        """

    def end(self, result: TrainingResult | None) -> None:
        """Finish logging; called when the run ends. ``result`` is None if the run was interrupted or failed."""


@final
class TensorBoard:
    """A logger that writes TensorBoard files to ``tensorboard/`` in the run folder, if tensorboard is installed."""

    _writer: Any = None

    def begin(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        """Open the TensorBoard file; drop events after ``step`` that an earlier part of the run wrote."""
        if why_missing("torch.utils.tensorboard") is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the metrics under the names ``train/NAME``, or ``valid/NAME`` for the scores of a validation."""
        for name, value in values.items() if self._writer is not None else ():
            if isinstance(value, float):
                self._writer.add_scalar(f"{values.get('split', 'train')}/{name}", value, step)

    def end(self, result: TrainingResult | None) -> None:
        """Close the TensorBoard file."""
        if self._writer is not None:
            self._writer.close()
