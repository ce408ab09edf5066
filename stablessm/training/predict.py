"""Predictions of a trained model from its run folder: forecasts, class probabilities or values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from stablessm import record
from stablessm._checked import checked
from stablessm._display import Result
from stablessm._errors import ArgumentError
from stablessm.layers import storage
from stablessm.tasks import new_data
from stablessm.tasks.base import Batch, Task
from stablessm.tasks.new_data import Data, SeriesReader
from stablessm.tasks.windows import WindowTask
from stablessm.training.config import TrainingConfig
from stablessm.training.evaluate import apply
from stablessm.training.folder import MODEL, settings_of
from stablessm.training.forecast import Forecast, forecast, require_finite_outputs
from stablessm.training.settings import task_of


@final
@dataclass(frozen=True, eq=False, repr=False)
class Predictions(Result):
    """Predictions for many sequences: class probabilities or values."""

    sequences: tuple[str, ...]
    """Names of the sequences."""
    columns: tuple[str, ...]
    """Names of the classes or values."""
    values: np.ndarray
    """Class probabilities or values (sequences, columns)."""
    classes: tuple[str, ...] | None
    """Most likely class of each sequence; None if the model predicts values."""
    note: str
    """States how the numbers are to be understood."""

    def header(self) -> list[str]:
        """Return the column names of the table that :meth:`rows` yields."""
        return ["sequence", *(["class"] if self.classes else []), *self.columns]

    def rows(self) -> Iterator[list[Any]]:
        """Yield one row per sequence: its name, its most likely class (if classified), and its
        probabilities or values.
        """
        for i, row in enumerate(self.values.tolist()):
            yield [self.sequences[i], *([self.classes[i]] if self.classes else []), *row]

    def plain(self) -> dict[str, Any]:
        """Return the predictions as a dictionary of plain values, for JSON."""
        kind = "values" if self.classes is None else "probabilities"
        found = {"sequences": list(self.sequences), "columns": list(self.columns), kind: self.values.tolist()}
        return {**found, "classes": None if self.classes is None else list(self.classes), "note": self.note}


@final
@checked
class TrainedModel:
    """A trained model with the scaling of its inputs and the names of its training data, loaded from its run folder.

    Args:
        folder: Folder of a run of ``stablessm train`` or ``stablessm.training.train``.
        task: The task that the model was trained on (default: the task that ``stablessm train`` stored in the folder,
            whose data are read again from their files). The data are needed only for intervals and for predictions on
            the training data.
        device: ``auto``, ``cpu`` or ``cuda``.
    """

    def __init__(self, folder: str | Path, *, task: Task | None = None, device: str = "auto") -> None:
        self.folder, self.settings = Path(folder), settings_of(folder)
        self.device = TrainingConfig(device=device).chosen_device()
        self.model: Any = storage.load(self.folder / MODEL).to(self.device)
        self._task = task

    def predict(
        self, data: Data | None = None, *, horizon: int | None = None, level: float = 0.9
    ) -> Forecast | Predictions:
        """Predict new data: a forecast if the model was trained to forecast a series, otherwise class probabilities or
        values.

        Args:
            data: A file or an array of new data. For a forecast: a CSV or .npy file or an array (rows, columns) with at
                least as many rows as the window (default: the training data, whose end the forecast continues).
                Otherwise: a CSV, .npy or .npz file or an array (n, T, d), without labels (default: the test split of
                the training data).
            horizon: Number of rows to forecast (default: as in training).
            level: Fraction of the validation errors that the intervals of a forecast cover.
        """
        with self._reading():
            described, config = self.settings["task"], self.settings["config"]
            how: dict[str, Any] = {"batch_size": int(config["batch_size"]), "autocast": bool(config["autocast"])}
            forecasts = {"window", "horizon"} <= set(described["options"]) and "scale" in described
            reader = SeriesReader.of(described) if forecasts else None
        if reader is not None:
            task, missing = self._training_data()
            if task is not None and not isinstance(task, WindowTask):
                raise ArgumentError("task", "the task that the model was trained on", task.name)
            series = task.unscaled if data is None and task is not None else data
            if series is None:
                raise ArgumentError("data", f"a CSV file or an array, since {missing}", "none")
            return forecast(self.model, reader, series, task=task, horizon=horizon, level=level, missing=missing, **how)
        if horizon is not None:
            raise ArgumentError("horizon", "a model that forecasts a series", f"a model of task {described['task']}")
        return self._of_sequences(data, how)

    def _reading(self) -> AbstractContextManager[None]:
        return record.reading(self.folder / "training.json", "the settings of a training run", arguments=False)

    def _training_data(self) -> tuple[Task | None, str]:
        """Return the task on which the model was trained, or None and the reason why the data of the task cannot be
        read.
        """
        if self._task is None:
            try:
                with self._reading():
                    self._task = task_of(self.settings)
            except ArgumentError as error:
                return None, f"the training data cannot be read ({error})"
        return self._task, ""

    def _of_sequences(self, data: Data | None, how: dict[str, Any]) -> Predictions:
        described, notes = self.settings["task"], tuple[str, ...]()
        if data is None:
            task, missing = self._training_data()
            if task is None:
                raise ArgumentError("data", f"a file or an array, since {missing}", "none")
            batches, names = _test_split(task.to(self.device), how["batch_size"]), task.outputs.names
            sequences = task.test_names or tuple(map(str, range(task.sizes["test"])))
        elif "names" not in described:
            expected = "no data (the test split is predicted) for a task other than series, sequences and arrays"
            raise ArgumentError("data", expected, f"data for task {described['task']}")
        else:
            sequences, x, lengths, notes = new_data.sequences(described, data)
            batches, names = _batches(x, lengths, how["batch_size"]), tuple(described["names"])
        self.model.eval()
        with torch.no_grad():
            found = [apply(self.model, batch.to(self.device), autocast=how["autocast"]) for batch in batches]
        outputs = torch.cat(found).double().cpu()
        if outputs.dim() != 2:
            raise ArgumentError("folder", "a model with one output per sequence", "a model with an output per step")
        for name, values in zip(sequences, outputs.numpy(), strict=True):
            require_finite_outputs(values, f"the output for sequence {name}")
        columns = names or tuple(map(str, range(outputs.shape[1])))
        if self.settings["model"]["class"] != "SequenceClassifier":
            said = "\n".join([*notes, "Values in the units of the data."])
            scale = described.get("target_scale", {"mean": 0.0, "deviation": 1.0})
            return Predictions(sequences, columns, outputs.numpy() * scale["deviation"] + scale["mean"], None, said)
        classes = tuple(columns[i] for i in outputs.argmax(-1).tolist())
        note = "Probabilities: the softmax of the model's outputs, not calibrated on the validation split."
        return Predictions(sequences, columns, outputs.softmax(-1).numpy(), classes, "\n".join([*notes, note]))


def _test_split(task: Task, batch_size: int) -> Iterator[Batch]:
    if task.carries or task.outputs.per_step:
        raise ArgumentError("folder", "a model with one output per sequence", f"a model of task {task.name}")
    for index in range(task.steps("test", batch_size)):
        yield task.batch("test", batch_size, index=index)


def _batches(x: Tensor, lengths: Tensor | None, batch_size: int) -> Iterator[Batch]:
    for rows in torch.arange(len(x)).split(batch_size):
        yield Batch(x[rows], x[rows], None if lengths is None else lengths[rows])
