"""How long do the long measurements take, and in how much memory?

memory: the memory function of four layers of width 64 over 10⁴ to 10⁶ steps, in blocks with the state carried (of a
    unit input, and the search over 64 inputs), beside one whole forward pass over as many steps; each in a process of
    its own, whose peak memory is noted. An LSTM and a GRU of four layers too, as far as they go.
sweep: all perturbation curves of st-fig1 at its published size (8 families of trained models, 6 widths, 3 searches, 22
    radii, 30 draws): all widths at once, beside one model at a time. The curves must be those of the record. Requires
    the trained models, which are no part of the committed record: stablessm run st-fig1 --size paper --out results
    --fresh leaves them there. Without them only the memory is measured.

python benchmarks/instruments.py                                   # benchmarks/results/instruments-cpu.json
python benchmarks/instruments.py --device cuda --only sweep
python benchmarks/instruments.py --smoke --out /tmp/smoke.json
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import _measure
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stablessm as ssm
from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.stages import Stages
from stablessm.experiments.stable_ssm.fig1.experiment import EXPERIMENT
from stablessm.experiments.stable_ssm.fig1.models import SEARCHES, TARGET, Config, family, measure_family, trained
from stablessm.instruments import PerturbationCurve, PerturbationFamily, perturbation_error

RECORD = Path(__file__).parent.parent / "results" / "st-fig1" / "paper"
WIDTH, DEPTH, STATES = 64, 4, 16
HORIZONS = (10_000, 100_000, 1_000_000)
LONGEST = {("gru", "blocks"): 100_000, ("gru", "whole"): 100_000, ("lstm", "whole"): 100_000}
"""What takes minutes beyond. An LSTM comes to rest, to the bit, and is not run any further; this GRU does not."""
SAME = 1e-9
"""How far a curve may be from the record's, relatively."""


