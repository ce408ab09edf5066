"""The part that all models share: an encoder of numbers or tokens, blocks, and a final norm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm._typing import Dt, Lengths, Reset
from stablessm.layers.at_once import linear
from stablessm.models.block import Block, TiedDropout
from stablessm.models.config import StackConfig
from stablessm.models.mixers import mixer_of
from stablessm.models.norms import norm_of
from stablessm.scan.checks import check_device, check_dtype, check_reset, check_tensor, checked_lengths, extremes
from stablessm.scan.padding import real_steps, without_padding


@final
class SequenceStack(nn.Module):
    """An encoder of numbers or tokens, followed by blocks, whose outputs are (B, T, d_model).

    The stack is called like a layer; its state is a tuple with one entry per block. With ``prenorm``, a final norm
    follows the blocks. Instead of tokens (B, T), the stack also accepts the embeddings (B, T, d_model) of tokens, so
    that instruments can perturb them. With ``stack.gradient_checkpointing = True``, training stores only the input of
    each block and computes the other activations again in the backward pass.

    >>> body = SequenceStack(StackConfig(vocab_size=30, d_model=16, d_state=4))
    >>> h, state = body(torch.randint(0, 30, (4, 100)))
    >>> h.shape, len(state)
    (torch.Size([4, 100, 16]), 2)
    """

    @checked
    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        d_model = config.d_model
        self.encoder: nn.Linear | nn.Embedding
        if config.vocab_size is not None:
            self.encoder, self.d_input = nn.Embedding(config.vocab_size, d_model), d_model
        else:
            self.d_input = config.d_input or 0
            self.encoder = nn.Linear(self.d_input, d_model)
        self.blocks = nn.ModuleList(self._block() for _ in range(config.n_layers))
        self.norm = norm_of(config.norm if config.prenorm else "none", d_model)
        self.dropout = TiedDropout(config.edge_dropout)
        # names that Hugging Face's gradient_checkpointing_enable looks for
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: Any = partial(checkpoint, use_reentrant=False)

    def _block(self) -> Block:
        c = self.config
        mixer = mixer_of(c.mixer, c.d_model, c.d_state, str(c.map), c.map_options, **c.mixer_options)
        return Block(
            c.d_model, mixer, norm=c.norm, prenorm=c.prenorm, activation=c.activation, gate=c.gate, mlp=c.mlp,
            dropout=c.dropout,
        )  # fmt: skip

    def initial_state(self, batch: int) -> tuple[Any, ...]:
        """Return the initial state of every block, as a tuple."""
        return tuple(block.initial_state(batch) for block in self.blocks)  # type: ignore[operator]

    def forward(
        self,
        x: Tensor,
        state: Sequence[Any] | None = None,
        *,
        lengths: Lengths = None,
        reset: Reset = None,
        dt: Dt = None,
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """Compute the outputs (B, T, d_model) and final state for numbers x (B, T, d_input) or tokens (B, T).

        The arguments are those of a layer. Outputs at padded steps are meaningless, but finite for any padding.
        """
        before = self._checked("x", x, state, 1)
        batch, steps = x.shape[:2]
        check_reset(reset, batch, steps)
        lengths = checked_lengths(lengths, x)
        real = None if lengths is None else real_steps(lengths, steps)
        h, after = self.dropout(self._encoded(without_padding(x, lengths))), []
        again = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for block, own in zip(self.blocks, before, strict=True):
            read = partial(block, lengths=lengths, reset=reset, dt=dt)  # reentrant checkpoints take no keywords
            h, own = self._gradient_checkpointing_func(read, h, own) if again else read(h, own)
            after.append(own)
        return self.dropout(self.norm(h, real)), tuple(after)

    def step(self, x_t: Tensor, state: Sequence[Any] | None = None, *, dt: Dt = None) -> tuple[Tensor, tuple[Any, ...]]:
        """Compute one step of :meth:`forward` for x_t (B, d_input) or tokens (B,); return the output (B, d_model) and
        next state.
        """
        before, after = self._checked("x_t", x_t, state, 0), []
        h = self._encoded(x_t)
        for block, own in zip(self.blocks, before, strict=True):
            h, own = block.step(h, own, dt=dt)  # type: ignore[operator]
            after.append(own)
        return self.norm(h), tuple(after)

    def _checked(self, name: str, x: Tensor, state: Sequence[Any] | None, time: int) -> Sequence[Any]:
        """Check the input x and the state; return one state per block (None for the initial state).

        ``name`` is the name of x in error messages. ``time`` is 1 if x has a time axis, and 0 if x is a single step.
        """
        check_tensor(name, x)
        for weight in self.encoder.parameters():  # a quantized encoder has no parameters
            check_device(name, x, weight)
        letters = "batch, time" if time else "batch"
        values = f"numbers ({letters}, {self.d_input})"
        if x.is_floating_point():
            if x.dim() != 2 + time or x.shape[-1] != self.d_input:
                raise ArgumentError(name, values, f"shape {tuple(x.shape)}")
            check_dtype(name, x, self.encoder._parameters.values())
        elif self.config.vocab_size is None:
            raise ArgumentError(name, values, f"dtype {x.dtype}")
        elif x.is_complex() or x.dtype == torch.bool or x.dim() != 1 + time:
            raise ArgumentError(name, f"tokens ({letters}), whole numbers", f"shape {tuple(x.shape)}, {x.dtype}")
        if state is None:
            return (None,) * len(self.blocks)
        if not isinstance(state, tuple | list) or len(state) != len(self.blocks):
            got = f"{len(state)}" if isinstance(state, tuple | list) else type(state).__name__
            raise ArgumentError("state", f"{len(self.blocks)} entries, one per block", got)
        return state

    def _encoded(self, x: Tensor) -> Tensor:
        if self.config.vocab_size is None:
            return linear(self.encoder, x)
        if x.is_floating_point():
            return x
        size = cast(nn.Embedding, self.encoder).num_embeddings
        low, high = (0, 0) if x.device.type != "cpu" else extremes(x) or (0, 0)  # a GPU would have to synchronize
        if low < 0 or high >= size:
            raise ArgumentError("x", f"tokens from 0 to {size - 1} (vocab_size - 1)", low if low < 0 else high)
        return self.encoder(x.contiguous())  # a quantized embedding requires this
