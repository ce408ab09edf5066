"""How well a language model predicts a text: per token, per word and per byte."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
from torch import nn

from stablessm._checked import Size, checked
from stablessm._display import Result
from stablessm.tasks.base import Split
from stablessm.tasks.text import LanguageModeling
from stablessm.training.evaluate import outputs


@final
@dataclass(frozen=True, repr=False)
class Perplexity(Result):
    """The cross-entropy of a whole split, and what it is shared among.

    >>> found = Perplexity(nats=300 * math.log(2), tokens=100, words=50, bytes=300, lost=0, carried=True)
    >>> [round(value, 6) for value in (found.per_token, found.per_word, found.bits_per_byte)]
    [8.0, 64.0, 1.0]
    """

    nats: float
    """Of all tokens together."""
    tokens: int
    words: int
    """Between white space, in the text itself; line ends are not words."""
    bytes: int
    """Of the text itself, in UTF-8."""
    lost: int
    """Words or characters that the tokenizer does not know: if there are any, per word and per byte say too little."""
    carried: bool
    """Whether the state went on from window to window; otherwise each began anew."""

    @property
    def per_token(self) -> float:
        """exp(nats / tokens)."""
        return _exp(_share(self.nats, self.tokens))

    @property
    def per_word(self) -> float:
        """exp(nats / words)."""
        return _exp(_share(self.nats, self.words))

    @property
    def per_byte(self) -> float:
        """exp(nats / bytes)."""
        return _exp(_share(self.nats, self.bytes))

    @property
    def bits_per_byte(self) -> float:
        """nats / (bytes · log 2)."""
        return _share(self.nats, self.bytes) / math.log(2)

    def plain(self) -> dict[str, Any]:
        """Return all numbers as plain values, for a record."""
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
    """Read a whole split as a recurrent model does: from the start of every document, with the state carried on.

    It then does not depend on ``batch_size`` nor on the length of windows, but for rounding.

    Args:
        batch_size: how many windows of the task's length are in memory at once.
        carry: ``False``: every window begins without a state, as in training unless the task carries it. So it is
            for a model that has no ``sequence(x, state, reset=…) -> (logits, state)``.

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
    from tqdm import tqdm

    device = next(model.parameters()).device
    task = task.to(device)
    carry = carry and callable(getattr(model, "sequence", None))
    total = torch.zeros(2, dtype=torch.float64, device=device)
    read = outputs(model, task, split, batch_size, carry=carry, autocast=autocast)
    with closing(read):
        for output, batch, _ in tqdm(read, unit="batch", leave=False, disable=None if progress else True):
            total += torch.stack(task.score(output, batch))
    nats, tokens = total.tolist()
    row = task.streams[split]
    return Perplexity(nats, round(tokens), row.words, row.bytes, row.lost, carry)


def _share(nats: float, count: int) -> float:
    return nats / count if count else math.nan  # a text may be without a word


def _exp(value: float) -> float:
    return math.inf if value >= 700 else math.exp(value)
