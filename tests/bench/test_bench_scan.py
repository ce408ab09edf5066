from __future__ import annotations

import dataclasses
import json
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from stablessm.bench import command, contest, measure, scan, scan_peers
from stablessm.bench.contest import OURS, PHASES, Gate
from stablessm.bench.options import Options
from stablessm.scan import linear_scan

TINY = Options(sizes=((2, 20, 3),), smoke=True)
NO_PEERS = dict.fromkeys(scan_peers.PEERS, "not installed")


def measured(monkeypatch: pytest.MonkeyPatch, run, dtype: str = "float32", decay: str = "step") -> dict[str, dict]:
    """Rows of one tiny case in which ``run`` plays our part, by phase."""
    monkeypatch.setattr(scan_peers, "linear_scan", run)
    rows = scan.one_case((2, 20, 3), dtype, decay, NO_PEERS, 1e9, TINY)
    return {row["phase"]: row for row in rows if row["contender"] == OURS}


def jax_by_torch() -> dict[str, types.ModuleType]:
    """What the peers use of JAX, computed by PyTorch: JAX's cotangents are conjugate to PyTorch's gradients."""
    jax, jnp = types.ModuleType("jax"), types.ModuleType("jax.numpy")
    jnp.swapaxes, jnp.zeros_like, jnp.conj = torch.swapaxes, torch.zeros_like, torch.conj
    jnp.broadcast_to = torch.broadcast_to

    def scan_steps(step, carry, sequence):
        taken = []
        for at in range(len(sequence[0] if isinstance(sequence, tuple) else sequence)):
            here = tuple(part[at] for part in sequence) if isinstance(sequence, tuple) else sequence[at]
            carry, out = step(carry, here)
            taken.append(out)
        return carry, torch.stack(taken)

    def associative_scan(join, elements, axis):
        steps = list(zip(*(part.unbind(axis) for part in elements), strict=True))
        found = [steps[0]]
        for each in steps[1:]:
            found.append(join(found[-1], each))
        return tuple(torch.stack(parts, axis) for parts in zip(*found, strict=True))

    def vjp(run, *inputs):
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        result = run(*leaves)
        grad = lambda g: [each.conj() for each in torch.autograd.grad(result, leaves, g.conj())]  # noqa: E731
        return result.detach(), grad

    jax.numpy, jax.vjp, jax.jit = jnp, vjp, lambda function: function
    jax.lax = types.SimpleNamespace(scan=scan_steps, associative_scan=associative_scan)
    jax.devices = lambda kind: [kind]
    jax.device_put = lambda array, device: torch.from_numpy(array)
    return {"jax": jax, "jax.numpy": jnp}


def test_a_tiny_run_writes_a_whole_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = command.run("scan", Options(sizes=((2, 20, 3),), smoke=True, out=tmp_path))
    record = json.loads(path.read_text(encoding="utf-8"))
    assert path == tmp_path / "scan-cpu.json"
    assert record["complete"]
    assert record["summary"]["copy_gigabytes_per_second"] > 0
    assert record["summary"]["matmul_float32_teraflops"] > 0
    assert set(record["peers"]) == set(scan_peers.PEERS)
    assert {(row["dtype"], row["decay"]) for row in record["rows"]} == {
        (dtype, decay) for dtype in ("float32", "complex64") for decay in scan.DECAYS
    }
    for row in record["rows"]:
        if row["note"] is None:
            assert row["quartiles_ms"][0] <= row["ms"] <= row["quartiles_ms"][1]
            assert row["times_floor"] == pytest.approx(row["ms"] / row["floor_ms"])
            assert row["relative_error"] < scan.TOLERANCE[row["dtype"]]
    printed = capsys.readouterr().out
    assert "× floor" in printed
    assert f"written: {path}" in printed


