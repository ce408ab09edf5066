"""What a backend of the fused layer is tested with: inputs of every kind, compared with the float64 reference.

Without pytest or hypothesis, so that a machine that has PyTorch alone can run it.
"""

from __future__ import annotations

import torch
from scan_cases import device_of, draw, draw_decay, relative_error, scattered
from torch import Tensor

from stablessm import linear_scan, scan, ssm_scan

BACKENDS = scan.NAMES
LENGTHS = [0, 1, 15, 64, 65, 300, 1000]
TOLERANCE = {
    torch.float64: 1e-11,
    torch.complex128: 1e-11,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
}
REAL = {torch.complex128: torch.float64, torch.complex64: torch.float32}


def draw_layer(
    dtype: torch.dtype, batch: int, steps: int, channels: int, states: int, *, skip: bool, initial: bool, seed: int
) -> tuple[list[Tensor], torch.Generator]:
    """x, decay, B, C and, where wanted, D and initial; dtype is that of the states."""
    generator = torch.Generator().manual_seed(seed)
    real = REAL.get(dtype, dtype)
    tensors = [draw((batch, steps, channels), real, generator), draw_decay((channels, states), dtype, generator)]
    tensors += [draw((channels, states), dtype, generator) for _ in range(2)]
    tensors.append(draw((channels,), real, generator) if skip else None)
    tensors.append(draw((batch, channels, states), dtype, generator) if initial else None)
    return tensors, generator


def check_against_reference(
    backend: str,
    dtype: torch.dtype,
    length: int,
    *,
    batch: int,
    channels: int,
    states: int,
    skip: bool,
    initial: bool,
    reset: int | None,
    lengths: bool,
    contiguous: bool,
    seed: int,
) -> float:
    """Assert that values and gradients match; returns the largest relative error."""
    tensors, generator = draw_layer(dtype, batch, length, channels, states, skip=skip, initial=initial, seed=seed)
    cut = None if reset is None else torch.rand((batch, length)[2 - reset :], generator=generator) < 0.05
    ends = torch.randint(0, length + 1, (batch,), generator=generator) if lengths else None
    real = REAL.get(dtype, dtype)
    upstream = draw((batch, length, channels), real, generator), draw((batch, channels, states), dtype, generator)

    def run(inputs: list[Tensor | None], backend: str) -> list[Tensor]:
        device = device_of(backend)
        options = {"reset": cut, "lengths": ends}
        outputs = ssm_scan(
            *inputs, **{k: None if v is None else v.to(device) for k, v in options.items()}, backend=backend
        )
        grads = [g.to(device, output.dtype) for g, output in zip(upstream, outputs, strict=True)]
        given = [tensor for tensor in inputs if tensor is not None]
        return [output.detach() for output in outputs] + list(torch.autograd.grad(outputs, given, grads))

    wide = {None: None, real: torch.float64, dtype: torch.complex128 if dtype.is_complex else torch.float64}
    exact = [None if t is None else t.to(wide[t.dtype]).requires_grad_() for t in tensors]
    device = device_of(backend)
    ours = [
        None if t is None else (t if contiguous else scattered(t)).to(device).detach().requires_grad_() for t in tensors
    ]
    truth, results = run(exact, "reference"), run(ours, backend)
    assert results[0].dtype == real
    assert results[1].dtype == dtype
    # A gradient that all steps share is a sum: where that cancels, what was added counts.
    added = _added(exact, cut, ends, upstream)
    sizes = [1e-30, 1e-30, 1e-30, *added[: 4 if skip else 3], *([1e-30] if initial else [])]
    worst = max(relative_error(*pair, size) for *pair, size in zip(results, truth, sizes, strict=True))
    assert worst <= TOLERANCE[dtype], f"{backend}, {dtype}: relative error {worst:.1e}"
    return worst


def _added(
    tensors: list[Tensor | None], reset: Tensor | None, lengths: Tensor | None, upstream: tuple[Tensor, Tensor]
) -> list[float]:
    """The size of what is summed for the gradients of decay, B, C and D: the root of the sum of squares over steps."""
    x, decay, B, C, D, initial = (None if tensor is None else tensor.detach() for tensor in tensors)
    batch, steps = x.shape[:2]
    D = torch.zeros_like(decay[:, 0].abs()) if D is None else D
    each = [tensor.expand(batch, steps, *tensor.shape).clone().requires_grad_() for tensor in (decay, B, C, D)]
    time = torch.arange(steps).expand(batch, steps)
    ends = torch.full((batch,), steps) if lengths is None else lengths
    signal = torch.where((time < ends[:, None])[..., None], x, 0.0)
    start = torch.zeros_like(decay).expand(batch, *decay.shape) if initial is None else initial
    cut = None if reset is None else reset.expand(batch, steps)
    drive = (signal[..., None] * each[1]).flatten(2)
    states = linear_scan(each[0].flatten(2), drive, start.flatten(1), reset=cut, backend="reference")
    states = states.unflatten(2, decay.shape)
    y = (states * each[2]).sum(-1)
    y = (y.real if y.is_complex() else y) + each[3] * signal
    final = states[torch.arange(batch), (ends - 1).clamp(min=0)] if steps else start.clone().requires_grad_()
    final = torch.where((ends > 0)[:, None, None], final, start)
    kept = torch.where((time < ends[:, None])[..., None], upstream[0].to(y.dtype), 0.0)
    terms = torch.autograd.grad((y, final), each, (kept, upstream[1].to(final.dtype)), allow_unused=True)
    return [
        max(1e-30, 0.0 if t is None or not t.numel() else t.abs().square().sum((0, 1)).sqrt().max().item())
        for t in terms
    ]
