"""Settings of other types: a training runs with them or names the setting."""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stablessm as ssm
from stablessm import ArgumentError, tasks, training
from stablessm.training import TrainingConfig

VALUES = (
    *(None, 0, 3, 2.5, -1, "x", "", b"x", "cpu", True, float("nan"), [1], (1, 2), {}, object(), Path("x"), print),
    *(np.int64(2), np.float32(0.5), torch.tensor(1), torch.device("cpu"), torch.device("meta"), torch.float32),
)


def run(folder: Path, **options: object) -> training.TrainingResult:
    torch.manual_seed(0)
    task = tasks.get("arrays", inputs=torch.randn(40, 3, 1), targets=torch.arange(40) % 2)
    model = ssm.SequenceClassifier(2, d_input=1, d_model=4, n_layers=1, d_state=2)
    config = TrainingConfig(**{"steps": 1, "batch_size": 8, "device": "cpu", **options})
    return training.train(model, task, config, folder=folder, progress=False)


@given(seed=st.integers(0, 10**9))
def test_a_setting_of_any_type_works_or_is_named(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = random.Random(seed)
    name = rng.choice([field.name for field in fields(TrainingConfig) if field.name != "compile"])
    value = rng.choice(VALUES)
    said = ""
    try:
        run(tmp_path_factory.mktemp("c"), **{name: value})
    except ArgumentError as error:
        said = str(error)
    assert said.startswith((f"{name}: expected", "accumulate: expected")) or not said, (name, value)


@pytest.mark.parametrize("device", [torch.device("cpu"), None, "auto", torch.device("cpu", 0)])
def test_a_device_may_be_a_device(device: object, tmp_path: Path) -> None:
    assert run(tmp_path, device=device).scores
    assert isinstance(TrainingConfig(device=device).device, str)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("device", 0), ("device", ["cpu"]), ("init_from", 3), ("init_from", b"x")])
def test_a_setting_of_a_wrong_type_is_named(name: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: expected .*, got"):
        TrainingConfig(**{name: value})


def test_the_initial_weights_may_be_a_path(tmp_path: Path) -> None:
    run(tmp_path / "a")
    assert run(tmp_path / "b", init_from=tmp_path / "a", steps=2).history[0]["init_from"]["folder"] == str(
        tmp_path / "a"
    )


@pytest.mark.parametrize("part", ["inputs", "targets", "lengths"])
@pytest.mark.parametrize("kind", ["tensor", "array", "npy", "npz"])
def test_arrays_without_axes_are_named(part: str, kind: str, tmp_path: Path) -> None:
    single = np.asarray(np.nan if part == "inputs" else 1)
    given_: dict[str, object] = {"inputs": np.ones((9, 4)), "targets": np.arange(9) % 2, "lengths": np.full(9, 4)}
    given_[part] = {"tensor": torch.tensor(single), "npy": str(tmp_path / "x.npy")}.get(kind, single)
    np.save(tmp_path / "x.npy", single)
    if kind == "npz":
        np.savez(tmp_path / "x.npz", **given_)
        given_ = {"inputs": str(tmp_path / "x.npz")}
    with pytest.raises(ArgumentError, match=rf"{part}.* has no axes" if kind == "npz" else f"{part}: expected"):
        tasks.get("arrays", **given_)
