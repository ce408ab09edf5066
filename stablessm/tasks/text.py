"""The language modeling task: prediction of the next token of a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from stablessm._arguments import whole_number
from stablessm._errors import ArgumentError
from stablessm._renamed import module_names
from stablessm.tasks import sources, tokenizers
from stablessm.tasks.base import SPLITS, Batch, Inputs, Outputs, Split, Task, generator
from stablessm.tasks.options import Options, option
from stablessm.tasks.scoring import best_constant
from stablessm.tasks.text_sources import source
from stablessm.tasks.text_stream import Stream, encoded
from stablessm.tasks.tokenizers import Level


@final
@dataclass(frozen=True)
class TextOptions(Options):
    """Options of language modeling: the text, its tokens and its splits."""

    text: str = option("wikitext2", "wikitext2, wikifa, wikitext103, tinyshakespeare, or a text file", place=True)
    level: Level = option("bpe", "what a token is: a character, a byte, a merged byte pair or a word")
    vocabulary: int | None = option(None, "largest number of tokens: bpe (default 8192), word (default all words)")
    length: int = option(1024, "number of tokens of a window")
    carry: bool = option(False, "carry the state from window to window in training and scoring")
    separator: str | None = option(None, "text between documents of your file (default: the file is one document)")
    valid: float = option(0.05, "fraction for validation, for a text in one file")
    test: float = option(0.05, "fraction for the test, for a text in one file")
    tokenizer: str | None = option(None, "existing tokenizer.json, or a folder with one", place=True)


@final
class LanguageModeling(Task):
    """Language modeling: prediction of the next token at each step, in windows of a long text of many documents.

    The input before the first token of a document is the border token, and ``reset`` is True there, so that the state
    is reset. Every token of valid and test is predicted once; tokens at the end of train that do not fill a window are
    left out. The loss and the metric are the mean cross-entropy per token in nats. The score of chance is the score of
    the best constant prediction, which predicts every token with its frequency in test.
    ``stablessm.training.perplexity`` computes the score of a split with the state carried from window to window.

    With ``carry``, row b of a training batch continues row b of the previous batch, and training carries the state. An
    epoch begins at a token that depends on seed and epoch, and wraps around at the end of the text, so that windows
    differ between epochs. Scores are then also computed with a carried state.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from stablessm import tasks
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "mine.txt"
    ...     _ = path.write_text("to be or not to be. " * 20)
    ...     task = tasks.get("lm", text=str(path), level="char", length=16)
    >>> batch = task.batch("train", 2)
    >>> batch.inputs.shape, task.decode(batch.targets[0, :-1]) == task.decode(batch.inputs[0, 1:])
    (torch.Size([2, 16]), True)
    """

    metric = "nats"

    def __init__(self, options: TextOptions, name: str = "lm") -> None:
        self.name, self.options, self.carries = name, options, options.carry
        length = whole_number("length", options.length)
        own = None if options.tokenizer is None else tokenizers.load(options.tokenizer)
        if own is not None and own.level != options.level:
            raise ArgumentError("level", f"{own.level}, the level of the tokenizer", options.level)
        if own is not None and options.vocabulary is not None:
            raise ArgumentError("vocabulary", "no value, because the tokenizer decides", options.vocabulary)
        found = source(options.text, options.separator, options.valid, options.test)
        vocabulary = tokenizers.DEFAULT_PIECES if options.level == "bpe" and own is None else None
        text = encoded(found, options.level, options.vocabulary or vocabulary, own)
        self.tokenizer, self.streams = text.tokenizer, text.streams
        rows = {split: len(stream.tokens) for split, stream in self.streams.items()}
        self.sizes = {split: n // length if split == "train" else -(-n // length) for split, n in rows.items()}
        if not self.sizes["train"]:
            raise ArgumentError("length", f"at most {rows['train']}, the tokens of train", length)
        self.companions = {tokenizers.FILE: self.tokenizer.content()}
        parts = [part for split in SPLITS for part in (self.streams[split].tokens, self.streams[split].starts)]
        self.content = sources.content_digest(self.companions[tokenizers.FILE].encode(), *parts)
        self.inputs = Inputs("tokens", self.tokenizer.size, length)
        self.outputs = Outputs("classes", self.tokenizer.size, per_step=True)
        self._tensors = {"steps": torch.arange(length)}
        for split, stream in self.streams.items():
            tokens = np.concatenate([[self.tokenizer.border], stream.tokens]).astype(np.int32)
            self._tensors[f"{split}.tokens"] = torch.from_numpy(tokens)
            if stream.documents > 1 or (self.carries and split == "train"):  # training wraps around
                new = torch.zeros(len(stream.tokens), dtype=torch.bool)
                new[torch.from_numpy(stream.starts)] = True
                self._tensors[f"{split}.new"] = new

    @cached_property
    def chance(self) -> float:
        """Score of the best constant prediction: the entropy of the token frequencies of the test split."""
        return best_constant("nats", self._tensors["test.tokens"][1:])

    def decode(self, tokens: Tensor) -> str:
        """Convert a row of tokens to text."""
        return self.tokenizer.decode(tokens.tolist())

    def describe(self) -> dict[str, Any]:
        """Return the description of the task, including the numbers of tokens, words and bytes of each split."""
        counts = {
            split: {"tokens": len(row.tokens), "words": row.words, "bytes": row.bytes, "documents": row.documents}
            for split, row in self.streams.items()
        }
        return {**super().describe(), "counts": counts}

    def lanes(self, split: Split, batch_size: int) -> Iterator[Batch]:
        """Yield the batches of a split in order; the model carries its state from each batch to the next.

        Every row of the batches (a lane) reads whole documents, so that predictions do not depend on the number of
        lanes. A text that is one document is one lane, with longer windows. A batch has at most as many tokens as
        ``batch_size`` windows.
        """
        self.steps(split, batch_size)
        edges = _edges(self.streams[split], batch_size)
        window = self.inputs.length * max(batch_size // (len(edges) - 1), 1)
        begin, end = edges[:-1].to(self.device), edges[1:].to(self.device)
        steps = torch.arange(window, device=self.device)
        for first in range(0, int((edges[1:] - edges[:-1]).max()), window):
            places = begin[:, None] + first + steps
            yield self._read(split, places, places < end[:, None])

    def _examples(self, split: Split, indices: Tensor, seed: int, epoch: int) -> Batch:
        length = self.inputs.length
        places = (indices * length).to(self.device, non_blocking=True)[:, None] + self._tensors["steps"]
        tokens = len(self.streams[split].tokens)
        if self.carries and split == "train":
            first = int(torch.randint(tokens, (), generator=generator(seed, epoch)))
            return self._read(split, (first + places) % tokens, None)
        return self._read(split, places, None if int(indices.max() + 1) * length <= tokens else places < tokens)

    def _read(self, split: Split, places: Tensor, real: Tensor | None) -> Batch:
        """Return a batch of the tokens at the given places; places where ``real`` is False are padding."""
        tokens, new = self._tensors[f"{split}.tokens"], self._tensors.get(f"{split}.new")
        if real is not None:
            places = places.clamp(max=len(tokens) - 2)
        inputs, targets = tokens[places].to(torch.int64), tokens[places + 1].to(torch.int64)
        reset = None if new is None else new[places]
        if reset is not None:
            inputs = inputs.masked_fill(reset, self.tokenizer.border)
        return Batch(inputs, targets, weights=None if real is None else real.float(), reset=reset)


def _edges(row: Stream, lanes: int) -> Tensor:
    """Divide a long text at document borders into ``lanes`` parts of about the same length, which are read in parallel;
    return the start of each part, and the end of the text.

    >>> _edges(Stream(np.zeros(10), np.array([0, 2, 4, 9]), 0, 0, 0), 3).tolist()
    [0, 4, 9, 10]
    """
    total = len(row.tokens)
    wanted = np.arange(1, lanes) * total / lanes
    nearest = row.starts[np.abs(row.starts[:, None] - wanted).argmin(0)] if len(wanted) else []
    return torch.tensor(sorted({0, *map(int, nearest), total}))


__getattr__ = module_names(__name__, "LanguageModelling")
