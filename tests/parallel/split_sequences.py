"""What each of four ranks does: sequences split among 2, 3 and 4 of them, beside the whole sequence on one.

Every rank draws the same data, computes the whole result itself, and writes down how far its own part is off.
"""

from __future__ import annotations

import json
import resource
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import stablessm as ssm
from stablessm import models, parallel

RANKS = 4
PARTS = {
    2: [(5, 5), (7, 6), (1, 8), (0, 9), (9, 0), (1, 1)],
    3: [(4, 4, 3), (1, 1, 1), (0, 0, 6), (5, 0, 1), (1, 0, 7), (2, 9, 1)],
    4: [(3, 3, 3, 2), (1, 1, 1, 1), (0, 1, 0, 5), (6, 1, 1, 2), (2, 0, 0, 3), (1, 4, 2, 0)],
}
"""Steps of each rank."""
MEMBERS = {2: (1, 3), 3: (0, 1, 2), 4: (0, 1, 2, 3)}
"""Which of the four ranks share the sequence."""

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "real": lambda: ssm.RealSSM(3, 5, 3, dt=0.3),
    "real-discrete": lambda: ssm.RealSSM(3, 5, 3, time="discrete", skip=True),
    "real-tanh": lambda: ssm.RealSSM(3, 5, 3, activation="tanh", mode="conv"),
    "lru": lambda: ssm.LRU(3, 5, 3),
    "s4d": lambda: ssm.S4D(3, 4, dt_max=0.5),
    "s4d-conv": lambda: ssm.S4D(3, 4, map="best", mode="conv"),
    "hyena-real": lambda: models.Hyena(3, ssm.RealSSM(3, 5, 3)),
}


