"""Measures the latency of one streaming step (one sample in, one sample out) on one thread: its median and its tail.

Every contender is first compared with the float64 forward pass; no time is reported for a wrong result. Each step is
timed by itself. The number of steps does not depend on the option ``seconds``, because high percentiles require many
steps. Contenders take turns of some hundred steps. Python's garbage collector stays on, as in a real program.
"""

from __future__ import annotations

import copy
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from stablessm._errors import ArgumentError, quoted
from stablessm._optional import require
from stablessm.bench import machine, table
from stablessm.bench.contest import failure
from stablessm.bench.options import Options
from stablessm.bench.suite import Axes, Row, run_cases
from stablessm.layers import LRU, S4D, RealSSM
from stablessm.layers.base import SequenceLayer
from stablessm.streaming import Streamer, export_step

Step: TypeAlias = Callable[[Any], Any]
"""A function from a sample to an output; the contender keeps the state."""

WIDTHS = [(64,), (128,), (256,), (512,), (1024,)]
SMOKE = [(8,)]
LAYERS: dict[str, Callable[[int], SequenceLayer]] = {
    "S4D, 16 states a channel": lambda width: S4D(width, 16),
    "LRU": lambda width: LRU(width, width, width),
    "RealSSM": lambda width: RealSSM(width, width, width),
}
STEPS, TURNS = 20_000, 40
SAMPLES = 200
"""Number of different inputs, and of steps that are compared with the reference."""
TOLERANCE = 1e-4
OURS = "Streamer"
TAIL = {"median_us": 50.0, "p99_us": 99.0, "p99_9_us": 99.9, "max_us": 100.0}


def run(options: Options) -> None:
    """Measure the latencies of all layers, print a table for each case, and update the record after each."""
    if options.device != "cpu":
        raise ArgumentError("device", "cpu, because a streamer runs on the CPU", quoted(options.device))
    widths = [size[0] for size in options.pick_sizes(SMOKE if options.smoke else WIDTHS, "WIDTH")]
    options.pick_dtypes(["float32"], ["float32"])
    steps = 400 if options.smoke else STEPS
    with one_thread():
        clock = statistics([_timed(lambda _: None, [None], steps)])["median_us"]
        print(f"{machine.describe('cpu')['device']}, 1 thread; the clock itself takes {clock:.2f} µs of every step")

        measure = partial(one_case, steps=steps, compiled=not options.smoke)
        axes: Axes = {"layer": list(LAYERS), "width": widths}
        run_cases("stream", options, axes, measure, show, lambda rows: {"clock_us": clock} | summarize(rows))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run PyTorch on one thread inside a ``with`` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_case(layer: str, width: int, steps: int, *, compiled: bool) -> list[Row]:
    """Measure all contenders for one layer, and return a row for each contender. With ``compiled``, one of the
    contenders is ``layer.step`` compiled by ``torch.compile``.
    """
    torch.manual_seed(0)
    torch.compiler.reset()  # torch.compile stops compiling a function after many layers
    made = LAYERS[layer](width).requires_grad_(False)
    x = torch.randn(SAMPLES, 1, width)
    expected = copy.deepcopy(made).double()(x.double().transpose(0, 1))[0][0].numpy()
    rows: dict[str, Row] = {}
    right: dict[str, tuple[Step, list[Any]]] = {}
    for contender, make in contenders(made, compiled=compiled).items():
        row = rows[contender] = {"contender": contender, **dict.fromkeys(TAIL)}
        row |= {"steps": 0, "relative_error": None, "note": None}
        try:
            step, inputs = make(x)
            outputs = torch.stack([torch.as_tensor(step(x_t)).flatten().clone() for x_t in inputs]).numpy()
        except Exception as error:  # the failure of a peer is a result
            row["note"] = failure(error)
            continue
        row["relative_error"] = float(np.abs(outputs - expected).max() / np.abs(expected).max())
        if row["relative_error"] <= TOLERANCE:
            right[contender] = (step, inputs)
        else:
            row["note"] = "wrong"
    for contender, taken in latencies(right, steps).items():
        rows[contender] |= {"steps": steps} | statistics(taken)
    best = min((row["median_us"] for row in rows.values() if row["median_us"] and is_peer(row)), default=None)
    for row in rows.values():
        row["best_peer_over_this"] = best and row["median_us"] and best / row["median_us"]
    return list(rows.values())


def is_peer(row: Row) -> bool:
    """Return True if the row belongs to an alternative to this package's streamer, such as ``layer.step`` or ONNX
    Runtime.
    """
    return not row["contender"].startswith(OURS)


