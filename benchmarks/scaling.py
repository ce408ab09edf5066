"""The cost model beside measurements: one language model on 1, 2 and 4 CPU processes, or on one GPU.

    python benchmarks/scaling.py                     # gloo processes: benchmarks/results/scaling-cpu.json
    python benchmarks/scaling.py --device cuda       # one GPU, lengths 2^10 to 2^17: scaling-cuda.json
    python benchmarks/scaling.py --smoke --out /tmp/smoke.json

On CPUs a step of four sequences is shared as plans say: S2 and S4 split every sequence over 2 and 4 ranks
(``stablessm.parallel.sequence_parallel``), D2 and D4 split the batch. The rate of arithmetic is taken from one rank;
what the other plans need is then predicted (``_cost.py``), and compared: processor seconds of a rank,
memory at its peak, and bytes of carries, counted. ``seconds`` is by the clock on the wall, which other programs and too
few cores make longer; the record says the load before. On a GPU nothing is fitted: what ``Machine`` has by default is
compared.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import _measure
import torch
import torch.distributed as dist
from _cost import Machine, Network, Plan, step_cost
from torch import Tensor
from torch.nn.functional import cross_entropy

from stablessm import models, parallel
from stablessm._parts import nth_part

PLANS = {
    "1": Plan(),
    "S1": Plan(),
    "S2": Plan(sequence=2),
    "S4": Plan(sequence=4),
    "D2": Plan(data=2),
    "D4": Plan(data=4),
}
"""S1: one rank, with the pass that finds what it would tell the next."""
_MMAP_THRESHOLD = -3  # malloc.h
CPU = Network(d_model=64, n_layers=2, d_state=32, vocab_size=256, number=4)
GPU = Network(vocab_size=8192)


def model_of(network: Network) -> models.LanguageModel:
    sizes = {name: getattr(network, name) for name in ("d_model", "n_layers", "d_state", "mlp")}
    model = models.LanguageModel(network.vocab_size, **sizes)
    model.body.gradient_checkpointing = network.recompute
    return model


def loss_of(model: models.LanguageModel, tokens: Tensor, own: slice) -> Tensor:
    """Of one sequence (1, T + 1): this rank's part of the sum over its tokens."""
    inputs, targets = tokens[:, :-1][:, own], tokens[:, 1:][:, own]
    return cross_entropy(model(inputs)[0].float(), targets[0], reduction="sum") / (tokens.shape[1] - 1)


