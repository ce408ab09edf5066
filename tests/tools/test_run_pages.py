"""Outputs shown on a page, compared with what an example prints on a machine that rounds differently."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_pages import FLAGS, Checker

WORDS = st.sampled_from(["loss", "carried", "│", "rate", "(", "7"])
NUMBERS = st.floats(0.01, 1e3).map("{:.4f}".format)


@given(st.lists(WORDS | NUMBERS, min_size=2, max_size=12), st.data())
def test_numbers_may_differ_and_any_text_may_be_left_out(parts: list[str], data: st.DataObject) -> None:
    factor = data.draw(st.floats(0.96, 1.04))
    got = " ".join(f"{float(part) * factor:.6f}" if "." in part else part for part in parts)
    start = data.draw(st.integers(0, len(parts)))
    left_out = data.draw(st.integers(start, len(parts)))
    want = "\n".join([*parts[:start], "...", *parts[left_out:]])
    assert Checker(0.1).check_output(want, got, FLAGS)
    assert not Checker(0.1).check_output(f"{want} end", got, FLAGS)


@pytest.mark.parametrize(
    ("want", "got", "equal"),
    [
        ("loss 1.5", "loss 1.56", True),
        ("loss 1.5", "loss 1.75", False),
        ("loss ... 2.5", "loss 9.0 2.4", True),
        ("loss ... 2.5", "loss 2.4 9.0", False),
        ("me......\n...\nrate 0.5 ...", "memory of a\nmodel │ rate 0.51 (0.4 to 0.6)", True),
        ("... 0.5", "0.9 0.5 0.52", True),
        ("lost 3", "lost 4", False),
        ("", "", True),
    ],
)
def test_examples(want: str, got: str, equal: bool) -> None:
    assert Checker(0.1).check_output(want, got, FLAGS) == equal


def test_outside_the_tutorials_numbers_are_exact() -> None:
    assert not Checker().check_output("1.5 ... 2", "1.5001 and 2", doctest.ELLIPSIS)
