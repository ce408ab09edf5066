"""Work that takes long says so: on a terminal with a bar, elsewhere with a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
import tqdm

import stablessm as ssm
from stablessm import _progress
from stablessm.constructions import exponential_sum

LONG: dict[str, Callable[..., object]] = {
    "exponential_sum": lambda: exponential_sum([1.0, 0.5, 0.25], order=1),
    "exponential_sum l2": lambda: exponential_sum([1.0, 0.5, 0.25, 0.1], order=1, norm="l2"),
    "memory_function": lambda **options: ssm.memory_function(torch.nn.RNN(1, 2), 3, samples=4, **options),
    "fading_function": lambda **options: ssm.fading_function(torch.nn.RNN(1, 2), 3, samples=4, **options),
}


@pytest.mark.parametrize("name", LONG)
def test_long_runs_are_not_silent(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_progress, "SILENT_IN_LOGS", 0.0)
    LONG[name]()
    assert f"{name.split()[0]}: " in capsys.readouterr().err
    if not name.startswith("exponential_sum"):
        LONG[name](progress=False)
        assert capsys.readouterr().err == ""


def test_progress_is_shown_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Bar(tqdm.tqdm):
        def __init__(self, **options: object) -> None:
            seen.append(options)
            super().__init__(**options)

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        with _progress.working("counting") as tell:
            tell()
    common = {"desc": "counting", "unit": " steps", "leave": False, "disable": False}
    assert seen == [{**common, "delay": 2.0, "mininterval": 0.1}, {**common, "delay": 8.0, "mininterval": 8.0}]
