"""A training step of a sequence classifier: ours beside the same model with S4D's FFT path.

    python benchmarks/training.py                   # one layer, 784 steps: benchmarks/results/training-cpu.json
    python benchmarks/training.py --device cuda     # four layers
    python benchmarks/training.py --smoke --out /tmp/smoke.json

The model is the preset ``paper-images`` (StableSSM, tables 5 and 6: S4D of 32 conjugate pairs, width 64) without
dropout; a step is loss, gradients, clipping and AdamW. The peer trains as S4D does (Gu et al. 2022, "On the
Parameterization and Initialization of Diagonal State Space Models", the authors' ``s4d.py``): at every step a kernel of
the whole length from all modes, then a convolution by FFT of twice that length; everything else is the same module.
``convolution`` is our own ``mode="conv"``, whose kernel is made in two levels. Outputs and all gradients are first
compared with S4D's formula in float64, and a wrong one gets no time. ``mixer`` rows are the layer alone. On a GPU
both also run with ``TrainingConfig(compile=True, graph=True)``: the rows ``graph``, whose gradients are compared with
the model's own.

On a CPU glibc gives large temporaries back and pays page faults for the next ones. Here it keeps them, for all alike;
``--default-allocator`` leaves it as users have it, where the FFT path, with more temporaries, pays more.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import _measure
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stablessm as ssm
from stablessm.bench.measure import event_clock, host_clock, timings
from stablessm.training import TrainingConfig
from stablessm.training.optimizer import Optimizer
from stablessm.training.replayed import Replayed

OURS, CONVOLUTION, PEER = "stablessm", "stablessm, convolution", "S4D, FFT"
DIGITS = SimpleNamespace(kind="values", size=1), SimpleNamespace(kind="classes", size=10, per_step=False)
TOLERANCE = 1e-3
BATCHES = {"cpu": [1, 4, 8, 16, 32, 128], "cuda": [64, 128]}
LAYERS = {"cpu": 1, "cuda": 4}


class FFTMixer(nn.Module):
    """S4D's forward pass over the parameters of a layer of ours."""

    def __init__(self, layer: ssm.S4D) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, state: None = None, **_: None) -> tuple[Tensor, None]:
        """The output (B, T, H), and no state."""
        layer, steps, u = self.layer, x.shape[1], x.mT
        eigenvalues = layer.eigenvalues()
        scaled = eigenvalues * layer.log_dt.exp()[:, None]
        weights = torch.view_as_complex(layer.C) * (torch.exp(scaled) - 1) / eigenvalues
        modes = torch.exp(scaled[..., None] * torch.arange(steps, device=x.device))
        kernel = 2 * torch.einsum("hn,hnl->hl", weights, modes).real
        spectrum = torch.fft.rfft(u, n=2 * steps) * torch.fft.rfft(kernel, n=2 * steps)
        y = torch.fft.irfft(spectrum, n=2 * steps)[..., :steps]
        return (y + u * layer.D[:, None]).mT.contiguous(), None  # what follows is faster in this order of memory


def contenders(layers: int, device: str) -> dict[str, nn.Module]:
    """The same model with the same weights, three times."""
    torch.manual_seed(0)
    model = ssm.models.for_task(*DIGITS, "paper-images", n_layers=layers, dropout=0.0).to(device)
    models = {name: copy.deepcopy(model) for name in (OURS, CONVOLUTION, PEER)}
    for block in models[CONVOLUTION].body.blocks:
        block.mixer.mode = "conv"
    for block in models[PEER].body.blocks:
        block.mixer = FFTMixer(block.mixer)
    return models


def gradients(model: nn.Module, x: Tensor, classes: Tensor) -> list[Tensor]:
    """The outputs, and the gradient of the loss in each parameter."""
    output = model(x)
    return [output.detach(), *torch.autograd.grad(F.cross_entropy(output, classes), list(model.parameters()))]


def errors(models: dict[str, nn.Module], x: Tensor, classes: Tensor) -> dict[str, float]:
    """The largest error of an output or gradient, relative to the largest entry of the true one."""
    truth = gradients(copy.deepcopy(models[PEER]).double(), x.double(), classes)
    return {name: largest_error(gradients(model, x, classes), truth) for name, model in models.items()}


def largest_error(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, truth, strict=True))


