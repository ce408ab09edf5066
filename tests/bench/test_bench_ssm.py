from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from stablessm.bench import command, contest, ssm
from stablessm.bench.contest import OURS, PHASES, Gate
from stablessm.bench.options import Options

SIZE = (2, 37, 5, 3)


def test_a_tiny_run_writes_a_whole_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = command.run("ssm", Options(sizes=(SIZE,), smoke=True, out=tmp_path))
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["complete"]
    assert {row["contender"] for row in record["rows"]} > {OURS, "states written", "FFT, kernel cached"}
    assert all(row["note"] is None and row["ms"] > 0 for row in record["rows"])
    assert {(row["size"], row["dtype"]) for row in record["rows"]} == {("2x37x5x3", "complex64")}
    printed = capsys.readouterr().out
    assert "2x37x5x3  complex64  (batch x time x channels x complex states)" in printed
    assert "copy gigabytes per second: " in printed


def test_the_truth_is_the_recurrence_written_out() -> None:
    inputs = ssm.draw(SIZE)
    _, decay, B, C, _, _ = inputs
    assert [tuple(part.shape) for part in inputs] == [(2, 37, 5), (5, 3), (5, 3), (5, 3), (5,), (2, 37, 5)]
    assert B.dtype == C.dtype == decay.dtype == torch.complex64
    assert 0.5 <= decay.abs().min() < decay.abs().max() <= 0.999
    assert 0 <= decay.angle().min() < decay.angle().max() <= 0.3
    kept = [0, 4]
    wide = [
        part[..., kept].double() if part.dim() == 3 else part[kept].to(torch.promote_types(part.dtype, torch.float64))
        for part in inputs
    ]
    leaves = [part.requires_grad_() for part in wide[:-1]]
    x, decay, B, C, D = leaves
    h, outputs = torch.zeros(2, 2, 3, dtype=torch.complex128), []
    for x_t in x.unbind(1):
        h = decay * h + B * x_t[..., None]
        outputs.append((C * h).sum(-1).real + D * x_t)
    y = torch.stack(outputs, 1)
    expected = (y, *torch.autograd.grad(y, leaves, wide[-1]))
    for found, part in zip(ssm.truth(*inputs), expected, strict=True):
        np.testing.assert_allclose(found, part.detach().numpy(), rtol=1e-10, atol=1e-10)


def test_every_contender_is_right_and_a_large_one_is_left_out() -> None:
    inputs = ssm.draw(SIZE)
    gate = Gate(ssm.truth(*inputs), ssm.some_channels, 1e-4)
    states = 8 * 5 * 3 * 37
    names = {}
    for most in (states - 1, states, 2 * states - 1, 2 * states):
        made, failed = contest.make(ssm.contenders([inputs], most))
        assert not failed
        names[most] = set(made)
    assert names[states] - names[states - 1] == {"FFT, kernel from all modes"}
    assert names[2 * states] - names[2 * states - 1] == {"states written"}
    for name, contender in made.items():
        for phase in PHASES:
            error, note = gate.check(contender, phase)
            assert note is None, (name, phase, error)


@pytest.mark.parametrize(("steps", "backend"), [(ssm.LOOP_STEPS, "reference"), (ssm.LOOP_STEPS + 1, "cpu")])
def test_a_long_truth_comes_from_the_kernels(monkeypatch: pytest.MonkeyPatch, steps: int, backend: str) -> None:
    class AskedError(Exception):
        pass

    def ssm_scan(*_: object, backend: str) -> None:
        raise AskedError(backend)

    monkeypatch.setattr(ssm, "ssm_scan", ssm_scan)
    inputs = [
        torch.zeros(1, steps, 2),
        *(torch.zeros(2, 1) for _ in range(3)),
        torch.zeros(2),
        torch.zeros(1, steps, 2),
    ]
    with pytest.raises(AskedError, match=backend):
        ssm.truth(*inputs)


@pytest.mark.parametrize(("dtype", "precision"), [("complex64", "highest"), ("tf32", "high")])
def test_tf32_rounds_the_factors_of_products(monkeypatch: pytest.MonkeyPatch, dtype: str, precision: str) -> None:
    seen = []
    monkeypatch.setattr(ssm, "contest", lambda *_: seen.append(torch.get_float32_matmul_precision()) or [])
    assert ssm.one_case((1, 8, 2, 1), dtype, 1e9, Options(smoke=True)) == []
    assert seen == [precision]
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_floor_and_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = ssm._fused
    monkeypatch.setattr(ssm, "_fused", lambda *inputs: 1.01 * fused(*inputs))
    rows = ssm.one_case((2, 8, 5, 1), "complex64", 1e9, Options(smoke=True))
    forward, both = (row for row in rows if row["contender"] == OURS)
    assert forward["floor_ms"] == pytest.approx(2 * 2 * 8 * 5 * 4 / 1e9 * 1e3)
    assert both["floor_ms"] == pytest.approx(5 * 2 * 8 * 5 * 4 / 1e9 * 1e3)
    assert forward["note"] == both["note"] == "wrong"
    assert forward["relative_error"] == pytest.approx(0.01, rel=1e-3)


def test_ratios_are_of_the_same_size_and_phase() -> None:
    def row(size: str, contender: str, ms: float | None, phase: str = "forward") -> dict[str, object]:
        return {"size": size, "contender": contender, "phase": phase, "ms": ms}

    rows = [row("a", OURS, 2.0), row("b", OURS, 5.0), row("c", OURS, None)]
    rows += [row("a", "a peer, fast", 3.0), row("b", "a peer, fast", 2.5), row("c", "a peer, fast", 1.0)]
    rows += [row("a", "a peer, fast", None, "forward+backward"), row("a", OURS, 1.0, "forward+backward")]
    assert ssm.summarize(rows) == {
        "least_forward_ahead_of_a_peer_fast": 0.5,
        "mean_forward_ahead_of_a_peer_fast": pytest.approx(math.sqrt(0.75)),
    }
