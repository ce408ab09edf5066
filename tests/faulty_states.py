"""Random models with a state, right or with a planted fault, for tests of check_state.

python tests/faulty_states.py 0 200        # detection and false alarms for these seeds
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import stablessm as ssm
from stablessm.instruments import _states, families
from stablessm.instruments.adapters import as_stateful

Run = Callable[..., tuple[Tensor, Any]]
FAMILIES = ("llama", "gpt2", "mistral", "olmo2")
"""Families whose state is right."""
LONGEST = 24
"""Length of the sequences; a fault of its own has a smaller chunk length or number of steps."""


class Convolution(nn.Module):
    """A causal convolution along time, with the last inputs as its state; ``lost`` inputs of the state are zero."""

    def __init__(self, d_input: int, width: int, lost: int = 0, short: bool = False) -> None:
        super().__init__()
        self.d_input, self.lost, self.short = d_input, lost, short
        self.weight = nn.Parameter(torch.randn(width, d_input))

    def forward(self, x, state=None):
        width = len(self.weight)
        if state is None:
            state = x.new_zeros(len(x), width - 1, x.shape[2])
        seen = torch.cat([state, x], 1)
        y = sum(self.weight[i] * seen[:, i : i + x.shape[1]] for i in range(width))
        after = seen[:, seen.shape[1] - width + 1 :].clone()
        if not self.short or x.shape[1] < width - 1:
            after[:, : self.lost] = 0
        return y, after


class Cell(nn.Module):
    """A hand-written gated cell, run in a loop over time, with a state of two parts."""

    def __init__(self, d_input: int, width: int) -> None:
        super().__init__()
        self.d_input = d_input
        self.gate, self.value = nn.Linear(d_input, width), nn.Linear(d_input + width, width)

    def forward(self, x, state=None):
        h, c = (x.new_zeros(len(x), self.gate.out_features),) * 2 if state is None else (state["h"], state["c"])
        outputs = []
        for t in range(x.shape[1]):
            decay = torch.sigmoid(self.gate(x[:, t]) + 2)
            c = decay * c + (1 - decay) * self.value(torch.cat([x[:, t], h], 1))
            h = torch.tanh(c)
            outputs.append(h + 0.1 * c)
        return torch.stack(outputs, 1), {"h": h, "c": c}


BASES: dict[str, Callable[[int, int], nn.Module]] = {
    "LRU": lambda d, n: ssm.LRU(d, n, 3),
    "RealSSM": lambda d, n: ssm.RealSSM(d, n, 2, map="best"),
    "S4D": lambda d, n: ssm.S4D(d, n),
    "MinGRU": lambda d, n: ssm.MinGRU(d, n),
    "ContinuousRNN": lambda d, n: ssm.ContinuousRNN(d, n, 2, activation="tanh"),
    "SelectiveSSM": lambda d, n: ssm.SelectiveSSM(d, 4),
    "GRU": lambda d, n: nn.GRU(d, n, num_layers=2),
    "LSTM": lambda d, n: nn.LSTM(d, n, batch_first=True),
    "RNN": lambda d, n: nn.RNN(d, n),
    "GRUCell": lambda d, n: nn.GRUCell(d, n),
    "Cell": Cell,
    "Convolution": lambda d, n: Convolution(d, 2 + n % 4),
}


class Wrapped(nn.Module):
    """A model around another one, with a counter of steps that acts on the outputs, and a change of each call."""

    def __init__(self, base: nn.Module, d_input: int, change: Callable[..., tuple[Tensor, Any]] | None) -> None:
        super().__init__()
        self.base, self.d_input, self.change = base, d_input, change

    def initial_state(self, batch):
        return None

    def forward(self, x, state=None, **options):
        base, steps = (None, 0) if state is None else (state["base"], state["steps"])
        run = functools.partial(as_stateful(self.base, d_input=self.d_input).run)
        if self.change is None:
            y, base, steps = *run(x, base), steps + x.shape[1]
        else:
            y, base, steps = self.change(run, x, base, steps)
        return y, {"base": base, "steps": steps}


def each(state: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a state with every floating-point tensor changed."""
    return _states.mapped(state, lambda a: change(a) if a.is_floating_point() or a.is_complex() else a)


def _first_row(base: Any, rows: int) -> Any:
    """Return a state in which all rows are the first one; the batch is in the axis of size ``rows``."""

    def same(a: Tensor) -> Tensor:
        axis = next((i for i, size in enumerate(a.shape) if size == rows), None)
        return a if axis is None else a.select(axis, 0).unsqueeze(axis).expand(a.shape).clone()

    return each(base, same)


