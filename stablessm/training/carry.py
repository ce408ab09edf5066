"""The state that a model carries from batch to batch in training (truncated backpropagation through time)."""

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
    """Carries the final state of the model from each batch to the next batch, without its gradient.

    A training step calls ``begin``, then ``run`` for each of its batches, then ``settle``, which stores the new state.
    If the step diverged, neither the stored state nor the weights change, so that the step can be repeated.

    Args:
        rows: Number of rows of a batch, over all ranks. Each rank keeps the state of its own rows.
        ranks: The processes that train together (default: one).
        noise: Standard deviation of the noise that is added to the state before each batch, relative to the root mean
            square of each tensor of the state (default: no noise).

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

    def __init__(self, rows: int, ranks: Ranks | None = None, noise: float | None = None) -> None:
        self.rows, self.ranks, self.noise = rows, ranks or Ranks(), noise
        self.state: State = None
        """The state of the rows of this rank before the current step."""
        self._after: State = None

    def begin(self, *, anew: bool) -> None:
        """Start a step from the carried state; if ``anew`` (the first step of an epoch), start without a state."""
        self._after = None if anew else self.state

    def run(self, call: Any, batch: Batch, *, autocast: bool = False) -> Tensor:
        """Run ``call(x, state, reset=…) -> (outputs, state)`` on a batch from the carried state; return the outputs."""
        start = self._after if self.noise is None else nested.mapped(self._noisy, self._after)
        output, state = apply_from(call, batch, start, autocast=autocast)
        self._after = nested.mapped(Tensor.detach, state)
        if self.ranks.size > 1:
            nested.mapped(self._checked, self._after)
        return output

    def settle(self, bad: Tensor) -> None:
        """Store the state after this step as the initial state of the next step; if ``bad`` is 1, do not change the
        stored state.

        The CPU does not wait for the GPU.
        """
        if self.state is None:
            self.state = nested.mapped(Tensor.clone, self._after)
        else:
            self.state = nested.mapped(lambda old, new: torch.where(bad.bool(), old, new), self.state, self._after)
        self._after = None  # it may be a view of all states of the window

    def everyone(self) -> State:
        """Return the carried state of all batch rows, gathered from all ranks. All ranks must call this method."""
        return nested.mapped(self._gathered, self.state)

    def of_rank(self, everyone: State, rank: int, device: torch.device) -> Carry:
        """Create a :class:`Carry` with the carried state of the rank ``rank``, so that this process can repeat a step
        of that rank. The argument ``everyone`` is the result of the method :meth:`everyone`.
        """
        found = Carry(self.rows, noise=self.noise)
        found.state = nested.mapped(lambda whole: self._own(whole, rank).to(device), everyone)
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the carried state of all ranks by name, to be stored in a checkpoint."""
        return dict(nested.named(self.everyone()))

    def form(self) -> Any:
        """Return the structure of the carried state (nested tuples, lists and mappings), to be stored in
        a checkpoint.
        """
        return nested.form(self.state)

    def restore(self, form: Any, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Restore the carried state from a checkpoint that any number of ranks wrote."""
        copies = {name: tensor.clone() for name, tensor in tensors.items()}  # tensors in a file may not be aligned
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

    def _noisy(self, state: Tensor) -> Tensor:
        if not (state.is_floating_point() or state.is_complex()):
            return state
        size = state.abs().square().mean().sqrt()
        return state + (self.noise or 0.0) * size * torch.randn_like(state)

    def _checked(self, own: Tensor) -> Tensor:
        mine = nth_part(self.rows, *self.ranks.part)
        if own.shape[:1] != (mine.stop - mine.start,):
            expected = "a model whose state has a row for each sequence, to be trained by several ranks"
            raise ArgumentError("model", expected, f"a state of shape {tuple(own.shape)}")
        return own
