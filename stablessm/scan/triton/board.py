"""Memory in which the programs of one launch tell each other how far they are (:mod:`.chain_kernels`).

A board starts as zeros and is never cleared, but two launches on one board must not overlap. Every stream of a device
has a board of its own, and so has every call that a CUDA graph captures, because graphs can be replayed on any stream.
These boards live as long as the process, because nobody says when a graph will not be replayed again. Boards of
captured calls are parts of one array per device. A launch that needs a larger board, or finds the array used up, clears
a board first, which takes about two microseconds.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from stablessm.scan.dispatch import raw_stream

SMALLEST, LARGEST = 1 << 14, 1 << 20
"""Number of words in the smallest and in the largest board of a stream."""
CAPTURED, LARGEST_CAPTURED = 1 << 22, 1 << 18
"""Number of words for all captured calls of a device, and for one."""

_lock = threading.Lock()
_boards: dict[tuple[torch.device, int], list[Tensor]] = {}
"""Boards by device and stream, the last one the largest: a launch on a smaller one may still be running."""
_left: dict[torch.device, Tensor] = {}
"""The words for captured calls that have not been given away."""


def board(device: torch.device, words: int) -> Tensor:
    """Return at least this many words for one launch on the current stream of a device."""
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
    size = -(-words // 16) * 16  # boards do not share a line of the cache
    with _lock:
        left = _left.get(device)
        if size > LARGEST_CAPTURED or left is None or left.numel() < size:
            return _zeros(device, words)
        found, _left[device] = left[:size], left[size:]
    return found


def _zeros(device: torch.device, words: int) -> Tensor:
    return torch.zeros(words, dtype=torch.int64, device=device)


def _kept(device: torch.device, words: int) -> Tensor:
    """Return zeros, allocated by a new thread: the caller's may have to allocate from the memory pool of a graph."""

    def allocate() -> Tensor:
        with torch.cuda.device(device):
            zeros = _zeros(device, words)
            torch.cuda.current_stream().synchronize()
        return zeros

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(allocate).result()