class Part:
    """One rank of a group, and its steps."""

    def __init__(self, sizes: tuple[int, ...], group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.whole = group, dist.get_rank(group), sum(sizes)
        start = sum(sizes[: self.rank])
        self.steps = slice(start, start + sizes[self.rank])
        self.first, self.last = self.rank == 0, self.rank == len(sizes) - 1

    def of(self, tensor: Tensor | None, dim: int = 1) -> Tensor | None:
        """This rank's steps, as a leaf of its own."""
        if tensor is None:
            return None
        own = tensor.movedim(dim, 0)[self.steps].movedim(0, dim).detach().clone()
        return own.requires_grad_(tensor.requires_grad)

    def lengths(self, lengths: Tensor | None) -> Tensor | None:
        if lengths is None:
            return None
        return (lengths - self.steps.start).clamp(0, self.steps.stop - self.steps.start)

    def sum(self, gradient: Tensor | None, like: Tensor) -> Tensor:
        """Over the ranks."""
        gradient = torch.zeros_like(like) if gradient is None else gradient.resolve_conj().contiguous()
        dist.all_reduce(torch.view_as_real(gradient) if gradient.is_complex() else gradient, group=self.group)
        return gradient


class Errors:
    """The largest difference so far, relative to the largest number there."""

    def __init__(self) -> None:
        self.worst = 0.0

    def compare(self, ours: Tensor | None, truth: Tensor | None) -> None:
        if truth is None or not truth.numel():
            return
        assert ours is not None, "no gradient"
        assert ours.shape == truth.shape, f"{ours.shape} for {truth.shape}"
        error = float(((ours - truth).abs().max() / truth.abs().max().clamp(min=1.0)).detach())
        assert error == error, "NaN"
        self.worst = max(self.worst, error)


def weighted(tensor: Tensor, weight: Tensor) -> Tensor:
    """A number that depends on every entry in its own way."""
    product = tensor * weight
    return product.real.sum() if product.is_complex() else product.sum()


def random_reset(kind: int, batch: int, steps: int) -> Tensor | None:
    return [None, torch.rand(steps) < 0.2, torch.rand(batch, steps) < 0.2][kind]


def backend(compiled: bool) -> str:
    return "auto" if compiled else "reference"


def scan_case(part: Part, seed: int, compiled: bool) -> float:
    """``sequence_scan``: every form of decay, real and complex, with and without state and resets, by the seed."""
    torch.manual_seed(seed)
    dtype, batch, channels, steps = [torch.float64, torch.complex128][seed % 2], 2, 3, part.whole
    shape = [(channels,), (steps, channels), (batch, steps, channels)][seed % 3]
    decay = 0.9 * torch.randn(shape, dtype=dtype)
    drive, weight = torch.randn(2, batch, steps, channels, dtype=dtype)
    initial = torch.randn(batch, channels, dtype=dtype) if seed % 4 else None
    reset = random_reset(seed // 2 % 3, batch, steps)
    for tensor in (decay, drive, initial):
        if tensor is not None:
            tensor.requires_grad_()
    truth = ssm.linear_scan(decay, drive, initial, reset=reset, backend="reference")
    weighted(truth, weight).backward()
    errors, time = Errors(), None if len(shape) == 1 else len(shape) - 2
    own_decay = decay.detach().clone().requires_grad_() if time is None else part.of(decay, time)
    own_drive, own_initial = part.of(drive), None if initial is None else initial.detach().clone().requires_grad_()
    own_reset = None if reset is None else part.of(reset, reset.dim() - 1)
    states = parallel.sequence_scan(
        own_decay, own_drive, own_initial, reset=own_reset, group=part.group, backend=backend(compiled)
    )
    weighted(states, part.of(weight)).backward()
    errors.compare(states, part.of(truth))
    errors.compare(own_drive.grad, part.of(drive.grad))
    if time is None:
        errors.compare(part.sum(own_decay.grad, decay), decay.grad)
    else:
        errors.compare(own_decay.grad, part.of(decay.grad, time))
    if initial is not None:
        errors.compare(part.sum(own_initial.grad, initial), initial.grad)
    return errors.worst


def fused_case(part: Part, seed: int, compiled: bool) -> float:
    """``sequence_ssm_scan``, both forms."""
    torch.manual_seed(seed)
    dtype, batch, steps, dense = [torch.float64, torch.complex128][seed % 2], 2, part.whole, seed % 3 == 0
    H, N = 3, 4
    shapes = [(N,), (N, H), (2, N), (2, H), (batch, N)] if dense else [(H, N)] * 3 + [(H,), (batch, H, N)]
    x = torch.randn(batch, steps, H, dtype=torch.float64)
    decay, B, C, initial = (torch.randn(shapes[i], dtype=dtype) for i in (0, 1, 2, 4))
    decay = decay / decay.abs() * torch.rand(decay.shape, dtype=torch.float64)
    D = torch.randn(shapes[3], dtype=torch.float64)
    weight, final_weight = torch.randn(batch, steps, 2 if dense else H, dtype=torch.float64), torch.randn_like(initial)
    reset = random_reset(seed // 2 % 3, batch, steps)
    lengths = torch.randint(0, steps + 1, (batch,)) if seed % 4 == 1 else None
    tensors = [tensor.requires_grad_() for tensor in (x, decay, B, C, D, initial)]
    y, final = ssm.ssm_scan(*tensors, reset=reset, lengths=lengths, backend="reference")
    (weighted(y, weight) + weighted(final, final_weight)).backward()
    own = [part.of(x), *(tensor.detach().clone().requires_grad_() for tensor in tensors[1:])]
    own_reset = None if reset is None else part.of(reset, reset.dim() - 1)
    own_y, own_final = parallel.sequence_ssm_scan(
        *own, reset=own_reset, lengths=part.lengths(lengths), group=part.group, backend=backend(compiled)
    )
    loss = weighted(own_y, part.of(weight))
    (loss + weighted(own_final, final_weight) if part.last else loss).backward()
    errors = Errors()
    errors.compare(own_y, part.of(y))
    errors.compare(own[0].grad, part.of(x.grad))
    if part.last:
        errors.compare(own_final, final)
    for mine, truth in zip(own[1:], tensors[1:], strict=True):
        errors.compare(part.sum(mine.grad, truth), truth.grad)
    return errors.worst


def layer_case(part: Part, seed: int, name: str) -> float:
    """A layer with its state, resets, lengths and time steps."""
    torch.manual_seed(seed)
    layer, batch, steps = LAYERS[name]().double(), 2, part.whole
    x = torch.randn(batch, steps, 3, dtype=torch.float64, requires_grad=True)
    convolves = "conv" in name or "tanh" in name
    options: dict[str, Any] = {"lengths": torch.randint(0, steps + 1, (batch,)) if seed % 3 == 1 else None}
    options["reset"] = None if convolves else random_reset(seed % 3, batch, steps)
    varying = None if convolves or "discrete" in name else torch.rand(batch, steps, dtype=torch.float64)
    options["dt"] = [None, 0.7, varying][seed // 2 % 3] if name != "real-discrete" else None
    state = _like(layer.initial_state(batch), lambda t: torch.randn_like(t).requires_grad_())
    weight = torch.randn(batch, steps, 3, dtype=torch.float64)
    y, final = layer(x, state, **options)
    (weighted(y, weight) + sum(leaf.abs().square().sum() for leaf in _leaves(final))).backward()
    truths = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad()
    own_x, own_state = part.of(x), _like(state, lambda t: t.detach().clone().requires_grad_())
    own = {
        "lengths": part.lengths(options["lengths"]),
        "reset": None if options["reset"] is None else part.of(options["reset"], options["reset"].dim() - 1),
        "dt": part.of(options["dt"]) if isinstance(options["dt"], Tensor) else options["dt"],
    }
    with parallel.sequence_parallel(layer, part.group):
        own_y, own_final = layer(own_x, own_state, **own)
    loss = weighted(own_y, part.of(weight))
    if part.last:
        loss = loss + sum(leaf.abs().square().sum() for leaf in _leaves(own_final))
    loss.backward()
    errors = Errors()
    errors.compare(own_y, part.of(y))
    errors.compare(own_x.grad, part.of(x.grad))
    if part.last:
        for mine, truth in zip(_leaves(own_final), _leaves(final), strict=True):
            errors.compare(mine, truth)
    for mine, truth in zip(_leaves(own_state), _leaves(state), strict=True):
        errors.compare(part.sum(mine.grad, truth), truth.grad)
    for parameter, truth in zip(layer.parameters(), truths, strict=True):
        errors.compare(part.sum(parameter.grad, parameter), truth)
    return errors.worst


def model_case(part: Part, seed: int, mixer: str) -> float:
    """The language model with dropout, trained for two steps under DDP, beside one that sees the whole sequence."""
    batch, steps, vocab = 2, part.whole, 11
    torch.manual_seed(seed)
    model = language_model(vocab, mixer)
    twin = language_model(vocab, mixer)
    twin.load_state_dict(model.state_dict())
    model.body.gradient_checkpointing = seed % 2 == 0  # the conversation then takes place again in the backward pass
    tokens = torch.randint(0, vocab, (batch, steps + 1))
    reset = random_reset(seed % 3, batch, steps)
    own_reset = None if reset is None else part.of(reset, reset.dim() - 1)
    inputs, targets, errors = tokens[:, :-1], tokens[:, 1:], Errors()
    parallel.sequence_parallel(model, part.group)
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=part.group)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.5) for m in (twin, model)]
    for step in range(2):
        losses = []
        for network, x, y, starts, optimizer in (
            (twin, inputs, targets, reset, optimizers[0]),
            (wrapped, part.of(inputs), part.of(targets), own_reset, optimizers[1]),
        ):
            torch.manual_seed(step)  # the same dropout
            loss = nn.functional.cross_entropy(network(x, reset=starts).flatten(0, 1), y.flatten(), reduction="sum")
            optimizer.zero_grad()
            (loss / (batch * steps) * (1 if network is twin else dist.get_world_size(part.group))).backward()
            optimizer.step()
            losses.append(loss.detach())
        errors.compare(part.sum(losses[1], losses[0]), losses[0])
        for mine, truth in zip(model.parameters(), twin.parameters(), strict=True):
            errors.compare(mine.grad, truth.grad)
            errors.compare(mine, truth)
    return errors.worst


def sharded_case(part: Part, seed: int) -> float:
    """The same under FSDP2: parameters and gradients in shards, one step."""
    batch, steps, vocab = 2, part.whole, 11
    torch.manual_seed(seed)
    model, twin = (language_model(vocab, "hyena-lru").eval() for _ in range(2))
    twin.load_state_dict(model.state_dict())
    tokens = torch.randint(0, vocab, (batch, steps + 1))
    inputs, targets, errors = tokens[:, :-1], tokens[:, 1:], Errors()
    nn.functional.cross_entropy(twin(inputs).flatten(0, 1), targets.flatten()).backward()
    mesh = DeviceMesh.from_group(part.group, "cpu")
    for module in (*model.body.blocks, model):
        fully_shard(module, mesh=mesh)
    parallel.sequence_parallel(model, part.group)
    logits = model(part.of(inputs)).flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, part.of(targets).flatten(), reduction="sum")
    (loss * dist.get_world_size(part.group) / (batch * steps)).backward()
    for mine, truth in zip(model.parameters(), twin.parameters(), strict=True):
        errors.compare(mine.grad.full_tensor(), truth.grad)
    return errors.worst


