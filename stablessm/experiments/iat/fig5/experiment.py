"""The memory of recurrent sentiment models for a repeated word."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from stablessm.experiments.frame import Claim, Experiment, Run, Stages, rules
from stablessm.experiments.frame.memories import listed, rates, span, tally
from stablessm.experiments.iat import sentiment_memory as sentiment
from stablessm.experiments.iat.sentiment_training import Fitting
from stablessm.instruments import MemoryCurve
from stablessm.report.figure import Figure

SLOW = "ha"
"""The word that the paper finds complicated."""


@dataclass(frozen=True)
class Config(sentiment.RecurrentConfig):
    """Sizes of the experiment. The paper gives none."""

    left: float = 0.01
    """A memory has ended when it stays below this share of its maximum."""


def run(config: Config, run: Run) -> None:
    """Train and test the models, and measure their memory."""
    sentiment.study(run, sentiment.recurrent(config, run), config.seeds, config.words, config.horizon)


def figures(config: Config, stages: Stages) -> list[Figure]:
    """Return one panel for each architecture."""
    panels = [
        sentiment.memory_panel(name, sentiment.remembered(stages, name, config.seeds)) for name in config.architectures
    ]
    caption = (
        "How much one more repeat of a word moves the score (the log-odds of a positive review) after k repeats, down "
        "to rounding. An exponential is a straight line. Solid: seed 0; dotted: other seeds."
    )
    return [Figure("words", caption, panels)]


def claims(config: Config, stages: Stages) -> list[Claim]:
    """Check for each architecture that simple words are forgotten exponentially and "ha" slowly."""
    found = []
    for name in config.architectures:
        curves = sentiment.remembered(stages, name, config.seeds)
        accuracy = sentiment.percent(sentiment.accuracies(stages, name, config.seeds))
        learned = f"Test accuracy {accuracy} over {config.seeds} seeds."
        simple = [word for word in config.words if word != SLOW]
        if simple:
            found.append(exponential(name, simple, curves, learned))
        if simple and SLOW in config.words:
            found.append(slow(name, simple, curves, learned, config.left))
    return found


def exponential(name: str, words: list[str], curves: list[MemoryCurve], learned: str) -> Claim:
    """Check that the memory of these words decays exponentially."""
    kinds = {word: tally(curve.of(word) for curve in curves) for word in words}
    hits = sum(kind["exponential"] for kind in kinds.values())
    fast = {word: rates(curve.of(word) for curve in curves) for word in words}
    ours = "; ".join(f"“{word}”: {listed(kinds[word])}, rates {span(fast[word])} per repeat" for word in words)
    return Claim(
        f"{name}: the memory of {' and '.join(f'“{word}”' for word in words)} decays exponentially",
        "exponentially (figure 5)",
        ours,
        rules.most_seen(sum(kinds.values(), Counter())),
        f"{hits} of {len(words) * len(curves)} curves are classified as exponential (a state that settles "
        f"at a fixed point has an exponential tail). {learned}",
    )


def slow(name: str, words: list[str], curves: list[MemoryCurve], learned: str, left: float) -> Claim:
    """Check that "ha" is remembered longer."""
    own = [curve.of(SLOW).memory_time(left) for curve in curves]
    others = [max(curve.of(word).memory_time(left) for word in words) for curve in curves]
    longer = sum(mine > most for mine, most in zip(own, others, strict=True))
    kinds = tally(curve.of(SLOW) for curve in curves)
    return Claim(
        f"{name}: the memory of “{SLOW}” does not decay fast",
        "complicated, as it is not decaying fast (figure 5)",
        f"below {left:.0%} of its maximum after {span(own)} repeats (other words: {span(others)}); {listed(kinds)}",
        rules.most(longer, len(curves)),
        f"In {longer} of {len(curves)} seeds “{SLOW}” takes longer than every other word; in "
        f"{kinds['exponential']} its memory also decays exponentially. {learned}",
    )


EXPERIMENT = Experiment(
    id="ia-fig5",
    title="Memory of recurrent sentiment models",
    source="IAT, figure 5",
    question="How much does one more repeat of a word change the sentiment score of an LSTM after many repeats?",
    claim="The memory of “good” and “bad” decays exponentially, the memory of “ha” slowly; also in stacked models.",
    configs={
        "smoke": Config(
            data="synthetic",
            reviews=200,
            vocabulary=64,
            length=24,
            embedding=8,
            hidden=8,
            fitting=Fitting(epochs=4, batch=20, lr=0.02, device="cpu"),
            seeds=1,
            horizon=60,
        ),
        "paper": Config(),
    },
    minutes={"smoke": 0.1, "paper": 120.0},
    run=run,
    figures=figures,
    claims=claims,
)
