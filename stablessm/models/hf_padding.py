"""Moves padding from any place in a sequence to the right end, where layers expect padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.scan.checks import check_tensor

IGNORED = -100
"""The label that excludes a token from the loss in ``transformers``."""


@final
@dataclass(frozen=True, eq=False)
class Padding:
    """The padding of a batch: :meth:`packed` moves real tokens to the front, and :meth:`unpacked` moves them back.

    In the example, 9 stands for padding: before the real tokens in the first sequence, after them in the second. The
    padded places of the unpacked result get 0 before the first real token, and the value of the last real token (8)
    after it.

    >>> padding = Padding.of(torch.tensor([[0, 1, 1], [1, 1, 0]]), 2, 3)
    >>> padding.packed(torch.tensor([[9, 5, 6], [7, 8, 9]])).tolist(), padding.lengths.tolist()
    ([[5, 6, 9], [7, 8, 9]], [2, 2])
    >>> padding.unpacked(torch.tensor([[5.0, 6, 9], [7, 8, 9]])[..., None], None)[..., 0].tolist()
    [[0.0, 5.0, 6.0], [7.0, 8.0, 8.0]]
    """

    real: Tensor
    """(B, T) bool."""
    lengths: Tensor
    """(B,) number of real tokens in each row."""

    @classmethod
    def of(cls, mask: Tensor | None, batch: int, steps: int) -> Self | None:
        """Return the padding of the last ``steps`` tokens, or None if none of these tokens is padding.

        Args:
            mask: (batch, at least ``steps``) attention mask, 0 for padding. A mask that is longer than ``steps`` begins
                with the tokens of earlier calls (default: no padding).
            batch: number of sequences.
            steps: number of tokens of each sequence in this call.
        """
        if mask is None:
            return None
        check_tensor("attention_mask", mask)
        if mask.dim() != 2 or len(mask) != batch or mask.shape[1] < steps:
            expected = f"(batch, time), here {(batch, steps)}, or longer by what came before"
            raise ArgumentError("attention_mask", expected, f"shape {tuple(mask.shape)}")
        real = mask[:, mask.shape[1] - steps :] != 0
        if not torch.compiler.is_compiling() and bool(real.all()):
            return None
        return cls(real, real.sum(1))

    def packed(self, x: Tensor) -> Tensor:
        """Return x, (B, T) or (B, T, C), with the real tokens of each row first."""
        order = self.real.long().argsort(dim=1, descending=True, stable=True)
        return x.gather(1, order if x.dim() == 2 else order[..., None].expand_as(x))

    def unpacked(self, h: Tensor, before: Tensor | None) -> Tensor:
        """Undo :meth:`packed` for (B, T, C); a padded place gets the value of the last real token before it.

        Args:
            h: (B, T, C) with the real tokens in front.
            before: (B, C) the value of padding in front of the first real token (default: zeros).
        """
        first = torch.zeros_like(h[:, :1]) if before is None else before[:, None].to(h.dtype)
        place = self.real.cumsum(1)[..., None]
        return torch.cat([first, h], 1).gather(1, place.expand_as(h))

    def labels(self, labels: Tensor) -> Tensor:
        """Return a copy of labels (B, T) in which losses ignore padding and the tokens directly after padding.

        No real token predicts a token that follows padding.
        """
        follows = torch.cat([self.real[:, :1], self.real[:, :-1]], 1)
        return labels.masked_fill(~(self.real & follows), IGNORED)
