from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stablessm.bench import accuracy, command
from stablessm.bench.options import Options
from stablessm.scan import linear_scan


def test_a_tiny_run_writes_a_whole_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.run("accuracy", Options(smoke=True, out=tmp_path / "here.json"))
    record = json.loads((tmp_path / "here.json").read_text(encoding="utf-8"))
    assert record["complete"]
    assert record["summary"]["same_bits"]
    assert record["summary"]["worst_error_of_states"] < 1e-5
    assert len(record["rows"]) == 12
    assert "100 steps, complex64, decay per channel: gradient of the decay" in capsys.readouterr().out


def test_errors_and_bits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    count = []

    def drifting(a, x, initial=None, *, backend="auto"):
        if backend == "auto":
            count.append(1)
        return linear_scan(a, x, initial, backend=backend) * (1 + 1e-3 * (len(count) if backend == "auto" else 0))

    monkeypatch.setattr(accuracy, "linear_scan", drifting)
    rows = accuracy.one_case(50, "float32", "channel", "cpu")
    assert not any(row["same_bits"] for row in rows)
    assert all(row["relative_error"] > 5e-4 for row in rows)


@pytest.mark.parametrize("decay", accuracy.DECAYS)
def test_the_reference_in_blocks_is_the_reference(decay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "BLOCK", 7)
    torch.manual_seed(0)
    a = torch.rand(1, 30, 8, dtype=torch.float64) if decay == "step" else torch.rand(8, dtype=torch.float64)
    x, g = torch.randn(2, 1, 30, 8, dtype=torch.float64)
    found = accuracy._reference(a, x, g, True)
    leaves = [tensor.requires_grad_() for tensor in (a, x)]
    states = linear_scan(*leaves, backend="reference")
    for ours, exact in zip(found.values(), (states, *torch.autograd.grad(states, leaves, g)), strict=True):
        torch.testing.assert_close(ours, exact)


def test_long_runs_have_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "GRADIENTS_UP_TO", 10)
    assert [row["what"] for row in accuracy.one_case(20, "float32", "step", "cpu")] == ["states"]
