"""The scan at shapes drawn at random, compared with other packages and with the copy bandwidth of the machine.

python benchmarks/scan_grid.py --device cpu --seed 0     # writes benchmarks/results/scan-grid-cpu.json
python benchmarks/scan_grid.py --device cuda --seed 0 1 2
python benchmarks/scan_grid.py --shapes 1x131072x64,8x4096x512 --out benchmarks/results/scan-large-cpu.json
python benchmarks/scan_grid.py --smoke --out /tmp/smoke.json

The decay is per step, the dtype is float32, and memory is allocated as the process is started: no environment variable
is set and glibc keeps its defaults. A contender whose result is wrong gets no time. The traffic of a shape is the
number of bytes that a forward pass must move. On a GPU every contender but JAX runs as a CUDA graph, and the floor has
5 µs for each launch (``_scan_grid_gpu.py``). JAX and fla take long to compile there: ``--peers`` limits the number of
shapes at which they run.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from typing import Any

import _measure

from stablessm.bench import scan, scan_peers, table
from stablessm.bench.contest import OURS, PHASES, Gate, contest, show
from stablessm.bench.options import Options
from stablessm.bench.suite import announce

Shape = tuple[int, int, int]

BATCHES, STEPS, CHANNELS = (1, 128), (64, 131072), (16, 8192)
TRAFFIC = {"cpu": (1 << 20, 256 << 20), "cuda": (1 << 20, 2 << 30)}
"""Least and most bytes that a forward pass moves, by device."""
BINS = {"1 to 8 MB": 8 << 20, "8 to 64 MB": 64 << 20, "64 MB and more": math.inf}
"""Upper limits of the traffic in each part of the summary."""
LEFT_OUT = {"torch loop", "mambapy pscan"}
"""Contenders that take seconds or tens of gigabytes at the longest sequences."""
QUICK = {"accelerated-scan"}
"""Peers that compile nothing for a new shape."""
SMOKE = {"count": 2, "most": 2 << 20}


def draw_shapes(seed: int, count: int, least: int = 1 << 20, most: int = 2 << 30, multiple: int = 8) -> list[Shape]:
    """Draw shapes (batch, time, channel), uniform in the logarithm of each, with a traffic from ``least`` to ``most``.

    The number of channels is a multiple of ``multiple``.
    """
    generator, shapes = random.Random(seed), []

    def draw(low: int, high: int, multiple: int = 1) -> int:
        value = math.exp(generator.uniform(math.log(low), math.log(high)))
        return min(high, max(low, multiple * round(value / multiple)))

    while len(shapes) < count:
        shape = draw(*BATCHES), draw(*STEPS), draw(*CHANNELS, multiple)
        if least <= traffic(shape) <= most:
            shapes.append(shape)
    return shapes


def traffic(shape: Sequence[int]) -> int:
    """Return the bytes that a forward pass must move: decay and drive are read, states are written."""
    return scan.SCALARS["forward"]["step"] * 4 * math.prod(shape)


def one_case(shape: Shape, peers: dict[str, str], bandwidth: float, options: Options) -> list[dict[str, Any]]:
    """Return the rows of all contenders."""
    facts = {"size": "x".join(map(str, shape)), "traffic_megabytes": traffic(shape) / 2**20}
    if options.device == "cuda":
        import _scan_grid_gpu  # needs Triton

        return [facts | row for row in _scan_grid_gpu.one_case(shape, peers, bandwidth)]
    return [facts | row for row in _one_cpu_case(shape, peers, bandwidth, options)]


def _one_cpu_case(shape: Shape, peers: dict[str, str], bandwidth: float, options: Options) -> list[dict[str, Any]]:
    inputs = scan.draw(shape, "float32", "step")
    gate = Gate(scan.truth(*inputs), scan.some_channels, scan.TOLERANCE["float32"])
    makers = scan_peers.contenders([inputs], peers)
    makers = {name: maker for name, maker in makers.items() if name not in LEFT_OUT}
    floors = {phase: scan.SCALARS[phase]["step"] * inputs[1].nbytes / bandwidth * 1e3 for phase in PHASES}
    return contest(makers, gate, floors, options)


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return, by phase, the quantiles of the multiple of the floor by traffic, and the shapes where a peer is ahead."""
    found: dict[str, Any] = {}
    seeds = sorted({row["seed"] for row in rows if row.get("seed") is not None})
    for phase in PHASES:
        ours = [row for row in rows if row["phase"] == phase and row["contender"] == OURS and row["ms"] is not None]
        low = 0.0
        for name, high in BINS.items():
            inside = [row for row in ours if low <= row["traffic_megabytes"] * 2**20 < high]
            parts = {f"{phase}, {name}": inside}
            if len(seeds) > 1:
                parts |= {
                    f"{phase}, {name}, seed {seed}": [row for row in inside if row["seed"] == seed] for seed in seeds
                }
            found |= {f"{part}: times floor": _quantiles(members) for part, members in parts.items() if members}
            low = high
        ahead = {row["size"]: row["best_peer_over_this"] for row in ours if row["best_peer_over_this"]}
        if ahead:
            found[f"{phase}: least ahead of best peer"] = min(ahead.values())
            found[f"{phase}: behind a peer"] = {size: ratio for size, ratio in ahead.items() if ratio < 1}
    return found


