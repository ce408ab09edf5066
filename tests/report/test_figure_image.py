"""Grids of images: through JSON, drawn by matplotlib, and drawn in the page."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from report_runs import write_run

from stablessm import ArgumentError
from stablessm.report import page as report_page
from stablessm.report.figure import Figure, ImageGrid, Panel, Series

SHAPES = st.tuples(*(st.integers(1, 4) for _ in range(3)))


def mixed() -> Figure:
    ramp = np.linspace(0, 1, 2 * 5 * 4).reshape(2, 5, 4)
    grid = ImageGrid.of("digits", {"seen": ramp, "found <b>": 1 - ramp})
    return Figure("mixed", "Images and a line.", [grid, Panel("error", "k", "e", [Series("a", [0, 1], [1.0, 0.5])])])


@settings(max_examples=50)
@given(data=st.data(), shape=SHAPES, rows=st.integers(1, 4))
def test_every_image_is_found_again_in_the_mosaic(data: st.DataObject, shape: tuple[int, ...], rows: int) -> None:
    values = st.floats(-1, 2)
    images = [data.draw(arrays.arrays(float, shape, elements=values)) for _ in range(rows)]
    grid = ImageGrid.of("any", {str(i): row for i, row in enumerate(images)})
    whole, (columns, height, width) = np.array(grid.pixels), shape
    assert whole.shape == (rows * (height + 1) - 1, columns * (width + 1) - 1)
    for i, row in enumerate(images):
        for j, image in enumerate(row):
            top, left = i * (height + 1), j * (width + 1)
            tile = whole[top : top + height, left : left + width]
            np.testing.assert_allclose(tile / 255, image.clip(0, 1), atol=0.5 / 255 + 1e-12)
            assert not whole[top + height : top + height + 1].any(), "a gap is empty"
            assert not whole[:, left + width : left + width + 1].any(), "a gap is empty"


def test_saved_and_loaded(tmp_path: Path) -> None:
    mixed().save(tmp_path)
    assert Figure.load(tmp_path / "mixed.json").to_json() == mixed().to_json()
    assert isinstance(Figure.load(tmp_path / "mixed.json").panels[0], ImageGrid)
    images, line = mixed().draw().axes
    assert [label.get_text() for label in images.get_yticklabels()] == ["seen", "found <b>"]
    assert images.get_yticks().tolist() == [2.0, 8.0]
    np.testing.assert_array_equal(images.images[0].get_array(), mixed().panels[0].pixels)
    assert not line.images


def test_wrong_images_are_refused() -> None:
    for rows in ({}, {"a": np.zeros((2, 2))}, {"a": np.zeros((1, 2, 2)), "b": np.zeros((2, 2, 2))}):
        with pytest.raises(ArgumentError, match=r"^rows: expected arrays of one shape \(columns, height, width\)"):
            ImageGrid.of("wrong", rows)
    with pytest.raises(ArgumentError, match=r"got \(2, 2\)$"):
        ImageGrid.of("wrong", {"a": np.zeros((2, 2))})
    with pytest.raises(ArgumentError, match=r"got \(1, 2, 2\), \(2, 2, 2\)$"):
        ImageGrid.of("wrong", {"a": np.zeros((1, 2, 2)), "b": np.zeros((2, 2, 2))})
    with pytest.raises(ArgumentError, match="pixels: expected 3 lines of one width"):
        ImageGrid("wrong", ["a"], 3, [[0, 0], [0], [0, 0]])
    assert ImageGrid.of("nan", {"a": np.full((1, 1, 1), np.nan)}).pixels == [[0]]


def test_drawn_in_a_browser(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium")
    mixed().save(write_run(tmp_path / "runs", "lr-fig3", figures=["mixed"]))
    report_page.write(tmp_path / "report.html", [tmp_path / "runs"])
    complaints: list[str] = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto((tmp_path / "report.html").as_uri())
        tab.locator(".run figure").first.scroll_into_view_if_needed()
        panels = tab.locator(".run .panel")
        panels.first.locator("canvas").wait_for(state="attached")
        assert panels.count() == 2
        assert panels.first.locator(".rows span").all_text_contents() == ["seen", "found <b>"]
        ink = "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
        pixels = np.array(panels.first.locator("canvas").evaluate(ink)).reshape(*np.shape(mixed().panels[0].pixels), 4)
        np.testing.assert_array_equal(pixels[..., 3], mixed().panels[0].pixels)
        assert panels.nth(1).locator(".series path").count() >= 1
        tab.screenshot(path=tmp_path / "page.png")
        browser.close()
    assert not complaints
