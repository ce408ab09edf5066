"""Tasks from your own arrays, in memory or in .npy and .npz files; dtypes and shapes decide the kind of task."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm._renamed import renamed
from stablessm._similar import did_you_mean
from stablessm.scan.padding import real_steps, without_padding
from stablessm.tasks import sources
from stablessm.tasks.base import SPLITS, Inputs, Outputs, Split
from stablessm.tasks.options import Options, option
from stablessm.tasks.stored import StoredTask, shuffled_split

_PARTS = ("inputs", "targets", "lengths")
Arrayed: TypeAlias = str | np.ndarray | Tensor
"""An array, or the name of a file that contains one."""


class ArrayTask(StoredTask):
    """The base class of tasks from your own data. Subclasses read the inputs, the targets and, if sequences are padded,
    the lengths.
    """

    def _set(
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        lengths: np.ndarray | None,
        rows: Mapping[Split, Tensor],
        standardize: bool,
        names: tuple[str, ...] = (),
        identifiers: Sequence[str] = (),
    ) -> None:
        """Set up the task from its arrays; ``rows`` are the indices of the examples of each split, ``names`` are the
        names of the classes or values, and ``identifiers`` the names of the examples (default: their row numbers). With
        ``standardize``, inputs are standardized, except tokens.
        """
        x = inputs_from(inputs)
        self.outputs, y = _outputs(targets, x, names)
        self.metric = "accuracy" if self.outputs.kind == "classes" else "mse"
        self.test_names = tuple(identifiers[i] if identifiers else str(i) for i in rows["test"].tolist())
        n, real = None, None
        if lengths is not None:
            n = lengths_of(lengths, x)
            real, x = real_steps(n, x.shape[1]), without_padding(x, n)
            if self.outputs.per_step:
                y = without_padding(y, n)
        require_finite("inputs", x)
        require_finite("targets", y)
        tokens = not x.is_floating_point()
        self.inputs = Inputs("tokens" if tokens else "values", int(x.max()) + 1 if tokens else x.shape[2], x.shape[1])
        train = rows["train"]
        self._store(
            {split: x[rows[split]] for split in SPLITS},
            {split: y[rows[split]] for split in SPLITS},
            None if n is None else {split: n[rows[split]] for split in SPLITS},
            _scale(x[train], None if real is None else real[train]) if standardize and not tokens else None,
        )

    def describe(self) -> dict[str, Any]:
        """Return the description of the task, with the input scale and the number and names of classes or values."""
        outputs = {"outputs": self.outputs.size, "names": list(self.outputs.names)}
        return {**super().describe(), "scale": self.scale, **outputs}

    def as_trained(self, description: Mapping[str, Any]) -> Self:
        """Return a copy of this task for testing a model that was trained on another task. The copy has the input scale
        and the classes of the training task, whose ``describe()`` is ``description``.
        """
        task, names = copy.copy(self), tuple(description["names"])
        task._tensors = {**self._tensors}
        for part, values in description["scale"].items():
            if part in self._tensors:
                task._tensors[part] = torch.tensor(values, device=self.device)
        if self.outputs.kind == "classes" and not names:
            size = description.get("outputs", self.outputs.size)
            if self.outputs.size > size:
                raise ArgumentError("targets", f"classes from 0 to {size - 1}, as in training", self.outputs.size - 1)
            task.outputs = replace(self.outputs, size=size)
        elif self.outputs.kind == "classes":
            if unknown := sorted(set(self.outputs.names) - set(names)):
                raise ArgumentError("label", f"labels of the training data: {', '.join(names)}", ", ".join(unknown))
            number = torch.tensor([names.index(name) for name in self.outputs.names], device=self.device)
            for split in SPLITS:
                task._tensors[f"{split}.targets"] = number[self._tensors[f"{split}.targets"]]
            task.outputs = replace(self.outputs, size=len(names), names=names)
        return task


@final
@renamed("standardise")
@dataclass(frozen=True, eq=False)
class ArraysOptions(Options):
    """Options of a task from arrays: the arrays, or files with them, and the splits."""

    inputs: Arrayed = option(help="array, .npy file, or .npz file with all arrays", place=True)
    targets: Arrayed | None = option(None, "array or .npy file; not needed with an .npz file", place=True)
    lengths: Arrayed | None = option(None, "lengths of right-padded inputs: array or .npy file", place=True)
    valid: float = option(0.1, "fraction of the examples for validation")
    test: float = option(0.1, "fraction of the examples for the test")
    standardize: bool = option(True, "standardize input values by the training examples")
    split_seed: int = option(0, "seed of the split")


@final
class Arrays(ArrayTask):
    """A task from your own arrays. The dtypes and shapes of inputs and targets decide the kind of task.

    Floating-point inputs (n, T, d) or (n, T) are values; integer inputs (n, T) are tokens. Integer targets (n,) are
    classes, and integer targets (n, T) are classes at each step. Floating-point targets (n,) or (n, k) are values, and
    (n, T, k) are values at each step. ``lengths`` (n,) are the lengths of padded sequences; with a target at each step,
    padding is not scored. An ``.npz`` file holds ``inputs``, ``targets`` and optionally ``lengths``.

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
        self._set(inputs, targets, lengths, rows, options.standardize)


