"""CSV files as people have them: what the reader finds in random files, and what it does about gaps."""

from __future__ import annotations

import contextlib
import re
import sys
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from csv_files import random_file, right, same, with_notes_below, with_preamble
from hypothesis import given
from hypothesis import strategies as st

from stablessm import ArgumentError, MissingPackageError, _dates, tasks
from stablessm.cli.samples_source import read_samples
from stablessm.tasks import csv_file
from stablessm.tasks.new_data import SeriesReader


@given(seed=st.integers(0, 10**9))
def test_random_files_are_read_as_the_table_they_stand_for(seed, tmp_path_factory):
    file = random_file(seed)
    assert right(file, tmp_path_factory.mktemp("c") / "c.csv"), file.features


@given(seed=st.integers(0, 10**9))
def test_notes_below_the_table_and_repeated_names_are_skipped_with_a_note(seed, tmp_path_factory):
    file, path = with_notes_below(seed), tmp_path_factory.mktemp("n") / "n.csv"
    path.write_bytes(file.content)
    table = csv_file.read(path)
    assert same(file, table), file.features
    assert any("below the table" in note or "repeat" in note for note in table.notes)


@given(seed=st.integers(0, 10**9))
def test_lines_above_the_names_are_skipped_with_a_note(seed, tmp_path_factory):
    file, titles, path = *with_preamble(seed), tmp_path_factory.mktemp("p") / "p.csv"
    separator = str(file.features["separator"])
    clear = not any(separator in title for title in titles)  # otherwise a title may look like the names
    for padding in ("", separator * (file.features["trailing"] + len(file.names) + len(file.features["extra"]) - 1)):
        above = "".join(f"{title}{padding}\n" for title in titles)
        path.write_bytes(above.encode() + file.content)
        with contextlib.nullcontext() if clear else contextlib.suppress(ArgumentError):
            table = csv_file.read(path)
            assert same(file, table) or not clear
            assert table.gaps(table.numeric(), "forward") or not table.numeric()


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def by_hand(values: list[float], how: str) -> list[float]:
    """Fill gaps one at a time."""
    there = [i for i, value in enumerate(values) if not np.isnan(value)]
    found = []
    for i, value in enumerate(values):
        before, after = [j for j in there if j <= i], [j for j in there if j >= i]
        if i in there:
            found.append(value)
        elif not before or not after or how != "interpolate":
            found.append(values[before[-1]] if before else values[after[0]])
        else:
            a, b = before[-1], after[0]
            found.append(values[a] + (values[b] - values[a]) * (i - a) / (b - a))
    return found


gappy = st.lists(st.one_of(st.just(np.nan), st.floats(-9, 9).map(lambda x: round(x, 3))), min_size=2, max_size=12)


@given(values=gappy.filter(lambda v: not np.isnan(v).all()), how=st.sampled_from(["forward", "interpolate", "drop"]))
def test_gaps_are_filled_or_dropped(values, how, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("g") / "g.csv", "a,b", *(f"{v!r},{i}" for i, v in enumerate(values)))
    found, kept = csv_file.read(path).complete(["a", "b"], "columns", how)
    if how == "drop":
        assert [int(row[1]) for row in kept.rows] == [i for i, value in enumerate(values) if not np.isnan(value)]
        assert found[:, 0].tolist() == [value for value in values if not np.isnan(value)]
    else:
        assert len(kept.rows) == len(values)
        np.testing.assert_allclose(found[:, 0], by_hand(values, how), rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 10**9))
