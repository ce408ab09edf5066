"""Random RNN, GRU and LSTM stacks whose rate of decay is known, for the tests and the benchmark of ``decay()``.

One to three layers of 1 to 32 units, recurrent weights of a random gain, with or without biases, one to three inputs,
a random readout, float64 or float32. A constant input is switched on and held; the memory is measured at one horizon
between 30 and 3000 steps. The truth is -ln of the slowest modulus in the spectra of the Jacobians of one step, in
float64, at the fixed point reached under the input and, in a model with biases, at the one reached without input, whose
response is subtracted. Models without such fixed points, or without any memory, are drawn again.

``draw`` draws stacks with the usual initialization, and ``draw_of`` stacks of one of the ``FAMILIES``: with large
biases of the forget and update gates, orthogonal or identical recurrent weights, projections, residual connections,
layer norms, cells in a loop, briefly trained, or measured with the search over all inputs up to a size. In the last
family the truth is the slowest mode at the fixed points of inputs of two sizes in 32 random directions. A search
that finds a slower input than these is right as well, so the interval may begin below the truth.
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
FAMILIES = (
    "RNN",
    "ReLU RNN",
    "GRU",
    "LSTM",
    "projected LSTM",
    "GRU with large gate biases",
    "LSTM with large gate biases",
    "orthogonal or identical",
    "residual and norm",
    "cells in a loop",
    "briefly trained",
    "searched",
)
LONGEST = 40_000


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
    """Recurrences in a row, which may be cells that run in a loop, and a readout."""

    def __init__(self, cores, readout: nn.Linear, residual: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.cores, self.readout, self.residual = nn.ModuleList(cores), readout, residual
        self.norms = nn.ModuleList([nn.LayerNorm(width(core)) if norm else nn.Identity() for core in cores])

    def forward(self, x: Tensor, states=None):
        after = []
        for core, norm, state in zip(self.cores, self.norms, states or [None] * len(self.cores), strict=True):
            y, state = core(x, state) if isinstance(core, nn.RNNBase) else looped(core, x, state)
            x = x + norm(y) if self.residual and x.shape == y.shape else norm(y)
            after.append(state)
        return self.readout(x), after


class Outputs(nn.Module):
    """A stack that returns its outputs only, as most models of users do."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(x)[0]


def width(core) -> int:
    return getattr(core, "proj_size", 0) or core.hidden_size


def looped(cell: nn.RNNCellBase, x: Tensor, state):
    outputs = []
    for x_t in x.unbind(1):
        state = cell(x_t, state)
        outputs.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(outputs, 1), state


def draw(rng: np.random.Generator) -> Measured:
    while True:
        torch.manual_seed(int(rng.integers(2**31)))
        family = str(rng.choice(list(CELLS)))
        inputs, hidden, layers = (
            int(each) for each in (rng.integers(1, 4), round(2 ** rng.uniform(0, 5)), rng.integers(1, 4))
        )
        gain, bias, half = rng.uniform(0.3, 2.5), bool(rng.random() < 0.5), bool(rng.random() < 0.3)
        core = CELLS[family](inputs, hidden, layers, bias=bias, batch_first=True)
        model = Stack([core], nn.Linear(hidden, int(rng.integers(1, 4)))).double()
        with torch.no_grad():
            for name, weight in core.named_parameters():
                if "weight_hh" in name:
                    weight *= gain
        amplitude = 10 ** rng.uniform(-2, 0.5)
        direction = torch.as_tensor(rng.standard_normal((1, inputs)))
        direction /= direction.norm()
        rates = [fixed_point_rate(model, each * direction) for each in ((amplitude, 0.0) if bias else (amplitude,))]
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


def draw_of(rng: np.random.Generator, family: str) -> Measured:
    """Draw a model of one of the ``FAMILIES`` and measure its memory."""
    while True:
        model, note = build(rng, family)
        inputs, bias = model.cores[0].input_size, model.cores[0].bias
        amplitude, half = 10 ** rng.uniform(-2, 0.5), bool(rng.random() < 0.3)
        directions = torch.nn.functional.normalize(torch.as_tensor(rng.standard_normal((32, 1, inputs))), dim=-1)
        longest = {"cells in a loop": 300, "searched": 1000}.get(family, 3000)
        horizon = int(math.exp(rng.uniform(math.log(30), math.log(longest))))
        tried = [size * amplitude * each for each in directions for size in (1, 0.1)]
        tried = tried if family == "searched" else tried[:1]
        rates = [fixed_point_rate(model, each) for each in ([*tried, 0 * tried[0]] if bias else tried)]
        if None in rates:
            continue
        bare = isinstance(model.cores[0], nn.RNNBase) and len(model.cores) == 1 and rng.random() < 0.3
        measured = model.cores[0] if bare else Outputs(model) if rng.random() < 0.5 else model
        dtype = torch.float32 if half else torch.float64
        options = {} if family == "searched" else {"directions": directions[0].to(dtype), "amplitudes": [amplitude]}
        curve = ssm.memory_function(
            measured.to(dtype), horizon, d_input=inputs, bound=amplitude, linear=False, progress=False, **options
        )
        if curve.value.any():
            return Measured(family, curve, min(rates), f"{note}, amplitude {amplitude:.2g}, {dtype}, {horizon} steps")


