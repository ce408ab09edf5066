from __future__ import annotations

import time

import pytest
import torch
from bar_chart import Panel, bars
from hypothesis import given
from hypothesis import strategies as st

from stablessm.bench import machine, table
from stablessm.bench.measure import copies, finish, host_clock, rotating, timings


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


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(table.progress([1, 2])) == [1, 2]
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert list(table.progress(["x", "y"])) == ["x", "y"]
    assert "case 2 of 2" in capsys.readouterr().err


@given(st.lists(st.one_of(st.none(), st.floats(1e-3, 1e6)), min_size=1, max_size=6))
def test_any_chart_is_well_formed(values) -> None:
    from xml.etree import ElementTree

    groups = {"1x2x3": {f"peer <{i}>": value for i, value in enumerate(values)}}
    root = ElementTree.fromstring(bars("a & b", [Panel("float32", groups)] * 3))
    widths = [float(rect.get("width")) for rect in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert all(0 <= width <= 860 for width in widths)
