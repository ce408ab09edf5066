"""The raw operators refuse wrong tensors; in a process of its own, since a missing check is a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("raw_calls.py")


@pytest.mark.parametrize(("first", "count"), [(0, 10), pytest.param(1000, 1500, marks=pytest.mark.slow)])
def test_wrong_tensors_are_refused(first, count):
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[2])}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, f"ran {6 * count}\n"), done.stdout + done.stderr
