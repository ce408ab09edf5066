"""What the GPU backends launch, compiled for a GPU that is not there: ``python triton_without_gpu.py 90`` for sm_90.

A second argument, ``python triton_without_gpu.py 90 3``, is the number of cases; the first three have every kernel,
and each kernel is then compiled once, as it is launched first.

A process of its own, because Triton's driver is replaced and its interpreter must be off. Inputs have shapes and no
memory. Prints a JSON list with a line for each compiled kernel.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from types import SimpleNamespace
from typing import Any

if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is defined

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from stablessm.scan.triton.launch import Launch

BIG, LONG, SMALL, RAGGED = (8, 2048, 2048), (1, 131072, 64), (8, 1024, 256), (3, 77, 35)
compiled: dict[str, dict[str, Any]] = {}
case, once = "", len(sys.argv) > 2
knobs.nvidia.dump_ptxas_log = knobs.compilation.always_compile = True  # also where another test imports this


def compile_only(launch: Launch, *tensors: torch.Tensor) -> None:
    """In the place of the launch; the assembler's words are those of Triton's own call of it."""
    name = launch._kernel.fn.__name__
    if once and name in {line["kernel"] for line in compiled.values()}:
        return
    with contextlib.redirect_stdout(io.StringIO()) as said:
        made = launch.compile(tensors)
    if made.hash not in compiled:
        compiled[made.hash] = {
            "case": case,
            "kernel": made.name,
            "target": re.search(r"\.target (sm_\w+)", made.asm["ptx"]).group(1),
            "shared_bytes": made.metadata.shared,
            "registers": int(re.search(r"Used (\d+) registers", said.getvalue()).group(1)),
            "spilled_bytes": sum(map(int, re.findall(r"(\d+) bytes spill", said.getvalue()))),
        }


def scan(shape: tuple[int, int, int], dtype: torch.dtype, per_step: bool, cut: bool) -> None:
    """A scan with its gradients; ``cut`` has an initial state and resets."""
    from stablessm.scan.protocol import Recurrence
    from stablessm.scan.triton import linear

    drive = torch.empty(shape, dtype=dtype)
    decay = torch.empty(shape if per_step else (1, 1, shape[2]), dtype=dtype)
    initial = torch.empty(shape[0], shape[2], dtype=dtype) if cut else None
    reset = torch.empty(shape[:2], dtype=torch.bool) if cut else None
    recurrence = Recurrence(decay, initial, reset, False)
    linear.forward(recurrence, drive)
    linear.backward(recurrence, drive, drive)


def layer(dtype: torch.dtype, states: int) -> None:
    from stablessm.scan.protocol import DiagonalSSM
    from stablessm.scan.triton import ssm

    x, decay, skip = torch.empty(64, 4096, 64), torch.empty(64, states, dtype=dtype), torch.empty(64)
    inputs = DiagonalSSM(x, decay, decay, decay, skip, None, None, None)
    y, final, checkpoints = ssm.forward(inputs)
    ssm.backward(inputs, checkpoints, y, final)


CASES = [
    (scan, LONG, torch.complex64, True, False),
    (scan, RAGGED, torch.float32, False, True),
    (layer, torch.complex64, 16),
    (scan, LONG, torch.bfloat16, False, True),
    (layer, torch.float32, 64),
    (scan, LONG, torch.float32, False, False),
    (scan, LONG, torch.bfloat16, True, True),
    (scan, BIG, torch.float32, True, False),
    (scan, BIG, torch.complex64, False, False),
    (scan, BIG, torch.bfloat16, True, True),
    (scan, SMALL, torch.float32, True, True),
    (scan, SMALL, torch.complex64, False, True),
]

if __name__ == "__main__":
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    absent = {"get_current_target": lambda: target, "get_current_device": lambda: 0, "get_current_stream": lambda _: 0}
    driver.set_active(SimpleNamespace(**absent))
    Launch.__call__ = compile_only
    with torch.device("meta"):
        for function, *arguments in CASES[: int(sys.argv[2]) if len(sys.argv) > 2 else None]:
            case = f"{function.__name__}{tuple(arguments)}"
            function(*arguments)
    print(json.dumps(list(compiled.values()), indent=1))
