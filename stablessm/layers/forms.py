"""Support for packed sequences and for inputs without a batch dimension, which ``torch.nn.GRU`` also accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from stablessm._errors import ArgumentError
from stablessm._typing import Sequence
from stablessm.layers.states import mapped

Input: TypeAlias = Sequence | PackedSequence
"""(B, T, d_input), (T, d_input) or packed."""


def packed(run: Callable[..., Any], x: PackedSequence, state: Any, *, lengths: Any, **options: Any) -> tuple[Any, Any]:
    """Call ``run``, the ``forward`` of a layer, with a PackedSequence.

    Returns the outputs as a PackedSequence, and the state. The state and the options list the sequences in the order
    that they had before packing.
    """
    if lengths is not None:
        raise ArgumentError("lengths", "None, since a PackedSequence contains its lengths", type(lengths).__name__)
    if x.data.dim() != 2:
        raise ArgumentError("x", "packed sequences of shape (time, d_input)", f"data of shape {tuple(x.data.shape)}")
    values, own = pad_packed_sequence(x, batch_first=True)
    y, state = run(values, state, lengths=own.to(values.device), **options)
    if x.sorted_indices is not None:
        y, own = y[x.sorted_indices], own[x.sorted_indices.cpu()]
    data = pack_padded_sequence(y, own, batch_first=True).data
    return PackedSequence(data, x.batch_sizes, x.sorted_indices, x.unsorted_indices), state


def unbatched(run: Callable[..., Any], x: Tensor, state: Any, **options: Any) -> tuple[Any, Any]:
    """Call ``run``, the ``forward`` or ``step`` of a layer, with an input and a state without a batch dimension.

    The output and the state that are returned have no batch dimension either.
    """
    if options.get("lengths") is not None:
        raise ArgumentError("lengths", "None with one sequence (time, d_input)", type(options["lengths"]).__name__)
    y, state = run(x[None], mapped(state, lambda tensor: tensor[None]), **options)
    return y[0], mapped(state, lambda tensor: tensor[0])
