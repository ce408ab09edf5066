from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest

from stablessm import ArgumentError, record


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
    with pytest.raises(ArgumentError, match="path"):
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
    assert json.loads(path.read_text(encoding="utf-8")) == {"n": 1 if refusals > 10 else 2}
    assert os.listdir(tmp_path) == ["a.json"]
