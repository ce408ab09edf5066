"""Dates in CSV files: time zones, digits without marks, and what is said about dates that are not understood."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablessm import tasks
from stablessm.tasks import csv_file

ZONES = {
    "Z": 0, " UTC": 0, " GMT": 0, " CET": 1, " CEST": 2, " EST": -5, " EDT": -4, " PST": -8, " +01:00": 1, "+0100": 1,
    "+01:00": 1, "-05": -5, " -0500": -5, " UTC+1": 1, " GMT+02:00": 2, " CET (local)": 1, "+01:00[Europe/Berlin]": 1,
}  # fmt: skip
DAYS = ("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%d.%m.%y",
        "%Y-%m-%d", "%a, %d %b %Y", "%A %d %B %Y")  # fmt: skip
CLOCKS = (" %H:%M", " %H:%M:%S", " %I:%M %p")
DIGITS = ("%Y%m%d", "%Y%m%dT%H%M%S", "%Y%m%dT%H%M%SZ", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%Y%m%d %H:%M")
STRANGE = ("%d.%m.%Y %Hh%M", "%d. Januar %Y", "%d janv. %Y", "%Y-%j %H", "%H:%M:%S, %d. %m. %Y", "%j/%Y",
           "%Y-%m-%d x", "%d.%m.%Y %H:%M - %d.%m.%Y %H:%M", "%d.%m.%Y %H:%M-0%H:00", "%d_%m_%Y %H:%M")  # fmt: skip


def moments(seed: int, form: str) -> list[datetime]:
    rng = np.random.default_rng(seed)
    start = datetime(int(rng.integers(1990, 2030)), int(rng.integers(1, 13)), int(rng.integers(1, 29)))
    step = timedelta(minutes=int(rng.choice([15, 60, 180]))) if "%H" in form or "%I" in form else timedelta(days=1)
    step = max(step, timedelta(hours=1)) if "%M" not in form else step
    return [start + i * step for i in range(int(rng.integers(40, 90)))]


def series(cells: list[str], path: Path) -> tuple[tuple[str, ...], np.ndarray, tuple[str, ...]]:
    """Return the columns, the first forecast rows of the test and the notes of a series with the values 0, 1, …"""
    path.write_text("\n".join(["when;load", *(f"{cell};{i}" for i, cell in enumerate(cells))]), encoding="utf-8")
    task = tasks.get("series", file=str(path), window=4)
    return task.columns, task.unscaled[:, 0], task.notes


@given(seed=st.integers(0, 10**9), zone=st.sampled_from(list(ZONES)), day=st.sampled_from(DAYS))
def test_a_time_zone_may_follow_every_form_of_dates(seed, zone, day, tmp_path_factory):
    form = day + CLOCKS[seed % len(CLOCKS)]
    cells = [moment.strftime(form) + zone for moment in moments(seed, form)][::-1]
    columns, load, notes = series(cells, tmp_path_factory.mktemp("z") / "z.csv")
    assert (columns, load[0]) == (("load",), len(cells) - 1)
    assert any("newest row is first by when" in note for note in notes)


def test_a_time_zone_is_subtracted() -> None:
    for zone, hours in ZONES.items():
        for form in (day + clock for day in DAYS for clock in CLOCKS):
            moment = datetime(2024, 11, 30, 17, 30)
            found = csv_file._dates.dates([moment.strftime(form) + zone])
            assert found == [moment - timedelta(hours=hours)], (form, zone)


@given(seed=st.integers(0, 10**9), form=st.sampled_from(DIGITS), newest_first=st.booleans())
def test_digits_without_marks_are_dates_if_they_are_in_order(seed, form, newest_first, tmp_path_factory):
    cells = [moment.strftime(form) for moment in moments(seed, form)][:: -1 if newest_first else 1]
    columns, load, notes = series(cells, tmp_path_factory.mktemp("d") / "d.csv")
    assert (columns, load[0]) == (("load",), len(cells) - 1 if newest_first else 0)
    assert any("newest row is first" in note for note in notes) == newest_first


@given(seed=st.integers(0, 10**9), length=st.sampled_from([8, 10, 12, 14]), ordered=st.booleans())
def test_other_long_numbers_are_numbers(seed, length, ordered, tmp_path_factory):
    rng = np.random.default_rng(seed)
    first = int(rng.integers(19, 21)) * 10 ** (length - 2)
    numbers = first + (np.cumsum if ordered else np.array)(rng.integers(1, 9 * 10 ** (length - 6), 60))
    columns, _, notes = series([str(number) for number in numbers], tmp_path_factory.mktemp("n") / "n.csv")
    assert columns == ("when", "load")
    assert not notes


@given(seed=st.integers(0, 10**9), form=st.sampled_from(STRANGE))
def test_dates_that_are_not_understood_are_named(seed, form, tmp_path_factory):
    cells = [moment.strftime(form) for moment in moments(seed, form.replace("%M", "%H"))][::-1]
    _, load, notes = series(cells, tmp_path_factory.mktemp("s") / "s.csv")
    assert load[0] == 0
    assert any("when looks like dates that were not understood, such as" in note for note in notes), (form, cells[:2])


def test_numbers_that_are_dates_out_of_order_are_used_and_named(tmp_path: Path) -> None:
    cells = [moment.strftime("%Y%m%d") for moment in moments(1, "%d")]
    columns, _, notes = series(cells[20:] + cells[:20], tmp_path / "o.csv")
    assert columns == ("when", "load")
    assert any("when looks like dates" in note for note in notes)


@given(seed=st.integers(0, 10**9))
def test_a_missing_date_does_not_hide_that_the_newest_row_is_first(seed, tmp_path_factory):
    cells = [moment.isoformat() for moment in moments(seed, "%H")][::-1]
    cells[seed % len(cells)] = ""
    _, load, notes = series(cells, tmp_path_factory.mktemp("m") / "m.csv")
    assert load[0] == len(cells) - 1
    assert any("newest row is first" in note for note in notes)


@pytest.mark.parametrize("cell", ["kind {i} of 3", "{i}:00", "{i},5", "A-{i}", "{i} men", "10.0.0.{i}", "v{i}"])
def test_other_texts_are_not_called_dates(cell: str, tmp_path: Path) -> None:
    _, _, notes = series([cell.format(i=i) for i in range(50)], tmp_path / "t.csv")
    assert not any("looks like dates" in note for note in notes)


COUNTED = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
TOGETHER = ("%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p", "%Y-%m-%d %H:%M:%S", "%d/%m/%Y %H.%M.%S", "%d-%b-%y %H:%M")


@given(
    seed=st.integers(0, 10**9),
    unit=st.sampled_from(list(COUNTED)),
    name=st.sampled_from(["timestamp", "Unix Time", "time", "open_time", "date", "ts", "Zeitstempel"]),
    newest_first=st.booleans(),
)
def test_numbers_that_count_the_time_since_1970_are_dates(seed, unit, name, newest_first, tmp_path_factory):
    path, since = tmp_path_factory.mktemp("e") / "e.csv", datetime(1970, 1, 1)
    seconds = [round((moment - since).total_seconds()) for moment in moments(seed, "%H:%M")]
    uneven = [second for i, second in enumerate(seconds) if (i + seed) % 3 or i in (0, len(seconds) - 1)]
    for rows, extra in ((seconds, ()), (uneven, ("dt",))):
        cells = [str(second * COUNTED[unit]) for second in rows][:: -1 if newest_first else 1]
        path.write_text(
            "\n".join([f"{name},load", *(f"{cell},{i}" for i, cell in enumerate(cells)), "Total,7"]), encoding="utf-8"
        )
        task = tasks.get("series", file=str(path), window=4)
        first = len(rows) - 1 if newest_first else 0
        assert (task.columns, task.unscaled[0, 0], len(task.unscaled)) == (("load", *extra), first, len(rows))
        assert any("newest row is first" in note for note in task.notes) == newest_first
        if extra:
            steps = np.diff(rows) / np.median(np.diff(rows))
            np.testing.assert_allclose(task.unscaled[1:, 1], steps, atol=1e-5)


@given(seed=st.integers(0, 10**9), form=st.sampled_from(TOGETHER), newest_first=st.booleans(), first=st.booleans())
def test_a_date_and_a_time_of_day_in_two_columns_are_one_time(seed, form, newest_first, first, tmp_path_factory):
    path, (day, clock) = tmp_path_factory.mktemp("c") / "c.csv", form.split(" ", 1)
    found = moments(seed, "%H")
    found = [each for i, each in enumerate(found) if seed % 2 == 0 or (i + seed) % 3 or i in (0, len(found) - 1)]
    rows = [[each.strftime(day), each.strftime(clock)][:: 1 if first else -1] for each in found]
    rows = rows[:: -1 if newest_first else 1]
    names = ["Datum", "Uhrzeit"][:: 1 if first else -1]
    path.write_text(
        "\n".join(";".join(row) for row in [[*names, "load"], *([*row, str(i)] for i, row in enumerate(rows))]),
        encoding="utf-8",
    )
    task, steps = tasks.get("series", file=str(path), window=4), _steps_in_hours(found)
    assert task.columns == (("load", "dt") if len(set(steps)) > 1 else ("load",)), task.notes
    assert task.unscaled[0, 0] == (len(rows) - 1 if newest_first else 0)
    assert any("Uhrzeit (times of day of Datum)" in note for note in task.notes)
    if len(set(steps)) > 1:
        np.testing.assert_allclose(task.unscaled[1:, 1], np.array(steps) / np.median(steps), atol=1e-5)


@given(seed=st.integers(0, 10**9), together=st.booleans())
def test_several_series_in_one_file_are_noted(seed, together, tmp_path_factory):
    found, count = moments(seed, "%d"), 2 + seed % 3
    cells = (
        [str(each.date()) for each in found for _ in range(count)]
        if together
        else [str(e.date()) for e in found] * count
    )
    _, _, notes = series(cells, tmp_path_factory.mktemp("l") / "l.csv")
    said = "write a file for each series" if together else "not in order"
    assert any(said in note for note in notes), notes
    _, _, notes = series([str(each.date()) for each in found], tmp_path_factory.mktemp("l") / "l.csv")
    assert not any("write a file" in note for note in notes)


@pytest.mark.parametrize("form", ["%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S UTC %Y", "%b %d %H:%M %Y", "{y}Q{q}",
                                  "{y}-Q{q}", "Q{q} {y}", "Q{q}/{y}"])  # fmt: skip
@pytest.mark.parametrize("newest_first", [False, True])
def test_a_year_at_the_end_and_quarters_are_dates(form, newest_first, tmp_path):
    found = moments(7, "%H")
    cells = [moment.strftime(form) for moment in found]
    if "{" in form:
        cells = [form.format(y=1980 + i // 4, q=i % 4 + 1) for i in range(60)]
    columns, load, _ = series(cells[:: -1 if newest_first else 1], tmp_path / "q.csv")
    assert (columns, load[0]) == (("load",), len(cells) - 1 if newest_first else 0)


def _steps_in_hours(found: list[datetime]) -> list[float]:
    return [(b - a).total_seconds() / 3600 for a, b in pairwise(found)]
