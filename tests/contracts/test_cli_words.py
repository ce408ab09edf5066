"""Mistyped words and paths: every option with a fixed set of words, and every argument that names a file or folder."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_stand_ins import COMMAND

REQUIRED = {"search": ["--over", "lr=log:1e-4:1e-1"]}
DEEP = {"--device", "ID"}
"""Words that the functions check that the commands call, because there are others too (cuda:1, module:NAME)."""


def offered(parameter: Any) -> list[str]:
    """The words that shell completion offers for an option or argument."""
    if parameter._custom_shell_complete is None:
        return []
    return [getattr(each, "value", each) for each in parameter._custom_shell_complete(None, parameter, "")]


def cases() -> Iterator[tuple[str, str, list[str]]]:
    for name, command in COMMAND.commands.items():
        for parameter in command.params:
            flag = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
            if words := offered(parameter):
                yield name, flag, words


def typed(name: str, flag: str, word: str) -> list[str]:
    """A command line in which ``flag`` (an option, or an argument in capitals) has the value ``word``."""
    needed = [each for each in COMMAND.commands[name].params if each.param_type_name == "argument" and each.required]
    places = [word if each.metavar == flag else "nowhere" for each in needed]
    if not flag.startswith("--"):
        return [name, *(places or [word]), *REQUIRED.get(name, [])]
    return [name, *places, *REQUIRED.get(name, []), flag, word]


def mistyped(word: str, draw: random.Random) -> str:
    at = draw.randrange(1, len(word))
    return draw.choice([word[:at] + word[at + 1 :], f"{word[:at]}z{word[at:]}", f"{word}x"])


def told(arguments: list[str], capsys: Any) -> str:
    with pytest.raises(SystemExit) as end:
        COMMAND.main(arguments, "stablessm")
    assert end.value.code == 2, arguments
    return capsys.readouterr().err


def check(name: str, flag: str, words: list[str], draw: random.Random, capsys: Any) -> None:
    word = draw.choice([each for each in words if len(each) > 3] or words)
    typo = mistyped(word, draw)
    if typo in words:
        return
    said = told(typed(name, flag, typo), capsys)
    assert flag in said
    assert repr(typo) in said
    if len(word) > 3:
        assert "did you mean" in said, said


CASES = [case for case in cases() if case[1] not in DEEP]


def test_the_words_of_options_are_offered() -> None:
    found = {(name, flag) for name, flag, _ in cases()}
    assert len(found) >= 20
    for name, command in COMMAND.commands.items():
        for parameter in command.params:
            listed = " or " in (parameter.help or "").partition(": ")[2]
            if listed and parameter.param_type_name == "option" and isinstance(parameter.default, str):
                assert (name, parameter.opts[0]) in found, f"{name} {parameter.opts[0]}: declare its words (words=)"


@pytest.mark.parametrize(("name", "flag", "words"), CASES, ids=[f"{name} {flag}" for name, flag, _ in CASES])
def test_a_mistyped_word_is_told_a_known_one(name: str, flag: str, words: list[str], capsys: Any, home: Path) -> None:
    for seed in range(5):
        check(name, flag, words, random.Random(f"{name} {flag} {seed}"), capsys)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flag", "words"), CASES, ids=[f"{name} {flag}" for name, flag, _ in CASES])
def test_many_mistyped_words(name: str, flag: str, words: list[str], capsys: Any, home: Path) -> None:
    for _ in range(100):
        check(name, flag, words, random.SystemRandom(), capsys)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with runs and files whose names can be mistyped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("runs/station", "runs/train/recall-small", "models/checkpoint-100"):
        Path(name).mkdir(parents=True)
        Path(name, "training.json").write_text("{}", encoding="utf-8")
        Path(name, "record.json").write_text("{}", encoding="utf-8")
    for name in ("measurements.csv", "arrays.npz", "novel.txt"):
        Path(name).write_text("1\n2\n3\n", encoding="utf-8")
    return tmp_path


FOLDERS = ["eval {}", "predict {}", "measure {}", "check {}", "export {} step.onnx", "generate {}", "report {}"]
FILES = [
    "train --data {} --target x", "fit --from {}", "train series -o file={} -o target=x", "train lm -o text={}",
    "train arrays -o inputs={}",
]  # fmt: skip


def mistyped_path(path: str, draw: random.Random) -> str:
    """The path with a wrong letter in its last name or, if it has several, in any of them."""
    parts = path.split("/")
    at = draw.randrange(len(parts))
    stem, dot, ending = parts[at].partition(".")
    parts[at] = mistyped(stem, draw) + dot + ending
    return "/".join(parts)


@pytest.mark.parametrize("command", FOLDERS + FILES)
def test_a_mistyped_path_is_told_a_known_one(command: str, home: Path, capsys: Any) -> None:
    folders = ["runs/station", "runs/train/recall-small", "models/checkpoint-100"]
    draw = random.Random(command)
    for path in folders if command in FOLDERS else ["measurements.csv", "novel.txt"]:
        for _ in range(3):
            typo = mistyped_path(path, draw)
            said = told(command.format(typo).split(), capsys)
            assert f"did you mean {path}?" in said, (typo, said)


@pytest.mark.parametrize("command", [each for each in FOLDERS if "report" not in each])
def test_a_name_without_its_folder_is_told_the_folder(command: str, home: Path, capsys: Any) -> None:
    assert "did you mean runs/station?" in told(command.format("station").split(), capsys)


def test_a_name_on_the_hub_is_not_called_a_folder(home: Path, capsys: Any) -> None:
    said = told(["measure", "state-spaces/mamba-130m-hg"], capsys)
    assert "not downloaded before" in said
    assert "does not exist" not in said


def test_a_folder_of_trainings_is_told_its_trainings(home: Path, capsys: Any) -> None:
    assert "the training runs in this folder are station" in told(["eval", "runs"], capsys)
    assert "(a file)" in told(["eval", "novel.txt"], capsys)
