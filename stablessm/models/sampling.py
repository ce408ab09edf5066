"""Samples tokens from a language model, one at a time, with constant memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor

from stablessm._arguments import real_number, whole_number
from stablessm._checked import Count, Seed, checked
from stablessm._errors import ArgumentError
from stablessm.instruments.adapters.facts import evaluating
from stablessm.layers.hold import hold
from stablessm.models.decoding import Repeated

_AT_ONCE = 1024
"""Number of tokens of a prompt that are read at once, which limits the memory of their logits."""


@checked
def sample_tokens(
    model: torch.nn.Module,
    prompt: Tensor,
    *,
    count: Count,
    temperature: float = 1.0,
    top_k: int | None = None,
    never: Sequence[int] = (),
    seed: Seed = 0,
) -> Iterator[int]:
    """Sample tokens that continue a prompt, and yield each token as soon as it is drawn.

    Memory does not grow with the number of tokens. The weights must not change until the last token is drawn. Several
    texts may be sampled in turns. On an NVIDIA GPU, a step of the model and the draw run as one CUDA graph.

    Args:
        model: a model with ``sequence(tokens) -> (logits, state)`` and ``step(token, state) -> (logits, state)``. It
            runs in evaluation mode on the device of its parameters.
        prompt: (T,) tokens, at least one.
        count: number of tokens to draw.
        temperature: divides the logits; 0 always takes the most likely token.
        top_k: number of most likely tokens to draw from (default: all).
        never: tokens that are never drawn.

    >>> from stablessm.models import LanguageModel
    >>> model = LanguageModel(100, d_model=16, n_layers=1, d_state=8)
    >>> len(list(sample_tokens(model, torch.tensor([1, 2, 3]), count=5, seed=0)))
    5
    """
    if prompt.dim() != 1 or not len(prompt):
        raise ArgumentError("prompt", "at least one token", f"shape {tuple(prompt.shape)}")
    device = next(model.parameters()).device
    draw = Draw(device, temperature=temperature, top_k=top_k, never=never, seed=seed)
    return (int(tokens) for tokens in drawn(model, prompt[None].to(device), count, draw))


@torch.inference_mode()
def drawn(model: Any, prompt: Tensor, count: int, draw: Draw) -> Iterator[Tensor]:
    """Yield ``count`` tensors of tokens (B,), one after the other, which continue the prompts (B, T). ``draw`` draws
    the tokens from the logits.

    On a GPU, all tensors share one memory, so each tensor is overwritten when the next tensor is drawn.
    """
    with hold(model):
        logits, state = prompt, None
        for part in prompt.split(_AT_ONCE, 1):
            with evaluating(model):
                logits, state = model.sequence(part, state)
        if not count:
            return
        tokens = draw(logits[:, -1])
        yield tokens

        def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
            with evaluating(model):  # not around the yield: the caller may sample another text
                logits, state = model.step(tokens, state)
            return draw(logits), state

        advance = Repeated(step, draw.generator)
        for _ in range(count - 1):
            tokens, state = advance(tokens, state)
            yield tokens


@final
class Draw:
    """Draws one token per row of logits (B, V).

    The token with the largest quotient of its probability and an exponentially distributed random number is drawn. This
    method needs no cumulative sums of probabilities. The arguments are the same as for :func:`sample_tokens`.
    """

    def __init__(
        self, device: torch.device, *, temperature: float, top_k: int | None, never: Sequence[int], seed: int
    ) -> None:
        if temperature != 0:
            real_number("temperature", temperature, 0)
        self.temperature, self.top_k = temperature, None if top_k is None else whole_number("top_k", top_k)
        self.never = torch.tensor(list(never), dtype=torch.int64, device=device) if len(never) else None
        self.generator = None if temperature == 0 else torch.Generator(device).manual_seed(seed)

    def __call__(self, logits: Tensor) -> Tensor:
        """Draw a token for each row of logits; return the tokens, (B,)."""
        if self.never is not None:
            logits = logits.index_fill(-1, self.never, -torch.inf)
        if self.temperature == 0:
            return logits.argmax(-1)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        logits = logits.double()
        top = logits.amax(-1, keepdim=True)
        chances = ((logits - top) / self.temperature).softmax(-1)  # avoids overflow at small temperatures
        return (chances / torch.empty_like(chances).exponential_(generator=self.generator)).argmax(-1)
