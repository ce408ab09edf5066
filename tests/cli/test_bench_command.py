from __future__ import annotations

import json
from pathlib import Path

import fresh_process
import pytest
from typer.testing import CliRunner

from stablessm.bench import command, scan
from stablessm.bench.options import Options
from stablessm.cli import app


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", *arguments])
    return result.exit_code, result.output


def test_help_shows_examples() -> None:
    code, text = run("--help")
    assert code == 0
    assert "stablessm bench scan --device cuda" in text
    assert all(suite in text for suite in command.SUITES)


def test_a_record_is_written(tmp_path: Path) -> None:
    code, text = run("scan", "--size", "smoke", "--shapes", "1x10x2", "--dtype", "float32", "--out", str(tmp_path))
    assert code == 0, text
    record = json.loads((tmp_path / "scan-cpu.json").read_text(encoding="utf-8"))
    assert {row["size"] for row in record["rows"]} == {"1x10x2"}
    assert {row["dtype"] for row in record["rows"]} == {"float32"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sacn"], "SUITE: expected one of scan"),
        (["scan", "--device", "tpu"], "--device: expected one of cpu, cuda, got 'tpu'"),
        (["scan", "--sizes", "8x9"], "--shapes: expected BATCHxTIMExCHANNELS, got 8x9"),
        (["scan", "--sizes", "8xbx9"], "--shapes: expected whole numbers joined by x"),
        (["scan", "--sizes", "0x1x2"], "--shapes: expected"),
        (["scan", "--dtype", "float8"], "--dtype: expected one of float32, complex64, bfloat16, got 'float8'"),
        (["scan", "--seconds", "0"], "--seconds: expected a finite number above 0"),
        (["all", "--dtype", "float32"], "SUITE: expected a single suite"),
        (["all", "--out", "a.json"], "--out: expected a folder"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], message: str) -> None:
    code, text = run(*arguments)
    assert code == 2
    assert message in text


def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, text = run("scan", "--device", "cuda")
    assert code == 2
    assert "PyTorch finds no CUDA device" in text


@pytest.mark.parametrize(("device", "expected"), [("cpu", list(command.SUITES)), ("cuda", ["scan", "ssm", "accuracy"])])
def test_all_is_every_suite_of_the_device(
    device: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    seen = []
    for name, suite in command.SUITES.items():
        monkeypatch.setattr(suite, "run", lambda options, name=name: seen.append(name))
    paths = command.run("all", Options(device=device, smoke=True, out=tmp_path))
    assert seen == expected
    assert [path.name for path in paths] == [f"{name}-{device}.json" for name in expected]


def test_an_interrupted_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scan, "run", interrupted)
    code, text = run("scan", "--smoke", "--out", str(tmp_path))
    assert code == 130
    assert "incomplete" in text


def test_torch_and_numpy_are_enough(tmp_path: Path) -> None:
    blocked = "typer", "rich", "tqdm", "scipy", "matplotlib", "plotly"
    code = f"""
import sys
sys.modules.update(dict.fromkeys({blocked!r}))
from pathlib import Path
from stablessm.bench.command import run
from stablessm.bench.options import Options
run("scan", Options(sizes=((1, 10, 2),), smoke=True, out=Path({str(tmp_path)!r})))
"""
    result = fresh_process.run(code)
    assert result.returncode == 0, result.stderr
    record = json.loads((tmp_path / "scan-cpu.json").read_text(encoding="utf-8"))
    assert record["complete"]