@pytest.mark.parametrize("decay", scan.DECAYS)
@pytest.mark.parametrize("dtype", scan.DTYPES)
def test_ours_is_right_in_every_dtype(monkeypatch: pytest.MonkeyPatch, dtype: str, decay: str) -> None:
    for row in measured(monkeypatch, linear_scan, dtype, decay).values():
        assert row["note"] is None
        assert row["ms"] > 0
        moved = {"forward": (3, 2), "forward+backward": (8, 5)}[row["phase"]][decay == "channel"]
        item = {"float32": 4, "complex64": 8, "bfloat16": 2}[dtype]
        assert row["floor_ms"] == pytest.approx(moved * 2 * 20 * 3 * item / 1e9 * 1e3)


@pytest.mark.parametrize("decay", scan.DECAYS)
@pytest.mark.parametrize("dtype", scan.DTYPES)
def test_the_truth_is_what_autograd_finds(dtype: str, decay: str) -> None:
    a, x, g = scan.draw((2, 20, 3), dtype, decay)
    wide = torch.complex128 if a.is_complex() else torch.float64
    leaves = [tensor.to(wide).requires_grad_() for tensor in (a, x)]
    states = linear_scan(*leaves, backend="reference")
    expected = (states, *torch.autograd.grad(states, leaves, g.to(wide)))
    for found, part in zip(scan.truth(a, x, g), expected, strict=True):
        np.testing.assert_allclose(found, part.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a, x: linear_scan(a, x) * 1.01,
        lambda a, x: linear_scan(a, x) * torch.nan,
        lambda a, x: linear_scan(a, x)[:, :1],
    ],
    ids=["scaled", "nan", "shape"],
)
def test_a_wrong_result_gets_no_time(monkeypatch: pytest.MonkeyPatch, wrong) -> None:
    monkeypatch.setattr(scan_peers, "linear_scan", wrong)
    rows = scan.one_case((2, 20, 3), "float32", "channel", NO_PEERS, 1e9, TINY)
    ours = [row for row in rows if row["contender"] == OURS]
    forward = ours[0]
    assert forward["ms"] is forward["times_floor"] is forward["best_peer_over_this"] is None
    assert forward["note"] == "wrong"
    assert "wrong" in contest.show("a case", rows)


def test_wrong_gradients_alone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured(monkeypatch, lambda a, x: linear_scan(a.detach() + 0 * a, x))
    assert rows["forward"]["ms"] > 0
    assert rows["forward+backward"]["note"] == "wrong"


def test_a_contender_that_raises_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(a, x):
        raise RuntimeError("no such instruction")

    rows = measured(monkeypatch, broken)
    assert rows["forward"]["note"] == "failed: RuntimeError: no such instruction"
    assert rows["forward"]["ms"] is None


def test_a_contender_that_cannot_be_made_is_named() -> None:
    def broken():
        raise ImportError("a library is missing")

    assert contest.make({"peer": broken}) == ({}, {"peer": "failed: ImportError: a library is missing"})


