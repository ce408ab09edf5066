from __future__ import annotations

import json
import math
import os
import time

import numpy as np
import pytest

from stablessm import ArgumentError, _lines, record


def test_arrays_come_back_as_they_were(tmp_path):
    path = tmp_path / "deep" / "curve.npz"
    arrays = {"time": np.arange(5) * 0.1, "mode": np.array(3 + 4j)}
    record.save_arrays(path, "curve", {"unit": "s", "floor": float("inf")}, arrays)
    meta, loaded = record.load_arrays(path, "curve")
    assert meta == {"unit": "s", "floor": "inf"}
    assert {name: value.tolist() for name, value in loaded.items()} == {k: v.tolist() for k, v in arrays.items()}
    assert os.listdir(path.parent) == ["curve.npz"]


def test_a_file_of_another_kind_is_refused(tmp_path):
    record.save_arrays(tmp_path / "a.npz", "curve", {}, {})
    with pytest.raises(ArgumentError, match="kind 'error'"):
        record.load_arrays(tmp_path / "a.npz", "error")
    np.savez(tmp_path / "b.npz", x=np.zeros(2))
    with pytest.raises(ArgumentError, match=r"b\.npz: expected .* got ValueError: no kind"):
        record.load_arrays(tmp_path / "b.npz", "curve")
    with pytest.raises(ArgumentError, match="npz"):
        record.save_arrays(tmp_path / "c.txt", "curve", {}, {})


def test_nothing_half_written_is_left_and_what_was_there_stays(tmp_path):
    path = tmp_path / "record.json"
    path.write_text("old", encoding="utf-8")

    def interrupted():
        with record.atomic(path) as temporary:
            temporary.write_text("half", encoding="utf-8")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_record_says_how_to_run_it_again(tmp_path):
    path = record.write_record(tmp_path / "run", started=time.perf_counter(), config={"seed": 0})
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["config"] == {"seed": 0}
    assert content["versions"].keys() >= {"python", "torch", "numpy"}
    assert content.keys() >= {"command", "commit", "hardware", "wall_time_s"}
    assert 0 <= content["wall_time_s"] < 600


@pytest.mark.parametrize("refusals", [3, 100])
def test_a_file_that_is_open_elsewhere_is_replaced_when_windows_allows(tmp_path, monkeypatch, refusals):
    """Windows refuses to rename onto a file that is open; nothing else is lost while it does."""
    path, tries, rename = tmp_path / "a.json", [], os.replace

    def refuse(source, target):
        tries.append(source)
        if len(tries) <= refusals:
            raise PermissionError(13, "open in another process")
        rename(source, target)

    record.write_json(path, {"n": 1})
    monkeypatch.setattr(record, "_WINDOWS", True)
    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    if refusals > 10:
        with pytest.raises(PermissionError):
            record.write_json(path, {"n": 2})
    else:
        record.write_json(path, {"n": 2})
    assert record.read_json(path) == {"n": 1 if refusals > 10 else 2}
    assert os.listdir(tmp_path) == ["a.json"]


def test_parts_come_back_one_by_one_and_nothing_is_pickled(tmp_path):
    path = tmp_path / "pack.npz"
    parts = {"a": ({"kind": "curve", "n": 3}, {"x": np.arange(3.0)}), "b": ({"kind": "stage"}, {"x": np.array("é")})}
    record.save_parts(path, parts)
    assert record.part_names(path) == {"a", "b"}
    assert record.part_names(tmp_path / "nothing.npz") == set()
    meta, arrays = record.load_arrays(path / "a", "curve")
    assert (meta, arrays["x"].tolist()) == ({"n": 3}, [0.0, 1.0, 2.0])
    meta, arrays = record.load_arrays(path / "b")
    assert (meta, arrays["x"].item()) == ({"kind": "stage"}, "é")
    before = path.read_bytes()
    record.save_parts(path, parts)
    assert path.read_bytes() == before
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        record.save_parts(path, {"a": ({}, {"x": np.array([{}], dtype=object)})})
    assert path.read_bytes() == before
    (tmp_path / "torn.npz").write_bytes(before[:40])
    with pytest.raises(ArgumentError, match=r"torn\.npz: expected a whole \.npz file"):
        record.part_names(tmp_path / "torn.npz")


def test_arrays_without_facts(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(2))
    meta, arrays = record.load_arrays(tmp_path / "x.npz")
    assert (meta, arrays["x"].tolist()) == ({}, [0, 1])
    (tmp_path / "torn.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:50])
    with pytest.raises(ArgumentError, match=r"torn\.npz: expected a whole \.npz file of kind 'curve'"):
        record.load_arrays(tmp_path / "torn.npz", "curve")


def test_json_is_plain(tmp_path):
    content = {"a": np.float32(0.5), "b": [math.nan, -math.inf], 3: (True, None, "é"), "p": tmp_path}
    expected = {"a": 0.5, "b": ["nan", "-inf"], "3": [True, None, "é"], "p": str(tmp_path)}
    assert record.plain(content) == expected
    for indent, lines in ((2, 14), (None, 1)):
        record.write_json(tmp_path / "a.json", content, indent=indent)
        text = (tmp_path / "a.json").read_text(encoding="utf-8")
        assert record.read_json(tmp_path / "a.json") == expected
        assert "é" in text
        assert text.endswith("}\n")
        assert len(text.splitlines()) == lines


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_files_have_the_permissions_of_others(tmp_path):
    before = os.umask(0o027)
    try:
        record.write_json(tmp_path / "deep" / "a.json", {})
    finally:
        assert os.umask(before) == 0o027
    assert (tmp_path / "deep" / "a.json").stat().st_mode & 0o777 == 0o640


def test_a_file_is_the_one_that_was_written_unless_nobody_says_which(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    digest = record.digest_of(path)
    record.require_digest(path, digest)
    record.require_digest(path, None)
    path.write_bytes(b"another")
    record.require_digest(path, None)
    with pytest.raises(record.DamagedFileError, match=r"file: expected the file that was written, got other content"):
        record.require_digest(path, digest)
    with pytest.raises(record.DamagedFileError, match=r"file: expected a model"):
        record.require_digest(path, digest, "a model")


def test_a_line_is_on_the_disk_when_it_was_appended(tmp_path):
    path, held = tmp_path / "lines.jsonl", []
    for step in range(3):
        held.append(_lines.append(path, {"step": step, "loss": 0.5}))
        assert path.read_bytes() == b"".join(held)
    assert [row["step"] for row in _lines.read(path, step=int)] == [0, 1, 2]
    with pytest.warns(UserWarning, match="3 damaged lines are left out"):
        assert _lines.read(path, loss=str) == []


def test_what_is_wrong_inside_of_a_file_is_said_with_its_name(tmp_path):
    place = tmp_path / "model.json"
    for error, said in (
        (ArgumentError("d_state", "a number", "x"), "got d_state: expected"),
        (KeyError("a"), "got KeyError"),
    ):
        with (
            pytest.raises(record.DamagedFileError, match=rf"model.json: expected a model, {said}"),
            record.reading(place, "a model"),
        ):
            raise error
