"""Random RNN, GRU and LSTM stacks whose rate of decay is known, for the tests and the benchmark of ``decay()``.

One to three layers of 1 to 32 units, recurrent weights of a random gain, with or without biases, one to three inputs,
a random readout, float64 or float32. A constant input is switched on and held; the memory is measured at one horizon
between 30 and 3000 steps. The truth is -ln of the slowest modulus in the spectra of the Jacobians of one step, in
float64, at the fixed point reached under the input and, in a model with biases, at the one reached without input, whose
response is subtracted. Models without such fixed points are drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import stablessm as ssm
from stablessm.instruments import MemoryCurve

CELLS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
LONGEST = 20_000


@dataclass(frozen=True)
class Measured:
    family: str
    curve: MemoryCurve
    rate: float
    """Of the slowest mode, per step."""
    note: str


@dataclass(frozen=True)
class Coverage:
    models: int
    undecided: float
    wrong: float
    """Share of verdicts that are neither exponential nor undecided."""
    covered: float
    """Share of the exponential verdicts whose interval contains the rate."""
    width: float
    """Median width of the interval over the rate."""


def coverage(models: Iterable[Measured]) -> Coverage:
    """Fit all memories and count."""
    pairs = [(model, model.curve.decay()) for model in models]
    claimed = [(model.rate, fit.interval) for model, fit in pairs if fit.kind == "exponential" and fit.interval]
    undecided = sum(fit.kind == "undecided" for _, fit in pairs)
    return Coverage(
        len(pairs),
        undecided / len(pairs),
        (len(pairs) - undecided - len(claimed)) / len(pairs),
        float(np.mean([low * (1 - 1e-6) <= rate <= high * (1 + 1e-6) for rate, (low, high) in claimed])),
        float(np.median([(high - low) / rate for rate, (low, high) in claimed])),
    )


class Stack(nn.Module):
    def __init__(self, core: nn.RNNBase, readout: nn.Linear) -> None:
        super().__init__()
        self.core, self.readout = core, readout

    def forward(self, x: Tensor, state=None):
        y, state = self.core(x, state)
        return self.readout(y), state


def draw(rng: np.random.Generator) -> Measured:
    while True:
        torch.manual_seed(int(rng.integers(2**31)))
        family = str(rng.choice(list(CELLS)))
        inputs, hidden, layers = (
            int(each) for each in (rng.integers(1, 4), round(2 ** rng.uniform(0, 5)), rng.integers(1, 4))
        )
        gain, bias, half = rng.uniform(0.3, 2.5), bool(rng.random() < 0.5), bool(rng.random() < 0.3)
        core = CELLS[family](inputs, hidden, layers, bias=bias, batch_first=True)
        model = Stack(core, nn.Linear(hidden, int(rng.integers(1, 4)))).double()
        with torch.no_grad():
            for name, weight in core.named_parameters():
                if "weight_hh" in name:
                    weight *= gain
        amplitude = 10 ** rng.uniform(-2, 0.5)
        direction = torch.as_tensor(rng.standard_normal((1, inputs)))
        direction /= direction.norm()
        rates = [fixed_point_rate(core, each * direction) for each in ((amplitude, 0.0) if bias else (amplitude,))]
        horizon = int(math.exp(rng.uniform(math.log(30), math.log(3000))))
        if None in rates:
            continue
        if half:
            model, direction = model.float(), direction.float()
        curve = ssm.memory_function(
            model,
            horizon,
            d_input=inputs,
            directions=direction,
            amplitudes=[amplitude],
            bound=amplitude,
            linear=False,
            progress=False,
        )
        note = f"{family} {layers}x{hidden}, gain {gain:.2g}, {'bias, ' * bias}{'float32, ' * half}{horizon} steps"
        return Measured(family, curve, min(rates), note)


def fixed_point_rate(core: nn.RNNBase, x: Tensor) -> float | None:
    """-ln of the spectral radius at the fixed point that the state reaches from zero; None if it reaches none."""
    pair = isinstance(core, nn.LSTM)
    shape = (core.num_layers, 1, core.hidden_size)

    def step(flat: Tensor) -> Tensor:
        parts = flat.reshape(2 if pair else 1, *shape)
        state = (parts[0], parts[1]) if pair else parts[0]
        _, new = core(x[None], state)
        return torch.cat([part.reshape(-1) for part in (new if pair else (new,))])

    state = None
    with torch.no_grad():
        for _ in range(LONGEST // 2000):
            _, state = core(x.expand(1, 2000, -1), state)
            flat = torch.cat([part.reshape(-1) for part in (state if pair else (state,))])
            if float((step(flat) - flat).abs().max()) < 1e-12:
                break
        else:
            return None
    radius = float(torch.linalg.eigvals(torch.autograd.functional.jacobian(step, flat)).abs().max())
    return -math.log(radius) if 1e-6 < radius < 1 - 1e-9 else None