def test_the_time_between_rows_is_that_between_the_rows_that_are_kept(seed, tmp_path_factory):
    rng = np.random.default_rng(seed)
    hours = np.cumsum(rng.choice([1, 1, 1, 1, 2, 3], 60) if rng.random() < 0.5 else np.ones(60, dtype=int))
    gaps = rng.random(60) < rng.choice([0.02, 0.2])
    dates = [f"{datetime(2024, 2, 28) + timedelta(hours=int(hour))}" for hour in hours]
    rows = [f"{date},{'' if gap else i}" for i, (date, gap) in enumerate(zip(dates, gaps, strict=True))]
    path, left = write(tmp_path_factory.mktemp("d") / "d.csv", "when,load", *rows), hours[~gaps]
    task = tasks.get("series", file=str(path), window=4, missing="drop")
    steps = np.diff(left) / np.median(np.diff(left))
    assert task.unscaled[:, 0].tolist() == np.flatnonzero(~gaps).tolist()
    assert ("dt" in task.columns) == (len(set(steps.tolist())) > 1)
    if "dt" in task.columns:
        assert task.unscaled[1:, 1].tolist() == steps.tolist()
    reader = SeriesReader.of(task.describe())
    np.testing.assert_array_equal(reader.rows(path)[0], task.unscaled)
    assert len(reader.rows(path)[1]) == gaps.any()  # a note about the dropped rows, and no other


def test_sequences_are_filled_separately(tmp_path):
    table = csv_file.read(write(tmp_path / "g.csv", "a,b", "1,x", "NA,x", "5,x", "?,x", "null,x", "-,x"))
    found, _ = table.complete(["a"], "columns", "forward", [[0, 1], [3, 2], [4, 5]])
    assert found[:, 0].tolist() == [1, 1, 5, 5, 3, 3]  # a sequence without a number gets the mean of the column


def test_dates_and_titles_in_samples(tmp_path):
    rows = ["when;h", "2024-01-01 00:00;1,5", "2024-01-01 00:30;0,5", "", "2024-01-01 01:00;0,25"]
    path = write(tmp_path / "s.csv", "Export of station 7", "Version 1.5", *rows)
    samples = read_samples(path)
    assert samples.notes == (
        "lines 1 to 2 are skipped: they are above the column names",
        "dates are read as seconds since 2024-01-01 00:00:00",
    )
    assert (samples.times.tolist(), samples.values.tolist(), samples.dt) == ([0, 1800, 3600], [1.5, 0.5, 0.25], 1800)
    assert csv_file.read(path).notes == (f"{path}: {samples.notes[0]}",)


def test_names_that_are_numbers_and_numbers_that_are_too_large(tmp_path):
    path = write(tmp_path / "n.csv", "2019,2020", *["1,2"] * 30)
    (note,) = csv_file.read(path).notes
    assert note == f"{path}: line 1 is read as data, since it looks like the lines after it; columns have no names"
    path = write(tmp_path / "n.csv", "a,b", *(f"{i},{(-1) ** i}e300" for i in range(40)))
    with pytest.raises(
        ArgumentError, match=r"^column b: expected numbers with a finite standard deviation, got up to 1e\+300"
    ):
        tasks.get("series", file=str(path), window=4)


DAYS = [1, 2, 3, 5, 9, 10]


def test_columns_that_are_made(tmp_path):
    rows = [f"2024-01-{day:02d},{'ab'[day % 2]},{'' if day == 5 else day}" for day in DAYS]
    table = csv_file.read(write(tmp_path / "m.csv", "day,kind,x", *rows))
    assert table.times.irregular
    assert table.categories("kind", "columns") == ("kind=a", "kind=b")
    made = table.numbers(["dt", "kind=b", "x missing", "kind=c"], "columns")
    assert made[:, 0].tolist() == [1, 1, 1, 2, 4, 1]
    assert made[:, 1].tolist() == [day % 2 for day in DAYS]
    assert made[:, 2].tolist() == [day == 5 for day in DAYS]
    assert not made[:, 3].any()
    with pytest.raises(
        ArgumentError, match=r"columns: expected one of the columns of .* \(day, kind, x\), got 'wind=c'"
    ):
        table.numbers(["wind=c"], "columns")
    with pytest.raises(ArgumentError, match=r"columns: expected one of the columns of .*, got 'z missing'"):
        table.numbers(["z missing"], "columns")
    assert table.gaps(["dt"], "drop") == ()
    assert table.unused(["x", "kind"])[0].endswith("not used: day (dates; their steps are uneven)")
    notes = table.gaps(["x", "dt"], "interpolate") + table.unused(["x", "dt"])
    assert [note.partition("m.csv: ")[2] for note in notes] == [
        "1 of 6 cells of x are missing or not numbers; they are interpolated",
        "not used: day (dates; their steps are the column dt), kind",
    ]


