"""Random models with a state and a rare planted fault, for tests of check_state.

The faults of ``faulty_states.py`` depend on the length of a call or on the number of steps. These depend on positions,
rows of a batch, resets, padding, dtypes, repeated calls, and values that a model keeps in itself.

python tests/rare_state_faults.py 0 200        # detection and false alarms for these seeds
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import faulty_states
import numpy as np
import torch
from faulty_states import BASES, FAMILIES, LONGEST, Wrapped, each, patched
from torch import Tensor, nn

import stablessm as ssm
from stablessm.instruments import _states, families

MASKED = {
    "LRU": lambda d, n: ssm.LRU(d, n, 2),
    "RealSSM": lambda d, n: ssm.RealSSM(d, n, 2, map="best"),
    "S4D": lambda d, n: ssm.S4D(d, n),
    "MinGRU": lambda d, n: ssm.MinGRU(d, n),
    "SelectiveSSM": lambda d, n: ssm.SelectiveSSM(d, 4),
}
"""Layers that take lengths and resets."""


def _rows_of(state: Any, other: Any, chosen: Tensor) -> Any:
    """Return a state whose ``chosen`` rows are those of another state; the batch is in the axis of its size."""
    values = iter([leaf for _, leaf in _states.leaves(other)])

    def mixed(a: Tensor) -> Tensor:
        b = next(values)
        axis = next((i for i, size in enumerate(a.shape) if size == len(chosen)), None)
        if axis is None or not isinstance(b, Tensor):
            return a
        return torch.where(chosen.reshape(-1, *[1] * (a.dim() - axis - 1)), b, a)

    return _states.mapped(state, mixed)


def _bfloat16(a: Tensor) -> Tensor:
    if a.is_complex():
        return torch.view_as_complex(torch.view_as_real(a).bfloat16().to(a.real.dtype))
    return a.bfloat16().to(a.dtype)


def faults(draw: np.random.Generator) -> dict[str, Callable[..., tuple[Tensor, Any, int]]]:
    """Return rare faults of a call ``(run, x, state, steps) -> (y, state, steps)``."""
    k, period = int(draw.integers(1, LONGEST)), int(draw.integers(2, 9))
    phase, row = int(draw.integers(period)), int(draw.integers(1, 3))
    held: dict[Any, Any] = {}

    def plain(run, x, base, steps):
        return *run(x, base), steps + x.shape[1]

    def dropped(condition):
        return lambda run, x, base, steps: plain(run, x, None if condition(x, steps) else base, steps)

    def row_dropped(condition):
        def call(run, x, base, steps):
            if base is None or len(x) <= row or not condition(x, steps):
                return plain(run, x, base, steps)
            chosen = torch.arange(len(x)) == row
            return plain(run, x, _rows_of(base, each(base, torch.zeros_like), chosen), steps)

        return call

    def stale(run, x, base, steps):
        """Use the state that the last call of the same length started from."""
        shape = x.shape
        used, held[shape] = held.get(shape, base) if base is not None else base, base
        return plain(run, x, base if used is None else used, steps)

    def second(run, x, base, steps):
        """Lose the state in a second call in succession with the same length above 1."""
        again, held["last"] = held.get("last") == x.shape[1] > 1 and base is not None, x.shape[1]
        return plain(run, x, None if again else base, steps)

    def buffer(run, x, base, steps):
        """Return the same tensors as the state of every call of a batch size, which later calls overwrite."""
        y, after = run(x, base)
        if len(x) not in held:
            held[len(x)] = _states.copied(after)
        for (_, old), (_, new) in zip(_states.leaves(held[len(x)]), _states.leaves(after), strict=True):
            old.copy_(new)
        return y, held[len(x)], steps + x.shape[1]

    def own_counter(run, x, base, steps):
        """Count the steps in the model in place of the state."""
        steps = 0 if base is None else held.get("steps", 0)
        y, after = run(x, base)
        count = torch.arange(steps + 1, steps + 1 + x.shape[1], dtype=y.dtype)
        held["steps"] = steps + x.shape[1]
        return y + torch.sin(count)[:, None], after, held["steps"]

    def rounded(condition):
        def call(run, x, base, steps):
            y, after, steps = plain(run, x, base, steps)
            return y, each(after, _bfloat16) if condition(x) else after, steps

        return call

    def one_part(run, x, base, steps):
        y, after, steps = plain(run, x, base, steps)
        if x.shape[1] != k:
            return y, after, steps
        seen: list[int] = []

        def change(a):
            seen.append(1)
            return torch.zeros_like(a) if len(seen) == 1 else a

        return y, each(after, change), steps

    def neighbor(run, x, base, steps):
        if base is None or len(x) < 3:
            return plain(run, x, base, steps)
        moved = each(base, lambda a: a.roll(1, next((i for i, n in enumerate(a.shape) if n == len(x)), 0)))
        return plain(run, x, _rows_of(base, moved, torch.arange(len(x)) == 2), steps)

    return {
        f"state dropped from positions {phase} modulo {period}": dropped(
            lambda x, steps: steps > 0 and steps % period == phase
        ),
        f"state dropped in chunks up to positions {phase} modulo {period}": dropped(
            lambda x, steps: x.shape[1] > 1 and (steps + x.shape[1]) % period == phase
        ),
        f"state dropped from position {k}": dropped(lambda x, steps: steps == k),
        f"row {row} dropped": row_dropped(lambda x, steps: True),
        f"row {row} dropped at length {k}": row_dropped(lambda x, steps: x.shape[1] == k),
        f"row {row} dropped from position {k}": row_dropped(lambda x, steps: steps == k),
        "row 2 takes the state of row 1": neighbor,
        "stale state of the last call with the same shape": stale,
        "state lost in the second call of a length": second,
        "states share a buffer": buffer,
        "steps counted in the model": own_counter,
        "rounded to bfloat16 in steps": rounded(lambda x: x.shape[1] == 1),
        "rounded to bfloat16 in chunks": rounded(lambda x: x.shape[1] > 1),
        "rounded to bfloat16 for a batch": rounded(lambda x: len(x) > 1),
        "state dropped for a single sequence": dropped(lambda x, steps: len(x) == 1),
        f"first part of the state zero at length {k}": one_part,
        "state dropped in bfloat16": dropped(lambda x, steps: x.dtype == torch.bfloat16),
        "state dropped in float32": dropped(lambda x, steps: x.dtype == torch.float32),
    }


class Masked(nn.Module):
    """A layer of ours behind the same interface, with a change of each call."""

    def __init__(self, base: nn.Module, d_input: int, change: Callable[..., Any]) -> None:
        super().__init__()
        self.base, self.d_input, self.change = base, d_input, change

    def initial_state(self, batch):
        return self.base.initial_state(batch)

    def forward(self, x, state=None, *, lengths=None, reset=None):
        return self.change(self.base, x, state, lengths, reset)


def mask_faults(draw: np.random.Generator) -> dict[str, Callable[..., Any]]:
    """Return faults in lengths and resets: ``(layer, x, state, lengths, reset) -> (y, state)``."""
    k = int(draw.integers(2, 12))

    def call(layer, x, state, lengths, reset):
        return layer(x, state, lengths=lengths, reset=reset)

    def later(layer, x, state, lengths, reset):
        return call(layer, x, state, lengths if state is None else None, reset)

    def beyond(layer, x, state, lengths, reset):
        short = lengths if lengths is None else torch.where(x.shape[1] - lengths >= k, x.shape[1], lengths)
        return call(layer, x, state, short, reset)

    def first_only(layer, x, state, lengths, reset):
        return call(layer, x, state, lengths if lengths is None else lengths[:1].expand(len(lengths)), reset)

    def one_more(layer, x, state, lengths, reset):
        y, after = call(layer, x, state, lengths, reset)
        if lengths is None or x.shape[1] <= int(lengths.min()):
            return y, after
        more = call(layer, x, state, (lengths + 1).clamp(max=x.shape[1]), reset)[1]
        return y, more

    def reset_first(layer, x, state, lengths, reset):
        if reset is not None and state is not None:
            reset = reset.clone()
            reset[:, 0] = False  # the given state is kept
        return call(layer, x, state, lengths, reset)

    def reset_state(layer, x, state, lengths, reset):
        y, after = call(layer, x, state, lengths, reset)
        return y, after if reset is None else call(layer, x, state, lengths, None)[1]

    def reset_second(layer, x, state, lengths, reset):
        if reset is not None:
            reset = reset & (reset.cumsum(1) <= 2)
        return call(layer, x, state, lengths, reset)

    def reset_row(layer, x, state, lengths, reset):
        if reset is not None:
            reset = torch.cat([reset[:1], reset[:1].expand(len(reset) - 1, -1)])
        return call(layer, x, state, lengths, reset)

    def reset_and_lengths(layer, x, state, lengths, reset):
        return call(layer, x, state, lengths if reset is None else None, reset)

    def reset_later(layer, x, state, lengths, reset):
        return call(layer, x, state, lengths, reset if state is None else None)

    return {
        "lengths ignored with a state": later,
        f"lengths ignored if {k} steps or more are padding": beyond,
        "lengths of the first row for all rows": first_only,
        "the state after padding has one step of it": one_more,
        "a reset keeps the given state": reset_first,
        "the state after a reset is the state without it": reset_state,
        "only two resets count": reset_second,
        "resets of the first row for all rows": reset_row,
        "resets ignored with a state": reset_later,
        "lengths ignored with resets": reset_and_lengths,
    }


def family_faults(draw: np.random.Generator) -> dict[str, Callable[..., Any]]:
    """Return faults of a call of a Hugging Face model: ``(forward, options, name of the cache) -> output``."""
    period, k = int(draw.integers(2, 6)), int(draw.integers(1, 5))
    held: dict[str, Any] = {}

    def masks(change):
        def call(forward, options, key):
            mask = options.get("attention_mask")
            if mask is not None:
                options = {**options, "attention_mask": change(mask, options)}
            return forward(**options)

        return call

    def few(mask, options):
        return torch.where((mask == 0).sum(1, keepdim=True) > k, torch.ones_like(mask), mask)

    def in_steps(mask, options):
        return torch.ones_like(mask) if options["input_ids"].shape[1] == 1 else mask

    def first_row(forward, options, key):
        given = options.get("position_ids")
        if given is not None:
            options = {**options, "position_ids": given[:1].expand(given.shape)}
        return forward(**options)

    def dropped_at(forward, options, key):
        cache = options.get(key)
        seen = cache.get_seq_length() if hasattr(cache, "get_seq_length") else 0
        if seen and seen % period == 0:
            options = {"input_ids": options["input_ids"], "use_cache": True, "return_dict": True}
        return forward(**options)

    def last_row(forward, options, key):
        out = forward(**options)
        cache = getattr(out, key, None)
        for _, leaf in _states.leaves(cache) if cache is not None else ():
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and len(leaf) > 1 and leaf.dim() > 2:
                leaf[-1] = leaf[-1] * 0.99
        return out

    def counter(forward, options, key):
        """Derive positions from a counter in the model when none are given."""
        length = options["input_ids"].shape[1]
        start = 0 if options.get(key) is None else held.get("seen", 0)
        held["seen"] = start + length
        rows = len(options["input_ids"])
        return forward(**{**options, "position_ids": torch.arange(start, start + length).expand(rows, -1)})

    return {
        f"mask ignored if more than {k} tokens are padding": masks(few),
        "mask of the first row for all rows": masks(lambda mask, options: mask[:1].expand(mask.shape)),
        "mask ignored in steps": masks(in_steps),
        "positions of the first row for all rows": first_row,
        f"cache dropped at positions that {period} divides": dropped_at,
        "last row of the cache fades": last_row,
        "positions counted in the model": counter,
    }


class Attention(nn.Module):
    """Causal attention with a cache of keys and values, and a window."""

    def __init__(self, d_input: int, width: int, window: int) -> None:
        super().__init__()
        self.d_input, self.window = d_input, window
        self.query, self.key, self.value = (nn.Linear(d_input, width) for _ in range(3))

    def forward(self, x, state=None):
        keys, values = self.key(x), self.value(x)
        if state is not None:
            keys, values = torch.cat([state[0], keys], 1), torch.cat([state[1], values], 1)
        far = torch.arange(keys.shape[1])[None] - torch.arange(keys.shape[1])[-x.shape[1] :, None]
        scores = (self.query(x) @ keys.mT).masked_fill((far > 0) | (far <= -self.window), -torch.inf)
        return scores.softmax(-1) @ values, (keys, values)


def healthy(draw: np.random.Generator, d_input: int, width: int, dtype: torch.dtype) -> tuple[str, Any]:
    """Return the description of a random model whose state is right, and the model."""
    kind = int(draw.integers(4))
    if kind == 0:
        model = Attention(d_input, width, int(draw.integers(2, 40))).to(dtype)
        return f"Attention ({dtype})", model
    if kind == 1:
        cls = (nn.RNN, nn.GRU, nn.LSTM)[int(draw.integers(3))]
        model = cls(d_input, 4 * width, num_layers=int(draw.integers(1, 4)), batch_first=True).to(dtype)
        gain = float(10 ** draw.uniform(-1, 1))
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(gain)
        return f"{cls.__name__} of gain {gain:.2g} ({dtype})", model
    if kind == 2:
        low = torch.bfloat16 if draw.random() < 0.5 else dtype
        name = sorted(BASES)[int(draw.integers(len(BASES)))]
        return f"{name} ({low})", BASES[name](d_input, width).to(low)
    model = ssm.SequenceClassifier(3, d_input=d_input, d_model=8, n_layers=3, d_state=width)
    return f"classifier ({dtype})", model.to(dtype)


def random_case(seed: int) -> tuple[str, Any, bool]:
    """Return a description, a model and whether its state is right."""
    draw = np.random.default_rng([7, seed])
    torch.manual_seed(seed)
    d_input, width = int(draw.integers(1, 5)), int(draw.integers(2, 9))
    dtype = torch.float64 if draw.random() < 0.5 else torch.float32
    kind = draw.random()
    if kind < 0.3:
        return (*healthy(draw, d_input, width, dtype), True)
    if kind < 0.45:
        family = FAMILIES[int(draw.integers(len(FAMILIES)))]
        table = family_faults(draw)
        if family != "gpt2":  # relative positions are the same in all rows
            del table["positions of the first row for all rows"]
        name = sorted(table)[int(draw.integers(len(table)))]
        return f"{family}: {name}", patched(families.random_model(family, seed=seed), table[name]), False
    if kind < 0.65:
        base, table = sorted(MASKED)[int(draw.integers(len(MASKED)))], mask_faults(draw)
        name = sorted(table)[int(draw.integers(len(table)))]
        model = Masked(MASKED[base](d_input, width), d_input, table[name]).to(dtype)
        return f"{base} ({dtype}): {name}", model, False
    base, table = sorted(BASES)[int(draw.integers(len(BASES)))], faults(draw)
    name = sorted(table)[int(draw.integers(len(table)))]
    made = Wrapped(BASES[base](d_input, width).to(dtype), d_input, table[name]).to(dtype)
    return f"{base} ({dtype}): {name}", made, False


def verdict(seed: int) -> tuple[str, bool, ssm.StateReport]:
    """Return the description of a random model, whether it is right, and its report."""
    name, model, right = random_case(seed)
    return name, right, ssm.check_state(model, seed=seed, progress=False)


if __name__ == "__main__":
    faulty_states.counted(verdict, range(*map(int, sys.argv[1:])))
