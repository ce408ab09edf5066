"""Support for old spellings of public names, which work for one more release and give a DeprecationWarning."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Final, TypeVar

C = TypeVar("C", bound=type)

NAMES: Final = {
    "artefacts": "artifacts",
    "catalogue": "catalog",
    "discretisation": "discretization",
    "Initialisation": "Initialization",
    "LanguageModelling": "LanguageModeling",
    "learnt": "learned",
    "maximiser": "maximizer",
    "normalise": "normalize",
    "optimised": "optimized",
    "optimiser": "optimizer",
    "realisation": "realization",
    "standardise": "standardize",
}
"""Present spelling of each old spelling."""

OLD: Final = {new: old for old, new in NAMES.items()}
"""Old spelling of each present spelling."""

_silent = ContextVar("_silent", default=False)


@contextmanager
def reading_a_file() -> Iterator[None]:
    """Return a context manager for reading a file that an older release may have written. Inside the ``with`` block,
    old names give no warnings, and a setting that did not exist in the older release gets the value that corresponds to
    the behavior of that release.
    """
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def is_reading_a_file() -> bool:
    """Return True inside a ``with`` block of :func:`reading_a_file`."""
    return _silent.get()


def warn(message: str) -> None:
    """Give a DeprecationWarning that points to the first line of code outside this package and PyTorch. Give no warning
    while a file is read (see :func:`reading_a_file`).
    """
    if _silent.get():
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("stablessm.", "torch.")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DeprecationWarning, stacklevel=level)


def current(options: Mapping[str, Any], old: Iterable[str], where: str) -> dict[str, Any]:
    """Return options in which old names are replaced by present names; warn once about each old name.

    Args:
        options: Values by name.
        old: Old names to replace; any other name is kept.
        where: Name of the class or option for the warning.

    >>> with reading_a_file():
    ...     current({"normalise": True, "skip": False}, ["normalise"], "LRU")
    {'normalize': True, 'skip': False}
    """
    for name in set(old) & options.keys():
        new = NAMES[name]
        if new in options:
            raise TypeError(f"{where}: {name} is the old name of {new}; give only {new}")
        warn(f"{where}: {name} is now {new}; the old name will be removed")
        options = {new if key == name else key: value for key, value in options.items()}
    return dict(options)


def current_options(cls: type, options: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return options for a class, in which old names of the class's arguments are replaced by present names.

    The decorator :func:`renamed` lists the old names.
    """
    return current(options, getattr(cls, "_old_names", ()), where or cls.__name__)


def as_now(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings from an old file under the names that the present settings ``now`` use.

    >>> as_now({"standardise": False, "valid": 0.1}, {"standardize": True, "valid": 0.1})
    {'standardize': False, 'valid': 0.1}
    """
    return {key if key in now or NAMES.get(key) not in now else NAMES[key]: value for key, value in before.items()}


def renamed(*old: str) -> Callable[[C], C]:
    """Decorate a class so that old names work as keywords of its constructor and as attributes of its instances.

    >>> @renamed("normalise")
    ... class Layer:
    ...     def __init__(self, normalize=True):
    ...         self.normalize = normalize
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     layer = Layer(normalise=False)
    >>> layer.normalize, str(caught[0].message)
    (False, 'Layer: normalise is now normalize; the old name will be removed')
    """

    def decorate(cls: C) -> C:
        build: Any = cls.__init__  # type: ignore[misc]

        @functools.wraps(build)
        def init(self: Any, *args: Any, **options: Any) -> None:
            build(self, *args, **current(options, old, cls.__name__))

        cls.__init__ = init  # type: ignore[misc]
        cls._old_names = old  # type: ignore[attr-defined]
        for name in old:
            setattr(cls, name, _attribute(name))
        return cls

    return decorate


def _attribute(old: str) -> property:
    """Return a property that reads and writes an attribute under its old name."""
    new = NAMES[old]

    def warned(self: Any) -> None:
        warn(f"{type(self).__name__}.{old} is now {new}; the old name will be removed")

    def read(self: Any) -> Any:
        warned(self)
        return getattr(self, new)

    def write(self: Any, value: Any) -> None:
        warned(self)
        setattr(self, new, value)

    return property(read, write, doc=f"Return ``{new}``, whose old name this is.")


def module_names(module: str, *old: str) -> Callable[[str], Any]:
    """Return a module-level ``__getattr__`` that finds attributes and submodules under their old names."""

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in old:
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
        warn(f"{module}.{name} is now {NAMES[name]}; the old name will be removed")
        known = vars(sys.modules[module])
        return known[NAMES[name]] if NAMES[name] in known else import_module(f"{module}.{NAMES[name]}")

    return __getattr__
