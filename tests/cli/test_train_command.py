from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import stablessm as ssm
from stablessm.cli import app

QUICK = ("--model", "tiny", "--batch-size", "32", "--device", "cpu")


def call(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = (f"{i},{np.sin(i / 4):.4f},{wind:.4f}" for i, wind in enumerate(rng.standard_normal(500)))
    Path("load.csv").write_text("\n".join(["hour,load,wind", *rows]), encoding="utf-8")
    return ("--data", "load.csv", "--target", "load", "-o", "window=24")


def test_a_csv_file_trains_is_evaluated_and_reported(load, monkeypatch):
    text = call("train", *load, *QUICK, "--epochs", "3", "--lr", "0.02", "--out", "runs/load")
    assert "series: 326 train, 50 valid, 100 test; chance mse" in text
    assert "SequenceRegressor tiny" in text
    record = json.loads(Path("runs/load/record.json").read_text(encoding="utf-8"))
    scores = record["results"]["scores"]["test"]
    assert scores["mse"] < 0.8 * record["results"]["chance"]
    told = json.loads(call("eval", "runs/load", "--json", "--batch-size", "32", "--device", "cpu"))
    assert told["mse"] == scores["mse"]
    assert (told["task"], told["split"], told["examples"]) == ("series", "test", 100)
    assert told["naive"] < scores["mse"]
    assert told["remarks"] == [
        f"remark: mse {scores['mse']:.4g} is no better than repeating the last row ({told['naive']:.4g})"
    ]
    told_valid = call("eval", "runs/load", "--split", "valid", "--device", "cpu")
    assert "chance" in told_valid
    assert "remark" not in told_valid
    assert type(ssm.load("runs/load/model")).__name__ == "SequenceRegressor"
    assert call("report", "runs/load", "--out", "report.html") == "written: report.html (runs: 1)\n"
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert json.loads(call("eval", "../runs/load", "--json", "--batch-size", "32", "--device", "cpu")) == told


def test_errors_name_options_and_not_python(load):
    call("train", *load, *QUICK, "--steps", "2", "--out", "run")
    told = call("train", *load, *QUICK, "--steps", "4", "--out", "run", code=2)
    assert "--resume: expected the settings the run began with (config.steps = 2) or --extend, got" in told
    told = call("train", *load, *QUICK, "--steps", "2", "--out", "run", "--fresh", "--init-from", "run", code=2)
    assert "--init-from: expected the folder of another run (--extend continues a run)" in told
    told = call("train", *load, "--batch-size", "4000", "--out", "other", code=2)
    assert "--batch-size: expected at most" in told
    assert "--level: expected a number between 0 and 1" in call("predict", "run", "--level", "2", code=2)


def test_clip_may_be_0_but_not_less(load):
    assert "--clip: expected a finite number not below 0, got -3" in call("train", *load, "--clip", "-3", code=2)


def test_the_data_must_be_that_of_the_training(load):
    told = call("train", *load, *QUICK, "--steps", "2", "--out", "runs/one/run")
    assert "on average" in told
    told = call("status", "--out", "runs/one")
    assert "complete: 0 of 0 experiment runs in" in told  # a model is no run of an experiment
    assert "finished: 1 of 1 training runs in runs/one" in told
    assert "2 of 2" in call("status", "--out", "runs/one", "--all")
    call("train", *load, *QUICK, "--steps", "2", "--out", "run")
    rows = Path("load.csv").read_text(encoding="utf-8").splitlines()
    Path("load.csv").write_text("\n".join([*rows[:100], "99,7.5,0.1", *rows[101:]]), encoding="utf-8")
    assert "load.csv has changed since training: expected the data it was trained on (content" in call(
        "eval", "run", code=2
    )


def test_options_that_came_after_a_training_do_not_shut_it_out(load):
    call("train", *load, *QUICK, "--steps", "2", "--out", "run")
    settings = json.loads(Path("run/training.json").read_text(encoding="utf-8"))
    del settings["task"]["options"]["test"], settings["checksum"]  # it stood at its default; there were no checksums
    Path("run/training.json").write_text(json.dumps(settings), encoding="utf-8")
    assert "chance" in call("eval", "run", "--device", "cpu")


def test_other_data_are_read_with_the_scale_of_the_training(load):
    call("train", *load, *QUICK, "--epochs", "3", "--lr", "0.02", "--out", "run")
    head, *rows = (line.split(",") for line in Path("load.csv").read_text(encoding="utf-8").splitlines())
    tables = {
        "same.csv": [head, *rows],
        "scaled.csv": [head, *((hour, str(1000 + 50 * float(x)), wind) for hour, x, wind in rows)],
        "turned.csv": [[head[0], head[2], head[1]], *((hour, wind, x) for hour, x, wind in rows)],
    }
    for name, table in tables.items():
        Path(name).write_text("\n".join(map(",".join, table)), encoding="utf-8")

    def mse(*other):
        return json.loads(call("eval", "run", "--json", "--device", "cpu", *other))["mse"]

    assert mse("-o", "file=same.csv") == mse()
    assert mse("-o", "file=scaled.csv") > 1000
    told = call("eval", "run", "-o", "file=turned.csv", code=2)
    assert "columns: expected hour, load, wind, as in training, got hour, wind, load" in told
    assert mse("-o", "file=turned.csv", "-o", "columns=hour,load,wind") == mse()


def test_several_seeds_at_once(load):
    told = call("train", *load, *QUICK, "--steps", "4", "--seed", "3", "--replicas", "2", "--out", "run")
    assert "2 × " in told
    assert "2 replicas, 4 steps" in told
    alone = call("train", *load, *QUICK, "--steps", "4", "--seed", "4", "--out", "alone")
    assert "replicas" not in alone

    def mse(folder):
        return json.loads(call("eval", folder, "--json", "--device", "cpu"))["mse"]

    assert mse("run/replica-1") == pytest.approx(mse("alone"), rel=1e-5, abs=0)
    assert mse("run/replica-0") != pytest.approx(mse("alone"), rel=5e-4, abs=0)


def walks(name, labels):
    """Sequences of a sign, and what that sign is called."""
    rows = (f"{i},{s + 0.1 * t},{label}" for i, (s, label) in enumerate(labels) for t in range(4))
    Path(name).write_text("\n".join(["walk,x,label", *rows]), encoding="utf-8")


def test_other_data_have_the_classes_of_the_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    signs = rng.choice([-1, 0, 1], 300)
    walks("one.csv", [(s, {-1: "a", 0: "b", 1: "c"}[s]) for s in signs])
    walks("fewer.csv", [(s, {0: "b", 1: "c"}[s]) for s in signs if s >= 0])
    walks("others.csv", [(s, {-1: "a", 0: "b", 1: "d"}[s]) for s in signs])
    data = ("--data", "one.csv", "--label", "label", "-o", "sequence=walk")
    call("train", *data, *QUICK, "--epochs", "12", "--lr", "0.02", "--out", "run")

    def accuracy(*other):
        return json.loads(call("eval", "run", "--json", "--device", "cpu", *other))["accuracy"]

    assert accuracy() > 0.95
    assert accuracy("-o", "file=fewer.csv") > 0.95
    told = call("eval", "run", "-o", "file=others.csv", code=2)
    assert "label: expected labels of the training data: a, b, c, got d" in told


def test_other_arrays_may_lack_a_class(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokens = np.random.default_rng(0).integers(0, 10, (120, 8))
    for name, classes in (("some", 3), ("fewer", 2), ("more", 5)):
        np.savez(name, inputs=tokens, targets=tokens[:, 0] % classes)
    call("train", "--data", "some.npz", *QUICK, "--steps", "2", "--out", "run")
    assert "accuracy" in call("eval", "run", "-o", "inputs=fewer.npz", "--device", "cpu")
    told = call("eval", "run", "-o", "inputs=more.npz", code=2)
    assert "targets: expected classes from 0 to 2, as in training, got 4" in told


def test_labeled_sequences_and_arrays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{i // 6},{rng.standard_normal():.3f},{'up' if i // 6 % 2 else 'down'}" for i in range(600)]
    Path("walks.csv").write_text("\n".join(["walk,x,way", *rows]), encoding="utf-8")
    own = ("--data", "walks.csv", "--label", "way", "-o", "sequence=walk")
    text = call("train", *own, *QUICK, "--epochs", "1", "--out", "a")
    assert "sequences: 70 train, 10 valid, 20 test; chance accuracy" in text
    np.savez("own.npz", inputs=rng.standard_normal((80, 9, 2)), targets=np.arange(80) % 3)
    assert "arrays: 64 train" in call("train", "--data", "own.npz", *QUICK, "--epochs", "1", "--out", "b")
    assert "examples  64" in call("eval", "b", "--split", "train", "--device", "cpu", "--batch-size", "32")


def test_a_task_with_options_settings_and_a_map(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("-o", "length=8", "-o", "vocabulary=6", "-o", "train-examples=64", "-o", "test_examples=10")
    settings = ("--set", "d_state=4", "--set", 'map_options={"b": 1.0}', "--map", "best")
    text = call("train", "recall", *options, *settings, *QUICK, "--steps", "3", "--clip", "0", "--select", "last")
    assert "recall: 64 train, 500 valid, 10 test" in text
    model = ssm.load("runs/train/recall-tiny/model")
    assert (model.config.d_state, model.config.map, model.config.map_options) == (4, "best", {"b": 1.0})
    settings = json.loads(Path("runs/train/recall-tiny/training.json").read_text(encoding="utf-8"))
    assert settings["config"]["clip"] is None
    assert settings["config"]["select"] == "last"


def test_going_on_starting_again_and_damage(load):
    command = ("train", *load, *QUICK, "--steps", "12", "--evaluate-every", "4", "--out", "run")
    first = call(*command)
    weights = Path("run/model/model.safetensors").read_bytes()
    refused = call(*command, "--lr", "0.1", code=2)
    expected = "--resume: expected the settings the run began with (config.lr = 0.004) or --extend, got config.lr = 0.1"
    assert f"cannot train: {expected}" in refused
    assert "--extend allows other steps, learning rates and schedules" in refused
    again = call(*command).splitlines()
    assert first.splitlines()[-1] == again[-1]
    assert "resuming after step 12 of 12" in again
    last = max(Path("run/checkpoints").iterdir())
    last.write_bytes(last.read_bytes()[:1000])
    assert f"{last.name}" in call(*command, code=2)
    call(*command, "--last-good")
    assert Path("run/model/model.safetensors").read_bytes() == weights
    longer = [{"12": "20", "run": str(Path("run"))}.get(word, word) for word in command]
    assert "changed after step 12: lr from 0.004 to 0.001, steps from 12 to 20" in call(
        *longer, "--lr", "0.001", "--extend"
    )
    branch = [{"run": "branch"}.get(word, word) for word in command]
    assert f"initial weights from {Path('run').resolve()}" in " ".join(call(*branch, "--init-from", "run").split())
    call(*command, "--fresh", "--lr", "0.1")
    assert Path("run/model/model.safetensors").read_bytes() != weights


def test_a_divergence_is_told_and_is_a_failure(load):
    text = call("train", *load, *QUICK, "--lr", "100", "--warmup", "0", "--map", "direct", "--out", "run", code=1)
    assert "diverged at step" in text
    assert "of 'body.blocks.0.mixer'" in text
    record = json.loads(Path("run/record.json").read_text(encoding="utf-8"))
    assert record["diverged"]["mode"]["module"] == "body.blocks.0.mixer"


def test_a_terminated_command_leaves_a_checkpoint_and_goes_on(load):
    def terminate():
        while not (Path("run/metrics.jsonl").exists() and Path("run/metrics.jsonl").read_text(encoding="utf-8")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    text = call("train", *load, *QUICK, "--steps", "100000", "--out", "run", code=128 + signal.SIGTERM)
    assert "the same command resumes the run" in text
    step = int(text.split("stopped after step ")[1].split(";")[0])
    assert f"step-{step:09d}.safetensors" in {path.name for path in Path("run/checkpoints").iterdir()}


def test_wrong_arguments_are_named(load):
    for arguments, told in {
        ("train",): "TASK: expected a task by name (--list shows them), or your own --data",
        ("train", "no-such"): "TASK: expected one of functional",
        ("train", "recall", "-o", "lenght=3"): "lenght: expected one of the options",
        ("train", "recall", "-o", "length"): "--option: expected KEY=VALUE, got 'length'",
        ("train", "recall", "-o", "length=long"): "length: expected a whole number",
        ("train", "recall", "--target", "x"): "--target, --label: expected --data with a CSV file",
        ("train", "--data", "absent.csv"): "--data: expected a file, got absent.csv (no such file)",
        ("train", "--data", "load.csv", "--target", "sun"): "target: expected one of the columns of load.csv",
        ("train", "recall", "--model", "huge"): "--model: expected one of tiny",
        ("train", "recall", "--data", "load.csv"): "TASK: expected no TASK, or series, for this --data",
        (
            "train",
            "--data",
            "load.csv",
            "--target",
            "load",
            "--label",
            "wind",
        ): "--target, --label: expected one of them",
        ("train", "--data", "load.csv", "--label", "wind"): "-o sequence=VALUE sets it",
        ("train", "recall", "--last-good", "--fresh"): "--last-good: expected no --fresh, got both",
        ("train", "recall", "--epochs", "3", "--steps", "3"): "--epochs, --steps: expected one of them, got both",
        ("train", "recall", "--map", "exp", "--set", "map=best"): "--map, --set map: expected one of them, got both",
        ("train", "recall", "--set", "mixer_options=3"): "mixer_options: expected options by name, got 3",
        ("train", "recall", "--set", "gate=maybe"): "gate: expected True or False",
        ("train", "recall", "--set", "dropout=much"): "dropout: expected a number",
        ("train", "recall", "--set", "layers=2"): "layers: expected one of the settings",
        ("train", "recall", "--map", "nothing"): "expected one of",
        ("train", "recall", "--lr", "-1"): "lr: expected",
        ("train", "recall", "--select", "first"): "--select: expected one of best, last",
        ("train", "recall", "--device", "tpu"): "device: expected auto, cpu or cuda",
        ("eval", "nowhere"): "FOLDER: expected the folder of a training run",
    }.items():
        assert told in call(*arguments, code=2), arguments
    assert not Path("runs").exists()


def test_lists_and_help():
    assert "mnist               digits, one pixel per step" in call("train", "--list")
    assert "vocabulary" in call("train", "recall", "--list")
    assert "required" in call("train", "series", "--list")
    assert "paper-images 17,546 StableSSM, tables 5 and 6" in " ".join(call("train", "--list").split())
    assert "stablessm train mnist --model paper-images --epochs 10" in call("train", "--help")
    assert "stablessm eval runs/mnist --split valid" in call("eval", "--help")


def test_the_commands_that_the_documentation_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    making, commands = page.split("```python\n")[1].split("```")[0], page.split("```sh\n")[1].split("```")[0]
    exec(making, {})
    outputs = [call(*shlex.split(line)[1:]) for line in commands.splitlines() if line]
    assert len(outputs) == 4
    assert "Intervals: the forecast plus the 0.05 and 0.95 quantiles" in outputs[2]
    assert Path("forecast.csv").read_text(encoding="utf-8").startswith("step,load,load lower,load upper\n1,")
    assert "written to runs/load" in outputs[0]
    assert "stability radius" in outputs[3]


LOGGER = """
from pathlib import Path

class Rows:
    def begin(self, folder, settings, step):
        self.rows = [f"{folder.name} {settings['config']['steps']} {step}"]

    def log(self, step, values):
        self.rows.append(f"{step} {values.get('split', 'train')}")

    def end(self, result):
        Path("rows.txt").write_text("\\n".join([*self.rows, f"end {result.steps}"]))

made = Rows()
half = type("Half", (), {"begin": None})()
number = 3
"""


@pytest.mark.parametrize("name", ["Rows", "made"])
def test_a_logger_of_the_current_folder(load, monkeypatch, name):
    monkeypatch.setattr(sys, "path", list(sys.path))
    module = f"logger_{name.lower()}"
    Path(f"{module}.py").write_text(LOGGER, encoding="utf-8")
    call("train", *load, *QUICK, "--steps", "2", "--out", "runs/logged", "--logger", f"{module}:{name}")
    rows = Path("rows.txt").read_text(encoding="utf-8").split("\n")
    assert rows == ["logged 2 0", "2 train", "2 valid", "end 2"]


def test_what_is_no_logger_is_refused(load, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("loggers_here.py").write_text(LOGGER, encoding="utf-8")
    wrong = {
        "nowhere:Rows": "package.module:factory of a logger",
        "loggers_here:rows": "package.module:factory of a logger",
        "loggers_here:number": "a function that returns a logger at loggers_here:number",
        "loggers_here:half": "a function that returns a logger at loggers_here:half",
        "loggers_here:Path": "a logger with the methods begin, log, end from loggers_here:Path",
    }
    for source, expected in wrong.items():
        told = " ".join(call("train", *load, *QUICK, "--steps", "2", "--logger", source, code=2).split())
        assert f"--logger: expected {expected}" in told


def test_too_little_text_is_refused_before_a_model_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(ssm.models, "for_task", lambda *_, **__: pytest.fail("a model was built"))
    path = tmp_path / "short.txt"
    path.write_text("the cat sat on the mat. " * 400, encoding="utf-8")
    told = " ".join(call("train", "lm", "-o", f"text={path}", "-o", "level=char", code=2).split())
    assert "--batch-size: expected at most the 8 training examples of lm, got 64" in told
    assert "--batch-size N sets it; a smaller -o length=N cuts the text into more examples" in told


@pytest.mark.parametrize("option", ["--target=nope", "-otarget=nope"])
def test_an_option_of_the_command_needs_no_advice(load, option):
    told = call("train", "--data", "load.csv", option, code=2)
    assert "--target: expected one of the columns of load.csv" in told
    assert "=VALUE sets it" not in told


def test_an_option_of_the_task_is_advised(load):
    assert "-o window=VALUE sets it" in call("train", *load[:4], "-o", "window=-3", code=2)
