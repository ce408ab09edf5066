from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from bar_chart import Panel, bars
from hypothesis import given
from hypothesis import strategies as st

from stablessm.bench import machine, measure, table
from stablessm.bench.measure import Timing, copies, event_clock, finish, host_clock, rotating, timings


def test_contenders_take_turns() -> None:
    order = []
    found = timings({name: lambda name=name: order.append(name) for name in "ab"}, seconds=1e-9)
    assert {timing.turns for timing in found.values()} == {3}
    assert order[-12:] == list("aabb") * 3  # a warm-up and a timed call each


def test_times_are_medians_within_their_quartiles() -> None:
    found = timings({"sleep": lambda: time.sleep(2e-3)}, seconds=0.05)["sleep"]
    assert 2.0 <= found.quartiles[0] <= found.median <= found.quartiles[1]


def test_the_clock_waits_for_the_last_result() -> None:
    waited = []

    class Pending:
        def block_until_ready(self) -> None:
            waited.append(self)

    assert host_clock(Pending, 3) >= 0
    assert len(waited) == 1
    finish((Pending(), torch.zeros(1), Pending()))
    assert len(waited) == 3


def test_rotating_keeps_a_round_of_results() -> None:
    call = rotating([lambda: [0], lambda: [1], lambda: [2]])
    round_one, round_two = ([call() for _ in range(3)] for _ in range(2))
    assert round_one == round_two == [[0], [1], [2]]
    assert all(a is not b for a, b in zip(round_one, round_two, strict=True))


def test_a_cpu_needs_one_set_of_inputs() -> None:
    assert copies("cpu", 1000) == 1


def test_the_machine_is_described() -> None:
    found = machine.limits("cpu", smoke=True)
    assert set(found) == {"copy_gigabytes_per_second", "matmul_float32_teraflops"}
    assert all(value > 0 for value in found.values())
    assert torch.get_float32_matmul_precision() == "highest"
    facts = machine.describe("cpu")
    assert facts["versions"]["torch"]
    assert "node" not in facts  # no names of hosts


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_limits_follow_from_the_times(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """A GPU is pretended: its tensors lie on the CPU."""
    seen = []

    def timed(calls, *, seconds, clocks):
        ((name, call),) = calls.items()
        result = call()
        seen.append((name, seconds, clocks[name], result.numel(), result.dtype, torch.get_float32_matmul_precision()))
        return {name: Timing(2.5, (2.0, 3.0), 7)}

    monkeypatch.setattr(machine, "timings", timed)
    monkeypatch.setattr("torch.matmul", lambda left, right: left)
    monkeypatch.setattr("torch.randn", lambda *shape, device: torch.ones(*shape))
    found = machine.limits(device, smoke=True)
    numbers = 16 * 2**20 // 4
    assert found["copy_gigabytes_per_second"] == pytest.approx(2 * numbers * 4 / 2.5e-3 / 1e9)
    assert found["matmul_float32_teraflops"] == pytest.approx(2 * 256**3 / 2.5e-3 / 1e12)
    clock = event_clock if device == "cuda" else host_clock
    kinds = {
        "float32": (torch.float32, "highest"),
        "tf32": (torch.float32, "high"),
        "bfloat16": (torch.bfloat16, "highest"),
    }
    names = list(kinds) if device == "cuda" else ["float32"]
    expected = [(name, 0.05, clock, 256**2, *kinds[name]) for name in names]
    assert seen == [*expected, ("copy", 0.05, clock, numbers, torch.float32, "highest")]
    assert set(found) == {"copy_gigabytes_per_second", *(f"matmul_{name}_teraflops" for name in names)}


@pytest.mark.parametrize(
    ("device", "smoke", "asked"),
    [("cpu", True, (16, 256, 0.05)), ("cpu", False, (256, 2048, 1.0)), ("cuda", False, (1024, 8192, 1.0))],
)
def test_what_is_asked_of_the_hardware(monkeypatch: pytest.MonkeyPatch, device: str, smoke: bool, asked: tuple) -> None:
    megabytes, size, seconds = asked
    given = []
    monkeypatch.setattr(machine, "copy_bandwidth", lambda *arguments: given.append(arguments) or 3e9)
    monkeypatch.setattr(machine, "matmul_rates", lambda *arguments: given.append(arguments) or {"x": 5e12})
    assert machine.limits(device, smoke=smoke) == {"copy_gigabytes_per_second": 3.0, "matmul_x_teraflops": 5.0}
    assert sorted(given) == sorted([(device, megabytes, seconds), (device, size, seconds)])


@pytest.mark.parametrize(
    ("ms", "shown"), [(0.9994, "0.999"), (1.0, "1.00"), (9.99, "9.99"), (10.0, "10.0"), (99.94, "99.9"), (100.0, "100")]
)
def test_times_have_digits_that_tell_them_apart(ms: float, shown: str) -> None:
    assert table.milliseconds(ms, None) == shown


@pytest.mark.parametrize(("ratio", "shown"), [(None, ""), (0.5, "0.50"), (9.994, "9.99"), (10.0, "10"), (25.6, "26")])
def test_ratios(ratio: float | None, shown: str) -> None:
    assert table.times(ratio) == shown


@pytest.mark.parametrize(("cache", "size", "sets"), [(50, 100, 2), (50, 201, 1), (50, 199, 2), (10**6, 10, 64)])
def test_a_gpu_needs_more_than_its_cache_holds(monkeypatch, cache: int, size: int, sets: int) -> None:
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(L2_cache_size=cache))
    assert copies("cuda", size) == sets