def _rounded(a: Tensor) -> Tensor:
    if a.is_complex():
        return torch.view_as_complex(torch.view_as_real(a).half().to(a.real.dtype))
    return a.half().to(a.dtype)


def faults(draw: np.random.Generator) -> dict[str, Callable[..., tuple[Tensor, Any, int]]]:
    """Return faults of a call ``(run, x, state, steps) -> (y, state, steps)`` with random lengths and sizes."""
    k, late = int(draw.integers(1, LONGEST)), int(draw.integers(1, LONGEST - 1))
    multiple, channel = int(draw.integers(1, LONGEST // 2)), float(10 ** draw.uniform(-7, -3))

    def plain(run, x, base, steps):
        return *run(x, base), steps + x.shape[1]

    def dropped_when(condition):
        return lambda run, x, base, steps: plain(run, x, None if condition(x.shape[1], steps) else base, steps)

    def lost_when(condition):
        def call(run, x, base, steps):
            y, after = run(x, base)
            return y, (run(x, None)[1] if condition(x.shape[1], steps) else after), steps + x.shape[1]

        return call

    def changed(change, condition=lambda length, steps: True):
        def call(run, x, base, steps):
            y, base, after = plain(run, x, base, steps)
            return y, change(base, len(x)) if condition(x.shape[1], steps) else base, after

        return call

    def overwritten(run, x, base, steps):
        y, after = run(x, base)
        if base is None:
            return y, after, steps + x.shape[1]
        for (_, old), (_, new) in zip(_states.leaves(base), _states.leaves(after), strict=True):
            old.copy_(new)
        return y, base, steps + x.shape[1]

    def in_small_channel(run, x, base, steps):
        y, after = run(x, base)
        lost, _ = run(x, None)
        size = torch.cat([y, y[..., :1] * channel], 2)
        size[..., -1] = (lost if x.shape[1] == k else y)[..., 0] * channel
        return size, after, steps + x.shape[1]

    def counted(wrong):
        def call(run, x, base, steps):
            y, after = run(x, base)
            count = torch.arange(steps + 1, steps + 1 + x.shape[1], dtype=y.dtype)
            return y + torch.sin(count)[:, None], after, steps + (0 if wrong(x.shape[1]) else x.shape[1])

        return call

    def previous_input(run, x, base, steps):
        held, last = (None, torch.zeros_like(x[:, 0])) if base is None else base
        shifted = torch.cat([last[:, None], x[:, :-1]], 1)
        y, after = run(x, held)
        return y + shifted.sum(2, keepdim=True), (after, x[:, -1] if x.shape[1] != k else last), steps + x.shape[1]

    return {
        f"state dropped at length {k}": dropped_when(lambda length, steps: length == k),
        f"state dropped at multiples of {multiple}": dropped_when(lambda length, steps: length % multiple == 0),
        f"state of the chunk alone at length {k}": lost_when(lambda length, steps: length == k),
        f"state dropped at lengths up to {k}": dropped_when(lambda length, steps: length <= k),
        f"state dropped above length {late}": dropped_when(lambda length, steps: length > late and steps > 0),
        f"state dropped after {late} steps": dropped_when(lambda length, steps: steps >= late),
        f"rounded to float16 after {late} steps": changed(
            lambda base, rows: each(base, _rounded), lambda length, steps: steps + length >= late
        ),
        "rounded to float16": changed(lambda base, rows: each(base, _rounded)),
        "fades by 1 % per call": changed(lambda base, rows: each(base, lambda a: 0.99 * a)),
        "rows shared": changed(_first_row),
        f"rows shared at length {k}": changed(_first_row, lambda length, steps: length == k),
        "state overwritten": overwritten,
        f"one small channel at length {k}": in_small_channel,
        "counter not advanced": counted(lambda length: True),
        f"counter not advanced at length {k}": counted(lambda length: length == k),
        f"previous input not kept at length {k}": previous_input,
    }


class Unmasked(nn.Module):
    """A layer of ours behind the same interface, which ignores lengths or resets."""

    def __init__(self, base: nn.Module, d_input: int, ignored: str) -> None:
        super().__init__()
        self.base, self.d_input, self.ignored = base, d_input, ignored

    def initial_state(self, batch):
        return self.base.initial_state(batch)

    def forward(self, x, state=None, *, lengths=None, reset=None):
        given = {"lengths": lengths, "reset": reset}
        return self.base(x, state, **{name: None if name == self.ignored else each for name, each in given.items()})


def family_faults(draw: np.random.Generator) -> dict[str, Callable[..., Any]]:
    """Return faults of a call of a Hugging Face model: ``(forward, options, name of the cache) -> output``."""
    k = int(draw.integers(1, LONGEST))

    def dropped(forward, options, key):
        if options["input_ids"].shape[1] == k and options.get(key) is not None:
            options = {"input_ids": options["input_ids"], "use_cache": True, "return_dict": True}
        return forward(**options)

    def changed(change):
        def call(forward, options, key):
            out = forward(**options)
            cache = getattr(out, key, None)
            for _, leaf in _states.leaves(cache) if cache is not None else ():
                if isinstance(leaf, Tensor) and leaf.is_floating_point():
                    leaf.copy_(change(leaf))
            return out

        return call

    def without(*names):
        return lambda forward, options, key: forward(**{n: each for n, each in options.items() if n not in names})

    return {
        f"cache dropped at length {k}": dropped,
        "cache rounded to float16": changed(lambda a: a.half().to(a.dtype)),
        "rows shared": changed(lambda a: a[:1].expand(a.shape).clone()),
        "mask ignored": without("attention_mask", "position_ids"),
    }


def patched(model: nn.Module, fault: Callable[..., Any]) -> nn.Module:
    """Return the Hugging Face model with a fault in its forward."""
    forward = model.forward
    key = ssm.instruments.huggingface.state_name(model)

    @functools.wraps(forward)
    def call(input_ids=None, **options):
        return fault(forward, {"input_ids": input_ids, **options}, key)

    model.forward = call
    return model


def random_case(seed: int) -> tuple[str, Any, bool]:
    """Return a description, a model and whether its state is right."""
    draw = np.random.default_rng(seed)
    torch.manual_seed(seed)
    kind, right = draw.random(), bool(draw.random() < 0.3)
    if kind < 0.15:
        family = FAMILIES[int(draw.integers(len(FAMILIES)))]
        model = families.random_model(family, seed=seed)
        if right:
            return family, model, True
        table = family_faults(draw)
        fault = sorted(table)[int(draw.integers(len(table)))]
        return f"{family}: {fault}", patched(model, table[fault]), False
    d_input, width = int(draw.integers(1, 5)), int(draw.integers(2, 9))
    dtype = torch.float64 if draw.random() < 0.5 else torch.float32
    if kind < 0.2 and not right:
        lost, short = int(draw.integers(1, 3)), bool(draw.integers(2))
        model = Convolution(d_input, int(draw.integers(3, 6)), lost, short)
        return f"Convolution: {lost} inputs lost{' in short chunks' if short else ''}", model.to(dtype), False
    if kind < 0.25 and not right:
        ignored = ("lengths", "reset")[int(draw.integers(2))]
        return f"LRU: {ignored} ignored", Unmasked(ssm.LRU(d_input, width, 2), d_input, ignored).to(dtype), False
    name = sorted(BASES)[int(draw.integers(len(BASES)))]
    base = BASES[name](d_input, width).to(dtype)
    if right:
        model = base if draw.random() < 0.5 else Wrapped(base, d_input, None)
        return f"{name} ({dtype})", model, True
    table = faults(draw)
    fault = sorted(table)[int(draw.integers(len(table)))]
    # a short window does not reach behind a long chunk; no chunk follows a later chunk of nearly all steps
    if "state of the chunk alone" in fault and (name == "Convolution" or int(fault.split()[-1]) > LONGEST - 3):
        return f"{name} ({dtype}), harmless: {fault}", Wrapped(base, d_input, None), True
    return f"{name} ({dtype}): {fault}", Wrapped(base, d_input, table[fault]).to(dtype), False


def verdict(seed: int) -> tuple[str, bool, ssm.StateReport]:
    """Return the description of a random model, whether it is right, and its report."""
    name, model, right = random_case(seed)
    return name, right, ssm.check_state(model, seed=seed, progress=False)


def counted(verdict: Callable[[int], tuple[str, bool, ssm.StateReport]], seeds: range) -> None:
    """Print the random models whose verdict is wrong, and the numbers of faults and of wrong verdicts."""
    count: Counter[str] = Counter()
    for seed in seeds:
        name, right, report = verdict(seed)
        count["right" if right else "wrong"] += 1
        if report.passed != right:
            count["alarms" if right else "missed"] += 1
            worst = [str(case) for case in report.cases if not case.passed]
            print(seed, "ALARM" if right else "MISSED", name, *worst[:2], flush=True)
    print(dict(count))


if __name__ == "__main__":
    counted(verdict, range(*map(int, sys.argv[1:])))
