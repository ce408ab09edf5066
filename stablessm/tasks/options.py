"""Options of tasks: frozen dataclasses with checked types, which the command line can list and parse."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stablessm._checked import checked, require, rule_of
from stablessm._errors import ArgumentError

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@checked
def option(default: Any = MISSING, help: str = "", *, place: bool = False) -> Any:
    """Return a field of an options dataclass; a field without a default is required.

    Args:
        default: Default value.
        help: A line of help.
        place: Whether the option says where the data are, such as a path, and not what they are.
    """
    return field(default=default, metadata={"help": help, "place": place})


@dataclass(frozen=True)
class Options:
    """Base class of options, which refuses values of the wrong type.

    >>> @dataclass(frozen=True)
    ... class Mine(Options):
    ...     length: int = option(20, "of a sequence")
    >>> Mine(length="long")
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: length: expected a whole number, got 'long'
    """

    def __post_init__(self) -> None:
        for name, kind in _hints(type(self)).items():
            require(name, getattr(self, name), rule_of(kind)._replace(expected=_named(kind)))

    def plain(self) -> dict[str, Any]:
        """Return all options except the places of the data."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.metadata.get("place")}


@dataclass(frozen=True)
class Described:
    """One option, for a listing."""

    name: str
    kind: str
    default: Any
    """Default value; ``dataclasses.MISSING`` if the option is required."""
    help: str
    place: bool
    """Whether the option says where the data are."""


def listed(cls: type[Options], defaults: Mapping[str, Any]) -> tuple[Described, ...]:
    """Return the options of a dataclass; ``defaults`` replace its own defaults."""
    found, hints = [], _hints(cls)
    for f in fields(cls):
        kind, default = _named(hints[f.name]), defaults.get(f.name, f.default)
        found.append(Described(f.name, kind, default, f.metadata.get("help", ""), f.metadata.get("place", False)))
    return tuple(found)


def read(cls: type[Options], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return options given as text, converted to their types; names must be valid."""
    hints = _hints(cls)
    return {name: parsed(name, text, hints[name]) for name, text in texts.items()}


def _hints(cls: type[Options]) -> dict[str, Any]:
    return {name: kind for name, kind in get_type_hints(cls).items() if name in {f.name for f in fields(cls)}}


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _named(kind: Any) -> str:
    names = []
    for one in _choices(kind):
        if get_origin(one) is Literal:
            names.append(f"one of {', '.join(map(str, get_args(one)))}")
        elif one is type(None):
            names.append("none")
        elif get_origin(one) is not None:
            names.append("name=number, …")
        else:
            names.append(_WORDS.get(one, one.__name__))
    return " or ".join(names)


def parsed(name: str, text: str, kind: Any) -> Any:
    """Return a text converted to a type, the first one of a union that fits; ``name`` is named in errors."""
    for one in _choices(kind):
        try:
            if get_origin(one) is Literal:
                return next(choice for choice in get_args(one) if str(choice) == text)
            if one is type(None) and text.lower() == "none":
                return None
            if one is bool:
                return _BOOLS[text.lower()]
            if one in (int, float, str):
                return one(text)
            if get_origin(one) is not None:
                return {key.strip(): float(value) for key, value in (pair.split("=") for pair in text.split(","))}
        except (ValueError, KeyError, StopIteration):
            continue
    raise ArgumentError(name, _named(kind), repr(text))
