"""The default values of everything public, one line per function, method and class: ``public_defaults.txt``.

After a change that is meant: ``python tests/public_defaults.py``.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stablessm

PATH = Path(__file__).with_suffix(".txt")
ELSEWHERE = ("cli", "experiments")
"""Packages whose defaults other tests compare: cli_options.txt, and the configs in the records of experiments."""
OPTIONAL = ("triton", "hf_")
"""Modules that need more than the required packages."""
PLAIN = (bool, int, float, str, tuple, type(None))


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(stablessm.__path__, "stablessm."):
        parts = found.name.split(".")[1:]
        if not any(part.startswith(("_", *OPTIONAL)) for part in parts) and parts[0] not in ELSEWHERE:
            yield importlib.import_module(found.name)


def _defaults(thing: Any) -> str:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return ""
    return ", ".join(f"{one.name}={one.default!r}" for one in parameters if type(one.default) in PLAIN)


def lines() -> list[str]:
    found = {}
    for module in modules():
        for name, thing in vars(module).items():
            if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
                continue
            if inspect.isclass(thing) or inspect.isfunction(thing):
                found[f"{module.__name__}.{name}"] = _defaults(thing)
            for method, function in vars(thing).items() if inspect.isclass(thing) else ():
                function = getattr(function, "__func__", function)
                if not method.startswith("_") and inspect.isfunction(function):
                    found[f"{module.__name__}.{name}.{method}"] = _defaults(function)
    return [f"{name}: {defaults}" for name, defaults in sorted(found.items()) if defaults]


if __name__ == "__main__":
    PATH.write_text("\n".join(lines()) + "\n", encoding="utf-8")
