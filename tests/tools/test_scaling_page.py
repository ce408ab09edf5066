"""docs/scaling.md and its chart are what the cost model and the committed records say."""

from __future__ import annotations

from pathlib import Path

import pytest
import scaling_page as page

ROOT = Path(__file__).parents[2]


def test_the_page_is_not_stale() -> None:
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert page.updated(text) == text, "run: ./dev pages"


def test_the_chart_is_not_stale() -> None:
    chart = (ROOT / "docs" / "assets" / "scaling.svg").read_text(encoding="utf-8")
    assert chart == page.chart(), "run: ./dev pages"


def test_a_page_without_marks_is_told() -> None:
    with pytest.raises(ValueError, match="no mark"):
        page.updated("# Scaling")
