"""Samples text from a language model, one token at a time, with constant memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from stablessm._arguments import real_number, whole_number
from stablessm._checked import Count, Seed, checked
from stablessm._errors import ArgumentError
from stablessm.instruments.systems import evaluating
from stablessm.layers.hold import hold

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
    """Sample tokens that follow a prompt, and yield each as soon as it is drawn.

    Memory does not grow with the number of tokens. The weights must not change until the last token is drawn. Several
    texts may be sampled in turns.

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
    count = whole_number("tokens", count, 0)
    if temperature != 0:
        real_number("temperature", temperature, 0)
    if top_k is not None:
        top_k = whole_number("top_k", top_k)
    generator, device = torch.Generator().manual_seed(seed), next(model.parameters()).device
    return _drawn(model, prompt.to(device), count, temperature, top_k, list(never), generator)


@torch.inference_mode()
def _drawn(
    model: Any,
    prompt: Tensor,
    count: int,
    temperature: float,
    top_k: int | None,
    never: list[int],
    generator: torch.Generator,
) -> Iterator[int]:
    device = prompt.device
    with hold(model):
        logits, state = prompt, None
        for part in prompt[None].split(_AT_ONCE, 1):
            with evaluating(model):
                logits, state = model.sequence(part, state)
        logits = logits[:, -1]
        for drawn in range(count):
            chances = logits[0].cpu().double()
            chances[never] = -torch.inf
            token = _token(chances, temperature, top_k, generator)
            yield token
            if drawn + 1 < count:
                with evaluating(model):  # ends before the yield, since the caller may sample another text
                    logits, state = model.step(torch.tensor([token], device=device), state)


def _token(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)
    chances = ((logits - logits.max()) / temperature).softmax(-1)  # avoids overflow at small temperatures
    return int(torch.multinomial(chances, 1, generator=generator))
