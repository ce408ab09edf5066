"""One random shape on a GPU: every contender is checked, then timed in a CUDA graph that contains many calls.

Inputs and results rotate among enough sets to fill the GPU's cache four times. JAX cannot be captured: its calls are
queued, and the host waits for the last one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stablessm import linear_scan
from stablessm.bench import scan, scan_peers
from stablessm.bench.contest import OURS, PHASES, Contender, Gate, make, timed, torch_contender
from stablessm.bench.measure import Call, Timing, copies, event_clock, finish, host_clock
from stablessm.scan.triton import board

LAUNCH_MS = 5e-3
"""Part of the floor for each launch, in milliseconds; a forward pass is one launch, with a backward pass two."""
GRAPH_MS, MOST_CALLS, TURNS = 1.0, 20, 7
"""A graph contains calls for at least so long, at most so many, and is replayed so many times."""

Row = dict[str, Any]


def one_case(shape: tuple[int, int, int], peers: Mapping[str, str], bandwidth: float) -> list[Row]:
    """Return a row for each phase and contender.

    The memory that captured calls keep is cleared and taken back, because their graphs are gone: a program has a few
    graphs, and this one has hundreds.
    """
    linear_scan(*(torch.rand(1, 1000, 8, device="cuda") for _ in range(2)))
    left = dict(board._left)
    rows = _one_case(shape, peers, bandwidth)
    for words in left.values():
        words.zero_()
    torch.cuda.synchronize()
    board._left.update(left)
    return rows


def _one_case(shape: tuple[int, int, int], peers: Mapping[str, str], bandwidth: float) -> list[Row]:
    inputs = _draw(shape)
    gate = Gate(_truth(*inputs), scan.some_channels, scan.TOLERANCE["float32"])
    sets = [inputs, *(tuple(tensor.clone() for tensor in inputs) for _ in range(_sets(inputs) - 1))]
    made, failed = make(_contenders(sets, peers))
    rows: list[Row] = []
    for launches, phase in enumerate(PHASES, 1):
        floor = scan.SCALARS[phase]["step"] * inputs[1].nbytes / bandwidth * 1e3 + launches * LAUNCH_MS
        running = {name: contender for name, contender in made.items() if phase in contender.calls}
        checked = {name: gate.check(contender, phase) for name, contender in running.items()}
        taken = _times({name: running[name] for name in running if checked[name][1] is None}, phase, floor)
        best = min((timing.median for name, timing in taken.items() if name != OURS), default=None)
        for name in (*made, *failed):
            error, note = checked.get(name, (None, failed.get(name) or made[name].left_out.get(phase)))
            row = {"phase": phase, "contender": name} | timed(taken.get(name), floor, best)
            rows.append(row | {"floor_ms": floor, "relative_error": error, "note": note})
    return rows


def _draw(shape: tuple[int, int, int]) -> scan_peers.Inputs:
    """Return decays from 0.5 to 0.999, and normal drive and gradient."""
    generator = torch.Generator("cuda").manual_seed(0)
    a = 0.5 + 0.499 * torch.rand(shape, device="cuda", generator=generator)
    x, g = (torch.randn(shape, device="cuda", generator=generator) for _ in range(2))
    return a, x, g


def _truth(a: Tensor, x: Tensor, g: Tensor) -> list[Any]:
    """Return what :func:`scan.truth` returns, by the CPU backend in float64: the reference would take seconds."""
    a, x, g = (torch.from_numpy(array) for array in scan.some_channels((a, x, g)))
    states, nothing = linear_scan(a, x, backend="cpu"), torch.zeros_like(x[:, :1])
    d_x = linear_scan(torch.cat([a[:, 1:], nothing], 1), g, reverse=True, backend="cpu")
    return [tensor.numpy() for tensor in (states, d_x * torch.cat([nothing, states[:, :-1]], 1), d_x)]


def _sets(inputs: scan_peers.Inputs) -> int:
    return min(MOST_CALLS, copies("cuda", 3 * inputs[1].nbytes))


def _contenders(sets: Sequence[scan_peers.Inputs], peers: Mapping[str, str]) -> dict[str, Callable[[], Contender]]:
    """Return ours and the peers, accelerated-scan in its own layout (batch, channel, time) without transposes."""
    here = {name for name, version in peers.items() if version[0].isdigit()}
    makers: dict[str, Callable[[], Contender]] = {OURS: partial(torch_contender, linear_scan, sets)}
    if "accelerated-scan" in here:
        makers["accelerated-scan, own layout"] = partial(scan_peers.accelerated_contender, sets, transpose=False)
    if "flash-linear-attention" in here:
        makers["fla chunk_hgrn"] = partial(scan_peers.hgrn_contender, sets, "chunk_hgrn")
        makers["fla fused_recurrent_hgrn"] = partial(scan_peers.hgrn_contender, sets, "fused_recurrent_hgrn")
    if "jax" in here:
        makers["jax associative_scan"] = partial(scan_peers.jax_contender, scan_peers.associative_scan, sets[:1])
    return makers


def _times(contenders: Mapping[str, Contender], phase: str, floor: float) -> dict[str, Timing]:
    """Time all contenders in turns."""
    calls: dict[str, tuple[Call, int]] = {}
    for name, contender in contenders.items():
        given = contender.calls[phase]
        if contender.clock is host_clock:
            start = time.perf_counter()
            finish(given[0]())
            took = (time.perf_counter() - start) * 1e3
            calls[name] = given[0], max(1, min(MOST_CALLS, math.ceil(GRAPH_MS / took)))
        else:
            calls[name] = _captured(given, floor)
    measured: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, (call, count) in calls.items():
            if contenders[name].clock is host_clock:
                measured[name].append(host_clock(call, count) / count)
            else:
                measured[name].append(event_clock(call, 1) / count)
    return {name: _timing(values) for name, values in measured.items()}


def _timing(values: Sequence[float]) -> Timing:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(middle, (low, high), len(values))


def _captured(calls: Sequence[Call], floor: float) -> tuple[Call, int]:
    """Return the replay of a graph that contains many calls, and how many; their results lie apart in memory."""
    count = max(2, min(MOST_CALLS, math.ceil(GRAPH_MS / floor)))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in (*calls[:2], calls[0]):  # compiles, and chooses among kernels
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph, results = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for i in range(count):
            results.append(calls[i % len(calls)]())
    graph.replay()
    torch.cuda.synchronize()

    def replay(results: list[Any] = results) -> None:
        graph.replay()

    return replay, count
