"""``stablessm bench stream``: a record of every contender, and no time for a wrong one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from stablessm import ArgumentError
from stablessm.bench import stream
from stablessm.bench.options import Options


def test_a_smoke_run_writes_a_record(tmp_path, capsys):
    threads = torch.get_num_threads()
    stream.run(Options(smoke=True, out=tmp_path))
    assert torch.get_num_threads() == threads
    record = json.loads((tmp_path / "stream-cpu.json").read_text(encoding="utf-8"))
    assert record["complete"]
    assert record["machine"]["threads"] == 1
    assert {row["layer"] for row in record["rows"]} == set(stream.LAYERS)
    for row in record["rows"]:
        if row["note"] is None:
            assert 0 < row["median_us"] <= row["p99_us"] <= row["p99_9_us"] <= row["max_us"]
            assert row["relative_error"] < stream.TOLERANCE
            assert row["steps"] == 400
    ours = [row for row in record["rows"] if row["contender"] == stream.OURS]
    assert len(ours) == len(stream.LAYERS)
    assert all(row["best_peer_over_this"] > 1 for row in ours)
    assert record["summary"]["least_ahead_of_best_peer"] > 1
    assert "µs a step" in capsys.readouterr().out


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
