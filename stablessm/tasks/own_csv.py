"""Tasks from your own CSV files: one series to forecast, or many labeled sequences."""

from __future__ import annotations

import copy
import csv
import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self, cast, final

import numpy as np

from stablessm._errors import ArgumentError, quoted
from stablessm.tasks import csv_file, sources
from stablessm.tasks.csv_file import Missing, Table
from stablessm.tasks.options import Options, option
from stablessm.tasks.own import ArrayTask
from stablessm.tasks.stored import shuffled_split, split_sizes
from stablessm.tasks.windows import WindowTask


@final
@dataclass(frozen=True)
class SeriesOptions(Options):
    """Options of a series: the file, its columns, and the window and horizon of the forecast."""

    file: str = option(help="CSV file with a line of column names (may be compressed by gzip)", place=True)
    target: str = option("", "columns to forecast, separated by commas (default: all input columns)")
    columns: str = option("", "input columns, separated by commas (default: all numeric columns)")
    window: int = option(96, "number of rows that the model sees")
    horizon: int = option(1, "number of rows that it forecasts")
    missing: Missing = option("forward", "missing cells: fill forward, interpolate, drop rows, mask or refuse")
    valid: float = option(0.1, "fraction of the rows for validation, after the training rows")
    test: float = option(0.2, "fraction of the rows for the test, at the end")
    metric: Literal["mse", "mae"] = option("mse", "metric")


@final
class Series(WindowTask):
    """Forecasting of a series in your CSV file, with one row per step: predict some columns of the next rows.

    >>> from stablessm import tasks
    >>> rows = ["hour,load,wind", *(f"{i}:00,{i % 24},{i % 7}" for i in range(200))]
    >>> _ = Path("load.csv").write_text("\\n".join(rows))
    >>> task = tasks.get("series", file="load.csv", target="load", window=24)
    >>> task.columns, task.outputs.names, task.sizes
    (('load', 'wind'), ('load+1',), {'train': 116, 'valid': 20, 'test': 40})
    >>> Path("load.csv").unlink()
    """

    def __init__(self, options: SeriesOptions, name: str = "series") -> None:
        self.name, self.options, self.metric = name, options, options.metric
        self._read(options, None, None)

    def _read(self, options: SeriesOptions, unit: float | None, with_dt: bool | None) -> None:
        """Read the file. ``unit`` is the unit of the column dt in seconds (default: the usual time between rows of the
        file). ``with_dt`` states whether the task has a column dt (default: only if the time steps are uneven).
        """
        table, order = csv_file.read(Path(options.file)).oldest_first()
        table = dataclasses.replace(table, unit=unit)
        columns = _inputs(table, options.columns) or _numeric(table)
        targets = names_in(options.target, table.header) or tuple(name for name in columns if name in table.header)
        for target in targets:
            table.column(target, "target")
        columns = (*columns, *(target for target in targets if target not in columns))
        columns = (*columns, *(f"{name} missing" for name in columns if options.missing == "mask"))
        series, kept = table.complete(columns, "columns", options.missing)
        if not targets:
            raise ArgumentError("target", f"a column of {options.file} to forecast", "none")
        if (kept.times.irregular and not options.columns if with_dt is None else with_dt) and "dt" not in columns:
            columns, series = (*columns, "dt"), np.hstack([series, kept.numbers(["dt"], "columns")])
        self.notes = order + table.gaps(columns, options.missing) + kept.unused(columns)
        self.notes += other_steps(kept, unit, "dt" in columns)
        self.seconds = kept.times.seconds
        parts = split_sizes(len(series), options.valid, options.test)
        self._slide(series, columns, targets, parts, options.window, options.horizon)

    def describe(self) -> dict[str, Any]:
        """Return the description of the task, including the usual time between two rows, if the file has dates."""
        return {**super().describe(), **({} if self.seconds is None else {"seconds": self.seconds})}

    def as_trained(self, description: Mapping[str, Any]) -> Self:
        """Return this task with the scale of the training task. Both tasks must have the same columns. Time steps are
        measured in the time unit of the training task.
        """
        seconds, trained = description.get("seconds"), tuple(description["scale"])
        if self.seconds is None or {*self.columns} ^ {*trained} > {"dt"}:
            return super().as_trained(description)
        task = copy.copy(self)
        task._read(cast(SeriesOptions, task.options), seconds, "dt" in trained)
        return super(Series, task).as_trained(description)


