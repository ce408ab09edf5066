"""The decorator ``checked``, which explains failed calls with the help of the annotations of the arguments.

Each argument is compared with its annotation alone, so that the signature shows everything that is checked. Types such
as ``Size`` add ranges to numbers. This module does not import torch.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from numbers import Number, Real
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, Union, get_args, get_origin

from stablessm._arguments import MOST
from stablessm._errors import ArgumentError, BackendUnavailableError, NumericalError, unknown_name

T = TypeVar("T")


class Rule(NamedTuple):
    """A check that a value must pass, a description of the values that pass, and the names among them, if any."""

    accepts: Callable[[Any], bool]
    expected: str
    names: tuple[str, ...] = ()


Size: TypeAlias = Annotated[int, Rule(lambda n: 1 <= n < MOST, "a whole number, at least 1")]
Several: TypeAlias = Annotated[int, Rule(lambda n: 2 <= n < MOST, "a whole number, at least 2")]
Count: TypeAlias = Annotated[int, Rule(lambda n: 0 <= n < MOST, "a whole number, at least 0")]
Seed: TypeAlias = Annotated[int, Rule(lambda n: 0 <= n < 2**63, "a whole number from 0 to 2^63 - 1")]
Finite: TypeAlias = Annotated[float, Rule(math.isfinite, "a finite number")]
Positive: TypeAlias = Annotated[float, Rule(lambda x: 0 < x < math.inf, "a finite number above 0")]
NotNegative: TypeAlias = Annotated[float, Rule(lambda x: 0 <= x < math.inf, "a finite number not below 0")]
Part: TypeAlias = Annotated[float, Rule(lambda x: 0 <= x < 1, "a number from 0 to below 1")]
Share: TypeAlias = Annotated[float, Rule(lambda x: 0 < x < 1, "a number between 0 and 1")]


def checked(thing: T) -> T:
    """Decorate a public function or class, so that an error caused by an argument of a wrong type names the argument.

    For a class, the constructor and the public methods are decorated; for a module (``nn.Module``), only the
    constructor and the class methods, because ``torch.compile`` traces the other methods.

    Arguments are compared with their annotations only after a call has failed, so that a successful call costs little.
    Three kinds of arguments are checked before the call, because a wrong value need not make the call fail: flags
    (``bool``), numbers that are given as text or bool (``dt="5"``, ``size=True``), and arguments whose annotation is
    the name of a range or of a ``Literal`` (``Size``, ``Mode | None``). If the annotation accepts only a number, a
    number of another type, such as an array with one number, is converted to ``int`` or ``float``.

    Errors of stablessm are raised unchanged, except errors about an argument of an inner function: if an argument of
    this function does not fit its annotation, an error about that argument is raised instead.

    ``int`` accepts whole numbers of any type, ``float`` real numbers except NaN, ``str`` text without NUL, ``Literal``
    its values, ``tuple[float, float]`` two numbers, ``ArrayLike`` anything that NumPy converts to real numbers, and a
    class its instances. An annotation that cannot be evaluated, such as one imported for type checkers only, accepts
    anything.

    >>> @checked
    ... def scaled(values: Sequence[float], factor: float = 1.0) -> list[float]:
    ...     return [factor * value for value in values]
    >>> scaled([1.0], factor="2")
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: factor: expected a number, got '2'
    """
    if isinstance(thing, type):
        return _checked_class(thing)
    function: Any = thing
    before, numbers = _checked_before(function), _places(function, _NUMBER)
    alone = frozenset(name for name, _ in _places(function, _NUMBER_ALONE))

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        for name, position, rule in before:
            if name in options or position < len(args):
                require(name, options[name] if name in options else args[position], rule)
        for name, position in numbers:
            value = options[name] if name in options else args[position] if position < len(args) else 0
            if type(value) in (int, float) or value is None:
                continue
            number = _as_number(value, _rule(function, name), name, only=name in alone)
            if number is not value and name in options:
                options[name] = number
            elif number is not value:
                args = (*args[:position], number, *args[position + 1 :])
        try:
            return function(*args, **options)
        except ArgumentError as error:
            _name_own_argument(function, args, options, error)
            raise
        except (NumericalError, BackendUnavailableError, OSError):
            raise
        except Exception as error:
            _blame(function, args, options, error)
            raise

    return call  # type: ignore[return-value]


def _as_number(value: Any, rule: Rule, name: str, *, only: bool) -> Any:
    """Return the value of the argument ``name``; raise an error if it is a bool or a text that the rule does not allow.
    If ``only`` is True, a number of any type is converted to ``int`` or ``float``.
    """
    if isinstance(value, bool | str | bytes):
        require(name, value, rule)
    elif only and rule.accepts(value):
        return operator.index(value) if _whole(value) else float(value)
    return value


def _checked_class(cls: Any) -> Any:
    """Decorate the constructor and the public methods of a class as :func:`checked` does."""
    is_module = hasattr(cls, "forward")
    cls.__init__ = checked(cls.__init__)
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(member, classmethod | staticmethod):
            setattr(cls, name, type(member)(checked(member.__func__)))
        elif inspect.isfunction(member) and not is_module:
            setattr(cls, name, checked(member))
    return cls


def _places(function: Any, kind: re.Pattern[str]) -> list[tuple[str, int]]:
    """Return the names and positions of the parameters whose annotations match the regular expression ``kind``."""
    written = {name: each for name, each in getattr(function, "__annotations__", {}).items() if name != "return"}
    named = [name for name, each in written.items() if kind.search(each if isinstance(each, str) else repr(each))]
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return []
    places = {name: place for place, name in enumerate(code.co_varnames[: code.co_argcount])}
    return [(name, places.get(name, sys.maxsize)) for name in named]


def _checked_before(function: Any) -> list[tuple[str, int, Rule]]:
    """Return name, position and rule of the parameters that are flags, or whose annotation is the name of a range or of
    a Literal.
    """
    found = []
    for name, place in _places(function, _ALIAS):
        alias, *none = function.__annotations__[name].split(" | ")
        kind = bool if alias == "bool" else inspect.unwrap(function).__globals__.get(alias, globals().get(alias))
        number = get_origin(kind) is Annotated and get_args(kind)[0] in (int, float)
        if kind is bool or number or get_origin(kind) is Literal:
            whole = rule_of(kind | None if none else kind)
            found.append((name, place, whole._replace(expected=rule_of(kind).expected)))
    return found


@functools.cache
def _rule(function: Any, name: str) -> Rule:
    """Return the rule that the given parameter of a function must satisfy."""
    return rule_of(_evaluated(function.__annotations__[name], inspect.unwrap(function).__globals__))


def _blame(function: Any, args: tuple[Any, ...], options: dict[str, Any], error: Exception) -> None:
    """Raise an ArgumentError for the first argument that does not fit its annotation, with ``error`` as its cause.
    Return if all arguments fit.
    """
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **options).arguments
    except TypeError:  # the original error says what is missing or unknown
        return
    for name, rule in _rules(function, signature).items():
        if name in given and given[name] is not signature.parameters[name].default:
            try:
                require(name, given[name], rule)
            except ArgumentError as refused:
                raise refused from error


def _name_own_argument(function: Any, args: tuple[Any, ...], options: dict[str, Any], error: ArgumentError) -> None:
    """If ``error`` names an argument of an inner call, raise an ArgumentError that names an argument of this function
    instead, provided that one of them is wrong. Otherwise return.
    """
    names = inspect.signature(function).parameters
    if names.keys() & set(re.findall(r"\w+", str(error.argument))):
        return
    _blame(function, args, options, error)
    if "model" in names and error.argument in ("x", "x_t", "state"):
        raise ArgumentError("model", "a model that takes such inputs", f"a call that raised: {error}") from error


def require(name: str, value: Any, rule: Rule) -> None:
    """Raise an ArgumentError about the argument ``name`` unless its value satisfies the rule."""
    if not rule.accepts(value):
        if rule.names and isinstance(value, str):
            raise unknown_name(name, rule.names, value, rule.expected)
        plain = value is None or isinstance(value, str | bytes | Number | tuple | list | Mapping)
        got = _repr(value) if plain else value if hasattr(value, "dtype") else type(value).__name__
        raise ArgumentError(name, rule.expected, got)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # repr fails: too many digits, nested too deeply, or an error in __repr__
        return type(value).__name__


def _rules(function: Any, signature: inspect.Signature) -> dict[str, Rule]:
    """Return the rules of a function's parameters, as a dict by parameter name."""
    rules = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            rules[name] = rule_of(_evaluated(parameter.annotation, function.__globals__))
    return rules


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    import numpy

    try:
        while isinstance(annotation, str):
            annotation = eval(annotation, {"np": numpy, "torch": sys.modules.get("torch"), **names})
    except NameError as error:  # a name that is imported for type checkers only, or later
        name = str(error.name)
        known = getattr(sys.modules["stablessm"], name, globals().get(name))
        return Any if known is None else _evaluated(annotation, {**names, name: known})
    except TypeError:  # a union with a forward reference
        return functools.reduce(operator.or_, (_evaluated(part.strip(), names) for part in annotation.split("|")))
    return annotation


