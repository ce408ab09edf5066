"""The committed records against the suites: the sizes that a suite measures, the floors, the ratios, the summaries."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from stablessm.bench import accuracy, contest, records, scan, ssm, stream
from stablessm.bench.measure import Timing
from stablessm.bench.options import Options
from stablessm.bench.suite import run_cases

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
ITEMSIZE = {"float32": 4, "complex64": 8, "bfloat16": 2, "tf32": 8}


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def axis(name: str, key: str) -> set[Any]:
    return {row[key] for row in read(name)["rows"]}


def joined(sizes: list[tuple[int, ...]]) -> set[str]:
    return {"x".join(map(str, size)) for size in sizes}


def test_the_records_have_the_sizes_of_the_suites() -> None:
    assert axis("scan-cpu", "size") == joined(scan.SIZES["cpu"])
    assert joined(scan.SIZES["cuda"]) == axis("scan-cpu", "size") | axis("scan-cuda", "size")
    assert axis("scan-cpu", "dtype") == set(scan.DTYPES[:2])
    assert axis("scan-cuda", "dtype") == set(scan.DTYPES)
    for device, dtypes in (("cpu", ssm.DTYPES[:1]), ("cuda", ssm.DTYPES)):
        assert axis(f"ssm-{device}", "size") == joined(ssm.SIZES[device])
        assert axis(f"ssm-{device}", "dtype") == set(dtypes)
    for device in ("cpu", "cuda"):
        assert axis(f"accuracy-{device}", "steps") == {size[0] for size in accuracy.STEPS}
        assert axis(f"accuracy-{device}", "dtype") == set(accuracy.DTYPES)
    whole = {row["steps"] for row in read("accuracy-cpu")["rows"] if row["what"] != "states"}
    assert max(whole) == accuracy.GRADIENTS_UP_TO
    assert axis("stream-cpu", "width") == {size[0] for size in stream.WIDTHS}
    assert axis("stream-cpu", "layer") == set(stream.LAYERS)
    assert axis("stream-cpu", "steps") - {0} == {stream.STEPS}


@pytest.mark.parametrize("name", ["scan-cpu", "scan-cuda", "ssm-cpu", "ssm-cuda"])
def test_floors_ratios_and_the_best_peer(name: str) -> None:
    record = read(name)
    bandwidth = record["summary"]["copy_gigabytes_per_second"] * 1e9
    for row in record["rows"]:
        size = list(map(int, row["size"].split("x")))
        if name.startswith("scan"):
            moved = scan.SCALARS[row["phase"]][row["decay"]] * math.prod(size) * ITEMSIZE[row["dtype"]]
            assert row["relative_error"] is None or row["note"] or row["relative_error"] <= scan.TOLERANCE[row["dtype"]]
        else:
            moved = ssm.SCALARS[row["phase"]] * math.prod(size[:3]) * 4
            assert row["relative_error"] is None or row["note"] or row["relative_error"] <= ssm.TOLERANCE
        assert row["floor_ms"] == pytest.approx(moved / bandwidth * 1e3, rel=1e-9, abs=0)
        same = [
            other
            for other in record["rows"]
            if all(other.get(k) == row.get(k) for k in ("size", "dtype", "decay", "phase"))
        ]
        peers = [other["ms"] for other in same if contest.is_peer(other["contender"]) and other["ms"] is not None]
        if row["ms"] is not None:
            timing = Timing(row["ms"], tuple(row["quartiles_ms"]), row["turns"])
            again = contest.timed(timing, row["floor_ms"], min(peers, default=None))
            assert again == {key: pytest.approx(row[key], rel=1e-9, abs=0) for key in again}


@pytest.mark.parametrize(
    ("name", "suite"),
    [("scan-cpu", scan), ("scan-cuda", scan), ("ssm-cpu", ssm), ("ssm-cuda", ssm), ("accuracy-cpu", accuracy),
     ("accuracy-cuda", accuracy), ("stream-cpu", stream)],
)  # fmt: skip
def test_the_summary_follows_from_the_rows(name: str, suite: Any) -> None:
    record = read(name)
    rows = record["rows"]
    if suite is ssm:
        rows = [row for row in rows if row["dtype"] == ssm.DTYPES[0]]
    found = suite.summarize(rows)
    assert found
    measured = {"copy_gigabytes_per_second", "clock_us"}
    own = {key for key in record["summary"] if key not in measured and not key.startswith("matmul_")}
    assert found == {key: pytest.approx(record["summary"][key], rel=1e-9, abs=0) for key in own}


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("/usr/bin/stablessm bench scan --out here.json --seconds 2", "stablessm bench scan --seconds 2"),
        ("stablessm bench scan --out=here.json --smoke", "stablessm bench scan --smoke"),
        ("benchmarks/decay.py --count 3", "python benchmarks/decay.py --count 3"),
        ("/a/stablessm/__main__.py bench ssm", "python -m stablessm bench ssm"),
    ],
)
def test_the_command_is_kept_without_the_output(monkeypatch: pytest.MonkeyPatch, typed: str, kept: str) -> None:
    monkeypatch.setattr("sys.argv", typed.split())
    assert records.command() == kept


def test_a_record_of_another_command_or_commit_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, rows = tmp_path / "a.json", [{"x": 1.5, "unit": "µs"}]
    assert records.rows_so_far(path) == []
    records.write_record(path, "cpu", rows, {"best": 2.5}, complete=False, peers={"jax": "1"})
    assert "µs" in path.read_text(encoding="utf-8")
    written = json.loads(path.read_text(encoding="utf-8"))
    assert (written["rows"], written["summary"], written["peers"]) == (rows, {"best": 2.5}, {"jax": "1"})
    assert records.rows_so_far(path) == rows
    for name, other in (("command", "another"), ("_commit", "0000000")):
        with monkeypatch.context() as patch:
            patch.setattr(records, name, lambda other=other: other)
            assert records.rows_so_far(path) == []
    records.write_record(path, "cpu", rows, {})
    assert records.rows_so_far(path) == [], "complete by default"


def test_a_suite_takes_every_combination_once_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[tuple[int, ...], str]] = []

    def measure(size: tuple[int, ...], dtype: str) -> list[dict[str, Any]]:
        seen.append((size, dtype))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return [{"ms": 1.0}, {"ms": 2.0}]

    def go() -> None:
        options = Options(out=tmp_path)
        axes = {"size": [(1, 2), (3, 4)], "dtype": ["a", "b"]}
        run_cases(
            "own",
            options,
            axes,
            measure,
            lambda rows: f"shown {len(rows)}",
            lambda rows: {"the_count": len(rows)},
            more=7,
        )

    with pytest.raises(KeyboardInterrupt):
        go()
    record = json.loads((tmp_path / "own-cpu.json").read_text(encoding="utf-8"))
    assert (record["complete"], record["more"], record["summary"]) == (False, 7, {"the_count": 4})
    assert record["rows"][0] == {"size": "1x2", "dtype": "a", "ms": 1.0}
    capsys.readouterr()
    go()
    assert seen == [((1, 2), "a"), ((1, 2), "b"), ((3, 4), "a"), ((3, 4), "a"), ((3, 4), "b")]
    record = json.loads((tmp_path / "own-cpu.json").read_text(encoding="utf-8"))
    assert (record["complete"], len(record["rows"])) == (True, 8)
    assert capsys.readouterr().out == "\nshown 2\n\nshown 2\n\nthe count: 8\n"
