"""Images, reviews and ETTh1: made-up files against brute force, and the real files where they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from stablessm import ArgumentError, tasks
from stablessm.tasks import forecasting, imdb
from stablessm.tasks.corpus import SPECIAL

needs_data = pytest.mark.skipif("STABLESSM_DATA" not in os.environ, reason="needs the data folder")


@pytest.mark.parametrize(
    ("name", "file"), [("mnist", "mnist"), ("cifar10-gray", "cifar10_gray"), ("cifar10", "cifar10")]
)
def test_pixels_come_row_after_row_standardized_by_the_training_images(name: str, file: str, folder: Path) -> None:
    with np.load(folder / f"{file}.npz") as stored:
        x_train, x_test, y_test = stored["x_train"].astype(float), stored["x_test"].astype(float), stored["y_test"]
    colors = tuple(range(3))
    expected = (x_test - x_train.mean(colors)) / x_train.std(colors)
    batch = tasks.get(name).batch("test", 14)
    np.testing.assert_allclose(batch.inputs.flatten(), expected.flatten(), atol=1e-5)
    np.testing.assert_array_equal(batch.targets, y_test)


def test_valid_is_the_end_of_the_training_images(folder: Path) -> None:
    with np.load(folder / "mnist.npz") as stored:
        labels = stored["y_train"]
    task = tasks.get("mnist", valid=0.25)
    assert task.sizes == {"train": 30, "valid": 10, "test": 14}
    np.testing.assert_array_equal(task.batch("valid", 10).targets, labels[30:])
    none = tasks.get("mnist", valid=0)
    assert (none.sizes["train"], none.steps("valid", 8)) == (40, 0)
    with pytest.raises(ArgumentError, match="valid: expected a number from 0 to below 1"):
        tasks.get("mnist", valid=1.0)


def test_permuted_pixels_are_the_same_in_another_order(folder: Path) -> None:
    plain, permuted = (tasks.get(name).batch("test", 14).inputs for name in ("mnist", "permuted-mnist"))
    assert not torch.equal(plain, permuted)
    torch.testing.assert_close(plain.sort(1).values, permuted.sort(1).values)
    # one order for all images and both splits
    order = (plain[:, :, 0].T[:, None] == permuted[:, :, 0].T).all(-1).int().argmax(0)
    torch.testing.assert_close(plain[:, order], permuted)
    train = [tasks.get(name).batch("valid", 4).inputs for name in ("mnist", "permuted-mnist")]
    torch.testing.assert_close(train[0][:, order], train[1])
    other = tasks.get("permuted-mnist", permutation_seed=1).batch("test", 14).inputs
    assert not torch.equal(other, permuted)


def test_images_are_kept_as_bytes(folder: Path) -> None:
    assert tasks.get("mnist")._tensors["train.inputs"].dtype == torch.uint8


@pytest.mark.parametrize("tokens", ["words", "bytes"])
def test_reviews_come_padded_with_their_lengths(tokens: str, folder: Path) -> None:
    task = tasks.get("imdb", tokens=tokens, length=12)
    assert isinstance(task, imdb.IMDB)
    texts = imdb.reviews("test", 100)
    batch = task.batch("test", 30)
    assert batch.lengths is not None
    for row, length, label, (text, expected) in zip(batch.inputs, batch.lengths, batch.targets, texts, strict=True):
        assert label == expected
        assert not row[length:].any()
        words = text.split() if tokens == "words" else [f"0x{byte:02x}" for byte in text.encode()]
        assert [task.corpus.vocabulary[i] for i in row[:length]] == ["<s>", *words[:11]]
    assert task.sizes == {"train": 27, "valid": 3, "test": 30}
    assert task.inputs.size == (9 if tokens == "words" else 260)


def test_no_review_is_too_short_to_pad(folder: Path) -> None:
    """The last review of all, alone: its places reach past the end of the tokens."""
    task = tasks.get("imdb")
    last = task.batch("test", 7, index=4)
    assert torch.equal(last.inputs, task.batch("test", 30).inputs[28:, : last.inputs.shape[1]])


def test_hours_are_standardized_by_the_training_hours(folder: Path) -> None:
    columns, series = forecasting.read()
    assert columns[-1] == "OT"
    seen = series[:8640]
    scaled = (series - seen.mean(0)) / seen.std(0)
    task = tasks.get("etth1", window=48, horizon=24)
    assert task.sizes == {"train": 8640 - 48 - 24 + 1, "valid": 2880 - 24 + 1, "test": 2880 - 24 + 1}
    for split, begin in (("valid", 8640), ("test", 11_520)):
        batch = task.batch(split, 3, index=7)
        for i in range(3):
            now = begin + 21 + i
            np.testing.assert_allclose(batch.inputs[i], scaled[now - 48 : now], atol=1e-5)
            np.testing.assert_allclose(batch.targets[i].view(24, 7), scaled[now : now + 24], atol=1e-5)
    last = task.batch("test", 1, index=task.sizes["test"] - 1)
    np.testing.assert_allclose(last.targets[0].view(24, 7), scaled[14_400 - 24 : 14_400], atol=1e-5)
    assert task.outputs.names[:8] == (*(f"{name}+1" for name in columns), "HUFL+2")


def test_one_channel_of_the_hours(folder: Path) -> None:
    task, all_of_them = (tasks.get("etth1", columns=columns, horizon=5) for columns in ("OT", "all"))
    assert (task.inputs.size, task.outputs.size) == (1, 5)
    torch.testing.assert_close(task.batch("test", 4).inputs[..., 0], all_of_them.batch("test", 4).inputs[..., -1])
    with pytest.raises(ArgumentError, match="window, horizon: expected a window and a horizon that fit"):
        tasks.get("etth1", window=8000, horizon=720)


@needs_data
def test_the_real_mnist() -> None:
    task = tasks.get("mnist")
    assert task.sizes == {"train": 54_000, "valid": 6000, "test": 10_000}
    assert task.chance == 0.1135
    stored = task._tensors
    assert stored["mean"].item() / 255 == pytest.approx(0.13066, abs=1e-5)
    assert stored["deviation"].item() / 255 == pytest.approx(0.30811, abs=1e-5)
    assert task.describe()["content"] == "1e35582d42a90940c55b956deb61875c020b567ed20e3c5b174f52bf7809ed9b"
    assert set(task.batch("train", 512).targets.tolist()) == set(range(10))


@pytest.mark.slow
@needs_data
def test_the_real_cifar10_in_gray() -> None:
    task = tasks.get("cifar10-gray")
    assert task.sizes == {"train": 45_000, "valid": 5000, "test": 10_000}
    assert task.chance == 0.1
    assert task._tensors["mean"].item() == pytest.approx(122.6195, abs=1e-3)


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("tokens", ["words", "bytes"])
def test_the_real_reviews(tokens: str) -> None:
    task = tasks.get("imdb", tokens=tokens, length=4096)
    assert task.sizes == {"train": 22_500, "valid": 2500, "test": 25_000}
    assert task.chance == 0.5
    assert isinstance(task, imdb.IMDB)
    assert task.corpus.vocabulary[: len(SPECIAL)] == SPECIAL


@needs_data
def test_the_real_hours() -> None:
    task = tasks.get("etth1", window=336, horizon=96, metric="mae")
    assert task.sizes == {"train": 8209, "valid": 2785, "test": 2785}
    assert task.columns == ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
    repeat = task.batch("test", 2785)
    total, count = task.score(repeat.inputs[:, -1:].expand(-1, 96, -1).flatten(1), repeat)
    assert (total / count).item() == pytest.approx(0.713, abs=5e-4), "as docs/tasks.md says"
    assert json.dumps(task.describe())
