from __future__ import annotations

import ast
import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import special

from stablessm import ArgumentError
from stablessm.constructions.sums import expression
from stablessm.constructions.sums.expression import parse

TIMES = np.array([0.0, 1e-3, 0.5, 1.0, 2.0, 10.0, 333.25])
NAMES: dict[str, Any] = {
    **{name: getattr(np, name) for name in ("exp", "log", "sqrt", "abs", "sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: getattr(special, name) for name in ("gamma", "erf", "erfc", "erfcx")},
    **{name: getattr(special, name) for name in ("j0", "j1", "y0", "y1", "i0", "i1", "k0", "k1", "i0e", "k0e")},
    "besselj0": special.j0,
    "besselj1": special.j1,
    "airy": lambda x: special.airy(x)[0],
    "heaviside": lambda x: np.where(np.isnan(x), np.nan, np.where(x >= 0, 1.0, 0.0)),
    "where": lambda c, a, b: np.where(c, a, b),
    "pi": np.float64(np.pi),
    "e": np.float64(np.e),
    "number": np.float64,
}
TWO, MORE = {"jv", "yv", "iv", "kv", "besselj", "jn", "mittag_leffler"}, {"min", "max"}
ONE = sorted(set(expression.FUNCTIONS) - TWO - MORE - {"where"})

numbers = st.one_of(st.integers(0, 99).map(str), st.floats(0, 1e3).map(repr))
leaves = st.one_of(st.just(("t", "t")), st.just(("pi", "pi")), numbers.map(lambda n: (n, f"number({n})")))


def grow(inner: st.SearchStrategy[tuple[str, str]]) -> st.SearchStrategy[tuple[str, str]]:
    """The same formula twice: as we read it, and with every number as float64, for Python itself."""

    def join(form: str, *parts: tuple[str, str]) -> tuple[str, str]:
        return form.format(*(a for a, _ in parts)), form.format(*(b for _, b in parts))

    signs = st.sampled_from(["{} + {}", "({}) - ({})", "({}) * {}", "{} * {}", "({}) / ({})", "({}) ** ({})", "-({})"])
    tests = st.sampled_from(["where({} < {}, {}, 1)", "where({} >= ({}), -({}), t)", "where(0 < {} <= 5*({}), {}, 2)"])
    return st.one_of(
        st.builds(join, signs, inner, inner),
        st.builds(join, st.sampled_from(ONE).map(lambda name: f"{name}({{}})"), inner),
        st.builds(join, tests, inner, inner, inner),
    )


@given(st.recursive(leaves, grow, max_leaves=12))
def test_values_are_those_of_python(pair: tuple[str, str]) -> None:
    text, reference = pair
    try:
        found = parse(text)(TIMES)
    except ArgumentError as error:
        assume("a finite number" not in str(error))
        raise
    # Python's chained comparison asks for the truth of an array; one at a time, it does not.
    with np.errstate(all="ignore"):
        expected = [eval(reference, {"__builtins__": {}}, NAMES | {"t": np.float64(t)}) for t in TIMES]
    np.testing.assert_allclose(found, np.array(expected, float), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-t**2", -4.0),
        ("2**3**2", 512.0),
        ("2**-t", 0.25),
        ("8/2/2", 2.0),
        ("1e-3*1_000", 1.0),
        ("max(t, 3, 1) - min(t, 3)", 1.0),
        ("(t > 1) + (t != 2)", 1.0),
        ("0 < t < 2", 0.0),
        ("heaviside(t - 2)", 1.0),
        ("airy(0)", 3 ** (-2 / 3) / special.gamma(2 / 3)),
        ("exp(-exp(t**9))", 0.0),  # inf on the way is no harm
    ],
)
def test_precedence_and_conventions(text: str, value: float) -> None:
    assert parse(text)(2.0) == pytest.approx(value, rel=1e-14)


@given(st.one_of(st.floats(0, 10), st.integers(0, 10)), st.sampled_from(["1", "t", "t + 1", "where(t > 3, 1, 2)"]))
def test_shape_and_dtype_follow_the_times(t: float, text: str) -> None:
    for times in (t, [t], np.full((2, 3), t), np.zeros(0), np.float32(t)):
        values = parse(text)(times)
        assert values.shape == np.shape(times)
        assert values.dtype == np.float64
        values[...] = 7.0  # its own memory, which may be written to


HOSTILE = [
    "__import__('os').system('true')", "().__class__", "t.__class__", "lambda: t", "[t for t in (1,)]", "{t}",
    "{1: t}", "{t for t in (1,)}", "(t for t in (1,))", "'text'", "b'1'", "f'{t}'", "(t := 3)", "t[0]", "t[::2]",
    "t if t else 1", "(1, 2)", "t and t", "not t", "~t", "t | 1", "t ^ 2", "t // 2", "t % 2", "t @ t", "t << 2",
    "t is t", "t in t", "1j < 2", "True", "None", "...", "exp", "exp()", "exp(t, t)", "exp(x=t)", "exp(*t)", "exp(**t)",
    "exp(t)(t)", "where(t, t)", "min(t)", "eval('t')", "exec('1')", "open(t)", "x", "np.exp(t)", "await t", "yield t",
    "*t", "t; t", "t = 1", "import os", "# t", "2t", "t t", "((t)", "t)", "", "   ", "t\nt", "t\x00", "\ud800",
    "1e999", "1" * 1000, "9**9**9**9", "1/0", "log(0)", "0*(1/0)", "sqrt(-1)", "(" * 250 + "t" + ")" * 250,
    "-" * 1900 + "t", "+".join("t" * 900), "exp(" * 100 + "t" + ")" * 100, "t" * 3000, "t+" * 5000 + "t",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"^expression: expected "):
        parse(text)


@given(st.text(max_size=40))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    with contextlib.suppress(ArgumentError):
        assert parse(text)(TIMES).shape == TIMES.shape


NODES = (ast.Constant, ast.Name, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call)


@pytest.mark.parametrize("kind", [kind for kind in ast.expr.__subclasses__() if kind not in NODES])
def test_only_six_kinds_of_node_are_read(kind: type[ast.expr]) -> None:
    """A node that a later Python adds is refused until someone allows it."""
    node = kind.__new__(kind)
    node.col_offset, node.end_col_offset = 0, 1
    with pytest.raises(ArgumentError, match="numbers, t, operators"):
        expression._Reader("t", "kernel").read(node, 1)


def test_errors_point_at_the_place() -> None:
    for text, place in [("exp(-t) + foo(t)", "foo"), ("é + t", "é"), ("1 + (2*t^2)", "2*t^2"), ("t + 'a'*t", "'a'")]:
        with pytest.raises(ArgumentError) as caught:
            parse(text)
        _, shown, marks = str(caught.value).split("\n")
        start = marks.index("^")
        assert shown[start : start + marks.count("^")] == place
    with pytest.raises(ArgumentError) as caught:
        parse("exp(t +     " * 40 + "foo" + ")" * 40)
    _, shown, marks = str(caught.value).split("\n")
    assert shown[marks.index("^") :][:3] == "foo"
    assert len(shown) < 120


def test_arguments() -> None:
    with pytest.raises(ArgumentError, match="expected text"):
        parse(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="real numbers"):
        parse("t")(np.array([1j]))
    assert parse(" 1/(1+t) ") == parse("1/(1+t)")
    assert np.isinf(parse("t**-0.4")(0.0))


def test_imaginary_numbers_make_values_complex() -> None:
    t = np.array([0.0, 1.0, 2.5])
    np.testing.assert_allclose(parse("(1+1j*t)**-2")(t), (1 + 1j * t) ** -2, rtol=1e-14)
    assert parse("exp(-(1+2j)*t)")(t).dtype == np.complex128
    assert parse("abs(1j*t)")(t).dtype == np.float64
    assert parse("2j*2j")(0.0) == -4


@pytest.mark.parametrize("text", ["1j*t < 2", "max(t, 1j)", "besselj0(1j*t)", "heaviside(1j*t)"])
def test_functions_of_real_numbers_refuse_complex_ones(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"^expression: expected real numbers, got complex numbers\n  .*\n  \^"):
        parse(text)(np.array([1.0]))


@pytest.mark.parametrize("name", expression.FUNCTIONS)
def test_functions_take_so_many_arguments(name: str) -> None:
    wanted = 1 if name in ONE else 3 if name == "where" else 2
    for count in range(5):
        text = f"{name}({', '.join(['t'] * count)})"
        if count == wanted or (name in MORE and count > 2):
            assert parse(text)(TIMES).shape == TIMES.shape
        else:
            told = f"{wanted} argument{'' if wanted == 1 else 's'}{' or more' if name in MORE else ''} of {name}, got"
            with pytest.raises(ArgumentError, match=f"^expression: expected {told} {count}\\n"):
                parse(text)


def test_functions_of_two_numbers() -> None:
    t = np.array([0.1, 1.0, 5.0])
    for name in ("jv", "yv", "iv", "kv"):
        assert parse(f"{name}(0.5, t)")(t) == pytest.approx(getattr(special, name)(0.5, t))
    assert parse("besselj(0.5, t)")(t) == pytest.approx(special.jv(0.5, t))
    assert parse("mittag_leffler(0.5, -sqrt(t))")(t) == pytest.approx(special.erfcx(np.sqrt(t)), rel=1e-12)
    assert parse("mittag_leffler(1, -t)")(t) == pytest.approx(np.exp(-t))
    with pytest.raises(ArgumentError, match=r"expected mittag_leffler\(alpha, x\) with a number alpha, got a number x"):
        parse("mittag_leffler(-sqrt(t), 0.5)")
    for alpha in (0.3, 0.9, 1.3, 1.9):
        series = sum((-t[:2]) ** k / special.gamma(alpha * k + 1) for k in range(100))
        assert parse(f"mittag_leffler({alpha}, -t)")(t[:2]) == pytest.approx(series, rel=1e-9)
