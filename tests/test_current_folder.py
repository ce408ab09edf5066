"""Nothing in the current folder is imported, unless ``module:NAME`` asks for it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import stablessm
from stablessm import _optional

ROOT = Path(stablessm.__file__).parents[1]
COMMANDS = {
    "help": ["--help"],
    "list": ["list"],
    "env": ["env", "--json"],
    "run": ["run", "ia-fig4"],
    "jobs": ["run", "ia-fig1", "--jobs", "2"],
    "report": ["report", str(ROOT / "results" / "ia-fig4" / "paper"), "--out", "report.html"],
}
QUICK = ("help",)


@cache
def imported() -> set[str]:
    """Every package and standard module that the package imports somewhere, but what Python itself imports first."""
    names = {*_optional.REQUIRED, *_optional.EXTRAS}
    for path in (ROOT / "stablessm").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    early = subprocess.run(
        [sys.executable, "-c", "import runpy, sys; print(*sys.modules)"], capture_output=True, text=True
    )
    return names - set(early.stdout.split()) - {"stablessm"}


def hostile(folder: Path) -> Path:
    """Fill the folder with modules that note their import in a file, whose path is returned."""
    noted = folder / "imported.txt"
    for name in imported():
        code = f"with open({str(noted)!r}, 'a') as file:\n    file.write('{name}\\n')\n"
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    return noted


def run(folder: Path, start: list[str], arguments: list[str]) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*start, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


SCRIPT = ["-P", "-c", "import sys; sys.argv[0] = 'stablessm'; from stablessm.__main__ import main; main()"]
"""What the console script does: the folder that it lies in, not the current one, is on its path."""
STARTS = {"module": ["-m", "stablessm"], "script": SCRIPT}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in COMMANDS]
)
def test_modules_in_the_current_folder_are_not_imported(command, start, tmp_path):
    noted = hostile(tmp_path)
    run(tmp_path, [sys.executable, *STARTS[start]], COMMANDS[command])
    assert not noted.exists(), noted.read_text(encoding="utf-8")


def test_a_named_module_is(tmp_path, monkeypatch):
    from stablessm.cli.model_source import load_model

    (tmp_path / "own_code_of_a_user.py").write_text(
        "import stablessm\ndef build():\n    return stablessm.LRU(1, 2, 1)\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_model("own_code_of_a_user:build")[0].d_input == 1
    assert sys.path[0] == str(tmp_path)


def test_a_record_cannot_name_code(tmp_path, monkeypatch):
    from stablessm import ArgumentError, record
    from stablessm.experiments.judge import judge

    (tmp_path / "code_of_an_attacker.py").write_text("raise SystemExit('it ran')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    facts = {"id": "code_of_an_attacker:EXPERIMENT", "command": "run x --size smoke", "claims": [], "computed": []}
    record.write_json(tmp_path / "record.json", facts)
    (tmp_path / "stages.npz").touch()
    with pytest.raises(ArgumentError, match=r"^id: expected an experiment that stablessm list shows"):
        list(judge(tmp_path))


def test_help_says_that_code_runs():
    from typer.testing import CliRunner

    from stablessm.cli import app

    for command in ("run", "measure", "export"):
        text = " ".join(CliRunner(env={"COLUMNS": "300"}).invoke(app, [command, "--help"]).output.split())
        assert "executes the module" in text
