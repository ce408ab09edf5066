"""``stablessm check``: exit codes, tables and JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import stablessm as ssm
from stablessm.cli.main import app

MODULE = """
import torch

def right():
    return torch.nn.GRU(3, 4, batch_first=True)

class Wrong(torch.nn.Module):
    d_input = 2

    def forward(self, x, state=None):
        y = x.cumsum(1)
        return y, y[:, -1]
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "check_models.py").write_text(MODULE, encoding="utf-8")
    return lambda *arguments: CliRunner().invoke(app, ["check", *arguments])


def test_a_right_model_exits_with_0_and_a_wrong_one_with_1(run):
    right = run("check_models:right")
    assert (right.exit_code, right.stdout.splitlines()[0]) == (
        0, "check_models:right (factory): the state of GRU is right",
    )  # fmt: skip
    wrong = run("check_models:Wrong", "--case", "chunks", "--case", "batch")
    assert wrong.exit_code == 1
    assert "wrong in 1 of 2 cases: chunks" in wrong.stdout


def test_json_is_the_report_and_keeps_the_exit_code(run):
    result = run("check_models:Wrong", "--case", "chunks", "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert (data["source"], data["model"], data["passed"]) == ("check_models:Wrong", "Wrong", False)
    assert data["cases"][0]["name"] == "chunks"
    assert data["cases"][0]["first"] == 1


def test_a_saved_layer(run, tmp_path):
    ssm.save(ssm.LRU(2, 4, 3), tmp_path / "layer")
    assert run("layer", "--quiet").exit_code == 0


def test_families(run):
    result = run("--family", "mamba", "--family", "mamba2", "--case", "chunks", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)["families"]
    assert {name: report["passed"] for name, report in found.items()} == {"mamba": False, "mamba2": True}


def test_all_families_are_listed_and_one_that_cannot_be_built_is_named(run, monkeypatch):
    from stablessm.instruments import families

    monkeypatch.setattr(families, "names", lambda: ["rwkv", "nonsense"])
    result = run("--families", "--case", "left padding")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("rwkv: left padding (")
    assert lines[1].startswith("nonsense: cannot be checked: family: expected a family of transformers")
    assert lines[2].endswith("1 of 2 families have a case that fails")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "got none of them"),
        (("check_models:right", "--families"), "got MODEL and --families"),
        (("--family", "nonsense"), "expected a family of transformers"),
        (("check_models:right", "--case", "padding"), "left padding"),
        (("nothing/here",), "expected a folder"),
    ],
)
def test_wrong_arguments_exit_with_2(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
