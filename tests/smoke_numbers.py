"""The numbers of every experiment at its smoke size, one row for each array of each stage.

``python tests/smoke_numbers.py [ID ...]`` computes them again and writes ``smoke_numbers.json``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

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


def differences(found: Numbers, expected: Numbers) -> list[str]:
    """Return the rows that differ by more than another machine's rounding makes of a short training."""
    told = [f"{name}: only in one of both" for name in sorted(found.keys() ^ expected.keys())]
    for name in sorted(found.keys() & expected.keys()):
        if not np.allclose(found[name], expected[name], rtol=0, atol=[0, 0.02, 0.1, 0.05]):
            told.append(f"{name}: {found[name]}, expected {expected[name]}")
    return told


def main() -> None:
    """Compute and write the numbers."""
    known = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    setattr(Figure, "save_pictures", lambda *_: None)  # noqa: B010 - they take most of the time
    for id in sys.argv[1:] or catalog.IDS:
        with tempfile.TemporaryDirectory() as out:
            known[id] = numbers(execute(catalog.get(id), "smoke", Path(out), progress=False)[0])
        print(id, len(known[id]), flush=True)
        rows = [
            f'"{id}": {{\n' + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in known[id].items()) + "\n}"
            for id in known
        ]
        PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
