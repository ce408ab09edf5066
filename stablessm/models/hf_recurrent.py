"""The layer of a ``transformers`` cache that holds the state of a recurrent block of RecurrentGemma."""

from __future__ import annotations

from typing import Any, final

from transformers.cache_utils import DynamicLayer, LinearAttentionLayer


@final
class RecurrentLayer(LinearAttentionLayer, DynamicLayer):  # type: ignore[misc, override]
    """The last inputs of a convolution, a recurrent state, and the number of steps that led to them."""

    is_compileable = False
    steps = 0
    """Number of steps so far, including padding."""

    @classmethod
    def of(cls, cache: Any, index: int) -> Any:
        """Return the layer of a cache with this index; a layer of another type, which is still empty, is replaced."""
        cache.layers.extend(cls() for _ in range(index + 1 - len(cache.layers)))
        if not isinstance(cache.layers[index], cls):
            cache.layers[index] = cls()
        return cache.layers[index]

    def get_seq_length(self) -> int:
        """Return the number of steps so far, including padding."""
        return self.steps

    def reset(self) -> None:
        """Reset the layer to its initial content, before the first step."""
        self.__init__()
        self.steps = 0
