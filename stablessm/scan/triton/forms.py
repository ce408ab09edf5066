"""Chooses how a scan is divided among the programs of a GPU, by estimating the time that each division takes.

A program computes either a strip of channels over all time steps (a *walk*, :mod:`.linear_kernels`), or one tile of a
chain (:mod:`.chain_kernels`). The estimate has constants in microseconds, which were fitted to forward passes on an
H200. Only the ratios of the constants matter, because the division with the shortest estimated time is chosen.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeAlias

import torch


class Tile(NamedTuple):
    """The size of the tile that a program computes at once, and the options with which the program loads and computes
    it.
    """

    lane_bytes: int
    """Number of bytes that a lane (thread) loads with one instruction, if the array is aligned to it."""
    row_bytes: int
    rows: int
    stages: int
    """Number of pipeline stages: the next tiles are loaded while one is computed."""
    warps: int
    """Number of warps per program."""


class Form(NamedTuple):
    """A way to divide a scan among GPU programs: a walk or a chain, with a tile size and launch options."""

    tile: Tile
    window: int = 0
    """Number of levels in a group of a chain; 0 for a walk."""
    registers: int | None = None
    """Largest number of registers per thread (default: chosen by the compiler)."""


Costs: TypeAlias = dict[Tile, tuple[float, float]]
"""For each tile of a walk: the time a multiprocessor is busy with one tile, and the latency of one tile."""

_HALF, _FLOAT, _DOUBLE = torch.float16, torch.float32, torch.float64
_COMPLEX, _COMPLEX_DOUBLE = torch.complex64, torch.complex128
WHOLE: dict[torch.dtype, Costs] = {
    _HALF: {Tile(16, 256, 64, 3, 4): (1.5, 1.5), Tile(16, 32, 256, 3, 4): (1.21, 1.4)},
    _FLOAT: {
        Tile(16, 256, 32, 3, 2): (0.81, 1.2),
        Tile(16, 128, 64, 3, 4): (0.92, 1.13),
        Tile(16, 128, 32, 3, 2): (0.45, 1.05),
        Tile(16, 64, 64, 3, 2): (0.5, 1.03),
    },
    _DOUBLE: {Tile(16, 256, 32, 3, 2): (0.78, 1.13), Tile(16, 64, 64, 3, 2): (0.5, 1.06)},
    _COMPLEX: {Tile(16, 256, 8, 4, 1): (0.19, 0.5), Tile(16, 64, 128, 3, 4): (1.47, 1.7)},
    _COMPLEX_DOUBLE: {Tile(16, 128, 16, 4, 1): (0.2, 0.6), Tile(16, 64, 64, 3, 2): (0.6, 1.3)},
}
"""Costs of walks that read more than one array, by dtype; bfloat16 uses the entry of float16."""
LIGHT: dict[torch.dtype, Costs] = {
    _HALF: {Tile(16, 128, 64, 4, 2): (0.56, 1.0), Tile(16, 32, 256, 3, 4): (1.21, 1.4)},
    _FLOAT: {Tile(16, 256, 32, 4, 2): (0.53, 1.0), Tile(16, 64, 64, 3, 2): (0.4, 1.0)},
    _DOUBLE: {Tile(16, 256, 32, 4, 2): (0.53, 1.0), Tile(16, 64, 64, 3, 2): (0.4, 1.0)},
    _COMPLEX: {Tile(16, 512, 16, 4, 2): (0.52, 1.0), Tile(16, 64, 128, 3, 4): (1.25, 1.7)},
    _COMPLEX_DOUBLE: {Tile(16, 128, 16, 4, 1): (0.2, 0.6), Tile(16, 64, 64, 3, 2): (0.6, 1.3)},
}
"""Costs of walks that read a single array, which need more tiles in flight, by dtype."""
CHAIN: dict[Tile, dict[int, float]] = {
    Tile(16, 128, 128, 1, 4): {1: 1.69, 2: 1.87, 4: 1.9, 8: 2.1, 16: 2.35},
    Tile(16, 64, 256, 1, 4): {1: 1.87, 2: 1.96, 4: 1.97, 8: 2.05, 16: 2.15},
    Tile(16, 64, 128, 1, 2): {1: 1.02, 2: 1.06, 4: 1.07, 8: 1.12, 16: 1.22},
}
"""Time that a multiprocessor is busy with one float32 tile of a chain, by the number of levels in a group."""
CHAIN_FACTOR = {_HALF: 1.1, _FLOAT: 1.0, _DOUBLE: 1.0, _COMPLEX: 1.2, _COMPLEX_DOUBLE: 1.2}
"""Time for a tile of a chain relative to a float32 tile."""
HOP = {1: 0.57, 2: 0.65, 4: 0.72, 8: 0.72, 16: 0.85}
"""Time that a state takes from one group to the next, by the number of levels in a group."""
START, CHAIN_START = 3.0, 6.5
"""Fixed time of a launch, for a walk and for a chain."""
BACKWARD = 1.5
"""Time for a tile in a backward pass relative to a forward pass."""
REGISTERS = 128
"""Largest number of registers per thread in a chain, so that four programs of four warps fit on a multiprocessor."""
MOST = 1 << 24
"""Number of tickets that a board can count; a chain must have fewer tiles."""
PROCESSORS = 132
"""Number of multiprocessors of an H200, assumed where there is no GPU."""


class Task(NamedTuple):
    """The properties of a scan (such as shape, dtype and device) that determine how to divide it among GPU programs."""

    shape: tuple[int, int, int]
    dtype: torch.dtype
    per_step: bool
    backward: bool
    device: torch.device


def choose(task: Task) -> Form:
    """Return the way to divide a scan among GPU programs that has the shortest estimated time."""
    times = {Form(tile): _walk_time(task, tile, *cost) for tile, cost in _costs(task).items()}
    if chains(task.device):
        for tile, costs in CHAIN.items():
            if task.shape[1] > tile.rows:
                times |= {
                    Form(tile, window, REGISTERS): _chain_time(task, tile, window, cost)
                    for window, cost in costs.items()
                }
    return min(times, key=lambda form: times[form])


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else PROCESSORS


def chains(device: torch.device) -> bool:
    """Return True if the chain kernels can run on a device.

    They cannot run on an AMD GPU, because they contain NVIDIA assembly.
    """
    return device.type != "cuda" or torch.version.hip is None


def kind(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype whose measured costs are used for ``dtype``: float16 for bfloat16, otherwise
    ``dtype`` itself.
    """
    return _HALF if dtype.itemsize == 2 else dtype


