"""What tasks that make their own examples share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from stablessm._arguments import whole_number
from stablessm.tasks import counter
from stablessm.tasks.base import SPLITS, Batch, Split, Task
from stablessm.tasks.options import Options, option


@dataclass(frozen=True)
class SyntheticOptions(Options):
    """How many examples, and which."""

    train_examples: int = option(4000, "examples to train on")
    valid_examples: int = option(500, "examples to choose settings by")
    test_examples: int = option(500, "examples to test on")
    fresh: bool = option(False, "new training examples every epoch and seed, instead of a fixed set")
    data_seed: int = option(0, "which data: another number, other examples")


class SyntheticTask(Task):
    """A task whose example i of a split follows from (data_seed, split, i) alone: nothing is stored."""

    options: SyntheticOptions

    def __init__(self, name: str, options: SyntheticOptions) -> None:
        self.name, self.options = name, options
        given = {split: (f"{split}_examples", getattr(options, f"{split}_examples")) for split in SPLITS}
        self.sizes = {split: whole_number(*own, 0 if split == "valid" else 1) for split, own in given.items()}

    def _examples(self, split: Split, indices: Tensor, seed: int, epoch: int) -> Batch:
        anew = (seed + 1, epoch) if self.options.fresh and split == "train" else (0, 0)
        family = (self.options.data_seed, SPLITS.index(split), *anew)
        return self._made(split, counter.keys(family, indices.to(self.device, non_blocking=True)))

    @abstractmethod
    def _made(self, split: Split, keys: Tensor) -> Batch:
        """Return the examples of these keys (B,)."""
