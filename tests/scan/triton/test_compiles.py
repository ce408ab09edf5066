"""Every Triton kernel compiles for GPUs that are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from stablessm.scan.triton import chain_kernels, linear_kernels, matmul, ssm_kernels

SCRIPT = Path(__file__).parents[2] / "triton_without_gpu.py"
SHARED_BYTES = 163 * 1024
"""What a program may have of an sm_80's shared memory; sm_90 has more."""


@pytest.mark.parametrize(
    ("architecture", "cases"),
    [(90, ["3"]), *(pytest.param(name, [], marks=pytest.mark.slow) for name in (90, 80))],
)
def test_kernels_compile_without_a_gpu(architecture: int, cases: list[str], tmp_path: Path) -> None:
    """The cases that have every kernel; all cases and a second architecture among the slow tests."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), str(architecture), *cases]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    made = json.loads(result.stdout)
    modules = (chain_kernels, linear_kernels, matmul, ssm_kernels)
    names = {name for module in modules for name in vars(module) if name.endswith("_kernel")}
    assert {line["kernel"] for line in made} == names
    for line in made:
        assert line["target"].startswith(f"sm_{architecture}")
        assert line["shared_bytes"] <= SHARED_BYTES, line
        # Sizes that are multiples of nothing may spill; elsewhere a few registers at most.
        assert line["spilled_bytes"] <= 64 or "77" in line["case"], line
