"""Fixtures for tests of HTML pages in a headless Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SCREENSHOTS = Path(os.environ.get("STABLESSM_SCREENSHOTS", Path(__file__).parents[1] / "runs" / "screenshots"))
Open: TypeAlias = Callable[..., Any]


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail where a browser is required."""
    if os.environ.get("STABLESSM_NEED_BROWSER"):
        pytest.fail(f"no page was opened in a browser: {reason}")
    pytest.skip(f"no page was opened in a browser: {reason}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
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


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Open a file or an address; the test fails if a page logs anything or requests anything from elsewhere."""
    complaints: list[str] = []
    contexts = []

    def visit(page: Path | str, width: int = 1280, **options: Any) -> Any:
        address = page.as_uri() if isinstance(page, Path) else page
        allowed = (
            ("file:", "data:", "blob:") if isinstance(page, Path) else ("data:", "blob:", "/".join(page.split("/")[:3]))
        )
        phone = {"is_mobile": True, "has_touch": True} if width < 600 else {}
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **phone, **options))
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: complaints.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        tab.on("popup", lambda popup: complaints.append(f"popup: {popup.url}"))
        tab.on(
            "request", lambda request: request.url.startswith(allowed) or complaints.append(f"request: {request.url}")
        )
        tab.goto(address)
        return tab

    yield visit
    for context in contexts:
        context.close()
    assert not complaints
