"""The raw operators refuse wrong tensors; in a process of its own, since a missing check is a crash."""

from __future__ import annotations

import os
from pathlib import Path

import fresh_process
import pytest

SCRIPT = Path(__file__).with_name("raw_calls.py")


@pytest.mark.parametrize(("first", "count"), [(0, 10), pytest.param(1000, 1500, marks=pytest.mark.slow)])
def test_wrong_tensors_are_refused(first, count):
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[2])}
    program = f"""
import runpy, sys, warnings
warnings.simplefilter("ignore")
sys.argv[1:] = ["{first}", "{count}"]
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
    done = fresh_process.run(program, environment)
    assert (done.returncode, done.stdout) == (0, f"ran {6 * count}\n"), done.stdout + done.stderr