def other_steps(table: Table, seconds: float | None, with_dt: bool) -> tuple[str, ...]:
    """Return a warning for the user, as a tuple with one sentence, if rows are not as far apart in time as in training.

    ``seconds`` is the time between rows in training. Without a warning, the tuple is empty. There is no warning if the
    model reads the time between rows as an input (``with_dt``).

    >>> rows = (("2024-01-31 00:00",), ("2024-01-31 03:00",))
    >>> other_steps(Table("new.csv", ("time",), rows, (2, 3)), 3600.0, False)
    ('new.csv: rows are 3:00:00 apart, and in training 1:00:00; the model does not read the time between rows',)
    """
    if with_dt or table.times.seconds is None or seconds is None:
        return ()
    now, before = (timedelta(seconds=round(each, 6)) for each in (table.times.seconds, seconds))
    if not table.times.irregular and math.isclose(table.times.seconds, seconds, rel_tol=0.2):
        return ()
    said = "are at uneven times" if table.times.irregular else f"are {now} apart, and in training {before}"
    return (f"{table.file}: rows {said}; the model does not read the time between rows",)


@final
@dataclass(frozen=True)
class SequencesOptions(Options):
    """Options of labeled sequences: the file, the roles of its columns, and the splits."""

    file: str = option(help="CSV file with a line of column names (may be compressed by gzip)", place=True)
    label: str = option("label", "column with the label, the same in all rows of a sequence")
    sequence: str = option("sequence", "column that names the sequence of a row")
    columns: str = option("", "input columns, separated by commas (default: all other numeric columns)")
    missing: Missing = option("forward", "missing cells: fill forward, interpolate, drop rows, mask or refuse")
    kind: Literal["classes", "values"] = option("classes", "kind of the labels")
    valid: float = option(0.1, "fraction of the sequences for validation")
    test: float = option(0.2, "fraction of the sequences for the test")
    split_seed: int = option(0, "seed of the split")


@final
class Sequences(ArrayTask):
    """Prediction of the label of each sequence in your CSV file, with one row per step.

    The rows of a sequence keep the order of the file.

    >>> from stablessm import tasks
    >>> rows = ["who,x,label", *(f"{i // 5},{i % 5 * (i // 5)},{'odd' if i // 5 % 2 else 'even'}" for i in range(100))]
    >>> _ = Path("walks.csv").write_text("\\n".join(rows))
    >>> task = tasks.get("sequences", file="walks.csv", sequence="who")
    >>> task.outputs.names, task.inputs.length, task.sizes
    (('even', 'odd'), 5, {'train': 14, 'valid': 2, 'test': 4})
    >>> Path("walks.csv").unlink()
    """

    def __init__(self, options: SequencesOptions, name: str = "sequences") -> None:
        self.name, self.options = name, options
        table = csv_file.read(Path(options.file))
        places = {role: table.column(getattr(options, role), role) for role in ("sequence", "label")}
        columns = _inputs(table, options.columns) or _numeric(table, besides=(options.sequence, options.label))
        columns = (*columns, *(f"{name} missing" for name in columns if options.missing == "mask"))
        self.notes = table.gaps(columns, options.missing) + table.unused((*columns, options.sequence, options.label))
        values, table, by_name = complete_sequences(table, columns, places["sequence"], options.missing)
        labels, rows = _labels(table, by_name, places["label"]), list(by_name.values())
        inputs, lengths = padded(values, rows)
        names, targets = _targets(table, labels, rows, options)
        self.content = sources.content_digest(inputs, lengths, targets)
        splits = shuffled_split(len(rows), options.valid, options.test, options.split_seed)
        self.target_scale = dict[str, float]()
        if options.kind == "values":
            mean, deviation = (float(part(targets[splits["train"].numpy()])) for part in (np.mean, np.std))
            self.target_scale = {"mean": mean, "deviation": deviation or 1.0}
            targets = (targets - mean) / (deviation or 1.0)
        self._set(inputs, targets, lengths, splits, standardize=True, names=names, identifiers=list(by_name))
        self.columns = columns
        learned = {labels[i] for i in splits["train"].tolist()}
        if options.kind == "classes" and (unseen := [name for name in names if name not in learned]):
            said = f"no training example has the label {', '.join(unseen)}; split_seed= gives another split"
            self.notes += (f"{options.file}: {said}",)

    def describe(self) -> dict[str, Any]:
        """Return the description of the task, including the input columns and the scale of labels that are values."""
        scale = {"target_scale": self.target_scale} if self.target_scale else {}
        return {**super().describe(), "columns": list(self.columns), **scale}

    def as_trained(self, description: Mapping[str, Any]) -> Self:
        """Return this task with the scales and the classes of the training task. Both tasks must have the same columns.
        Before labels that are values were standardized, a task had no ``target_scale``.
        """
        if (known := tuple(description.get("columns", self.columns))) != self.columns:
            raise ArgumentError("columns", f"{', '.join(known)}, as in training", ", ".join(self.columns))
        task, now = super().as_trained(description), self.target_scale
        if now:
            task.target_scale = known = description.get("target_scale", {"mean": 0.0, "deviation": 1.0})
            factor, shift = now["deviation"] / known["deviation"], (now["mean"] - known["mean"]) / known["deviation"]
            raw = {name: values.double() for name, values in self._tensors.items() if name.endswith(".targets")}
            task._tensors = {**task._tensors, **{name: (raw[name] * factor + shift).float() for name in raw}}
            task.__dict__.pop("chance", None)  # it depends on the scale
        return task


