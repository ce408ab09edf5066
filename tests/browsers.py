"""A headless Chromium for tests of HTML pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail where a browser is required."""
    if os.environ.get("STABLESSM_NEED_BROWSER"):
        pytest.fail(f"no page was opened in a browser: {reason}")
    pytest.skip(f"no page was opened in a browser: {reason}")


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the Chromium of this machine, or Playwright's own."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        missing("no playwright: pip install playwright")
    with sync_playwright() as playwright:
        found = next((path for path in map(shutil.which, NAMES) if path), None)
        try:
            launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Error as error:
            missing(f"no Chromium here that starts ({found or 'none found'}): {str(error).splitlines()[0]}")
        yield launched
        launched.close()
