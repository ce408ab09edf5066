"""The report in a real browser, headless: it draws, its switches work, and nothing leaves the page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from browsers import SCREENSHOTS, Open
from report_runs import write_run

from stablessm.report import page as report_page

SECTION = "#run-ia-fig1-paper"


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
    report_page.write(folder / "report.html", [folder])
    return folder / "report.html"


def scroll_to(tab: Any, selector: str = SECTION) -> Any:
    section = tab.locator(selector)
    section.locator("figure").first.scroll_into_view_if_needed()
    section.locator("figure .series path").first.wait_for(state="attached")
    return section


def shoot(tab: Any, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    tab.screenshot(path=SCREENSHOTS / f"{name}.png")


def scales(panel: Any) -> list[str]:
    pressed = [panel.get_by_role("button", name=f"log {name}").get_attribute("aria-pressed") for name in "xy"]
    return ["log" if value == "true" else "linear" for value in pressed]


def ticks(panel: Any) -> list[str]:
    return list(panel.locator(".axes text").all_text_contents())


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark"), (390, "light"), (1280, "dark")])
def test_fits_and_draws(open_page: Open, report: Path, width: int, scheme: str) -> None:
    tab = open_page(report, width, color_scheme=scheme)
    assert tab.locator(".run .plot").count() <= 4, "plots far below the window are not drawn yet"
    background = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every(c => c %s)"
    assert tab.evaluate(background % ("> 200" if scheme == "light" else "< 60"))
    shoot(tab, f"front-{width}-{scheme}")
    for name in ("ia-fig1-paper", "ia-fig4-smoke", "st-fig1-smoke", "ext-precision-smoke"):
        scroll_to(tab, f"#run-{name}")
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.locator("#run-st-fig1-smoke .plot svg").count() >= 3
    assert tab.locator("#run-ia-fig1-paper .plot").first.locator(".series").count() == 8
    tab.evaluate(f"document.querySelector('{SECTION}').scrollIntoView()")
    shoot(tab, f"run-{width}-{scheme}")


def test_summaries_of_papers_have_a_figure(open_page: Open, report: Path) -> None:
    tab = open_page(report)
    papers = tab.locator(".paper")
    assert papers.count() == 2
    papers.nth(1).scroll_into_view_if_needed()
    papers.nth(1).locator(".series path").first.wait_for(state="attached")
    assert papers.nth(1).locator(".panel").count() == 2


def test_curves_lie_where_the_axes_say(open_page: Open, report: Path) -> None:
    """The crossings of the figure, (0.05, 0.1), (0.2, 0.1), (0.4, 0.1), against the pixels of the labeled ticks."""
    panel = scroll_to(open_page(report)).locator(".panel").first
    places = panel.evaluate(
        """panel => {
          const path = [...panel.querySelectorAll(".series.points path")].at(-1).getAttribute("d");
          const texts = [...panel.querySelectorAll(".axes text[text-anchor=middle]")];
          const at = name => Number(texts.find(t => t.textContent === name).getAttribute("x"));
          return [[at("0.01"), at("1")], path.match(/M[\\d.]+/g).map(x => Number(x.slice(1)))];
        }"""
    )
    (low, high), points = places
    for value, pixel in zip((0.05, 0.2, 0.4), points, strict=True):
        assert pixel == pytest.approx(low + (high - low) * (math.log10(value) + 2) / 2, abs=0.2)


def test_switches_hover_and_zoom(open_page: Open, report: Path) -> None:
    tab = open_page(report)
    panel = scroll_to(tab).locator(".panel").first
    assert scales(panel) == ["log", "log"]
    logarithmic = ticks(panel)
    panel.get_by_role("button", name="log x").click()
    assert scales(panel) == ["linear", "log"]
    assert ticks(panel) != logarithmic
    panel.get_by_role("button", name="log x").click()
    assert ticks(panel) == logarithmic

    switch = panel.get_by_role("button", name="m = 16")
    assert panel.locator(".series").count() == 8
    switch.click()
    assert panel.locator(".series").count() == 6, "a group has one switch"
    assert switch.get_attribute("aria-pressed") == "false"
    switch.dblclick()
    assert panel.locator(".series").count() == 2
    switch.dblclick()
    assert panel.locator(".series").count() == 8
    image = panel.locator(".plot svg").bounding_box()
    last = panel.locator(".series.points path").last.get_attribute("d").split("M")[-1]  # the last of the crossings
    x, y = (float(part) for part in last.removesuffix("h0").split())
    tab.mouse.move(image["x"] + x + 1, image["y"] + y + 1)
    text = panel.locator(".tip").text_content()
    assert "perturbation β: 0.4" in text
    assert "E_m(β): 0.1" in text
    shoot(tab, "hover")
    tab.mouse.move(image["x"] + 100, image["y"] + 60)
    tab.mouse.down()
    tab.mouse.move(image["x"] + 200, image["y"] + 160, steps=4)
    tab.mouse.up()
    panel.get_by_role("button", name="reset zoom").wait_for()
    zoomed = ticks(panel)
    assert zoomed != logarithmic
    tab.locator("[data-theme-button]").click()  # other colors, the same view
    assert ticks(panel) == zoomed
    panel.get_by_role("button", name="reset zoom").click()
    assert ticks(panel) == logarithmic


def test_says_what_the_axes_cannot_show(open_page: Open, report: Path) -> None:
    panel = scroll_to(open_page(report)).locator(".panel").nth(1)
    assert panel.locator(".missing").text_content().startswith("15 points not shown")
    panel.get_by_role("button", name="log x").click()
    panel.get_by_role("button", name="log y").click()
    assert panel.locator(".missing").text_content().startswith("9 points not shown (not finite)")


def test_links_lead_to_the_page_the_papers_and_the_files_of_the_run(open_page: Open, report: Path) -> None:
    tab = open_page(report)
    links = set(tab.evaluate("[...document.links].map(a => a.getAttribute('href')).filter(h => h[0] !== '#')"))
    files = {link for link in links if not link.startswith("https://arxiv.org/abs/")}
    assert files
    assert all((report.parent / link).is_file() for link in files)


def test_theme_is_remembered_and_plots_follow(open_page: Open, report: Path) -> None:
    tab = open_page(report, color_scheme="light")
    scroll_to(tab)
    color = "getComputedStyle(document.querySelector('.series path')).stroke"
    light = tab.evaluate(color)
    tab.locator("[data-theme-button]").click()
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    assert tab.evaluate(color) != light
    shoot(tab, "run-1280-dark")
    tab.reload()
    assert tab.evaluate("document.documentElement.dataset.theme") == "dark"
    shoot(tab, "front-1280-dark")


def test_filter_thumbnails_and_copy(open_page: Open, report: Path) -> None:
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
    tab.locator(".thumbnail svg .series").first.wait_for(state="attached")
    shoot(tab, "figures")
    section = scroll_to(tab)
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    section.locator("[data-copy]").click()
    section.get_by_text("copied").wait_for()
    assert tab.evaluate("navigator.clipboard.readText()") == "stablessm run ia-fig1 --size smoke"


def test_prints_every_figure_on_white(open_page: Open, report: Path) -> None:
    tab = open_page(report, color_scheme="dark")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    assert tab.pdf(path=SCREENSHOTS / "print.pdf").startswith(b"%PDF")
    figures = tab.locator(".run figure").count()
    assert tab.locator(".run figure:has(.series)").count() == figures, "figures that nobody has scrolled to as well"
    tab.emulate_media(media="print")
    assert not tab.locator("header.top").is_visible()
    assert tab.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    assert tab.evaluate("[...document.querySelectorAll('.plot')].every(p => p.clientHeight > 100)")


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
    assert tab.locator(".run .plot").count() == 0, "nothing is drawn before it is looked at"
    scroll_to(tab, "#run-ia-fig49-smoke")
    assert tab.locator(".run .plot").count() < 20
    shoot(tab, "fifty")
