"""Loggers, which receive the metrics of a training in addition to ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from stablessm._optional import why_missing
from stablessm.training.result import TrainingResult


@runtime_checkable
class Logger(Protocol):
    """An object with the three methods below; no base class is required. Under ``torchrun`` only rank 0 calls it."""

    def begin(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        """Called when a run begins or is resumed.

        Args:
            folder: Folder of the run.
            settings: ``config``, ``task`` and ``model`` as plain values.
            step: Number of steps made before. Later steps that were already logged are logged again.
        """

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Called with the metrics after a step.

        Args:
            step: Number of steps made.
            values: A row of ``metrics.jsonl`` without its ``step``: ``loss``, ``lr``, … of training, or ``split`` and
                the scores of a validation; with ``TrainingConfig(replicas=)`` also ``replica``, the number of the
                model. Infinite numbers are floats.
        """

    def end(self, result: TrainingResult | None) -> None:
        """Called when the run ends; ``result`` is None if it was interrupted or failed."""


@final
class TensorBoard:
    """A logger that writes ``tensorboard/`` in the run folder; it does nothing if tensorboard is not installed."""

    _writer: Any = None

    def begin(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        """Open the file; events after ``step`` are dropped."""
        if why_missing("torch.utils.tensorboard") is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the numbers as ``train/NAME``, or ``valid/NAME`` for the scores of a validation."""
        for name, value in values.items() if self._writer is not None else ():
            if isinstance(value, float):
                self._writer.add_scalar(f"{values.get('split', 'train')}/{name}", value, step)

    def end(self, result: TrainingResult | None) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
