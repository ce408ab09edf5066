"""Change the package's code in small random ways, one at a time, and count the changes that the tests notice.

./dev mutate                          # 20 changes of seed 0, a table, and runs/mutate.json
./dev mutate --count 200 --seed 7     # resumes when it is run again
./dev mutate --only training,cli      # packages to draw from

A change is a wrong sign, a swapped comparison, a dropped term, a constant that is off, a condition that is ignored or
an argument that does not reach its callee. Each change is made in a copy of the repository, where the default tests
that execute the changed line (or the file, if the line is executed when it is imported) are run until one fails: tests
of the same package first, quick tests before slow ones. A line that a fixture executes gets all tests of the fixture's
file; a line that tests reach only in other processes gets the tests that execute another line of its file, and the test
files that have its name; and every line gets the package's tests of which coverage saw nothing, because they run in
other processes. Which tests execute a line, and how long they take, comes from ``./dev coverage``; tests that failed
there are left out, and so are tests past ``--seconds`` for one change.

The packages take turns; the files directly in ``stablessm/`` are one package, ``base``. No change is drawn twice. Three
kinds of changes are not drawn, because no test could see them: a change that makes Python reject the file, a dropped
``encoding="utf-8"`` (UTF-8 is the default where the tests run), and a dropped ``daemon=True`` or ``zip(strict=True)``
(which matter only when something else is broken).
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import json
import math
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import coverage
from tqdm import tqdm

ROOT = Path(__file__).parent.parent
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """Replace ``old``, which is at ``line`` and ``column`` of ``file``, by ``new``."""

    file: str
    line: int
    column: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Return the file's text with the change."""
        lines = text.splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        assert text[start : start + len(self.old)] == self.old
        return text[:start] + self.new + text[start + len(self.old) :]


def mutations(file: str, text: str) -> Iterator[Mutation]:
    """Yield every small change of this file after which it is still a Python program."""
    lines = text.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, lines))]
    for node in _code(ast.parse(text)):
        first, last = lines[node.lineno - 1], lines[node.end_lineno - 1]
        if not (first + last).isascii():  # columns are counted in bytes
            continue
        old = text[starts[node.lineno - 1] + node.col_offset : starts[node.end_lineno - 1] + node.end_col_offset]
        for new in _variants(node):
            yield Mutation(file, node.lineno, node.col_offset, old, f"({new})" if isinstance(node, ast.expr) else new)