def names_in(text: str, known: Collection[str]) -> tuple[str, ...]:
    """Split a list of column names at commas. A name that contains a comma is written in double quotes, unless ``text``
    is a single name (one of the ``known`` column names). A name that is repeated counts once.
    """
    names = [text] if text in known else next(csv.reader([text], skipinitialspace=True), [])
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


def _numeric(table: Table, besides: tuple[str, ...] = ()) -> tuple[str, ...]:
    found = tuple(name for name in table.numeric() if name not in besides)
    if not found:
        others = f" other than {' and '.join(besides)}" if besides else ""
        tried = [name for name in table.header if name not in besides]
        got = [f"{name} ({table.cells_that_are_no_numbers(name) or 'no cell'})" for name in tried]
        raise ArgumentError(table.file, f"a column of numbers{others}", ", ".join(got))
    return found


def _inputs(table: Table, option: str) -> tuple[str, ...]:
    """Return the names of the input columns in the list ``option``; a column of words is replaced by one indicator
    column per word.
    """
    numeric, found = table.numeric(), list[str]()
    for name in names_in(option, table.header):
        words = name in table.header and name not in numeric and not table.numbers_rows(name)
        found += table.categories(name, "columns") if words else [name]
    return tuple(found)


def complete_sequences(
    table: Table, columns: Sequence[str], sequence: int, missing: Missing
) -> tuple[np.ndarray, Table, dict[str, list[int]]]:
    """Return the given columns and the table after the treatment of missing cells, separately for each sequence; and a
    dict from the name of each sequence (in column ``sequence``) to its row numbers, in the order of the file.
    """
    values, kept = table.complete(columns, "columns", missing, list(_rows_by_sequence(table, sequence).values()))
    return values, kept, _rows_by_sequence(kept, sequence)


def _rows_by_sequence(table: Table, sequence: int) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for i, row in enumerate(table.rows):
        if not row[sequence]:
            where = f"{table.file}, line {table.lines[i]}, column {table.header[sequence]}"
            raise ArgumentError(where, "the name of a sequence", "an empty cell")
        rows.setdefault(row[sequence], []).append(i)
    return rows


def padded(values: np.ndarray, rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of all sequences, (sequences, T, columns), padded with zeros to the length T of the longest
    sequence, and the lengths.
    """
    lengths = np.array([len(one) for one in rows])
    inputs = np.zeros((len(rows), lengths.max(), values.shape[1]))
    for sequence, one in zip(inputs, rows, strict=True):
        sequence[: len(one)] = values[one]
    return inputs, lengths


def _labels(table: Table, rows: Mapping[str, list[int]], label: int) -> list[str]:
    """Return the label of each sequence; raise an error if its rows have different labels."""
    for name, mine in rows.items():
        for i in mine:
            if (got := table.rows[i][label]) != (first := table.rows[mine[0]][label]):
                where = f"{table.file}, line {table.lines[i]}, column {table.header[label]}"
                expected = f"{first!r}, as in line {table.lines[mine[0]]} of sequence {name!r}"
                raise ArgumentError(where, expected, quoted(got))
    return [table.rows[mine[0]][label] for mine in rows.values()]


def _targets(
    table: Table, labels: list[str], rows: list[list[int]], options: SequencesOptions
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the class names, and the class number of each sequence. For ``kind="values"``, return the name of the
    label column, and its value for each sequence.
    """
    if options.kind == "values":
        return (options.label,), table.complete([options.label], "label")[0][[mine[0] for mine in rows]]
    for label, mine in zip(labels, rows, strict=True):
        if not label:
            where = f"{table.file}, line {table.lines[mine[0]]}, column {options.label}"
            raise ArgumentError(where, "a label", "an empty cell")
    names = tuple(sorted(set(labels), key=_natural))
    if len(names) < 2:
        raise ArgumentError("label", f"a column of {table.file} with two labels or more", names[0])
    return names, np.array([names.index(label) for label in labels])


def _natural(label: str) -> tuple[int, float, str]:
    """Return a key that sorts labels: numbers in numerical order first, then words in alphabetical order."""
    try:
        return (0, float(label), label)
    except ValueError:
        return (1, 0.0, label)
