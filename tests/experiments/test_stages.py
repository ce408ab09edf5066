"""Reading the stages of a run folder, and the one file that a record keeps of them."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from stablessm import ArgumentError, record
from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.stages import PACK, Stages
from stablessm.instruments import MemoryCurve

CURVE = MemoryCurve(np.arange(4.0), np.array([1.0, 0.5, 0.25, 0.125]), unit="s", floor=1e-9)


def whole(folder) -> Run:
    run = Run(folder, {"size": 2}, progress=False)
    run.stage("scores", lambda: {"mean": np.array([1.0, np.nan]), "weights": np.zeros(1000), "name": np.array("é")})
    run.stage("unread", lambda: {"x": np.ones(3)})
    run.keep("curve", MemoryCurve, lambda: CURVE)
    return run


def slim(folder) -> None:
    """Leave what is committed of a run folder."""
    for path in folder.glob("*.npz"):
        if path.name != PACK:
            path.unlink()


def test_the_pack_has_what_was_read_and_nothing_else(tmp_path):
    whole(tmp_path)
    stages = Stages(tmp_path)
    stages["scores"]["mean"]
    assert list({**stages["scores"]}) == ["mean", "weights", "name"]
    some = Stages(tmp_path)
    mean, name = some["scores"]["mean"], some["scores"].get("name")
    assert some["scores"].get("nothing") is None
    some.load("curve", MemoryCurve)
    some.pack()
    slim(tmp_path)
    read = Stages(tmp_path)
    assert read.stages() == ["curve", "scores"]
    assert "scores" in read
    assert "unread" not in read
    assert list(read["scores"]) == ["mean", "name"]
    np.testing.assert_array_equal(read["scores"]["mean"], mean)
    assert read["scores"]["name"].item() == name.item() == "é"
    curve = read.load("curve", MemoryCurve)
    assert (curve.unit, curve.floor, curve.value.tolist()) == ("s", 1e-9, CURVE.value.tolist())


def test_arrays_are_never_lost_by_reading_fewer(tmp_path):
    whole(tmp_path)
    first = Stages(tmp_path)
    first["scores"]["mean"], first["unread"]["x"]
    first.pack()
    content = (tmp_path / PACK).read_bytes()
    slim(tmp_path)
    second = Stages(tmp_path)
    second["scores"]["mean"]
    second.pack()
    assert (tmp_path / PACK).read_bytes() == content


def test_what_is_missing_names_the_command(tmp_path):
    whole(tmp_path / "ia-fig1" / "smoke")
    stages = Stages(tmp_path / "ia-fig1" / "smoke")
    with pytest.raises(ArgumentError, match=r"stage: expected nowhere, which .*: stablessm run ia-fig1 --size smoke"):
        stages["nowhere"]
    with pytest.raises(ArgumentError, match="stage: expected nowhere"):
        stages.load("nowhere", MemoryCurve)
    with pytest.raises(ArgumentError, match=r"stage scores: expected median, which .*: run it, got none"):
        Stages(stages.folder, command="run it")["scores"]["median"]
    with pytest.raises(ArgumentError, match="kind 'stage'"):
        stages["curve"]


def test_a_damaged_pack_is_named(tmp_path):
    whole(tmp_path)
    stages = Stages(tmp_path)
    stages["scores"]["mean"]
    stages.pack()
    slim(tmp_path)
    content = (tmp_path / PACK).read_bytes()
    (tmp_path / PACK).write_bytes(content[:-30])
    with pytest.raises(ArgumentError, match=r"stages\.npz: expected a whole \.npz file, got BadZipFile"):
        Stages(tmp_path).stages()


def test_a_python_without_lzma_writes_and_reads_as_well(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lzma", None)
    record.save_parts(tmp_path / PACK, {"one": ({"kind": "stage"}, {"x": np.arange(3)})})
    assert {entry.compress_type for entry in zipfile.ZipFile(tmp_path / PACK).infolist()} == {zipfile.ZIP_DEFLATED}
    assert Stages(tmp_path)["one"]["x"].tolist() == [0, 1, 2]