class Deep(nn.Module):
    """x -> up, then residual layers of h + W gelu(layer(h)), then down; (x, state) -> (y, state)."""

    d_input = 1

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(1, WIDTH), nn.Linear(WIDTH, 1)
        self.layers = nn.ModuleList(make() for _ in range(DEPTH))
        self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def initial_state(self, batch: int) -> list[Tensor]:
        """One a layer."""
        return [layer.initial_state(batch) for layer in self.layers]

    def forward(self, x: Tensor, state: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """(B, T, 1) to (B, T, 1)."""
        h, after = self.up(x), []
        for i, (layer, mix) in enumerate(zip(self.layers, self.mix, strict=True)):
            y, last = layer(h, None if state is None else state[i])
            after.append(last)
            h = h + mix(F.gelu(y))
        return self.down(h), after


MODELS: dict[str, Callable[[], nn.Module]] = {
    "s4d": lambda: Deep(lambda: ssm.S4D(WIDTH, STATES)),
    "lru": lambda: Deep(lambda: ssm.LRU(WIDTH, WIDTH, WIDTH, r_min=0.99, r_max=0.99999)),
    "gru": lambda: nn.GRU(1, WIDTH, DEPTH, batch_first=True),
    "lstm": lambda: nn.LSTM(1, WIDTH, DEPTH, batch_first=True),
}


@torch.no_grad()
def whole(model: nn.Module, horizon: int) -> np.ndarray:
    """What one would write by hand: nothing and a held input in one pass, and the difference from step to step."""
    device = next(model.parameters()).device
    x = torch.stack([torch.zeros(horizon, 1, device=device), torch.ones(horizon, 1, device=device)])
    nothing, held = model(x)[0]
    moved = held - nothing
    return torch.linalg.vector_norm(moved.diff(dim=0, prepend=torch.zeros_like(moved[:1])), dim=-1).cpu().numpy()


def blocks(model: nn.Module, horizon: int) -> np.ndarray:
    return ssm.memory_function(model, horizon, norm="unit", progress=False).value


def searched(model: nn.Module, horizon: int) -> np.ndarray:
    return ssm.memory_function(model, horizon, progress=False).value


WAYS = {"blocks": blocks, "searched": searched, "whole": whole}


def peak(device: str) -> float:
    """In MB: of the process, or of what torch took from the GPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measured(name: str, way: str, horizon: int, device: str) -> tuple[float, float, float, list[float]]:
    """Seconds, the peak before and after, and a few values of the curve."""
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    WAYS[way](model, 64)  # kernels are compiled
    before, start = peak(device), time.perf_counter()
    value = WAYS[way](model, horizon)
    seconds = time.perf_counter() - start
    at = np.unique(np.geomspace(1, horizon, 20).astype(int)) - 1
    return seconds, before, peak(device), value[at].tolist()


def alone(*case: object) -> tuple[float, float, float, list[float]]:
    """``measured`` in a new process: a peak is of all that a process ever did."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(measured, *case).result()


def memories(device: str, smoke: bool) -> list[dict]:
    """Every model at every horizon: a unit input in blocks, the whole search in blocks, one pass over all steps."""
    rows = []
    for name, horizon in product(("s4d", "lstm") if smoke else MODELS, (200,) if smoke else HORIZONS):
        found = {}
        for way in WAYS:
            if horizon > LONGEST.get((name, way), horizon) or (way == "searched" and name in ("gru", "lstm")):
                continue
            seconds, before, after, found[way] = alone(name, way, horizon, device)
            row = {"measurement": "memory", "model": name, "way": way, "horizon": horizon, "seconds": seconds}
            rows.append(row | {"peak_mb": after, "grown_mb": after - before})
            print(f"  {name:5} {way:9} {horizon:9,} steps: {seconds:8.2f} s, {after - before:8.0f} MB more", flush=True)
        if "whole" in found:
            by_hand, ours = np.array(found["whole"]), np.array(found["blocks"])
            assert np.abs(ours - by_hand).max() <= 1e-4 * by_hand.max(), "the two ways differ"
    return rows


def record_of_weights(folder: Path, config: Config) -> Run:
    """A run that has the trained models of the committed record and nothing else."""
    run = Run(folder, asdict(config), progress=False)
    for path in RECORD.glob("training-*.npz"):
        shutil.copy(path, folder)
    return run


def all_at_once(config: Config, run: Run, map: str, length: int, kind: str) -> PerturbationFamily:
    measure_family(config, run, map, length, kind)
    return family(config, run, map, length, kind)


def one_by_one(config: Config, run: Run, map: str, length: int, kind: str) -> PerturbationFamily:
    search, weight_norm = SEARCHES[kind]
    curves = {}
    for m, layer in zip(config.widths, trained(config, run, map, length), strict=True):
        curves[m] = perturbation_error(
            layer.to(config.training.chosen_device()), TARGET, config.radii, parameters="recurrent",
            weight_norm=weight_norm, search=search, samples=config.draws, steps=config.steps, horizon=length,
            progress=False,
        )  # fmt: skip
    return PerturbationFamily(curves)


def sweep(measure: Callable[..., PerturbationFamily], config: Config, cases: list[tuple]) -> tuple[float, float]:
    """Seconds, and how far the curves are from the record's at most."""
    with tempfile.TemporaryDirectory() as folder:
        run = record_of_weights(Path(folder), config)
        _measure.synchronize()
        start = time.perf_counter()
        found = {case: measure(config, run, *case) for case in cases}
        _measure.synchronize()
        seconds = time.perf_counter() - start
    worst = 0.0
    for (map, length, kind), curves in found.items():
        for m, curve in curves.curves.items():
            known = Stages(RECORD).load(f"{map}-{length}-{m}-{kind}", PerturbationCurve)
            with np.errstate(invalid="ignore"):
                off = np.abs(curve.lower - known.lower) / known.lower
            worst = max(worst, float(np.where(curve.lower == known.lower, 0, off).max()))  # ∞ is ∞
    return seconds, worst


def sweeps(device: str, smoke: bool) -> list[dict]:
    """The sweep, in turns."""
    config = EXPERIMENT.configs["paper"]
    config = replace(config, training=replace(config.training, device=device))
    cases = list(product(config.maps, config.lengths, SEARCHES))[: 1 if smoke else None]
    ways = {"all widths at once": all_at_once, "one model at a time": one_by_one}
    if device == "cpu":
        ways.pop("all widths at once")  # there they are the same
    taken: dict[str, list[float]] = {name: [] for name in ways}
    worst = dict.fromkeys(ways, 0.0)
    for measure in ways.values():
        sweep(measure, config, cases[:1])  # the first call of a library is slow
    for _ in range(1 if smoke else 3):
        for name, measure in ways.items():
            seconds, difference = sweep(measure, config, cases)
            taken[name].append(seconds)
            worst[name] = max(worst[name], difference)
            assert difference < SAME, f"{name}: {difference} from the record"
    curves = len(cases) * len(config.widths)
    rows = []
    for name, seconds in taken.items():
        row = {"measurement": "sweep", "way": name, "curves": curves, "seconds": statistics.median(seconds)}
        rows.append(row | {"least": min(seconds), "most": max(seconds), "difference": worst[name]})
        print(f"  {name}: {curves} curves, {row['seconds']:.2f} s, at most {worst[name]:.1e} from the record")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", choices=("memory", "sweep"), help="one of the two")
    parser.add_argument("--smoke", action="store_true", help="a short horizon and one family, to see that it runs")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or _measure.RESULTS / f"instruments{f'-{args.only}' if args.only else ''}-{args.device}.json"
    parts = {"sweep": sweeps, "memory": memories}
    rows = []
    if not any(RECORD.glob("training-*.npz")):
        if args.only == "sweep":
            parser.error(
                "--only sweep requires trained models: stablessm run st-fig1 --size paper --out results --fresh"
            )
        parts.pop("sweep")
    for name in [args.only] if args.only else parts:
        print(f"{name}, {args.device}")
        rows += parts[name](args.device, args.smoke)
    summary = {
        " ".join(str(row[key]) for key in ("measurement", "model", "way", "horizon") if key in row): row["seconds"]
        for row in rows
    }
    _measure.write_record(out, args.device, rows, summary)
    print(f"\nwritten: {out}")


if __name__ == "__main__":
    main()
