"""Without an optional package, or with one that does not load, a command falls back or says in one line what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import missing_packages
import pytest

import stablessm as ssm
from stablessm import _optional, _telemetry, scan

ROOT = Path(__file__).parents[1]
NEEDED = {
    "transformers": ("measure hub", "run transformers", "run bert", "run several", "run jobs"),
    "tokenizers": ("train bpe",),
    "onnx": ("export onnx",),
    "onnxscript": ("export onnx",),
    "ray": ("run ray",),
    "submitit": ("run slurm",),
    "optuna": ("search",),
    "scipy": ("fit",),
}
"""Packages, and commands that end without them."""


def one_line(result: dict, package: str) -> None:
    """It ended with a line that names the package and the command that installs it."""
    assert not result["error"], result
    assert result["code"] in (1, 2), result
    (line,) = [line for line in result["said"].splitlines() if "pip install" in line]
    assert package in line, line
    assert _optional.install_command(package) in line or f"pip install --force-reinstall {package}" in line, line


@pytest.mark.parametrize("how", ["missing", "ImportError", "OSError"])
@pytest.mark.parametrize("package", ["transformers", "tokenizers", "onnx", "ray", "submitit", "optuna"])
def test_commands_name_the_extra(package, how, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    missing_packages.block(package, how, tmp_path)
    ssm.save(ssm.RealSSM(1, 4, 1), tmp_path / "layer")
    (tmp_path / "text.txt").write_text("a cat and a dog\n" * 30, encoding="utf-8")
    try:
        for name in NEEDED[package]:
            if name not in ("run jobs", "run several"):  # which take longer; the slow test has them
                one_line(missing_packages.run(missing_packages.COMMANDS[name].format(out=tmp_path)), package)
    finally:
        sys.modules.pop(package, None)


@pytest.mark.parametrize(("package", "name"), [("llvmlite", "cpu"), ("triton", "triton")])
@pytest.mark.parametrize("how", ["missing", "ImportError", "OSError"])
def test_a_backend_that_does_not_load_is_not_chosen(package, name, how, monkeypatch):
    import torch

    def broken(asked):
        assert asked == package
        raise (
            ModuleNotFoundError(name=asked)
            if how == "missing"
            else {"ImportError": ImportError, "OSError": OSError}[how]("no .so")
        )

    monkeypatch.setattr(_optional, "_imported", broken)
    monkeypatch.setattr(scan.backends, "_reasons", {})
    device = torch.device("cpu" if name == "cpu" else "cuda")
    assert scan.resolve("auto", device) == "reference"
    with pytest.raises(ssm.BackendUnavailableError, match=r"pip install "):
        scan.resolve(name, device)
    assert "pip install" in scan.probe(name).detail


def test_the_console_shows_brackets(capsys):
    from stablessm.cli import tables

    told = "triton is not installed (pip install 'stablessm[gpu]') [red] :smile: [/]"
    tables.show((told,), [(told,)], title=told)
    assert (
        " ".join(capsys.readouterr().out.replace("│", " ").replace("┃", " ").split()).count(
            "stablessm[gpu]') [red] :smile: [/]"
        )
        == 3
    )


def test_an_error_of_another_kind_stays():
    assert _optional.import_failure(ValueError("no")) is None
    assert _optional.import_failure(ImportError("no", name="einops")) is None
    assert "pip install matplotlib" in _optional.import_failure(ModuleNotFoundError("no", name="matplotlib"))
    assert "stablessm[hf]" in _optional.import_failure(ImportError("cannot import name 'x'", name="transformers"))


@pytest.mark.parametrize("how", ["missing", "ImportError", "OSError"])
def test_a_peer_that_does_not_load_is_left_out_of_a_benchmark(how, tmp_path, monkeypatch):
    from stablessm.bench import scan_peers

    monkeypatch.setattr(metadata, "version", lambda name: "1.0")
    monkeypatch.setattr(sys, "path", [*sys.path])
    for package in ("jax", "mambapy"):
        monkeypatch.setitem(sys.modules, package, None)
        missing_packages.block(package, how, tmp_path)
    found = scan_peers.available("cpu")
    for package in ("jax", "mambapy"):
        assert found[package].startswith(f"{package} ")
        assert "pip install 'stablessm[bench]'" in found[package]
    assert found["accelerated-scan"] == found["flash-linear-attention"] == "needs a GPU"


def test_telemetry_is_off_unless_the_user_has_set_it(tmp_path, monkeypatch):
    for name in ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "config.json"
    monkeypatch.setenv("RAY_USAGE_STATS_CONFIG_PATH", str(config))
    assert _telemetry.hub() == {"HF_HUB_DISABLE_TELEMETRY": "1"}
    assert _telemetry.ray() == {"RAY_USAGE_STATS_ENABLED": "0"}
    for content, expected in (("{}", {"RAY_USAGE_STATS_ENABLED": "0"}), ('{"usage_stats": true}', {})):
        config.write_text(content, encoding="utf-8")
        assert _telemetry.ray() == expected
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    assert _telemetry.hub() == _telemetry.ray() == {}


PROCESSES = [
    ("llvmlite", "OSError"), ("llvmlite", "missing"), ("triton", "missing"), ("triton", "ImportError"),
    ("transformers", "OSError"), ("tensorboard", "OSError"), ("matplotlib", "missing"), ("plotly", "OSError"),
    ("rich", "missing"), ("typer", "missing"), ("scipy", "OSError"), ("safetensors", "ImportError"),
    ("filelock", "missing"), ("tqdm", "missing"), ("optuna", "OSError"), ("onnxscript", "missing"),
]  # fmt: skip
FALL_BACK = ("llvmlite", "triton", "tensorboard")
"""Packages without which every command runs that does not ask for them."""

NO_INPUT = ("no such folder", "no record.json in it", "it has no config.json", "with a training.json", "stablessm.save")
"""Said by a command that reads what another one would have written, had its package been there."""


@pytest.mark.slow
@pytest.mark.parametrize(("package", "how"), PROCESSES)
def test_every_command_falls_back_or_names_the_package(package, how, tmp_path):
    names = [name for name in missing_packages.COMMANDS if name not in ("measure hub", "demo", "run slurm", "bench")]
    command = [sys.executable, str(ROOT / "tests" / "missing_packages.py"), package, how, str(tmp_path), *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    for name, result in results.items():
        assert not result["error"], (name, result)
        if package in FALL_BACK:
            assert result["code"] == 0, (name, result)
        elif result["code"] and not any(said in result["said"] for said in NO_INPUT):
            one_line(result, package)
