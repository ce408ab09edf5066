"""``stablessm bench stream``: a record of every contender, and no time for a wrong one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from stablessm import ArgumentError
from stablessm._optional import why_missing
from stablessm.bench import stream
from stablessm.bench.options import Options


def test_a_smoke_run_writes_a_record(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(stream, "LAYERS", {"LRU": stream.LAYERS["LRU"]})  # an export to ONNX takes seconds
    threads = torch.get_num_threads()
    stream.run(Options(smoke=True, out=tmp_path))
    assert torch.get_num_threads() == threads
    record = json.loads((tmp_path / "stream-cpu.json").read_text(encoding="utf-8"))
    assert record["complete"]
    assert record["machine"]["threads"] == 1
    assert {row["layer"] for row in record["rows"]} == set(stream.LAYERS)
    notes = {row["contender"]: row["note"] for row in record["rows"]}
    if why_missing("onnxruntime") is None and why_missing("onnxscript") is None:
        assert notes.pop("onnxruntime") is None
    assert set(notes.values()) - {notes.get("onnxruntime")} <= {None}
    for row in record["rows"]:
        if row["note"] is None:
            assert 0 < row["median_us"] <= row["p99_us"] <= row["p99_9_us"] <= row["max_us"]
            assert row["relative_error"] < stream.TOLERANCE
            assert row["steps"] == 400
    ours = [row for row in record["rows"] if row["contender"] == stream.OURS]
    assert len(ours) == len(stream.LAYERS)
    best = min(row["median_us"] for row in record["rows"] if row["median_us"] and stream.is_peer(row))
    assert ours[0]["best_peer_over_this"] == pytest.approx(best / ours[0]["median_us"])
    assert record["summary"]["clock_us"] > 0
    assert "µs per step" in capsys.readouterr().out


def test_a_wrong_contender_gets_no_time(monkeypatch):
    def wrong(layer, *, compiled):
        return {
            "right": lambda x: stream._eager(layer, layer.step, x),
            "wrong": lambda x: (lambda x_t: np.zeros(8), list(x)),
            "broken": lambda x: 1 / 0,
        }

    monkeypatch.setattr(stream, "contenders", wrong)
    right, zeros, broken = stream.one_case("LRU", 8, 40, compiled=False)
    assert right["median_us"] > 0
    assert (zeros["median_us"], zeros["note"]) == (None, "wrong")
    assert broken["median_us"] is None
    assert broken["note"].startswith("failed: ZeroDivisionError")
    shown = stream.show([{"layer": "LRU", "width": 8} | row for row in (right, zeros, broken)])
    assert "wrong" in shown
    assert shown.startswith("LRU, width 8")


def test_other_options_are_refused(tmp_path):
    for options, argument in (({"sizes": ((8, 8),)}, "sizes"), ({"dtypes": ("float16",)}, "dtype")):
        with pytest.raises(ArgumentError, match=argument):
            stream.run(Options(out=tmp_path, smoke=True, **options))


def test_the_contenders_and_what_they_are_told(monkeypatch):
    layer = stream.LAYERS["LRU"](3).requires_grad_(False)
    told = {}
    monkeypatch.setattr(stream, "Streamer", lambda given, **how: told.setdefault(len(told), (given, how)) and len)
    monkeypatch.setattr("torch.compile", lambda step, **how: told.update(compiled=how) or step)
    x = torch.randn(4, 1, 3)
    found = stream.contenders(layer, compiled=True)
    kinds = {name: type(found[name](x)[1][0]).__name__ for name in found if name != "onnxruntime"}
    assert kinds == {
        "Streamer": "ndarray", "Streamer, tensors": "Tensor", "Streamer, without llvmlite": "ndarray",
        "layer.step": "Tensor", "torch.compile(layer.step)": "Tensor",
    }  # fmt: skip
    assert told == {0: (layer, {}), 1: (layer, {}), 2: (layer, {"backend": "numpy"}), "compiled": {"dynamic": False}}
    assert "onnxruntime" in found
    assert "torch.compile(layer.step)" not in stream.contenders(layer, compiled=False)


def test_the_best_peer_and_the_summary():
    def row(contender, median, ahead=None, tail=9.0):
        return {"contender": contender, "median_us": median, "p99_9_us": tail, "best_peer_over_this": ahead}

    rows = [row("Streamer", 2.0, 4.0), row("Streamer", 3.0, 9.0, 7.5), row("layer.step", 8.0), row("Streamer", None)]
    assert stream.summarize(rows) == {
        "worst_median_us": 3.0, "worst_p99_9_us": 9.0, "least_ahead_of_best_peer": 4.0,
        "geometric_mean_ahead_of_best_peer": pytest.approx(6.0),
    }  # fmt: skip
    assert stream.summarize([row("layer.step", 8.0)]) == {}
    assert [stream.is_peer(each) for each in rows[:3]] == [False, False, True]


def test_steps_take_turns_after_a_warm_up(monkeypatch):
    monkeypatch.setattr(stream, "TURNS", 3)
    seen = []
    inputs = [f"x{k}" for k in range(30)]
    taken = stream.latencies({name: (lambda x, name=name: seen.append((name, x)), inputs) for name in "ab"}, 7)
    assert {name: [len(turn) for turn in turns] for name, turns in taken.items()} == {"a": [2] * 3, "b": [2] * 3}
    one_turn = [*inputs[:20], *inputs[:2]]
    assert seen == [(name, x) for _ in range(3) for name in "ab" for x in one_turn]
    assert stream.statistics([np.array([1000, 3000]), np.array([2000, 9000])]) == {
        "median_us": 2.5, "p99_us": pytest.approx(8.82), "p99_9_us": pytest.approx(8.982), "max_us": 9.0,
    }  # fmt: skip
