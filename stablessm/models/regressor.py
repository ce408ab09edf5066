"""Sequences to numbers."""

from __future__ import annotations

from typing import Any, final

from stablessm._checked import checked
from stablessm.layers.storage import saved
from stablessm.models.config import ModelConfig, Pool
from stablessm.models.sequence_model import SequenceModel


@saved
@final
class SequenceRegressor(SequenceModel):
    """``size`` numbers at each step, (B, T, size), or of each sequence, (B, size).

    Args:
        size: how many numbers.
        d_input, vocab_size: one of them: the channels of inputs (B, T, d_input), or how many tokens (B, T) there are.
        pool: without ``per_step``: the ``last`` step, or the ``mean``.
        per_step: whether every step has an output.
        **options: the other settings of :class:`~stablessm.models.StackConfig`.

    >>> import torch
    >>> model = SequenceRegressor(2, d_input=3, d_model=16, mixer="lru")
    >>> model(torch.randn(4, 100, 3)).shape
    torch.Size([4, 100, 2])
    """

    @checked
    def __init__(self, size: int, *, pool: Pool = "last", per_step: bool = True, **options: Any) -> None:
        super().__init__(ModelConfig.of({"size": size, "pool": pool, "per_step": per_step, **options}))
