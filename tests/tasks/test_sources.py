"""Data files that are missing, damaged or cut, and the hub in their place."""

from __future__ import annotations

import hashlib
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import task_data

from stablessm import ArgumentError, tasks
from stablessm.tasks import forecasting, images, sources

REAL = os.environ.get("STABLESSM_DATA")
needs_data = pytest.mark.skipif(REAL is None, reason="needs the data folder")


FILES = {
    "mnist": "mnist.npz",
    "cifar10-gray": "cifar10_gray.npz",
    "cifar10": "cifar10.npz",
    "imdb": "imdb_test.jsonl.gz",
    "etth1": "ETTh1.csv.gz",
}


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name: str, folder: Path) -> None:
    (folder / FILES[name]).unlink()
    with pytest.raises(ArgumentError, match=rf"STABLESSM_DATA: expected a folder with {FILES[name]} .*got {folder}"):
        tasks.get(name)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kept", [0, 10, -7])
def test_a_cut_file_is_named(name: str, kept: int, folder: Path) -> None:
    path = folder / FILES[name]
    path.write_bytes(path.read_bytes()[:kept])
    known = f"(?s:.*); the whole file has {sources.FILES[path.name][0]:,} bytes" if path.name in sources.FILES else ""
    with pytest.raises(ArgumentError, match=rf"^{path}: expected{known if kept else ''}"):
        tasks.get(name)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_named(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / FILES[name]
    whole = path.read_bytes()
    monkeypatch.setitem(sources.FILES, path.name, (len(whole), hashlib.sha256(whole).hexdigest()))
    tasks.get(name, **({"length": 9} if name == "imdb" else {}))
    path.write_bytes(whole[:-200] + bytes([whole[-200] ^ 1]) + whole[-199:])
    with pytest.raises(ArgumentError, match=rf"{path}: expected SHA-256 .* the file is damaged"):
        tasks.get(name)


@needs_data
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_the_real_mnist_damaged(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert REAL is not None
    path, whole = tmp_path / "mnist.npz", (Path(REAL) / "mnist.npz").read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else whole[:5000] + b"?" + whole[5001:])
    monkeypatch.setenv("STABLESSM_DATA", str(tmp_path))
    expected = "the whole file has 9,477,731 bytes" if damage == "cut" else "expected SHA-256 a7ca5941.*damaged"
    with pytest.raises(ArgumentError, match=rf"mnist\.npz: .*{expected}"):
        tasks.get("mnist")


@needs_data
def test_every_known_file_is_what_we_know(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (size, _) in sources.FILES.items():
        path = sources.find(name)
        assert path is not None
        assert path.stat().st_size == size


def test_pickles_are_not_opened(folder: Path) -> None:
    np.savez(folder / "mnist.npz", x_train=np.array([{}], dtype=object), y_train=0, x_test=0, y_test=0)
    with pytest.raises(ArgumentError, match=r"mnist\.npz: expected arrays x_train and y_train and x_test and y_test"):
        tasks.get("mnist")


def test_images_of_another_shape_are_refused(folder: Path) -> None:
    with np.load(folder / "mnist.npz") as stored:
        good = dict(stored)
    for change, message in (
        ({"x_test": good["x_test"][:, :27]}, r"x_test, bytes of shape \(n, 28, 28\), got uint8 \(14, 27, 28\)"),
        ({"x_train": good["x_train"] / 255}, r"x_train, bytes of shape .*, got float64"),
        ({"y_test": good["y_test"][1:]}, "y_test, 14 whole numbers from 0 to 9"),
        ({"y_train": good["y_train"] + 10}, "y_train, 40 whole numbers from 0 to 9"),
    ):
        np.savez(folder / "mnist.npz", **{**good, **change})
        with pytest.raises(ArgumentError, match=message):
            tasks.get("mnist")


def hub(monkeypatch: pytest.MonkeyPatch, load_dataset: object) -> None:
    monkeypatch.delenv("STABLESSM_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))


def library(monkeypatch: pytest.MonkeyPatch, download: object) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(hf_hub_download=download))
    constants = types.SimpleNamespace(HF_HUB_OFFLINE=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)


def test_color_images_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = {
        split: {
            "img": list(rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)),
            "label": list(rng.integers(0, 10, 20)),
        }
        for split in ("train", "test")
    }
    hub(monkeypatch, lambda name, split: rows[split])
    with pytest.raises(ArgumentError, match="uoft-cs/cifar10: expected training pixels that sum to"):
        tasks.get("cifar10")
    sums = tuple(int(n) for n in np.stack(rows["train"]["img"]).sum((0, 1, 2), dtype=np.int64))
    monkeypatch.setitem(images._SUMS, "uoft-cs/cifar10", sums)
    color, gray = tasks.get("cifar10"), tasks.get("cifar10-gray")
    assert color.batch("test", 20).inputs.shape == (20, 1024, 3)
    expected = np.stack(rows["test"]["img"]) @ [0.299, 0.587, 0.114]
    assert np.abs(gray._tensors["test.inputs"].numpy().reshape(20, 32, 32) - expected).max() <= 0.5 + 1e-9


def test_offline_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError

    hub(monkeypatch, offline)
    library(monkeypatch, offline)
    for name, file in {**FILES, "imdb": "imdb_train.jsonl.gz"}.items():
        with pytest.raises(
            ArgumentError, match=rf"STABLESSM_DATA: expected a folder with {file} \(or .*cannot be loaded"
        ):
            tasks.get(name)
    for package in ("datasets", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, package, None)
    for name in FILES:
        with pytest.raises(ArgumentError, match="no such variable, and no package"):
            tasks.get(name)


def test_a_file_of_the_hub_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STABLESSM_DATA", raising=False)
    path = tmp_path / "ETTh1.csv"
    path.write_text(task_data.hours(np.random.default_rng(0)), encoding="utf-8")
    library(monkeypatch, lambda *_, **__: str(path))
    with pytest.raises(ArgumentError, match=r"pkr7098/etth1/ETTh1\.csv: expected SHA-256 f18de3ad"):
        tasks.get("etth1")
    monkeypatch.setattr(forecasting, "_CONTENT", hashlib.sha256(path.read_bytes()).hexdigest())
    assert tasks.get("etth1").inputs.size == 7


def test_where_results_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv(sources.CACHE, str(tmp_path / "mine"))
    assert sources.cache_folder() == tmp_path / "mine"
    monkeypatch.delenv(sources.CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert sources.cache_folder() == tmp_path / "xdg" / "stablessm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert sources.cache_folder() == tmp_path / ".cache" / "stablessm"