@pytest.mark.parametrize(
    ("seconds", "dt"),
    [
        ([0, 1, 2, 4], [1, 1, 1, 2]),
        ([0, 30, 60, 96], None),
        ([0, 5, 5, 10], [1, 1, 0, 1]),
        ([0, 0, 0], None),
        ([0, 9, 5, 12], None),
    ],
)
def test_which_times_are_uneven(seconds, dt, tmp_path):
    rows = [f"2024-01-01T00:{second // 60:02d}:{second % 60:02d},7" for second in seconds]
    table = csv_file.read(write(tmp_path / "t.csv", "when,x", *rows))
    assert table.times.irregular == (dt is not None)
    if dt is not None:
        assert table.numbers(["dt"], "columns")[:, 0].tolist() == dt


@pytest.mark.parametrize(
    ("lines", "header", "rows"),
    [
        (["1,2", "3,4"], ("column 1", "column 2"), [[1, 2], [3, 4]]),
        (["a,,a", "1,2,3", "4,5,6"], ("a", "column 2", "a (2)"), [[1, 2, 3], [4, 5, 6]]),
        (["a;b", "1.234,5;1.234"], ("a", "b"), [[1234.5, 1234]]),
        (["a,b", '"1,234",1.5', '"12,345.5",2'], ("a", "b"), [[1234, 1.5], [12345.5, 2]]),
        (["a;b", "1,234;2"], ("a", "b"), [[1.234, 2]]),
        (["load", "1,5", "", "2"], ("load",), [[1.5], [2]]),
        (["x, y, z;b", "1,5;2;", "2,5;3;"], ("x, y, z", "b"), [[1.5, 2], [2.5, 3]]),
        (["a,b,", "1,2,", ",,"], ("a", "b"), [[1, 2]]),
    ],
)
def test_names_and_marks(lines, header, rows, tmp_path):
    table = csv_file.read(write(tmp_path / "n.csv", *lines))
    assert table.header == header
    assert table.numbers(header, "columns").tolist() == rows


def series(tmp_path, **options):
    when = [f"2024-01-{1 + i // 2 + (i > 30):02d} {12 * (i % 2):02d}:00" for i in range(50)]
    rows = [f"{time};{'' if i % 9 == 4 else f'{i},5'};{'uvw'[i % 3]}" for i, time in enumerate(when)]
    return tasks.get("series", file=str(write(tmp_path / "s.csv", "when;x;why", *rows)), window=4, **options)


def test_a_series_with_gaps_and_uneven_times(tmp_path):
    task = series(tmp_path)
    assert (task.columns, task.targets) == (("x", "dt"), ("x",))
    assert task.unscaled[3:6, 0].tolist() == [3.5, 3.5, 5.5]
    assert task.unscaled[31, 1] == 3
    assert len(task.notes) == 2
    assert series(tmp_path, missing="interpolate").unscaled[4, 0] == 4.5
    assert len(series(tmp_path, missing="drop").unscaled) == 50 - 6
    masked = series(tmp_path, missing="mask", columns="x")
    assert masked.columns == ("x", "x missing")
    assert masked.unscaled[3:6, 1].tolist() == [0, 1, 0]
    with pytest.raises(ArgumentError, match=r"s\.csv, line 6, column x: expected a finite number, got ''"):
        series(tmp_path, missing="refuse")
    words = series(tmp_path, columns="x,dt,why")
    assert (words.columns, words.targets) == (("x", "dt", "why=u", "why=v", "why=w"), ("x",))
    assert words.describe()["targets"] == ["x"]
    with pytest.raises(ArgumentError, match=r"target: expected a column of .*s\.csv to forecast, got none"):
        series(tmp_path, columns="dt")


