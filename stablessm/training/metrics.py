"""The file of the metrics of a run, with one line of JSON per logged step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from stablessm import _lines, record

_FILE = "metrics.jsonl"


@final
class Metrics:
    """Writes the metrics of a run to ``metrics.jsonl`` in the run folder.

    Args:
        folder: The run folder.
        first: The step from which the run is resumed. Lines of later steps are dropped, because the resumed run writes
            them again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Metrics(Path(folder), 0).write(5, loss=2.0)
    ...     Metrics(Path(folder), 5).write(10, loss=1.0)
    ...     _ = Metrics(Path(folder), 5)
    ...     read_rows(Path(folder))
    [{'step': 5, 'loss': 2.0}]
    """

    def __init__(self, folder: Path, first: int) -> None:
        self._path = folder / _FILE
        _lines.write(self._path, [row for row in read_rows(folder) if row["step"] <= first])
        self._hash = hashlib.sha256(self._path.read_bytes())

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all lines of the file: the lines that were in the file before, without those dropped,
        and the lines that this object has written.
        """
        return self._hash.hexdigest()

    def write(self, step: int, **values: Any) -> None:
        """Append one line with the metrics of a step, in a single write."""
        self._hash.update(_lines.append(self._path, {"step": step, **values}))


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Read the metrics in a run folder; an incomplete last line of a killed run is ignored."""
    return _lines.read(folder / _FILE, step=int)


def losses(rows: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """Return an array (rows, 2) of steps and training losses from the rows of the metrics, without validation rows."""
    found = [(row["step"], record.number(row.get("loss"))) for row in rows if "split" not in row]
    return np.array(found, dtype=float).reshape(-1, 2)


def write_means(folder: Path, replicas: Sequence[Path]) -> list[dict[str, Any]]:
    """Write a file ``metrics.jsonl`` with the means of the metrics over all replicas, and return its rows."""
    said: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in (row for replica in replicas for row in read_rows(replica)):
        said.setdefault((row["step"], str(row.get("split", ""))), []).append(row)
    rows = []
    for (step, split), each in sorted(said.items()):
        numbers = [name for name, value in each[0].items() if isinstance(value, float)]
        means = {name: sum(record.number(row[name]) for row in each if name in row) / len(each) for name in numbers}
        rows.append({"step": step, **({"split": split} if split else {}), **means})
    _lines.write(folder / _FILE, rows)
    return rows
