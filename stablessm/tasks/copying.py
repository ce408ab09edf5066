"""The selective copying task: tokens stand at random places among fillers and are copied in order at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._errors import ArgumentError
from stablessm.tasks import counter
from stablessm.tasks.base import Batch, Inputs, Outputs, Split
from stablessm.tasks.options import option
from stablessm.tasks.synthetic import SyntheticOptions, SyntheticTask

FILLER = 0
_TOKENS, _PLACES = range(2)


@final
@dataclass(frozen=True)
class CopyingOptions(SyntheticOptions):
    """Options of selective copying: length of the sequence, size of the vocabulary, and number of tokens to copy."""

    length: int = option(256, "number of tokens before the copy")
    vocabulary: int = option(16, "number of different tokens, including the filler and the mark")
    copied: int = option(16, "number of tokens to copy")


@final
class SelectiveCopying(SyntheticTask):
    """Selective copying: the input · a · · b · c ? ? ? has the targets a, b, c at the three marks (?).

    The task is from Gu and Dao 2023 (Mamba), who use length 4096. The places of the tokens differ between examples, so
    a fixed filter cannot solve the task. Token 0 is the filler (·) and the last token is the mark. Only the steps of
    marks count in loss and metric.

    >>> from stablessm import tasks
    >>> batch = tasks.get("selective-copying", length=10, vocabulary=6, copied=3).batch("valid", 2)
    >>> [row[row > 0].tolist() for row in batch.inputs[:, :10]] == batch.targets[:, 10:].tolist()
    True
    """

    options: CopyingOptions

    def __init__(self, options: CopyingOptions, name: str = "selective-copying") -> None:
        super().__init__(name, options)
        self.symbols = whole_number("vocabulary", options.vocabulary, 3) - 2
        if not 1 <= options.copied <= options.length:
            raise ArgumentError("copied", f"from 1 to the length {options.length}", options.copied)
        self.inputs = Inputs("tokens", options.vocabulary, options.length + options.copied)
        self.outputs = Outputs("classes", options.vocabulary, per_step=True)

    @property
    def chance(self) -> float:
        """Accuracy of a constant prediction: 1 / number of tokens that can be copied (all are equally likely)."""
        return 1 / self.symbols

    def _made(self, split: Split, keys: Tensor) -> Batch:
        length, copied = self.options.length, self.options.copied
        symbols = counter.integers(keys, _TOKENS, copied, self.symbols) + 1
        places = counter.permutations(keys, _PLACES, length)[:, :copied].sort(1).values
        before = torch.full((len(keys), length), FILLER, device=keys.device)
        marks = torch.full_like(symbols, self.options.vocabulary - 1)
        tokens = torch.cat([before.scatter(1, places, symbols), marks], 1)
        weights = torch.cat([torch.zeros_like(before), torch.ones_like(marks)], 1).float()
        return Batch(tokens, torch.cat([before, symbols], 1), weights=weights)