def test_sequences_with_gaps(tmp_path):
    rows = [f"{i // 3},{'' if i % 3 == 0 or i < 3 else i},{'ab'[i // 3 % 2]}" for i in range(60)]
    file = str(write(tmp_path / "s.csv", "sequence,x,label", *rows))
    dropped = tasks.get("sequences", file=file, missing="drop")
    assert sum(dropped.sizes.values()) == 19  # nothing is left of the first
    assert dropped.inputs.length == 2
    gone = str(write(tmp_path / "g.csv", "sequence,x,z,label", "0,1,,a", "1,,2,b", "2,3,,b", "3,,3,a"))
    with pytest.raises(ArgumentError, match="missing: expected a treatment that keeps at least one row"):
        tasks.get("sequences", file=gone, missing="drop")
    masked = tasks.get("sequences", file=file, missing="mask")
    assert masked.columns == ("x", "x missing")
    assert sum(masked.sizes.values()) == 20


@pytest.mark.parametrize("package", ["polars", "pandas"])
def test_parquet(package, tmp_path, monkeypatch):
    (tmp_path / "x.parquet").touch()
    cells = {"x": [1.5, None, 2.5], "day": ["2024-01-01", "2024-01-02", "2024-01-03"]}

    class Frame:
        def __init__(self, names):
            self.columns = names
            if package == "pandas":  # whose index is no column
                self.index = SimpleNamespace() if names == ("x",) else range(3)

        def __getitem__(self, name):
            return SimpleNamespace(to_list=lambda: cells[name])

        def reset_index(self):
            return Frame(("x", "day"))

    def damaged(path):
        raise OSError("no magic bytes")

    for name in ("polars", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match="pandas"):
        csv_file.read(tmp_path / "x.parquet")
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(read_parquet=damaged))
    with pytest.raises(ArgumentError, match=r"expected a whole Parquet file, got OSError: no magic bytes"):
        csv_file.read(tmp_path / "x.parquet")
    frame = Frame(("x",) if package == "pandas" else ("x", "day"))
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(read_parquet=lambda path: frame))
    table = csv_file.read(tmp_path / "x.parquet")
    assert (table.numeric(), table.times.name) == (("x",), "day")
    np.testing.assert_array_equal(table.numbers(["x"], "columns")[:, 0], [1.5, np.nan, 2.5])


@given(seed=st.integers(0, 10**9))
def test_the_oldest_row_comes_first(seed, tmp_path_factory):
    rng = np.random.default_rng(seed)
    days = np.cumsum(rng.integers(1, 4, 40)) + np.datetime64("2025-01-01")
    folder, rows = tmp_path_factory.mktemp("o"), [f"{day},{value}" for value, day in enumerate(days)]
    old, new = (write(folder / name, "when,load", *lines) for name, lines in (("a.csv", rows), ("b.csv", rows[::-1])))
    forward, backward = (tasks.get("series", file=str(path), target="load", window=4) for path in (old, new))
    first, second = (task.batch("test", 3, seed=0) for task in (forward, backward))
    assert first.inputs.equal(second.inputs)
    assert first.targets.equal(second.targets)
    assert not any("newest" in note for note in forward.notes)
    assert any("the newest row is first by when" in note for note in backward.notes)


@given(seed=st.integers(0, 10**9), how=st.sampled_from(["swapped", "chunks", "shuffled", "repeated hour"]))
def test_rows_out_of_order_are_used_in_the_order_of_time(seed, how, tmp_path_factory):
    rng, hours = np.random.default_rng(seed), np.arange(60)
    order = rng.permutation(60) if how == "shuffled" else hours.copy()
    if how == "chunks":  # files of months, joined in alphabetical order
        order = np.concatenate([np.arange(40, 60), np.arange(40)])
    elif how == "swapped":
        order[[3, 30]] = order[[30, 3]]
    if how == "repeated hour":
        hours = hours - np.where(hours >= rng.integers(9, 50), 3, 0)
    dates = [f"{datetime(2024, 2, 28) + timedelta(minutes=30 * int(hour))}" for hour in hours]
    rows = [f"{dates[i]},{i}" for i in order][:: rng.choice([-1, 1])]
    path = write(tmp_path_factory.mktemp("o") / "o.csv", "when,load", *rows)
    task = tasks.get("series", file=str(path), target="load", window=4)
    assert task.unscaled[:, 0].tolist() == list(range(60))
    assert any("when are not in order" in note or "newest row is first by when" in note for note in task.notes)


