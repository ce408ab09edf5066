"""Trainings by several processes on gloo, for the tests: a process that has imported everything forks the ranks.

``python distributed_cases.py`` reads a line of JSON, ``[function, ranks, arguments]``, and answers with a line: what
the function returned on each rank, or what it died of.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # FSDP2 imports it, and that takes long: once, before the fork
import torch.distributed.checkpoint
import torch.distributed.checkpoint.hf_storage
import torch.distributed.fsdp
import torch.utils.tensorboard
from torch import nn
from training_task import Sums, loss_and_gradient

import stablessm as ssm
from stablessm import models, tasks
from stablessm.cli import app
from stablessm.tasks.base import Inputs, Outputs
from stablessm.training import Interrupted, TrainingConfig, evaluate, joined, train
from stablessm.training.trainee import Sharded, whole

LIMIT = 120
"""Seconds after which a rank that hangs is ended."""


class Wide(Sums):
    """The sums in float64, with padding: other counts on every rank."""

    def __init__(self, *, padded: bool = True) -> None:
        super().__init__(padded=padded)
        self._tensors = {split: x.double() for split, x in self._tensors.items()}


def network(*, seed: int = 0, **options: Any) -> nn.Module:
    """Two blocks of our layers, in float64 and without dropout."""
    torch.manual_seed(seed)
    settings = {"d_model": 6, "n_layers": 2, "d_state": 3, "mixer": "real", **options}
    return models.for_task(Inputs("values", 1, 12), Outputs("values", 1, per_step=True), "tiny", **settings).double()


def trained(
    folder: str,
    *,
    seed: int = 0,
    task: Any = None,
    resume: bool | str = True,
    model: dict[str, Any] | nn.Module | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Train; what came out, in numbers that ranks can be compared by."""
    common = {"steps": 28, "batch_size": 10, "lr": 0.02, "clip": 0.5, "device": "cpu"}
    often = {"log_every": 1, "evaluate_every": 28, "checkpoint_every": 1000}
    network_ = model if isinstance(model, nn.Module) else network(seed=seed, **(model or {}))
    config = TrainingConfig(**{**common, **often, **changes})
    result = train(network_, task or Wide(), config, folder, progress=False, resume=resume)
    return {
        "losses": result.losses[:, 1].tolist(), "scores": {k: dict(v) for k, v in result.scores.items()},
        "weights": torch.cat([t.double().flatten() for t in network_.state_dict().values()]).tolist(),
        "diverged": None if result.diverged is None else str(result.diverged),
    }  # fmt: skip


def part_way(folder: str, stop: int, **options: Any) -> int:
    """The same, ended by a signal that the last rank gets in the middle of an epoch; the step it stopped after."""

    class Signaling(Wide):
        def batch(self, split: Any, *args: Any, **given: Any) -> Any:
            at = given["epoch"] * self.steps("train", 10) + given["index"]
            if split == "train" and at == stop - 1 and given["part"][0] == given["part"][1] - 1:
                signal.raise_signal(signal.SIGTERM)
            return super().batch(split, *args, **given)

    try:
        trained(folder, task=Signaling(), **options)
    except Interrupted as error:
        return error.step
    return -1


def language_model() -> nn.Module:
    """Two blocks with a state of several parts, in float64."""
    torch.manual_seed(0)
    return models.LanguageModel(257, d_model=6, n_layers=2, d_state=3, mixer="hyena-lru").double()


def carried(folder: str, text: str, *, stop: int | None = None, **changes: Any) -> dict[str, Any] | int:
    """A language model whose state is carried on: :func:`trained`, or the step that a signal stopped it after."""
    task, model = tasks.get("lm", text=text, level="byte", separator="|", length=6, carry=True), language_model()
    batches, calls = task.batch, []

    def batch(split: Any, *args: Any, **given: Any) -> Any:
        calls.append(split)
        if calls.count("train") == stop and given["part"][0] == given["part"][1] - 1:
            signal.raise_signal(signal.SIGTERM)
        return batches(split, *args, **given)

    task.batch = batch
    try:
        return trained(folder, task=task, model=model, **{"steps": 27, "evaluate_every": 13, **changes})
    except Interrupted as error:
        return error.step


def several(jobs: list[list[Any]]) -> list[Any]:
    """Many of these functions in one start of the ranks."""
    with joined():
        return [globals()[name](**options) for name, options in jobs]


def fails(folder: str, rank: int) -> None:
    """One rank has an error in the middle."""

    class Failing(Wide):
        def batch(self, split: Any, *args: Any, **given: Any) -> Any:
            if given["index"] == 3 and given["part"][0] == rank:
                raise OSError("the disk is gone")
            return super().batch(split, *args, **given)

    trained(folder, task=Failing())


class Halved(Wide):
    """A loss of its own."""

    def loss(self, output: torch.Tensor, batch: Any) -> torch.Tensor:
        return super().loss(output, batch) / 2


def refused(folder: str, *, own_loss: bool = False, **options: Any) -> str:
    """What an argument's error says."""
    try:
        trained(folder, task=Halved() if own_loss else None, **options)
    except ssm.ArgumentError as error:
        return str(error)
    return ""


def diverges(folder: str, parallel: str = "ddp") -> str:
    """A learning rate that breaks it: the report."""
    changes = {"lr": 1e4, "clip": None, "warmup": 0.0, "explode": 3.0, "evaluate_every": 1000}
    return trained(folder, parallel=parallel, task=Wide(padded=False), **changes)["diverged"]


def gradients(cases: list[dict[str, Any]]) -> list[list[float]]:
    """Loss and gradient of steps that are split over batches and ranks."""
    with joined() as ranks:
        return [loss_and_gradient(**case, ranks=ranks) for case in cases]


