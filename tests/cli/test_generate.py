"""``train lm``, ``eval`` and ``generate``, from a text file to new text."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import stablessm as ssm
from stablessm import models
from stablessm.cli import app
from stablessm.tasks import tokenizers

needs_data = pytest.mark.skipif("STABLESSM_DATA" not in os.environ, reason="needs the data folder")
LINES = ["the cat sat on the mat.", "a dog ran to the cat.", "it sat on a dog."]


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output if code else result.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of characters, byte pairs and words."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "mine.txt").write_text("\n".join(LINES * 40), encoding="utf-8")
    quick = (
        "--model",
        "lm-tiny",
        "--steps",
        "30",
        "--lr",
        "0.02",
        "--batch-size",
        "8",
        "--device",
        "cpu",
        "--map",
        "best",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STABLESSM_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        for level, more in (("char", ()), ("bpe", ("-o", "vocabulary=270")), ("word", ())):
            options = ("-o", f"level={level}", "-o", "length=16", *more, "--out", f"runs/{level}")
            text = call("train", "--data", "mine.txt", *options, *quick)
            assert "chance nats" in text
            assert "perplexity" in text
    return folder


@pytest.fixture(autouse=True)
def cache(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLESSM_CACHE", str(trained / "cache"))


def test_a_text_has_a_language_model_by_default(trained: Path, tmp_path: Path) -> None:
    small = ("--set", "d_model=8", "--set", "n_layers=1", "--steps", "1", "--batch-size", "2", "--device", "cpu")
    options = ("-o", "level=byte", "-o", "length=16", "--out", tmp_path)
    assert "LanguageModel lm-small" in call("train", "--data", trained / "mine.txt", *options, *small)


def test_eval_says_perplexity_per_token_word_and_byte(trained: Path) -> None:
    lines = [line.split() for line in call("eval", trained / "runs/char", "--device", "cpu").splitlines()]
    assert ["perplexity", "carried", "windows"] in lines
    for name in ("per token", "per word", "per byte", "bits per byte"):
        (values,) = [line[len(name.split()) :] for line in lines if line[:-2] == name.split()]
        assert all(float(value) > 0 for value in values)
    found = {
        level: json.loads(call("eval", trained / "runs" / level, "--device", "cpu", "--json"))
        for level in ("char", "bpe", "word")
    }
    whole = "\n".join(LINES * 40)
    test = whole[-round(0.05 * len(whole)) :]
    for scores in found.values():
        assert scores["carried"]["per_word"] == pytest.approx(
            scores["carried"]["per_byte"] ** (scores["bytes"] / scores["words"])
        )
        assert scores["windows"] != scores["carried"]
        assert (scores["words"], scores["bytes"]) == (len(test.split()), len(test))
    assert found["char"]["tokens"] == len(test)
    assert found["bpe"]["tokens"] < len(test)


def test_eval_on_another_text(trained: Path) -> None:
    (trained / "other.txt").write_text("the mat sat on the cat. it ran.\n" * 30, encoding="utf-8")
    command = ("eval", trained / "runs/bpe", "--device", "cpu", "--json")
    other = json.loads(call(*command, "-o", f"text={trained / 'other.txt'}", "-o", "test=0.5"))
    assert other["bytes"] == 480
    assert other["windows"]["per_token"] > json.loads(call(*command))["windows"]["per_token"]
    assert "got nowhere (no such file)" in call(*command, "-o", "text=nowhere", code=2)


def test_eval_with_another_option_reads_the_text_as_it_was_trained(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "parts.txt").write_text("|".join(LINES * 40), encoding="utf-8")
    options = ("-o", "separator=|", "-o", "level=char", "-o", "length=16", "-o", "test=0.2", "--out", tmp_path / "run")
    small = ("--model", "lm-tiny", "--steps", "3", "--batch-size", "4", "--device", "cpu")
    call("train", "--data", tmp_path / "parts.txt", *options, *small)
    command = ("eval", tmp_path / "run", "--device", "cpu", "--json")
    own = json.loads(call(*command))
    for change in ("carry=true", f"text={tmp_path / 'parts.txt'}"):
        assert json.loads(call(*command, "-o", change)) == own
    assert json.loads(call(*command, "-o", "length=8"))["tokens"] == own["tokens"]


def test_greedy_text_is_the_argmax_of_full_passes(trained: Path) -> None:
    for level in ("char", "bpe", "word"):
        folder = trained / "runs" / level
        tokenizer, model = tokenizers.load(folder), ssm.load(folder / "model").eval()
        tokens = [tokenizer.border, *tokenizer.encode("the cat").tolist()]
        begin = len(tokens)
        with torch.no_grad():
            for _ in range(25):
                tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
        expected = "the cat" + (" " if level == "word" else "") + tokenizer.decode(tokens[begin:])
        command = ("generate", folder, "the cat", "--tokens", "25", "--temperature", "0", "--device", "cpu")
        assert call(*command) == expected + "\n"


def test_seeds_temperatures_and_few_choices(trained: Path) -> None:
    command = ("generate", trained / "runs/char", "the", "--tokens", "60", "--device", "cpu")
    first = call(*command)
    assert first.startswith("the")
    assert len(first) == 3 + 60 + 1
    assert call(*command, "--seed", "0") == first
    assert call(*command, "--seed", "1") != first
    assert call(*command, "--top-k", "1", "--seed", "5") == call(*command, "--temperature", "0")
    assert len(call(*command[:2], *command[3:])) == 60 + 1, "a new document"
    wild = call(*command[:4], "400", "--temperature", "1000", "--device", "cpu")
    assert "�" not in wild
    assert set(wild) <= set("\n".join(LINES))


def test_the_document_ends_the_text(trained: Path, tmp_path: Path) -> None:
    folder = trained / "runs/char"
    model, tokenizer = ssm.load(folder / "model"), tokenizers.load(folder)
    with torch.no_grad():
        model.body.norm.bias.copy_(100 * model.body.encoder.weight[tokenizer.border])  # sure that it ends
    ssm.save(model, tmp_path)
    (tmp_path / "tokenizer.json").write_text(tokenizer.content(), encoding="utf-8")
    assert call("generate", tmp_path, "the", "--device", "cpu") == "the\n"


def test_wrong_arguments_are_named(trained: Path, tmp_path: Path) -> None:
    for arguments, told in {
        (trained / "runs/char", "ZOO!"): "PROMPT: expected characters that occur in the training text, got 'ZO!'",
        (trained / "nowhere", "x"): "MODEL: expected a folder saved by stablessm",
        (trained / "runs/char/model", "x", "--device", "tpu"): "device: expected auto, cpu or cuda",
    }.items():
        assert told in call("generate", *arguments, code=2)
    ssm.save(ssm.RealSSM(1, 4, 1), tmp_path)
    assert "MODEL: expected a language model (stablessm train lm)" in call("generate", tmp_path, "x", code=2)
    ssm.save(ssm.LanguageModel(5, d_model=8, n_layers=1, d_state=4), tmp_path)
    assert "tokenizer: expected a tokenizer.json" in call("generate", tmp_path, "x", code=2)
    (tmp_path / "tokenizer.json").write_text(tokenizers.load(trained / "runs/char").content(), encoding="utf-8")
    assert "MODEL: expected a language model with the" in call("generate", tmp_path, "x", code=2)
    assert "stablessm generate runs/mine" in call("generate", "--help")


def test_the_commands_that_the_documentation_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
    part = page[page.index("## Texts") :]
    exec(part.split("```python\n")[1].split("```")[0], {})
    train, evaluate, generate = part.split("```sh\n")[1].split("```")[0].splitlines()
    assert "written to runs/mine" in call(*shlex.split(train)[1:], "--device", "cpu")
    assert "bits per byte" in call(*shlex.split(evaluate)[1:], "--device", "cpu")
    assert len(call(*shlex.split(generate)[1:], "--device", "cpu")) == len("the cat") + 100 + 1


def test_a_training_that_carries_its_state(trained: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
    command = page[page.index("**WikiText-2 in words.**") :].split("```sh\nstablessm ")[1].split("\nstablessm eval")[0]
    for gone in ("\\\n", "--autocast", "--graph", "--epochs 40"):
        command = command.replace(gone, "")
    small = ("-o", f"text={trained / 'mine.txt'}", "-o", "length=8", "--set", "d_model=8", "--set", "n_layers=1")
    quick = ("-o", "carry=true", "--steps", "4", "--batch-size", "3", "--device", "cpu", "--out", tmp_path)
    call(*shlex.split(command), *small, *quick)
    found = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    assert found["task"]["options"]["carry"] is True
    assert found["model"]["options"]["edge_dropout"] == 0.5
    told = json.loads(call("eval", tmp_path, "--device", "cpu", "--json"))
    assert told["carried"]["per_token"] == pytest.approx(found["results"]["scores"]["test"]["perplexity"], rel=1e-6)
    assert "carry" in call("train", "lm", "--list")


def test_a_model_of_ours_in_a_hugging_face_folder(trained: Path, tmp_path: Path) -> None:
    run = trained / "runs/bpe"
    models.StableSSMForCausalLM.of(ssm.load(run / "model")).save_pretrained(tmp_path)
    shutil.copy(run / "model" / "tokenizer.json", tmp_path)
    greedy = ("--tokens", "25", "--temperature", "0", "--device", "cpu")
    theirs = call("generate", tmp_path, "<|endoftext|>the cat", *greedy)
    assert theirs.rstrip("\n") == call("generate", run, "the cat", *greedy).rstrip("\n")
    (tmp_path / "tokenizer.json").unlink()
    assert "MODEL: expected a tokenizer with" in call("generate", tmp_path, "x", code=2)


@needs_data
def test_a_hugging_face_model() -> None:
    folder = Path(os.environ["STABLESSM_DATA"]) / "stories260k_hf"
    story = call("generate", folder, "--tokens", "30", "--temperature", "0", "--device", "cpu")
    assert "Once upon a time, there was a little girl named Lily. She loved to play outside in the park" in story
    drawn = [call("generate", folder, "One day", "--tokens", "20", "--seed", seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