def build(rng: np.random.Generator, family: str) -> tuple[Stack, str]:
    torch.manual_seed(int(rng.integers(2**31)))
    inputs, hidden, layers = (
        int(each) for each in (rng.integers(1, 4), round(2 ** rng.uniform(0, 5)), rng.integers(1, 4))
    )
    named = next((cell for cell in ("ReLU", *CELLS) if cell in family), None)
    cell = named or str(rng.choice(["ReLU", *CELLS]))
    remembers = "large gate biases" in family or (named is None and rng.random() < 0.3)
    gain, bias = rng.uniform(0.3, 1.5 if remembers else 2.5), remembers or bool(rng.random() < 0.5)
    options = {"bias": bias} | ({"nonlinearity": "relu"} if cell == "ReLU" else {})
    if "projected" in family:
        hidden = max(hidden, 2)
        options["proj_size"] = int(rng.integers(1, hidden))
    kind = "RNN" if cell == "ReLU" else cell
    if family == "cells in a loop":
        hidden, layers = min(hidden, 16), min(layers, 2)
        sizes = [inputs] + [hidden] * (layers - 1)
        cores = [getattr(nn, f"{kind}Cell")(size, hidden, **options) for size in sizes]
    elif family == "residual and norm":
        sizes = [inputs] + [hidden] * (layers - 1)
        cores = [CELLS[kind](size, hidden, batch_first=True, **options) for size in sizes]
    else:
        cores = [CELLS[kind](inputs, hidden, layers, batch_first=True, **options)]
    wrapped = (bool(rng.random() < 0.5), bool(rng.random() < 0.5)) if family == "residual and norm" else ()
    model = Stack(cores, nn.Linear(width(cores[-1]), int(rng.integers(1, 4))), *wrapped)
    orthogonal = family == "orthogonal or identical"
    with torch.no_grad():
        for core in cores:
            scale_recurrence(core, rng, gain, orthogonal)
            if remembers and cell in ("GRU", "LSTM"):
                enlarge_gate_biases(core, rng, cell)
    if family == "briefly trained":
        train(model, rng, inputs)
    note = f"{family}, {cell} {layers}x{hidden}, gain {gain:.2g}{', bias' * bias}{', large gate biases' * remembers}"
    return model.double(), note


def scale_recurrence(core: nn.Module, rng: np.random.Generator, gain: float, orthogonal: bool) -> None:
    identical = rng.random() < 0.3
    for name, weight in core.named_parameters():
        if "weight_hh" in name and orthogonal:
            for gate in weight.split(core.hidden_size):
                (nn.init.eye_ if identical else nn.init.orthogonal_)(gate)
            weight *= rng.uniform(0.8, 1.0)
        elif "weight_hh" in name:
            weight *= gain


def enlarge_gate_biases(core: nn.Module, rng: np.random.Generator, cell: str) -> None:
    """Set the biases of the forget or update gates up to 6, as a constant, at random, or as log U(1, T) (chrono)."""
    n, largest, how = core.hidden_size, rng.uniform(2, 6), rng.integers(3)
    for name, bias in core.named_parameters():
        if name.startswith("bias_ih"):
            other = getattr(core, name.replace("ih", "hh"))
            drawn = [
                torch.full((n,), largest),
                largest * torch.rand(n),
                (1 + math.expm1(largest) * torch.rand(n)).log(),
            ]
            bias[n : 2 * n], other[n : 2 * n] = drawn[how].to(bias), 0
            if how == 2 and cell == "LSTM":
                bias[:n], other[:n] = -drawn[how].to(bias), 0


def train(model: Stack, rng: np.random.Generator, inputs: int) -> None:
    """Train a few steps on sums of earlier inputs."""
    optimizer = torch.optim.Adam(model.parameters(), lr=10 ** rng.uniform(-3, -1.5))
    lag = int(rng.integers(1, 10))
    for _ in range(int(rng.integers(3, 30))):
        x = torch.randn(16, 30, inputs)
        loss = (model(x)[0][:, lag:, :1] - x[:, :-lag, :1].cumsum(1) / 5).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def fixed_point_rate(model: Stack, x: Tensor) -> float | None:
    """-ln of the spectral radius at the fixed point that the state reaches from zero; None if it reaches none."""

    def parts(states) -> list[Tensor]:
        return [part for state in states for part in (state if isinstance(state, tuple) else (state,))]

    def packed(states) -> Tensor:
        return torch.cat([part.reshape(-1) for part in parts(states)])

    def step(flat: Tensor) -> Tensor:
        pieces = flat.split([part.numel() for part in parts(states)])
        leaves = iter(piece.reshape(part.shape) for piece, part in zip(pieces, parts(states), strict=True))
        held = [tuple(next(leaves) for _ in state) if isinstance(state, tuple) else next(leaves) for state in states]
        return packed(model(x[None], held)[1])

    states = None
    with torch.no_grad():
        for _ in range(LONGEST // 2000):
            _, states = model(x.expand(1, 2000, -1), states)
            flat = packed(states)
            if not bool(flat.isfinite().all()):
                return None
            if float((step(flat) - flat).abs().max()) < 1e-12:
                break
        else:
            return None
    radius = float(torch.linalg.eigvals(torch.autograd.functional.jacobian(step, flat)).abs().max())
    return -math.log(radius) if 1e-6 < radius < 1 - 1e-9 else None
