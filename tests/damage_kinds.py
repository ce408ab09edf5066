"""The kinds of files that the package writes, as small as they get, and what reads them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from damage import Kind, RefusedError, command

import stablessm as ssm
from stablessm import record

GATED = ("mingru", "minlstm", "rglru", "hgrn", "selective")
"""Mixers whose decay follows the input."""
WALKS = "sweep_experiment:EXPERIMENT"
sys.path.insert(0, str(Path(__file__).parent))


# a layer, a model, a sum, curves


def _layer(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    ssm.save(ssm.LRU(1, 3, 2, map="tanh", eigenvalues=torch.tensor([0.5, 0.7 + 0.1j, 0.3 + 0.1 * seed])), folder)


def _model(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    ssm.save(ssm.SequenceClassifier(3, d_input=1, d_model=4, n_layers=1, d_state=2), folder)


def _load(folder: Path) -> Any:
    model = ssm.load(folder).eval()
    x = torch.linspace(-1, 1, 12).reshape(1, -1, 1)
    with torch.no_grad():
        return model.state_dict(), model(x)


def _sum(folder: Path, seed: int) -> None:
    rates = np.array([-0.5 - seed, -0.1])
    ssm.constructions.ExponentialSum(rates, np.array([2.0, 1.0 + seed]), dt=0.5, horizon=10).save(
        folder / "sum.safetensors"
    )
    ssm.save(ssm.RealSSM(1, 2, 1), folder / "layer")
    (folder / "layer" / "model.safetensors").rename(folder / "layer.safetensors")


def _load_sum(folder: Path) -> Any:
    return ssm.constructions.ExponentialSum.load(folder / "sum.safetensors")


def _curves(folder: Path, seed: int) -> None:
    layer = ssm.RealSSM(1, 3, 1, eigenvalues=-torch.tensor([0.1, 0.4, 1.0 + seed]))
    ssm.memory_function(layer, 12).save(folder / "memory.npz")
    target = ssm.targets.LinearFunctional("exponential", rate=0.3 + seed, dt=0.1)
    ssm.perturbation_error(layer, target, [0.0, 0.1], samples=2, horizon=8, progress=False).save(folder / "error.npz")


def _load_curves(folder: Path) -> Any:
    curves = ssm.MemoryCurve.load(folder / "memory.npz"), ssm.PerturbationCurve.load(folder / "error.npz")
    return {**vars(curves[0])}, {**vars(curves[1])}


# trainings


def data(folder: Path) -> Path:
    """Data of a training, outside the folder that is damaged."""
    path = folder.parent / "data.npz"
    if not path.exists():
        rng = np.random.default_rng(0)
        inputs = rng.standard_normal((40, 8, 1)).astype("float32")
        np.savez(path, inputs=inputs, targets=(inputs.sum((1, 2)) > 0).astype(int))
    return path


def train(folder: Path, out: Path, seed: int = 0, *more: object) -> None:
    sizes = [word for size in ("d_model=4", "n_layers=1", "d_state=4") for word in ("--set", size)]
    command(
        "train", "--data", data(folder), *sizes, "--steps", 6, "--batch-size", 8, "--device", "cpu", "--seed", seed,
        "--checkpoint-every", 2, "--evaluate-every", 2, "--out", out, *more,
    )  # fmt: skip


def _training(folder: Path, seed: int) -> None:
    train(folder, folder, seed)


def _interrupted(folder: Path, seed: int) -> None:
    from training_task import stop_after

    with stop_after(3):
        train(folder, folder, seed)


def _resume(folder: Path) -> Any:
    train(folder.parent, folder)
    content = record.read_json(folder / "record.json")
    results = {key: content["results"][key] for key in ("steps", "best", "last", "scores")}
    return results, ssm.load(folder / "model").state_dict(), _metrics(folder)


def _resume_last_good(folder: Path) -> Any:
    train(folder.parent, folder, 0, "--last-good")
    return ssm.load(folder / "model").state_dict().keys()


def _metrics(folder: Path) -> Any:
    from stablessm.training.metrics import read_rows

    rows = read_rows(folder)
    return [{key: value for key, value in row.items() if key != "sequences_per_second"} for row in rows]


def _evaluate(folder: Path) -> Any:
    return command("eval", folder, "--json")


def _report(folder: Path) -> Any:
    from stablessm.report import runs

    return _shown(runs.collect([folder]))


def _shown(found: Any) -> Any:
    from stablessm.report import front
    from stablessm.report.section import section

    print(*(f"{problem.where}: {problem.reason}" for problem in found.problems))
    shown = [str(section(run, "x", Path())) for run in found.runs]
    return [vars(run) | {"faults": (), "folder": ""} for run in found.runs], bool(front.counts(found)), len(shown)


def _text(folder: Path) -> Path:
    path = folder.parent / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 30, encoding="utf-8")
    return path


def _language(folder: Path, seed: int) -> None:
    sizes = [word for size in ("d_model=4", "n_layers=1", "d_state=4") for word in ("--set", size)]
    command(
        "train", "lm", "-o", f"text={_text(folder)}", "-o", "length=8", "-o", "level=char", "--model", "lm-small",
        *sizes, "--steps", 2, "--batch-size", 2, "--device", "cpu", "--seed", seed, "--out", folder,
    )  # fmt: skip


def _generate(folder: Path) -> Any:
    return command("generate", folder, "to be", "--tokens", 8, "--device", "cpu")


def _evaluate_elsewhere(folder: Path) -> Any:
    return command("eval", folder, "--json", "-o", f"text={_text(folder)}")


@contextmanager
def _cached(folder: Path) -> Iterator[None]:
    from stablessm.tasks import text_stream

    with mock.patch.dict(os.environ, STABLESSM_CACHE=str(folder)), mock.patch.object(text_stream, "_LARGE", 0):
        yield


def _cache(folder: Path, seed: int) -> None:
    _tokens(folder)


def _tokens(folder: Path) -> Any:
    with _cached(folder):
        task = ssm.tasks.get("lm", text=str(_text(folder.parent.parent / "x")), level="word", length=8)
        return [task.batch(split, 2, seed=0, epoch=0, index=0) for split in ("train", "valid")], task.companions


# forecasters, replicas, searches, and what reads any model


def series(folder: Path) -> Path:
    """Hourly numbers in a CSV file, outside the folder that is damaged."""
    path = folder.parent / "load.csv"
    if not path.exists():
        rows = (f"2026-01-{1 + n // 24:02} {n % 24:02}:00,{np.sin(n / 4):.4f},{n % 7}\n" for n in range(240))
        path.write_text("time,load,price\n" + "".join(rows), encoding="utf-8")
    return path


def _forecast(folder: Path, seed: int, *more: object) -> None:
    sizes = [word for size in ("d_model=4", "n_layers=1", "d_state=4") for word in ("--set", size)]
    command(
        "train", "--data", series(folder), "--target", "load", "-o", "window=12", "-o", "horizon=3", *sizes,
        "--steps", 6, "--batch-size", 4, "--device", "cpu", "--seed", seed, "--ema", 0.9, "--evaluate-every", 2,
        "--checkpoint-every", 2, "--out", folder, *more,
    )  # fmt: skip


def _predict(folder: Path) -> Any:
    return command("predict", folder, series(folder), "--device", "cpu")


def _extend(folder: Path) -> Any:
    _forecast(folder, 0, "--steps", 8, "--extend")
    return ssm.load(folder / "model").state_dict(), _metrics(folder)


def _branch(folder: Path) -> Any:
    branch = folder.parent / "branch"
    _forecast(branch, 0, "--init-from", folder, "--fresh")
    return ssm.load(branch / "model").state_dict()


def _replicas(folder: Path, seed: int) -> None:
    train(folder, folder, seed, "--replicas", 2)


def _resume_replicas(folder: Path) -> Any:
    train(folder.parent, folder, 0, "--replicas", 2)
    parts = sorted(folder.glob("replica-*"))
    return [(ssm.load(part / "model").state_dict(), _metrics(part)) for part in parts]


def _search(folder: Path, seed: int, trials: int = 2) -> str:
    small = ("steps=2", "batch_size=4", "model.d_model=4", "model.n_layers=1", "task.length=6")
    small += tuple(f"task.{split}_examples=8" for split in ("train", "valid", "test"))
    return command(
        "search", "functional", "--over", "lr=log:1e-3:1e-1", "--trials", trials, "--seed", seed, "--out", folder,
        *(word for setting in small for word in ("--set", setting)),
    )  # fmt: skip


def _search_on(folder: Path) -> Any:
    _search(folder, 0, 3)
    return (folder / "search.json").read_text(encoding="utf-8")


def _gated(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    for mixer in GATED:
        model = ssm.SequenceRegressor(1, d_input=1, d_model=4, n_layers=1, mixer=mixer, map="best")
        ssm.save(model, folder / mixer)


def _load_gated(folder: Path) -> Any:
    return [_load(folder / mixer) for mixer in GATED]


def _measure(folder: Path) -> Any:
    out = folder.parent / "measured"
    command("measure", folder, "--horizon", 8, "--samples", 2, "--ascent", 0, "--out", out)
    return {path.name: record.load_arrays(path) for path in out.glob("*.npz")}


def _check(folder: Path) -> Any:
    return command("check", folder, "--case", "chunks", "--length", 12)


# experiments and sweeps


def _experiment(folder: Path, seed: int) -> None:
    command("run", WALKS, "--out", folder, *(["--set", f"steps={5 + seed}"] if seed else []))
    if seed:
        next((folder / "walks").iterdir()).rename(folder / "walks" / "smoke")


def _run(folder: Path) -> Any:
    said = command("run", WALKS, "--out", folder)
    return said.partition("\n")[2], record.load_arrays(folder / "walks" / "smoke" / "stages.npz")


def _status(folder: Path) -> Any:
    return command("status", "--out", folder, "--all")


def _begun_experiment(folder: Path, seed: int) -> None:
    """Stages of their own, notes of jobs, a checkpoint in the middle of a loop."""
    from stablessm.experiments import catalog
    from stablessm.experiments.frame.base import Plan

    experiment = catalog.get(WALKS)
    plan = Plan.of(experiment, "smoke", folder, {"steps": str(5 + seed)})
    with plan.begun(progress=False) as run:
        for name in ("walk-0", "walk-1"):
            plan.jobs()[name](run)
        for step in run.loop("walk-2", 5, lambda: {"x": np.arange(3.0)}, lambda arrays: None):
            if step == 3:
                break
    if seed:
        plan.folder.rename(plan.folder.with_name("smoke"))


class Here:
    """An engine that computes in this process."""

    def __init__(self, only: Sequence[str] = ()) -> None:
        self.only = only

    def run(self, jobs: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        from stablessm.sweeps.worker import compute

        for job in jobs:
            if not self.only or job.name in self.only:
                yield job, compute(job, 1)


def _sweep(folder: Path, seed: int) -> None:
    from stablessm.sweeps import sweep

    list(sweep([WALKS], "smoke", folder, Here(("walk-0", "walk-2")), progress=False))


def _sweep_on(folder: Path) -> Any:
    from stablessm.sweeps import sweep

    found = list(sweep([WALKS], "smoke", folder, Here(), progress=False))
    if any(swept.failures for swept in found):
        raise RefusedError(str([swept.failures for swept in found]))
    return record.load_arrays(folder / "walks" / "smoke" / "stages.npz")


# Hugging Face, benchmarks, checkpoints in shards


def _hugging_face(folder: Path, seed: int) -> None:
    from stablessm.models.hf_config import StableSSMConfig
    from stablessm.models.hf_model import StableSSMForCausalLM

    torch.manual_seed(seed)
    config = StableSSMConfig(vocab_size=12, d_model=4, n_layers=1, d_state=4, eos_token_id=0, pad_token_id=0)
    StableSSMForCausalLM(config).save_pretrained(folder)


def _from_pretrained(folder: Path) -> Any:
    from stablessm.cli.model_source import load_model

    model = load_model(str(folder))[0].eval()
    with torch.no_grad():
        return model.state_dict(), model(torch.arange(12)[None]).logits


def _mamba(folder: Path, seed: int) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(seed)
    sizes = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "state_size": 2, "intermediate_size": 8}
    MambaForCausalLM(MambaConfig(**sizes, time_step_rank=1)).save_pretrained(folder)


def _accelerated(folder: Path) -> Any:
    from stablessm.cli.model_source import load_model

    model = ssm.accelerate(load_model(str(folder))[0].eval())
    with torch.no_grad():
        return model(torch.arange(9)[None]).logits


def _bench(folder: Path, seed: int) -> None:
    from stablessm.bench.records import write_record

    write_record(folder / "bench.json", "cpu", [{"case": 1, "ms": 2.5}], {}, complete=False)
    record.write_json(folder / "other.json", {"kind": "another"})


def _bench_rows(folder: Path) -> Any:
    from stablessm.bench.records import rows_so_far

    return rows_so_far(folder / "bench.json")


def _shards(folder: Path, seed: int) -> None:
    from stablessm.training.checkpoint import Checkpoint, Checkpoints

    for step in (1, 2):
        tensors = {"w": torch.arange(6.0) + step + seed, "n": torch.tensor(step)}
        Checkpoints(folder, {"lr": 0.1}).save(Checkpoint(step, tensors, {"seconds": 1.5}), sharded=True)


def _load_shards(folder: Path) -> Any:
    from stablessm.training.checkpoint import Checkpoints

    found = Checkpoints(folder, {"lr": 0.1}).load()
    return None if found is None else (found.step, found.tensors, found.facts)


KINDS: dict[str, Kind] = {
    "layer": Kind(_layer, {"load": _load}),
    "model": Kind(_model, {"load": _load}),
    "sum": Kind(_sum, {"load": _load_sum}, ("sum.safetensors",), alone=True),
    "curves": Kind(_curves, {"load": _load_curves}, alone=True),
    "training": Kind(
        _training,
        {"eval": _evaluate, "report": _report, "resume": _resume},
        ("*.json*", "model/*", "checkpoints/*"),
    ),
    "interrupted training": Kind(
        _interrupted,
        {"resume": _resume, "resume --last-good": _resume_last_good},
        ("*.json*", "model/*", "checkpoints/*"),
    ),
    "language": Kind(
        _language,
        {"generate": _generate, "eval": _evaluate, "eval elsewhere": _evaluate_elsewhere},
        ("training.json", "model/*"),
    ),
    "token cache": Kind(_cache, {"task": _tokens}),
    "experiment": Kind(_experiment, {"run": _run, "status": _status, "report": _report}),
    "begun experiment": Kind(_begun_experiment, {"run": _run, "status": _status}),
    "sweep": Kind(_sweep, {"sweep": _sweep_on, "status": _status}),
    "gated models": Kind(_gated, {"load": _load_gated}),
    "forecast": Kind(
        _forecast,
        {"predict": _predict, "extend": _extend, "init from": _branch, "measure": _measure, "check": _check},
        ("*.json*", "model/*", "checkpoints/*"),
    ),
    "replicas": Kind(
        _replicas, {"resume": _resume_replicas}, ("*.json*", "replica-*/*.json*", "replica-*/model/*", "checkpoints/*")
    ),
    "search": Kind(_search, {"resume": _search_on}, ("search.*", "trials/*/record.json")),
    "Mamba": Kind(_mamba, {"accelerate": _accelerated, "measure": _measure, "check": _check}, sealed=False),
    "Hugging Face folder": Kind(_hugging_face, {"from_pretrained": _from_pretrained}),
    "benchmark record": Kind(_bench, {"rows": _bench_rows}, ("bench.json",), alone=True),
    "checkpoint in shards": Kind(_shards, {"load": _load_shards}),
}