def _quantiles(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    ratios = sorted(row["times_floor"] for row in rows)
    ninety = ratios[math.ceil(0.9 * len(ratios)) - 1]
    return {
        "shapes": len(ratios), "median": statistics.median(ratios), "in_90_percent": ninety, "largest": ratios[-1],
    }  # fmt: skip


def main() -> None:
    parser = _measure.parser(__doc__, "scan-grid", smoke="two small shapes, to see that it runs")
    parser.add_argument("--seed", type=int, nargs="+", default=[0], help="seeds of the shapes (default: 0)")
    parser.add_argument("--shapes", help="shapes BATCHxTIMExCHANNELS, separated by commas, instead of random ones")
    parser.add_argument("--count", type=int, default=40, help="number of shapes per seed (default: 40)")
    parser.add_argument(
        "--peers",
        type=int,
        help="number of shapes per seed at which peers run that compile for each shape (default: all)",
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="time limit per contender and shape (default: 0.5)")
    args = parser.parse_args()
    options = Options.of(device=args.device, smoke=args.smoke, seconds=args.seconds, sizes=args.shapes)
    count, (least, most) = args.count, TRAFFIC[args.device]
    if args.smoke:
        count, most = SMOKE["count"], SMOKE["most"]
    named = options.pick_sizes([], "BATCHxTIMExCHANNELS")
    cases = [(None, number, shape) for number, shape in enumerate(named)] or [
        (seed, number, shape)
        for seed in args.seed
        for number, shape in enumerate(draw_shapes(seed, count, least, most))
    ]
    peers = scan_peers.available(args.device)
    limits = announce(options)
    rows: list[dict[str, Any]] = []
    out = _measure.record_path(args)
    for done, (seed, number, shape) in enumerate(cases, 1):
        running = (
            peers if args.peers is None or number < args.peers else {name: peers[name] for name in QUICK & set(peers)}
        )
        found = one_case(shape, running, limits["copy_gigabytes_per_second"] * 1e9, options)
        found = [{"seed": seed} | row for row in found]
        table.say("\n" + show("{size}, {traffic_megabytes:.1f} MB", found))
        rows += found
        summary = limits | summarize(rows)
        more = {"seed": None if named else args.seed, "shapes": len(cases), "peers": peers}
        _measure.write_record(out, args.device, rows, summary, complete=done == len(cases), **more)
    table.say("\n" + table.facts(summary) + f"\n\nwritten: {out}")


if __name__ == "__main__":
    main()
