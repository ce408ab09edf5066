"""Imports optional packages when they are needed; if one is missing, the error says how to install it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

from stablessm import _telemetry
from stablessm._errors import MissingPackageError

EXTRAS: Final[Mapping[str, str]] = {
    "triton": "gpu",
    "transformers": "hf",
    "tokenizers": "hf",
    "accelerate": "hf",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "export",
    "tensorboard": "train",
    "ray": "ray",
    "submitit": "slurm",
    "optuna": "search",
    "jax": "bench",
    "mambapy": "bench",
    "accelerated_scan": "bench",
}
"""The extra of stablessm that installs a package, by package; other packages are installed by their own names."""
_DISTRIBUTIONS: Final[Mapping[str, str]] = {"fla": "flash-linear-attention"}
"""Names under which pip knows packages that are imported by another name."""
REQUIRED: Final = (
    "torch", "numpy", "llvmlite", "typer", "rich", "tqdm", "matplotlib", "plotly", "safetensors", "scipy", "filelock",
)  # fmt: skip
"""Packages that pip installs with stablessm. Importing stablessm works without them, and so do parts of it."""
_HUB: Final = ("transformers", "tokenizers", "accelerate", "datasets", "huggingface_hub")
_LONGEST: Final = 200
"""Largest number of characters of another library's error message that our message contains."""


def install_command(package: str) -> str:
    """Return the command that installs a package.

    >>> install_command("triton"), install_command("llvmlite")
    ("pip install 'stablessm[gpu]'", 'pip install llvmlite')
    """
    extra = EXTRAS.get(package)
    return f"pip install 'stablessm[{extra}]'" if extra else f"pip install {_DISTRIBUTIONS.get(package, package)}"


def why_missing(package: str) -> str | None:
    """Return why a package cannot be imported, with the command that installs it; None if it can be imported.

    >>> why_missing("numpy") is None
    True
    >>> why_missing("not_a_package")
    'not_a_package is not installed (pip install not_a_package)'
    """
    try:
        _imported(package)
    except Exception as error:  # a broken package may raise any error, for example OSError
        return _reason(package, error)
    return None


def require(package: str, purpose: str) -> Any:
    """Import a package and return the module. If the package is missing, raise an error that says what needs the
    package and how to install the package.

    Args:
        package: Name under which the package is imported.
        purpose: What needs the package, such as ``--on ray``.

    >>> require("not_a_package", "format='onnx'")
    Traceback (most recent call last):
    ...
    stablessm._errors.MissingPackageError: format='onnx' requires not_a_package, but not_a_package is not installed \
(pip install not_a_package)
    """
    try:
        return _imported(package)
    except Exception as error:
        raise MissingPackageError(f"{purpose} requires {package}, but {_reason(package, error)}") from error


def import_failure(error: BaseException) -> str | None:
    """Return how to install the package whose import raised ``error``, or None if the error has another cause."""
    if isinstance(error, MissingPackageError):
        return str(error)
    package = _importing(error.__traceback__)
    if package is None and isinstance(error, ImportError) and error.name:
        package = error.name.partition(".")[0]  # the package is missing, or an old version lacks a name
    if package in (*REQUIRED, *EXTRAS, *_DISTRIBUTIONS):
        return _reason(package, error)
    return None if error.__cause__ is None else import_failure(error.__cause__)  # transformers raises its own error


def _imported(package: str) -> Any:
    if package in _HUB:
        os.environ.update(_telemetry.hub())
    module = importlib.import_module(package)
    _CHECKS.get(package, lambda: None)()
    return module


def _load_llvm() -> None:
    """Load the shared library of llvmlite, which the import of llvmlite does not load."""
    importlib.import_module("llvmlite.binding").initialize_native_target()


_CHECKS: Final[Mapping[str, Callable[[], None]]] = {"llvmlite": _load_llvm}


def _reason(package: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in (None, package):
        return f"{package} is not installed ({install_command(package)})"
    said = " ".join(f"{type(error).__name__}: {error}".split())
    said = said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"
    again = f"pip install --force-reinstall {package}"
    if package in EXTRAS:
        again += f", or {install_command(package)}"
    return f"{package} cannot be imported ({said}); install it again ({again})"


def _importing(trace: TracebackType | None) -> str | None:
    """Return the outermost package, other than stablessm, that was being imported when an error was raised."""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if trace.tb_frame.f_code.co_name == "<module>" and name not in ("stablessm", "__main__"):
            return name
        trace = trace.tb_next
    return None
