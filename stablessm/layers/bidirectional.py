"""A bidirectional layer: one layer reads the sequence forward and one reads it backward."""

from __future__ import annotations

import copy
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from stablessm import _tensors
from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm._typing import Dt, Lengths, Reset, Sequence, State
from stablessm.layers.base import SequenceLayer
from stablessm.layers.forms import Input, packed, unbatched
from stablessm.scan.checks import as_lengths, check_pair
from stablessm.scan.padding import real_steps

Merge: TypeAlias = Literal["concat", "sum"]
Pair: TypeAlias = tuple[State | None, State | None] | None


@final
class Bidirectional(nn.Module):
    """Two layers that read a sequence in opposite directions; ``merge`` combines their outputs at each step.

    Padding stays at the end, and each episode (``reset``) is reversed separately.

    Args:
        ahead: the layer that reads from the first step to the last.
        back: the layer that reads from the last step to the first (default: a copy of ``ahead`` with its own, newly
            drawn parameters).
        merge: ``concat`` (concatenate the channels, as ``torch.nn.LSTM`` does) or ``sum``.

    >>> from stablessm.layers import LRU
    >>> y, (ahead, back) = Bidirectional(LRU(3, 8, 2))(torch.randn(4, 10, 3))
    >>> y.shape
    torch.Size([4, 10, 4])
    """

    @checked
    def __init__(self, ahead: SequenceLayer, back: SequenceLayer | None = None, *, merge: Merge = "concat") -> None:
        super().__init__()
        for name, layer in (("ahead", ahead), ("back", back)):
            if layer is not None and not isinstance(layer, SequenceLayer):
                raise ArgumentError(name, "a layer of stablessm", type(layer).__name__)
        if back is None:
            back = copy.deepcopy(ahead)
            back.reset_parameters()
        if back.d_input != ahead.d_input:
            raise ArgumentError("back", f"d_input {ahead.d_input} (as ahead)", back.d_input)
        if merge == "sum" and back.d_output != ahead.d_output:
            raise ArgumentError("back", f"d_output {ahead.d_output} to be summed with ahead", back.d_output)
        self.ahead, self.back, self.merge = ahead, back, merge
        self.d_input = ahead.d_input
        self.d_output = ahead.d_output + back.d_output if merge == "concat" else ahead.d_output

    def forward(
        self, x: Input, state: Pair = None, *, lengths: Lengths = None, reset: Reset = None, dt: Dt = None
    ) -> tuple[Sequence, tuple[State, State]]:
        """Compute the merged outputs (B, T, …) and the pair of last states, forward and backward.

        The arguments are as in :meth:`SequenceLayer.forward`, with these differences: ``state`` is a pair, the state of
        ``ahead`` before the first step and the state from which ``back`` starts at the last step. ``dt`` is a time step
        for each sample, which both layers use for this sample.
        """
        if isinstance(x, PackedSequence):
            return packed(self.forward, x, state, lengths=lengths, reset=reset, dt=dt)
        before, after = check_pair(state)
        if isinstance(x, Tensor) and x.dim() == 2:
            before, after = self.ahead._checked_state(before), self.back._checked_state(after)
            return unbatched(self.forward, x, (before, after), lengths=lengths, reset=reset, dt=dt)
        y, ahead = self.ahead(x, before, lengths=lengths, reset=reset, dt=dt)
        lengths = as_lengths(lengths, x.device)
        order = _reversal(x, lengths)
        turned = None
        if reset is not None:  # read backward, an episode starts at the step before the next episode
            starts = reset.expand(x.shape[:2])
            if lengths is not None:
                starts = starts & real_steps(lengths, x.shape[1])
            turned = _reorder(torch.cat([starts[:, 1:], torch.zeros_like(starts[:, :1])], 1), order)
        if dt is not None and _tensors.as_tensor(dt).dim():
            dt = _reorder(_tensors.as_tensor(dt).expand(x.shape[:2]), order)
        z, back = self.back(_reorder(x, order), after, lengths=lengths, reset=turned, dt=dt)
        z = _reorder(z, order)
        return (y + z if self.merge == "sum" else torch.cat([y, z], -1)), (ahead, back)


def _reversal(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return indices (B, T) that reverse the real steps of each sequence and leave padding in place.

    Applying the indices twice restores the order.
    """
    steps = torch.arange(x.shape[1], device=x.device)
    if lengths is None:
        return steps.flip(0).expand(x.shape[:2])
    return torch.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)


def _reorder(tensor: Tensor, order: Tensor) -> Tensor:
    index = order.reshape(*order.shape, *(1,) * (tensor.dim() - 2)).expand(tensor.shape)
    return tensor.gather(1, index)
