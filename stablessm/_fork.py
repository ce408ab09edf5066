"""Makes forked processes safe: a child must not wait for threads or locks that exist only in its parent.

GNU's OpenMP runtime (libgomp), on which PyTorch runs on Linux, keeps its threads for the next parallel operation and
does not notice a fork: the child inherits a list of threads that it does not have, and its first parallel operation
waits for them forever. From ``import stablessm`` on, the threads of the forking thread are therefore ended before each
fork. Parent and child then start new threads when they need them, for our kernels and for PyTorch's operations alike.

A process that was forked after PyTorch had been loaded and imports stablessm only then may already have such a list.
It is set to one thread, as PyTorch does in DataLoader workers, and our kernels keep out of OpenMP there.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import warnings
from pathlib import Path

compiling = threading.RLock()
"""Held while a backend is imported and while LLVM compiles. A fork waits for it, because a child would inherit the
locks of imports and of LLVM as they are."""

_FORKED = 0x40
"""The flag PF_FORKNOEXEC in /proc/self/stat: the process was forked and has not started another program."""
_SOFT_PAUSE = 1
_LIBRARIES = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}
"""PyTorch's library for CPUs, which loads the OpenMP runtime; on other systems libtorch_cpu.so."""
_sound_in = 0
"""Id of the process whose OpenMP threads can be used; 0 if this process inherited threads that it does not have."""
_ended = True


def openmp() -> ctypes.CDLL | None:
    """Return the OpenMP runtime that PyTorch has loaded; None if PyTorch is not loaded or the runtime is unknown."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch is None:
        return None
    # Symbols are looked up as the linker does for PyTorch. On Linux a preloaded runtime comes before PyTorch's own.
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        return ctypes.CDLL(None)
    for folder in (Path(torch).parent / "lib", Path(sys.prefix) / "lib"):  # in a wheel, or in a conda environment
        path = folder / _LIBRARIES.get(sys.platform, "libtorch_cpu.so")
        if path.exists() and hasattr(library := ctypes.CDLL(str(path)), "GOMP_parallel"):
            return library
    return None


def openmp_is_sound() -> bool:
    """Return True if this process can use OpenMP; False if it was forked and may lack the threads that OpenMP
    expects.
    """
    return _sound_in == os.getpid()


def _survives_fork(runtime: ctypes.CDLL | None) -> bool:
    """Return True for OpenMP runtimes that restart by themselves in a forked child (LLVM's and Intel's)."""
    return runtime is None or hasattr(runtime, "__kmpc_fork_call")


def _before() -> None:
    global _ended
    compiling.acquire()
    runtime = openmp()
    pause = getattr(runtime, "omp_pause_resource_all", None)  # with such threads, this call would hang too
    _ended = _survives_fork(runtime) or (pause is not None and openmp_is_sound() and pause(_SOFT_PAUSE) == 0)


def _after_in_child() -> None:
    global _sound_in
    compiling._at_fork_reinit()  # type: ignore[attr-defined]
    if _ended:
        _sound_in = os.getpid()
    else:
        _use_one_thread()


def _use_one_thread() -> None:
    global _sound_in
    _sound_in = 0
    sys.modules["torch"].set_num_threads(1)


def _inherited() -> bool:
    """Return True if this process has inherited, by a fork, an OpenMP runtime that does not survive a fork."""
    if sys.platform != "linux" or _survives_fork(openmp()):
        return False
    try:
        flags = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[6])
        return bool(flags & _FORKED) and not _loaded_since_fork()
    except OSError:
        return True


def _loaded_since_fork() -> bool:
    """Return True if this forked process loaded the OpenMP runtime itself, at another address than
    its parent process.
    """
    ours, parents = (
        Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        for process in ("self", os.getppid())
    )
    program = next((line for line in ours if line.endswith("[vdso]")), "")  # the address is random in every program
    runtime = next((line for line in ours if "/libgomp" in line), "")
    return bool(runtime) and program in parents and runtime not in parents


if _inherited():
    if sys.modules["torch"].get_num_threads() > 1:
        warnings.warn(
            "stablessm was imported in a process that had been forked after PyTorch was loaded, where parallel "
            "operations of PyTorch can hang; PyTorch was set to one thread here. Import stablessm before forking to "
            "keep all threads.",
            RuntimeWarning,
            stacklevel=3,
        )
    _use_one_thread()
else:
    _sound_in = os.getpid()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=compiling.release, after_in_child=_after_in_child)
