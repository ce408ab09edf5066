"""Sequences split across 2, 3 and 4 processes give what one process gives; four are started, once, for everything."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import split_sequences
from split_sequences import LAYERS, PARTS, RANKS

NAMES = ("scan", "fused", *(f"layer {name}" for name in LAYERS), "second derivative")
MODELS = ("model hyena-real", "model hyena-lru", "model hyena-s4d", "sharded model")
TOLERANCE = 1e-10


def run(folder: Path, thorough: bool, seconds: float) -> list[dict[str, Any]]:
    """What each rank found."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stablessm.parallel", "torch.distributed.fsdp", "torch._dynamo"])  # once for all
    arguments = ((rank, folder, thorough) for rank in range(RANKS))
    processes = [context.Process(target=split_sequences.main, args=own, daemon=True) for own in arguments]
    for process in processes:
        process.start()
    until = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        process.kill()
    found = [folder / f"{rank}.json" for rank in range(RANKS)]
    return [
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"failed": "it hung or died"}
        for path in found
    ]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("ranks"), thorough=False, seconds=240)


def test_no_rank_failed(found: list[dict[str, Any]]) -> None:
    assert [rank["failed"] for rank in found] == [None] * RANKS


@pytest.mark.parametrize("name", [*NAMES, *MODELS])
def test_values_and_gradients_are_those_of_one_rank(found: list[dict[str, Any]], name: str) -> None:
    errors = {key: rank["errors"][key] for rank in found for key in rank["errors"] if key.startswith(f"{name} on")}
    ranks = {int(key.rsplit(" ", 1)[1]) for key in errors}
    assert ranks == set(PARTS) if name in NAMES else len(ranks) == 1, "some were not compared"
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.slow
def test_values_and_gradients_in_all_combinations(tmp_path: Path) -> None:
    found = run(tmp_path, thorough=True, seconds=900)
    assert [rank["failed"] for rank in found] == [None] * RANKS
    errors = {key: error for rank in found for key, error in rank["errors"].items()}
    assert len(errors) == len(PARTS) * len([*NAMES, *MODELS])
    assert max(errors.values()) <= TOLERANCE, errors


def test_messages_have_the_size_of_states(found: list[dict[str, Any]]) -> None:
    """A message holds a factor and an offset (B, C); their number is that of the rounds, whatever the length."""
    batch, number, rounds = 2, 8, 2
    for case, channels in (("4x8", 8), ("4000x8", 8), ("4x16", 16)):
        one = 2 * batch * channels * number
        forward, backward = zip(*(rank["traffic"][case] for rank in found), strict=True)
        assert [len(sent) for sent in forward] == [2, 2, 1, 0]
        assert [len(sent) for sent in backward] == [0, 1, 2, 2]
        assert all(size == one for sent in (*forward, *backward) for size in sent)
        assert max(sum(sent) for sent in forward) == rounds * one


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits a process's memory")
def test_the_language_model_trains_with_a_context_that_one_rank_cannot_hold(found: list[dict[str, Any]]) -> None:
    assert [rank["memory"] for rank in found] == [{"split": "learned", "whole": "out of memory"}] * RANKS
