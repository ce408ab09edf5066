"""The base class of tasks: reproducible batches, a loss, a metric and the score of the best constant prediction."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Self, TypeAlias, final, get_args

import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._checked import Seed, Size, checked
from stablessm._errors import ArgumentError, quoted
from stablessm._parts import nth_part
from stablessm._typing import Device
from stablessm.scan.checks import check_tensor
from stablessm.tasks import scoring
from stablessm.tasks.options import Options

Split: TypeAlias = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
_SEEDS = 2**31
"""Upper limit of seeds and of epochs, so that a seed and an epoch together fit into the 63-bit seed of a generator."""


@final
@checked
@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of examples of a task: inputs, targets and, if the task has them, lengths, weights and resets.

    >>> batch = Batch(torch.zeros(2, 5, 1), torch.tensor([0, 1]))
    >>> len(batch), batch.to("cpu").inputs.shape
    (2, torch.Size([2, 5, 1]))
    """

    inputs: Tensor
    """(B, T, d_input) values, or (B, T) int64 tokens."""
    targets: Tensor
    """(B,) classes or (B, size) values; with one target per step, (B, T) classes or (B, T, size) values."""
    lengths: Tensor | None = None
    """Length of each input without padding, (B,) int64, for right-padded batches."""
    weights: Tensor | None = None
    """Weight of each step in loss and metric, (B, T) float, if there is one target per step."""
    reset: Tensor | None = None
    """True where a new document begins and the state of the model is reset, (B, T) bool."""

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: Device) -> Batch:
        """Return a copy of the batch on the given device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def rows(self, part: tuple[int, int]) -> Batch:
        """Return one part of the batch: part i of n nearly equal parts, for ``part`` = (i, n)."""
        if not 0 <= part[0] < part[1]:
            raise ArgumentError("part", "(i, n), i from 0 to n - 1", part)
        mine = nth_part(len(self), *part)
        return self._each(lambda tensor: tensor[mine])

    def _each(self, function: Callable[[Tensor], Tensor]) -> Batch:
        return replace(self, **{name: function(t) for name, t in vars(self).items() if t is not None})


@final
@checked
@dataclass(frozen=True)
class Inputs:
    """The description of a model's inputs for a task: values or tokens, the number of channels or of different tokens,
    and the length of the sequences.
    """

    kind: Literal["values", "tokens"]
    size: int
    """Number of values per step (``d_input``), or the vocabulary size of tokens."""
    length: int
    """Number of steps of the longest sequence."""


@final
@checked
@dataclass(frozen=True)
class Outputs:
    """The description of a model's outputs for a task: classes or values, their number, and whether there is an output
    at every step.
    """

    kind: Literal["classes", "values"]
    size: int
    """Number of classes, or of values."""
    per_step: bool
    """Whether there is one target per step, instead of one per sequence."""
    names: tuple[str, ...] = ()
    """Names of the classes or values, if they have names."""


@checked
class Task(ABC):
    """The base class of tasks. A task provides the batches of a data set, a loss and a metric.

    A subclass sets the attributes below and implements ``_examples`` and ``chance``. The tests check every subclass
    that has an entry in ``TASKS`` (``registry.py``). ``to`` moves the tensors in ``_tensors`` to a device.
    """

    name: str
    inputs: Inputs
    outputs: Outputs
    metric: scoring.Metric = "accuracy"
    sizes: Mapping[Split, int]
    """Number of examples of each split."""
    options: Options
    content: str | None = None
    """SHA-256 of the data, if the data were read from files or arrays."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about cells that were filled, rows that were dropped and columns that are not used."""
    test_names: tuple[str, ...] = ()
    """Names of the examples of the test split, if they have names."""
    carries: bool = False
    """Whether row b of a training batch continues row b of the previous batch, so that the model carries its state."""

    device = torch.device("cpu")
    """Device of the batches."""
    companions: Mapping[str, str] = {}
    """Contents, by file name, of files to store with a model of the task, such as a tokenizer."""
    _tensors: Mapping[str, Tensor] = {}

    @property
    def higher_is_better(self) -> bool:
        """Return True if a larger value of the metric is better."""
        return self.metric == "accuracy"

    @property
    @abstractmethod
    def chance(self) -> float:
        """Metric of the best constant prediction on the test split."""

    @property
    def baselines(self) -> dict[str, float]:
        """Metrics of simple predictions, for which no model is needed, on the test split: a dict from a description of
        the prediction to its metric.
        """
        return {"the best constant prediction": self.chance}

    def remarks(self, metric: float) -> list[str]:
        """Return a warning for each simple prediction (see ``baselines``) that is at least as good on the test split as
        a model with this ``metric``.
        """
        beaten = {name: metric > it if self.higher_is_better else metric < it for name, it in self.baselines.items()}
        return [
            f"remark: {self.metric} {metric:.4g} is no better than {name} ({self.baselines[name]:.4g})"
            for name, better in beaten.items()
            if not better
        ]

    def describe(self) -> dict[str, Any]:
        """Return a dictionary of plain values that identifies the task and its data, for checkpoints and records."""
        content = {} if self.content is None else {"content": self.content}
        return {"task": self.name, "options": self.options.plain(), "sizes": dict(self.sizes), **content}

    def as_trained(self, description: Mapping[str, Any]) -> Self:
        """Return this task with the preprocessing of another task, on which a model was trained.

        Preprocessing is learned from the training examples: for example the scale of the inputs, or the order of the
        classes.

        Args:
            description: ``describe()`` of the training task.
        """
        return self

    @abstractmethod
    def _examples(self, split: Split, indices: Tensor, seed: int, epoch: int) -> Batch:
        """Return a batch of the examples with the given indices, on ``self.device``.

        Args:
            split: The split.
            indices: (B,) on the CPU, so that the length of a padded batch is known without waiting for the device.
            seed, epoch: Seed and number of the epoch, for tasks that draw new examples every epoch.
        """

    def steps(self, split: Split, batch_size: int) -> int:
        """Return the number of batches per epoch. In training, a last batch that is not full is dropped; in validation
        and test, such a batch is used.
        """
        size, batch_size = self._size(split), whole_number("batch_size", batch_size)
        if split != "train":
            return -(-size // batch_size)
        if batch_size > size:
            raise ArgumentError("batch_size", f"at most the {size} training examples of {self.name}", batch_size)
        return size // batch_size

    def batch(
        self,
        split: Split,
        batch_size: Size,
        *,
        seed: Seed = 0,
        epoch: int = 0,
        index: int = 0,
        part: tuple[int, int] = (0, 1),
    ) -> Batch:
        """Return batch ``index`` of an epoch. The batch depends only on the arguments, so that a run can resume at any
        batch.

        Training examples are shuffled by seed and epoch, and each occurs at most once per epoch; the examples of valid
        and test keep their order. For a task that carries its state, row b of training batch ``index`` is example b · S
        + index, where S is the number of batches per epoch.

        Args:
            split: The split.
            batch_size: Number of examples, over all parts.
            seed: Seed of the order.
            epoch: Number of the epoch.
            index: Number of the batch in the epoch.
            part: (i, n) returns part i of the batch cut into n parts of nearly equal size.
        """
        steps = self.steps(split, batch_size)
        if not 0 <= index < steps:
            raise ArgumentError("index", f"from 0 to {steps - 1}, batches of {split} in an epoch", index)
        for name, value in (("seed", seed), ("epoch", epoch)):
            if not 0 <= value < _SEEDS:
                raise ArgumentError(name, f"a whole number from 0 to {_SEEDS - 1}", value)
        size = self._size(split)
        first, last = index * batch_size, min((index + 1) * batch_size, size)
        rows = last - first
        if not 0 <= part[0] < part[1] <= rows:
            raise ArgumentError("part", f"(i, n), i below n, and n at most the {rows} examples of the batch", part)
        mine = nth_part(rows, *part)
        if split == "train" and self.carries:
            indices = torch.arange(mine.start, mine.stop) * steps + index
        elif split == "train":
            indices = _order(size, seed, epoch)[first + mine.start : first + mine.stop]
        else:
            indices = torch.arange(first + mine.start, first + mine.stop)
        return self._examples(split, indices, seed, epoch)

    def lanes(self, split: Split, batch_size: Size) -> Iterator[Batch]:
        """Yield the batches of a split such that row i of each batch continues row i of the previous batch.

        Only tasks for which the model carries its state implement this method.
        """
        raise ArgumentError("split", "a split of a task with ``carries``", f"a split of {type(self).__name__}")

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss over the scored positions: cross-entropy of classes, squared error of values."""
        total, count = self.total_loss(output, batch)
        return total / count

    def total_loss(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum of the loss over the scored positions, and the number of scored positions.

        The mean loss of a batch is the sum of the losses of its parts divided by the sum of their numbers of positions.

        A task with its own loss overrides ``loss``, ``total_loss`` and ``count``.
        """
        return scoring.total_loss(self.outputs.kind, *self._paired(output, batch))

    def count(self, batch: Batch) -> Tensor:
        """Return the number of scored positions of a batch (the sum of its weights) in float64.

        A training step divides the losses of all its batches, on all ranks, by the total of these numbers.
        """
        weights, shape = self._weights(batch), batch.targets.shape
        if weights is not None:
            return weights.double().sum()
        positions = shape if self.outputs.kind == "classes" else shape[:-1]
        return torch.full((), positions.numel(), dtype=torch.float64, device=batch.targets.device)

    def score(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum of the metric over the scored positions, and the number of scored positions, both in
        float64.
        """
        output, targets, weights = self._paired(output, batch)
        return scoring.score(self.metric, output.detach(), targets, weights)

    def to(self, device: Device) -> Self:
        """Return a copy of the task whose data and batches are on the given device."""
        moved = copy.copy(self)
        moved.device = torch.device(device)
        moved._tensors = {name: tensor.to(device) for name, tensor in self._tensors.items()}
        return moved

    def _paired(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Check that the output matches the batch, and return output, targets and weights."""
        check_tensor("output", output)
        if not isinstance(batch, Batch):
            raise ArgumentError("batch", "a Batch, as Task.batch makes it", type(batch).__name__)
        expected = (len(batch), *(batch.inputs.shape[1:2] if self.outputs.per_step else ()), self.outputs.size)
        if tuple(output.shape) != expected:
            raise ArgumentError("output", f"shape {expected} of task {self.name}", f"shape {tuple(output.shape)}")
        return output, batch.targets, self._weights(batch)

    def _weights(self, batch: Batch) -> Tensor | None:
        """Return the weight of every scored position; None if all weights are 1."""
        if not self.outputs.per_step or batch.weights is not None or batch.lengths is None:
            return batch.weights
        return torch.arange(batch.inputs.shape[1], device=batch.inputs.device) < batch.lengths[:, None]

    def _size(self, split: Split) -> int:
        if not isinstance(split, str) or split not in SPLITS:
            raise ArgumentError("split", f"one of {', '.join(SPLITS)}", quoted(split))
        return self.sizes.get(split, 0)


def generator(seed: int, epoch: int) -> torch.Generator:
    """Return the random generator for an epoch of a run with the given seed."""
    return torch.Generator().manual_seed(seed * _SEEDS + epoch)


@lru_cache(maxsize=4)
def _order(size: int, seed: int, epoch: int) -> Tensor:
    """Return the random order of the training examples in an epoch."""
    return torch.randperm(size, generator=generator(seed, epoch))
