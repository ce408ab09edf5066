"""The fading function: how long a model can distinguish two different pasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm._checked import Count, Positive, Seed, Size, checked
from stablessm._progress import working
from stablessm.instruments.adapters.facts import evaluating
from stablessm.instruments.curve import MemoryCurve
from stablessm.instruments.memory import ROUNDING, default_unit, finite_curve, time_step
from stablessm.instruments.systems import as_system, seeing_ahead


@checked
def fading_function(
    model: Any,
    horizon: Size,
    *,
    d_input: Size | None = None,
    dt: float | None = None,
    bound: Positive = 1.0,
    past: Size | None = None,
    samples: Count = 32,
    unit: str | None = None,
    seed: Seed = 0,
    progress: bool = True,
) -> MemoryCurve:
    """Measure the fading function: how far outputs still differ a time t after two inputs have become equal.

    F(t) = sup |H_t(x) - H_t(x')| / B over inputs that are equal from time 0 on and differ by at most B before.

    Fading memory (IAT appendix A.3, eq. 24) means F(t) → 0. Decaying memory is a different property that concerns
    constant inputs. Neither property implies the other (remark A.5). The memory of the functional "largest input so
    far" decays but does not fade; the memory of a kernel of ever thinner spikes fades but does not decay.

    The supremum is found by a search and is a lower bound. The inputs before time 0 (the pasts) are ±B in every channel
    (constant, or only just before time 0), random signs and noise; each past is compared with a past of zeros. After
    time 0 both inputs are zero, or the same noise.

    Args:
        model, d_input, dt, unit, progress: as for :func:`stablessm.memory_function`.
        horizon: Number of steps after the pasts.
        bound: Largest difference B of the inputs.
        past: Number of steps of the pasts (default: ``horizon``).
        samples: Number of random pasts.
        seed: Seed of the random pasts.

    >>> curve = fading_function(lambda x: x.cummax(1).values, 50, d_input=1)        # holds its peak
    >>> curve.decay().kind, float(curve.value[-1])
    ('none', 1.0)
    """
    past = horizon if past is None else past
    system = seeing_ahead(as_system(model, d_input=d_input), horizon + past)
    step = time_step(model, dt)
    generator = torch.Generator().manual_seed(seed)
    pasts = _pasts(past, system.d_input, samples, generator) * bound
    length = pasts.shape[1]
    future = torch.randn(1, horizon + system.ahead, system.d_input, generator=generator, dtype=torch.float64) * bound
    futures = torch.cat([0 * future, future]).repeat_interleave(len(pasts), 0)
    x = torch.cat([pasts.repeat(2, 1, 1), futures], 1).to(system.device, system.dtype)
    with evaluating(model), torch.no_grad(), working("fading_function", progress) as tell:
        outputs = system.with_callback(tell).outputs(lambda a, b: x[:, a + length : b + length], -length, horizon)
        y = torch.cat(list(outputs), 1)[:, length:]
    eps = max(torch.finfo(y.dtype).eps, torch.finfo(system.dtype).eps)
    halves = y.double().unflatten(0, (2, -1))
    apart = torch.linalg.vector_norm(halves[:, 1:] - halves[:, :1], dim=-1)
    floor = ROUNDING * eps * float(torch.linalg.vector_norm(y.double(), dim=-1).max()) / bound
    value = (apart.amax((0, 1)) / bound).cpu().numpy()
    facts: dict[str, Any] = {"norm": "ball", "bound": bound, "dt": step, "unit": unit or default_unit(system, step)}
    note = f"{len(pasts) - 1} pasts of {length} steps"
    return finite_curve(np.arange(horizon) * step, value, None, floor, note=note, **facts)


def _pasts(length: int, d_input: int, samples: int, generator: torch.Generator) -> Tensor:
    """Return input sequences (n, length, d_input) that end at time 0, with entries of at most 1; the first is zero.

    The others are constant, or zero except at the last step; the last ``samples`` sequences are random.
    """
    constant = torch.cat([torch.ones(1, d_input), -torch.ones(1, d_input), torch.eye(d_input), -torch.eye(d_input)])
    held = constant[:, None].expand(-1, length, -1).double()
    brief = torch.zeros_like(held)
    brief[:, -1] = held[:, -1]
    noise = 2 * torch.rand(samples, length, d_input, generator=generator, dtype=torch.float64) - 1
    noise[::2] = noise[::2].sign()
    return torch.cat([torch.zeros_like(held[:1]), held, brief, noise])
