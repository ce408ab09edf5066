from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stablessm
from stablessm.cli import app


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_help_shows_examples() -> None:
    text = run("--help")
    assert "stablessm env --check" in text
    assert "stablessm demo" in text
    assert "stablessm demo --open" in run("demo", "--help")
    assert run("--version").startswith(f"{stablessm.__version__} (commit ")


def test_env_runs_every_backend() -> None:
    found = json.loads(run("env", "--check", "--json"))
    assert found["auto"]["cpu"] == "cpu"
    for name in ("reference", "cpu", "triton"):  # the tests run Triton in its interpreter
        assert found["backends"][name]["ran"], found["backends"][name]
        assert "relative error" in found["backends"][name]["detail"]
    assert "scan backends, after a trial run" in run("env", "--check")


def test_env_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    from stablessm.scan.cpu import linear as cpu_linear

    def broken(*_: object) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(cpu_linear, "forward", broken)
    probe = json.loads(run("env", "--check", "--json"))["backends"]["cpu"]
    assert probe == {"ran": False, "detail": "failed: RuntimeError: no such instruction"}


def test_another_text_is_read_with_the_tokenizer_of_the_model() -> None:
    from stablessm.cli.eval import _options_for_another_text
    from stablessm.tasks.text_sources import NAMED

    options = {"vocabulary": "270", "separator": "|", "level": "bpe"}
    for change in ({"text": "mine.txt"}, {"length": "8"}):
        assert _options_for_another_text(Path("run"), options, change) == {
            "separator": "|",
            "level": "bpe",
            "tokenizer": "run",
        }
    for name in NAMED:
        assert _options_for_another_text(Path("run"), options, {"text": name}) == {"level": "bpe", "tokenizer": "run"}
