"""Rules that every command inherits: help, examples, ``--json``, ``--quiet``, names of options, suggestions, start."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import cli_stand_ins
import pytest
from cli_stand_ins import COMMAND, SHARED, Arrivals
from hypothesis import given
from hypothesis import strategies as st
from test_cli_contract import SECTIONS, Section
from typer.models import OptionInfo

from stablessm import ArgumentError, models, reparam, tasks
from stablessm.experiments import catalog, listing
from stablessm.models import mixers
from stablessm.targets import kernels

NAMES = ["", *cli_stand_ins.commands()]


def run(*arguments: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as end:
        COMMAND.main(list(arguments), "stablessm")
    assert end.value.code == code, arguments


def examples(name: str) -> Iterator[str]:
    """The example lines in the help of a command, those that end in a backslash joined."""
    callback = cli_stand_ins.commands()[name] if name else COMMAND.callback
    text = (inspect.getdoc(callback) or "").replace("\b\n", "").partition("Example")[2].replace("\\\n", "")
    for line in text.splitlines():
        if re.match(r"  (stablessm|torchrun) ", line):
            yield re.sub(r"\s{3,}[^\s-].*", "", line.strip()).replace("   ", " ")


@pytest.mark.parametrize("name", NAMES)
def test_help(name: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run(*filter(None, [name]), "--help")
    text = capsys.readouterr().out
    run(*filter(None, [name]), "-h")
    assert capsys.readouterr().out == text
    assert text.startswith(f"Usage: stablessm {name}".rstrip())
    assert "╭" not in text  # plain text
    assert not [line for line in text.splitlines() if len(line) > 80]
    written = (inspect.getdoc(cli_stand_ins.commands()[name] if name else COMMAND.callback) or "").splitlines()
    shown = [line for line in written if line.startswith("  ")]
    assert shown, "every help text has an example"
    assert [line for line in shown if f"  {line.rstrip()}\n" not in text] == []  # no line is wrapped
    assert list(examples(name))


def test_the_list_of_commands_shows_whole_sentences(capsys) -> None:
    run("--help")
    commands = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert len(commands) == len(NAMES) - 1
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []


@pytest.mark.parametrize("name", NAMES)
def test_examples_have_options_that_exist(name: str) -> None:
    for example in examples(name):
        _, _, command = example.rpartition("stablessm ") if example.startswith("torchrun") else example.partition(" ")
        words = shlex.split(command)
        parent = COMMAND.make_context("stablessm", [words[0]], resilient_parsing=True)
        _, chosen, rest = COMMAND.resolve_command(parent, words)
        chosen.make_context(words[0], rest, parent=parent)  # raises if it cannot be parsed


def test_without_arguments_the_help_is_shown(capsys) -> None:
    run(code=2)
    assert "Usage: stablessm" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("arrivals", "section"),
    [pytest.param(each.stage, each, id=" ".join(each.command)) for each in SECTIONS],
    indirect=["arrivals"],
)
def test_json_and_quiet(arrivals: Arrivals, section: Section, capsys) -> None:
    run(*section.command)
    loud = capsys.readouterr().out
    run(*section.command, "--json")
    assert json.loads(capsys.readouterr().out) is not None
    run(*section.command, "--quiet")
    quiet = capsys.readouterr()
    assert set(quiet.out.splitlines()) <= set(loud.splitlines())
    assert "written:" not in quiet.out
    run(*section.command, "--json", "-q")
    assert json.loads(capsys.readouterr().out) is not None


OTHER_NAMES = {
    "--out": {"--output-dir", "--output-folder", "--folder", "--dir", "--directory", "--path"},
    "--batch-size": {"--batch", "--batches"},
    "--size": {"--smoke", "--paper", "--scale"},
    "--seed": {"--random-seed", "--random-state"},
    "--fresh": {"--force", "--restart", "--overwrite"},
    "--open": {"--show", "--browser"},
    "--jobs": {"--workers", "--n-jobs", "--processes"},
    "--set": {"--setting", "--config", "--override"},
    "--tol": {"--tolerance", "--epsilon"},
    "--lr": {"--learning-rate"},
    "--json": {"--as-json", "--format"},
    "--quiet": {"--silent", "--no-progress"},
}
"""The name of an option, and names that would mean the same."""


def test_one_name_for_each_meaning() -> None:
    kinds: dict[str, set[str]] = {}
    for name, command in cli_stand_ins.commands().items():
        assert set(cli_stand_ins.options(command)) & set().union(*OTHER_NAMES.values()) == set(), name
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            (info,) = (each for each in parameter.annotation.__metadata__ if hasattr(each, "hidden"))
            if isinstance(info, OptionInfo):
                kind = str(parameter.annotation.__origin__).replace(" | None", "").replace("typing.", "")
                flag = f"--{parameter.name.replace('_', '-')}" if info.default is ... else info.default
                kinds.setdefault(flag, set()).add(re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", kind).rpartition(".")[2])
    assert {flag: found for flag, found in kinds.items() if len(found) > 1} == {}
    assert kinds.keys() >= SHARED


def test_every_option_and_argument_has_help() -> None:
    for name, command in COMMAND.commands.items():
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"
            assert not re.match(r"(Of|With|As|In|That|Such|Yours|\d+)\b", parameter.help), (
                f"{parameter.help}: first the noun"
            )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("lst", "list"),
        ("evl runs/load", "eval"),
        ("run ia-fig1 --szie smoke", "--size"),
        ("run ia-fgi1", "'ia-fig1'"),
        ("search recal --over lr=int:1:2", "'recall'"),
        ("train recal", "'recall'"),
        ("train recall --model smal", "'small'"),
        ("train recall -o lenght=20", "'length'"),
        ("train recall --set n_layer=2", "'n_layers'"),
        ("train recall --steps 1 --map bset", "'best'"),
        ("bench scna", "'scan'"),
    ],
)
def test_suggestions(arguments: str, said: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(*shlex.split(arguments), code=2)
    assert said in capsys.readouterr().err


REGISTRIES = {
    "map": (reparam.names("continuous"), reparam.get),
    "task": (tuple(tasks.TASKS), tasks.get),
    "mixer": (tuple(mixers._factories), lambda name: mixers.mixer_of(name, 4, 4)),
    "kernel": (tuple(kernels.KERNELS), lambda name: kernels.get(name, 1.0, {})),
    "experiment": (listing.IDS, catalog.get),
    "preset": (tuple(models.PRESETS), lambda name: models.for_task(None, None, name)),
}


@given(st.sampled_from(sorted(REGISTRIES)), st.data())
def test_a_mistyped_name_is_told_a_known_one(kind: str, data) -> None:
    known, get = REGISTRIES[kind]
    name = data.draw(st.sampled_from([each for each in known if len(each) > 3]))
    at = data.draw(st.integers(1, len(name) - 1))
    typo = data.draw(st.sampled_from([name[:at] + name[at + 1 :], f"{name[:at]}x{name[at:]}"]))
    if typo in known:
        return
    with pytest.raises(ArgumentError, match="did you mean") as told:
        get(typo)
    assert re.search(r"did you mean '(.*)'\?", str(told.value))[1].removeprefix("gated-") in known


def test_completion_knows_commands_options_and_ids(capsys, monkeypatch) -> None:
    def completed(typed: str) -> list[str]:
        monkeypatch.setenv("_STABLESSM_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - (typed[-1] != " ")))
        with pytest.raises(SystemExit):
            COMMAND.main([], "stablessm")
        return capsys.readouterr().out.split()

    assert "measure" in completed("stablessm ")
    assert "--size" in completed("stablessm run -")
    assert {"ia-fig1", "all"} <= set(completed("stablessm run "))
    assert completed("stablessm run --size ") == ["smoke", "reduced", "paper", "large"]


QUICK = """
import sys
from stablessm.cli import app
for arguments in (["--help"], ["list"], ["env"], ["run", "-h"], ["status", "-h"]):
    try:
        app(arguments, prog_name="stablessm")
    except SystemExit as end:
        assert end.code == 0, arguments
    found = {"torch", "scipy", "matplotlib", "plotly"} & sys.modules.keys()
    assert not found, (arguments, found)
"""


def test_what_only_lists_does_not_import_torch(tmp_path) -> None:
    done = subprocess.run([sys.executable, "-c", QUICK], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "ia-fig1" in done.stdout


def test_the_list_has_a_line_for_each_experiment(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("list")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == catalog.ids()
    assert max(map(len, lines)) <= 80
    assert all(title in lines for title in list(listing.PAPERS.values())[:5])