def averaged(folder: str, **changes: Any) -> dict[str, Any]:
    """A training whose weights are averaged, and stopped early by its scores."""
    return trained(folder, ema=0.8, lr=0.3, evaluate_every=2, patience=3, **changes)


def evaluated(sizes: list[int]) -> list[dict[str, float]]:
    """Scores of a model by all ranks together."""
    model = network()
    with joined() as ranks:
        return [evaluate(model, Wide(), "valid", size, ranks=ranks) for size in sizes]


def every_layer() -> dict[str, float]:
    """How far the gradient of modules in shards is from that of the whole module, for each layer and mixer."""
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    with joined() as ranks:
        found = {}
        for name, module in _modules().items():
            module = module.double()
            x = torch.randn(2 * ranks.size, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            _output(module, x).square().mean().backward()
            expected = {own: p.grad.clone() for own, p in module.named_parameters() if p.grad is not None}
            module.zero_grad()
            sharded = Sharded(module, torch.device("cpu"), ranks, compiled=False, carries=False)
            _output(sharded.trained, x[2 * ranks.rank : 2 * ranks.rank + 2]).square().mean().backward()
            got = {own: whole(p.grad) for own, p in sharded.trained.named_parameters() if p.grad is not None}
            assert got.keys() == expected.keys(), name
            found[name] = max(float((got[own] - expected[own]).abs().max()) for own in expected)
        return found


def _modules() -> dict[str, nn.Module]:
    layers = {
        "RealSSM": ssm.RealSSM(3, 4, 2), "LRU": ssm.LRU(3, 4, 2), "S4D": ssm.S4D(3, 4),
        "ContinuousRNN": ssm.ContinuousRNN(3, 4, 2),
        "Bidirectional": ssm.Bidirectional(ssm.LRU(3, 4, 2), ssm.LRU(3, 4, 2)),
        "LanguageModel": nn.Sequential(_Tokens(), models.LanguageModel(5, d_model=6, n_layers=2, d_state=3)),
    }  # fmt: skip
    inputs, outputs = Inputs("values", 3, 7), Outputs("classes", 2, per_step=False)
    settings = {"d_model": 6, "d_state": 2, "n_layers": 2, "dropout": 0.0, "mixer_options": {}}
    for mixer in ("real", "lru", "s4d", "hyena-real"):
        layers[mixer] = models.for_task(inputs, outputs, "tiny", **settings, mixer=mixer)
    return layers


class _Tokens(nn.Module):
    """Which of five each step is like, for a model of tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (2 * x.sum(-1)).round().long() % 5


def _output(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = module(x)
    return y[0] if isinstance(y, tuple) else y


def accelerated(count: int = 12) -> dict[str, Any]:
    """A loop written by hand, with Hugging Face Accelerate."""
    from accelerate import Accelerator, DataLoaderConfiguration
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    model, x = network(), Wide()._tensors["train"]
    optimizer = torch.optim.AdamW(ssm.param_groups(model, 0.02, recurrent_lr=0.01, weight_decay=0.1))
    data = TensorDataset(x, ssm.linear_scan(x.new_tensor([0.9]), x))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8))
    losses = []
    for _ in range(count // len(loader) + 1):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(float(accelerator.gather(loss.detach()[None]).mean()))
    weights = torch.cat([p.detach().flatten() for p in accelerator.unwrap_model(model).parameters()])
    return {"losses": losses, "weights": weights.tolist(), "processes": accelerator.num_processes}


def trainer(folder: str, batch_size: int) -> dict[str, Any]:
    """Hugging Face's Trainer with our language model; ``batch_size``: of a rank."""
    import transformers

    torch.manual_seed(0)
    config = models.StableSSMConfig(vocab_size=9, d_model=8, n_layers=2, d_state=4)
    model = models.StableSSMForCausalLM(config).double()
    rows = torch.randint(0, 9, (40, 12), generator=torch.Generator().manual_seed(3))
    arguments = transformers.TrainingArguments(
        folder, max_steps=12, per_device_train_batch_size=batch_size, learning_rate=0.01, logging_steps=1, seed=1,
        report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(ssm.param_groups(model, 0.01))
    data = [{"input_ids": row, "labels": row} for row in rows]
    run = transformers.Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None))
    run.train()
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"losses": losses, "weights": weights.tolist(), "processes": arguments.world_size}


def command(arguments: list[str]) -> int:
    """The command line, as a launcher starts it; its exit code."""
    try:
        app(arguments)
    except SystemExit as exit:
        return int(exit.code or 0)
    return 0


def _rank(rank: int, size: int, port: int, name: str, options: dict[str, Any], answer: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(size)}
    code = 1
    try:
        signal.alarm(LIMIT)
        found = {"returned": globals()[name](**options)}
        code = 0
    except BaseException as error:
        found = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    try:
        answer.write_text(json.dumps(found), encoding="utf-8")
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    """Answer until the input ends."""
    torch.set_num_threads(1)
    x, tokens = torch.zeros(2, 3, 1, dtype=torch.float64), torch.zeros(2, 6, dtype=torch.int64)
    network()(x, lengths=torch.tensor([2, 3])).sum().backward()  # compiles what is compiled
    language_model().sequence(tokens, None, reset=tokens > 0)[0].sum().backward()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ranks print is not an answer
    for line in sys.stdin:
        name, size, options = json.loads(line)
        with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            answers = [Path(folder) / str(rank) for rank in range(size)]
            children = []
            for rank, answer in enumerate(answers):
                child = os.fork()
                if not child:
                    _rank(rank, size, port, name, options, answer)
                children.append(child)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            found = [json.loads(a.read_text(encoding="utf-8")) if a.exists() else {"error": "killed"} for a in answers]
        answer = [{**entry, "code": code} for entry, code in zip(found, codes, strict=True)]
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
