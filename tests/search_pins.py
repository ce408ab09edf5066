"""Which inputs the search for a supremum tries, in which order, for how many steps, and what it finds.

``python tests/search_pins.py`` runs the searches again and writes ``search_pins.json``, with ``null`` for a call or a
number that depends on the processor's rounding, which decides how many inputs count as equal. A change here is a change
of the search: ``tests/instruments/test_supremum.py`` with ``-m slow`` says whether it finds as much as before.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from processors import computed_by_each
from torch import Tensor

import stablessm as ssm

PATH = Path(__file__).with_suffix(".json")


class Recorded:
    """A recurrence with two leaky states that writes down what it is given."""

    def __init__(self, d_input: int, streams: bool) -> None:
        self.calls: list[list[float]] = []
        self.d_input = d_input
        if streams:
            self.initial_state = lambda batch: None

    def __call__(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if x.shape[1] > 12 and not x.requires_grad:  # not while the model is looked at
            sizes = x[1:, -1].norm(dim=1) if len(x) > 1 else x.new_zeros(1)
            numbers = (sizes.min(), sizes.max(), sizes.clamp(min=1e-9).log().mean())
            self.calls.append([len(x), x.shape[1], *(float(f"{float(number):.5g}") for number in numbers)])
        h, outputs = x.new_zeros(len(x), 2) if state is None else state, []
        leak = torch.tensor([0.8, 0.5], dtype=x.dtype)
        drive = torch.tensor([[1.3, -0.4], [0.6, 0.9], [-0.7, 1.1]], dtype=x.dtype)[: self.d_input]
        for now in x.unbind(1):
            h = leak * h + (now @ drive + 0.2).tanh()
            outputs.append(h * torch.tensor([0.7, -1.2], dtype=x.dtype))
        return torch.stack(outputs, 1), h


SEARCHES: dict[str, dict[str, Any]] = {
    "one input": {"d_input": 1, "streams": False, "horizon": 24, "samples": 16},
    "two inputs": {"d_input": 2, "streams": False, "horizon": 24, "samples": 16},
    "carried state": {"d_input": 2, "streams": True, "horizon": 70, "samples": 8, "ascent": 2, "seed": 3},
    "plus one": {"d_input": 2, "streams": False, "horizon": 24, "norm": "plus_one", "samples": 4, "bound": 0.5},
    "three inputs": {"d_input": 3, "streams": True, "horizon": 30, "samples": 16, "ascent": 1, "warm_up": 20},
    "no ascent": {"d_input": 2, "streams": True, "horizon": 30, "samples": 5, "ascent": 0, "bound": 3.0},
}


def searched(name: str) -> dict[str, Any]:
    """The calls of the model, the curve's size, and where it was reached."""
    options = dict(SEARCHES[name])
    model = Recorded(options["d_input"], options.pop("streams"))
    run: Callable[..., Any] = model if hasattr(model, "initial_state") else lambda x: model(x)[0]
    curve = ssm.memory_function(run, options.pop("horizon"), linear=False, **options)
    lengths = np.linalg.norm(curve.maximizer, axis=1)
    found = [curve.value.sum(), curve.value[-1], curve.floor, lengths.min(), lengths.max()]
    return {"calls": model.calls, "found": [float(number) for number in found], "note": curve.note}


def same(found: list[Any], expected: list[Any]) -> list[bool]:
    """Return for each call or number whether it is the expected one; there must be as many."""
    assert len(found) == len(expected)
    close = partial(np.allclose, rtol=1e-3, atol=1e-3)
    return [wanted is None or close(call, wanted) for call, wanted in zip(found, expected, strict=True)]


def pinned(name: str) -> dict[str, Any]:
    """Return what a search does, with None where the processors do not agree."""
    first, *others = computed_by_each(__file__, name)
    for key in ("calls", "found"):
        agreed = np.all([same(other[key], first[key]) for other in others], axis=0)
        first[key] = [number if agree else None for number, agree in zip(first[key], agreed, strict=True)]
    return first


def main() -> None:
    """Search and write."""
    if sys.argv[1:]:
        print(json.dumps(searched(sys.argv[1])))
        return
    rows = (f" {json.dumps(name)}: {json.dumps(pinned(name))}" for name in SEARCHES)
    PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
