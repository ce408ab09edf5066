"""A checked statement: what a paper says, what we found, and the verdict."""

from __future__ import annotations

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
"""The verdicts of ``stablessm.experiments.frame.rules`` and their signs. ``holds`` and ``does not hold`` are about
statements that no paper makes, ``inconclusive`` is a run that cannot tell; a run of smoke size has no verdict."""


@final
@dataclass(frozen=True)
class Claim:
    """One statement of a paper, checked."""

    statement: str
    paper: str = ""
    """The paper's value, or what it says."""
    ours: str = ""
    verdict: str = ""
    """One of ``VERDICTS``, or none."""
    why: str = ""
    """One sentence."""
