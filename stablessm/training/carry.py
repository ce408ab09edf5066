"""The state that training hands on from batch to batch: back-propagation through time, cut where a window ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm._parts import nth_part
from stablessm.tasks.base import Batch
from stablessm.training import nested
from stablessm.training.evaluate import apply_from
from stablessm.training.nested import State
from stablessm.training.ranks import Ranks


@final
class Carry:
    """The state in which the rows of a batch ended: those of the next batch go on from there. No gradient does.

    A step reads one batch or more (``begin``, ``run``, …); ``settle`` then takes the state over. After a bad step it
    stays as it was before, as the weights do, so that the step can be done again.

    Args:
        rows: of a batch, those of all ranks together. Each rank has the state of its own.

    >>> def sums(x: Tensor, state: Tensor | None, **_: object) -> tuple[Tensor, Tensor]:
    ...     y = x.cumsum(1) + (0 if state is None else state[:, None])
    ...     return y, y[:, -1]
    >>> carry, batch = Carry(1), Batch(torch.ones(1, 3, 1), torch.zeros(1))
    >>> for step in range(2):
    ...     carry.begin(anew=step == 0)
    ...     y = carry.run(sums, batch)
    ...     carry.settle(torch.tensor(0.0))
    >>> y.flatten().tolist(), carry.state.tolist()
    ([4.0, 5.0, 6.0], [[6.0]])
    """

    def __init__(self, rows: int, ranks: Ranks | None = None) -> None:
        self.rows, self.ranks = rows, ranks or Ranks()
        self.state: State = None
        """Of this rank's rows, before the step that is being computed."""
        self._after: State = None

    def begin(self, *, anew: bool) -> None:
        """A step: from the state that is carried, or ``anew`` without one, as the first of an epoch."""
        self._after = None if anew else self.state

    def run(self, call: Any, batch: Batch, *, autocast: bool = False) -> Tensor:
        """What ``call(x, state, reset=…) -> (outputs, state)`` says of the next batch."""
        output, state = apply_from(call, batch, self._after, autocast=autocast)
        self._after = nested.mapped(Tensor.detach, state)
        if self.ranks.size > 1:
            nested.mapped(self._checked, self._after)
        return output

    def settle(self, bad: Tensor) -> None:
        """After a step: its state is carried on, unless ``bad`` is 1. A device is not waited for."""
        if self.state is None:
            self.state = nested.mapped(Tensor.clone, self._after)
        else:
            self.state = nested.mapped(lambda old, new: torch.where(bad.bool(), old, new), self.state, self._after)
        self._after = None  # which may be a view of all states of the window

    def everyone(self) -> State:
        """The state of the rows of all ranks: to be called by all of them."""
        return nested.mapped(self._gathered, self.state)

    def of_rank(self, everyone: State, rank: int, device: torch.device) -> Carry:
        """What a rank carries, from the state of all rows: for one process to do what it did."""
        found = Carry(self.rows)
        found.state = nested.mapped(lambda whole: self._own(whole, rank).to(device), everyone)
        return found

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint: :meth:`everyone`, by name."""
        return dict(nested.named(self.everyone()))

    def form(self) -> Any:
        """For a checkpoint: what the names mean."""
        return nested.form(self.state)

    def restore(self, form: Any, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Go on from a checkpoint, written by any number of ranks."""
        copies = {name: tensor.clone() for name, tensor in tensors.items()}  # a file's are not aligned for pairs
        self.state = self.of_rank(nested.rebuilt(form, copies), self.ranks.rank, device).state

    def _own(self, whole: Tensor, rank: int) -> Tensor:
        return whole if self.ranks.size == 1 else whole[nth_part(self.rows, rank, self.ranks.size)]

    def _gathered(self, own: Tensor) -> Tensor:
        if self.ranks.size == 1:
            return own
        whole = own.new_zeros(self.rows, *own.shape[1:])
        whole[nth_part(self.rows, *self.ranks.part)] = own
        total = self.ranks.sum(whole.flatten().view(torch.uint8))  # each byte is zero on all ranks but one
        return total.view(own.dtype).view(whole.shape)

    def _checked(self, own: Tensor) -> Tensor:
        mine = nth_part(self.rows, *self.ranks.part)
        if own.shape[:1] != (mine.stop - mine.start,):
            expected = "one whose state has a row for each sequence, to be trained by several ranks"
            raise ArgumentError("model", expected, f"a state of shape {tuple(own.shape)}")
        return own
