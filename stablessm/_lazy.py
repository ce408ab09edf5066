"""Public names that are imported when they are first asked for, so that a part of the house runs without the rest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def public(package: str, name: str, names: Sequence[str], homes: Sequence[str]) -> Any:
    """What a package's ``__getattr__`` answers: a module of that name, or what one of ``homes`` has under it.

    Args:
        names: what the package offers, beside its homes; anything else is an AttributeError.
        homes: modules of the package, those that import little first.
    """
    if name in names or name in homes:
        if find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        for home in homes:
            module = import_module(f"{package}.{home}")
            if hasattr(module, name):
                setattr(sys.modules[package], name, getattr(module, name))
                return getattr(module, name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
