"""The record of a benchmark: a JSON file that is replaced atomically after every case."""

from __future__ import annotations

import functools
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stablessm.bench import machine
from stablessm.record import environment, read_side, write_json


def command() -> str:
    """Return the command line of this process without the option ``--out``, as recorded with the results."""
    program, arguments = Path(sys.argv[0]), [word for word in sys.argv[1:] if not word.startswith("--out=")]
    if "--out" in arguments:
        at = arguments.index("--out")
        arguments = arguments[:at] + arguments[at + 2 :]
    name = f"python benchmarks/{program.name}" if program.suffix == ".py" else program.stem
    if program.name == "__main__.py":
        name = f"python -m {program.parent.name}"
    return " ".join([name, *arguments])


def write_record(
    path: Path, device: str, rows: list[dict], summary: dict, *, complete: bool = True, **more: Any
) -> None:
    """Write the record of a benchmark; ``complete=False`` marks a run that has not finished."""
    content = {
        "command": command(),
        "complete": complete,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "machine": machine.describe(device),
        **more,
        "summary": summary,
        "rows": rows,
    }
    write_json(path, content, indent=1)


def rows_so_far(path: Path) -> list[dict]:
    """Return the rows that an interrupted run of the same command and commit has measured."""

    def rows(found: dict[str, Any]) -> list[dict]:
        same = found["command"] == command() and found["commit"] == _commit() and not found["complete"]
        return [{**row} for row in found["rows"]] if same else []

    return read_side(path, rows, [], "All cases are measured again")


@functools.cache
def _commit() -> str | None:
    return environment()["commit"]
