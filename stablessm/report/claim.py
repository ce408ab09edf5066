"""Defines a claim: a statement, for example of a paper, with the measured result and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

VERDICTS = {
    "reproduced": "✓",
    "holds": "✓",
    "partly": "◐",
    "inconclusive": "?",
    "not reproduced": "✗",
    "does not hold": "✗",
}
"""The verdicts of ``stablessm.experiments.frame.rules`` and their symbols. ``holds`` and ``does not hold`` are for
statements that no paper makes; ``inconclusive`` means that the run cannot tell. A run of smoke size has no verdict."""


@final
@dataclass(frozen=True)
class Claim:
    """A statement that a run checks: what the paper says, what was measured, and the verdict."""

    statement: str
    paper: str = ""
    """The paper's value, or what the paper says."""
    ours: str = ""
    verdict: str = ""
    """One of ``VERDICTS``, or empty."""
    why: str = ""
    """The evidence for the verdict, in a sentence or two."""


def kind(claim: Claim) -> str:
    """Return the CSS class of the claim's verdict.

    >>> kind(Claim("it decays", verdict="not reproduced")), kind(Claim("it decays", verdict="perhaps"))
    ('not-reproduced', 'unknown')
    """
    return claim.verdict.replace(" ", "-") if claim.verdict in VERDICTS else "unknown"


def tally(claims: Iterable[Claim]) -> dict[str, int]:
    """Return the number of claims with each verdict, in the order of ``VERDICTS``; unknown verdicts count as no
    verdict.

    >>> tally([Claim("a", verdict="partly"), Claim("b", verdict="perhaps"), Claim("c", verdict="reproduced")])
    {'reproduced': 1, 'partly': 1, '': 1}
    """
    number = Counter(claim.verdict if claim.verdict in VERDICTS else "" for claim in claims)
    return {name: number[name] for name in (*VERDICTS, "") if number[name]}