@pytest.mark.parametrize("step", [-1, 1])
def test_the_dates_of_the_rows_are_those_in_order(step, tmp_path):
    rows = [
        f"2023-01-{1 + i * 7 % 28:02d},2024-02-01,{datetime(2024, 2, 28) + timedelta(hours=i)},{i}" for i in range(50)
    ]
    path = write(tmp_path / "b.csv", "bought,exported,when,load", *rows[::step])
    task = tasks.get("series", file=str(path), target="load", window=4)
    assert task.unscaled[:, 0].tolist() == list(range(50))
    assert task.seconds == 3600


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "index", "load 2"])
@pytest.mark.parametrize("step", [-1, 1])
def test_a_column_that_numbers_the_rows_is_not_used(name, step, tmp_path):
    rows = [f"{7 + i},{datetime(2024, 2, 28) + timedelta(hours=i)},{i % 5}" for i in range(60)][::step]
    task = tasks.get("series", file=str(write(tmp_path / "i.csv", f"{name},when,load", *rows)), window=4)
    assert task.columns == (("load 2", "load") if name == "load 2" else ("load",))
    assert any(f"not used: {name or 'column 1'}, when" in note for note in task.notes) == (name != "load 2")
    listed = f"{name or 'column 1'},load"
    assert tasks.get("series", file=task.options.file, columns=listed, window=4).columns == tuple(listed.split(","))
    alone = tasks.get("series", file=str(write(tmp_path / "a.csv", name, *map(str, range(60)))), window=4)
    assert len(alone.columns) == 1  # the only numbers of a file are used


def test_dates_out_of_order_are_noted(tmp_path):
    rows = [f"2025-01-{1 + i % 9:02},{i}" for i in range(40)]
    task = tasks.get("series", file=str(write(tmp_path / "c.csv", "when,load", *rows)), target="load", window=4)
    assert any("the dates in when are not in order" in note for note in task.notes)


def test_a_column_whose_name_holds_a_comma(tmp_path):
    path = write(tmp_path / "c.csv", '"load, total",b', *(f"{i},{i % 3}" for i in range(60)))
    for target, expected in (("load, total", ["load, total"]), ('b,"load, total"', ["b", "load, total"])):
        task = tasks.get("series", file=str(path), target=target, window=4)
        assert [name.removesuffix("+1") for name in task.outputs.names] == expected


def test_a_column_of_dates_with_gaps_is_named(tmp_path):
    rows = [f"{'' if i % 10 == 3 else f'2025-01-{1 + i % 28:02}'},{i}" for i in range(28)]
    task = tasks.get("series", file=str(write(tmp_path / "c.csv", "when,load", *rows)), target="load", window=4)
    assert any("not used: when (dates, some of them missing)" in note for note in task.notes)


@given(seed=st.integers(0, 10**9), order=st.sampled_from(["%d/%m/%Y", "%m/%d/%Y"]))
def test_the_order_of_day_and_month_follows_from_the_whole_column(seed, order, tmp_path_factory):
    rng = np.random.default_rng(seed)
    days = np.cumsum(rng.integers(1, 4, 40)) + np.datetime64("2025-01-01")  # more than 12 days of a month
    dates = [day.item().strftime(order) for day in days]
    path = write(tmp_path_factory.mktemp("d") / "d.csv", "when,load", *(f"{date},{i}" for i, date in enumerate(dates)))
    steps = np.diff(days).astype(float)
    np.testing.assert_allclose(csv_file.read(path).numbers(["dt"], "columns")[1:, 0], steps / np.median(steps))


