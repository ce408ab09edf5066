"""The numbers of every experiment at its smoke size, one row for each array of each stage.

``python tests/smoke_numbers.py [ID ...]`` computes them again, as several processors would, and writes
``smoke_numbers.json``. A row that depends on the processor's rounding, such as the condition number of a singular
matrix, is ``null`` there: it has to exist, with any numbers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from processors import computed_by_each

from stablessm import record
from stablessm.experiments import catalog
from stablessm.experiments.frame.base import execute
from stablessm.experiments.frame.stages import PACK
from stablessm.report.figure import Figure

PATH = Path(__file__).with_suffix(".json")
UNIT = 1e-6
"""Numbers far below count as 0, numbers far above by their logarithm."""

Numbers = dict[str, list[float]]


def numbers(folder: Path) -> Numbers:
    """Return for each array its size, the share of finite numbers, and the means of s(x) and |s(x)|, s = asinh(x/UNIT).

    A factor of 1.05 in all numbers of an array changes the last one by 0.05.
    """
    found = {}
    for path in sorted(folder.glob("*.npz")):
        if path.name == PACK:
            continue
        for name, array in record.load_arrays(path)[1].items():
            if array.dtype.kind in "biufc" and array.size:
                parts = np.concatenate(
                    [array.real.ravel(), array.imag.ravel()] if array.dtype.kind == "c" else [array.ravel()]
                )
                finite = parts[np.isfinite(parts)].astype(float)
                scaled = np.arcsinh(finite / UNIT) if len(finite) else np.zeros(1)
                row = [len(parts), len(finite) / len(parts), scaled.mean(), np.abs(scaled).mean()]
                found[f"{path.stem}/{name}"] = [round(float(value), 3) for value in row]
    return found


def differences(found: Numbers, expected: Mapping[str, list[float] | None], tolerance: float = 1.0) -> list[str]:
    """Return the rows that differ by more than another machine's rounding makes of a short training."""
    told = [f"{name}: only in one of both" for name in sorted(found.keys() ^ expected.keys())]
    for name in sorted(found.keys() & expected.keys()):
        row, allowed = expected[name], tolerance * np.array([0, 0.02, 0.1, 0.05])
        if row is not None and not np.allclose(found[name], row, rtol=0, atol=allowed):
            told.append(f"{name}: {found[name]}, expected {row}")
    return told


def compute(id: str) -> Numbers:
    """Run an experiment and return its numbers."""
    setattr(Figure, "save_pictures", lambda *_: None)  # noqa: B010 - they take most of the time
    with tempfile.TemporaryDirectory() as out:
        return numbers(execute(catalog.get(id), "smoke", Path(out), progress=False)[0])


def pinned(id: str) -> dict[str, list[float] | None]:
    """Return the numbers of an experiment, with None for rows on which the processors do not agree."""
    runs = computed_by_each(__file__, "--compute", id)
    apart = {told.partition(": ")[0] for run in runs[1:] for told in differences(run, runs[0], 0.3)}
    apart |= {name for name in runs[0] if name.endswith("/planes")}  # several inputs may reach a supremum
    return {name: None if name in apart else row for name, row in runs[0].items()}


def main() -> None:
    """Compute and write the numbers."""
    if sys.argv[1:2] == ["--compute"]:
        print(json.dumps(compute(sys.argv[2])))
        return
    known = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    for id in sys.argv[1:] or catalog.IDS:
        known[id] = pinned(id)
        print(id, len(known[id]), [name for name, row in known[id].items() if row is None], flush=True)
        rows = [
            f'"{id}": {{\n' + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in known[id].items()) + "\n}"
            for id in known
        ]
        PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
