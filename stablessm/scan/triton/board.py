"""Boards: arrays in GPU memory through which the programs of a launch exchange states (see :mod:`.chain_kernels`).

A board is an array of 64-bit words. A board starts as zeros and is never cleared; two launches on one board must not
overlap. Therefore every stream of a device has its own board, and so has every call that is captured in a CUDA graph,
because graphs can be replayed on any stream. The boards of captured calls are parts of one array per device. This array
is never freed, because a graph may be replayed at any later time. A launch that needs a larger board, or for which the
array has no space left, uses a new array of zeros, which takes about two microseconds to clear.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from stablessm.scan.dispatch import raw_stream

SMALLEST, LARGEST = 1 << 14, 1 << 20
"""Smallest and largest number of words of a stream's board."""
CAPTURED, LARGEST_CAPTURED = 1 << 22, 1 << 18
"""Number of words for all captured calls of a device, and the largest number for one call."""

_lock = threading.Lock()
_boards: dict[tuple[torch.device, int], list[Tensor]] = {}
"""Boards by device and stream. The last one is used; earlier, smaller boards are kept for launches still running."""
_left: dict[torch.device, Tensor] = {}
"""The words that no captured call uses yet."""


def board(device: torch.device, words: int) -> Tensor:
    """Return a board of at least ``words`` 64-bit words for one launch on the current stream of a device."""
    if device.type != "cuda":
        return _zeros(device, words)
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            return board(device, words)
    if torch.cuda.is_current_stream_capturing():
        return _board_of_captured_call(device, words)
    stream = raw_stream(device.index)
    known = _boards.get((device, stream))
    if known is not None and known[-1].numel() >= words:
        return known[-1]
    if words > LARGEST:
        return _zeros(device, words)
    with _lock:
        if device not in _left:
            _left[device] = _kept(device, CAPTURED)
        made = _kept(device, max(SMALLEST, 1 << (words - 1).bit_length()))
        _boards.setdefault((device, stream), []).append(made)
    return made


def _board_of_captured_call(device: torch.device, words: int) -> Tensor:
    size = -(-words // 16) * 16  # boards do not share a cache line
    with _lock:
        left = _left.get(device)
        if size > LARGEST_CAPTURED or left is None or left.numel() < size:
            return _zeros(device, words)
        found, _left[device] = left[:size], left[size:]
    return found


def _zeros(device: torch.device, words: int) -> Tensor:
    return torch.zeros(words, dtype=torch.int64, device=device)


def _kept(device: torch.device, words: int) -> Tensor:
    """Return an array of ``words`` zeros that is allocated outside of every CUDA graph's memory pool, so that it
    outlives the graph.

    A new thread allocates the array, because a new thread does not use the memory pool of the graph that is being
    captured.
    """

    def allocate() -> Tensor:
        with torch.cuda.device(device):
            zeros = _zeros(device, words)
            torch.cuda.current_stream().synchronize()
        return zeros

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(allocate).result()
