"""Numbers as several processors compute them: what all of them agree on may be pinned by a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

PROCESSORS: tuple[dict[str, str], ...] = (
    {},
    {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_CBWR": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Nehalem",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
)
"""Variables that make the libraries compute, and round, as they do on this processor and on older ones."""


def computed_by_each(script: str, *arguments: str) -> list[Any]:
    """Run a script once per processor and return what it prints as JSON."""
    command = [sys.executable, script, *arguments]
    runs = [subprocess.run(command, env=os.environ | each, check=True, stdout=subprocess.PIPE) for each in PROCESSORS]
    return [json.loads(run.stdout) for run in runs]
