"""docs/scaling.md and its chart are what the cost model and the committed records say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("_scaling_page", ROOT / "benchmarks" / "_scaling_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_not_stale(page: ModuleType) -> None:
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert page.updated(text) == text, "run: python benchmarks/_scaling_page.py"


def test_the_chart_is_not_stale(page: ModuleType) -> None:
    chart = (ROOT / "docs" / "assets" / "scaling.svg").read_text(encoding="utf-8")
    assert chart == page.chart(), "run: python benchmarks/_scaling_page.py"


def test_a_page_without_marks_is_told(page: ModuleType) -> None:
    with pytest.raises(ValueError, match="no mark"):
        page.updated("# Scaling")
