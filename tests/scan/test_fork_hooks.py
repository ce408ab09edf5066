"""What the hooks around a fork decide, for every kind of OpenMP runtime; test_fork.py forks."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stablessm import _fork
from stablessm.llvm import threads

GNU, LLVM = SimpleNamespace(GOMP_parallel=1), SimpleNamespace(GOMP_parallel=1, __kmpc_fork_call=1)


def gnu(pause_result: int, asked: list[int]) -> SimpleNamespace:
    """libgomp with a function that ends its threads."""
    return SimpleNamespace(omp_pause_resource_all=lambda kind: asked.append(kind) or pause_result)


@pytest.fixture
def torch_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(set_num_threads=asked.append, __file__=None))
    return asked


def others_can_load() -> bool:
    """Return True if another thread could load something now."""

    def load() -> bool:
        free = _fork.compiling.lock.acquire(blocking=False)
        if free:
            _fork.compiling.lock.release()
        return free

    with ThreadPoolExecutor(1) as other:
        return other.submit(load).result()


@pytest.mark.parametrize(
    ("runtime", "sound", "ended"),
    [
        (None, True, True), (None, False, True), (LLVM, False, True), (GNU, True, False), (0, True, True),
        (1, True, False), (0, False, False),
    ],
)  # fmt: skip
def test_a_child_keeps_its_threads_where_the_parents_were_ended(runtime, sound, ended, torch_threads, monkeypatch):
    asked: list[int] = []
    used = gnu(runtime, asked) if isinstance(runtime, int) else runtime
    monkeypatch.setattr(_fork, "openmp", lambda: used)
    monkeypatch.setattr(threads, "team", lambda: "team")
    monkeypatch.setattr(_fork, "_ended", not ended)
    monkeypatch.setattr(_fork, "_sound_in", os.getpid() if sound else 0)
    _fork._before()
    assert _fork._ended == ended
    assert not others_can_load()
    assert asked == ([1] if isinstance(runtime, int) and sound else [])  # omp_pause_soft
    _fork._after_in_child()
    assert others_can_load()
    assert _fork.openmp_is_sound() is ended
    assert threads.team_to_join() == ("team" if ended else None)
    assert torch_threads == ([] if ended else [1])


def caller(file: str) -> Any:
    """Return a function that calls a function, as code of this file."""
    names: dict[str, Any] = {}
    exec(compile("def call(function): return function()", file, "exec"), names)
    return names["call"]


def test_a_fork_waits_for_imports_of_this_package_alone() -> None:
    importing, package, other = (caller(file) for file in ("<frozen importlib._bootstrap>", _fork.__file__, __file__))
    assert _fork._loads(0, package(lambda: importing(sys._getframe)))
    assert not _fork._loads(0, other(lambda: importing(sys._getframe)))
    assert not _fork._loads(0, package(sys._getframe))


OPERATOR = """
def call(compiling, loaded, end):
    with compiling:
        loaded.set()
    end.wait()
"""


@pytest.mark.parametrize(("folder", "waits"), [("scan", True), ("streaming", True), ("training", False)])
def test_a_fork_waits_for_the_end_of_an_operator_call_that_loaded_something(folder: str, waits: bool) -> None:
    names: dict[str, Any] = {}
    exec(compile(OPERATOR, str(Path(_fork.__file__).parent / folder / "some.py"), "exec"), names)
    loaded, end, forked = threading.Event(), threading.Event(), threading.Event()

    def fork() -> None:
        _fork._before()
        forked.set()
        _fork._release()

    caller = threading.Thread(target=names["call"], args=(_fork.compiling, loaded, end))
    caller.start()
    loaded.wait()
    forker = threading.Thread(target=fork)
    forker.start()
    assert forked.wait(0.1 if waits else 60) is not waits
    end.set()
    assert forked.wait(60)
    for thread in (caller, forker):
        thread.join()


def files(monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> None:
    def read(path: str) -> str:
        if path not in texts:
            raise FileNotFoundError(path)
        return texts[path]

    monkeypatch.setattr(_fork, "Path", lambda path: SimpleNamespace(read_text=lambda **_: read(path)))


def stat(flags: int) -> str:
    return f"7 (a name) of ) it) S 1 7 7 0 -1 {flags} 100 0 64 64\n"


VDSO, GOMP = "7ffc-7ffd r-xp 0 00:00 0 [vdso]", "7f00-7f01 r-xp 0 08:01 5 /usr/lib/libgomp.so.1"
MAPS = {
    "the parent has it too": ([VDSO, GOMP], [GOMP, VDSO], True),
    "loaded since the fork": ([VDSO, GOMP], [VDSO], False),
    "another program's parent": ([VDSO, GOMP], ["another [vdso]"], True),
    "no runtime in memory": ([VDSO], [VDSO], True),
}


@pytest.mark.parametrize("case", MAPS)
def test_a_forked_process_may_have_inherited_threads(case, monkeypatch):
    ours, parents, inherited = MAPS[case]
    monkeypatch.setattr(_fork, "openmp", lambda: GNU)
    monkeypatch.setattr(_fork, "sys", SimpleNamespace(platform="linux"))
    maps = {"/proc/self/maps": "\n".join(ours), f"/proc/{os.getppid()}/maps": "\n".join(parents)}
    files(monkeypatch, maps | {"/proc/self/stat": stat(0x40 | 0x400000)})
    assert _fork._inherited() is inherited
    files(monkeypatch, maps | {"/proc/self/stat": stat(0x400000 | 0x80)})
    assert _fork._inherited() is False


def test_what_cannot_be_read_is_taken_for_inherited_on_linux_alone(monkeypatch):
    monkeypatch.setattr(_fork, "openmp", lambda: GNU)
    files(monkeypatch, {})
    for platform, inherited in (("linux", True), ("darwin", False)):
        monkeypatch.setattr(_fork, "sys", SimpleNamespace(platform=platform))
        assert _fork._inherited() is inherited
    monkeypatch.setattr(_fork, "sys", SimpleNamespace(platform="linux"))
    for survivor in (LLVM, None):
        monkeypatch.setattr(_fork, "openmp", lambda survivor=survivor: survivor)
        assert _fork._inherited() is False


@pytest.mark.parametrize(
    ("platform", "library"),
    [("linux", "libtorch_cpu.so"), ("darwin", "libtorch_cpu.dylib"), ("win32", "torch_cpu.dll")],
)
def test_the_runtime_is_pytorchs(platform, library, tmp_path, monkeypatch):
    loaded = {None: SimpleNamespace()}
    fake = SimpleNamespace(CDLL=lambda name: loaded.get(name, SimpleNamespace()))
    monkeypatch.setattr(_fork, "ctypes", fake)
    torch = SimpleNamespace(__file__=str(tmp_path / "torch" / "__init__.py"))
    places = [tmp_path / "torch" / "lib" / library, tmp_path / "lib" / library]
    system = SimpleNamespace(platform=platform, prefix=str(tmp_path), modules={"torch": torch})
    monkeypatch.setattr(_fork, "sys", system)
    assert _fork.openmp() is None
    for place in reversed(places):
        place.parent.mkdir(parents=True)
        place.touch()
        assert _fork.openmp() in (None, *loaded.values())
        loaded[str(place)] = SimpleNamespace(GOMP_parallel=1)
        assert _fork.openmp() is loaded[str(place)]
    loaded[None] = SimpleNamespace(GOMP_parallel=1)
    assert _fork.openmp() is loaded[None if platform == "linux" else str(places[0])]
    system.modules.clear()
    assert _fork.openmp() is None
