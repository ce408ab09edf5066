from __future__ import annotations

import json
import pickle
from pathlib import Path

import hf_models
import pytest
import torch
from typer.testing import CliRunner

import stablessm as ssm
from stablessm.cli import app, comparison

WRITTEN = {"record.json", "memory.npz", "memory.png", "memory.svg", "memory.html"}


def measure(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["measure", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_a_folder_of_ours(tmp_path):
    layer = ssm.RealSSM(1, 4, 1, map="direct", dt=0.1, eigenvalues=-torch.tensor([0.5, 1.0, 2.0, 4.0]))
    ssm.save(layer, tmp_path / "layer")
    text = measure(tmp_path / "layer", "--unit", "s", "--horizon", "300", "--out", tmp_path / "run")
    assert "exponential" in text
    assert {path.name for path in (tmp_path / "run").iterdir()} == WRITTEN
    record = json.loads((tmp_path / "run" / "record.json").read_text(encoding="utf-8"))
    assert record["results"]["decay"] == "exponential"
    assert record["results"]["stability radius"] == pytest.approx(0.5)
    assert record["config"]["horizon"] == 300
    assert ssm.MemoryCurve.load(tmp_path / "run" / "memory.npz").unit == "s"


def test_a_hugging_face_folder_in_words_and_in_embedding_space(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "mistral"
    hf_models.model("mistral").save_pretrained(folder)
    vocabulary = {"<s>": 0, "good": 5, "bad": 6}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<s>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<s>").save_pretrained(folder)
    text = measure(folder, "--words", "good,bad", "--horizon", "40", "--out", tmp_path / "words")
    assert "finite" in text
    assert "“bad” (token 6)" in text
    measure(folder, "--words", "good bad,bad", "--horizon", "40", "--out", tmp_path / "words")
    results = json.loads((tmp_path / "words" / "record.json").read_text(encoding="utf-8"))["results"]
    assert "the last of 2 tokens of “good bad”, “bad” (token 6)" in results
    assert "--words: expected words that the tokenizer knows" in measure(folder, "--words", "good,", code=2)
    measure(folder, "--horizon", "20", "--samples", "2", "--ascent", "0", "--out", tmp_path / "embedding")
    assert {path.name for path in (tmp_path / "embedding").iterdir()} == WRITTEN


def test_a_factory(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "import torch\n"
        "class zoo:\n"
        "    @staticmethod\n"
        "    def build():\n"
        "        return torch.nn.GRU(2, 4)\n"
        "def smooth():\n"
        "    return lambda x: x.cumsum(1)\n"
        "size = 3\n"
        "class Mine(torch.nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(2, 3)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert "GRU" in measure("my_models:zoo.build", "--horizon", "50")
    assert (tmp_path / "runs" / "measure" / "my_models-zoo.build" / "record.json").exists()
    assert "none" in measure("my_models:smooth", "--d-input", "1", "--horizon", "50")
    assert "Mine" in measure("my_models:Mine", "--d-input", "2", "--horizon", "20")
    assert ": --d-input: expected" in measure("my_models:smooth", code=2)
    assert "a function that returns a model" in measure("my_models:size", code=2)
    assert "MODEL: expected a folder" in measure("my_models:absent", code=2)
    assert "MODEL: expected a folder" in measure("no_such_module:build", code=2)


class _Trap:
    def __reduce__(self):
        return (Path.touch, (Path("trapped"),))


def test_nothing_is_unpickled_and_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pickled"
    hf_models.model("llama").config.save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Trap()))
    assert "safetensors" in measure("pickled", code=2)
    assert not (tmp_path / "trapped").exists()
    assert not (tmp_path / "runs").exists()


def test_sources_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert "it has no config.json" in measure("empty", code=2)
    assert "no such folder" in measure("./absent", code=2)
    Path("runs").mkdir()
    assert "no such folder" in measure("runs/absent", code=2)  # which could be a name on the hub
    Path("runs/load").mkdir()
    assert "did you mean runs/load?" in measure("runs/laod", code=2)
    Path("runs/notes.txt").touch()
    assert "a file, not a folder" in measure("runs/notes.txt", code=2)
    assert "no such folder" in measure("some/where/absent", code=2)
    assert "MODEL: expected" in measure("no-such-owner/no-such-model", code=2)
    assert "Examples:" in measure("--help")


def test_damaged_folders_and_factories_get_a_reason(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ssm.save(ssm.LRU(1, 2, 1), "layer")
    assert "--words: expected a tokenizer" in measure("layer", "--words", "good", code=2)
    Path("layer/model.safetensors").write_bytes(b"damaged")
    assert "MODEL: expected a complete folder" in measure("layer", code=2)
    hf_models.model("llama").save_pretrained("llama")
    Path("llama/model.safetensors").write_bytes(b"damaged")
    assert "MODEL: expected" in measure("llama", code=2)
    Path("factories.py").write_text(
        "import torch\n"
        "def raises():\n    raise OSError('no such weights')\n"
        "model = torch.nn.GRU(1, 2)\n"
        "def meta():\n    return torch.nn.GRU(1, 2, device='meta')\n",
        encoding="utf-8",
    )
    assert "no such weights" in measure("factories:raises", code=2)
    assert "meta device" in measure("factories:meta", code=2)
    assert "GRU" in measure("factories:model", "--horizon", "20")
    Path("taken").write_text("", encoding="utf-8")
    assert "--out: expected a folder" in measure("factories:model", "--out", "taken", code=2)


def test_remote_code_is_off(tmp_path):
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}),
        encoding="utf-8",
    )
    (folder / "mine.py").write_text("raise SystemExit('remote code ran')\n", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"")
    assert "read its code, then add --trust-remote-code" in measure(folder, code=2)