def _read(options: ArraysOptions) -> dict[str, np.ndarray]:
    given = {part: getattr(options, part) for part in _PARTS if getattr(options, part) is not None}
    if isinstance(options.inputs, str) and options.inputs.endswith(".npz"):
        if len(given) > 1:
            raise ArgumentError("targets, lengths", f"no value, since {options.inputs} holds them", list(given)[1:])
        return dict(zip(_PARTS, sources.arrays(Path(options.inputs), _PARTS[:2], _PARTS[2]), strict=False))
    return {part: array(part, value) for part, value in given.items()}


def array(part: str, value: str | np.ndarray | Tensor) -> np.ndarray:
    """Return a value as a NumPy array; a string is the path of an .npy file to read. Errors name the argument
    ``part``.
    """
    if isinstance(value, str):
        try:
            found: Any = np.load(value, allow_pickle=False)
        except sources.BROKEN as error:
            why = error if Path(value).exists() else f"no such file{did_you_mean(Path(value))}"
            raise ArgumentError(part, "an array in a whole .npy file", f"{value} ({why})") from error
        if not isinstance(found, np.ndarray):
            raise ArgumentError(part, "an array in an .npy file", value)
    else:
        found = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if not found.ndim:
        raise ArgumentError(part, "an array with at least one axis", f"a single {found.dtype}, {found}")
    return np.asarray(found)


def inputs_from(x: np.ndarray) -> Tensor:
    """Convert an array to model inputs: floating-point values (n, T, d) in float32, or integers as tokens (n, T)."""
    if not x.size:
        raise ArgumentError("inputs", "examples with at least one step", f"shape {x.shape}")
    if np.issubdtype(x.dtype, np.integer) and x.ndim == 2:
        if x.min() < 0:
            raise ArgumentError("inputs", "tokens from 0 up", int(x.min()))
        return torch.from_numpy(x.astype(np.int64))
    if np.issubdtype(x.dtype, np.floating) and x.ndim in (2, 3):
        return torch.from_numpy(x.astype(np.float32)).reshape(*x.shape[:2], -1)
    expected = "values (n, T, d) or (n, T) in floating point, or tokens (n, T) as whole numbers"
    raise ArgumentError("inputs", expected, f"{x.dtype} {x.shape}")


def _outputs(y: np.ndarray, x: Tensor, names: tuple[str, ...]) -> tuple[Outputs, Tensor]:
    """Return two things for the targets ``y`` of the inputs ``x``: a description of the outputs that a model needs
    (classes or values), and ``y`` as a tensor.
    """
    steps, classes = tuple(x.shape[:2]), np.issubdtype(y.dtype, np.integer)
    per_step = y.shape[:2] == steps and y.ndim == (2 if classes else 3)
    if y.shape[:1] != steps[:1] or not (per_step or y.ndim == 1 or (y.ndim == 2 and not classes)):
        expected = f"({steps[0]},) or {steps} classes, or ({steps[0]}, k) or ({steps[0]}, {steps[1]}, k) values"
        raise ArgumentError("targets", expected, f"{y.dtype} {y.shape}")
    if classes:
        if y.min() < 0:
            raise ArgumentError("targets", "classes from 0 up", int(y.min()))
        return Outputs("classes", max(int(y.max()) + 1, 2), per_step, names), torch.from_numpy(y.astype(np.int64))
    if not np.issubdtype(y.dtype, np.floating):
        raise ArgumentError("targets", "classes as whole numbers, or values in floating point", y.dtype)
    values = torch.from_numpy(y.astype(np.float32)).reshape(*y.shape[: 2 if per_step else 1], -1)
    return Outputs("values", values.shape[-1], per_step, names), values


def lengths_of(lengths: np.ndarray, x: Tensor) -> Tensor:
    """Return the lengths of the inputs x as int64; raise an error if a length is not from 1 to T."""
    whole = np.issubdtype(lengths.dtype, np.integer) and lengths.shape == (len(x),)
    if not whole or lengths.min() < 1 or lengths.max() > x.shape[1]:
        expected = f"({len(x)},) whole numbers from 1 to {x.shape[1]}"
        raise ArgumentError("lengths", expected, f"{lengths.dtype} {lengths.shape}")
    return torch.from_numpy(lengths.astype(np.int64))


def require_finite(name: str, values: Tensor) -> None:
    """Raise an error if a value is infinite or NaN; the error states the first such value and its place."""
    if values.is_floating_point() and not bool((good := values.isfinite()).all()):
        place = (~good).nonzero()[0].tolist()
        raise ArgumentError(name, "finite numbers", f"{values[tuple(place)].item()} in row {place[0]} (at {place})")


def _scale(x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each channel of x (n, T, d) over the steps where ``real`` (n, T) is
    True, that is, without padding (default: over all steps). A deviation of zero becomes 1.
    """
    values = (x.flatten(0, 1) if real is None else x[real]).double()
    deviation = values.std(0, correction=0)
    return values.mean(0).float(), torch.where(deviation > 0, deviation, 1.0).float()