def training_step(model: nn.Module, x: Tensor, classes: Tensor, *, graph: bool = False) -> Callable[[], Tensor]:
    optimizer, numbers = Optimizer(model, TrainingConfig(), TrainingConfig().rates(10**6)), itertools.count()
    never, parameters = torch.zeros((), device=x.device), list(model.parameters())
    run = torch.compile(model) if graph else model

    def both_ways() -> tuple[Tensor, Sequence[Tensor]]:
        loss = F.cross_entropy(run(x), classes)
        return loss.detach(), [gradient.contiguous() for gradient in torch.autograd.grad(loss, parameters)]

    passes = Replayed(both_ways, [], []) if graph else both_ways
    if graph and (error := largest_error(passes()[1], gradients(model, x, classes)[1:])) > TOLERANCE:
        raise RuntimeError(f"gradients of the graph are off by {error:.1e}")

    def step() -> Tensor:
        loss, found = passes()
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = gradient
        optimizer.clip()
        optimizer.step(next(numbers), never)
        return loss

    return step


def mixer_step(model: nn.Module, x: Tensor) -> Tensor:
    mixer = model.body.blocks[0].mixer
    y, _ = mixer(x)
    return torch.autograd.grad(y, [x, *mixer.parameters()], torch.ones_like(y))[0]


def one_case(batch: int, steps: int, layers: int, device: str, seconds: float) -> list[dict[str, Any]]:
    models = contenders(layers, device)
    x, classes = torch.randn(batch, steps, 1, device=device), torch.randint(0, 10, (batch,), device=device)
    wrong = errors(models, x[:8], classes[:8])
    right = {name: model for name, model in models.items() if wrong[name] <= TOLERANCE}
    hidden = torch.randn(batch, steps, 64, device=device, requires_grad=True)
    calls = {
        "step": {name: training_step(model, x, classes) for name, model in right.items()},
        "mixer": {name: partial(mixer_step, model, hidden) for name, model in right.items()},
    }
    if device == "cuda":
        both = (name for name in (OURS, PEER) if name in right)
        calls["graph"] = {name: training_step(right[name], x, classes, graph=True) for name in both}
    clock, rows = event_clock if device == "cuda" else host_clock, []
    for what, chosen in calls.items():
        taken = timings(chosen, seconds=seconds, clocks=dict.fromkeys(chosen, clock))
        for name in chosen if what == "graph" else models:
            row = {"what": what, "batch": batch, "steps": steps, "layers": layers, "contender": name}
            row |= {"relative_error": wrong[name]}
            if name in taken:
                row |= {"ms": taken[name].median, "quartiles_ms": taken[name].quartiles, "turns": taken[name].turns}
                row |= {"peer_over_this": taken[PEER].median / taken[name].median if PEER in taken else None}
            rows.append(row)
    return rows


def main() -> None:
    parser = _measure.parser(__doc__, "training")
    parser.add_argument("--layers", type=int, help="blocks of the model; one on a CPU, four on a GPU")
    parser.add_argument("--batches", help="sizes with commas between")
    parser.add_argument("--seconds", type=float, default=10.0, help="most time for one contender in one case")
    parser.add_argument("--default-allocator", action="store_true", help="leave glibc as it is")
    args = parser.parse_args()
    batches = [int(size) for size in args.batches.split(",")] if args.batches else BATCHES[args.device]
    steps, batches, seconds = (30, [4], 0.05) if args.smoke else (784, batches, args.seconds)
    out, rows = _measure.record_path(args), []
    if not args.default_allocator:
        _measure.same_allocator_for_all()
    for batch in batches:
        found = one_case(batch, steps, args.layers or LAYERS[args.device], args.device, seconds)
        for row in found:
            told = f"{row['ms']:9.2f} ms, {row['peer_over_this']:5.2f}× the peer's speed" if "ms" in row else "wrong"
            error = f"error {row['relative_error']:.1e}"
            print(f"{row['what']:6} batch {batch:4} {row['contender']:24} {told}, {error}", flush=True)
        rows += found
        ours = [row for row in rows if row["contender"] == OURS and "ms" in row]
        ratios = {
            what: {r["batch"]: r["peer_over_this"] for r in ours if r["what"] == what} for what in ("step", "graph")
        }
        summary: dict[str, Any] = {
            "times_the_speed_of_s4d_by_batch": {what: own for what, own in ratios.items() if own}
        }
        summary["allocator"] = "glibc's default" if args.default_allocator else "keeps what is freed"
        _measure.write_record(out, args.device, rows, summary, complete=batch == batches[-1])


if __name__ == "__main__":
    main()
