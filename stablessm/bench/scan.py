"""Compares the speed of the scan with other packages and with the copy bandwidth of the machine.

Every contender is first compared with the float64 reference; no time is reported for a wrong result. The floor, a lower
limit of the time, is the number of bytes that must be moved (each input read once, each output written once) divided by
the rate of a plain copy in the same run.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm.bench import scan_peers, table
from stablessm.bench.contest import OURS, PHASES, Gate, contest, show
from stablessm.bench.measure import copies
from stablessm.bench.options import Options
from stablessm.bench.suite import Axes, Row, announce, run_cases
from stablessm.scan import linear_scan

_SIZES = [(8, 1024, 256), (1, 16384, 256), (1, 131072, 64)]
SIZES = {"cpu": _SIZES, "cuda": [*_SIZES, (8, 2048, 2048)]}
SMOKE = [(2, 64, 16)]
DTYPES = ["float32", "complex64", "bfloat16"]
DECAYS = ("step", "channel")
SCALARS = {"forward": {"step": 3, "channel": 2}, "forward+backward": {"step": 8, "channel": 5}}
"""Number of values that must be read or written for each element; see docs/speed.md."""
CHECKED = 16
"""Number of channels, from the first to the last, that are compared with the reference."""
TOLERANCE = {"float32": 1e-3, "complex64": 1e-3, "bfloat16": 3e-2}
"""Largest relative error of a correct result, by dtype."""


def run(options: Options) -> None:
    """Measure all cases of the scan, print a table for each, and update the record after each."""
    sizes = options.pick_sizes(SMOKE if options.smoke else SIZES[options.device], "BATCHxTIMExCHANNELS")
    dtypes = options.pick_dtypes(DTYPES if options.device == "cuda" else DTYPES[:2], DTYPES)
    peers, limits = scan_peers.available(options.device), announce(options)
    table.say("peers: " + ", ".join(f"{name} {version}" for name, version in peers.items()))
    measure = partial(one_case, peers=peers, bandwidth=limits["copy_gigabytes_per_second"] * 1e9, options=options)
    title = partial(show, "{size}  {dtype}  decay per {decay}")
    axes: Axes = {"size": sizes, "dtype": dtypes, "decay": DECAYS}
    run_cases("scan", options, axes, measure, title, lambda rows: limits | summarize(rows), peers=peers)


def one_case(
    size: tuple[int, ...], dtype: str, decay: str, peers: Mapping[str, str], bandwidth: float, options: Options
) -> list[Row]:
    """Measure all contenders in one case, in the forward pass and in the forward and backward pass together; return a
    row for each contender and pass. ``decay`` is as in :func:`draw`, ``peers`` is the result of
    :func:`.scan_peers.available`, and ``bandwidth`` is the rate of a plain copy in bytes per second.
    """
    inputs = draw(size, dtype, decay)
    gate = Gate(truth(*inputs), some_channels, TOLERANCE[dtype])
    a, x, g = (tensor.to(options.device) for tensor in inputs)
    clones = ((a.clone(), x.clone(), g.clone()) for _ in range(copies(options.device, a.nbytes + x.nbytes) - 1))
    floors = {phase: SCALARS[phase][decay] * x.nbytes / bandwidth * 1e3 for phase in PHASES}
    return contest(scan_peers.contenders([(a, x, g), *clones], peers), gate, floors, options)


def draw(size: tuple[int, ...], dtype: str, decay: str) -> scan_peers.Inputs:
    """Draw random inputs: decays, and a normally distributed drive x and output gradient. The modulus of a decay is
    from 0.5 to 0.999 (bfloat16: 0.99); complex decays have any phase. There is one decay for each channel
    (``decay="channel"``) or for each step and channel (``"step"``).
    """
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    span = 0.49 if dtype == "bfloat16" else 0.499  # 0.999 would be 1 in bfloat16
    a = (0.5 + span * torch.rand(size if decay == "step" else size[-1:])).to(kind)
    if kind.is_complex:
        a = a * torch.exp(2j * math.pi * torch.rand(a.shape))
    return a, torch.randn(size, dtype=kind), torch.randn(size, dtype=kind)


def some_channels(parts: Sequence[Any]) -> list[np.ndarray]:
    """Return a few evenly spaced channels of each tensor in double precision. Only these channels are compared with the
    reference.
    """
    return [_channels(part) for part in parts]


def _channels(part: Any) -> np.ndarray:
    index = np.linspace(0, part.shape[-1] - 1, min(CHECKED, part.shape[-1])).astype(np.int64)
    if isinstance(part, Tensor):
        wide = torch.complex128 if part.is_complex() else torch.float64
        return part.detach()[..., torch.from_numpy(index).to(part.device)].to(wide).cpu().numpy()
    chosen = np.asarray(part[..., index])
    return chosen.astype(np.complex128 if np.iscomplexobj(chosen) else np.float64)


def truth(a: Tensor, x: Tensor, g: Tensor) -> list[np.ndarray]:
    """Compute the correct results in float64 with the reference scan, for the channels that are compared: the states,
    the gradient of a and the gradient of x. ``g`` is the gradient of the states.

    The gradients are computed by a scan in the other direction, because autograd would take minutes for a long
    sequence.
    """
    a, x, g = (torch.from_numpy(array) for array in some_channels((a, x, g)))
    states, nothing = linear_scan(a, x, backend="reference"), torch.zeros_like(x[:, :1])
    later = torch.cat([a.expand(x.shape)[:, 1:], nothing], 1)
    d_x = linear_scan(later.conj(), g, reverse=True, backend="reference")
    d_a = d_x * torch.cat([nothing, states[:, :-1]], 1).conj()
    return [tensor.numpy() for tensor in (states, d_a.sum_to_size(a.shape), d_x)]


def summarize(rows: Sequence[Row]) -> dict[str, float]:
    """Return three numbers over all cases: the smallest speed-up over the best peer, the geometric mean of these
    speed-ups, and the largest ratio of a time to the floor. On a GPU, also return these numbers for the times without
    launch overhead.
    """
    return {f"{prefix}{name}": value for prefix in ("queued_", "") for name, value in _extremes(rows, prefix).items()}


def _extremes(rows: Sequence[Row], prefix: str) -> dict[str, float]:
    ours = [row for row in rows if row["contender"] == OURS and row.get(f"{prefix}ms") is not None]
    ahead = [ratio for row in ours if (ratio := row[f"{prefix}best_peer_over_this"]) is not None]
    found = {}
    if ahead:
        found["least_ahead_of_best_peer"] = min(ahead)
        found["geometric_mean_ahead_of_best_peer"] = statistics.geometric_mean(ahead)
    for phase in PHASES:
        larger = [row for row in ours if row["phase"] == phase and not row["size"].startswith("8x1024x")]
        if larger:
            name = f"worst_{phase.replace('+', '_')}_times_floor_at_larger_sizes"
            found[name] = max(row[f"{prefix}times_floor"] for row in larger)
    largest = max((row["size"] for row in ours), key=lambda size: math.prod(map(int, size.split("x"))), default=None)
    ms = {(row["dtype"], row["decay"], row["phase"]): row[f"{prefix}ms"] for row in ours if row["size"] == largest}
    gains = [
        ms["float32", *key] / taken
        for (dtype, *key), taken in ms.items()
        if dtype == "bfloat16" and ("float32", *key) in ms
    ]
    if gains:
        found["least_gain_of_bfloat16_at_largest_size"] = min(gains)
    return found
