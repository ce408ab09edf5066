"""What messages show of a value: the limits of what is shown, and how each kind of value looks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import stablessm as ssm
from stablessm import ArgumentError
from stablessm import _checked as checked
from stablessm._arguments import MOST as LARGEST
from stablessm._arguments import real_number, whole_number
from stablessm._errors import LONGEST, MOST, printable, shown


def test_long_text_is_cut_to_the_limit():
    assert LONGEST == 400
    assert shown("a" * LONGEST) == "a" * LONGEST
    cut = shown("a" * (LONGEST + 1))
    assert len(cut) == LONGEST
    assert cut == "a" * (LONGEST - 2) + " …"
    message = str(ArgumentError("x", "b" * 1000, "c" * 1000))
    assert len(message) == len("x: expected , got ") + 2 * LONGEST


@pytest.mark.parametrize("kind", [list, tuple, dict.fromkeys, np.array])
def test_more_entries_than_the_limit_are_counted(kind):
    assert MOST == 8
    few, many = shown(kind(range(MOST))), shown(kind(range(MOST + 1)))
    assert "…" not in few
    assert "entries" not in few
    if kind is np.array:
        assert few == str(list(range(MOST)))
        assert many == "int64 array of shape (9,), from 0 to 8"
    else:
        first = (7, None) if kind == dict.fromkeys else 7
        assert many.endswith(f"{first}, …] (9 entries)")


def test_arrays_inside_of_others_and_arrays_without_an_order():
    wide = np.zeros((3, 4))
    assert shown([wide, "a"]) == "[float64 array of shape (3, 4), from 0 to 0, 'a']"
    assert shown((wide, 1)) == "(float64 array of shape (3, 4), from 0 to 0, 1)"
    assert shown(torch.zeros(3, 4, dtype=torch.complex64)) == "complex64 array of shape (3, 4)"
    assert shown(torch.zeros(2, 0)) == "[[], []]"
    assert shown(np.full(9, "a")) == f"{np.full(9, 'a').dtype} array of shape (9,)"


def test_control_characters_are_written_as_codes_and_lines_stay():
    assert printable("a\x1b\x7f\x9f\u202eb\n\tc") == "a\\x1b\\x7f\\x9f\\x202eb\n\tc"


def allowed(annotation, value):
    (rule,) = annotation.__metadata__
    return rule.accepts(value)


def test_limits_of_sizes_counts_and_seeds():
    assert LARGEST == 2**31
    assert [allowed(checked.Size, n) for n in (0, 1, LARGEST - 1, LARGEST)] == [False, True, True, False]
    assert [allowed(checked.Count, n) for n in (-1, 0, LARGEST - 1, LARGEST)] == [False, True, True, False]
    assert [allowed(checked.Seed, n) for n in (-1, 0, 2**63 - 1, 2**63)] == [False, True, True, False]
    assert [whole_number("n", n, 0) for n in (0, LARGEST - 1)] == [0, LARGEST - 1]
    for wrong in (-1, LARGEST, True, 1.0, torch.tensor([1, 2])):
        with pytest.raises(ArgumentError, match="n: expected a whole number, at least 0"):
            whole_number("n", wrong, 0)
    with pytest.raises(ArgumentError, match="at least 1 and below 2147483648"):
        whole_number("n", LARGEST)
    with pytest.raises(ArgumentError, match="at least 1, got 0"):
        whole_number("n", 0)


def test_real_numbers_lie_between_two_others():
    assert real_number("x", Fraction(1, 2), 0, 1) == 0.5
    for wrong in (0, 1, float("nan"), True, "0.5"):
        with pytest.raises(ArgumentError, match="x: expected a number between 0 and 1, got"):
            real_number("x", wrong, 0, 1)
    with pytest.raises(ArgumentError, match="x: expected a finite number above 0, got"):
        real_number("x", 0.0, 0)
    with pytest.raises(ArgumentError, match="x: expected a finite number, got"):
        real_number("x", float("inf"), float("-inf"))


@pytest.mark.parametrize(
    ("value", "numeric"),
    [
        (torch.zeros(2), True), (torch.zeros(2, dtype=torch.complex64), False), (torch.zeros(2, device="meta"), False),
        ([1, 2.0], True), ([[1], [1, 2]], False), (["a"], False), (np.zeros(2, complex), False), (3, True),
    ],
)  # fmt: skip
def test_what_numpy_makes_real_numbers_of(value, numeric):
    assert checked._numeric(value) is numeric


@pytest.mark.parametrize(
    ("value", "whole", "number"),
    [
        (2**63 - 1, True, True), (2**63, False, True), (-(2**63) + 1, True, True), (True, False, False),
        (1.5, False, True), (float("nan"), False, False), pytest.param(10**400, False, False, id="huge"),
        (np.int32(4), True, True), ("1", False, False),
    ],
)  # fmt: skip
def test_whole_and_real_numbers_of_any_type(value, whole, number):
    assert checked._whole(value) is whole
    assert checked._number(value) is number


@pytest.mark.parametrize(
    "call",
    [
        lambda array: whole_number("horizon", array),
        lambda array: real_number("tol", array, 0),
        lambda array: ssm.memory_function(torch.nn.GRU(1, 2), 20, norm=array),
        lambda array: ssm.constructions.exponential_sum("1/(1+t)", horizon=array, tol=1e-3),
        lambda array: ssm.constructions.exponential_sum("1/(1+t)", 9, order=array),
        lambda array: ssm.reparam.get("best", a=array),
        lambda array: ssm.reconstruction.timestamp(torch.ones(1), array),
        lambda array: ssm.linear_scan(torch.ones(1), torch.ones(1, 1, 1), backend=array),
    ],
)
@pytest.mark.parametrize("make", [np.ones, torch.ones])
def test_messages_describe_arrays_instead_of_printing_them(call, make):
    with pytest.raises(ArgumentError, match=r"float(32|64) array of shape \(500, 40\), from 1 to 1$"):
        call(make((500, 40)))
