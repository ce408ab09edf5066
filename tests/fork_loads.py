"""Forks while another thread loads a backend: at points of the load in order, and at random times.

    python tests/fork_loads.py --forks 1500 --seed 0

Every action of :mod:`fork_orders` runs in a thread of a process that has loaded nothing yet. Every child repeats the
action. A child that has not ended after a minute prints its stack and counts as a hang.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import fork_orders

from stablessm import _fork

LIMIT = 60


def do_gated() -> None:
    import torch

    import stablessm as ssm

    ssm.MinGRU(4, 8)(torch.ones(2, 30, 4))[0].sum().backward()


ACTIONS: dict[str, Callable[[], None]] = {"gated": do_gated} | {
    name: getattr(fork_orders, f"do_{name}") for name in fork_orders.ACTIONS if name != "torch"
}


def fork(action: Callable[[], None]) -> bool:
    """Fork a child that runs an action; return True if it succeeds."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            faulthandler.dump_traceback_later(LIMIT)
            signal.alarm(LIMIT + 5)
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def in_order(action: Callable[[], None], share: float, most: int, rng: random.Random) -> tuple[int, int, int]:
    """Stop the thread at calls and returns of the load, and fork there if a fork would not wait for the thread.

    Return the number of points at which a fork waits, of forks, and of children that failed.
    """
    waits = forks = failures = 0
    asked, answered, ended = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    def stop(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal waits
        if _fork.compiling.lock._is_owned() or _fork._loads(threading.get_ident(), frame):  # type: ignore[attr-defined]
            waits += 1
        elif forks < most and rng.random() < share:
            asked.release()
            answered.acquire()

    def load() -> None:
        sys.setprofile(stop)
        try:
            action()
        finally:
            sys.setprofile(None)
            ended.set()
            asked.release()

    thread = threading.Thread(target=load)
    thread.start()
    while asked.acquire() and not ended.is_set():
        if forks < most:
            forks += 1
            failures += not fork(action)
        answered.release()
    thread.join()
    return waits, forks, failures


def at_random(action: Callable[[], None], longest: float, rng: random.Random) -> tuple[int, int, int]:
    """Fork at a random time after the thread has started."""
    thread = threading.Thread(target=action)
    thread.start()
    time.sleep(rng.uniform(0, longest))
    failures = int(not fork(action))
    thread.join()
    return 0, 1, failures


def trial(run: Callable[[], tuple[int, int, int]]) -> tuple[int, int, int]:
    """Return the counts of a trial, which runs in a child of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, " ".join(map(str, run())).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as counts:
        waits, forks, failures = (int(count) for count in counts.read().split() or (0, 1, 1))  # nothing: it crashed
    os.waitpid(child, 0)
    return waits, forks, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forks", type=int, default=1500, help="number of forks, at least")
    parser.add_argument("--most", type=int, default=40, help="number of forks of one load in order, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("actions", nargs="*", metavar="ACTION", help=f"of {', '.join(ACTIONS)} (default: all)")
    args = parser.parse_args()
    rng, waits, failures = random.Random(args.seed), 0, 0
    forks = {"in order": 0, "at random": 0}
    while sum(forks.values()) < args.forks:
        for name in args.actions or ACTIONS:
            for kind in forks:
                own, action = random.Random(seed := rng.random()), ACTIONS[name]
                share = args.most / 200  # a load has about 200 points at which a fork does not wait
                how = (in_order, action, share, args.most) if kind == "in order" else (at_random, action, 1.0)
                waited, forked, failed = trial(functools.partial(*how, own))
                waits, forks[kind], failures = waits + waited, forks[kind] + forked, failures + failed
                if failed:
                    print(f"{name}, {kind}, seed {seed}: {failed} of {forked} children failed", flush=True)
        print(f"forks {forks}, points at which a fork waits {waits}, failures {failures}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Python 3.12 warns of forking with threads, which is what we test
    sys.exit(main())