def block(tile: Tile, dtype: torch.dtype, channels: int) -> int:
    """Return the number of channels that a program computes: a power of two, at most the number that fits in a tile's
    row.
    """
    return min(tile.row_bytes // dtype.itemsize, max(8, 1 << (channels - 1).bit_length()))


def _costs(task: Task) -> Costs:
    return (WHOLE if task.backward or task.per_step else LIGHT)[kind(task.dtype)]


def _walk_time(task: Task, tile: Tile, work: float, wait: float) -> float:
    batch, steps, channels = task.shape
    strips = batch * -(-channels // block(tile, task.dtype, channels))
    each = -(-strips // processors(task.device))  # programs on the busiest multiprocessor
    return START + -(-steps // tile.rows) * max(wait, each * work) * (BACKWARD if task.backward else 1.0)


def _chain_time(task: Task, tile: Tile, window: int, work: float) -> float:
    batch, steps, channels = task.shape
    levels, strips = -(-steps // tile.rows), batch * -(-channels // block(tile, task.dtype, channels))
    if levels * strips >= MOST:
        return float("inf")
    work *= CHAIN_FACTOR[kind(task.dtype)] * (BACKWARD if task.backward else 1.0) * levels * strips
    less, more = sorted((work / processors(task.device), -(-levels // window) * HOP[window]))
    return CHAIN_START + more + 0.25 * less  # tiles are computed while states are passed on
