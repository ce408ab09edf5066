"""The processor for which kernels are compiled: the processor of this machine, or one that the user names.

Kernels are compiled for all instructions of the processor that they run on, unless the environment variable
``STABLESSM_CPU`` names another processor.
"""

from __future__ import annotations

import functools
import os
import platform

from llvmlite import binding as llvm

from stablessm._errors import ArgumentError, quoted

VARIABLE = "STABLESSM_CPU"
HOST = "host"

_V2 = ("cx16", "popcnt", "sahf", "sse3", "ssse3", "sse4.1", "sse4.2")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_NEEDED: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {"x86-64": (), "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4},
    "aarch64": {"generic": ()},
}
"""Names of processors by architecture, and the instructions that code compiled for them requires."""


def cpu_name() -> str:
    """Return LLVM's name of the processor for which kernels are compiled.

    >>> isinstance(cpu_name(), str)
    True
    """
    name = os.environ.get(VARIABLE) or HOST
    if name == HOST:
        return llvm.get_host_cpu_name()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    known = _NEEDED.get(machine, {})
    if name not in known:
        raise ArgumentError(VARIABLE, f"one of {', '.join(map(repr, (HOST, *known)))}", quoted(name))
    features = llvm.get_host_cpu_features()
    missing = [feature for feature in known[name] if not features.get(feature)]
    if missing:
        raise ArgumentError(VARIABLE, "a processor whose code can run here", f"{name!r}, which requires {missing[0]}")
    return name


def target_machine() -> llvm.TargetMachine:
    """Return a new LLVM target machine for the processor of :func:`cpu_name`."""
    initialize()
    name = cpu_name()
    ours = (os.environ.get(VARIABLE) or HOST) == HOST
    features = llvm.get_host_cpu_features().flatten() if ours else ""
    return llvm.Target.from_default_triple().create_target_machine(cpu=name, features=features, opt=3)


@functools.cache
def initialize() -> None:
    """Initialize LLVM's code generator for this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
