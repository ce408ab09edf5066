"""Turns off the telemetry of Hugging Face libraries and Ray, unless the user has chosen a setting."""

from __future__ import annotations

import json
import os
from pathlib import Path

_HUB = ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK")
_RAY = "RAY_USAGE_STATS_ENABLED"


def hub() -> dict[str, str]:
    """Return the environment variables that turn off the telemetry of Hugging Face libraries.

    The variables are read when ``huggingface_hub`` is imported. The result is empty if the user has set one of them.
    """
    return {} if any(variable in os.environ for variable in _HUB) else {_HUB[0]: "1"}


def ray() -> dict[str, str]:
    """Return the environment variables that turn off the usage statistics of a new Ray cluster.

    The result is empty if the user has set the variable, or has answered ``ray enable-usage-stats`` or ``ray
    disable-usage-stats``.
    """
    if _RAY in os.environ:
        return {}
    path = Path(os.environ.get("RAY_USAGE_STATS_CONFIG_PATH") or Path.home() / ".ray" / "config.json")
    try:
        chosen = "usage_stats" in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        chosen = False
    return {} if chosen else {_RAY: "0"}
