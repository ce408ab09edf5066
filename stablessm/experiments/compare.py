"""``python -m stablessm.experiments.compare A B``: check whether two run folders contain the same numbers.

Stages are compared array by array, claims by their verdicts and texts. The exit status is 1 if any numbers differ by
more than ``--rtol`` (default 0: the numbers must have the same bits). For example, compare the runs of one experiment
under two versions of Python.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from stablessm import record
from stablessm._errors import ArgumentError


def differences(a: Path, b: Path, rtol: float = 0.0) -> list[str]:
    """Return one line for each stage, array or claim in which two run folders differ.

    Args:
        a: A run folder, with ``record.json`` and stages as ``.npz`` files.
        b: Another run folder.
        rtol: Arrays count as equal if their difference, relative to the largest magnitude in them, is at most this
            value.
    """
    found = []
    stages = [{path.relative_to(folder).as_posix(): path for path in folder.rglob("*.npz")} for folder in (a, b)]
    for name in sorted({*stages[0], *stages[1]}):
        if name not in stages[0] or name not in stages[1]:
            found.append(f"{name}: only in {a if name in stages[0] else b}")
            continue
        one, two = (record.load_arrays(paths[name])[1] for paths in stages)
        if one.keys() != two.keys():
            found.append(f"{name}: arrays {sorted(one)} and {sorted(two)}")
        for key in sorted(one.keys() & two.keys()):
            if (told := _difference(one[key], two[key], rtol)) is not None:
                found.append(f"{name}: {key}: {told}")
    claims = [_claims(folder / "record.json") for folder in (a, b)]
    if len(claims[0]) != len(claims[1]):
        found.append(f"claims: {len(claims[0])} and {len(claims[1])}")
    for one, two in zip(*claims, strict=False):
        keys = ("statement", "verdict") if rtol else ("statement", "ours", "verdict")
        found += [f"claim {one['statement']!r}: {one[key]} and {two[key]}" for key in keys if one[key] != two[key]]
    return found


def _claims(path: Path) -> list[dict[str, str]]:
    with record.reading(path, "the record of an experiment"):
        claims = record.read_json(path)["claims"]
        return [{key: claim[key] for key in ("statement", "ours", "verdict")} for claim in claims]


def _difference(one: np.ndarray, two: np.ndarray, rtol: float) -> str | None:
    if one.shape != two.shape or one.dtype != two.dtype:
        return f"{one.dtype} {one.shape} and {two.dtype} {two.shape}"
    if not np.issubdtype(one.dtype, np.inexact):
        return None if np.array_equal(one, two) else "different values"
    if np.array_equal(one, two, equal_nan=True):
        return None
    finite = np.isfinite(one) & np.isfinite(two)
    if not np.array_equal(one[~finite], two[~finite], equal_nan=True):
        return "different places that are not finite"
    largest = float(max(np.abs(one[finite]).max(), np.abs(two[finite]).max()))
    off = float(np.abs(one[finite] - two[finite]).max()) / largest
    return None if off <= rtol else f"relative difference {off:.3g}"


def main(arguments: list[str] | None = None) -> None:
    """Print the differences between two run folders; exit with status 1 if there are any."""
    described: Any = (__doc__ or "").split("\n\n", 1)[-1]
    parser = argparse.ArgumentParser(prog="python -m stablessm.experiments.compare", description=described)
    parser.add_argument("a", type=Path, help="run folder")
    parser.add_argument("b", type=Path, help="run folder")
    parser.add_argument("--rtol", type=float, default=0.0, help="relative difference that is allowed (default: 0)")
    given = parser.parse_args(arguments)
    for folder in (given.a, given.b):
        if not (folder / "record.json").is_file():
            parser.error(f"{folder} is no run folder: it has no record.json (expected for example runs/demo/paper)")
    try:
        found = differences(given.a, given.b, given.rtol)
    except (OSError, ArgumentError) as error:
        parser.error(str(error))
    print("\n".join(found) or "the same numbers")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
