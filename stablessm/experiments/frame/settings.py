"""Changes settings of an experiment by name. New values are given as text, as on the command line."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from stablessm._errors import ArgumentError, unknown_name
from stablessm._renamed import current
from stablessm.tasks.options import parsed

C = TypeVar("C")


def changed(config: C, changes: Mapping[str, str]) -> C:
    """Return a copy of the config with new values of some fields. Each value is given as text, which is converted to
    the type of its field.

    In a value, commas separate the entries of a sequence. In a name, a dot precedes a field of a nested config:
    ``training.lr``.

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
    """Return a copy of the config with all changes. Each change is a tuple: the parts of the setting's name between
    dots, the whole name (for error messages), and the new value as text. All changes are made at once, because the
    valid range of one field may depend on another field.
    """
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
    """Convert the text of a setting to the type ``kind``. ``name`` is the name of the setting, for error messages."""
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    for one in kinds:
        if get_origin(one) is tuple and get_args(one)[1:] == (...,):
            return tuple(_read(get_args(one)[0], name, part.strip()) for part in text.split(",") if part.strip())
    written = [one for one in kinds if get_origin(one) is Literal or one in (bool, int, float, str, type(None))]
    if not any(one is not type(None) for one in written):
        inner = f", such as {name}.{fields(kinds[0])[0].name}" if is_dataclass(kinds[0]) else ""
        raise ArgumentError("--set", f"a setting that can be written as text{inner}", name)
    return parsed(f"--set {name}", text, Union[tuple(written)])  # noqa: UP007 - a union of a tuple has no other form
