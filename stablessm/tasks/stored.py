"""The base class of tasks whose examples are stored as tensors, and functions that divide examples randomly into
splits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from stablessm._arguments import real_number
from stablessm._errors import ArgumentError
from stablessm.tasks import counter
from stablessm.tasks.base import Batch, Split, Task
from stablessm.tasks.scoring import best_constant


class StoredTask(Task):
    """The base class of tasks that hold all examples in memory as tensors, which are moved to a device only once."""

    def _store(
        self,
        inputs: Mapping[Split, Tensor],
        targets: Mapping[Split, Tensor],
        lengths: Mapping[Split, Tensor] | None = None,
        scale: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Store the examples of each split; ``scale`` is the mean and standard deviation with which inputs are
        standardized.
        """
        self.sizes = {split: len(rows) for split, rows in inputs.items()}
        self._lengths = lengths  # stays on the CPU
        parts = {"inputs": inputs, "targets": targets} | ({"lengths": lengths} if lengths else {})
        self._tensors = {f"{split}.{part}": rows[split] for part, rows in parts.items() for split in rows}
        if scale is not None:
            self._tensors |= dict(zip(("mean", "deviation"), scale, strict=True))

    @property
    def scale(self) -> dict[str, list[float]]:
        """Mean and standard deviation of each input channel, with which the inputs in batches are standardized; empty
        if inputs are not standardized.
        """
        return {name: self._tensors[name].tolist() for name in ("mean", "deviation") if name in self._tensors}

    def _examples(self, split: Split, indices: Tensor, seed: int, epoch: int) -> Batch:
        stored, rows = self._tensors, indices.to(self.device, non_blocking=True)
        inputs = stored[f"{split}.inputs"].index_select(0, rows)
        if "mean" in stored:
            inputs = (inputs.to(stored["mean"].dtype) - stored["mean"]) / stored["deviation"]
        targets = stored[f"{split}.targets"].index_select(0, rows)
        if self._lengths is None:
            return Batch(inputs, targets)
        longest = int(self._lengths[split][indices].max())
        inputs, targets = inputs[:, :longest], targets[:, :longest] if self.outputs.per_step else targets
        return Batch(inputs, targets, stored[f"{split}.lengths"].index_select(0, rows))

    @cached_property
    def chance(self) -> float:
        """Metric of the best constant prediction on the test split."""
        targets, lengths = self._tensors["test.targets"], self._tensors.get("test.lengths")
        if self.outputs.per_step:
            steps = torch.arange(targets.shape[1], device=self.device)
            targets = targets.flatten(0, 1) if lengths is None else targets[steps < lengths[:, None]]
        return best_constant(self.metric, targets)


def shuffled_split(count: int, valid: float, test: float, seed: int) -> dict[Split, Tensor]:
    """Assign ``count`` examples randomly to splits and return the indices of each split.

    Training and test get at least one example.

    >>> {split: len(rows) for split, rows in shuffled_split(20, 0.1, 0.2, 0).items()}
    {'train': 14, 'valid': 2, 'test': 4}
    """
    sizes = split_sizes(count, valid, test)
    order = counter.permutations(counter.keys((seed,), torch.zeros(1, dtype=torch.int64)), 0, count)[0]
    train, valid_rows, test_rows = order.split(list(sizes.values()))
    return {"train": train, "valid": valid_rows, "test": test_rows}


def split_sizes(count: int, valid: float, test: float) -> dict[Split, int]:
    """Return how many of ``count`` examples belong to each split. ``valid`` and ``test`` are the fractions of these
    splits.

    >>> split_sizes(10, 0.0, 0.05)
    {'train': 9, 'valid': 0, 'test': 1}
    """
    valid, test = share("valid", valid), share("test", test)
    if valid + test >= 1:
        raise ArgumentError("valid, test", "fractions whose sum is below 1", f"{valid}, {test}")
    held, tested = round(valid * count), max(round(test * count), 1)
    if held + tested >= count:
        raise ArgumentError("data", "enough examples for the train, valid and test splits", f"{count}")
    return {"train": count - held - tested, "valid": held, "test": tested}


def share(name: str, value: float) -> float:
    """Check that a value is a fraction, at least 0 and below 1, and return it; raise an error otherwise."""
    return real_number(name, value, 0, 1, include_low=True)
