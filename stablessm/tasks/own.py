"""Your own data: arrays in memory or in .npy and .npz files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.tasks import sources
from stablessm.tasks.array_task import ArrayTask
from stablessm.tasks.options import Options, option
from stablessm.tasks.stored import shuffled_split

_PARTS = ("inputs", "targets", "lengths")


@final
@dataclass(frozen=True, eq=False)
class ArraysOptions(Options):
    """Where the arrays are."""

    inputs: str | np.ndarray | Tensor = option(help="an array, an .npy file, or an .npz file of all", place=True)  # noqa: RUF009
    targets: str | np.ndarray | Tensor | None = option(None, "an array or an .npy file; none beside .npz", place=True)  # noqa: RUF009
    lengths: str | np.ndarray | Tensor | None = option(None, "of right-padded inputs, where some are", place=True)  # noqa: RUF009
    valid: float = option(0.1, "share of the examples to choose settings by")
    test: float = option(0.1, "share of the examples to test on")
    standardise: bool = option(True, "whether values that come in are standardised, by the training examples")
    split_seed: int = option(0, "which examples go into which split")


@final
class Arrays(ArrayTask):
    """A task from your arrays: what kind it is follows from their types and shapes.

    Inputs (n, T, d) or (n, T) floating point are values, (n, T) whole numbers are tokens. Targets (n,) whole numbers
    are classes, (n, T) whole numbers are classes at each step, (n,) or (n, k) floating point are values, (n, T, k)
    values at each step. ``lengths`` (n,) says how much of each padded sequence is real; for a target at each step the
    padding then does not count. An ``.npz`` file holds ``inputs``, ``targets`` and perhaps ``lengths``.

    >>> import torch
    >>> from stablessm import tasks
    >>> task = tasks.get("arrays", inputs=torch.randn(50, 20, 3), targets=torch.arange(50) % 2)
    >>> task.sizes, task.metric, task.outputs.size, task.batch("train", 8).inputs.shape
    ({'train': 40, 'valid': 5, 'test': 5}, 'accuracy', 2, torch.Size([8, 20, 3]))
    """

    def __init__(self, options: ArraysOptions, name: str = "arrays") -> None:
        self.name, self.options = name, options
        arrays = _read(options)
        inputs, targets, lengths = (arrays.get(part) for part in _PARTS)
        if inputs is None or targets is None:
            raise ArgumentError("targets", "an array, or a file that holds one", "none")
        self.content = sources.content_digest(*(array for array in arrays.values()))
        rows = shuffled_split(len(inputs), options.valid, options.test, options.split_seed)
        self._set(inputs, targets, lengths, rows, options.standardise)


def _read(options: ArraysOptions) -> dict[str, np.ndarray]:
    given = {part: getattr(options, part) for part in _PARTS if getattr(options, part) is not None}
    if isinstance(options.inputs, str) and options.inputs.endswith(".npz"):
        if len(given) > 1:
            raise ArgumentError("targets, lengths", f"none beside {options.inputs}, which holds them", list(given)[1:])
        return _npz(Path(options.inputs))
    return {part: _array(part, value) for part, value in given.items()}


def _npz(path: Path) -> dict[str, np.ndarray]:
    found = dict(zip(_PARTS, sources.arrays(path, _PARTS[:2]), strict=False))
    with np.load(path, allow_pickle=False) as stored:
        names = stored.files
    return found | ({"lengths": sources.arrays(path, ("lengths",))[0]} if "lengths" in names else {})


def _array(part: str, value: str | np.ndarray | Tensor) -> np.ndarray:
    if isinstance(value, str):
        try:
            found = np.load(value, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return found
        except sources.BROKEN as error:
            raise ArgumentError(part, "an array in a whole .npy file", f"{value} ({error})") from error
        raise ArgumentError(part, "an array in an .npy file", value)
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value
