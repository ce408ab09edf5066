"""A checked statement: what a paper says, what we found, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

VERDICTS = ("reproduced", "partly", "not reproduced")


@final
@dataclass(frozen=True)
class Claim:
    """One statement of a paper, checked."""

    statement: str
    paper: str = ""
    """The paper's value, or what it says."""
    ours: str = ""
    verdict: str = ""
    """One of ``VERDICTS``."""
    why: str = ""
    """One sentence."""
