"""Fixtures of the contract suites."""

from __future__ import annotations

import cli_stand_ins
import pytest
from cli_stand_ins import Arrivals


@pytest.fixture
def arrivals(request, tmp_path, monkeypatch) -> Arrivals:
    """What a command line passes on: the stage that the parameter names stands in for what commands call."""
    monkeypatch.chdir(tmp_path)
    found = Arrivals(monkeypatch)
    cli_stand_ins.STAGES[request.param](found)
    return found
