"""Failed calls are explained by annotations: what each annotation allows, and which errors pass as they are."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from typing_extensions import TypeAliasType

import stablessm as ssm
from stablessm import ArgumentError, NumericalError
from stablessm._checked import Count, Finite, Positive, Seed, Size, checked, rule_of
from stablessm._typing import Device, Times, takes_tensor

RULES: list[tuple[Any, str, list[Any], list[Any]]] = [
    (int, "a whole number", [-3, np.int64(3), 2**31 - 1], [True, 2.0, "2", None, 2**31, -(2**31), torch.tensor(2.5)]),
    (Size, "a whole number, at least 1", [1, 2**31 - 1], [0, -1, 2**31, False, 1.0]),
    (Count, "a whole number, at least 0", [0, 2**31 - 1], [-1, 2**31, None]),
    (Seed, "a whole number from 0 to 2^63 - 1", [0, 2**31, 2**63 - 1], [-1, 2**63, 0.5, True]),
    (float, "a number", [0, -0.5, np.float32(2), math.inf], [math.nan, True, "1", 1j, None, 10**400, [1.0]]),
    (Finite, "a finite number", [-2.5, 0], [math.inf, -math.inf, math.nan]),
    (Positive, "a finite number above 0", [1, 1e-300, np.float32(2)], [0, -1.0, math.inf, math.nan, True, "1"]),
    (
        bool,
        "True or False",
        [True, False, 0, 1, np.bool_(1), torch.tensor(True)],
        [2, 0.0, None, "yes", "", [True], torch.tensor([True, False]), torch.tensor(1)],
    ),
    (str, "text", ["", "a", "é"], ["a\0b", "\ud800", b"a", 1, None]),
    (float | None, "a number or None", [None, 1.5], ["", []]),
    (Literal["a", "b"], "'a' or 'b'", ["a", "b"], ["c", None, ["a"], np.array(["a"])]),
    (Literal["a", "b", "c"], "one of 'a', 'b', 'c'", ["c"], ["d"]),
    (tuple[float, float], "two numbers", [(1, 2.5), [0.5, 1]], [(1,), (1, 2, 3), (1, "2"), "12", None]),
    (tuple[int, ...], "a sequence, each entry a whole number", [(), (1, 2), [3], np.array([1, 2])], [(1.5,), 1, {1}]),
    (
        Sequence[float],
        "a sequence, each entry a number",
        [[1, 2.5], torch.tensor([1]).numpy()],
        ["12", [None], 3, np.array([1.0], dtype=object)],
    ),
    (Mapping[str, float], "a mapping from text to a number", [{}, {"a": 1}], [{1: 1}, {"a": "b"}, [("a", 1)]]),
    (Callable[..., Any], "a function", [len, lambda: None], [3, None]),
    (type[int], "a class", [int, bool], [3]),
    (os.PathLike[str], "a path", [Path()], ["a", None]),
    (
        Tensor,
        "a dense tensor of a common dtype",
        [torch.ones(2), torch.ones(2).bfloat16(), torch.ones(2, dtype=torch.int8), torch.ones(2) + 1j],
        [
            [1.0],
            np.ones(2),
            torch.ones(2).to_sparse(),
            torch.ones(2, device="meta"),
            torch.ones(2, dtype=torch.uint16),
            torch.ones(2).to(torch.float8_e4m3fn),
        ],
    ),
    (np.ndarray, "a NumPy array of numbers", [np.ones(2)], [[1.0], torch.ones(2), np.array(["a"]), np.array([None])]),
    (nn.Module, "an nn.Module", [nn.Identity()], [nn.Identity, None]),
    (
        ArrayLike,
        "real numbers, without a gradient",
        [1, [1, 2.5], torch.ones(2).bfloat16()],
        [[1j], "a", [[1], [1, 2]], torch.ones(1) + 1j, torch.ones(2, requires_grad=True)],
    ),
    (
        TypeAliasType("ArrayLike", Any) | None,  # as NumPy 2.5 defines it
        "real numbers, without a gradient",
        [1, [1, 2.5], None],
        ["a", [[1], [1, 2]]],
    ),
    (
        Times,
        "finite real times (T,)",
        [torch.arange(3)],
        [torch.ones(1, 1), torch.tensor([math.nan]), torch.ones(1) > 0],
    ),
    (Device, "a device that PyTorch has here", ["cpu", torch.device("cpu")], ["", "tpu9", 3, None]),
    (Any, "anything", [None, object()], []),
]


@pytest.mark.parametrize(("annotation", "expected", "good", "bad"), RULES, ids=[str(row[1]) for row in RULES])
def test_what_an_annotation_allows(annotation, expected, good, bad):
    rule = rule_of(annotation)
    assert rule.expected == expected
    for value in good:
        assert rule.accepts(value), value
    for value in bad:
        assert not rule.accepts(value), value


@checked
def failing(first: int, second: str = "text", *, error: Exception | None = None, other: Unknown = 3) -> int:  # noqa: F821
    if error is not None:
        raise error
    return first + len(second)


def test_calls_that_work_are_not_refused():
    assert failing(2.5, [1, 2]) == 4.5


@pytest.mark.parametrize("error", [ArgumentError("first", "b", "c"), NumericalError("what", "remedy"), OSError("disk")])
def test_errors_of_our_own_pass(error):
    with pytest.raises(type(error)) as caught:
        failing(1, ["wrong"], error=error)
    assert caught.value is error


def test_failures_name_the_first_wrong_argument():
    with pytest.raises(ArgumentError, match=r"^first: expected a whole number, got None$") as caught:
        failing(None, 3)
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(ArgumentError, match=r"^second: expected text, got 3$"):
        failing(1, second=3)
    with pytest.raises(KeyError):  # nothing is wrong with the arguments
        failing(1, error=KeyError("ours"))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        failing()


def test_an_error_about_an_argument_of_another_function_names_one_of_this_function():
    inner = ArgumentError("size", "1", "2")
    with pytest.raises(ArgumentError, match=r"^second: expected text, got 3$") as caught:
        failing(1, 3, error=inner)
    assert caught.value.__cause__ is inner
    with pytest.raises(ArgumentError) as unchanged:
        failing(1, error=inner)
    assert unchanged.value is inner

    @checked
    def run(model: Callable[[Tensor], Tensor], x_t: str = "x") -> Tensor:
        return model(torch.ones(2, 3))

    with pytest.raises(ArgumentError, match=r"^model: expected a model that takes such inputs, got .*x: expected"):
        run(lambda x: ssm.S4D(2)(x[None])[0])


@pytest.mark.parametrize("number", [np.array(3), np.int64(3), torch.tensor(3), np.float32(3), np.uint8(3), Fraction(3)])
def test_numbers_of_other_types_are_passed_on_as_plain_numbers(number):
    @checked
    def kinds(size: Size, *, seed: Seed | None = None, dt: float = 1.0, either: float | Tensor = 1.0) -> list[type]:
        return [type(size), type(seed), type(dt), type(either)]

    plain = isinstance(number, np.float32 | Fraction)
    assert kinds(3 if plain else number, either=number) == [int, type(None), float, type(number)]
    assert kinds(3, seed=4, dt=number)[2] in (int, float) or isinstance(number, np.ndarray | Tensor)
    assert plain or kinds(np.int16(2), seed=number)[:2] == [int, int]


def test_classes_and_methods_of_one_tensor():
    class Kept:
        def __init__(self, size: int) -> None:
            self.size = size + 1

        @takes_tensor
        def twice(self, w: Tensor) -> Tensor:
            return 2 * w

    kept = checked(Kept)(2)
    assert kept.size == 3
    with pytest.raises(ArgumentError, match=r"^size: expected a whole number"):
        Kept("2")
    assert kept.twice(torch.ones(1)).item() == kept.twice(w=torch.ones(1)).item() == 2
    for wrong in (1.0, torch.ones(1, dtype=torch.int64), torch.ones(1) + 0j, torch.ones(1).to_sparse()):
        with pytest.raises(ArgumentError, match=r"^w: expected a real floating-point tensor"):
            kept.twice(wrong)


@checked
class Lamp:
    def __init__(self, on: bool = False) -> None:
        self.on = on

    def switch(self, times: int, *, loudly: bool = False) -> bool:
        return self.on == (times % 2 == 0)

    @classmethod
    def lit(cls, watts: float) -> Lamp:
        return cls(watts > 0)

    @staticmethod
    def sum(*watts: float, halved: bool = False) -> float:
        return sum(watts) / (1 + halved)


@pytest.mark.parametrize("wrong", ["no", "", None, 2, [True]])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("on", lambda value: Lamp(value)),
        ("on", lambda value: Lamp(on=value)),
        ("loudly", lambda value: Lamp().switch(1, loudly=value)),
        ("halved", lambda value: Lamp.sum(1, 2, halved=value)),
    ],
)
def test_flags_are_checked_before_the_call(name, call, wrong):
    """A wrong flag would not fail: "no" counts as True."""
    with pytest.raises(ArgumentError, match=rf"^{name}: expected True or False"):
        call(wrong)
    call(True)


Mode = Literal["scan", "auto"]


def test_ranges_and_names_are_checked_before_the_call():
    """A wrong name or a number out of its range need not make the call fail."""

    @checked
    def kept(size: Size = 0, mode: Mode | None = None, *, count: Count | None = None) -> tuple[object, ...]:
        return size, mode, count

    assert kept() == (0, None, None)  # defaults are not compared
    assert kept(np.int64(2), "scan", count=0) == (2, "scan", 0)
    with pytest.raises(ArgumentError, match=r"^size: expected a whole number, at least 1, got 0$"):
        kept(0)
    with pytest.raises(ArgumentError, match=r"^count: expected a whole number, at least 0, got -1$"):
        kept(count=-1)
    with pytest.raises(ArgumentError, match=r"^mode: expected .* got 'atuo' \(did you mean 'auto'"):
        kept(1, "atuo")


def test_methods_of_a_class_are_explained():
    with pytest.raises(ArgumentError, match=r"^times: expected a whole number, got 'twice'"):
        Lamp().switch("twice")
    with pytest.raises(ArgumentError, match=r"^watts: expected a number, got None"):
        Lamp.lit(None)
    assert Lamp.lit(40.0).on
    assert Lamp().switch(3)
    assert Lamp.sum(1, 2, halved=True) == 1.5