def rule_of(annotation: Any) -> Rule:
    """Return the rule that corresponds to an annotation, such as ``int`` or ``Tensor | None``.

    >>> rule_of(float | None).expected
    'a number or None'
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    if origin is Annotated:
        (kind, *more), whole = parts, parts[0] is int
        base = Rule(_whole, "") if whole else rule_of(kind)
        plain = operator.index if whole else lambda value: value  # 2^63 overflows in comparisons of tensors
        return Rule(
            lambda value: base.accepts(value) and all(rule.accepts(plain(value)) for rule in more), more[-1].expected
        )
    if re.search("ArrayLike|_SupportsArray", str(annotation)):  # a union that merges with others, or a name
        empty = type(None) in parts
        return Rule(lambda value: (empty and value is None) or _numeric(value), "real numbers, without a gradient")
    if origin is Literal:
        known = tuple(part for part in parts if isinstance(part, str))
        accepts = lambda value: value in known if isinstance(value, str) else any(value is part for part in parts)  # noqa: E731
        words = " or ".join(map(repr, parts)) if len(parts) == 2 else f"one of {', '.join(map(repr, parts))}"
        return Rule(accepts, words, known)
    if origin in (Union, types.UnionType):
        return _any_of([rule_of(part) for part in parts])
    if origin in _CONTAINERS:
        return _CONTAINERS[origin](*parts)
    if isinstance(annotation, TypeVar) and annotation.__bound__ is not None:
        return rule_of(annotation.__bound__)
    if isinstance(annotation, type):
        return _instance(annotation)
    return Rule(_anything, "anything")


def _instance(kind: Any) -> Rule:
    if kind.__name__ == "Tensor":
        return Rule(lambda value: isinstance(value, kind) and _has_values(value), "a dense tensor of a common dtype")
    if kind.__name__ == "ndarray":
        usual = {*"?bhilqBHILQefdFD"}  # PyTorch has no longdouble
        return Rule(lambda value: isinstance(value, kind) and value.dtype.char in usual, "a NumPy array of numbers")
    try:
        isinstance(None, kind)
    except TypeError:  # a protocol that is not runtime_checkable
        return Rule(_anything, "anything")
    word = "nn.Module" if kind.__name__ == "Module" else kind.__name__
    return Rule(lambda value: isinstance(value, kind), f"{'an' if word[0].lower() in 'aeioun' else 'a'} {word}")


def _has_values(tensor: Any) -> bool:
    """Return True if a tensor or array has values that can be read: not sparse, quantized, float8 or on device meta."""
    strided = str(getattr(tensor, "layout", "torch.strided")) == "torch.strided"
    common = _COMMON.fullmatch(str(tensor.dtype).removeprefix("torch."))
    rare = getattr(tensor, "is_meta", False) or getattr(tensor, "is_nested", False)
    return strided and common is not None and not rare


def _any_of(rules: Sequence[Rule]) -> Rule:
    names = tuple(name for rule in rules for name in rule.names)
    accepts = lambda value: any(rule.accepts(value) for rule in rules)  # noqa: E731
    return Rule(accepts, " or ".join(rule.expected for rule in rules), names)


def _sequence(item: Any, *more: Any) -> Rule:
    """Return the rule for a sequence with entries of type ``item``, or for a tuple ``tuple[item, *more]``."""
    if more and more != (...,):
        rules = [rule_of(part) for part in (item, *more)]
        words = [rule.expected for rule in rules]
        expected = "two numbers" if words == ["a number"] * 2 else f"({', '.join(words)})"
        return Rule(lambda value: _listed(value) and len(value) == len(rules) and _each(rules, value), expected)
    rule = rule_of(item)
    return Rule(lambda value: _listed(value) and _all(rule, value), f"a sequence, each entry {rule.expected}")


def _mapping(key: Any, item: Any) -> Rule:
    keys, items = rule_of(key), rule_of(item)
    expected = f"a mapping from {keys.expected} to {items.expected}"
    return Rule(
        lambda given: isinstance(given, Mapping) and _all(keys, given) and _all(items, given.values()), expected
    )


def _all(rule: Rule, values: Any) -> bool:
    return all(map(rule.accepts, values))


def _each(rules: Sequence[Rule], values: Sequence[Any]) -> bool:
    return all(rule.accepts(value) for rule, value in zip(rules, values, strict=True))


def _listed(value: Any) -> bool:
    """Return True for a sequence that is not text, and for a one-dimensional array or tensor, but not for an array of
    objects.
    """
    if isinstance(value, str | bytes | bytearray) or getattr(value, "is_meta", False):
        return False
    return isinstance(value, Sequence) or (getattr(value, "ndim", None) == 1 and str(value.dtype) != "object")


def _anything(value: Any) -> bool:
    return True


def _whole(value: Any) -> bool:
    """Return True if a value is a whole number of any type except bool, or an array or tensor with one such number."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        return False
    try:
        return abs(operator.index(value)) < 2**63
    except (TypeError, RuntimeError, ValueError):
        return False


