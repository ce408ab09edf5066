"""The base class of classifiers, regressors and language models: a stack of blocks with a readout."""

from __future__ import annotations

from abc import ABC
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from stablessm._checked import checked
from stablessm._typing import Dt, Lengths, Reset
from stablessm.layers.at_once import linear
from stablessm.layers.storage import SavedModel
from stablessm.models.config import LanguageConfig, ModelConfig
from stablessm.models.pooling import Last, Mean, Pooling
from stablessm.models.stack import SequenceStack
from stablessm.scan.checks import as_lengths, check_pair
from stablessm.scan.padding import without_padding
from stablessm.scan.projection import project

States: TypeAlias = tuple[Any, Any] | None
"""The states of the blocks, and the state of the pooling."""


class SequenceModel(SavedModel, ABC):
    """The base class of models: a :class:`~stablessm.models.SequenceStack`, pooling and a linear readout.

    ``forward`` returns the outputs on which the model is trained: one per sequence, or one per step. ``sequence`` and
    ``step`` stream: they return at every step the output of ``forward`` for the sequence up to that step, and the
    state.
    """

    config: ModelConfig | LanguageConfig

    @checked
    def __init__(self, config: ModelConfig | LanguageConfig) -> None:
        super().__init__()
        self.config = config
        self.body = SequenceStack(config)
        self.readout = None if config.tied else nn.Linear(config.d_model, config.size, bias=config.bias)
        self.d_input, self.d_output = self.body.d_input, config.size
        self._pooling: Pooling = Mean() if config.pool == "mean" and not config.per_step else Last()

    def initial_state(self, batch: int) -> tuple[Any, Any]:
        """Return the state before the first step: the states of the blocks and the state of the pooling."""
        return self.body.initial_state(batch), self._pooling.initial_state(self._table[0], batch)

    def forward(
        self, x: Tensor, state: States = None, *, lengths: Lengths = None, reset: Reset = None, dt: Dt = None
    ) -> Tensor:
        """Compute the outputs of the model: (B, size), or with the setting ``per_step`` (B, T, size).

        Args:
            x: (B, T, d_input), or tokens (B, T).
            state: the state that ``sequence`` returned, to continue a sequence.
            lengths: (B,) number of real steps of each right-padded sequence; padding has no effect.
            reset: (T,) or (B, T) bool: True at the first step of a new episode. Pooling covers the last episode only.
            dt: the time since the previous sample, as in a layer.
        """
        if self.config.per_step:
            return self.sequence(x, state, lengths=lengths, reset=reset, dt=dt)[0]
        blocks, pooled = check_pair(state)
        h, _ = self.body(x, blocks, lengths=lengths, reset=reset, dt=dt)
        return self._read(self._pooling.whole(h, pooled, as_lengths(lengths, h.device), reset))

    @torch.no_grad()
    def predict(self, x: Tensor, *, lengths: Lengths = None, reset: Reset = None, dt: Dt = None) -> Tensor:
        """Compute the outputs in evaluation mode, without gradients; for a classifier, probabilities instead of logits.

        The arguments are those of ``forward``; inputs must be scaled as in training.
        ``stablessm.training.TrainedModel`` predicts from data in their original units.
        """
        before = self.training
        try:
            return self._predicted(self.eval()(x, lengths=lengths, reset=reset, dt=dt))
        finally:
            self.train(before)

    def sequence(
        self, x: Tensor, state: States = None, *, lengths: Lengths = None, reset: Reset = None, dt: Dt = None
    ) -> tuple[Tensor, tuple[Any, Any]]:
        """Return, for every step, the output of ``forward`` for the sequence up to this step, and the final state.

        The outputs have the shape (B, T, size), where ``size`` is the number of classes, values or tokens. The
        arguments are those of ``forward``.
        """
        blocks, pooled = check_pair(state)
        h, blocks = self.body(x, blocks, lengths=lengths, reset=reset, dt=dt)
        lengths = as_lengths(lengths, h.device)
        h, pooled = self._pooling.running(h, pooled, lengths, reset)
        return without_padding(self._read(h), lengths), (blocks, pooled)

    def step(self, x_t: Tensor, state: States = None, *, dt: Dt = None) -> tuple[Tensor, tuple[Any, Any]]:
        """Run one step of :meth:`sequence` for x_t (B, d_input) or tokens (B,); return outputs (B, size) and the next
        state.
        """
        blocks, pooled = check_pair(state)
        h_t, blocks = self.body.step(x_t, blocks, dt=dt)
        h_t, pooled = self._pooling.step(h_t, pooled)
        return self._read(h_t), (blocks, pooled)

    def _predicted(self, outputs: Tensor) -> Tensor:
        return outputs

    @property
    def _table(self) -> Tensor:
        """Return the weights of the readout (size, d_model), dequantized if they are quantized.

        A tied readout has the encoder's weights.
        """
        weight: Any = (self.body.encoder if self.readout is None else self.readout).weight
        return weight().dequantize() if callable(weight) else weight  # in a quantized module, weight is a method

    def _read(self, h: Tensor) -> Tensor:
        weight = self._table if self.readout is None else self.readout.weight
        if isinstance(weight, Tensor) and weight.is_floating_point():
            h = h.to(weight.dtype)  # pooling returns float32 or better for any dtype of the weights
        return project(h, weight) if self.readout is None else linear(self.readout, h)
