"""Programs that fork in any order: run as a script with a plan in JSON, and drawn at random by the tests.

A plan is a list of steps. A step is the name of an action below, or a pair: where to run a plan (a forked child, a
thread, a process of ``multiprocessing``, the workers of a DataLoader) and that plan.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import threading
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

ACTIONS = ["scan", "gradient", "short", "fused", "layer", "stream", "torch"]
PLACES = ("fork", "thread", "mp-fork", "workers", "persistent")


def draw(rng: random.Random, *, depth: int = 2, imported: bool = False, forked: bool = False) -> list:
    """A random plan. A forked process does not run PyTorch in parallel before stablessm is imported there or above:
    PyTorch alone would hang. Nor is stablessm first imported in a thread of it, which cannot set the threads of others.
    """
    plan: list = []
    for _ in range(rng.randint(1, 4)):
        if depth and rng.random() < 0.5:
            place = rng.choice([place for place in PLACES if imported or not forked or place != "thread"])
            plan.append([place, draw(rng, depth=depth - 1, imported=imported, forked=forked or place != "thread")])
        elif not imported and rng.random() < 0.5 and not forked:
            plan.append("torch")
        elif not imported:
            plan.append("import")
            imported = True
        else:
            plan.append(rng.choice(ACTIONS))
    if not any(step in ACTIONS for step in plan):
        plan += ["import", "scan"]
    return plan


def do_import() -> None:
    import stablessm  # noqa: F401


def do_torch() -> None:
    matrix = torch.ones(600, 600)
    assert (matrix @ matrix + matrix).unique().tolist() == [601]


def do_scan() -> None:
    from stablessm import linear_scan

    assert linear_scan(torch.full((64,), 0.5), torch.ones(2, 1000, 64))[0, -1, 0] == 2


def do_gradient() -> None:
    """Of a decay that changes with time: its gradient is summed over the batch by PyTorch."""
    from stablessm import linear_scan

    decay = torch.full((1000, 64), 0.5, requires_grad=True)
    linear_scan(decay, torch.ones(2, 1000, 64)).sum().backward()
    assert decay.grad[500, 0] == 8  # two sequences, times the state 2, times Σ 0.5^k


def do_short() -> None:
    """In bfloat16, which PyTorch converts."""
    from stablessm import linear_scan

    states = linear_scan(torch.full((64,), 0.5), torch.ones(2, 1000, 64, dtype=torch.bfloat16))
    assert states[0, -1, 0] == 2


def do_fused() -> None:
    from stablessm import ssm_scan

    half, ones = torch.full((64, 4), 0.5), torch.ones(64, 4)
    x = torch.ones(2, 500, 64, requires_grad=True)
    y, _ = ssm_scan(x, half, ones, ones)
    y.sum().backward()
    assert abs(y[0, -1, 0].item() - 8) < 1e-4
    assert abs(x.grad[0, 0, 0].item() - 8) < 1e-4


def do_layer() -> None:
    import stablessm as ssm

    for layer in (ssm.LRU(64, 64, 64), ssm.S4D(64, 4)):
        layer(torch.ones(2, 500, 64))[0].square().mean().backward()
        assert all(parameter.grad.isfinite().all() for parameter in layer.parameters() if parameter.grad is not None)


def do_stream() -> None:
    import stablessm as ssm

    layer = ssm.LRU(4, 8, 4)
    x = torch.ones(1, 20, 4)
    assert torch.allclose(ssm.Streamer(layer).run(x), layer(x)[0], atol=1e-5)


class Items(Dataset):
    """Every item runs the plan."""

    def __init__(self, plan: list) -> None:
        self.plan = plan

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        run(self.plan)
        return index


def run(plan: list) -> None:
    for step in plan:
        if isinstance(step, str):
            globals()[f"do_{step}"]()
            continue
        place, inner = step
        if place == "fork":
            child = os.fork()
            if child == 0:
                _end(inner)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, inner
        elif place == "thread":
            failed: list = []
            threading.excepthook = failed.append
            thread = threading.Thread(target=run, args=(inner,))
            thread.start()
            thread.join()
            assert not failed, inner
        elif multiprocessing.current_process().daemon:  # a worker may have no workers
            run(inner)
        elif place.startswith("mp-"):
            process = multiprocessing.get_context(place[3:]).Process(target=run, args=(inner,))
            process.start()
            process.join()
            assert process.exitcode == 0, inner
        else:
            loader = DataLoader(Items(inner), num_workers=2, persistent_workers=place == "persistent")
            for _ in range(2):
                assert sorted(int(index) for index in loader) == [0, 1]


def _end(plan: list) -> None:
    """Run a plan in a forked child, and end it."""
    code = 1
    try:
        run(plan)
        code = 0
    except BaseException as error:
        print(f"{plan}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Python 3.12 warns of forking with threads, which is what we test
    for given in sys.argv[1:]:
        run(json.loads(given))
