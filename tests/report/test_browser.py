"""The report in a real browser, headless: it draws, its switches work, and nothing leaves the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from report_runs import draw_once, write_run

from stablessm.report import page as report_page
from stablessm.report.figure import Figure

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SCREENSHOTS = Path(os.environ.get("STABLESSM_SCREENSHOTS", Path(__file__).parents[2] / "runs" / "screenshots"))
SECTION = "#run-ia-fig1-paper"
Open = Callable[..., Any]


def missing(reason: str) -> NoReturn:
    if os.environ.get("STABLESSM_NEED_BROWSER"):
        pytest.fail(f"the report was not opened in a browser: {reason}")
    pytest.skip(f"the report was not opened in a browser: {reason}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        missing("no playwright: pip install playwright")
    with sync_playwright() as playwright:
        found = next((path for path in map(shutil.which, BROWSERS) if path), None)
        try:
            launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Error as error:
            missing(f"no Chromium here that starts ({found or 'none found'}): {str(error).splitlines()[0]}")
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "paper", size="paper", title="Two memories, and <script>alert(1)</script>")
    write_run(folder / "smoke")
    write_run(folder / "map", "ia-fig4", 1, title="A stable map keeps it bounded", source="IAT, figure 4")
    write_run(
        folder / "wide", "st-fig1", 3, source="StableSSM, figure 1", command="stablessm run st-fig1 " + "-v " * 60
    )
    write_run(folder / "broken", "ext-precision", figures=["curves", "gone"], claims=[{"verdict": "perhaps"}])
    (folder / "broken" / "curves.svg").write_text("<svg", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        draw_once(patch)
        report_page.write(folder / "report.html", [folder])
    return folder / "report.html"


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a file; when the test ends, nothing was logged and nothing was asked from outside."""
    complaints: list[str] = []
    contexts = []

    def visit(path: Path, width: int = 1280, **options: Any) -> Any:
        phone = {"is_mobile": True, "has_touch": True} if width < 600 else {}
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, **phone, **options))
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: complaints.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        tab.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        tab.on("popup", lambda popup: complaints.append(f"popup: {popup.url}"))
        tab.on("request", lambda request: inside(request.url) or complaints.append(f"request: {request.url}"))
        tab.goto(path.as_uri())
        return tab

    def inside(url: str) -> bool:
        return url.startswith(("file:", "data:", "blob:"))

    yield visit
    for context in contexts:
        context.close()
    assert not complaints


def scroll_to(tab: Any, selector: str = SECTION) -> Any:
    section = tab.locator(selector)
    section.locator("figure").first.scroll_into_view_if_needed()
    section.locator(".plot .trace path").first.wait_for(state="attached")
    return section


