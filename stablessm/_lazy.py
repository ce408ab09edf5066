"""Imports public names at their first use, so that parts of the package work without importing the rest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def public(package: str, name: str, names: Sequence[str], homes: Sequence[str]) -> Any:
    """Import and return a public name of a package: a submodule, or a name that one of the modules ``homes`` defines.

    Args:
        names: Public names of the package; any other name raises an AttributeError.
        homes: Submodules to look in, in this order; those that import little come first.
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
