"""Random changes of the code are programs that differ from it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import mutate

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


def test_random_changes_are_programs() -> None:
    drawn = mutate.draw(60, 0, [])
    assert len(set(drawn)) == len(drawn) == 60
    turns = Counter(mutate.package(Path(mutation.file)) for mutation in drawn)
    assert len(turns) > 15
    assert max(turns.values()) - min(turns.values()) <= 1
    for mutation in drawn:
        text = (mutate.ROOT / mutation.file).read_text(encoding="utf-8")
        assert mutation.apply(text) != text
        ast.parse(mutation.apply(text))


def test_what_no_test_could_see_is_not_changed() -> None:
    text = 'f(p.read_text(encoding="utf-8"), Thread(daemon=True), zip(a, b, strict=True), load(w, strict=True))\n'
    dropped = [mutation.new for mutation in mutate.mutations("f.py", text) if "True" not in mutation.old[:4]]
    assert dropped == ["(load(w))"]


def test_the_tests_of_a_change() -> None:
    covered = mutate.Coverage({"stablessm/a/b.py": {1: [], 3: ["tests/a/test_x.py::t"]}}, dict.fromkeys([
        "tests/a/test_x.py::t", "tests/test_b.py::u", "tests/test_c.py::v"], 1.0))  # fmt: skip
    assert covered.of(mutate.Mutation("stablessm/a/b.py", 3, 0, "1", "2"), 9.0) == ["tests/a/test_x.py::t"]
    assert covered.of(mutate.Mutation("stablessm/a/b.py", 2, 0, "1", "2"), 9.0) == [
        "tests/a/test_x.py::t",
        "tests/test_b.py::u",
    ]
    assert covered.of(mutate.Mutation("stablessm/a/b.py", 2, 0, "1", "2"), 1.5) == ["tests/a/test_x.py::t"]
    assert covered.unseen == {"tests/test_b.py::u", "tests/test_c.py::v"}
    assert mutate._tests("tests/a.py::t|setup", {"tests/a.py": ["tests/a.py::t", "tests/a.py::u"]}) == (
        "tests/a.py::t",
        "tests/a.py::u",
    )
    assert mutate._tests("tests/a.py::t[|x|]|run", {}) == ("tests/a.py::t[|x|]",)
    assert mutate._tests("", {}) == ()
