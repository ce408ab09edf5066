"""Changes the settings of an experiment, given by name and as text on the command line."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from stablessm._errors import ArgumentError, unknown_name
from stablessm._renamed import current

C = TypeVar("C")


def changed(config: C, changes: Mapping[str, str]) -> C:
    """Return the config with some fields changed; text is converted to the type of the field.

    Commas separate the entries of a sequence; a dot separates a nested field from its parent.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Config:
    ...     words: tuple[str, ...] = ("good",)
    ...     seeds: int = 3
    >>> changed(Config(), {"words": "fine, awful"})
    Config(words=('fine', 'awful'), seeds=3)
    """
    return _with(config, [(name.split("."), name, text) for name, text in changes.items()])


def _with(config: Any, changes: Sequence[tuple[list[str], str, str]]) -> Any:
    """Change all fields at once, because the limits of one field may depend on another."""
    known = [field.name for field in fields(config)]
    old = getattr(config, "_old_names", ())
    values: dict[str, Any] = {}
    inner: dict[str, list[tuple[list[str], str, str]]] = {}
    for (first, *rest), name, text in changes:
        (first,) = current({first: text}, old, "--set")
        if first not in known:
            raise unknown_name("--set", known, name, f"one of the settings {', '.join(known)}")
        if not rest:
            values[first] = _read(get_type_hints(type(config))[first], name, text)
        elif is_dataclass(getattr(config, first)):
            inner.setdefault(first, []).append((rest, name, text))
        else:
            raise ArgumentError("--set", f"{first} without a dot, since it has no settings of its own", name)
    values |= {first: _with(getattr(config, first), parts) for first, parts in inner.items()}
    return replace(config, **values)


def _read(kind: Any, name: str, text: str) -> Any:
    """Return the text converted to a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if type(None) in arguments and text.lower() == "none":
            return None
        kind = next(argument for argument in arguments if argument is not type(None))
        return _read(kind, name, text)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_read(arguments[0], name, part.strip()) for part in text.split(",") if part.strip())
    if origin is Literal:
        return _chosen({str(choice): choice for choice in arguments}, name, text)
    if kind is bool:
        return _chosen({"true": True, "false": False}, name, text.lower())
    if kind in (int, float, str):
        try:
            return kind(text)
        except ValueError as error:
            expected = {int: "a whole number", float: "a number"}[kind]
            raise ArgumentError(f"--set {name}", expected, repr(text)) from error
    inner = f", such as {name}.{fields(kind)[0].name}" if is_dataclass(kind) else ""
    raise ArgumentError("--set", f"a setting that can be written as text{inner}", name)


def _chosen(choices: dict[str, Any], name: str, text: str) -> Any:
    if text not in choices:
        raise ArgumentError(f"--set {name}", f"one of {', '.join(choices)}", repr(text))
    return choices[text]
