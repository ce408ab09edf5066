"""Settings for every test: one thread a worker, Triton's interpreter where there is no GPU, reproducible examples."""

from __future__ import annotations

import os

# Of BLAS too, and in the processes that tests start: with as many workers as cores, more threads wait for each other.
# Read when a library is loaded, so before any import.
os.environ["OMP_NUM_THREADS"] = "1"

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before any import of ours

import hypothesis
import pytest
import triton_interpreter

hypothesis.settings.register_profile("default", deadline=None, print_blob=True, max_examples=60)
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("default"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


if os.environ.get("TRITON_INTERPRET") == "1":
    triton_interpreter.speed_up()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
