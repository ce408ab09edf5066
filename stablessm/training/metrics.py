"""What a run says on its way: a line of JSON each time, and TensorBoard's events where that is installed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from stablessm import record
from stablessm._optional import why_missing

_FILE = "metrics.jsonl"


@final
class Metrics:
    """``metrics.jsonl`` and ``tensorboard/`` of a run folder.

    ``first``: the step a run goes on from; what was said of later ones is dropped, it will be said again.

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
        record.write_lines(self._path, [row for row in read_rows(folder) if row["step"] <= first])
        self._hash = hashlib.sha256(self._path.read_bytes())
        self._board = _board(folder / "tensorboard", first)

    @property
    def digest(self) -> str:
        """SHA-256 of the file, as far as this object wrote it."""
        return self._hash.hexdigest()

    def write(self, step: int, **values: Any) -> None:
        """One line, in one piece; numbers also to TensorBoard."""
        self._hash.update(record.append_line(self._path, {"step": step, **values}))
        if self._board is not None:
            prefix = values.get("split", "train")
            for name, value in values.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{prefix}/{name}", value, step)

    def close(self) -> None:
        """Write what TensorBoard still holds."""
        if self._board is not None:
            self._board.close()


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """What a run said in its folder; a line that a kill cut off is left out."""
    return record.read_lines(folder / _FILE, step=int)


def losses(rows: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """(rows, 2): step and training loss of the rows that are not about a split."""
    found = [(row["step"], record.number(row.get("loss"))) for row in rows if "split" not in row]
    return np.array(found, dtype=float).reshape(-1, 2)


def write_means(folder: Path, replicas: Sequence[Path]) -> list[dict[str, Any]]:
    """Write the ``metrics.jsonl`` of models that were trained as one: means of the numbers that they said."""
    said: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in (row for replica in replicas for row in read_rows(replica)):
        said.setdefault((row["step"], str(row.get("split", ""))), []).append(row)
    rows = []
    for (step, split), each in sorted(said.items()):
        numbers = [name for name, value in each[0].items() if isinstance(value, float)]
        means = {name: sum(record.number(row[name]) for row in each if name in row) / len(each) for name in numbers}
        rows.append({"step": step, **({"split": split} if split else {}), **means})
    record.write_lines(folder / _FILE, rows)
    return rows


def _board(folder: Path, first: int) -> Any:
    if why_missing("torch.utils.tensorboard") is not None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=first + 1)
