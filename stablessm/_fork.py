"""Makes forked processes safe: a child must not wait for threads or locks that exist only in its parent.

GNU's OpenMP runtime (libgomp), on which PyTorch runs on Linux, keeps its threads for the next parallel operation and
does not notice a fork: the child inherits a list of threads that it does not have, and its first parallel operation
waits for them forever. Therefore, once stablessm has been imported, every fork first ends the OpenMP threads of the
thread that forks. Parent and child then start new threads when they need them, for our kernels and for PyTorch's
operations alike.

A process that was forked after PyTorch had been loaded, and imports stablessm only after the fork, may already have
such a list of missing threads. In this process, PyTorch is set to one thread, as in DataLoader workers, and our kernels
do not use OpenMP.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any


class _Loading:
    """A lock that is held while a backend is imported and while LLVM compiles. ``threads`` contains the ids of the
    threads that have held the lock.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.threads: set[int] = set()
        """Ids of the threads that may still be in the operator call in which they loaded something."""

    def __enter__(self) -> None:
        self.lock.acquire()
        self.threads.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self.lock.release()


compiling = _Loading()
"""A fork waits for this lock, because a child would inherit the locks of imports and of LLVM as they are."""

_FORKED = 0x40
"""The flag PF_FORKNOEXEC in /proc/self/stat: the process was forked and has not started another program."""
_SOFT_PAUSE = 1
_LIBRARIES = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}
"""PyTorch's library for CPUs, which loads the OpenMP runtime; on other systems libtorch_cpu.so."""
_PACKAGE = str(Path(__file__).parent / "_")[:-1]
_OPERATORS = tuple(f"{_PACKAGE}{folder}{os.sep}" for folder in ("layers", "llvm", "scan", "streaming"))
_LONGEST = 10.0
"""Number of seconds that a fork waits for other threads at most, in case one of them waits for the forking thread."""
_SETTLES = 0.05
_sound_in = 0
"""Id of the process whose OpenMP threads can be used; 0 if this process inherited threads that it does not have."""
_ended = True
_llvm: Any = None
"""The lock of llvmlite that the forking thread holds."""
_interval = sys.getswitchinterval()
"""The interval, in seconds, after which threads of Python take turns."""


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
    """Return True for None, and for OpenMP runtimes that restart by themselves in a forked child (LLVM's, Intel's)."""
    return runtime is None or hasattr(runtime, "__kmpc_fork_call")


def _callers(frame: FrameType | None) -> Iterator[str]:
    """Yield the source file of a frame, then the source files of the frames that called it."""
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _loads(thread: int, frame: FrameType) -> bool:
    """Return True if a thread, whose current frame is ``frame``, is importing a module for this package, or has not yet
    returned from a call of one of our operators in which the thread imported a backend or compiled code.
    """
    files = list(_callers(frame))
    if thread in compiling.threads and any(file.startswith(_OPERATORS) for file in files):
        return True
    compiling.threads.discard(thread)
    return "<frozen importlib._bootstrap>" in files and any(file.startswith(_PACKAGE) for file in files)


def _wait_for_loads() -> None:
    """Wait until no other thread is importing or compiling for this package (at most ``_LONGEST`` seconds), and acquire
    the lock ``compiling``.
    """
    end = time.monotonic() + _LONGEST
    compiling.lock.acquire()
    compiling.threads.discard(threading.get_ident())
    while time.monotonic() < end:
        others = {thread: frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident()}
        compiling.threads.intersection_update(others)
        if not any(_loads(*other) for other in others.items()):
            break
        del others  # frames keep tensors alive
        compiling.lock.release()
        time.sleep(0.005)
        compiling.lock.acquire()


def _wait_for_operations() -> None:
    """Wait, at most ``_SETTLES`` seconds, until no other thread of Python is in an operation of PyTorch.

    PyTorch looks up an operation at its first call, under a lock of the C++ runtime. A child that is forked during this
    lookup waits for that lock forever. A thread whose operation has ended waits for the GIL. From here on the forking
    thread keeps the GIL: no function that is called here releases it, and the switch interval of Python, after which
    another thread may request it, is set to ``_SETTLES``.
    """
    threads = [thread.native_id for thread in threading.enumerate() if thread.ident != threading.get_ident()]
    if not threads or sys.platform != "linux":
        return
    libc, stat, end = ctypes.PyDLL(None), ctypes.create_string_buffer(256), time.monotonic() + _SETTLES
    sys.setswitchinterval(_SETTLES)

    def runs(thread: int | None) -> bool:
        file = libc["open"](b"/proc/self/task/%d/stat" % (thread or 0), os.O_RDONLY)
        if file < 0:  # the thread has ended
            return False
        count = libc.read(file, stat, len(stat))
        libc.close(file)
        return stat.raw[:count].rpartition(b")")[2][1:2] in (b"R", b"D")  # runs, or waits for a disk

    while any(map(runs, threads)) and time.monotonic() < end:
        libc.usleep(200)


def _llvm_lock() -> Any:
    """Return the lock that llvmlite holds while it compiles or frees machine code; None if llvmlite is not loaded."""
    return getattr(getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None), "_lock", None)


def _before() -> None:
    global _ended, _interval, _llvm
    _wait_for_loads()
    _llvm = _llvm_lock()
    if _llvm is not None:
        _llvm.__enter__()
    runtime = openmp()
    pause = getattr(runtime, "omp_pause_resource_all", None)  # with such threads, this call would hang too
    _ended = _survives_fork(runtime) or (pause is not None and openmp_is_sound() and pause(_SOFT_PAUSE) == 0)
    _interval = sys.getswitchinterval()
    _wait_for_operations()


def _release() -> None:
    sys.setswitchinterval(_interval)
    if _llvm is not None:
        _llvm.__exit__(None, None, None)
    compiling.lock.release()


def _after_in_child() -> None:
    global _sound_in
    _release()
    compiling.threads.clear()
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
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_after_in_child)
