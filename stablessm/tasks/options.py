"""Options of tasks: frozen dataclasses whose types are checked, and which the command line can list and parse."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stablessm._checked import checked, require, rule_of
from stablessm._errors import ArgumentError, quoted

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_BOOLS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@checked
def option(default: Any = MISSING, help: str = "", *, place: bool = False) -> Any:
    """Define an option: a dataclass field with a help text. An option without a default is required.

    Args:
        default: Default value.
        help: A line of help.
        place: True for an option that only says where the data are, such as a path. Such an option is not part of the
            description of the task.
    """
    return field(default=default, metadata={"help": help, "place": place})


@dataclass(frozen=True)
class Options:
    """The base class of task options, which raises an ArgumentError for values of the wrong type.

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
        """Return all options as a dictionary, except options that only say where the data are, such as paths."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.metadata.get("place")}


@dataclass(frozen=True)
class Described:
    """The description of one option of a task, for listings on the command line."""

    name: str
    kind: str
    default: Any
    """Default value; ``dataclasses.MISSING`` if the option is required."""
    help: str
    place: bool
    """Whether the option only says where the data are, such as a path."""


def listed(cls: type[Options], defaults: Mapping[str, Any]) -> tuple[Described, ...]:
    """Return the descriptions of all options of an options class; ``defaults`` replace the defaults of the class."""
    found, hints = [], _hints(cls)
    for f in fields(cls):
        kind, default = _named(hints[f.name]), defaults.get(f.name, f.default)
        found.append(Described(f.name, kind, default, f.metadata.get("help", ""), f.metadata.get("place", False)))
    return tuple(found)


def read(cls: type[Options], texts: Mapping[str, str]) -> dict[str, Any]:
    """Convert options, given as a dict from names to texts, to the types of the fields of ``cls``; the names must be
    valid.
    """
    hints = _hints(cls)
    return {name: parsed(name, text, hints[name]) for name, text in texts.items()}


def _hints(cls: type[Options]) -> dict[str, Any]:
    return {name: kind for name, kind in get_type_hints(cls).items() if name in {f.name for f in fields(cls)}}


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the types in the union ``kind`` as a tuple, such as (int, str) for ``int | str``. If ``kind`` is not a
    union, return a tuple that contains only this type.
    """
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
    """Convert a text to the type ``kind``; if ``kind`` is a union, to the first type of the union that fits. Errors
    name the option ``name``.
    """
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
    raise ArgumentError(name, _named(kind), quoted(text))


def json_or_text(text: str) -> Any:
    """Return the value of an option whose type is not known: the text read as JSON, or otherwise the text itself.

    >>> json_or_text("4"), json_or_text("true"), json_or_text("best")
    (4, True, 'best')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text
