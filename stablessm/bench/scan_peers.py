"""Runs the scan h[t] = a[t] h[t-1] + x[t] in other packages ("peers"). For each peer, its fastest public function is
used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import Any, TypeAlias

import torch
from torch import Tensor

from stablessm._optional import why_missing
from stablessm.bench.contest import GRAPH, OURS, PHASES, Contender, graph_contender, torch_contender
from stablessm.bench.measure import host_clock
from stablessm.scan import linear_scan

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""a, x and the gradient g of the states; x and g are (batch, time, channel), a is shaped as x or (channel,)."""
Scan: TypeAlias = Callable[[Any, Any], Any]

PEERS = {
    "jax": "jax", "mambapy": "mambapy", "accelerated-scan": "accelerated_scan", "flash-linear-attention": "fla"
}  # fmt: skip
"""Packages to compare with, and the names under which they are imported."""
_NEEDS_CUDA = ("accelerated-scan", "flash-linear-attention")
_ACCELERATED_BLOCK = 2048
"""Number of steps per block of accelerated-scan."""


def available(device: str) -> dict[str, str]:
    """Return a dict from the name of each peer to its version, or to the reason why it cannot run on ``device``."""
    found = {}
    for name, module in PEERS.items():
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
            continue
        if name in _NEEDS_CUDA and device == "cpu":
            found[name] = "needs a GPU"
        elif (why := why_missing(module)) is not None:
            found[name] = why
        elif name == "jax" and _jax_device(device) is None:
            found[name] = f"sees no {device} device"
    return found


def contenders(sets: Sequence[Inputs], peers: Mapping[str, str]) -> dict[str, Callable[[], Contender]]:
    """Return a dict from the name of each contender to a function that builds it. The contenders are this package,
    simple implementations in PyTorch, and every available peer that can run this case.
    """
    a, x, _ = sets[0]
    here = {name for name, version in peers.items() if version[0].isdigit()}
    makers: dict[str, Callable[[], Contender]] = {OURS: partial(torch_contender, linear_scan, sets)}
    if x.is_cuda:
        makers[GRAPH] = partial(graph_contender, linear_scan, sets)
    else:
        makers["torch loop"] = partial(torch_contender, partial(linear_scan, backend="reference"), sets)
    if "jax" in here:
        if not x.is_cuda:  # on a GPU lax.scan launches one kernel per step and takes hundreds of milliseconds
            makers["jax lax.scan"] = partial(jax_contender, _lax_scan, sets)
        makers["jax associative_scan"] = partial(jax_contender, associative_scan, sets)
    if "mambapy" in here:
        makers["mambapy pscan"] = partial(torch_contender, _mambapy, sets)
    if "accelerated-scan" in here:
        makers["accelerated-scan"] = partial(accelerated_contender, sets)
    if "flash-linear-attention" in here and not x.is_complex():
        makers["flash-linear-attention"] = partial(hgrn_contender, sets, "chunk_hgrn")
    if a.dim() == 1 and x.dtype != torch.bfloat16:  # cuFFT has no bfloat16
        makers["torch FFT convolution"] = partial(torch_contender, _fft, sets)
    return makers


def _fft(a: Tensor, x: Tensor) -> Tensor:
    """Compute the states by FFT, as a convolution of x with the kernel a**t, as S4D does in training. The decay a must
    not depend on time.
    """
    steps = x.shape[1]
    kernel = a ** torch.arange(steps, device=x.device, dtype=x.real.dtype)[:, None]
    transform, inverse = (torch.fft.fft, torch.fft.ifft) if x.is_complex() else (torch.fft.rfft, torch.fft.irfft)
    return inverse(transform(x, 2 * steps, dim=1) * transform(kernel, 2 * steps, dim=0), 2 * steps, dim=1)[:, :steps]


def _mambapy(a: Tensor, x: Tensor) -> Tensor:
    from mambapy.pscan import pscan

    return pscan(a.expand(x.shape).unsqueeze(-1), x.unsqueeze(-1)).squeeze(-1)