def rank_main(rank: int, name: str, network: Network, steps: int, batch: int, turns: int, folder: Path) -> None:
    """One process of a plan: trains, and writes down what it took."""
    plan = PLANS[name]
    torch.set_num_threads(1)
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_MMAP_THRESHOLD, 2**16)  # at first what is freed goes back, so that the peak is what is used
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=plan.ranks)
    torch.manual_seed(0)
    model = model_of(network)
    tokens = torch.randint(0, network.vocab_size, (batch, steps + 1))
    if name.startswith("S"):
        parallel.sequence_parallel(model)
    own = nth_part(steps, rank % plan.sequence, plan.sequence)
    mine = nth_part(batch, rank // plan.sequence, plan.data)
    loss_of(model, tokens[:1, :65], slice(None)).backward()  # compiles
    before = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()
    sent, rows = [0], []
    really = dist.batch_isend_irecv

    def counted(operations: list[dist.P2POp]) -> Any:
        sent[0] += sum(op.tensor.nbytes for op in operations if op.op is dist.isend)
        return really(operations)

    with mock.patch.object(dist, "batch_isend_irecv", counted):
        for turn in range(turns + 1):
            if turn == 1:  # from here on time counts, which giving memory back would take
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
                mallopt(_MMAP_THRESHOLD, 2**25)
            dist.barrier()
            wall, processor, sent[0] = time.perf_counter(), time.process_time(), 0
            model.zero_grad()
            for sequence in tokens[mine].split(1):
                loss_of(model, sequence, own).backward()
            computed = time.process_time() - processor, time.perf_counter() - wall
            flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            dist.all_reduce(flat)
            rows.append((*computed, time.perf_counter() - wall, sent[0] / max(1, mine.stop - mine.start)))
    processor, passes, seconds, told = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    found = {"processor_seconds": processor, "seconds": seconds, "gradient_seconds": seconds - passes}
    found |= {"peak_bytes": peak, "sent_bytes": told, "link": link(rank) if plan.ranks == 2 else None}
    (folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def link(rank: int) -> tuple[float, float]:
    """Seconds of an empty message, and bytes a second of a long one, between two processes."""

    def one_way(numbers: int, turns: int = 50) -> float:
        buffer, times = torch.zeros(numbers), []
        for _ in range(turns):
            start = time.perf_counter()
            for sender in (0, 1):
                dist.send(buffer, 1 - rank) if rank == sender else dist.recv(buffer, 1 - rank)
            times.append((time.perf_counter() - start) / 2)
        return min(times)  # what others on the machine add is not the link's

    empty = one_way(1)
    return empty, 4 * 2**20 / max(one_way(2**20) - empty, 1e-9)


def run(name: str, *settings: Any) -> dict[str, Any]:
    """The plan in processes of its own: the slowest rank, the fullest, and the one that sends most."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stablessm.parallel"])  # torch is imported once
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(rank, name, *settings, Path(folder)) for rank in range(PLANS[name].ranks)]
        processes = [context.Process(target=rank_main, args=own, daemon=True) for own in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            if process.exitcode:
                raise RuntimeError(f"a rank of {name} ended with {process.exitcode}")
        found = [
            json.loads((Path(folder) / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(len(processes))
        ]
    worst = {key: max(rank[key] for rank in found) for key in found[0] if key != "link"}
    return {**worst, "link": found[0]["link"]}


def on_cpu(args: argparse.Namespace) -> None:
    steps, batch, turns, names = (256, 2, 1, ("1", "S2")) if args.smoke else (args.steps, 4, args.turns, tuple(PLANS))
    network, rows, links, load = CPU, [], [], os.getloadavg()[0]  # of others, before we start
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(1 if args.smoke else args.rounds):  # all plans in turn, so that a slow moment meets them all
        for name in names:
            found = run(name, network, steps, batch, turns)
            links.append(found.pop("link"))
            rounds[name].append(found)
            times = f"{found['processor_seconds']:7.3f} s of a processor, {found['seconds']:7.3f} s"
            sizes = f"{found['peak_bytes'] / 2**20:7.1f} MiB, {found['sent_bytes']:8.0f} bytes sent"
            print(f"{name:3} {times}, {sizes}", flush=True)
    for name, found in rounds.items():
        medians = {key: statistics.median(one[key] for one in found) for key in found[0]}
        rows.append({"plan": name, "steps": steps, "batch": batch, **medians, "rounds": found})
    latency, rate = min(link for link in links if link)
    operations = network.operations(split=False) * steps * batch / rows[0]["processor_seconds"]
    machine = Machine(
        operations=operations, bandwidth=float("inf"), links=(rate, rate), latencies=(latency, latency), node=2**30
    )
    for row in rows:
        compare(row, network, machine, PLANS[row["plan"]])
        told, turns = row["predicted"], max(1.0, PLANS[row["plan"]].ranks / (os.cpu_count() or 1))  # on the cores
        told["clock"] = told["compute"] * turns + told["gradients"] + told["carries"]
        row["processor_ratio"] = row["processor_seconds"] / told["compute"]
        row["clock_ratio"] = row["seconds"] / told["clock"]
        row["sent_ratio"] = row["sent_bytes"] / told["sent"] if told["sent"] else None
    finish(args, rows, network, machine, {"load": load, "cores": os.cpu_count()})


def on_gpu(args: argparse.Namespace) -> None:
    machine, rows = Machine(), []
    lengths = [2**10] if args.smoke else [2**k for k in range(10, 18)]
    for recompute in (False, True):
        network = replace(GPU, recompute=recompute)
        model = model_of(network).cuda()
        for steps, split in [(steps, split) for steps in lengths for split in (False, True)]:
            tokens = torch.randint(0, network.vocab_size, (1, steps + 1), device="cuda")
            with parallel.sequence_parallel(model) if split else nullcontext():
                try:
                    seconds, peak = gpu_step(model, tokens)
                except torch.cuda.OutOfMemoryError:
                    break
            row = {"plan": "S1" if split else "1", "steps": steps, "batch": 1, "recompute": recompute}
            row |= {"seconds": seconds, "peak_bytes": peak}
            compare(row, network, machine, Plan())
            row["seconds_ratio"] = seconds / row["predicted"]["compute"]
            rows.append(row)
            print(f"{row['plan']:3} {steps:7} tokens{', recomputed' if recompute else '':13} {1e3 * seconds:9.2f} ms, "
                  f"{peak / 2**30:6.2f} GiB", flush=True)  # fmt: skip
    finish(args, rows, GPU, machine, {})


def gpu_step(model: models.LanguageModel, tokens: Tensor) -> tuple[float, int]:
    """Seconds of a step, and what it keeps at its peak."""

    def step() -> None:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            value = loss_of(model, tokens, slice(None))
        value.backward()

    step()
    torch.cuda.synchronize()
    model.zero_grad()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    took = _measure.times({"step": step}, seconds=2.0, wait=lambda _: torch.cuda.synchronize())["step"] / 1e3
    return took, torch.cuda.max_memory_allocated() - before


def compare(row: dict[str, Any], network: Network, machine: Machine, plan: Plan) -> None:
    """Beside each other: what the model says, and the ratio of the memory that activations take."""
    cost = step_cost(network, machine, plan, steps=row["steps"], batch=row["batch"])
    split = row["plan"].startswith("S")
    if split and plan.sequence == 1:  # nobody to tell, but the pass is computed
        cost = replace(cost, compute=cost.compute * network.operations(split=True) / network.operations(split=False))
    peak = network.peak(split=split) * -(-row["steps"] // plan.sequence)
    row["predicted"] = {**asdict(cost), "activations": peak}
    row["memory_ratio"] = row["peak_bytes"] / peak


def finish(args: argparse.Namespace, rows: list, network: Network, machine: Machine, more: dict[str, Any]) -> None:
    summary = {"network": asdict(network), "machine": asdict(machine), "parameters": network.parameters, **more}
    _measure.write_record(_measure.record_path(args), args.device, rows, summary)


def main() -> None:
    parser = _measure.parser(__doc__, "scaling")
    parser.add_argument("--steps", type=int, default=2**14, help="tokens of a sequence, on CPUs")
    parser.add_argument("--turns", type=int, default=5, help="steps that are timed, on CPUs")
    parser.add_argument("--rounds", type=int, default=3, help="times that all plans are run, on CPUs")
    args = parser.parse_args()
    (on_gpu if args.device == "cuda" else on_cpu)(args)


if __name__ == "__main__":
    main()
