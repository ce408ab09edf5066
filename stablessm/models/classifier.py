"""Sequences to classes."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._checked import checked
from stablessm.layers.storage import saved
from stablessm.models.config import ModelConfig, Pool
from stablessm.models.sequence_model import SequenceModel


@saved
@final
class SequenceClassifier(SequenceModel):
    """Logits of ``size`` classes: of each sequence, or of each step.

    Args:
        size: how many classes.
        d_input, vocab_size: one of them: the channels of inputs (B, T, d_input), or how many tokens (B, T) there are.
        pool: ``mean`` of the steps, or the ``last`` one.
        per_step: whether every step has logits of its own, (B, T, size); nothing is pooled then.
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
    def __init__(self, size: int, *, pool: Pool = "mean", per_step: bool = False, **options: Any) -> None:
        size = whole_number("size", size, 2)
        super().__init__(ModelConfig.of({"size": size, "pool": pool, "per_step": per_step, **options}))

    def _predicted(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)
