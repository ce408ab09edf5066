"""Hugging Face's Auto classes learn of our language model when they are imported, before or after us."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, final

_AUTO = "transformers.models.auto."
_CONFIGS, _MODELS = _AUTO + "configuration_auto", _AUTO + "modeling_auto"
_NEEDED = {
    _CONFIGS: ("transformers.configuration_utils", "stablessm.models.hf_config"),
    _MODELS: ("transformers.modeling_utils", "transformers.generation.utils", "stablessm.models.hf_model"),
}
"""A table of Auto classes, and the modules that must not be half imported when we add to it."""


def watch_transformers() -> None:
    """Register now what can be, and the rest when ``transformers`` imports it. Nothing is imported here."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _register()


@final
class _Finder(MetaPathFinder):
    """Finds what the others find; what has to do with the Auto classes gets a loader that tells us when it is done."""

    _watched = frozenset((*_NEEDED, *(name for names in _NEEDED.values() for name in names)))

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """As the path finder, for the few modules we wait for."""
        if fullname not in self._watched:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            _tell(spec.loader)
        return spec


def _tell(loader: Any) -> None:
    """Let a loader look whether to register, after it has run its module."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        spec = module.__spec__
        _register(done=spec.name if spec is not None else None)

    loader.exec_module = exec_module


def _register(done: str | None = None) -> None:
    """Add our classes to the tables that are there; ``done`` is a module about to be."""
    for table, needed in _NEEDED.items():
        if any(name != done and _is_half_imported(name) for name in (table, *needed)) or table not in sys.modules:
            continue
        try:
            ours: Any = import_module(needed[-1])
            auto: Any = sys.modules[table]
            if table == _CONFIGS:
                auto.AutoConfig.register("stablessm", ours.StableSSMConfig, exist_ok=True)
            else:
                auto.AutoModelForCausalLM.register(ours.StableSSMConfig, ours.StableSSMForCausalLM, exist_ok=True)
        except Exception as error:  # an import of transformers must not fail because of us
            warnings.warn(f"stablessm is not known to transformers' Auto classes: {error}", stacklevel=2)


def _is_half_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))