@pytest.mark.parametrize("units", ["h,kW,m/s", ",kW,m/s", "h,,m/s"])
def test_a_line_of_units_is_dropped(tmp_path, units):
    path = write(tmp_path / "u.csv", "time,load,wind", units, *(f"{i},{i % 7},{i % 3}" for i in range(60)))
    task = tasks.get("series", file=str(path), target="load", window=4)
    assert task.columns == ("time", "load", "wind")
    assert len(task.unscaled) == 60
    assert task.notes == (f"{path}: line 2 is dropped as a line of units",)


def test_a_line_with_a_number_is_no_line_of_units(tmp_path):
    path = write(tmp_path / "u.csv", "time,load", "0,broken", *(f"{i},{i % 7}" for i in range(1, 60)))
    task = tasks.get("series", file=str(path), target="load", window=4)
    assert len(task.unscaled) == 60
    said = "1 of 60 cells of load are missing or not numbers, such as 'broken' in line 2"
    assert task.notes == (f"{path}: {said}; the previous value is repeated",)


def test_true_and_false_are_numbers(tmp_path):
    path = write(
        tmp_path / "b.csv", "load,on,Open", *(f"{i},{i % 2 == 0},{str(i % 3 == 0).upper()}" for i in range(20))
    )
    found = csv_file.read(path)
    assert found.numeric() == ("load", "on", "Open")
    assert found.numbers(["on", "Open"], "columns").tolist() == [[i % 2 == 0, i % 3 == 0] for i in range(20)]


@given(
    numbers=st.lists(st.tuples(st.integers(1, 999_999), st.integers(-(10**6), 10**6)), min_size=3, max_size=9),
    marks=st.sampled_from([(",", "."), (".", ",")]),
    separator=st.sampled_from([";", "\t"]),
)
def test_the_decimal_mark_is_that_of_the_whole_file(numbers, marks, separator, tmp_path_factory):
    """A column has marks between thousands and another one decimal marks, which decide for both readers."""
    thousands, decimal = marks
    rows = [(f"{a:,}".replace(",", thousands), f"{b / 100:.2f}".replace(".", decimal)) for a, b in numbers]
    path = tmp_path_factory.mktemp("m") / "m.csv"
    write(path, *map(separator.join, [("t", "load", "price"), *((f"{i}", *row) for i, row in enumerate(rows))]))
    expected = np.array([(a, b / 100) for a, b in numbers])
    np.testing.assert_allclose(csv_file.read(path).numbers(["load", "price"], "columns"), expected)
    np.testing.assert_allclose(read_samples(path).values[:, :, 0], expected)
    assert not csv_file.read(path).notes + read_samples(path).notes


@pytest.mark.parametrize(
    ("rows", "load", "note"),
    [
        (["1,040;148.54", "950;135.7"], 1040, None),
        (["1.040;148,54", "950;135,7"], 1040, None),
        (["1,040;0", "950;1,234,567"], 1040, None),
        (["1.040;0", "950;1.234.567"], 1040, None),
        (["1,040;x.y", "950;0.125"], 1040, None),
        (["1,040;2", "950;3"], 1.04, "load: 1,040 is read as 1.04 (decimal comma)"),
        (["1.040;2", "950;3"], 1.04, None),
    ],
)
def test_a_comma_that_may_be_either_is_noted(rows, load, note, tmp_path):
    table = csv_file.read(write(tmp_path / "n.csv", "load;price", *rows))
    assert table.numbers(["load"], "columns")[:, 0].tolist() == [load, 950]
    assert table.notes == ((f"{table.file}: {note}",) if note else ())


def test_samples_with_a_comma_that_may_be_either(tmp_path):
    assert read_samples(write(tmp_path / "s.csv", "0;6,007", "1;7")).notes == (
        "6,007 is read as 6.007 (decimal comma)",
    )
    assert read_samples(write(tmp_path / "s.csv", "1,040;0.5+0.25j", "0;1")).times.tolist() == [0, 1040]


