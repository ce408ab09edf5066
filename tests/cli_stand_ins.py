"""The commands with recorders in the place of what they call: what arrives where, and what is printed."""

from __future__ import annotations

import dataclasses
import inspect
import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import MISSING
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import nn
from typer.models import ArgumentInfo, ParameterInfo

from stablessm import record, sweeps, tasks
from stablessm.cli import app
from stablessm.constructions import ExponentialSum
from stablessm.experiments import listing
from stablessm.experiments.frame.base import Experiment
from stablessm.report.claim import Claim
from stablessm.report.folder import Record
from stablessm.report.runs import Collection, Problem
from stablessm.training import Forecast, TrainingConfig
from stablessm.training.status import TrainingStatus

COMMAND = typer.main.get_command(app)
SHARED = {"--json", "--quiet"}
LONG = 8
"""Numbers in a list that are compared by count, first and last."""


def commands() -> dict[str, Callable[..., None]]:
    return {command.name: command.callback for command in app.registered_commands}


def options(command: Callable[..., None]) -> dict[str, tuple[Any, Any]]:
    """Each option as it is typed (an argument by its name in capitals), with its default and its least value.

    Options of every command (``SHARED``) and old names, which are hidden, are left out.
    """
    found = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        info = next(each for each in parameter.annotation.__metadata__ if isinstance(each, ParameterInfo))
        spelled = info.default if isinstance(info.default, str) else f"--{name.replace('_', '-')}"
        if spelled in SHARED or info.hidden:
            continue
        default = "required" if parameter.default is parameter.empty else parameter.default
        found[name.upper() if isinstance(info, ArgumentInfo) else spelled] = default, info.min
    return found


