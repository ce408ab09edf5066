"""Measures how the score of recurrent sentiment models changes when a repeated word is repeated once more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, described, rules
from stablessm.experiments.frame.memories import listed, rates, span, tally
from stablessm.experiments.iat import sentiment_memory as sentiment
from stablessm.instruments import MemoryCurve

SLOW = "ha"
"""The word that the paper finds complicated."""
OURS = "LSTM"
"""The architecture that we add to the architectures in figure 5 of IAT."""


@dataclass(frozen=True)
class Config(sentiment.RecurrentConfig):
    """Settings of ``ia-fig5``: models, training, repeated words, and a threshold. The paper gives no values."""

    left: float = 0.01
    """A memory has ended when it stays below this fraction of its maximum."""


def run(config: Config, run: Run) -> None:
    """Train and test the sentiment models, and measure their memory of repeated words."""
    sentiment.study(config, run, sentiment.recurrent(config, run))


def figures(config: Config, stages: Stages) -> Figures:
    """Yield a figure of the memory functions, with one panel for each architecture."""
    yield sentiment.memory_figure(
        "words", sentiment.memories(config, stages, config.architectures), "An exponential is a straight line. "
    )


def claims(config: Config, stages: Stages) -> Claims:
    """Yield claims with their verdicts: every architecture forgets the words "good" and "bad" exponentially, and the
    word "ha" more slowly.
    """
    simple = [word for word in config.words if word != SLOW]
    for name, curves in sentiment.memories(config, stages, config.architectures).items() if simple else ():
        learned = f"Test accuracy {sentiment.accuracy_of(config, stages, name)} over {config.seeds} seeds."
        yield exponential(name, simple, curves, learned)
        if SLOW in config.words:
            yield slow(name, simple, curves, learned, config.left)


def exponential(name: str, words: list[str], curves: list[MemoryCurve], learned: str) -> Claim:
    """Return a claim with its verdict: the memory of the given words decays exponentially. ``learned`` is a sentence on
    the test accuracy of the models; it is appended to the evidence for the verdict.
    """
    found = {word: [curve.of(word) for curve in curves] for word in words}
    kinds = {word: tally(memories) for word, memories in found.items()}
    total = sum(kinds.values(), Counter())
    return Claim(
        f"{name}: the memory of {' and '.join(f'“{word}”' for word in words)} decays exponentially",
        _source(name, "exponentially (figure 5)"),
        "; ".join(f"“{w}”: {listed(kinds[w])}, rates {span(rates(found[w]))} per repeat" for w in words),
        _verdict(name, rules.most_seen(total)),
        f"{total['exponential']} of {len(words) * len(curves)} curves are classified as exponential (a state that "
        f"settles at a fixed point has an exponential tail). {learned}",
    )


def slow(name: str, words: list[str], curves: list[MemoryCurve], learned: str, left: float) -> Claim:
    """Return a claim with its verdict: the word "ha" is remembered longer than the other words. The memory of a word
    ends when it falls below the fraction ``left`` of its maximum. ``learned`` is as in :func:`exponential`.
    """
    own = [curve.of(SLOW).memory_time(left) for curve in curves]
    others = [max(curve.of(word).memory_time(left) for word in words) for curve in curves]
    longer = sum(mine > most for mine, most in zip(own, others, strict=True))
    kinds = tally(curve.of(SLOW) for curve in curves)
    return Claim(
        f"{name}: the memory of “{SLOW}” does not decay fast",
        _source(name, "complicated, as it is not decaying fast (figure 5)"),
        f"below {left:.0%} of its maximum after {span(own)} repeats (other words: {span(others)}); {listed(kinds)}",
        _verdict(name, rules.most(longer, len(curves))),
        f"In {longer} of {len(curves)} seeds “{SLOW}” takes longer than every other word; in "
        f"{kinds['exponential']} its memory also decays exponentially. {learned}",
    )


def _source(name: str, paper: str) -> str:
    return "beyond the paper: figure 5 shows bidirectional LSTMs only" if name == OURS else paper


def _verdict(name: str, verdict: rules.Verdict) -> rules.Verdict:
    return rules.ours(verdict) if name == OURS else verdict


EXPERIMENT = described(
    __file__,
    run,
    figures,
    claims,
    smoke=Config(**sentiment.SMOKE),
    paper=Config(),
    large=Config(seeds=10, horizon=2000),
    minutes=(0.1, 120.0, 12.0),
)
