"""Loads the texts of the language experiments: a real text by name, or a synthetic text for a quick test."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from stablessm import tasks
from stablessm.tasks.base import Task

SYNTHETIC = "synthetic"
_LINES = 160
"""Number of windows of the synthetic text."""


@lru_cache(maxsize=1)
def loaded(text: str, vocabulary: int, length: int) -> Task:
    """Return a language modeling task with windows of ``length`` tokens.

    Args:
        text: A text of the task ``lm``, tokenized as byte pairs; or ``synthetic``.
        vocabulary: Number of different tokens.
    """
    if text == SYNTHETIC:
        return chain(vocabulary, length)
    return tasks.get("lm", text=text, level="bpe", vocabulary=vocabulary, length=length)


def chain(vocabulary: int, length: int, lines: int = _LINES) -> Task:
    """Return a language modeling task with a synthetic text: ``lines`` sequences of ``length`` steps from a random
    Markov chain, in which each token has few successors.

    >>> task = chain(12, 20)
    >>> batch = task.batch("train", 4)
    >>> batch.inputs.shape, bool((batch.inputs[:, 1:] == batch.targets[:, :-1]).all())
    (torch.Size([4, 20]), True)
    >>> task.inputs.size, task.outputs.size
    (12, 12)
    """
    rng = np.random.default_rng(0)
    chances = rng.dirichlet(np.full(vocabulary, 0.1), vocabulary).cumsum(1)
    draws, tokens = rng.random((lines, length + 1)), np.empty((lines, length + 1), dtype=np.int64)
    tokens[:, 0] = rng.integers(0, vocabulary, lines)
    for t in range(length):
        tokens[:, t + 1] = (chances[tokens[:, t]] < draws[:, t : t + 1]).sum(1).clip(max=vocabulary - 1)
    tokens[0, :2] = vocabulary - 1  # the largest token of inputs and targets determines the vocabulary
    return tasks.get("arrays", inputs=tokens[:, :-1], targets=tokens[:, 1:], test=0.2)
