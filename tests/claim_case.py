"""One case of invented stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from invented_stages import Changes


@dataclass(frozen=True)
class Case:
    """Changed stages and settings, and the verdicts that they must give."""

    verdicts: str
    changes: Changes = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
