"""A model that predicts numbers for sequences, or for every step of a sequence."""

from __future__ import annotations

from typing import Any, final

from stablessm._checked import checked
from stablessm.layers.storage import saved
from stablessm.models.config import ModelConfig, Pool
from stablessm.models.sequence_model import SequenceModel


@saved
@final
class SequenceRegressor(SequenceModel):
    """A model that returns ``size`` numbers at each step (B, T, size), or for each sequence (B, size).

    Args:
        size: number of outputs.
        d_input, vocab_size: give one of them: the number of channels of inputs (B, T, d_input), or the number of tokens
            for inputs (B, T).
        pool: without ``per_step``: whether the readout takes the ``last`` step or the ``mean`` over the steps.
        per_step: whether to return an output for every step.
        **options: the other settings of :class:`~stablessm.models.StackConfig`.

    >>> import torch
    >>> model = SequenceRegressor(2, d_input=3, d_model=16, mixer="lru")
    >>> model(torch.randn(4, 100, 3)).shape
    torch.Size([4, 100, 2])
    """

    @checked
    def __init__(self, size: int, *, pool: Pool = "last", per_step: bool = True, **options: Any) -> None:
        super().__init__(ModelConfig.of({"size": size, "pool": pool, "per_step": per_step, **options}))
