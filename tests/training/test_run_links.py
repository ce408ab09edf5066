"""Symbolic links in the folder of a run: links that lead out of the folder are refused by every command."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import damage
import damage_kinds as kinds
import pytest

import stablessm as ssm
from stablessm import ArgumentError, training

pytestmark = pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege on Windows")

COMMANDS: dict[str, Callable[[Path], object]] = {
    "eval": lambda run: damage.command("eval", run, "--device", "cpu"),
    "predict": lambda run: kinds.KINDS["forecast"].readers["predict"](run),
    "status": lambda run: damage.command("status", "--all", "--out", run.parent),
    "measure": lambda run: kinds.KINDS["forecast"].readers["measure"](run),
    "check": lambda run: kinds.KINDS["forecast"].readers["check"](run),
    "export": lambda run: damage.command("export", run, run.parent / "model.onnx"),
    "resume": lambda run: kinds.KINDS["forecast"].readers["extend"](run),
    "init from": lambda run: kinds.KINDS["forecast"].readers["init from"](run),
    "TrainedModel": lambda run: training.TrainedModel(run),
}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> damage.Workshop:
    return damage.Workshop(tmp_path_factory.mktemp("links"), kinds.KINDS)


def linked(workshop: damage.Workshop, part: str, rng: random.Random) -> Path:
    """Return a copy of a run in which a file or folder is a link to the same file or folder of another copy."""
    place = workshop.root / damage.COPY
    shutil.rmtree(place, ignore_errors=True)
    run, other = (shutil.copytree(workshop.whole("forecast"), place / name) for name in ("run", "other"))
    target, link = other / part, run / part
    if rng.random() < 0.3:  # a link to a link
        (place / "between").symlink_to(target)
        target = place / "between"
    shutil.rmtree(link) if link.is_dir() else link.unlink()
    link.symlink_to(os.path.relpath(target, link.parent) if rng.random() < 0.5 else target)
    return run


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("seed", range(3))
def test_links_out_of_a_run_are_refused(workshop: damage.Workshop, name: str, seed: int) -> None:
    rng, whole = random.Random(f"{name}{seed}"), workshop.whole("forecast")
    parts = [path.relative_to(whole).as_posix() for path in whole.rglob("*") if "tensorboard/" not in path.as_posix()]
    part = rng.choice([part for part in parts if not part.endswith(".csv")])
    run = linked(workshop, part, rng)
    before = {path: path.read_bytes() for path in (run.parent / "other").rglob("*") if path.is_file()}
    try:
        said = str(COMMANDS[name](run))
        assert name == "status", (name, part)
    except (ArgumentError, damage.RefusedError) as error:
        said = str(error)
    assert "a symbolic link to" in " ".join(said.split()) or name == "status", (name, part, said)
    assert "damaged" in said or name != "status"
    assert {path: path.read_bytes() for path in before} == before


def test_links_inside_a_run_and_to_a_run_are_followed(workshop: damage.Workshop, tmp_path: Path) -> None:
    run = shutil.copytree(workshop.whole("forecast"), tmp_path / "run")
    scores = damage.command("eval", run, "--json")
    (run / "model").rename(run / "weights")
    (run / "model").symlink_to("weights")
    (tmp_path / "named").symlink_to(run)
    assert damage.command("eval", tmp_path / "named", "--json") == scores
    (tmp_path / "model").symlink_to(run / "weights")
    assert type(ssm.load(tmp_path / "model")) is type(ssm.load(run / "model"))