def test_several_models_and_a_folder_of_checkpoints_are_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for step in (2, 10):
        ssm.save(ssm.LRU(1, 4, 1), tmp_path / "run" / f"checkpoint-{step}")
    ssm.save(ssm.RealSSM(1, 4, 1), tmp_path / "other")
    result = CliRunner().invoke(app, ["measure", "run", "other", "--horizon", "12", "--json"])
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert list(data["models"]) == ["run/checkpoint-2", "run/checkpoint-10", "other"]
    assert all("half-life" in facts for facts in data["models"].values())
    folder = tmp_path / data["folder"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "000-run-checkpoint-2.npz", "001-run-checkpoint-10.npz", "002-other.npz",
        "memory.html", "memory.png", "memory.svg", "record.json",
    ]  # fmt: skip
    page = (folder / "memory.html").read_text(encoding="utf-8").replace("\\u002f", "/")
    assert all(name in page for name in data["models"])
    assert json.loads((folder / "record.json").read_text(encoding="utf-8"))["config"]["model"] == list(data["models"])


@pytest.mark.parametrize("names", [("step0", "step10"), ("a-long-name-of-a-folder-1", "a-long-name-of-a-folder-2")])
def test_the_rows_of_a_comparison_can_be_told_apart(capsys, monkeypatch, names):
    monkeypatch.setenv("COLUMNS", "80")
    facts = {"decay": "exponential: 0.95 per step", "half-life": 12.5, "stability radius": 0.01}
    comparison.show({f"../somewhere/checkpoints/{name}": facts for name in names})
    first_column = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert "".join(first_column) == "".join(names)


def test_a_damaged_checkpoint_does_not_stop_the_others(tmp_path):
    for step in (1, 2, 3, 4):
        layer = ssm.LRU(1, 4, 1)
        layer.C.data *= torch.nan if step == 4 else 1
        ssm.save(layer, tmp_path / "run" / f"checkpoint-{step}")
    weights = tmp_path / "run" / "checkpoint-2" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    options = ("--horizon", "4", "--out", tmp_path / "out")
    text = measure(tmp_path / "run", *options)
    assert "checkpoint-2: MODEL: expected a complete folder" in text
    assert "checkpoint-4: the model's output is not finite" in text
    assert "and 2 .npz files" in text
    assert "norm: expected" in measure(tmp_path / "run", *options, "--norm", "none", code=2)
    diverged = tmp_path / "run" / "checkpoint-4"
    assert f"cannot measure {diverged}: " in measure(tmp_path / "run" / "checkpoint-1", diverged, *options, code=2)
    for step in (1, 3, 4):
        (tmp_path / "run" / f"checkpoint-{step}" / "model.safetensors").unlink()
    assert "at least one complete checkpoint" in measure(tmp_path / "run", *options, code=2)


@pytest.mark.parametrize(("name", "size"), [("num_hidden_layers", 10**7), ("hidden_size", 10**9), ("d_state", 10**9)])
def test_a_hugging_face_folder_cannot_ask_for_absurd_sizes(tmp_path, name, size):
    own = ssm.models.StableSSMForCausalLM(ssm.models.StableSSMConfig(vocab_size=9, d_model=4, n_layers=1, d_state=4))
    (own if name == "d_state" else hf_models.model("llama")).save_pretrained(tmp_path)
    _change(tmp_path, name, size)
    text = measure(tmp_path, code=2)
    assert f"{name} in {tmp_path / 'config.json'}: expected at most" in text


@pytest.mark.parametrize(("layers", "said"), [(0, "in the file and not used"), (3, "not in the file and random")])
def test_weights_that_are_missing_or_not_used_are_named(tmp_path, layers, said):
    model = hf_models.model("llama")
    model.save_pretrained(tmp_path / "model")
    assert model.config.num_hidden_layers in (1, 2)
    _change(tmp_path / "model", "num_hidden_layers", layers)
    options = ("--horizon", "4", "--samples", "1", "--ascent", "0", "--out", tmp_path / "out")
    text = measure(tmp_path / "model", *options)
    assert f"weights are {said}: model.layers." in text


def test_a_hugging_face_folder_with_weights_that_are_not_finite_is_named(tmp_path):
    model = hf_models.model("llama")
    torch.nn.init.constant_(model.model.norm.weight, torch.nan)
    model.save_pretrained(tmp_path)
    assert f"{tmp_path}: NaN or infinite values in model.norm.weight; outputs are meaningless" in measure(
        tmp_path, code=2
    )


def _change(folder: Path, name: str, value: int) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert name in config
    (folder / "config.json").write_text(json.dumps(config | {name: value}), encoding="utf-8")
    (folder / "checksums.json").unlink(missing_ok=True)
