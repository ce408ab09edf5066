"""No order of importing, computing and forking hangs. Each plan of :mod:`fork_orders` runs in a fresh process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import fork_loads
import fork_orders
import pytest
from fork_orders import ACTIONS

LIMIT = 240
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

ORDERS = {
    "forked after a parallel operation, scanned first in the child": [
        "import", "torch", ["fork", ["gradient", "short", "torch", ["fork", ["scan"]]]], "torch", "scan",
        ["thread", ["scan", ["fork", ["scan", "torch"]]]], ["workers", ["scan"]],
    ],
    "imported only in the child": [
        "torch", ["fork", ["import", "gradient", "short", "torch", ["fork", ["scan"]]]], ["mp-fork", ["scan"]],
    ],
}  # fmt: skip
"""Both hang without the hooks of stablessm._fork."""
CHILDREN = {"forked": ["import", "torch", ["fork", ACTIONS]], "imported": ["torch", ["fork", ["import", *ACTIONS]]]}


def finish(*plans: list) -> None:
    """Run the plans in a process that has two OpenMP threads, within the time limit."""
    run(fork_orders.__file__, *map(json.dumps, plans))


def run(script: str, *arguments: object) -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(map(str, (root, root / "tests")))}
    command = [sys.executable, script, *map(str, arguments)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        pytest.fail(f"hangs: {arguments}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the children that hang
            process.wait()
    assert process.returncode == 0, output.decode()


@pytest.mark.parametrize("name", ORDERS)
def test_orders_that_hung(name: str) -> None:
    finish(ORDERS[name])


@pytest.mark.parametrize("action", ["gated", pytest.param("fused", marks=pytest.mark.slow), "scan"])
def test_forks_while_a_backend_is_loaded(action: str) -> None:
    run(fork_loads.__file__, action, "--forks", 3, "--most", 2)


@pytest.mark.slow
def test_forks_at_many_points_of_every_load() -> None:
    run(fork_loads.__file__, "--forks", 60, "--most", 8)


@pytest.mark.slow
@pytest.mark.parametrize("case", CHILDREN)
def test_every_action_in_a_child(case: str) -> None:
    finish(CHILDREN[case])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_orders(seed: int) -> None:
    finish(fork_orders.draw(random.Random(seed)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("before", [["torch"], ["import", "torch"], ["import", "scan"]])
def test_start_methods(method: str, before: list[str]) -> None:
    finish([*before, [f"mp-{method}", ["scan", "torch", "layer", ["mp-fork", ["scan", "torch"]]]]])
