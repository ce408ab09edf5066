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
"""The verdicts that ``stablessm.experiments.rules`` gives, and their signs: on what a paper claims; ``holds`` and ``does
not hold`` on what no paper claims; ``inconclusive`` where a run cannot tell. A run of smoke size has none."""


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
