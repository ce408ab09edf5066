"""Compares the speed of the fused layer with an FFT convolution and with a scan that writes its states to memory.

A convolution requires the kernel of the layer, which training computes anew at every step. The contenders compute it in
three ways: from all modes at all times, as S4D does; by the faster method of this package (``two levels``); or before
the timed call (``cached``), which leaves this cost out and gives no gradients of the layer's parameters. Every
contender is first compared with float64; no time is reported for a wrong result. The floor, a lower limit of the time,
is the number of bytes that must be moved (forward: x read, y written; backward: two arrays read, one written) divided
by the rate of a plain copy in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from stablessm.bench.contest import OURS, PHASES, Gate, Makers, contest, show, torch_contender
from stablessm.bench.measure import copies
from stablessm.bench.options import Options
from stablessm.bench.suite import Row, announce, run_cases
from stablessm.scan import causal_convolution, evaluate, resolve, ssm_scan
from stablessm.scan.protocol import DiagonalSSM
from stablessm.scan.reference.ssm import by_states
from stablessm.training.precision import matmul_precision

_CPU_SIZES = [(8, 1024, 256), (1, 16384, 256), (1, 131072, 64)]
SIZES = {
    "cpu": [(*size, states) for size in _CPU_SIZES for states in (4, 16, 32, 64)],
    "cuda": [(8, 4096, 512, 16), (8, 4096, 512, 64), (1, 1048576, 64, 16)],
}
SMOKE = [(2, 70, 16, 4)]
DTYPES = ["complex64", "tf32"]
"""Data types. States are complex64. With ``tf32``, matrix products round their factors to 10 bits."""
SCALARS = {"forward": 2, "forward+backward": 5}
"""Number of values that must be moved for each value of x."""
CHECKED = 2
"""Number of channels that are compared with float64."""
LOOP_STEPS = 20_000
"""Maximum number of steps for which the reference, a loop, gives the true values; beyond, float64 CPU kernels do."""
TOLERANCE = 1e-3
"""Largest relative error of a correct result."""
MOST_BYTES = {"cpu": 1 << 30, "cuda": 16 << 30}
"""Largest number of bytes of an array, by device; contenders with a larger array are left out."""


def run(options: Options) -> None:
    """Measure all cases of the fused layer, print a table for each, and update the record after each."""
    sizes = options.pick_sizes(SMOKE if options.smoke else SIZES[options.device], "BATCHxTIMExCHANNELSxSTATES")
    dtypes = options.pick_dtypes(DTYPES if options.device == "cuda" else DTYPES[:1], DTYPES)
    limits = announce(options)
    measure = partial(one_case, bandwidth=limits["copy_gigabytes_per_second"] * 1e9, options=options)
    title = partial(show, "{size}  {dtype}  (batch x time x channels x complex states)")

    def summary(rows: Sequence[Row]) -> dict[str, float]:
        return limits | summarize([row for row in rows if row["dtype"] == dtypes[0]])

    run_cases("ssm", options, {"size": sizes, "dtype": dtypes}, measure, title, summary)


def one_case(size: tuple[int, ...], dtype: str, bandwidth: float, options: Options) -> list[Row]:
    """Measure all contenders in one case, in the forward pass and in the forward and backward pass together; return a
    row for each contender and pass. ``bandwidth`` is the rate of a plain copy in bytes per second.
    """
    inputs = draw(size)
    gate = Gate(truth(*inputs), some_channels, TOLERANCE)
    first = [tensor.to(options.device) for tensor in inputs]
    x = first[0]
    sets = [first, *([t.clone() for t in first] for _ in range(copies(options.device, 2 * x.nbytes) - 1))]
    floors = {phase: SCALARS[phase] * x.nbytes / bandwidth * 1e3 for phase in PHASES}
    with matmul_precision("high" if dtype == "tf32" else "highest"):
        return contest(contenders(sets, MOST_BYTES[options.device]), gate, floors, options)


def draw(size: tuple[int, ...]) -> list[Tensor]:
    """Draw random inputs of the fused layer: x, the decays (modulus 0.5 to 0.999, phase up to 0.3), B, C, D and the
    gradient of the output.
    """
    torch.manual_seed(0)
    batch, steps, channels, states = size
    shape = (channels, states)
    decay = torch.polar(0.5 + 0.499 * torch.rand(shape), 0.3 * torch.rand(shape))
    B, C = (torch.randn(shape, dtype=torch.complex64) for _ in range(2))
    x, g = (torch.randn(batch, steps, channels) for _ in range(2))
    return [x, decay, B, C, torch.randn(channels), g]


def truth(*inputs: Tensor) -> list[np.ndarray]:
    """Compute the output and the gradients in float64, for the channels that are compared with the contenders."""
    *leaves, g = (torch.from_numpy(part) for part in some_channels(inputs))
    leaves = [leaf.requires_grad_() for leaf in leaves]
    y, _ = ssm_scan(*leaves, backend="reference" if len(g[0]) <= LOOP_STEPS else "cpu")
    return [tensor.detach().numpy() for tensor in (y, *torch.autograd.grad(y, leaves, g))]


def some_channels(parts: Sequence[Tensor]) -> list[np.ndarray]:
    """Return the first and the last channel of each tensor in double precision, to compare them with the reference.

    The channels are the last dimension of a tensor (B, T, H), and the first dimension of any other tensor.
    """
    found = []
    for part in parts:
        index = torch.linspace(0, part.shape[-1 if part.dim() == 3 else 0] - 1, CHECKED).long().to(part.device)
        chosen = part.detach()[..., index] if part.dim() == 3 else part.detach()[index]
        found.append(chosen.to(torch.promote_types(part.dtype, torch.float64)).cpu().numpy())
    return found


def contenders(sets: Sequence[Sequence[Tensor]], most_bytes: int) -> Makers:
    """Return a dict from the name of each contender to a function that builds it. Contenders whose arrays would exceed
    ``most_bytes`` are left out.
    """
    x, decay = sets[0][:2]
    steps, states = x.shape[1], decay.numel()
    found = {
        OURS: lambda: torch_contender(_fused, sets),
        "FFT, kernel in two levels": lambda: torch_contender(_fft_two_levels, sets),
    }
    if 8 * states * steps <= most_bytes:
        found["FFT, kernel from all modes"] = lambda: torch_contender(_fft_all_modes, sets)
    if 8 * states * steps * len(x) <= most_bytes:
        found["states written"] = lambda: torch_contender(_states, sets)
    kernels = [(x, _kernel(decay, B, C, steps), D, g) for x, decay, B, C, D, g in sets]
    found["FFT, kernel cached"] = lambda: torch_contender(_fft, kernels, answer=lambda parts: parts[:2])
    return found


def _fused(x: Tensor, decay: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    return ssm_scan(x, decay, B, C, D)[0]


def _fft_two_levels(x: Tensor, decay: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    return _fft(x, _kernel(decay, B, C, x.shape[1]), D)


def _fft_all_modes(x: Tensor, decay: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    times = torch.arange(x.shape[1], device=x.device)
    modes = torch.exp(decay.log()[..., None] * times)
    return _fft(x, torch.einsum("hn,hnt->th", C * B, modes).real, D)


def _states(x: Tensor, decay: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    return by_states(DiagonalSSM(x, decay, B, C, D, None, None, None), resolve("auto", x.device))[0]


def _fft(x: Tensor, kernel: Tensor, D: Tensor) -> Tensor:
    return causal_convolution(x, kernel) + D * x


def _kernel(decay: Tensor, B: Tensor, C: Tensor, steps: int) -> Tensor:
    return evaluate(C * B, decay, steps).real.mT


def summarize(rows: Sequence[Row]) -> dict[str, float]:
    """Compare the fused layer with each of the other contenders. Return two speed-ups for each contender and pass: the
    smallest over all cases, and the geometric mean over all cases. On a GPU, times without launch overhead are
    compared.
    """
    found = {}
    key = "queued_ms" if any("queued_ms" in row for row in rows) else "ms"
    for phase in PHASES:
        ours = {row["size"]: row.get(key) for row in rows if row["contender"] == OURS and row["phase"] == phase}
        for name in dict.fromkeys(row["contender"] for row in rows if row["contender"] != OURS):
            ratios = [
                row[key] / ours[row["size"]]
                for row in rows
                if row["contender"] == name and row["phase"] == phase and row.get(key) and ours[row["size"]]
            ]
            if ratios:
                what = f"{phase.replace('+', '_')}_ahead_of_{name.replace(',', '').replace(' ', '_')}"
                found[f"least_{what}"] = min(ratios)
                found[f"mean_{what}"] = statistics.geometric_mean(ratios)
    return found
