"""Rates of the slowest modes of the recurrences in a model, at the fixed points that constant inputs reach."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from stablessm.instruments._nested import tensors_in
from stablessm.instruments._precision import doubled
from stablessm.instruments._states import rebuilt
from stablessm.instruments._supremum import LEADERS, SEARCHED, Search
from stablessm.instruments.adapters import as_stateful
from stablessm.instruments.dynamics._cocycle import eigenvalue_logs
from stablessm.instruments.dynamics._pushing import Pusher
from stablessm.instruments.dynamics._stepping import stepper

Calls: TypeAlias = dict[nn.Module, tuple[Tensor, Any] | None]
"""Input of the last step of each recurrence, (R, d_input), and its state after this step; None if they are unknown."""

LARGEST = 512
"""Largest number of values of a state whose modes are computed."""

TIMES = 25
"""Number of time scales of the slowest mode after which a state is close to its fixed point."""

LONGEST, TRIED = 2**15, 4
"""Largest number of further steps in which a state may come close to a fixed point, and the number of such runs."""

CLOSE = 1e-9
"""Distance to the fixed point, relative to the size of the state, that counts as close."""

TOGETHER = 16
"""Largest number of inputs that run at once, and that a round of the search for the slowest mode tries."""

ELEMENTS = 2**24
"""Largest product of the number of inputs and the cube of the number of values of a state, for at least two inputs."""

SIZES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
"""Distances, relative to its size, at which other inputs around the slowest input are tried."""

_FORWARDS = [kind.forward for kind in (nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.GRUCell, nn.LSTMCell)]


@contextmanager
def recurrences() -> Iterator[Calls]:
    """Return a context manager that stores the last call of every ``nn.RNN``, ``GRU``, ``LSTM`` and their cells."""
    calls: Calls = {}

    def store(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            x, whole = args[0] if args else kwargs["input"], isinstance(module, nn.RNNBase)
            causal = type(module).forward in _FORWARDS and not getattr(module, "bidirectional", False)
            known = causal and isinstance(x, Tensor) and x.dim() == 2 + whole
            last = x.select(1 if module.batch_first else 0, -1) if known and whole else x
            calls[module] = (last, result[1] if whole else result) if known else None

    hook = register_module_forward_hook(store, with_kwargs=True)
    try:
        yield calls
    finally:
        hook.remove()


def slowest_rates(search: Search, given: Tensor | None) -> np.ndarray | None:
    """Return the rates, per unit of time, of the slowest modes of all recurrences of a model.

    These are the rates at the fixed points that the states reach under the inputs ``given`` (n, d_input), one rate for
    each input. If None are given, many inputs are tried, and the result has two rates: the lowest, and the largest of
    the inputs with the largest values at the last times. The result is None if the model calls no recurrence of
    ``torch.nn``, if the memory is zero, if a state has more than ``LARGEST`` values, if it reaches no stable fixed
    point, or if the model has slower memory than its recurrences. Recurrences are treated separately, because the modes
    of a stack are the modes of its layers.
    """
    system = search.system
    with recurrences() as calls:
        system.call(torch.zeros(2, 5, system.d_input, dtype=system.dtype, device=system.device), None)
    if not calls or None in calls.values() or not search.value.any():
        return None
    if given is not None:
        rates = _of_inputs(search, given)
        return None if bool(rates.isnan().any()) else rates.numpy() / search.dt
    size = sum(part.numel() // 2 for call in calls.values() if call for _, part in tensors_in(call[1], ""))
    count = min(max(2, ELEMENTS // size**3), TOGETHER)
    late = torch.unique(search.best[search.times(TOGETHER)[-LEADERS:]], dim=0)[:count]
    leading = search.own(late if len(late) else search.best[-1:])  # a memory below rounding
    points = torch.cat([leading, search.spread(count, torch.Generator().manual_seed(0))])
    rates = _of_inputs(search, points)
    for part in SIZES:
        around = search.around(points[rates.argmin()], part, count)
        points, rates = torch.cat([points, around]), torch.cat([rates, _of_inputs(search, around)])
    ends = torch.stack([rates.min(), rates[: len(leading)].max()])
    return None if bool(ends.isnan().any()) else ends.numpy() / search.dt


def _of_inputs(search: Search, points: Tensor) -> Tensor:
    """Return the rate per step of the slowest mode for each of the inputs ``points``, measured in runs of the model.

    Recurrences may wait for each other, and a model may have other memory than its recurrences, such as attention. If
    the first runs are shorter than ``TIMES`` time scales of the slowest mode, longer runs therefore follow, unless the
    model carries its state. The rate is NaN if the output still changes although all recurrences have decayed.
    """

    def measured(steps: int, count: int) -> Tensor:
        found = []
        for some in points.split(max(1, count)):
            with recurrences() as calls:
                sizes = [torch.linalg.vector_norm(v, dim=-1).double().cpu() for v in search.velocities(some, steps)]
            each = [_rates(module, *call, len(some) + 1) for module, call in calls.items() if call is not None]
            rates = torch.stack(each).amin(0)
            rates = torch.minimum(rates[1:], rates[0])  # the state also moves without input, by its biases
            rounding, peak = 8 * search.rounding * max(search.bound, 1), torch.cat(sizes, 1).amax(1)
            moves = sizes[-1][:, -1] > peak * torch.exp(-rates * steps / 2) + rounding
            found.append(rates.masked_fill(moves & (rates * steps >= TIMES), math.nan))
        return torch.cat(found)

    limit, rates = search.limit, measured(search.limit, TOGETHER)
    alone = isinstance(search.system.model, nn.RNNBase | nn.RNNCellBase)
    if alone or bool(rates.isnan().any()) or search.system.longest:
        return rates
    steps = min(math.ceil(TIMES / float(rates.min())), max(8 * limit, SEARCHED // 4))
    fewer = search.together(limit) * (limit / max(steps, 1)) ** 2  # attention needs memory of size steps²
    return measured(steps, int(min(fewer, TOGETHER))) if steps > limit else rates


def _rates(module: nn.Module, x: Tensor, state: Any, count: int) -> Tensor:
    """Return the rate per step of the slowest mode of a recurrence for each of ``count`` inputs; NaN if unknown.

    The recurrence continues from the given states with the inputs x (R, d_input), until the states are close to fixed
    points. A state that stays zero has no modes; its rate is infinite.
    """
    unknown, module = torch.full((count,), math.nan, dtype=torch.float64), doubled(module)
    if sum(part.numel() for _, part in tensors_in(state, "")) > LARGEST * len(x):
        return unknown
    dtype = next(module.parameters()).dtype
    x, state = x.to(dtype)[:, None], rebuilt(state, lambda part: part.to(dtype))
    way = Pusher(stepper(module, x, state), "forward derivatives")
    run, rows = way.stepper, way.stepper.start
    for _ in range(TRIED):
        after, matrices, _ = way.matrices(rows, x, run.framed(len(rows) * run.size), 1.0)
        if not bool(matrices.isfinite().all()):
            break
        still = (rows == 0).all(1) & (after == 0).all(1)
        moved = (after - rows).abs().amax(1) / rows.abs().amax(1)
        waiting = (moved > CLOSE).nonzero()[:1, 0]  # eigenvalues are slow: at first those for one input suffice
        some = waiting if len(waiting) else torch.arange(len(rows))
        rates = torch.stack([-eigenvalue_logs(matrix)[0] for matrix in matrices[some]])
        rates = rates.masked_fill(still[some], math.inf)
        off = (rates <= 0) | (moved[some] > CLOSE * -torch.expm1(-rates))
        if not bool(off.any()):
            return rates if len(rates) == count else rates.min().expand(count)
        rates = rates[off]
        steps = TIMES + math.ceil(TIMES / max(float(rates.min()), TIMES / LONGEST))
        _, state = as_stateful(module).run(x.expand(-1, steps, -1), state)
        rows = run.layout.pack(state, run.place)
    return unknown
