"""The state of a language model as a Hugging Face cache, whose size does not grow with the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from transformers import Cache

from stablessm._errors import ArgumentError
from stablessm.layers.states import mapped, tensors


@final
class StableSSMCache(Cache):
    """The state of a language model after some tokens, as a cache that ``transformers`` accepts as ``past_key_values``.

    The cache contains the states of all blocks, and the output of the last block for the last token. ``model(…,
    past_key_values=cache)`` continues from the cache and stores the new state in the cache. Tensors are replaced, never
    modified, so ``copy.copy(cache)`` is a snapshot.

    >>> cache = StableSSMCache()
    >>> cache.get_seq_length(), cache.nbytes
    (0, 0)
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.state: Any = None
        """A tuple with the state of each block; None before the first token."""
        self.last: Tensor | None = None
        """(B, d_model): the output of the blocks at the last real token, which padding repeats."""
        self.seen = 0
        """Number of tokens per row that have been read, including padding."""
        self.padded: Tensor | None = None
        """(B,) number of padding tokens; None if there were none."""

    @property
    def nbytes(self) -> int:
        """The size of all states in the cache, in bytes."""
        return sum(tensor.nbytes for tensor in tensors((self.state, self.last)))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens of each row the model has read, including padding; ``layer_idx`` is ignored."""
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace the states of row i by the states of row ``beam_idx[i]``, for beam search."""
        self._each(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows of the batch with these indices."""
        self.reorder_cache(torch.as_tensor(indices))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch ``repeats`` times."""
        self._each(lambda tensor: tensor.repeat_interleave(repeats, 0))

    def reset(self) -> None:
        """Reset the cache to its initial content, before the first token."""
        self.state, self.last, self.seen, self.padded = None, None, 0, None

    def crop(self, tokens_to_remove: int) -> None:
        """Raise an error unless ``tokens_to_remove`` is 0: a recurrence cannot remove tokens that it has read."""
        if tokens_to_remove:
            expected = "0, since a state cannot be undone (copy.copy keeps one)"
            raise ArgumentError("tokens_to_remove", expected, tokens_to_remove)

    @property
    def is_croppable(self) -> bool:
        """Return False, because a recurrence cannot remove tokens that it has read."""
        return False

    @property
    def is_compileable(self) -> bool:
        """Return False, so that ``generate`` does not compile the model."""
        return False

    @property
    def batch_size(self) -> int:
        """The number of rows of the batch, or -1 before the first token."""
        return -1 if self.last is None else len(self.last)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Return -1, which means that the number of tokens is not limited; ``layer_idx`` is ignored."""
        return -1

    def __len__(self) -> int:
        return 0 if self.state is None else len(self.state)

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        """Replace every tensor of the cache by ``change(tensor)``."""
        self.state, self.last, self.padded = (mapped(part, change) for part in (self.state, self.last, self.padded))

    def check(self, mask: Tensor | None, steps: int) -> None:
        """Raise an error if an attention mask marks other padding among the earlier tokens than the masks of the
        earlier calls.

        ``steps`` is the number of new tokens. A mask that covers only the new tokens is not checked.
        """
        if mask is None or self.state is None or mask.shape[1] != self.seen + steps or torch.compiler.is_compiling():
            return
        masked = (mask[:, : self.seen] == 0).sum(1)
        wrong = masked != (0 if self.padded is None else self.padded)
        if bool(wrong.any()):
            rows = ", ".join(map(str, wrong.nonzero()[:, 0].tolist()))
            expected = "the same padding as in the calls that filled past_key_values (a finished row is fed padding)"
            raise ArgumentError("attention_mask", expected, f"other padding in row {rows}; continue without the cache")
