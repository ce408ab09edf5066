"""What Windows and macOS ask of every module: encodings that are named, and nothing imported that only POSIX has."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("stablessm", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
POSIX = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog", "readline", "curses")


@cache
def texts() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in FILES}


def text_files(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that open, read or write a file as text."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        module = getattr(getattr(call.func, "value", None), "id", "")
        constants = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        modes = [value.value for value in constants if isinstance(value, ast.Constant) and isinstance(value.value, str)]
        binary = any("b" in mode and len(mode) < 4 for mode in modes)
        if name in ("read_text", "write_text") or (
            name == "open" and module not in ("webbrowser", "os", "tarfile") and not binary
        ):
            yield call


def test_text_files_name_their_encoding() -> None:
    nameless = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, text in texts().items()
        if re.search(r"open\(|_text\(", text)  # to parse takes longer than to read
        for call in text_files(ast.parse(text))
        if not any(keyword.arg in ("encoding", None) for keyword in call.keywords)
    ]
    assert not nameless


@pytest.mark.parametrize("call", ["open('a')", "open('a', 'w')", "p.open()", "p.read_text()", "p.write_text('b')"])
def test_a_nameless_encoding_is_seen(call: str) -> None:
    assert list(text_files(ast.parse(call)))


def test_nothing_is_imported_that_only_posix_has() -> None:
    """Anywhere at the top of a module, in ``try`` or ``if`` as well."""

    def imported(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and not child.level:
                yield child.module or ""
            elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from imported(child)

    any_of_them = re.compile(rf"import .*\b({'|'.join(POSIX)})\b|from ({'|'.join(POSIX)})\b")
    for path, text in texts().items():
        if path.is_relative_to(ROOT / "stablessm") and any_of_them.search(text):
            names = {name.partition(".")[0] for name in imported(ast.parse(text))}
            assert not names & set(POSIX), path


WITHOUT = """
import os, signal, sys
import torch, numpy, scipy.special, typer, rich.console, llvmlite.binding, filelock, matplotlib.figure, plotly
import torch.distributed.checkpoint, safetensors.torch, multiprocessing.connection
sys.modules |= dict.fromkeys({posix!r}, None)
for name in ("fork", "register_at_fork", "getuid", "geteuid", "uname", "sched_getaffinity", "nice"):
    delattr(os, name)
for name in ("SIGKILL", "SIGALRM", "SIGUSR1", "SIGHUP", "alarm"):
    delattr(signal, name)
import importlib, pkgutil, stablessm
for module in pkgutil.walk_packages(stablessm.__path__, "stablessm."):
    if not any(part in module.name for part in ("__main__", "triton", "hf_")):
        importlib.import_module(module.name)
assert stablessm.linear_scan(torch.full((64,), 0.5), torch.ones(2, 1000, 64))[0, -1, 0] == 2
"""


@pytest.mark.slow
def test_every_module_is_imported_without_posix() -> None:
    """And the scan runs. Packages of others are imported before: they have their own ways."""
    command = [sys.executable, "-c", WITHOUT.format(posix=POSIX)]
    result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
