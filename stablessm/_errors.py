"""The exceptions of this library, whose messages name the argument, the expected value and the received value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

LONGEST = 400
"""Largest number of characters of a value that a message shows."""

_CONTROL = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"

MOST = 8
"""Largest number of entries of a value that a message shows."""


def shown(value: object) -> str:
    """Return a short text for a value in an error message. For an array, the text has its dtype, shape and range; for a
    long list, it has the first entries.

    >>> shown(list(range(100)))
    '[0, 1, 2, 3, 4, 5, 6, 7, …] (100 entries)'
    >>> import numpy as np
    >>> shown(np.linspace(0, 1, 50)), shown(np.array([0.5, 2.0])), shown(0.25)
    ('float64 array of shape (50,), from 0 to 1', '[0.5, 2.0]', '0.25')
    """
    if getattr(value, "is_nested", False):
        return "a nested tensor"
    if hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "tolist"):
        return _array(value)
    if isinstance(value, Sequence | Set | Mapping) and not isinstance(value, str | bytes) and len(value) > MOST:
        items = value.items() if isinstance(value, Mapping) else value
        few = ", ".join(shown(item) for _, item in zip(range(MOST), items, strict=False))
        return _cut(f"[{few}, …]") + f" ({len(value)} entries)"
    if isinstance(value, list | tuple) and any(hasattr(item, "shape") for item in value):
        return _cut(("({})" if isinstance(value, tuple) else "[{}]").format(", ".join(quoted(item) for item in value)))
    try:
        return _cut(str(value))
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"


def quoted(item: object) -> str:
    """Return the text of :func:`shown` for a value, in quotation marks if the value is text."""
    return repr(item) if isinstance(item, str) else shown(item)


def _cut(text: str) -> str:
    text = str(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"


def _array(value: Any) -> str:
    size = 1
    for length in value.shape:
        size *= int(length)
    kind = f"{str(value.dtype).removeprefix('torch.')} array of shape {tuple(value.shape)}"
    try:
        if size <= MOST:
            return str(value.tolist())
        if "complex" in kind:
            return kind
        value = value.detach() if hasattr(value, "detach") else value  # PyTorch warns otherwise
        low, high = float(value.min()), float(value.max())
    except (TypeError, RuntimeError, ValueError, NotImplementedError):  # an array of text, or an empty array
        return kind
    return f"{kind}, from {low:g} to {high:g}"


def printable(text: str) -> str:
    """Return text that is safe to print, with control characters of terminals, and half characters, which no encoding
    has, replaced by their codes.

    >>> printable("a\\x1b[2J\\nb")
    'a\\\\x1b[2J\\nb'
    """
    return re.sub(_CONTROL, lambda found: f"\\x{ord(found[0]):02x}", text)


class ArgumentError(ValueError):
    """The error for an argument that has a wrong rank, size, dtype or value.

    >>> raise ArgumentError("decay", "64 channels (as in drive)", "32 channels")
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: decay: expected 64 channels (as in drive), got 32 channels
    """

    def __init__(self, argument: str, expected: str, got: object) -> None:
        super().__init__(printable(f"{argument}: expected {_cut(expected)}, got {shown(got)}"))
        self.argument = argument


def unknown_name(argument: str, names: Iterable[str], got: object, expected: str | None = None) -> ArgumentError:
    """Return the error for a name that is not in ``names``; its message suggests a similar name.

    ``expected`` describes the names; by default they are listed.

    >>> raise unknown_name("task", ["recall", "mnist"], "recal")
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: task: expected one of recall, mnist, got 'recal' (did you mean 'recall'?)
    """
    known = [str(name) for name in names]
    near = difflib.get_close_matches(str(got), known, 1) if isinstance(got, str) else []
    error = ArgumentError(argument, expected or f"one of {', '.join(known)}", quoted(got))
    if near:
        error.args = (f"{error} (did you mean {near[0]!r}?)",)
    return error


class BackendUnavailableError(RuntimeError):
    """The error for a backend that cannot run on this machine; its message says why, and what to do."""


class MissingPackageError(BackendUnavailableError, ImportError):
    """The error for an optional package that cannot be imported; its message has the command to install the package."""


class NumericalError(ArithmeticError):
    """The error for a computation that failed numerically; its message says what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}. Remedy: {remedy}")
        self.remedy = remedy
