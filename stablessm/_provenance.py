"""The origin of a result: versions, the commit of the source, and the machine.

This module requires only the standard library. ``setup.py`` runs it when a wheel or an sdist is built, and writes the
commit into ``_build.json``.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = (
    "torch", "numpy", "scipy", "llvmlite", "triton", "transformers", "tokenizers", "jax", "mambapy", "accelerated-scan",
    "flash-linear-attention", "onnxruntime",
)  # fmt: skip
"""Packages whose versions can change numbers or speed."""
BUILD: Final = "_build.json"
"""Name of the file, in wheels and sdists but not in a checkout, with the commit that was built."""
_GIT_PLACES: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR")


def versions() -> dict[str, str]:
    """Return the installed versions of Python, of stablessm and of the packages in PACKAGES."""
    ours = str(getattr(sys.modules.get("stablessm"), "__version__", ""))
    found = {"python": platform.python_version(), "stablessm": ours}
    for package in PACKAGES:
        module = sys.modules.get(package.replace("-", "_"))  # may be imported, but not installed by a package manager
        if version := _installed(package) or getattr(module, "__version__", None):
            found[package] = str(version)
    return found


@cache
def _installed(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def commit() -> str | None:
    """Return the commit of this package's source code, with a ``+`` if files have changed since; None if unknown.

    The commit is read from the environment variable STABLESSM_COMMIT, from the file that the build wrote into the
    package, or from git, in this order. Git is asked only if its repository tracks this file.
    """
    if "STABLESSM_COMMIT" in os.environ:
        return os.environ["STABLESSM_COMMIT"]
    here = Path(__file__).resolve()
    built = here.with_name(BUILD)
    if built.is_file():
        return json.loads(built.read_text(encoding="utf-8"))["commit"]
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        changes = _git(here.parent, "status", "--porcelain")
        return _git(here.parent, "rev-parse", "HEAD") + ("+" if changes else "")
    except (OSError, subprocess.SubprocessError):
        return None


def hardware() -> dict[str, Any]:
    """Return a description of the machine: architecture, system, CPU, cores, threads of PyTorch (if imported), GPU."""
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None
    return {
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": None if torch is None else torch.get_num_threads(),
        "gpu": gpu,
    }


def cpu_model() -> str:
    """Return the name of the processor, or its architecture if the system does not name the processor."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    if platform.system() == "Darwin":
        with suppress(OSError, subprocess.SubprocessError):
            return _run("sysctl", "-n", "machdep.cpu.brand_string")
    return platform.processor() or platform.machine()


@cache  # the code that runs is the code that was imported, whatever happens to its files
def _git(folder: Path, *arguments: str) -> str:
    return _run("git", "-C", str(folder), *arguments)


def _run(*command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in _GIT_PLACES}
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=True, env=environment
    )
    return done.stdout.strip()