def test_a_killed_run_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_case, seen = scan.one_case, []

    def killed_at_the_second(**arguments):
        seen.append(arguments)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return one_case(**arguments)

    monkeypatch.setattr(scan, "one_case", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        command.run("scan", Options(sizes=((2, 20, 3),), smoke=True, out=tmp_path))
    record = json.loads((tmp_path / "scan-cpu.json").read_text(encoding="utf-8"))
    assert not record["complete"]
    assert record["rows"]


def test_missing_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "mambapy":
            raise scan_peers.metadata.PackageNotFoundError(name)
        return "9.9"

    monkeypatch.setattr(scan_peers.metadata, "version", version)
    monkeypatch.setattr(scan_peers, "_jax_device", lambda device: None)
    monkeypatch.setattr(scan_peers, "why_missing", lambda module: None)
    assert scan_peers.available("cpu") == {
        "jax": "sees no cpu device",
        "mambapy": "not installed",
        "accelerated-scan": "needs a GPU",
        "flash-linear-attention": "needs a GPU",
    }


@pytest.mark.parametrize("dtype", scan.DTYPES[:2])
@pytest.mark.parametrize("decay", scan.DECAYS)
@pytest.mark.parametrize("jax", ["real", "like"])
def test_peers_that_are_here_are_right(monkeypatch: pytest.MonkeyPatch, jax: str, decay: str, dtype: str) -> None:
    if jax == "real":
        pytest.importorskip("jax")
        peers = scan_peers.available("cpu")
    else:
        for name, module in jax_by_torch().items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(sys.modules, "mambapy", types.ModuleType("mambapy"))
        pscan = types.ModuleType("mambapy.pscan")
        pscan.pscan = lambda a, x: linear_scan(a[..., 0], x[..., 0])[..., None]
        monkeypatch.setitem(sys.modules, "mambapy.pscan", pscan)
        peers = NO_PEERS | {"jax": "0.0", "mambapy": "0.0"}
    inputs = scan.draw((2, 33, 5), dtype, decay)
    gate = Gate(scan.truth(*inputs), scan.some_channels, 1e-4)
    made, failed = contest.make(scan_peers.contenders([inputs], peers))
    assert not failed
    assert {"jax lax.scan", "jax associative_scan", "torch loop"} <= set(made)
    assert ("torch FFT convolution" in made) == (decay == "channel")
    for name, contender in made.items():
        for phase in PHASES:
            error, note = gate.check(contender, phase)
            assert note is None, (name, phase, error)


def test_a_gradient_of_the_logarithm_is_brought_to_that_of_the_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-linear-attention runs on a GPU only: its place is taken by our scan with its interface."""
    module = types.ModuleType("fla.ops.hgrn")
    module.chunk_hgrn = lambda x, g: (linear_scan(g.exp(), x), None)
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "fla.ops.hgrn", module)
    for decay in scan.DECAYS:
        inputs = scan.draw((2, 33, 5), "float32", decay)
        makers = scan_peers.contenders([inputs], NO_PEERS | {"flash-linear-attention": "1.0"})
        contender = makers["flash-linear-attention"]()
        gate = Gate(scan.truth(*inputs), scan.some_channels, 1e-4)
        assert [gate.check(contender, phase)[1] for phase in PHASES] == [None, None]


@pytest.mark.parametrize(
    ("steps", "dtype", "runs_backward"),
    [(20, "float32", False), (2047, "bfloat16", False), (2048, "float32", True), (20, "complex64", True)],
)
def test_a_backward_that_reads_past_its_arrays_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, steps: int, dtype: str, runs_backward: bool
) -> None:
    """accelerated-scan runs on a GPU only: its place is taken by our scan in its layout."""
    package = types.ModuleType("accelerated_scan")
    package.scalar = package.complex = types.SimpleNamespace(scan=lambda a, x: linear_scan(a.mT, x.mT).mT)
    monkeypatch.setitem(sys.modules, "accelerated_scan", package)
    peers = NO_PEERS | {"accelerated-scan": "0.3.1"}
    rows = scan.one_case((1, steps, 2), dtype, "channel", peers, 1e9, TINY)
    forward, both = (row for row in rows if row["contender"] == "accelerated-scan")
    assert (forward["phase"], both["phase"]) == PHASES
    assert forward["ms"] > 0
    assert forward["note"] is None
    assert (both["ms"] is not None) == runs_backward
    printed = contest.show("a case", rows)
    assert (f"no multiple of {scan_peers._ACCELERATED_BLOCK}" in printed) == (not runs_backward)
    if not runs_backward:
        assert both["note"].startswith("left out: ")
        assert "clock" not in both


def test_on_a_gpu_calls_are_also_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks, which need a GPU, are replaced: what is left is who is timed by which, and compared with whom."""
    for name, milliseconds in (("event_clock", 4.0), ("queued_clock", 2.0)):

        def clock(call, repeat, milliseconds=milliseconds):
            call()
            return milliseconds * repeat

        monkeypatch.setattr(contest, name, clock)
    made, _ = contest.make(scan_peers.contenders([scan.draw((1, 8, 2), "float32", "step")], NO_PEERS))
    ours = dataclasses.replace(made[OURS], clock=contest.event_clock)
    peer = dataclasses.replace(made["torch loop"], clock=lambda call, repeat: 3.0 * repeat)
    taken, queued = contest.measure({OURS: ours, "peer": peer}, "forward", Options(smoke=True))
    assert {name: timing.median for name, timing in taken.items()} == {OURS: 4.0, "peer": 3.0}
    assert {name: timing.median for name, timing in queued.items()} == {OURS: 2.0}
    monkeypatch.setattr(contest, "peak_memory", lambda call: 0)
    gate = Gate(scan.truth(*scan.draw((1, 8, 2), "float32", "step")), scan.some_channels, 1e-3)
    makers = {OURS: lambda: ours, "peer": lambda: peer}
    rows = contest.contest(makers, gate, {"forward": 0.5}, Options(smoke=True))
    assert rows[0]["best_peer_over_this"] == 0.75
    assert rows[0]["queued_best_peer_over_this"] == 1.5
    assert "queued 2.00 (2.00–2.00) 4.00 1.50" in " ".join(contest.show("a case", rows).split())


def test_a_graph_computes_what_calls_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA graphs need a GPU: here the function is called, with the arguments that a graph would copy."""
    made = []

    def replayed(function, arguments, state):
        made.append((len(list(arguments)), tuple(state)))
        return function

    monkeypatch.setattr(contest, "Replayed", replayed)
    inputs = scan.draw((2, 9, 3), "complex64", "channel")
    contender = contest.graph_contender(linear_scan, [inputs])
    gate = Gate(scan.truth(*inputs), scan.some_channels, 1e-5)
    assert contender.clock is measure.event_clock
    assert made == [(3, ()), (3, ())]
    for phase in PHASES:
        error, note = gate.check(contender, phase)
        assert (note, error < 1e-5) == (None, True)
        assert len(contender.calls[phase][0]()) == (1 if phase == "forward" else 3)


def test_who_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """By device, dtype and decay; a GPU is pretended, nothing is made."""
    everything = dict.fromkeys(scan_peers.PEERS, "1.0")

    class OnGpu:
        is_cuda = True

        def __init__(self, tensor: torch.Tensor) -> None:
            self.dtype, self.dim, self.is_complex = tensor.dtype, tensor.dim, tensor.is_complex

    def names(dtype: str, decay: str, peers=everything, on=lambda tensor: tensor) -> list[str]:
        return list(scan_peers.contenders([tuple(map(on, scan.draw((1, 4, 2), dtype, decay)))], peers))

    both = ["jax associative_scan", "mambapy pscan", "accelerated-scan"]
    fla, fft = "flash-linear-attention", "torch FFT convolution"
    assert names("float32", "step") == [OURS, "torch loop", "jax lax.scan", *both, fla]
    assert names("float32", "channel") == [OURS, "torch loop", "jax lax.scan", *both, fla, fft]
    assert names("complex64", "channel") == [OURS, "torch loop", "jax lax.scan", *both, fft]
    assert names("bfloat16", "channel", on=OnGpu) == [OURS, contest.GRAPH, *both, fla]
    assert names("float32", "step", NO_PEERS) == [OURS, "torch loop"]
    assert [contest.is_peer(name) for name in (OURS, contest.GRAPH, "torch loop")] == [False, False, True]


def test_peers_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_peers.metadata, "version", lambda name: "2.5")
    monkeypatch.setattr(scan_peers, "_jax_device", lambda device: object())
    monkeypatch.setattr(scan_peers, "why_missing", lambda module: None)
    assert scan_peers.available("cuda") == dict.fromkeys(scan_peers.PEERS, "2.5")
    assert scan_peers.available("cpu") == dict(
        zip(scan_peers.PEERS, ["2.5", "2.5", "needs a GPU", "needs a GPU"], strict=True)
    )


def test_decays_keep_away_from_one() -> None:
    for dtype, most in (("float32", 0.999), ("complex64", 0.999), ("bfloat16", 0.992)):
        for decay, shape in (("step", (4, 500, 3)), ("channel", (3,))):
            a, x, g = scan.draw((4, 500, 3), dtype, decay)
            assert (a.shape, x.shape, g.shape) == (shape, (4, 500, 3), (4, 500, 3))
            assert a.dtype == x.dtype == g.dtype == getattr(torch, dtype)
            size = a.abs().double()
            assert 0.499 <= float(size.min()) <= float(size.max()) <= most
            if decay == "step":
                assert float(size.max()) > most - 0.01
                assert not torch.equal(x, g)


def test_a_queue_that_is_too_short_is_made_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU here: the events and the pause are counted."""
    pauses = []

    class Event:
        def __init__(self, enable_timing: bool) -> None: ...
        def record(self) -> None: ...
        def synchronize(self) -> None: ...
        def elapsed_time(self, end: object) -> float:
            return 7.0

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr(measure, "_pause", pauses.append)
    assert measure.queued_clock(lambda: time.sleep(0.003), 2) == 7.0
    assert pauses[0] == measure._PAUSE
    assert len(pauses) == 2
    assert pauses[1] >= 12.0


def test_channels_are_compared_from_the_first_to_the_last() -> None:
    states, decay = scan.some_channels([torch.arange(100.0).expand(2, 3, 100), torch.arange(4.0)])
    channels = states[0, 0]
    assert len(channels) == scan.CHECKED
    assert channels[0] == 0
    assert channels[-1] == 99
    assert np.array_equal(decay, [0, 1, 2, 3])
    for kind, wide in ((np.float32, np.float64), (np.complex64, np.complex128)):
        (chosen,) = scan.some_channels([np.arange(100, dtype=kind)])
        assert chosen.dtype == wide
        assert chosen[-1] == 99


def test_the_gain_of_bfloat16_is_that_of_the_largest_size() -> None:
    def row(size: str, dtype: str, ms: float) -> dict:
        return {
            "size": size, "dtype": dtype, "decay": "step", "phase": "forward", "contender": OURS, "ms": ms,
            "times_floor": 1.0, "best_peer_over_this": None,
        }  # fmt: skip

    rows = [row("1x2x3", "float32", 1.0), row("1x2x3", "bfloat16", 1.0)]
    rows += [row("8x20x20", "float32", 2.0), row("8x20x20", "bfloat16", 1.0)]
    assert scan.summarize(rows)["least_gain_of_bfloat16_at_largest_size"] == 2.0
    assert "least_ahead_of_best_peer" not in scan.summarize(rows)
    assert not any(name.startswith("queued_") for name in scan.summarize(rows))
    queued = [
        {**row, "queued_ms": row["ms"] ** 2, "queued_times_floor": 3.0, "queued_best_peer_over_this": 5.0}
        for row in rows
    ]
    found = scan.summarize(queued)
    assert found["queued_least_ahead_of_best_peer"] == 5.0
    assert found["queued_least_gain_of_bfloat16_at_largest_size"] == 4.0
    assert found["least_gain_of_bfloat16_at_largest_size"] == 2.0


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def one_case(size, decay, **more):
        measured.append((size, decay))
        if len(measured) == 2:
            raise KeyboardInterrupt
        return real(size, decay=decay, **more)

    real = scan.one_case
    monkeypatch.setattr(scan, "one_case", one_case)
    monkeypatch.setattr(scan_peers, "available", lambda device: NO_PEERS)
    options = Options(smoke=True, dtypes=("float32",), out=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        scan.run(options)
    scan.run(options)
    size = scan.SMOKE[0]
    assert measured == [(size, "step"), (size, "channel"), (size, "channel")]
    record = json.loads((tmp_path / "scan-cpu.json").read_text(encoding="utf-8"))
    assert record["complete"]
    assert {row["decay"] for row in record["rows"]} == {"step", "channel"}
