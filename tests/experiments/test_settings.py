from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from stablessm import ArgumentError
from stablessm.cli import app
from stablessm.experiments import catalog
from stablessm.experiments.frame.base import Claim, Experiment, execute
from stablessm.experiments.frame.settings import changed
from stablessm.experiments.stable_ssm.language_study import StudyConfig


@dataclass(frozen=True)
class Inner:
    depth: int = 2


@dataclass(frozen=True)
class Config:
    count: int = 3
    rate: float = 0.5
    name: str = "a"
    on: bool = False
    limit: int | None = None
    kind: Literal["fast", "slow"] = "fast"
    radii: tuple[float, ...] = (1.0,)
    words: tuple[str, ...] = ()
    inner: Inner = Inner()
    pair: tuple[int, int] = (1, 2)


WORDS = st.lists(st.text("abc xyz", min_size=1).map(str.strip).filter(bool)).map(tuple)


@given(
    count=st.integers(),
    rate=st.floats(allow_nan=False),
    on=st.booleans(),
    limit=st.none() | st.integers(),
    radii=st.lists(st.floats(allow_nan=False)).map(tuple),
    words=WORDS,
    depth=st.integers(),
)
def test_values_come_back_from_text(count, rate, on, limit, radii, words, depth):
    expected = Config(count, rate, "b=c", on, limit, "slow", radii, words, Inner(depth))
    texts = {"radii": ",".join(map(repr, radii)), "words": ", ".join(words), "inner.depth": str(depth)}
    texts |= {
        "count": str(count),
        "rate": repr(rate),
        "on": str(on),
        "limit": str(limit),
        "kind": "slow",
        "name": "b=c",
    }
    assert changed(Config(), texts) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("counts", "3", "--set: expected one of the settings count, rate"),
        ("inner.width", "3", "--set: expected one of the settings depth, got 'inner.width'"),
        ("count.x", "3", "--set: expected count without a dot"),
        ("count", "3.5", "--set count: expected a whole number, got '3.5'"),
        ("radii", "1,x", "--set radii: expected a number, got 'x'"),
        ("on", "maybe", "--set on: expected true or false"),
        ("kind", "quick", "--set kind: expected one of fast, slow"),
        ("inner", "3", "a setting that can be written as text, such as inner.depth"),
        ("pair", "1,2", "--set: expected a setting that can be written as text, got pair"),
    ],
)
def test_what_makes_no_sense_is_named(name, text, message):
    with pytest.raises(ArgumentError) as error:
        changed(Config(), {name: text})
    assert message in str(error.value)


def experiment() -> Experiment[Config]:
    return Experiment(
        id="count", title="t", source="s", question="q", claim="c", configs={"smoke": Config(), "paper": Config(9)},
        run=lambda config, run: run.stage("x", lambda: {"x": np.arange(config.count)}),
        minutes={"smoke": 0, "paper": 0}, figures=lambda *_: [],
        claims=lambda config, run: [Claim("n", "3", str(len(run["x"]["x"])), "reproduced", "Counted.")],
    )  # fmt: skip


def test_changed_settings_have_a_folder_of_their_own(tmp_path):
    plain, _ = execute(experiment(), "smoke", tmp_path)
    folder, cached = execute(experiment(), "smoke", tmp_path, changes={"count": "7", "name": "a b"})
    assert not cached
    assert folder.parent == plain.parent
    assert folder.name.startswith("smoke-")
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    assert (record["claims"][0]["ours"], record["config"]["count"], record["size"]) == ("7", 7, folder.name)
    assert record["command"] == "stablessm run count --size smoke --set count=7 --set 'name=a b'"
    assert execute(experiment(), "smoke", tmp_path, changes={"name": "a b", "count": "7"}) == (folder, True)
    assert execute(experiment(), "smoke", tmp_path, changes={"count": "8"})[0] != folder
    assert execute(experiment(), "smoke", tmp_path, changes={"count": "3"}) == (plain, True)  # no change at all


def test_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "get", lambda id: experiment())
    invoke = CliRunner(env={"COLUMNS": "200"}).invoke
    done = invoke(app, ["run", "count", "--set", "count=5"])
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "runs" / "count").iterdir())) == 1
    for bad in ("count", "=5"):
        refused = invoke(app, ["run", "count", "--set", bad])
        assert refused.exit_code == 2
        assert "--set: expected KEY=VALUE" in refused.output


def test_settings_that_depend_on_each_other_come_in_any_order():
    """More steps of warm-up than there were steps, and fewer steps than there was warm-up."""
    for one, other in ((("warmup", 1500), ("steps", 2000)), (("steps", 20), ("warmup", 5))):
        training = changed(StudyConfig(), {f"training.{name}": str(value) for name, value in (one, other)}).training
        assert [getattr(training, name) for name, _ in (one, other)] == [one[1], other[1]]