def contenders(layer: SequenceLayer, *, compiled: bool) -> dict[str, Callable[[Tensor], tuple[Step, list[Any]]]]:
    """Return a dict from the name of each contender to a function that builds the contender for inputs x. This function
    returns a step function, which starts from a zero state, and a list with the input of each step, in the form that
    the step function takes. With ``compiled``, one contender uses ``torch.compile``.
    """
    found: dict[str, Callable[[Tensor], tuple[Step, list[Any]]]] = {
        OURS: lambda x: (Streamer(layer), list(x.numpy())),
        f"{OURS}, tensors": lambda x: (Streamer(layer), list(x)),
        f"{OURS}, without llvmlite": lambda x: (Streamer(layer, backend="numpy"), list(x.numpy())),
        "layer.step": partial(_eager, layer, layer.step),
    }
    if compiled:
        found["torch.compile(layer.step)"] = lambda x: _eager(layer, torch.compile(layer.step, dynamic=False), x)
    found["onnxruntime"] = partial(_onnx, layer)
    return found


def _eager(layer: SequenceLayer, step: Callable[..., tuple[Tensor, Tensor]], x: Tensor) -> tuple[Step, list[Tensor]]:
    state = layer.initial_state(1)

    @torch.inference_mode()
    def one(x_t: Tensor) -> Tensor:
        nonlocal state
        y_t, state = step(x_t, state)
        return y_t

    return one, list(x)


def _onnx(layer: SequenceLayer, x: Tensor) -> tuple[Step, list[np.ndarray]]:
    """Return a step function that runs the layer in ONNX Runtime, and the inputs of its steps. Inputs and outputs are
    bound to fixed memory.

    The old and the new state are in two buffers, which change places after every step.
    """
    onnxruntime = require("onnxruntime", "bench stream")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.onnx"
        export_step(layer, path, format="onnx", batch=1)
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    shapes = {port.name: port.shape for port in (*session.get_inputs(), *session.get_outputs())}

    def buffer(name: str) -> Any:
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shapes[name], np.float32))

    x_in, y_out, states = buffer("x"), buffer("y"), [buffer("state_0"), buffer("state_0")]
    bindings = []
    for before, after in ((0, 1), (1, 0)):
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", x_in)
        binding.bind_ortvalue_input("state_0", states[before])
        binding.bind_ortvalue_output("y", y_out)
        binding.bind_ortvalue_output("next_state_0", states[after])
        bindings.append(binding)
    turn = itertools.cycle(bindings)

    def one(x_t: np.ndarray) -> np.ndarray:
        x_in.update_inplace(x_t)
        session.run_with_iobinding(next(turn))
        return y_out.numpy()

    return one, list(x.numpy())


def latencies(steps: Mapping[str, tuple[Step, list[Any]]], count: int) -> dict[str, list[np.ndarray]]:
    """Measure the duration of ``count`` steps of each contender. The contenders take turns. Return for each contender
    the durations of each turn in nanoseconds.
    """
    taken: dict[str, list[np.ndarray]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, (step, inputs) in steps.items():
            for x_t in inputs[:20]:  # not timed: the previous contender left its data in the caches
                step(x_t)
            taken[name].append(_timed(step, inputs, count // TURNS))
    return taken


def _timed(step: Step, inputs: list[Any], count: int) -> np.ndarray:
    taken, clock, following = np.empty(count, np.int64), time.perf_counter_ns, itertools.cycle(inputs)
    for k in range(count):
        x_t = next(following)
        start = clock()
        step(x_t)
        taken[k] = clock() - start
    return taken


def statistics(taken: list[np.ndarray]) -> dict[str, float]:
    """Convert durations from nanoseconds to microseconds, and return their median and high percentiles.

    >>> statistics([np.array([1000, 2000, 3000])])["median_us"]
    2.0
    """
    values = np.percentile(np.concatenate(taken), list(TAIL.values())) / 1e3
    return dict(zip(TAIL, values.tolist(), strict=True))


def show(rows: list[Row]) -> str:
    """Format the latencies of one case as a table."""
    lines = []
    for row in rows:
        cells = [f"{row[key]:.2f}" if row[key] is not None else "" for key in TAIL]
        error = "" if row["relative_error"] is None else f"{row['relative_error']:.1e}"
        lines.append([row["contender"], *cells, table.times(row["best_peer_over_this"]), error])
        lines += [[f"  {row['note']}", *[""] * 6]] if row["note"] else []
    head = ["µs per step", "median", "p99", "p99.9", "max", "vs peer", "error"]
    return f"{rows[0]['layer']}, width {rows[0]['width']}\n" + table.columns(head, lines)


def summarize(rows: Sequence[Row]) -> dict[str, float]:
    """Return three numbers over all cases: the largest median of the streamer's latency, the largest 99.9th percentile
    of this latency, and the smallest speed-up of the streamer over the best peer.
    """
    ours = [row for row in rows if row["contender"] == OURS and row["median_us"] is not None]
    ahead = [row["best_peer_over_this"] for row in ours if row["best_peer_over_this"] is not None]
    found = {f"worst_{key}": max(row[key] for row in ours) for key in ("median_us", "p99_9_us") if ours}
    if ahead:
        found["least_ahead_of_best_peer"] = min(ahead)
        found["geometric_mean_ahead_of_best_peer"] = geometric_mean(ahead)
    return found