@pytest.mark.parametrize(
    ("once", "gpu", "clock", "repeat", "turns"),
    [
        (1.0, True, "event_clock", 5, 40), (0.001, True, "event_clock", 100, 40), (0.1, True, "queued_clock", 10, 40),
        (1.0, False, "host_clock", 1, 40), (20.0, False, "host_clock", 1, 25), (300.0, False, "host_clock", 1, 3),
        (20.0, True, "event_clock", 1, 25), (0.0, True, "event_clock", 100, 40),
    ],
)  # fmt: skip
def test_how_often_a_call_is_repeated(monkeypatch, once, gpu, clock, repeat, turns) -> None:
    asked, calls = [], []

    def ticking(call, times):
        asked.append(times)
        return once * times

    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr(measure, clock, ticking)
    found = timings(
        {"a": lambda: calls.append(1)}, seconds=1.0, clocks=None if clock == "host_clock" else {"a": ticking}
    )["a"]
    assert asked == [1] + [repeat] * turns
    assert (found.median, found.quartiles, found.turns) == (pytest.approx(once), (pytest.approx(once),) * 2, turns)
    assert len(calls) == 1 + (turns if once < 200 else 0)


def test_quartiles_are_those_of_the_turns() -> None:
    found = measure._timing([4.0, 1.0, 3.0, 2.0, 10.0])
    assert (found.median, found.quartiles, found.turns) == (3.0, (2.0, 4.0), 5)


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(table.progress([1, 2])) == [1, 2]
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert list(table.progress(["x", "y"])) == ["x", "y"]
    table.say("done")
    out, err = capsys.readouterr()
    empty, half = "·" * 30, "█" * 15 + "·" * 15
    clear = "\r\x1b[K"
    assert err == f"{clear}[{empty}] case 1 of 2{clear}[{half}] case 2 of 2{clear}{clear}"
    assert out == "done\n"


@given(st.lists(st.one_of(st.none(), st.floats(1e-3, 1e6)), min_size=1, max_size=6))
def test_any_chart_is_well_formed(values) -> None:
    from xml.etree import ElementTree

    groups = {"1x2x3": {f"peer <{i}>": value for i, value in enumerate(values)}}
    root = ElementTree.fromstring(bars("a & b", [Panel("float32", groups)] * 3))
    widths = [float(rect.get("width")) for rect in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert all(0 <= width <= 860 for width in widths)
