"""Change the package's code in small random ways, one at a time, and count the changes that the tests notice.

./dev mutate                          # 20 changes of seed 0, a table, and runs/mutate.json
./dev mutate --count 200 --seed 7     # resumes when it is run again
./dev mutate --only training,cli      # packages to draw from

A change is a wrong sign, a swapped comparison, a dropped term, a constant that is off, a condition that is ignored or
an argument that does not reach its callee. Each is made in a copy of the repository and met by the default tests of
the parts that can notice it: first the tests of the same package, then all the others. ``noticed`` counts changes
after which a test fails; a change that makes Python reject the file is not drawn.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
    """Every small change of this file that leaves it a Python program."""
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
    """What runs: no annotations, no docstrings, no messages of errors."""
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
                if dropped.arg is not None:
                    rest = [each for each in keywords if each is not dropped]
                    yield ast.unparse(ast.Call(function, arguments, rest))
        case ast.AugAssign(target, op, value) if type(op) in SWAPS:
            yield ast.unparse(ast.AugAssign(target, SWAPS[type(op)](), value))


def draw(count: int, seed: int, only: list[str]) -> list[Mutation]:
    """Take turns between the packages; within one, draw a file by its length and then a change."""
    rng = random.Random(seed)
    packages: dict[str, dict[Path, int]] = {}
    for path in sorted((ROOT / "stablessm").rglob("*.py")):
        name = path.relative_to(ROOT / "stablessm").parts[0].removesuffix(".py")
        if path.name not in ("__init__.py", "__main__.py") and (not only or name in only):
            packages.setdefault(name, {})[path] = path.stat().st_size
    drawn: list[Mutation] = []
    for name in itertools.cycle(packages):
        if len(drawn) == count:
            return drawn
        (path,) = rng.choices(list(packages[name]), list(packages[name].values()))
        found = list(mutations(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")))
        drawn += [rng.choice(found)] if found else []
    raise SystemExit(f"--only: expected packages of stablessm, got {', '.join(only)}")


def noticed(mutation: Mutation, tree: Path) -> str | None:
    """The first test that fails with this change, or None."""
    path = tree / mutation.file
    text = path.read_text(encoding="utf-8")
    package = Path(mutation.file).parts[1].removesuffix(".py")
    near = [str(folder) for folder in (tree / "tests" / package, tree / "stablessm" / package) if folder.exists()]
    path.write_text(mutation.apply(text), encoding="utf-8")
    try:
        for tests in filter(None, (near, ["tests", "stablessm"])):
            if (found := _first_failure(tests, tree)) is not None:
                return found
    finally:
        path.write_text(text, encoding="utf-8")
    return None


def _first_failure(tests: list[str], tree: Path) -> str | None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree), "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, capture_output=True, text=True, check=False, env=environment, timeout=1800
        )
    except subprocess.TimeoutExpired:
        return "it does not end"
    if done.returncode == 0:
        return None
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failures[0] if failures else f"pytest ended with {done.returncode}: {done.stderr[-200:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="number of changes (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument("--only", default="", help="packages, separated by commas (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutate.json")
    options = parser.parse_args()
    drawn = draw(options.count, options.seed, [name for name in options.only.split(",") if name])
    known = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else []
    answers = {json.dumps(row["mutation"]): row for row in known}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "runs", "site", "build", "__pycache__")
        shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True)
        for mutation in tqdm(drawn, desc="changes"):
            started, key = time.perf_counter(), json.dumps(asdict(mutation))
            if key not in answers:
                test = noticed(mutation, tree)
                seconds = round(time.perf_counter() - started, 1)
                answers[key] = {"mutation": asdict(mutation), "test": test, "seconds": seconds}
            rows.append(answers[key])
            options.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    for row in rows:
        if row["test"] is None:
            at = row["mutation"]
            print(f"unnoticed  {at['file']}:{at['line']}  {at['old']!r} -> {at['new']!r}")
    print(f"{sum(row['test'] is not None for row in rows)} of {len(rows)} changes noticed; {options.out}")


if __name__ == "__main__":
    main()