def test_days_and_months_are_told_apart_by_even_steps() -> None:
    """Days up to 12 fit both orders; with the wrong one an hour at midnight becomes a month."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        start = datetime(2024, int(rng.integers(1, 13)), int(rng.integers(1, 13)), int(rng.integers(24)))
        step = timedelta(minutes=int(rng.choice([15, 60, 360, 1440])))
        truth = [start + i * step for i in range(int(rng.integers(4, 60)))][:: rng.choice([1, -1])]
        if rng.random() < 0.3:
            del truth[2:4]
        form = f"{rng.choice(['%m/%d', '%d/%m'])}/%Y{rng.choice(['', ' %H:%M', ' %I:%M %p'])}"
        cells = [date.strftime(form) for date in truth]
        wanted = [datetime.strptime(cell, form) for cell in cells]
        assert _steps(_dates.dates(cells)) == pytest.approx(_steps(wanted)), (form, cells)


FORMS = (
    *("%d.%m.%Y", "%d.%m.%y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%m/%d/%y", "%d/%m/%y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%d-%b-%Y", "%d %b %Y", "%d-%b-%y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%Y-%m-%d"),
)
MONTHLY = ("%Y-%m", "%b %Y", "%B %Y", "%b-%Y", "%m/%Y", "%Y-%m-%d", "%d.%m.%y")
TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p")
ZONES = {"": 0, " UTC": 0, " CET": 1, " CEST": 2, " EST": -5, " PDT": -7}


@given(seed=st.integers(0, 10**9))
def test_dates_in_many_forms_have_the_right_steps(seed):
    rng = np.random.default_rng(seed)
    start = datetime(int(rng.integers(1990, 2030)), int(rng.integers(1, 13)), int(rng.integers(1, 29)))
    count = int(rng.integers(30, 80))
    if rng.random() < 0.3:
        form = str(rng.choice(MONTHLY))
        truth = [datetime(start.year + (start.month + i) // 12, (start.month + i) % 12 + 1, 1) for i in range(count)]
    else:
        step = timedelta(minutes=int(rng.choice([15, 60, 1440, 1440 * 7])))
        form = str(rng.choice(FORMS)) + (f" {rng.choice(TIMES)}" if step.days < 1 or rng.random() < 0.3 else "")
        truth = [start + i * step for i in range(count)]
    if rng.random() < 0.3:
        del truth[2:4]
    zone = str(rng.choice(list(ZONES))) if form.startswith("%Y-%m-%d ") and "%p" not in form else ""
    found = _dates.dates([date.strftime(form) + zone for date in truth])
    assert _steps(found) == pytest.approx(_steps(truth)), (form, truth[:2])
    assert not zone or found[0] == truth[0] - timedelta(hours=ZONES[zone])


@pytest.mark.parametrize("cell", ["1.5", "12", "1-2", "May be 3 men", "x/1", "2024", "1.2.3.4", "12:30", "Marchand 7"])
def test_what_is_no_date(cell):
    assert _dates.dates([cell, cell]) == []


@given(seed=st.integers(0, 10**9))
def test_whole_numbers_with_thousands_are_not_read_as_small_numbers(seed, tmp_path_factory):
    """A column of whole numbers with dots between thousands has no number with another number of decimals."""
    rng = np.random.default_rng(seed)
    values = (10 ** rng.uniform(1, 5.9, 80)).astype(int)
    mark, separator = str(rng.choice([".", ","])), str(rng.choice([";", "\t"]))
    rows = [f"{i}{separator}{value:,}".replace(",", mark) for i, value in enumerate(values)]
    table = csv_file.read(write(tmp_path_factory.mktemp("t") / "t.csv", f"i{separator}load", *rows))
    whole, tens = (values < 1000).any(), ((values >= 1000) & (values % 10 == 0)).sum() > 1
    if whole and tens:
        assert np.array_equal(table.numbers(["load"], "columns")[:, 0], values)
    decimals = np.round(rng.uniform(1, 999, 80), 3)
    for spelled in (map(repr, decimals.tolist()), [f"{value:.3f}" for value in decimals]):
        rows = [f"{i}{separator}{text}".replace(".", mark) for i, text in enumerate(spelled)]
        table = csv_file.read(write(tmp_path_factory.mktemp("t") / "t.csv", f"i{separator}load", *rows))
        assert np.array_equal(table.numbers(["load"], "columns")[:, 0], decimals)


@pytest.mark.parametrize(
    ("mark", "noted"),
    [("-9999", True), ("-999", True), ("99999.0", True), ("-999.25", True), ("9", False), ("-120", False)],
)
def test_a_number_that_marks_missing_values_is_noted(mark, noted, tmp_path):
    rows = [f"{i},{mark if i in (3, 5) else i % 7}" for i in range(40)]
    table = csv_file.read(write(tmp_path / "s.csv", "i,load", *rows))
    said = [note for note in table.gaps(["load"], "forward") if f"{float(mark):.15g} in load is far" in note]
    assert bool(said) == noted
    rows = [f"{i},{-9999 + i}" for i in range(40)]
    assert not csv_file.read(write(tmp_path / "s.csv", "i,load", *rows)).gaps(["load"], "forward")


@pytest.mark.parametrize("name", ["book.xlsx", "book.zip", "book.csv", "picture.csv"])
def test_what_is_no_text_is_named(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"PK\x03\x04\x81\x8d" if "book" in name else b"a,b\n\x81\x8d\x8f,1\n")
    expected = "Excel workbook; save the table as CSV" if "book" in name else "no text in UTF-8 or Windows-1252"
    with pytest.raises(ArgumentError, match=rf"{name}: expected a CSV file.*{expected}"):
        csv_file.read(path)


def _steps(dates: list[Any]) -> list[float]:
    steps = [(b - a).total_seconds() for a, b in pairwise(dates)]
    return [step / (sum(map(abs, steps)) or 1.0) for step in steps]


@given(seed=st.integers(0, 10**9))
def test_a_total_below_numbers_that_increase_is_skipped(seed, tmp_path_factory):
    rng, path = np.random.default_rng(seed), tmp_path_factory.mktemp("t") / "t.csv"
    first, step = int(rng.integers(0, 2000)), int(rng.choice([-2, -1, 1, 5]))
    rows = [f"{first + i * step};{rng.normal():.3f}" for i in range(int(rng.integers(40, 90)))]
    word = rng.choice(["Total", "Summe", "mean", "Σ"])
    table = csv_file.read(write(path, "year;load", *rows, f"{word};12.5", *[f"Average;{i}" for i in range(seed % 2)]))
    assert len(table.rows) == len(rows)
    assert any("below the table" in note for note in table.notes)
    broken = csv_file.read(write(path, "load;year", *(";".join(row.split(";")[::-1]) for row in rows), f"{word};7"))
    assert len(broken.rows) == len(rows) + 1  # the sensor failed: no column of numbers that only increase


@pytest.mark.parametrize("cell", ["53.46 kW", "1/2", "0x1F", "12,34,567.50"])
def test_an_error_shows_why_no_column_is_numeric(cell, tmp_path):
    path = write(tmp_path / "w.csv", "day;load;empty", *(f"2024-01-{i:02d};{cell};" for i in range(1, 29)))
    with pytest.raises(ArgumentError, match=re.escape(f"load ({cell!r} in line 2)")):
        tasks.get("series", file=str(path))
    words = csv_file.read(write(path, "day;kind", *(f"2024-01-{i:02d};{'ab'[i % 2]}" for i in range(1, 29))))
    with pytest.raises(ArgumentError, match=r"w\.csv, column kind: .*at least one number.*'b' in line 2"):
        words.complete(["kind"], "columns", "forward")
