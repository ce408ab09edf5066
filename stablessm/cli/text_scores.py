"""Computes two perplexities of a language model on a text: with a state that is carried from window to window, and with
windows that start without a state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MEASURES = ("per_token", "per_word", "per_byte", "bits_per_byte")
ABOUT = {
    "carried": "the state is carried through a whole document",
    "windows": "the state is empty at the start of every window",
}
MARGIN = 1.02
"""Ratio of the two perplexities, carried over windows, above which ``columns`` warns."""


def text_scores(model: Any, task: Any, split: Any, batch_size: int, *, autocast: bool) -> dict[str, Any]:
    """Return the numbers of tokens, words and bytes of a split, and the perplexities with and without carried state."""
    from stablessm import training

    scores: dict[str, Any] = {}
    for read in ABOUT:
        carry = read == "carried"
        found = training.perplexity(model, task, split, batch_size, carry=carry, autocast=autocast, progress=True)
        scores |= {count: getattr(found, count) for count in ("tokens", "words", "bytes", "lost")}
        scores[read] = {measure: getattr(found, measure) for measure in MEASURES}
    return scores


def columns(scores: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of perplexities with and without a carried state, followed by explanations."""
    yield f"{'perplexity':<14} {''.join(f'{read:>12}' for read in ABOUT)}"
    for measure in MEASURES:
        cells = "".join(f"{scores[read][measure]:>12.6g}" for read in ABOUT)
        yield f"{measure.replace('_', ' '):<14} {cells}"
    yield from (f"{read}: {meaning}" for read, meaning in ABOUT.items())
    if scores["carried"]["per_token"] > MARGIN * scores["windows"]["per_token"]:
        yield (
            "warning: the perplexity is higher with a carried state: the model does not generalize beyond its windows. "
            "Train it with shorter time scales (mixer_options), longer windows (-o length=…) or -o carry=true"
        )
