"""Amounts of money and numbers with spaces in CSV files, and cells with digits that are not numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablessm import ArgumentError, tasks
from stablessm.tasks import csv_file

NEGATIVE: tuple[str, ...] = (
    "-{0}{1}", "-{0} {1}", "{0}-{1}", "{0} -{1}", "({0}{1})", "({0} {1})", "{0}({1})", "{0} ({1})", "({1})", "{1}-",
    "{0}{1}-", "-{1} {0}", "-{1}{0}", "({1} {0})", "({1}){0}", "{1}-{0}", "{1} {0}-", "-{1}",
)  # fmt: skip
"""How a negative amount {1} in the currency {0} is written."""


def table(cells: list[str], path: Path, separator: str = ";") -> csv_file.Table:
    path.write_text(
        "\n".join([f"a{separator}b", *(f"{cell}{separator}{i}.5" for i, cell in enumerate(cells))]), encoding="utf-8"
    )
    return csv_file.read(path)


@given(
    seed=st.integers(0, 10**9),
    form=st.sampled_from(NEGATIVE),
    currency=st.sampled_from("$€£¥₹"),
    thousands=st.sampled_from(["", ",", " ", "\u202f", "'"]),
    minus=st.sampled_from("-\N{MINUS SIGN}"),
)
def test_negative_amounts_are_read(seed, form, currency, thousands, minus, tmp_path_factory):
    values = np.round(np.random.default_rng(seed).normal(size=40) * 10 ** (seed % 6), 2)
    plain = [f"{abs(value):,.2f}".replace(",", thousands) for value in values]
    positive = "{0}{1}" if "{0}" in form else "{1}"
    cells = [
        (form.replace("-", minus) if value < 0 else positive).format(currency, text)
        for value, text in zip(values, plain, strict=True)
    ]
    found = table(cells, tmp_path_factory.mktemp("a") / "a.csv").complete(["a"], "columns")[0]
    assert np.array_equal(found[:, 0], values), cells[:3]


UNREADABLE: tuple[Callable[[float], str], ...] = (
    lambda v: f"<{v:.1f}",
    lambda v: f"{v:.1f} kWh",
    lambda v: f"~{v:.2f}",
    lambda v: f"{v:.0f}/2",
    lambda v: f"USD {v:.2f}",
    lambda v: f"{v:.1f}*",
    lambda v: f"{v:.4e}".replace("e", "D"),
    lambda v: f"{int(v)}:30",
    lambda v: f"12${v:.0f}",
)


@given(
    seed=st.integers(0, 10**9), form=st.sampled_from(UNREADABLE), missing=st.sampled_from(["forward", "drop", "mask"])
)
def test_cells_of_one_form_that_are_no_numbers_are_not_filled(seed, form, missing, tmp_path_factory):
    rng, path = np.random.default_rng(seed), tmp_path_factory.mktemp("u") / "u.csv"
    cells = [f"{value:.2f}" for value in rng.uniform(1, 99, 60)]
    lost = sorted(rng.choice(60, int(rng.integers(2, 20)), replace=False).tolist())
    for i in lost:
        cells[i] = form(float(rng.uniform(10, 99)))
    table(cells, path)
    with pytest.raises(ArgumentError, match=rf"column a: expected a number .*, and {len(lost) - 1} more cells of this"):
        tasks.get("series", file=str(path), window=4, missing=missing)
    assert tasks.get("series", file=str(path), window=4, columns="b").columns == ("b",)


def test_one_such_cell_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "o.csv"
    table([f"{i}.5" if i != 7 else "1..2" for i in range(40)], path)
    assert any(
        "not numbers, such as '1..2' in line 9" in n for n in tasks.get("series", file=str(path), window=4).notes
    )


@given(seed=st.integers(0, 10**9), space=st.sampled_from(" \u00a0\u2009\u202f'\u2019"), decimal=st.sampled_from(".,"))
def test_thousands_in_a_single_column(seed, space, decimal, tmp_path_factory):
    rng, path = np.random.default_rng(seed), tmp_path_factory.mktemp("t") / "t.csv"
    values = np.round(10 ** rng.uniform(0, 7, 60), int(rng.integers(0, 2)))
    values[:2] = 12, 1234  # different numbers of groups, so that spaces do not separate columns
    cells = [f"{v:,.{0 if v == int(v) else 1}f}".replace(".", "d").replace(",", space) for v in values.tolist()]
    path.write_text(
        "\n".join(["load", *cells]).replace("d", decimal).replace("loa" + decimal, "load"), encoding="utf-8"
    )
    assert np.array_equal(csv_file.read(path).complete(["load"], "columns")[0][:, 0], values)


@pytest.mark.parametrize("cells", [["12 345 6", "1 234"], ["1 234", "5 678"], ["1 2", "3 4"], ["12 34", "5"]])
def test_spaces_that_may_separate_cells_are_refused(cells: list[str], tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("\n".join(["hour load", *cells]), encoding="utf-8")
    with pytest.raises(
        ArgumentError, match=r"s\.csv, line 2: expected .* whose spaces may separate cells: put a semico"
    ):
        csv_file.read(path)
