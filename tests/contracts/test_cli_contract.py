"""What every command does with every option: ``cli_options.txt`` says what reaches the functions that do the work.

A section ``# STAGE: COMMAND`` lists what arrives without options (None and False left out), where a callee is called
again as ``callee#2``, and what is printed. A part ``## OPTION: + ARGUMENTS`` or ``## OPTION: COMMAND -> COMMAND`` lists
what the option changes, and nothing else may change. A new option fails ``test_every_option_is_in_the_table`` until it
has a part. ``test_cli_rules.py`` holds what is the same for every command: help, ``--json``, ``--quiet``, suggestions.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import cli_stand_ins
import pytest
from cli_stand_ins import Arrivals, call, told

from stablessm import ArgumentError, MissingPackageError, NumericalError
from stablessm.training import Interrupted


@dataclass(frozen=True)
class Part:
    option: str
    before: list[str]
    after: list[str]
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    stage: str
    command: list[str]
    lines: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)


def _sections() -> Iterator[Section]:
    section = None
    for line in (Path(__file__).parent / "cli_options.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            if section is not None:
                yield section
            stage, _, command = line[2:].partition(": ")
            section = Section(stage, shlex.split(command))
        elif line.startswith("## "):
            option, _, change = line[3:].partition(": ")
            before, arrow, after = change.partition(" -> ")
            pair = (shlex.split(before), shlex.split(after))
            section.parts.append(Part(option, *(pair if arrow else (section.command, section.command + pair[0][1:]))))
        elif line:
            (section.parts[-1] if section.parts else section).lines.append(line)
    yield section


SECTIONS = list(_sections())
DEFAULTS = {
    "env": "--check=False",
    "demo": "--size=paper --seed=0>=0 --out=runs --fresh=False --open=False",
    "measure": "MODEL=required --horizon=256>=1 --d-input=None>=1 --dt=None --unit=None --norm=ball --bound=1.0 "
    "--words=None --output=None --samples=64>=1 --ascent=8>=0 --seed=0>=0 --out=None --trust-remote-code=False",
    "check": "MODEL=None --family=None --families=False --case=None --d-input=None>=1 --length=24>=12 "
    "--batch-size=3>=2 --tol=None --seed=0>=0 --trust-remote-code=False",
    "train": "TASK=None --model=None --map=None --set=None --option=None --data=None --target=None --label=None "
    "--epochs=None>=1 --steps=None>=1 --batch-size=64>=1 --accumulate=1>=1 --lr=0.004 --recurrent-lr=None "
    "--weight-decay=0.01 --schedule=cosine --warmup=0.05 --cooldown=0.2 --clip=1.0 --select=best --ema=None "
    "--patience=None>=1 --init-from=None --extend=False --seed=0>=0 --replicas=1>=1 --evaluate-every=None>=1 "
    "--checkpoint-every=None>=1 --log-every=20>=1 --device=auto --autocast=False --compile=False --graph=False "
    "--parallel=ddp --out=None --resume/--fresh=True --last-good=False --logger=None --list=False",
    "eval": "FOLDER=required --split=test --batch-size=None>=1 --device=auto --option=None",
    "predict": "FOLDER=required DATA=None --horizon=None>=1 --level=0.9 --device=auto --out=None",
    "generate": "MODEL=required PROMPT= --tokens=200>=1 --temperature=0.8>=0 --top-k=None>=1 --seed=0>=0 --device=auto "
    "--trust-remote-code=False",
    "fit": "EXPRESSION=None --horizon=None>=1 --tol=None --order=None>=1 --dt=None --interval=None --from=None "
    "--continuous=False --real=False --positive=False --relative=False --norm=sup --noise=None --max-order=None>=1 "
    "--out=None",
    "export": "MODEL=required PATH=required --kind=step --batch-size=None>=1",
    "list": "--out=runs",
    "run": "IDS=required --size=smoke --out=runs --set=None --fresh=False --jobs=None --on=processes --cpus=None "
    "--gpus=0 --memory=None --retries=2 --address=None --executor=None --minutes=None --slurm=None",
    "status": "--out=runs --all=False",
    "search": "NAME=required --over=required --trials=20 --storage=None --set=None --model=small --size=smoke "
    "--objective=None --maximize=False --seed=0>=0 --out=None",
    "report": "RUNS=None --out=report.html --open=False",
    "bench": "SUITE=all --device=cpu --shapes=None --dtype=None --size=full --seconds=1.0 --out=runs/bench",
}


def test_defaults_and_least_values() -> None:
    found = {}
    for name, command in cli_stand_ins.commands().items():
        options = cli_stand_ins.options(command).items()
        found[name] = {
            f"{option}={default}{'' if least is None else f'>={least}'}" for option, (default, least) in options
        }
    assert found == {name: set(text.split()) for name, text in DEFAULTS.items()}


def test_every_option_is_in_the_table() -> None:
    covered: dict[str, set[str]] = {}
    for section in SECTIONS:
        covered.setdefault(section.command[0], set()).update(part.option for part in section.parts)
    assert covered == {name: set(cli_stand_ins.options(each)) for name, each in cli_stand_ins.commands().items()}


@pytest.mark.parametrize(
    ("arrivals", "section"),
    [pytest.param(each.stage, each, id=" ".join(each.command)) for each in SECTIONS],
    indirect=["arrivals"],
)
def test_what_arrives(arrivals: Arrivals, section: Section) -> None:
    assert told(call(arrivals, *section.command)) == section.lines
    before, known = section.command, call(arrivals, *section.command)
    for part in section.parts:
        if part.before != before:
            before, known = part.before, call(arrivals, *part.before)
        after = call(arrivals, *part.after)
        assert told(after, known) == part.lines, part.option
        assert part.lines, part.option


WRONG = ArgumentError("width", "more", "3")
TOLD = "width: expected more, got 3"
LOST = NumericalError("it overflowed", "take less")


def _with_best(norm: str, **found: float) -> NumericalError:
    error = NumericalError("no sum reaches it", "allow more")
    error.best = replace(cli_stand_ins.FITTED, norm=norm, **found)  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("arrivals", "command", "callee", "error", "code", "lines"),
    [
        ("demo", "demo", "stablessm.experiments.frame.base.execute", KeyboardInterrupt(), 130, [
            "stdout: interrupted; run the same command again to resume"]),
        ("measure", "measure m:f", "stablessm.memory_function", WRONG, 2, [f"stderr: cannot measure m:f: {TOLD}"]),
        ("measure", "measure m:f", "stablessm.memory_function", LOST, 2, [f"stderr: cannot measure m:f: {LOST}"]),
        ("check", "check m:f", "stablessm.check_state", WRONG, 2, [f"stderr: cannot check: {TOLD}"]),
        ("train", "train recall", "stablessm.models.for_task", WRONG, 2, [f"stderr: cannot train: {TOLD}"]),
        ("train", "train recall", "stablessm.models.for_task", ArgumentError("resume", "all", "some"), 2, [
            "stderr: cannot train: --resume: expected all, got some",
            "stderr: --extend allows other steps, learning rates and schedules; --last-good resumes from the "
            "previous checkpoint; --fresh starts again; --out chooses another folder",
        ]),
        ("train", "train recall", "stablessm.models.for_task", ArgumentError("length", "all", "some"), 2, [
            "stderr: cannot train: length: expected all, got some",
            "stderr: -o length=VALUE sets it; stablessm train recall --list shows all options",
        ]),
        ("train", "train recall", "stablessm.models.for_task", Interrupted(15, 17), 143, [
            "stdout: stopped after step 17; the same command resumes the run",
        ]),
        ("evaluate", "eval there", "stablessm.training.evaluate", WRONG, 2, [f"stderr: cannot evaluate there: {TOLD}"]),
        ("predict", "predict there", "stablessm.training.TrainedModel", WRONG, 2, [
            f"stderr: cannot predict with there: {TOLD}"]),
        ("predict", "predict there --out a.txt", "stablessm.training.TrainedModel", None, 2, [
            "stderr: cannot predict with there: --out: expected a file whose name ends in .csv, got a.txt"]),
        ("predict", "predict there --out a.csv", "stablessm.record.atomic", OSError("full"), 1, [
            "stderr: cannot write to a.csv: full"]),
        ("generate", "generate ours", "stablessm.models.sample_tokens", WRONG, 2, [f"stderr: cannot generate: {TOLD}"]),
        ("generate", "generate ours", "stablessm.models.sample_tokens", KeyboardInterrupt(), 130, []),
        ("fit", "fit t --horizon 9", "stablessm.constructions.exponential_sum", WRONG, 2, [
            f"stderr: cannot fit t: {TOLD}"]),
        ("fit", "fit t --horizon 9", "stablessm.constructions.exponential_sum", LOST, 1, [
            f"stderr: cannot fit t: {LOST}"]),
        ("fit", "fit t --horizon 9", "stablessm.constructions.exponential_sum", _with_best("sup"), 1, [
            "stdout: nothing was written; --order 3 or --tol 0.0013 gives this",
            "stderr: cannot fit t: no sum reaches it. Remedy: allow more"]),
        ("fit", "fit t --horizon 9 --relative", "stablessm.constructions.exponential_sum", _with_best("sup"), 1, [
            "stdout: nothing was written; --order 3 or --tol 0.024 gives this",
            "stderr: cannot fit t: no sum reaches it. Remedy: allow more"]),
        ("fit", "fit t --horizon 9 --norm l2", "stablessm.constructions.exponential_sum",
         _with_best("l2", residual=52.0), 1, [
            "stdout: nothing was written; --order 3 or --tol 52 gives this",
            "stderr: cannot fit t: no sum reaches it. Remedy: allow more"]),
        ("fit", "fit t --horizon 9 --out a", "stablessm.constructions.ExponentialSum.save", OSError("full"), 1, [
            "stderr: cannot write to a: full"]),
        ("export", "export m:f a.pt2", "stablessm.export_step", WRONG, 2, [f"stderr: cannot export m:f: {TOLD}"]),
        ("export", "export m:f a.pt2", "stablessm.export_step", OSError("full"), 1, [
            "stderr: cannot export m:f: full"]),
        ("export", "export m:f a.pt2", "stablessm.export_step", MissingPackageError("no onnx"), 2, [
            "stderr: cannot export m:f: no onnx"]),
        ("run", "run ia-fig1", "stablessm.experiments.frame.base.execute", WRONG, 2, [f"stderr: {TOLD}"]),
        ("run", "run ia-fig1 --jobs 2", "stablessm.sweeps.sweep", WRONG, 2, [f"stderr: {TOLD}"]),
        ("run", "run ia-fig1", "stablessm.experiments.frame.base.execute", MissingPackageError("no ray"), 2, [
            "stderr: no ray"]),
        ("run", "run ia-fig1 ia-fig2", "stablessm.experiments.frame.base.execute", MissingPackageError("no ray"), 1, [
            "stdout: failed: ia-fig1: no ray", "stdout: failed: ia-fig2: no ray",
            "stdout: the same command computes the failed parts again, and nothing else"]),
        ("run", "run ia-fig1", "stablessm.experiments.frame.base.execute", KeyboardInterrupt(), 130, [
            "stdout: interrupted; run the same command again to resume"]),
        ("search", "search recall --over lr=int:1:9", "stablessm.sweeps.search", WRONG, 2, [f"stderr: {TOLD}"]),
        ("search", "search recall --over lr=int:1:9", "stablessm.sweeps.search", KeyboardInterrupt(), 130, [
            "stdout: interrupted; run the same command again to resume"]),
        ("search", "search recall --over lr=int:1:9", "stablessm.sweeps.search", None, 1, [
            "stdout: no trial has a score: all diverged, or had no number as objective; see runs/search/recall/trials",
        ]),
        ("report", "report", "stablessm.report.page.write", WRONG, 2, [f"stderr: cannot write the report: {TOLD}"]),
        ("report", "report", "stablessm.report.page.write", OSError("full"), 1, [
            "stderr: cannot write the report: full"]),
        ("bench", "bench", "stablessm.bench.command.run", WRONG, 2, [f"stderr: {TOLD}"]),
        ("bench", "bench", "stablessm.bench.command.run", KeyboardInterrupt(), 130, [
            "stdout: interrupted; the record holds what was measured so far and is marked as incomplete"]),
    ],
    indirect=["arrivals"],
)  # fmt: skip
def test_exit_codes_and_what_is_said_where(arrivals, command, callee, error, code, lines) -> None:
    def fails(*_: object, **__: object) -> None:
        if error is not None:
            raise error

    arrivals.replace(callee, fails)
    found = call(arrivals, *shlex.split(command), code=code)
    streams = ("stdout", "stderr")
    assert [
        f"{name.split('.')[0]}: {text}" for name, text in found.items() if name.startswith(streams) and text
    ] == lines


@pytest.mark.parametrize("arrivals", ["measure"], indirect=True)
def test_a_radius_that_is_not_known_is_a_fact(arrivals) -> None:
    for error, said in (
        (WRONG, "unknown: the model has no diagonal or dense recurrence of stablessm"),
        (LOST, f"unknown: {LOST}"),
    ):

        def fails(*_: object, error: Exception = error) -> None:
            raise error

        arrivals.replace("stablessm.stability_radius", fails)
        assert call(arrivals, "measure", "m:f")["record.results.stability radius"] == said


@pytest.mark.parametrize("arrivals", ["train"], indirect=True)
def test_a_divergence_fails(arrivals, monkeypatch) -> None:
    monkeypatch.setattr(cli_stand_ins.Result, "diverged", object())
    assert call(arrivals, "train", "recall", code=1)["stdout.2"] == "the result"


@pytest.mark.parametrize("arrivals", ["train"], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "task", "options"),
    [
        ("--data own.csv -o window=9", "series", {"file": "own.csv", "window": 9}),
        ("series --data own.csv --target x", "series", {"file": "own.csv", "target": "x"}),
        ("sequences --data labeled.csv -o sequence=walk", "sequences", {"file": "labeled.csv", "sequence": "walk"}),
        ("--data own.npz", "arrays", {"inputs": "own.npz"}),
        ("--data own.npy -o targets=own.npy", "arrays", {"inputs": "own.npy", "targets": "own.npy"}),
        ("--data own.txt -o level=char", "lm", {"text": "own.txt", "level": "char"}),
        ("--data own.txt.gz", "lm", {"text": "own.txt.gz"}),
        ("lm --data own.csv", "lm", {"text": "own.csv"}),
    ],
)
def test_the_task_follows_from_the_data(arrivals, arguments: str, task: str, options: dict[str, object]) -> None:
    rows = Path("own.csv").read_text(encoding="utf-8")
    Path("labeled.csv").write_text(rows.replace("walk,x,y", "walk,x,label"), encoding="utf-8")
    for name in ("own.npz", "own.npy", "own.txt", "own.txt.gz"):
        Path(name).touch()

    def stop(name: str, **_: object) -> None:
        raise WRONG

    arrivals.replace("stablessm.tasks.get", stop)
    found = call(arrivals, "train", *shlex.split(arguments), code=2)
    assert {name: value for name, value in found.items() if name.startswith("get.")} == {
        "get.name": task,
        **{f"get.options.{name}": value for name, value in options.items()},
    }
