"""No order of importing, computing and forking hangs. Each plan of :mod:`fork_orders` runs in a fresh process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import fork_orders
import fresh_process
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
    root = Path(__file__).parents[2]
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": str(root)}
    command = [sys.executable, fork_orders.__file__, *map(json.dumps, plans)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        pytest.fail(f"hangs: {json.dumps(plans)}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the children that hang
            process.wait()
    assert process.returncode == 0, output.decode()


@pytest.mark.parametrize("name", ORDERS)
def test_orders_that_hung(name: str) -> None:
    finish(ORDERS[name])


LOADING = """
import faulthandler, importlib.abc, os, signal, sys, threading, time
import torch
from stablessm import linear_scan

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("llvmlite.binding", "stablessm.scan.cpu.linear_kernels"):
            begun.set()
            time.sleep(0.5)

def scan():
    linear_scan(torch.rand(4), torch.rand(2, 8, 4))

begun = threading.Event()
sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=scan)
thread.start()
begun.wait()
child = os.fork()
if not child:
    faulthandler.dump_traceback_later(60)  # says where a child hangs
    signal.alarm(100)  # kills it
    scan()
    os._exit(0)
thread.join()
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_fork_while_a_backend_is_imported() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = fresh_process.run(LOADING, environment)
    assert done.returncode == 0, done.stderr


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
