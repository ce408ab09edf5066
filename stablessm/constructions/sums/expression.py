"""A parser of formulas in t that evaluates only listed functions and operators; no text is executed as code."""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any, TypeAlias, final

import numpy as np

from stablessm._errors import ArgumentError, quoted
from stablessm.constructions.sums._mittag_leffler import mittag_leffler

LONGEST, DEEPEST = 2000, 100
"""Largest number of characters, and of levels of nesting, of a formula."""

_SHOWN = 96  # characters of a formula in an error

CONSTANTS = {"pi": np.pi, "e": np.e}

_Values: TypeAlias = Any
"""Numbers or arrays of float64 or complex128."""
_Number: TypeAlias = np.float64 | np.complex128
_Value: TypeAlias = Callable[[_Values], _Values]
"""Function from times to values."""

_OPERATORS: dict[type[ast.AST], Callable[..., _Values]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_SIGNS = "+ - * / ** < <= > >= == !="


def _special(name: str) -> Callable[..., _Values]:
    """Return a function of scipy.special, and delay the import of scipy.special until the first call."""

    def value(*x: _Values) -> _Values:
        from scipy import special

        return getattr(special, name)(*x)

    return value


_ONE: dict[str, Callable[..., _Values]] = {
    **{name: getattr(np, name) for name in ("exp", "log", "sqrt", "abs", "sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: _special(name) for name in ("gamma", "erf", "erfc", "erfcx", "j0", "j1", "y0", "y1", "i0", "i1")},
    **{name: _special(name) for name in ("k0", "k1", "i0e", "k0e")},
    "besselj0": _special("j0"),
    "besselj1": _special("j1"),
    "airy": lambda x: _special("airy")(x)[0],
    "heaviside": lambda x: np.heaviside(x, 1.0),
}
_TWO: dict[str, Callable[..., _Values]] = {
    **{name: _special(name) for name in ("jv", "yv", "iv", "kv")},
    **dict.fromkeys(("besselj", "jn"), _special("jv")),
    "mittag_leffler": mittag_leffler,
}
FUNCTIONS: dict[str, tuple[Callable[..., _Values], int, bool]] = {
    **{name: (function, 1, False) for name, function in _ONE.items()},
    **{name: (function, 2, False) for name, function in _TWO.items()},
    "where": (lambda condition, yes, no: np.where(condition != 0, yes, no), 3, False),
    "min": (lambda *values: _ordered(np.minimum, values), 2, True),
    "max": (lambda *values: _ordered(np.maximum, values), 2, True),
}
"""Function, least number of arguments, and whether it accepts more arguments, by name."""


@final
@dataclass(frozen=True)
class Expression:
    """A function of times that :func:`parse` read from a formula in t."""

    text: str
    _value: _Value = field(repr=False, compare=False)

    def __call__(self, t: float | Sequence[float] | np.ndarray) -> np.ndarray:
        """Evaluate the formula at times of any shape: float64, or complex128 if the formula contains complex numbers.

        Values are inf or NaN where the formula is undefined.
        """
        times = np.asarray(t)
        if times.dtype.kind not in "fiu":
            raise ArgumentError("t", "real numbers", f"dtype {times.dtype}")
        times = times.astype(np.float64)
        with np.errstate(all="ignore"):
            values = np.broadcast_to(self._value(times), times.shape)
        return np.array(values, dtype=np.complex128 if np.iscomplexobj(values) else np.float64)


def parse(text: str, name: str = "expression") -> Expression:
    """Convert the text of a formula in t to a function of times.

    A formula may contain numbers, pi, e, ``+ - * / **``, parentheses, comparisons (1 or 0) and :data:`FUNCTIONS`.
    Imaginary numbers are written as in Python, ``1j``; they make the values complex. The Bessel functions have SciPy's
    names, ``j0(t)``, ``jv(2, t)``, ``kv(0.5, t)`` and so on. ``mittag_leffler(alpha, x)`` is E_α(x) for x ≤ 0,
    ``airy`` is the Airy function Ai, ``heaviside(x)`` is 1 for x ≥ 0 and 0 otherwise, ``erfcx(x)`` is e^(x²) erfc(x),
    and ``where(condition, yes, no)`` is ``yes`` where the condition is not 0 and ``no`` elsewhere.

    Python's parser reads the text, and a table lists what is allowed; nothing is executed as code. A part without t
    must have a finite value. Error messages call the formula ``name``.

    >>> parse("1/(1+t)**2")([0.0, 1.0, 3.0])
    array([1.    , 0.25  , 0.0625])
    >>> parse("where(t == 10, 1, 0)")(10.0)
    array(1.)
    >>> parse("exp(-t) + t.real")
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: expression: expected numbers, t, operators or functions, got attribute
      exp(-t) + t.real
                ^^^^^^
    """
    if not isinstance(text, str):
        raise ArgumentError(name, "text, such as '1/(1+t)**1.1'", type(text).__name__)
    text = text.strip()
    if not text:
        raise ArgumentError(name, "a formula in t, such as '1/(1+t)**1.1'", "nothing")
    if len(text) > LONGEST:
        raise ArgumentError(name, f"at most {LONGEST} characters", len(text))
    if not text.isprintable():
        raise ArgumentError(name, "one line of plain characters", quoted(text))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # '1if t' and similar text is refused below with a better message
            body = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        start = min(max((error.offset or 1) - 1, 0), len(text))
        raise _refusal(name, text, "a formula in t", error.msg, start, start + 1) from None
    except (RecursionError, MemoryError):
        raise ArgumentError(name, f"at most {DEEPEST} levels of nesting", "more") from None
    return Expression(text, _Reader(text, name).read(body, 1).value)


@final
@dataclass(frozen=True)
class _Part:
    value: _Value
    constant: bool
    """Whether the part does not contain t."""


@final
@dataclass(frozen=True)
class _Reader:
    """Converts a syntax tree of Python's parser to a function of t; raises an error for nodes that are not allowed."""

    text: str
    argument: str

    def read(self, node: ast.expr, depth: int) -> _Part:
        if depth > DEEPEST:
            raise self._refuse(node, f"at most {DEEPEST} levels of nesting", "more")
        match node:
            case ast.Constant(value=value):
                return _Part(_always(self._number(node, value)), True)
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.UnaryOp(op=sign, operand=operand):
                return self._apply(node, self._operator(node, sign), [operand], depth)
            case ast.BinOp(left=left, op=sign, right=right):
                return self._apply(node, self._operator(node, sign), [left, right], depth)
            case ast.Compare(left=left, ops=signs, comparators=others):
                tests = [self._operator(node, sign) for sign in signs]
                return self._apply(node, lambda *values: _compare(tests, values), [left, *others], depth)
            case ast.Call(func=ast.Name(id=name) as function, args=arguments, keywords=[]):
                called = self._function(function, name, len(arguments))
                if called is mittag_leffler and isinstance(arguments[1], ast.Constant):
                    raise self._refuse(node, "mittag_leffler(alpha, x) with a number alpha", "a number x")
                return self._apply(node, called, arguments, depth)
        raise self._refuse(node, "numbers, t, operators or functions", _node_name(node))

    def _apply(self, node: ast.expr, function: Callable[..., _Values], arguments: list[ast.expr], depth: int) -> _Part:
        parts = [self.read(argument, depth + 1) for argument in arguments]

        def applied(t: _Values) -> _Values:
            try:
                return function(*(part.value(t) for part in parts))
            except TypeError:  # a function of real numbers alone
                raise self._refuse(node, "real numbers", "complex numbers") from None

        if not all(part.constant for part in parts):
            return _Part(applied, False)
        with np.errstate(all="ignore"):
            number = applied(np.float64(0))
            number = np.complex128(number) if np.iscomplexobj(number) else np.float64(number)
        if not np.isfinite(number):
            raise self._refuse(node, "a finite number", f"{number}")
        return _Part(_always(number), True)

    def _number(self, node: ast.expr, value: object) -> _Number:
        if not isinstance(value, int | float | complex) or isinstance(value, bool):
            raise self._refuse(node, "a number", _node_name(node))
        number: _Number
        try:
            number = np.complex128(value) if isinstance(value, complex) else np.float64(value)
        except OverflowError:
            number = np.float64(np.inf)
        if not np.isfinite(number):
            raise self._refuse(node, f"a number up to {np.finfo(np.float64).max:.3g}", "a larger one")
        return number

    def _name(self, node: ast.expr, name: str) -> _Part:
        if name == "t":
            return _Part(lambda t: t, False)
        if name in CONSTANTS:
            return _Part(_always(np.float64(CONSTANTS[name])), True)
        if name in FUNCTIONS:
            raise self._refuse(node, f"arguments in parentheses, {name}(t)", name)
        raise self._refuse(node, f"t, {', '.join(CONSTANTS)} or a known function", name)

    def _function(self, node: ast.expr, name: str, count: int) -> Callable[..., _Values]:
        if name not in FUNCTIONS:
            raise self._refuse(node, f"a function that is known ({', '.join(sorted(FUNCTIONS))})", name)
        function, least, more = FUNCTIONS[name]
        if count < least or (count > least and not more):
            wanted = f"{least} argument{'s' * (least > 1)}{' or more' * more} of {name}"
            raise self._refuse(node, wanted, count)
        return function

    def _operator(self, node: ast.expr, sign: ast.AST) -> Callable[..., _Values]:
        if isinstance(sign, ast.BitXor):
            raise self._refuse(node, "** for a power", "^")
        if type(sign) not in _OPERATORS:
            raise self._refuse(node, f"one of {_SIGNS}", _node_name(sign))
        return _OPERATORS[type(sign)]

    def _refuse(self, node: ast.expr, expected: str, got: object) -> ArgumentError:
        line = self.text.encode()  # Python counts bytes
        start, end = (len(line[:at].decode()) for at in (node.col_offset, node.end_col_offset or len(line)))
        return _refusal(self.argument, self.text, expected, got, start, end)


def _refusal(name: str, text: str, expected: str, got: object, start: int, end: int) -> ArgumentError:
    """Create an error that shows the formula ``text`` and marks its invalid part, from ``start`` up to ``end``."""
    first = max(0, start - _SHOWN // 2)
    shown = text[first : first + _SHOWN]
    marks = "^" * max(min(end, first + _SHOWN) - start, 1)
    return ArgumentError(name, expected, f"{got}\n  {shown}\n  {' ' * (start - first)}{marks}")


def _always(number: _Number) -> _Value:
    return lambda t: number


def _compare(tests: Sequence[Callable[..., _Values]], values: Sequence[_Values]) -> _Values:
    """Return the value of a chain of comparisons such as a < b < c: 1.0 if all are true, otherwise 0.0."""
    _require_real(values)
    pairs = zip(tests, pairwise(values), strict=True)
    return reduce(np.multiply, (np.asarray(test(*pair), np.float64) for test, pair in pairs))


def _ordered(function: Callable[..., _Values], values: Sequence[_Values]) -> _Values:
    _require_real(values)
    return reduce(function, values)


def _require_real(values: Sequence[_Values]) -> None:
    if any(np.iscomplexobj(value) for value in values):  # NumPy would order complex numbers by their real parts
        raise TypeError


def _node_name(node: ast.AST) -> str:
    """Return the name of a syntax node in words: 'FloorDiv' becomes 'floor div'."""
    name = type(node).__name__ if not isinstance(node, ast.Constant) else type(node.value).__name__
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
