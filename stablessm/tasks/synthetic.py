"""The base class of tasks whose examples are generated."""

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
    """Options of synthetic tasks: the numbers of examples, and their seed."""

    train_examples: int = option(4000, "number of training examples")
    valid_examples: int = option(500, "number of validation examples")
    test_examples: int = option(500, "number of test examples")
    fresh: bool = option(False, "draw new training examples for every epoch and seed")
    data_seed: int = option(0, "seed of the examples")


class SyntheticTask(Task):
    """The base class of tasks with generated examples: example i of a split depends only on (data_seed, split, i)."""

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
        """Generate the examples with the given random keys (B,); subclasses implement this method."""