def language_model(vocab: int, mixer: str) -> models.LanguageModel:
    return models.LanguageModel(vocab, mixer=mixer, d_model=6, d_state=4, dropout=0.2, mlp=2).double()


def _like(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    return function(state) if isinstance(state, Tensor) else tuple(_like(entry, function) for entry in state)


def _leaves(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [leaf for entry in state for leaf in _leaves(entry)]


def second_derivative_case(part: Part, seed: int) -> float:
    """The gradient of a gradient's size."""
    torch.manual_seed(seed)
    decay = torch.rand(3, dtype=torch.float64, requires_grad=True)
    drive = torch.randn(2, part.whole, 3, dtype=torch.float64, requires_grad=True)

    def gradient_size(states: Tensor, steps: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(states.square().sum(), steps, create_graph=True)
        return gradient.square().sum()

    gradient_size(ssm.linear_scan(decay, drive, backend="reference"), drive).backward()
    mine, own = decay.detach().clone().requires_grad_(), part.of(drive)
    gradient_size(parallel.sequence_scan(mine, own, group=part.group, backend="reference"), own).backward()
    errors = Errors()
    errors.compare(own.grad, part.of(drive.grad))
    errors.compare(part.sum(mine.grad, decay), decay.grad)
    return errors.worst


@contextmanager
def counted() -> Iterator[list[int]]:
    """The bytes of every message that is sent."""
    sent: list[int] = []
    really = dist.batch_isend_irecv

    def batch(operations: list[dist.P2POp]) -> Any:
        sent.extend(op.tensor.nbytes for op in operations if op.op is dist.isend)
        return really(operations)

    with mock.patch.object(dist, "batch_isend_irecv", batch):
        yield sent


def traffic(group: dist.ProcessGroup) -> dict[str, list[list[int]]]:
    """Messages of a forward and a backward pass, for short and long sequences and for more channels."""
    found: dict[str, list[list[int]]] = {}
    for steps, channels in ((4, 8), (4000, 8), (4, 16)):
        drive = torch.randn(2, steps, channels, dtype=torch.float64, requires_grad=True)
        with counted() as forward:
            states = parallel.sequence_scan(torch.full((channels,), 0.5, dtype=torch.float64), drive, group=group)
        with counted() as backward:
            states.sum().backward()
        found[f"{steps}x{channels}"] = [forward, backward]
    return found


def limited_memory(group: dist.ProcessGroup, steps: int, budget: int) -> dict[str, str]:
    """Train with a context of ``steps`` where each process may take ``budget`` more bytes: split, then whole."""
    torch.manual_seed(0)
    tokens = (torch.arange(steps + 1) % 30)[None]  # what comes next can be learned
    model = models.LanguageModel(30, d_model=32, d_state=16)

    def train(inputs: Tensor, targets: Tensor) -> str:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        try:
            for _ in range(2):
                loss = nn.functional.cross_entropy(model(inputs)[0], targets[0], reduction="sum") / steps
                optimizer.zero_grad()
                loss.backward()
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad, group=group)
                optimizer.step()
                losses.append(loss.detach())
        except RuntimeError as error:
            return "out of memory" if "allocate memory" in str(error) else str(error)
        dist.all_reduce(total := torch.stack(losses), group=group)
        return "learned" if total[1] < total[0] else f"losses {total.tolist()}"

    handle, own = parallel.sequence_parallel(model, group), parallel.own_steps(steps, group)
    train(tokens[:, :64], tokens[:, 1:65])  # code is compiled and threads are started
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    used = int(status.split("VmData:")[1].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + budget, resource.RLIM_INFINITY))
    try:
        split = train(tokens[:, :-1][:, own], tokens[:, 1:][:, own])
        handle.remove()
        return {"split": split, "whole": train(tokens[:, :-1], tokens[:, 1:])}
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def cases(thorough: bool) -> Iterator[tuple[str, Callable[[Part], float], int, tuple[int, ...]]]:
    """Name, function, ranks and steps of each thing that is compared: all combinations, or some of each."""
    for ranks, lists in PARTS.items():
        for i, sizes in enumerate(lists):
            for seed in range(6 * i, 6 * i + 6) if thorough else (7 * i,):
                yield "scan", lambda part, seed=seed: scan_case(part, seed, thorough), ranks, sizes
                yield "fused", lambda part, seed=seed: fused_case(part, seed, thorough), ranks, sizes
            for j, name in enumerate(LAYERS):
                if thorough or (i + j + ranks) % 6 == 0:
                    yield f"layer {name}", lambda part, s=i + j, n=name: layer_case(part, s, n), ranks, sizes
            for j, mixer in enumerate(("hyena-real", "hyena-lru", "hyena-s4d")):
                if thorough or i == j == ranks - 2:
                    yield f"model {mixer}", lambda part, s=i, m=mixer: model_case(part, s, m), ranks, sizes
        if thorough or ranks == 2:
            yield "sharded model", lambda part: sharded_case(part, 0), ranks, lists[1]
        yield "second derivative", lambda part: second_derivative_case(part, 0), ranks, lists[0]


def main(rank: int, folder: Path, thorough: bool) -> None:
    """Run everything as one rank of four, and write what was found to ``folder/rank.json``."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    groups = {size: dist.new_group(members) for size, members in MEMBERS.items()}
    found: dict[str, Any] = {"errors": {}, "failed": None}
    try:
        for name, run, ranks, sizes in cases(thorough):
            if rank in MEMBERS[ranks]:
                key = f"{name} on {ranks}"
                error = run(Part(sizes, groups[ranks]))
                found["errors"][key] = max(error, found["errors"].get(key, 0.0))
        name, sizes = "traffic and memory", ()
        found["traffic"] = traffic(groups[4])
        found["memory"] = limited_memory(groups[4], steps=2**14, budget=80 * 2**20)
    except Exception:
        found["failed"] = f"{name} {sizes}: {traceback.format_exc()}"
    (folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    if found["failed"] is None:
        dist.destroy_process_group()