class Arrivals(dict[str, Any]):
    """What arrived, by callee and argument, as plain values; defaults of the callee count as given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.monkeypatch = monkeypatch

    def replace(self, target: str, answer: Any = None, name: str | None = None) -> None:
        """Put a recorder in the place of ``target``; a function ``answer`` is called, anything else returned."""
        *path, attribute = target.split(".")
        owner = _found(path)
        signature = inspect.signature(getattr(owner, attribute))

        def recorder(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            self.note(name or attribute, bound.arguments)
            return answer(*args, **kwargs) if inspect.isroutine(answer) else answer

        recorder.__signature__ = signature
        self.monkeypatch.setattr(owner, attribute, recorder)

    def note(self, name: str, arguments: Any) -> None:
        number = 1 + len({key.split(".")[0] for key in self if key.split(".")[0].split("#")[0] == name})
        self.update(flat(name if number == 1 else f"{name}#{number}", arguments))


def _found(path: list[str]) -> Any:
    for cut in range(len(path), 0, -1):
        try:
            owner: Any = import_module(".".join(path[:cut]))
        except ImportError:
            continue
        for part in path[cut:]:
            owner = getattr(owner, part)
        return owner
    raise LookupError(path)


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """``value`` as plain values with dotted names."""
    if isinstance(value, Experiment):
        value = value.id
    if dataclasses.is_dataclass(value) and not isinstance(value, type | ExponentialSum):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray | torch.Tensor) and value.ndim == 1:
        value = value.tolist()
    if isinstance(value, list | tuple):
        numbers = len(value) > LONG and all(isinstance(item, float) for item in value)
        value = f"{len(value)} from {value[0]:g} to {value[-1]:g}" if numbers else dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flat(f"{name}.{key}", item)
    elif isinstance(value, Path):
        yield name, value.as_posix()
    else:
        yield name, value if isinstance(value, str | int | float | None) else type(value).__name__


def call(arrivals: Arrivals, *arguments: object, code: int = 0) -> dict[str, Any]:
    """Run a command and return what arrived, with the lines it printed."""
    arrivals.clear()
    printed = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    with redirect_stdout(printed["stdout"]), redirect_stderr(printed["stderr"]):
        try:
            COMMAND.main(list(map(str, arguments)), "stablessm")
        except SystemExit as end:
            got = end.code
    text = {name: stream.getvalue() for name, stream in printed.items()}
    assert got == code, f"exit code {got} of {arguments}: {text}"
    for name in text:
        arrivals.update({f"{name}.{number}": line for number, line in enumerate(text[name].splitlines())})
    return dict(arrivals)


def told(found: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> list[str]:
    """What arrived, a line each; ``before``: what is new or other than there, and what is gone."""
    if before is None:
        return [_line(name, value) for name, value in found.items() if value is not None and value is not False]
    lines = [_line(name, value) for name, value in found.items() if name not in before or before[name] != value]
    callees = {name.split(".")[0] for name in found}
    gone = [name if name.split(".")[0] in callees else name.split(".")[0] for name in before if name not in found]
    return lines + [f"{name} gone" for name in dict.fromkeys(gone)]


def _line(name: str, value: Any) -> str:
    return f"{name} = {value!r}".replace(Path.cwd().as_posix(), "HERE")


def tables(arrivals: Arrivals) -> None:
    """Tables as lines of text."""

    def show(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
        lines = [" | ".join(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row) for row in rows]
        arrivals.note("table", {"title": title, "head": " | ".join(columns), "rows": lines})

    arrivals.monkeypatch.setattr("stablessm.cli.tables.show", show)


def records(arrivals: Arrivals) -> None:
    def write_record(folder: Path, *, started: float, **content: Any) -> None:
        assert 0 <= time.perf_counter() - started < 600
        arrivals.note("record", {"folder": folder, **content})

    arrivals.monkeypatch.setattr("stablessm.record.write_record", write_record)


def devices(arrivals: Arrivals) -> None:
    """Say which device was asked for, and take the CPU."""

    def chosen_device(config: TrainingConfig) -> torch.device:
        arrivals.note("chosen_device", {"device": config.device})
        return torch.device("cpu")

    arrivals.monkeypatch.setattr(TrainingConfig, "chosen_device", chosen_device)


STAGES: dict[str, Callable[[Arrivals], None]] = {}


def stage(prepare: Callable[[Arrivals], None]) -> Callable[[Arrivals], None]:
    STAGES[prepare.__name__] = prepare
    return prepare


@stage
def env(arrivals: Arrivals) -> None:
    found = {
        "versions": {"python": "3.11", "torch": "2.9"},
        "commit": None,
        "devices": {"cpu": "a CPU"},
    }
    checked = {
        "kernels": "znver4",
        "devices": {"cpu": "a CPU"},
        "auto": {"cpu": "reference"},
        "backends": {"cpu": {"ran": False, "detail": "failed"}, "reference": {"ran": True, "detail": "right"}},
    }
    arrivals.replace("stablessm.cli.env.describe", found)
    arrivals.replace("stablessm.cli.env.check", checked)
    tables(arrivals)


@stage
def demo(arrivals: Arrivals) -> None:
    def execute(experiment: Any, size: str, out: Path, *, changes: dict, fresh: bool) -> tuple[Path, bool]:
        return out / size, True

    arrivals.replace("stablessm.experiments.frame.base.execute", execute)
    arrivals.replace("stablessm.cli.run.show_claims")
    arrivals.replace("stablessm.report.page.write")
    arrivals.replace("webbrowser.open")


class Curve:
    time, unit, exact, note = (1.0, 2.5), "ms", False, "by hand"

    def __init__(self, arrivals: Arrivals, token: str = "") -> None:
        self.arrivals, self.token = arrivals, token

    def of(self, token: str) -> Curve:
        return Curve(self.arrivals, token)

    def decay(self) -> Any:
        return SimpleNamespace(
            kind="polynomial", reason=f"invented{self.token}", interval=(1.5, 2.25), rate=None, exponent=1.75,
            stretch=None,
        )  # fmt: skip

    def memory_time(self, share: float) -> float:
        return 3 / share

    def effective_length(self) -> float:
        return 7.5

    def half_life(self) -> float:
        return 5.5

    def save(self, path: Path) -> None:
        self.arrivals.note("save", {"path": path})

    def plot(self) -> Any:
        return SimpleNamespace(figure=SimpleNamespace(savefig=self._picture))

    def _picture(self, path: Path, dpi: int) -> None:
        self.arrivals.note("savefig", {"suffix": path.suffix, "dpi": dpi})
        path.write_bytes(b"picture")

    def plotly(self) -> Any:
        return SimpleNamespace(write_html=self._page)

    def _page(self, path: Path, **how: Any) -> None:
        self.arrivals.note("write_html", how)
        path.write_bytes(b"page")


class Tokens:
    """A tokenizer: a character is a token."""

    border, unknown, level, size = 0, 1, "char", 9
    bos_token_id, eos_token_id, pad_token_id = 0, 5, None

    def encode(self, text: str, **_: Any) -> Any:
        return [2 + ord(letter) % 5 for letter in text]

    def decode_stream(self, tokens: Iterator[int]) -> Iterator[str]:
        yield from (f"<{token}>" for token in tokens)

    def __call__(self, text: str, **_: Any) -> Any:
        return {"input_ids": torch.tensor([self.encode(text)])}


@stage
def measure(arrivals: Arrivals) -> None:
    arrivals.replace("stablessm.cli.model_source.load_model", (nn.Linear(2, 3), "a factory"))
    arrivals.replace("stablessm.cli.model_source.load_tokenizer", Tokens())
    arrivals.replace("stablessm.memory_function", Curve(arrivals))
    arrivals.replace("stablessm.stability_radius", 0.125)
    records(arrivals)
    tables(arrivals)


class Report:
    passed, cases = True, ()

    def __str__(self) -> str:
        return "the report"

    def as_dict(self) -> dict[str, Any]:
        return {"passed": True}


@stage
def check(arrivals: Arrivals) -> None:
    import transformers

    arrivals.monkeypatch.setattr(transformers, "__version__", "9.9")
    arrivals.replace("stablessm.cli.model_source.load_model", (nn.Linear(2, 3), "a factory"))
    arrivals.replace("stablessm.check_state", Report())
    arrivals.replace("stablessm.instruments.families.names", ["one", "two"])
    arrivals.replace("stablessm.instruments.families.random_model", nn.Linear(2, 3))


class Result:
    diverged = None

    folder, steps, seconds, scores = Path("there"), 7, 1.5, {"test": {"accuracy": 0.95, "mse": 0.001, "nats": 0.001}}

    def __str__(self) -> str:
        return "the result"


@stage
def train(arrivals: Arrivals) -> None:
    rows = "".join(f"{i // 4},{i % 7},{i // 4 % 2}\n" for i in range(400))
    Path("own.csv").write_text("walk,x,y\n" + rows, encoding="utf-8")
    known = tasks.listing
    length = SimpleNamespace(name="length", kind="a number", default=20, help="how long", place=False)
    file = SimpleNamespace(name="file", kind="a file", default=MISSING, help="where", place=True)
    listing = lambda name: [length, file] if name == "recall" else known(name)  # noqa: E731
    arrivals.monkeypatch.setattr("stablessm.tasks.listing", listing)
    arrivals.replace("stablessm.training.train", Result())
    arrivals.replace("stablessm.models.for_task", nn.Linear(2, 3))
    arrivals.replace("stablessm.tasks.get", tasks.get)
    arrivals.replace("torch.manual_seed")
    devices(arrivals)


@stage
def evaluate(arrivals: Arrivals) -> None:
    options = {"length": "8", "vocabulary": "6"}
    task = tasks.get("recall", **tasks.read_options("recall", options))
    before = {
        "origin": {"task": "recall", "options": options}, "task": task.describe(),
        "config": {"batch_size": 48, "autocast": True},
    }  # fmt: skip
    arrivals.replace("stablessm.training.settings_of", before)
    arrivals.replace("stablessm.load", nn.Linear(2, 3))
    arrivals.replace("stablessm.training.evaluate", {"accuracy": 0.923456789, "examples": 77})
    arrivals.replace("stablessm.tasks.get", tasks.get)
    devices(arrivals)


@stage
def predict(arrivals: Arrivals) -> None:
    values = np.array([[1.5], [2.5]])
    found = Forecast(("x",), values, values - 0.25, values + 0.5, np.array([[0.5], [0.75]]), "a note")

    def answer(data: Path | None, *, horizon: int | None, level: float) -> Forecast:
        arrivals.note("predict", {"data": data, "horizon": horizon, "level": level})
        return found

    def pictures(figure: Any, folder: Path) -> None:
        arrivals.note("pictures", {"folder": folder, "figure": figure})

    arrivals.replace("stablessm.training.TrainedModel", SimpleNamespace(predict=answer))
    arrivals.monkeypatch.setattr("stablessm.report.figure.Figure.save_pictures", pictures)


@stage
def generate(arrivals: Arrivals) -> None:
    pytest.importorskip("transformers")
    ours = nn.Linear(2, 3)
    ours.sequence, ours.config = None, SimpleNamespace(vocab_size=Tokens.size)
    theirs = nn.Linear(2, 3)
    theirs.device = torch.device("cpu")
    theirs.generate = lambda tokens, **how: arrivals.note("generate", {"tokens": tokens.tolist(), **how})

    def load_model(source: str, **_: Any) -> tuple[nn.Module, str]:
        return (theirs, "Hugging Face folder") if source.startswith("hub") else (ours, "stablessm folder")

    arrivals.replace("stablessm.cli.model_source.load_model", load_model)
    arrivals.replace("stablessm.cli.model_source.load_tokenizer", Tokens())
    own = Tokens()
    own.encode = lambda text: np.array(Tokens.encode(own, text))
    arrivals.replace("stablessm.tasks.tokenizers.load", own)
    arrivals.replace("stablessm.models.sample_tokens", lambda *_, **__: iter([4, 3, 0, 2]))
    arrivals.replace("transformers.TextStreamer")
    arrivals.replace("torch.manual_seed")
    devices(arrivals)


FITTED = ExponentialSum(
    rates=np.array([-0.5 + 0.25j, -0.125]), weights=np.array([0.75 - 0.5j, 1.5]), dt=0.5, horizon=20, time="discrete",
    error=0.00123456, l1_error=0.25, relative_error=0.0234567, lower_bound=0.0625, condition=3.5, seconds=1.75,
    method="by hand",
)  # fmt: skip


@stage
def fit(arrivals: Arrivals) -> None:
    Path("own.txt").write_text("".join(f"{0.5**k}\n" for k in range(30)), encoding="utf-8")
    arrivals.replace("stablessm.constructions.exponential_sum", FITTED)
    arrivals.replace("stablessm.report.figure.Figure.save", name="figure")
    arrivals.monkeypatch.setattr("stablessm.report.figure.Figure.save_pictures", lambda self, folder: None)
    arrivals.replace("stablessm.constructions.ExponentialSum.save", name="sum")
    records(arrivals)
    tables(arrivals)


@stage
def export(arrivals: Arrivals) -> None:
    arrivals.replace("stablessm.cli.model_source.load_model", (nn.Linear(2, 3), "a factory"))
    arrivals.replace("stablessm.export_step")
    arrivals.replace("stablessm.export_sequence")


@stage
def experiments(arrivals: Arrivals) -> None:
    record.write_json(Path("results") / "ia-fig1" / "paper" / "record.json", {"claims": [{"verdict": "holds"}]})
    summary = listing.Summary("Title", "why?", {"smoke": 0.25, "paper": 1.0}, {"reproduced": 1, "partly": 2})
    arrivals.monkeypatch.setattr("stablessm.experiments.listing.ids", lambda: ["ia-fig1"])
    arrivals.monkeypatch.setattr("stablessm.experiments.listing.summaries", lambda: {"ia-fig1": summary})


@stage
def run(arrivals: Arrivals) -> None:
    def execute(experiment: Any, size: str, out: Path, **_: Any) -> tuple[Path, bool]:
        return out / experiment.id / size, False

    def sweep(ids: list[str], size: str, out: Path, **_: Any) -> Iterator[sweeps.Swept]:
        yield from (sweeps.Swept(out / id / size, True) for id in ids)

    arrivals.replace("stablessm.experiments.frame.base.execute", execute)
    arrivals.replace("stablessm.sweeps.sweep", sweep)
    arrivals.replace("stablessm.cli.run.show_claims")
    for engine in ("Processes", "RayCluster", "Slurm"):
        arrivals.replace(f"stablessm.sweeps.{engine}", engine)


@stage
def status(arrivals: Arrivals) -> None:
    def runs(out: Path) -> list[sweeps.RunStatus]:
        note = SimpleNamespace(state="failed", error="lost", worker="w", attempts=2)
        busy = SimpleNamespace(state="running", error="", worker="w7", attempts=1)
        return [
            sweeps.RunStatus(out / "a" / "smoke", "complete", 5, {}),
            sweeps.RunStatus(out / "b" / "smoke", "failed", 3, {"one": note, "two": busy}),
        ]

    def trainings(out: Path) -> list[TrainingStatus]:
        return [
            TrainingStatus(out / "load", "finished", 90, 90, 0.25),
            TrainingStatus(out / "train" / "recall-small", "stopped", 40, 5000, 1.23456),
        ]

    arrivals.replace("stablessm.sweeps.runs", runs)
    arrivals.replace("stablessm.training.status.trainings", trainings)
    tables(arrivals)


@stage
def search(arrivals: Arrivals) -> None:
    found = sweeps.Found(3, 0.1234567, {"lr": 0.02, "batch_size": 8}, Path("runs/best"), 17)
    arrivals.replace("stablessm.sweeps.search", found)


@stage
def report(arrivals: Arrivals) -> None:
    claims = (Claim("a", verdict="reproduced"), Claim("b", verdict="reproduced"), Claim("c"))
    found = Collection((Record(Path("one"), "one", claims=claims),), (Problem("there", "damaged"),))
    record.write_json(Path("runs/one/record.json"), {})
    arrivals.replace("stablessm.report.page.write", found)
    arrivals.replace("webbrowser.open")


@stage
def bench(arrivals: Arrivals) -> None:
    arrivals.replace("stablessm.bench.command.run")
    arrivals.monkeypatch.setattr("torch.cuda.is_available", lambda: True)