def _flag(value: Any) -> bool:
    """Return True if a value is True, False, 0, 1, or an array or tensor with one truth value."""
    if hasattr(value, "dtype"):
        return "bool" in str(value.dtype) and math.prod(value.shape) == 1 and _has_values(value)
    return isinstance(value, int) and value in (0, 1)


def _number(value: Any) -> bool:
    """Return True if a value is a real number other than NaN, of any type except bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return not math.isnan(float(value))
    except OverflowError:
        return False


def _numeric(value: Any) -> bool:
    import numpy as np

    if hasattr(value, "is_sparse"):  # a tensor
        return _has_values(value) and not value.is_complex() and not value.requires_grad
    try:
        return np.asarray(value).dtype.kind in "fiub"
    except (TypeError, ValueError, RuntimeError):  # ragged
        return False


def _text(value: Any) -> bool:
    """Return True if a value is text that a file or a terminal can contain."""
    try:
        return isinstance(value, str) and b"\0" not in value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _path(value: Any) -> bool:
    """Return True if a value is a path object (``os.PathLike``)."""
    return hasattr(value, "__fspath__")


_NUMBER: Final = re.compile(r"\b(int|float|Size|Several|Count|Seed|Finite|Positive|NotNegative|Part|Share)\b")
_NUMBER_ALONE: Final = re.compile(rf"^{_NUMBER.pattern}( \| None)?$")
_ALIAS: Final = re.compile(r"^(bool|[A-Z]\w*)( \| None)?$")
"""Patterns of three sorts of annotations: of arguments that may be numbers, of arguments that must be one number, and
of arguments that may be flags, ranges or one of several names."""
_COMMON: Final = re.compile(r"b?float(16|32|64)|complex\d+|int\d+|uint8|bool")
_SIMPLE: Final[dict[Any, Rule]] = {
    int: Rule(lambda value: _whole(value) and abs(operator.index(value)) < MOST, "a whole number"),
    float: Rule(_number, "a number"),
    bool: Rule(_flag, "True or False"),
    str: Rule(_text, "text"),
    type(None): Rule(lambda value: value is None, "None"),
    Any: Rule(_anything, "anything"),
    object: Rule(_anything, "anything"),
    inspect.Parameter.empty: Rule(_anything, "anything"),
}
_CONTAINERS: Final[Mapping[Any, Callable[..., Rule]]] = {
    list: _sequence,
    tuple: _sequence,
    collections.abc.Sequence: _sequence,
    dict: _mapping,
    collections.abc.Mapping: _mapping,
    collections.abc.Callable: lambda *_: Rule(callable, "a function"),
    type: lambda *_: Rule(lambda value: isinstance(value, type), "a class"),
    os.PathLike: lambda *_: Rule(_path, "a path"),
}
