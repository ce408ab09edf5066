"""The perplexity of a language model on a text: per token, per word and per byte."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import nn

from stablessm import _progress
from stablessm._checked import Size, checked
from stablessm._display import Result
from stablessm.tasks.base import Split
from stablessm.tasks.text import LanguageModeling
from stablessm.training.evaluate import outputs


@final
@dataclass(frozen=True, repr=False)
class Perplexity(Result):
    """The perplexity of a language model on a split of a text: its total cross-entropy, and numbers of tokens, words
    and bytes.

    >>> found = Perplexity(nats=300 * math.log(2), tokens=100, words=50, bytes=300, lost=0, carried=True)
    >>> [round(value, 6) for value in (found.per_token, found.per_word, found.bits_per_byte)]
    [8.0, 64.0, 1.0]
    """

    nats: float
    """Sum of the cross-entropy over all tokens, in nats."""
    tokens: int
    words: int
    """Number of words, separated by white space, in the original text; line ends are not words."""
    bytes: int
    """Number of bytes of the original text in UTF-8."""
    lost: int
    """Number of words or characters unknown to the tokenizer. If it is not 0, the values per word and byte are too
    low."""
    carried: bool
    """Whether the state was carried from window to window; otherwise every window started without a state."""

    @property
    def per_token(self) -> float:
        """Return the perplexity per token, exp(nats / tokens)."""
        return _exp(_share(self.nats, self.tokens))

    @property
    def per_word(self) -> float:
        """Return the perplexity per word, exp(nats / words)."""
        return _exp(_share(self.nats, self.words))

    @property
    def per_byte(self) -> float:
        """Return the perplexity per byte, exp(nats / bytes)."""
        return _exp(_share(self.nats, self.bytes))

    @property
    def bits_per_byte(self) -> float:
        """Return the cross-entropy per byte in bits, nats / (bytes · log 2)."""
        return _share(self.nats, self.bytes) / math.log(2)

    def plain(self) -> dict[str, Any]:
        """Return all numbers as a dictionary of plain values, for a record."""
        found = {f"perplexity_{name}": getattr(self, name) for name in ("per_token", "per_word", "per_byte")}
        return {**asdict(self), **found, "bits_per_byte": self.bits_per_byte}


@torch.no_grad()
@checked
def perplexity(
    model: nn.Module,
    task: LanguageModeling,
    split: Split = "test",
    batch_size: Size = 16,
    *,
    carry: bool = True,
    autocast: bool = False,
    progress: bool = False,
) -> Perplexity:
    """Compute the perplexity of a language model on a whole split, with the state carried through every document.

    Apart from rounding, the result does not depend on ``batch_size`` or on the length of windows.

    Args:
        model: The language model.
        task: The text.
        split: ``train``, ``valid`` or ``test``.
        batch_size: Number of windows that are in memory at once.
        carry: If False, every window starts without a state (as in training, unless the task carries the state). A
            model without a method ``sequence(x, state, reset=…) -> (logits, state)`` cannot carry a state: the result
            is the same as for False.
        autocast: Compute matrix products in bfloat16.
        progress: Show a progress bar in a terminal.

    >>> import tempfile, stablessm as ssm
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "mine.txt"
    ...     _ = path.write_text("to be or not to be. " * 40)
    ...     task = ssm.tasks.get("lm", text=str(path), level="char", length=16)
    >>> model = ssm.models.for_task(task.inputs, task.outputs, "lm-tiny")
    >>> found = perplexity(model, task, "test")
    >>> found.tokens, found.words, found.carried
    (40, 12, True)
    """
    device = next(model.parameters()).device
    task = task.to(device)
    carry = carry and callable(getattr(model, "sequence", None))
    total = torch.zeros(2, dtype=torch.float64, device=device)
    read = outputs(model, task, split, batch_size, carry=carry, autocast=autocast)
    with closing(read):
        for output, batch, _ in _progress.bar(progress, iterable=read, unit="batch", leave=False):
            total += torch.stack(task.score(output, batch))
    nats, tokens = total.tolist()
    row = task.streams[split]
    return Perplexity(nats, round(tokens), row.words, row.bytes, row.lost, carry)


def _share(nats: float, count: int) -> float:
    return nats / count if count else math.nan  # a text may have no words


def _exp(value: float) -> float:
    return math.inf if value >= 700 else math.exp(value)