def shoot(tab: Any, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    tab.screenshot(path=SCREENSHOTS / f"{name}.png")


def axis(section: Any, name: str) -> Any:
    return section.locator(".plot").first.evaluate(f"plot => plot._fullLayout.{name}axis.type")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_fits_and_draws(open_page: Open, report: Path, width: int, scheme: str) -> None:
    tab = open_page(report, width, color_scheme=scheme)
    assert tab.locator(".plot").count() <= 4, "plots far below the window wait"
    shoot(tab, f"front-{width}-{scheme}")
    for name in ("ia-fig1-paper", "ia-fig4-smoke", "st-fig1-smoke", "ext-precision-smoke"):
        scroll_to(tab, f"#run-{name}")
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.locator("#run-st-fig1-smoke .plot .main-svg").count() >= 3
    assert tab.locator("#run-ia-fig1-paper .plot").first.locator(".trace").count() == 8
    tab.evaluate(f"document.querySelector('{SECTION}').scrollIntoView()")
    shoot(tab, f"run-{width}-{scheme}")


def test_switches_hover_and_zoom(open_page: Open, report: Path) -> None:
    tab = open_page(report)
    section = scroll_to(tab)
    panel = section.locator(".panel").first
    assert (axis(section, "x"), axis(section, "y")) == ("log", "log")
    panel.get_by_role("button", name="log x").click()
    assert (axis(section, "x"), axis(section, "y")) == ("linear", "log")
    panel.get_by_role("button", name="log x").click()
    assert axis(section, "x") == "log"

    def visible() -> list[str]:
        return panel.locator(".plot").evaluate("p => p._fullData.filter(t => t.visible === true).map(t => t.name)")

    switch = panel.get_by_role("button", name="m = 16")
    assert len(visible()) == 8
    switch.click()
    assert not [name for name in visible() if "16" in name]
    assert len(visible()) == 6, "a group has one switch"
    assert switch.get_attribute("aria-pressed") == "false"
    switch.dblclick()
    assert visible() == ["m = 16", "m = 16, upper"]
    switch.dblclick()
    assert len(visible()) == 8
    drag = panel.locator(".nsewdrag").bounding_box()
    point = panel.locator(".plot").evaluate(
        "p => [p._fullLayout.xaxis.d2p(0.4) , p._fullLayout.yaxis.d2p(0.1)]"  # the last of the crossings
    )
    tab.mouse.move(drag["x"] + point[0] + 1, drag["y"] + point[1] + 1)
    text = panel.locator(".hovertext").text_content()
    assert "perturbation β: 0.4" in text
    assert "E_m(β): 0.1" in text
    shoot(tab, "hover")
    before = panel.locator(".plot").evaluate("p => p._fullLayout.xaxis.range")
    tab.mouse.move(drag["x"] + 80, drag["y"] + 60)
    tab.mouse.down()
    tab.mouse.move(drag["x"] + 200, drag["y"] + 160, steps=4)
    tab.mouse.up()
    tab.wait_for_function(
        "before => document.querySelector('#run-ia-fig1-paper .plot')._fullLayout.xaxis.range[1] < before",
        arg=before[1],
    )
    tab.locator("[data-theme-button]").click()  # other colours, the same view
    assert panel.locator(".plot").evaluate("p => p._fullLayout.xaxis.range")[1] < before[1]


def test_says_what_the_axes_cannot_show(open_page: Open, report: Path) -> None:
    panel = scroll_to(open_page(report)).locator(".panel").nth(1)
    assert panel.locator(".missing").text_content().startswith("15 points not on these axes")
    panel.get_by_role("button", name="log x").click()
    panel.get_by_role("button", name="log y").click()
    assert panel.locator(".missing").text_content().startswith("9 points not on these axes (not finite)")


def test_plots_offer_nothing_that_leaves_the_page(open_page: Open, report: Path) -> None:
    tab = open_page(report)
    titles = scroll_to(tab).locator(".panel").first.locator(".modebar-btn").evaluate_all("b => b.map(x => x.ariaLabel)")
    assert titles == ["Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]
    outside = tab.evaluate("[...document.links].map(a => a.getAttribute('href')).filter(h => !/^(#|data:)/.test(h))")
    assert outside == []


def test_theme_is_remembered_and_plots_follow(open_page: Open, report: Path) -> None:
    tab = open_page(report, color_scheme="light")
    scroll_to(tab)
    colour = "document.querySelector('.plot')._fullLayout.font.color"
    light = tab.evaluate(colour)
    tab.locator("[data-theme-button]").click()
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert tab.evaluate(colour) != light
    shoot(tab, "run-1280-dark")
    tab.reload()
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    shoot(tab, "front-1280-dark")


def test_filter_thumbnails_copy_and_downloads(open_page: Open, report: Path) -> None:
    tab = open_page(report)
    rows = tab.locator("table.claims tbody tr:visible")
    every = rows.count()
    button = tab.locator("[data-filter=partly]")
    button.click()
    assert 0 < rows.count() < every
    assert set(rows.locator(".verdict").all_text_contents()) == {"◐ partly"}
    button.click()
    assert rows.count() == every
    tab.locator(".gallery").scroll_into_view_if_needed()
    thumbnail = tab.locator(".thumbnail img").first
    tab.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=thumbnail.element_handle())
    shoot(tab, "figures")
    section = scroll_to(tab)
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    section.locator("[data-copy]").click()
    section.get_by_text("copied").wait_for()
    assert tab.evaluate("navigator.clipboard.readText()") == "stablessm run ia-fig1 --size smoke"
    for link in section.locator(".downloads a").all():
        with tab.expect_download() as download:
            link.click()
        name = link.get_attribute("download").removeprefix("ia-fig1-")
        path = report.parent / "paper" / name
        drawn = name == "curves.svg"
        expected = Figure.load(path.with_suffix(".json")).pictures("svg")["svg"] if drawn else path.read_bytes()
        assert Path(download.value.path()).read_bytes() == expected


def test_prints_the_drawings(open_page: Open, report: Path) -> None:
    tab = open_page(report, color_scheme="dark")
    section = scroll_to(tab)
    assert not section.locator(".drawing").is_visible()
    tab.emulate_media(media="print")
    assert section.locator(".drawing").is_visible()
    assert not section.locator(".plot").first.is_visible()
    assert not tab.locator("header.top").is_visible()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    assert tab.pdf(path=SCREENSHOTS / "print.pdf").startswith(b"%PDF")


def test_no_runs(open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report_page.write("report.html")
    tab = open_page(tmp_path / "report.html", 390)
    assert tab.get_by_text("stablessm run ia-fig1 --size paper").is_visible()
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    shoot(tab, "empty-390")


@pytest.mark.slow
def test_fifty_runs(open_page: Open, tmp_path: Path) -> None:
    for number in range(50):
        write_run(tmp_path / str(number), f"ia-fig{number}", source=f"IAT, figure {number}")
    report_page.write(tmp_path / "report.html", [tmp_path])
    tab = open_page(tmp_path / "report.html")
    assert tab.locator("section.run").count() == 50
    assert tab.locator(".plot").count() == 0, "nothing is drawn before it is looked at"
    scroll_to(tab, "#run-ia-fig49-smoke")
    assert tab.locator(".plot").count() < 20
    shoot(tab, "fifty")
