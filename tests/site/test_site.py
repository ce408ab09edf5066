"""The documentation, as ``./dev docs`` builds it, in a headless Chromium on a wide screen and on a phone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browsers import Open

ROOT = Path(__file__).parents[2]
SITE = os.environ.get("STABLESSM_SITE")
PAGES = sorted(page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in (ROOT / "docs").rglob("*.md"))
OVERFLOW = """[...document.querySelectorAll("main table, main pre, main img, main .doc-signature")]
  .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1 && !e.closest("pre, .md-typeset__scrollwrap"))
  .map(e => e.outerHTML.slice(0, 80))"""
FRAMES = """[...document.querySelectorAll(".md-typeset__scrollwrap")]
  .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 80))"""

pytestmark = pytest.mark.skipif(SITE is None, reason="./dev docs builds the site and sets STABLESSM_SITE")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Serve the site: search and relative links need a server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def address(site: str, page: str) -> str:
    return f"{site}/{page.removesuffix('index')}".rstrip("/") + "/"


def test_every_page_was_built() -> None:
    assert len(PAGES) > 40
    missing = [page for page in PAGES if not (Path(str(SITE)) / page.removesuffix("index") / "index.html").is_file()]
    assert not missing


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", PAGES)
def test_nothing_scrolls_sideways(open_page: Open, site: str, page: str, width: int) -> None:
    tab = open_page(address(site, page), width)
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    if width == 1280:
        assert tab.evaluate(OVERFLOW) == []
        frames = (
            "[...document.querySelectorAll('.md-typeset__scrollwrap')].filter(e => e.scrollWidth > e.clientWidth + 1)"
        )
        assert tab.evaluate(f"{frames}.map(e => e.innerText.slice(0, 80))") == []


def test_navigation_is_grouped_and_pages_are_linked_in_order(open_page: Open, site: str) -> None:
    tab = open_page(address(site, "choose-layer"))
    tabs = [text.strip() for text in tab.locator(".md-tabs__link").all_text_contents()]
    assert tabs == ["Start", "Tutorials", "Guides", "Reference", "Papers", "Development"]
    assert "Installing" in tab.locator("a.md-footer__link--prev").inner_text()
    assert "Which map?" in tab.locator("a.md-footer__link--next").inner_text()
    assert tab.locator("a[title='Edit this page']").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_follow_the_system_and_the_switch(open_page: Open, site: str, scheme: str) -> None:
    tab = open_page(address(site, ""), color_scheme=scheme)
    light = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every(c => c > 128)"
    assert tab.evaluate(light) == (scheme == "light")
    seen = set()
    for _ in range(3):
        tab.locator("form[data-md-component=palette] label:visible").click()
        seen.add(tab.evaluate(light))
    assert seen == {True, False}


def test_claims_can_be_filtered(open_page: Open, site: str) -> None:
    tab = open_page(address(site, "claims/iat"))
    every = tab.locator(".claim:visible").count()
    tab.locator(".claim-filter button").nth(1).click()
    assert 0 < tab.locator(".claim:visible").count() < every
    tab.locator(".claim-filter button").first.click()
    assert tab.locator(".claim:visible").count() == every


def test_search_finds_a_term(open_page: Open, site: str) -> None:
    tab = open_page(address(site, ""))
    tab.locator("input.md-search__input").click()
    tab.locator("input.md-search__input").press_sequentially("reparameterization")
    tab.locator(".md-search-result__item").first.wait_for()
    assert "eparameterization" in tab.locator(".md-search-result__list").inner_text()