def _code(tree: ast.AST) -> Iterator[Any]:
    """Yield the nodes that are executed, without annotations, docstrings and error messages."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr | ast.Import):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if hasattr(child, "lineno"):
                yield child
            yield from _code(child)


def _variants(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            yield ast.unparse(ast.BinOp(left, SWAPS[type(op)](), right))
            yield ast.unparse(left)
        case ast.Compare(left, [op], [right]) if type(op) in SWAPS:
            yield ast.unparse(ast.Compare(left, [SWAPS[type(op)]()], [right]))
        case ast.BoolOp(op, values):
            yield ast.unparse(ast.BoolOp(SWAPS[type(op)](), values))
            yield ast.unparse(values[0])
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            yield ast.unparse(operand)
        case ast.IfExp(_, body, orelse):
            yield ast.unparse(body)
            yield ast.unparse(orelse)
        case ast.Constant(bool() as value):
            yield repr(not value)
        case ast.Constant(int() | float() as value):
            yield repr(value + 1)
        case ast.Call(function, arguments, keywords) if keywords:
            for dropped in keywords:
                if dropped.arg is not None and not _without_effect(function, dropped):
                    rest = [each for each in keywords if each is not dropped]
                    yield ast.unparse(ast.Call(function, arguments, rest))
        case ast.AugAssign(target, op, value) if type(op) in SWAPS:
            yield ast.unparse(ast.AugAssign(target, SWAPS[type(op)](), value))


def _without_effect(function: ast.expr, dropped: ast.keyword) -> bool:
    """Return True for a dropped argument whose absence no test could detect."""
    match ast.unparse(dropped):
        case "encoding='utf-8'" | "daemon=True":
            return True
        case "strict=True":
            return ast.unparse(function) == "zip"
    return False


def draw(count: int, seed: int, only: list[str]) -> list[Mutation]:
    """Draw changes from the packages in turns; within a package, draw a file by its length and then a change."""
    rng = random.Random(seed)
    packages: dict[str, list[str]] = {}
    for path in sorted((ROOT / "stablessm").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if path.name not in ("__init__.py", "__main__.py"):
            packages.setdefault(package(Path(file)), []).append(file)
    if unknown := set(only) - set(packages):
        raise SystemExit(f"--only: expected packages ({', '.join(packages)}), got {', '.join(unknown)}")
    drawn: dict[Mutation, None] = {}  # a set that keeps its order
    for name in itertools.islice(itertools.cycle(only or packages), count):
        lengths = [(ROOT / file).stat().st_size for file in packages[name]]
        changes: list[Mutation] = []
        while not changes:
            changes = [change for change in _mutations(*rng.choices(packages[name], lengths)) if change not in drawn]
        drawn[rng.choice(changes)] = None
    return list(drawn)


@functools.cache
def _mutations(file: str) -> list[Mutation]:
    return list(mutations(file, (ROOT / file).read_text(encoding="utf-8")))


def package(path: Path) -> str:
    """Return the package of a file (relative to the repository); ``base`` for the files directly in ``stablessm/``."""
    return path.parts[1] if len(path.parts) > 2 else "base"


@dataclass(frozen=True)
class Coverage:
    """The tests that execute each line, and the seconds that each test takes."""

    tests: Mapping[str, Mapping[int, list[str]]]
    seconds: Mapping[str, float]

    @functools.cached_property
    def unseen(self) -> set[str]:
        """Return the tests that execute no line of the package in their own process."""
        return set(self.seconds).difference(*(tests for lines in self.tests.values() for tests in lines.values()))

    @classmethod
    def load(cls, folder: Path) -> Coverage:
        """Read what ``./dev coverage`` wrote."""
        if not (folder / "data").exists():
            raise SystemExit(f"{folder} is empty: run ./dev coverage first")
        data = coverage.CoverageData(str(folder / "data"))
        data.read()
        seconds: dict[str, float] = {}
        for line in (folder / "log").read_text(encoding="utf-8").splitlines():
            if (match := re.match(r"(?:FAILED|ERROR) (.+?)(?: - .*)?$", line)) is not None:  # ids may hold spaces
                seconds[match[1]] = math.inf
            elif (match := re.match(r"([\d.]+)s (?:call|setup|teardown) +(.+)", line)) is not None:
                seconds[match[2]] = seconds.get(match[2], 0.0) + float(match[1])
        files: dict[str, list[str]] = {}
        for test in seconds:
            files.setdefault(test.partition("::")[0], []).append(test)
        tests = {}
        for path in data.measured_files():
            found = {
                line: {_tests(name, files) for name in names} for line, names in data.contexts_by_lineno(path).items()
            }
            tests[path] = {line: sorted(set(itertools.chain(*groups))) for line, groups in found.items()}
        return cls(tests, seconds)

    def of(self, mutation: Mutation, seconds: float) -> list[str]:
        """Return the tests that execute the changed lines, up to a total time; the most relevant tests come first."""
        lines = self.tests.get(mutation.file, {})
        last = mutation.line + mutation.old.count("\n")
        changed = [lines[line] for line in range(mutation.line, last + 1) if line in lines]
        elsewhere = not any(changed)  # on import, or in another process
        found = {test for tests in (lines.values() if elsewhere else changed) for test in tests}
        path = Path(mutation.file)
        stem = path.stem.strip("_")
        found |= {test for test in self.seconds if elsewhere and stem in Path(test.partition("::")[0]).stem}
        near = stem if package(path) == "base" else package(path)
        found |= {test for test in self.unseen if near.removesuffix("s") in test}
        order = sorted(found, key=lambda test: (near not in test, self.seconds.get(test, 0.0), test))
        order = [test for test in order if self.seconds.get(test, 0.0) < math.inf]
        ends = itertools.accumulate(self.seconds.get(test, 0.0) for test in order)
        return [test for test, end in zip(order, ends, strict=True) if end <= seconds]


def _tests(context: str, files: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Return the tests that a coverage context (``TEST|PHASE``, or empty for imports) stands for."""
    test, _, phase = context.rpartition("|")  # the parameters of a test may have one too
    if phase == "setup":
        return tuple(files.get(test.partition("::")[0], [test]))
    return (test,) if test else ()


