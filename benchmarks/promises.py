"""Count the cases and the failures of every promise in docs/promises.md, in one record.

    python benchmarks/promises.py --workers 2     # writes promises.json, damage.json, fuzz.json, kill-resume-cpu.json
    python benchmarks/promises.py --smoke --out /tmp/smoke.json
    python benchmarks/promises.py --out /tmp/records/promises.json    # all records there: the repository has no changes

A promise is counted by the script that generates its cases, or by its tests, without the slow ones. The record is
written after each promise, and the same command resumes an interrupted count.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypeAlias

import _measure

from stablessm.bench.records import rows_so_far
from stablessm.record import read_json

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class How:
    """How to count."""

    smoke: bool
    """Count few cases only."""
    workers: int
    """Number of processes of a script."""
    folder: Path
    """Folder for temporary files."""
    records: Path
    """Folder of the records."""


Counter: TypeAlias = Callable[[How], tuple[int, int]]
"""Returns the number of cases and the number of failures."""
SCRIPTS: dict[str, tuple[str, list[str], Callable[[dict[str, Any]], tuple[int, int]]]] = {
    "damaged files and failing disks": (
        "damage.py",
        [],
        lambda record: (record["summary"]["members"], len(record["bad"])),
    ),
    "wrong arguments of public callables": (
        "fuzz.py",
        ["--cases", "4"],
        lambda record: (record["summary"]["cases"], len(record["remarkable"])),
    ),
    "killed runs that resume to the same bits": (
        "kill_resume.py",
        ["ia-fig1", "su-fig6"],
        lambda record: (sum(row["kills"] for row in record["rows"]), record["summary"]["different"]),
    ),
}
"""Scripts of this folder, their arguments, and how their records are read: number of cases, number of failures."""

TESTS = {
    "memory of streamers": "tests/streaming/test_memory_safety.py",
    "forked processes": "tests/scan/test_fork.py",
    "code from the current folder": "tests/test_current_folder.py",
    "CSV files as people have them": "tests/tasks/test_csv_file.py",
    "accumulated and divided batches equal one large batch": "tests/training/test_large_batch.py",
    "extended and branched runs": "tests/training/test_extend.py",
    "predictions in the units of the data": "tests/training/test_predict.py",
    "exported sequences": "tests/streaming/test_export_sequence.py",
    "packages that are not installed": "tests/test_missing_packages.py",
}


def run_script(name: str, arguments: list[str], how: How) -> dict[str, Any]:
    """Run a script of this folder and return its record."""
    written = name.replace("_", "-").replace(".py", "-cpu.json" if name == "kill_resume.py" else ".json")
    out = (how.folder if how.smoke else how.records) / written
    options = [*(["--smoke"] if how.smoke else [*arguments, "--workers", str(how.workers)]), "--out", str(out)]
    command = [sys.executable, str(Path(__file__).with_name(name)), *options]
    if (code := subprocess.run(command, check=False).returncode) not in (0, 1):  # 1: it found failures
        raise SystemExit(f"{name} ended with exit code {code}")
    return read_json(out)


def run_tests(path: str, how: How) -> tuple[int, int]:
    """Run the tests of a file and return the number of tests that ran and of failures."""
    out = Path(tempfile.mkdtemp(dir=how.folder)) / "tests.xml"
    command = [sys.executable, "-m", "pytest", path, f"--junitxml={out}"]
    subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    ran = [case for case in xml.etree.ElementTree.parse(out).iter("testcase") if case.find("skipped") is None]
    failed = [case for case in ran if len(case)]  # a test that passed has no element
    for case in failed:
        print(f"{case.get('classname')}: {case.get('name')} failed: {case[0].get('message')}", flush=True)
    return len(ran), len(failed)


def call_operators(how: How) -> tuple[int, int]:
    """Call the raw operators with wrong tensors and return the number of calls and of failures."""
    script, count = "tests/scan/raw_calls.py", 10 if how.smoke else 500
    command = [sys.executable, "-W", "ignore", script, "50000", str(count)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=subprocess.PIPE, text=True)
    ran = re.search(r"^ran (\d+)$", done.stdout, re.MULTILINE)
    failures = len(done.stdout.splitlines()) - 1 if ran else 1  # without the last line, the process crashed
    return int(ran[1]) if ran else 6 * count, failures


def jobs() -> Iterator[tuple[str, str, Counter]]:
    """Yield each promise, the command that counts it alone, and the function that counts it."""
    for promise, (script, arguments, read) in SCRIPTS.items():
        command = " ".join(["python", f"benchmarks/{script}", *arguments])
        yield promise, command, lambda how, of=(script, arguments), read=read: read(run_script(*of, how))
    yield "wrong tensors of raw operators", "python tests/scan/raw_calls.py 50000 500", call_operators
    for promise, path in TESTS.items():
        yield promise, f"python -m pytest {path}", lambda how, path=path: run_tests(path, how)


def count(promise: str, command: str, counter: Counter, how: How) -> dict[str, Any]:
    """Return the row of a promise."""
    cases, failures = counter(how)
    print(f"{promise}: {cases} cases, {failures} failures", flush=True)
    return {"promise": promise, "command": command, "cases": cases, "failures": failures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="few cases of each promise")
    parser.add_argument("--workers", type=int, default=1, help="number of processes (default: 1)")
    parser.add_argument("--out", type=Path, default=_measure.RESULTS / "promises.json")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as scratch, ThreadPool(args.workers) as pool:
        workers = max(args.workers // 3, 1)  # several scripts run at a time
        how = How(args.smoke, workers, Path(scratch), args.out.parent)
        wanted = list(jobs())
        found = {row["promise"]: row for row in rows_so_far(args.out)}
        for row in pool.imap_unordered(lambda job: count(*job, how), [job for job in wanted if job[0] not in found]):
            found[row["promise"]] = row
            rows = [found[promise] for promise, *_ in wanted if promise in found]
            summary = {each: sum(row[each] for row in rows) for each in ("cases", "failures")}
            _measure.write_record(args.out, "cpu", rows, summary, complete=len(rows) == len(wanted))
    print(summary)


if __name__ == "__main__":
    main()
