"""Settings for every test: one thread a worker, Triton's interpreter where there is no GPU, reproducible examples."""

from __future__ import annotations

import ctypes
import gc
import os
import sys

# Of BLAS too, and in the processes that tests start: with as many workers as cores, more threads wait for each other.
# Read when a library is loaded, so before any import.
os.environ["OMP_NUM_THREADS"] = "1"
# Some virtual machines list AMX among the processor's features and trap its instructions (docs/platforms.md).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before any import of ours
    for absent in (torch.cuda, torch.xpu, torch.mtia):  # torch.manual_seed formats the whole stack for each of them
        absent.manual_seed_all = lambda seed: None

from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import triton_interpreter
from hypothesis import is_hypothesis_test
from xdist.scheduler import LoadScopeScheduling

from stablessm._optional import why_missing
from stablessm.report.figure import Figure

pytest_plugins = ["browsers"]

if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):  # keep freed memory: it comes back empty
    for parameter, size in ((-1, 2**30), (-3, 2**25)):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
        ctypes.CDLL(None).mallopt(parameter, size)
gc.disable()  # until all tests are collected: what is imported stays
os.fsync = lambda handle: None  # no test pulls the plug
hypothesis.settings.register_profile("default", deadline=None, print_blob=True, max_examples=25)
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("default"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


SETTINGS = "_hypothesis_internal_use_settings"
"""Where hypothesis keeps the settings of a test."""
NO_TRITON = why_missing("triton")
if os.environ.get("TRITON_INTERPRET") == "1" and NO_TRITON is None:
    triton_interpreter.speed_up()


def pytest_configure(config: pytest.Config) -> None:
    """Without Triton the modules that import it have no examples to run."""
    if NO_TRITON is not None:
        config.option.doctest_ignore_import_errors = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw fewer examples where the slow tests are left out; without Triton, skip the tests of its backend."""
    if "not slow" in config.option.markexpr:
        for function in {item.function for item in items if is_hypothesis_test(getattr(item, "function", None))}:
            _draw_fewer(function)
    for item in items if NO_TRITON is not None else ():
        callspec = getattr(item, "callspec", None)
        of = callspec.params.get("backend") if callspec is not None else None
        if of == "triton" or getattr(item, "originalname", "").startswith("test_triton"):
            item.add_marker(pytest.mark.skip(reason=NO_TRITON))


def pytest_runtest_teardown() -> None:
    """Forget what the test compiled: PyTorch limits how often a function is compiled, for all tests together."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and dynamo.utils.counters.pop("frames", None):
        dynamo.reset()


def pytest_collection_finish() -> None:
    """Leave the modules and tests, a million objects, out of every later search for garbage, and search rarely.

    With Python's thresholds (700, 10, 10) the searches took a tenth of the run.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


def _draw_fewer(function: Any) -> None:
    """Halve the number of examples of a test, but not below four; ``./dev test --slow`` draws all of them."""
    wanted = getattr(function, SETTINGS, hypothesis.settings.default)
    if wanted.max_examples > 4:
        setattr(function, SETTINGS, hypothesis.settings(wanted, max_examples=max(4, wanted.max_examples // 2)))


REAL_PICTURES = Figure.pictures


def _sketches(figure: Figure, *formats: str) -> dict[str, bytes]:
    """Draw a figure without its layout and files, which take longer than what most tests are about."""
    figure.draw()
    return dict.fromkeys(formats, figure.name.encode())


Figure.pictures = _sketches


@pytest.fixture
def real_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """PNG and SVG files with the figures in them."""
    monkeypatch.setattr(Figure, "pictures", REAL_PICTURES)


class FixturesOnce(LoadScopeScheduling):
    """A test goes, with all its parameters, to the worker that is free; a file whose tests share results goes whole."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if _shares_results(file) else nodeid.partition("[")[0]


@cache
def _shares_results(file: str) -> bool:
    text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    return 'scope="module"' in text or "\n@cache\n" in text


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FixturesOnce:
    """Each worker would set up a module's fixtures for itself, and some of them train or start processes."""
    return FixturesOnce(config, log)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