def noticed(mutation: Mutation, tests: list[str], tree: Path, seconds: float) -> str | None:
    """Return the first test that fails with this change, or None. Tests fail at five times their usual time."""
    path = tree / mutation.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutation.apply(text), encoding="utf-8")
    try:
        return _first_failure(tests, tree, 60 + 5 * seconds) if tests else None
    finally:
        path.write_text(text, encoding="utf-8")


def _first_failure(tests: list[str], tree: Path, limit: float) -> str | None:
    chosen = tree / "chosen-tests.txt"
    chosen.write_text("\n".join(tests), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"@{chosen}"]
    paths = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | {"PYTHONPATH": paths, "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, capture_output=True, text=True, check=False, env=environment, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return "the tests do not end"
    if done.returncode == 0:
        return None
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failures[0] if failures else f"pytest ended with {done.returncode}: {done.stdout[-200:]}{done.stderr[-200:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="number of changes (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument("--only", default="", help="packages, separated by commas (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="number of changes tested at a time (default: 2)")
    parser.add_argument("--seconds", type=float, default=300, help="length of the tests for one change (default: 300)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutate.json")
    options = parser.parse_args()
    drawn = draw(options.count, options.seed, [name for name in options.only.split(",") if name])
    known = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else []
    rows = {json.dumps(row["mutation"]): row for row in known}
    missing = [mutation for mutation in drawn if json.dumps(asdict(mutation)) not in rows]
    covered = Coverage.load(ROOT / "runs" / "coverage")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ThreadPool(options.workers) as pool:
        trees: queue.Queue[Path] = queue.Queue()
        for i in range(options.workers):
            trees.put(_copy(Path(folder) / str(i)))

        def examine(mutation: Mutation) -> dict[str, Any]:
            tree, started, tests = trees.get(), time.perf_counter(), covered.of(mutation, options.seconds)
            test = noticed(mutation, tests, tree, options.seconds)
            trees.put(tree)
            seconds = round(time.perf_counter() - started, 1)
            return {"mutation": asdict(mutation), "tests": len(tests), "test": test, "seconds": seconds}

        for row in tqdm(pool.imap_unordered(examine, missing), desc="changes", total=len(missing)):
            rows[json.dumps(row["mutation"])] = row
            options.out.write_text(json.dumps(list(rows.values()), indent=1), encoding="utf-8")
    sample = [rows[json.dumps(asdict(mutation))] for mutation in drawn]
    for row in sample:
        if row["test"] is None:
            at = row["mutation"]
            print(f"unnoticed by {row['tests']:4} tests  {at['file']}:{at['line']}  {at['old']!r} -> {at['new']!r}")
    print(f"{sum(row['test'] is not None for row in sample)} of {len(sample)} changes noticed; {options.out}")


def _copy(tree: Path) -> Path:
    """Copy the repository without what is built, downloaded or run in it."""
    ignored = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "runs", "site", "build", "__pycache__")
    shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True)
    return tree


if __name__ == "__main__":
    main()
