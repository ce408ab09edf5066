"""A model that assigns classes to sequences, or to every step of a sequence."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from stablessm._checked import Several, checked
from stablessm.layers.storage import saved
from stablessm.models.config import ModelConfig, Pool
from stablessm.models.sequence_model import SequenceModel


@saved
@final
class SequenceClassifier(SequenceModel):
    """A model that returns logits of ``size`` classes for each sequence, or for each step.

    Args:
        size: number of classes.
        d_input, vocab_size: give one of them: the number of channels of inputs (B, T, d_input), or the number of tokens
            for inputs (B, T).
        pool: whether the readout takes the ``mean`` over the steps or the ``last`` step.
        per_step: if True, return logits (B, T, size) for every step, without pooling.
        **options: the other settings of :class:`~stablessm.models.StackConfig`.

    >>> import torch
    >>> model = SequenceClassifier(10, d_input=1, d_model=16, n_layers=1)
    >>> x = torch.randn(4, 100, 1)
    >>> logits = model(x)
    >>> so_far, state = model.sequence(x)
    >>> logits.shape, torch.allclose(so_far[:, -1], logits, atol=1e-5)
    (torch.Size([4, 10]), True)
    >>> torch.allclose(model.predict(x), logits.softmax(-1))
    True
    """

    @checked
    def __init__(self, size: Several, *, pool: Pool = "mean", per_step: bool = False, **options: Any) -> None:
        super().__init__(ModelConfig.of({"size": size, "pool": pool, "per_step": per_step, **options}))

    def _predicted(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)
