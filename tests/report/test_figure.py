from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from report_runs import figure

from stablessm import ArgumentError
from stablessm.report.figure import Figure, Panel, Series


def test_saved_and_loaded(tmp_path: Path) -> None:
    original = figure()
    original.save(tmp_path)
    loaded = Figure.load(tmp_path / "curves.json")
    assert loaded.to_json() == original.to_json()
    assert math.isinf(loaded.panels[1].series[1].y[-1])
    assert loaded.panels[0].y_range == (1e-5, 1e4)
    assert [path.name for path in tmp_path.iterdir()] == ["curves.json"]


def test_the_file_has_the_digits_of_a_drawing(tmp_path: Path) -> None:
    line = Series("a", [0, 1048577], [1 / 3, 1e-300 / 7])
    Figure("short", "One line.", [Panel("memory", "t", "M", [line])]).save(tmp_path)
    (panel,) = Figure.load(tmp_path / "short.json").panels
    assert list(panel.series[0].x) == [0, 1048577]
    assert list(panel.series[0].y) == [0.333333, 1.42857e-301]


@pytest.mark.usefixtures("real_pictures")
def test_the_same_numbers_give_the_same_files(tmp_path: Path) -> None:
    small = Figure("small", "One line.", [Panel("memory", "t", "M", [Series("a", [0, 1], [1.0, 0.5])])])
    for folder in ("one", "two"):
        small.save(tmp_path / folder)
        small.save_pictures(tmp_path / folder)
    for suffix in ("json", "png", "svg"):
        assert (tmp_path / "one" / f"small.{suffix}").read_bytes() == (
            tmp_path / "two" / f"small.{suffix}"
        ).read_bytes()
    assert (tmp_path / "one" / "small.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "one" / "small.svg").read_text(encoding="utf-8")


def test_groups_share_a_color_and_gaps_stay_gaps() -> None:
    axes = figure(panels=2).draw().axes[1]
    colors = [line.get_color() for line in axes.lines]
    assert colors == ["C0", "C0", "C1", "C1", "C2", "C2", "C3", "C4"]
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--", "-", "--", "-", "--", ":", "None"]
    assert np.isnan(axes.lines[0].get_xdata()[0]), "β = 0 is not on a log axis"
    assert np.isnan(axes.lines[1].get_ydata()[-3:]).all()
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_ylim()) == ("log", "log", (1e-5, 1e4))
    assert {(line.get_linewidth(), line.get_markersize()) for line in axes.lines} == {(1.4, 3)}
    assert [line.get_marker() for line in axes.lines] == ["None", "None", "o", "None", "None", "None", "None", "o"]
    assert {text.get_fontsize() for text in axes.get_legend().get_texts()} == {7}
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("polynomial memory", "perturbation β", "E_m(β)")
    assert axes.title.get_fontsize() == pytest.approx(1.2 * 9)
    assert axes.figure.get_size_inches().tolist() == [2 * 4.6, 3.6]
    assert figure(panels=1).draw().axes[0].get_legend() is not None
    alone = Panel("one", "t", "y", [Series("a", [0, 1], [1.0, 0.5])])
    assert Figure("one", "One line.", [alone]).draw().axes[0].get_legend() is None


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentError, match="y: expected 2 numbers"):
        Series("a", [0, 1], [1.0])
    with pytest.raises(ArgumentError, match="style: expected one of solid"):
        Series("a", [0], [1.0], style="wavy")  # type: ignore[arg-type]