def accelerated_contender(sets: Sequence[Inputs], *, transpose: bool = True) -> Contender:
    """Build the contender accelerated-scan. The backward pass is left out if the inputs are real and the length of the
    sequence is not a multiple of the block size of accelerated-scan.

    If the last block is not full, ``scalar.backward_scan`` of version 0.3.1 reads past the end of its array (its mask
    is only t > 0). This can be an illegal memory access, after which all CUDA calls of the process fail.

    Args:
        sets: Inputs in the layout of this package, (batch, time, channel).
        transpose: If True, every timed call transposes the inputs to the contiguous layout (batch, channel, time) of
            accelerated-scan, and the result back. Otherwise the inputs are transposed before the timed calls, and the
            time contains no transposes.
    """
    x = sets[0][1]
    if transpose:
        contender = torch_contender(_accelerated, sets)
    else:
        own = [tuple(tensor.expand(x.shape).mT.contiguous() for tensor in inputs) for inputs in sets]
        turned = torch_contender(_accelerated_own_layout, own)
        contender = replace(turned, answer=lambda parts: tuple(part.mT for part in parts))
    if x.is_complex() or x.shape[1] % _ACCELERATED_BLOCK == 0:
        return contender
    forward, both = PHASES
    why = f"left out: it reads past its arrays where the length is no multiple of {_ACCELERATED_BLOCK}"
    return replace(contender, calls={forward: contender.calls[forward]}, left_out={both: why})


def _accelerated(a: Tensor, x: Tensor) -> Tensor:
    return _accelerated_own_layout(a.expand(x.shape).mT.contiguous(), x.mT.contiguous()).mT.contiguous()


def _accelerated_own_layout(a: Tensor, x: Tensor) -> Tensor:
    from accelerated_scan import complex, scalar

    return (complex if x.is_complex() else scalar).scan(a, x)


def hgrn_contender(sets: Sequence[Inputs], function: str) -> Contender:
    """Build a contender from the function of ``fla.ops.hgrn`` (flash-linear-attention) with the name ``function``. This
    function takes log a instead of a. The logarithm is computed before the timed calls.
    """
    from fla.ops import hgrn

    scan = getattr(hgrn, function)

    def run(log_a: Tensor, x: Tensor) -> Tensor:
        return scan(x, log_a.expand(x.shape).contiguous())[0]

    def answer(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return parts if len(parts) == 1 else (parts[0], parts[1] / sets[0][0], parts[2])

    return torch_contender(run, [(a.log(), x, g) for a, x, g in sets], answer=answer)


def jax_contender(run: Scan, sets: Sequence[Inputs]) -> Contender:
    """Build a contender from a JAX function, compiled with its gradient.

    The calls are timed by the clock of the CPU. The time includes the launch of the kernels and the wait for the last
    result.
    """
    import jax
    import jax.numpy as jnp

    device = _jax_device(sets[0][1].device.type)

    def array(tensor: Tensor) -> Any:
        short = tensor.dtype == torch.bfloat16
        moved = jax.device_put((tensor.float() if short else tensor).cpu().numpy(), device)
        return moved.astype(jnp.bfloat16) if short else moved

    @jax.jit
    def forward(a: Any, x: Any, g: Any) -> tuple[Any, ...]:
        return (run(a, x),)

    @jax.jit
    def both(a: Any, x: Any, g: Any) -> tuple[Any, ...]:
        states, pull_back = jax.vjp(run, a, x)
        # JAX's gradient is conjugate to PyTorch's
        return states, *(jnp.conj(gradient) for gradient in pull_back(jnp.conj(g)))

    arrays = [tuple(map(array, inputs)) for inputs in sets]
    calls = {
        phase: [partial(call, *inputs) for inputs in arrays]
        for phase, call in zip(PHASES, (forward, both), strict=True)
    }
    return Contender(calls, host_clock)


def _lax_scan(a: Any, x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    over_time = jnp.swapaxes(x, 0, 1)
    initial = jnp.zeros_like(over_time[0])
    if a.ndim > 1:
        sequence = (jnp.swapaxes(a, 0, 1), over_time)
        states = jax.lax.scan(lambda h, ax: (ax[0] * h + ax[1],) * 2, initial, sequence)[1]
    else:
        states = jax.lax.scan(lambda h, u: (a * h + u,) * 2, initial, over_time)[1]
    return jnp.swapaxes(states, 0, 1)


def associative_scan(a: Any, x: Any) -> Any:
    """Compute the states by a parallel scan with ``jax.lax.associative_scan``."""
    import jax
    import jax.numpy as jnp

    def join(left: Any, right: Any) -> Any:
        return right[0] * left[0], right[0] * left[1] + right[1]

    return jax.lax.associative_scan(join, (jnp.broadcast_to(a, x.shape), x), axis=1)[1]


def _jax_device(device: str) -> Any:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most GPU memory
    import jax

    try:
        return jax.devices("gpu" if device == "cuda" else "cpu")[0]
    except RuntimeError:
        return None
