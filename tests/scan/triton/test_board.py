"""The memory in which the programs of a chained scan meet, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from stablessm.scan.triton import board as boards

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A device whose current stream can be changed, and whether that captures."""
    state, zeros = SimpleNamespace(stream=7, capturing=False), boards._zeros
    monkeypatch.setattr(boards, "_left", {})
    monkeypatch.setattr(boards, "_boards", {})
    for name in ("_kept", "_zeros"):
        monkeypatch.setattr(boards, name, lambda device, words: zeros(torch.device("cpu"), words))
    monkeypatch.setattr(boards, "raw_stream", lambda index: state.stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state.capturing)
    return state


def test_launches_on_a_stream_share_a_board_that_grows(gpu: SimpleNamespace) -> None:
    first = boards.board(GPU, 20)
    assert first.dtype == torch.int64
    assert not first.any()
    assert boards.board(GPU, boards.SMALLEST) is first
    larger = boards.board(GPU, boards.SMALLEST + 1)
    assert larger.numel() == 2 * boards.SMALLEST
    assert boards.board(GPU, 20) is larger
    assert boards._boards[GPU, 7][0] is first  # a launch on it may still be running
    gpu.stream = 8
    other = boards.board(GPU, 20)
    assert other.data_ptr() not in {first.data_ptr(), larger.data_ptr()}


def test_captured_calls_have_boards_of_their_own(gpu: SimpleNamespace) -> None:
    boards.board(GPU, 20)
    gpu.capturing = True
    first, second = boards.board(GPU, 20), boards.board(GPU, 20)
    assert first.data_ptr() + 8 * first.numel() <= second.data_ptr()
    assert boards.board(GPU, boards.LARGEST_CAPTURED + 1).numel() == boards.LARGEST_CAPTURED + 1
    places = [boards.board(GPU, boards.LARGEST_CAPTURED) for _ in range(boards.CAPTURED // boards.LARGEST_CAPTURED)]
    storages = {board.untyped_storage().data_ptr() for board in places}
    assert storages > {first.untyped_storage().data_ptr()}  # the words for captured calls are used up


def test_large_boards_and_those_of_an_early_capture_are_cleared_by_every_call(gpu: SimpleNamespace) -> None:
    words = boards.LARGEST + 1
    assert boards.board(GPU, words) is not boards.board(GPU, words)
    gpu.capturing = True
    assert boards.board(GPU, 20) is not boards.board(GPU, 20)
    assert not boards._left
    assert not boards._boards
