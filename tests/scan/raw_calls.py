"""Raw operators called with wrong tensors, for a process of its own: a crash is its exit code.

    python tests/scan/raw_calls.py 0 200        # seeds from 0, 200 calls

Prints one line per call that raised another error than a named one, and the number of calls that ran.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import fuzz_values

from stablessm import ArgumentError, scan
from stablessm.layers import zero_order_hold  # noqa: F401 (its operators)

B, T, C, N = 2, 19, 5, 3


def good(rng: random.Random) -> dict[str, list[Any]]:
    """Arguments that every operator accepts."""
    dtype = rng.choice((torch.float32, torch.float64, torch.complex64, torch.complex128))
    real = dtype.to_real()
    backend = rng.choice(("cpu", "reference"))
    decay = torch.rand(rng.choice((1, B)), rng.choice((1, T)), C).to(dtype)
    drive, initial = torch.randn(B, T, C, dtype=dtype), rng.choice((None, torch.randn(B, C, dtype=dtype)))
    reset, lengths = rng.choice((None, torch.rand(B, T) < 0.2)), rng.choice((None, torch.tensor([T, 3])))
    x, state = torch.randn(B, T, C, dtype=real), torch.randn(B, C, N, dtype=dtype)
    layer = [x, *(torch.rand(C, N).to(dtype) for _ in range(3)), rng.choice((None, torch.randn(C, dtype=real)))]
    layer += [rng.choice((None, state)), reset, lengths, backend]
    checkpoints = torch.ops.stablessm.ssm_scan(*layer)[2]
    return {
        "scan": [decay, drive, initial, reset, rng.random() < 0.5, backend],
        "scan_backward": [drive, decay, torch.randn_like(drive), initial, reset, rng.random() < 0.5, backend],
        "ssm_scan": layer,
        "ssm_scan_backward": [torch.randn_like(x), rng.choice((None, state)), checkpoints, *layer],
        "hold": [torch.randn(4, N), torch.rand(4, 1)],
        "hold_backward": [torch.randn(4, N), torch.rand(4, 1), torch.randn(4, N), torch.randn(4, N)],
    }


def wrong(rng: random.Random, arguments: list[Any]) -> None:
    """Change one or two arguments: shape, dtype, device, layout, values; or the name of the backend."""
    for place in rng.sample(range(len(arguments)), rng.choice((1, 1, 2))):
        value = arguments[place]
        if isinstance(value, str):
            arguments[place] = rng.choice(("auto", "triton", "", "cpu", "reference", "numba"))
        elif isinstance(value, torch.Tensor) or value is None:
            changed = fuzz_values.near(rng, torch.rand(B, T) if value is None else value)
            if value is not None and rng.random() < 0.1:
                changed = value.new_zeros([size * 1000 for size in value.shape[:1]] + list(value.shape[1:]))
            real = isinstance(changed, torch.Tensor) and not changed.is_meta  # one without values reaches no kernel
            arguments[place] = changed if real else None


def main(first: int, count: int) -> None:
    ran = 0
    for seed in range(first, first + count):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        for name, arguments in good(rng).items():
            operator = getattr(torch.ops.stablessm, name)
            if not name.startswith("hold"):
                operator(*arguments)
            wrong(rng, arguments)
            ran += 1
            try:
                operator(*arguments)
            except (ArgumentError, scan.backends.BackendUnavailableError):
                pass
            except Exception as error:
                if "argument" not in str(error).lower():  # of PyTorch's dispatcher, which names the argument
                    print(f"{name} {seed}: {type(error).__name__}: {str(error)[:200]}")
    print(f"ran {ran}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
