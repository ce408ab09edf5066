"""Random changes of the code are programs that differ from it."""

from __future__ import annotations

import ast
from pathlib import Path

import mutate
import pytest

TEXT = """
def f(a: int = 1 + 1, *, b=True):
    \"\"\"1 + 1\"\"\"
    if a <= 2 and not b:
        raise ValueError(1 + 2)
    a -= 3
    return g(a, key=b) if a is None else -a
"""


def changed(text: str) -> list[str]:
    return [mutation.apply(text) for mutation in mutate.mutations("f.py", text)]


def test_every_kind_of_change() -> None:
    lines = {line.strip() for text in changed(TEXT) for line in text.splitlines()} - {
        line.strip() for line in TEXT.splitlines()
    }
    assert lines == {
        "def f(a: int = (1 - 1), *, b=True):", "def f(a: int = (1), *, b=True):", "def f(a: int = (2) + 1, *, b=True):",
        "def f(a: int = 1 + (2), *, b=True):", "def f(a: int = 1 + 1, *, b=(False)):", "if (a <= 2 or not b):",
        "if (a <= 2):", "if (a < 2) and not b:", "if a <= (3) and not b:", "if a <= 2 and (b):", "a += 3", "a -= (4)",
        "return (g(a, key=b))", "return (-a)", "return (g(a)) if a is None else -a",
        "return g(a, key=b) if (a is not None) else -a", "return g(a, key=b) if a is None else (a)",
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_are_programs(seed: int) -> None:
    drawn = mutate.draw(60, seed, [])
    assert len({Path(mutation.file).parts[1] for mutation in drawn}) > 15
    for mutation in drawn:
        text = (mutate.ROOT / mutation.file).read_text(encoding="utf-8")
        assert mutation.apply(text) != text
        ast.parse(mutation.apply(text))
