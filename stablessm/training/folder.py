"""The folder of a run: its settings, and the weights that it keeps."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from stablessm import _tensors, record
from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm.layers import storage
from stablessm.training.checkpoint import remove

MODEL = "model"
MARKER = "training.json"
_FOLDERS, _FILES = ("checkpoints", "tensorboard", MODEL), ("metrics.jsonl", "record.json")


def check_folder(folder: str | Path) -> None:
    """Refuse a folder in which something else would be overwritten."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError("folder", "a folder", f"{folder}, a file")
    for name in (*_FOLDERS, *_FILES, MARKER):
        record.inside(folder / name, folder)
    taken = [name for name in (*_FOLDERS, *_FILES) if (folder / name).exists()]
    if taken and not (folder / MARKER).is_file():
        raise ArgumentError("folder", "an empty one, or that of an earlier training", f"{folder} (with {taken[0]})")


def claim(folder: Path, settings: Mapping[str, Any], companions: Mapping[str, str], *, fresh: bool) -> None:
    """Claim the folder for a run with these settings. ``fresh``: remove the files of an earlier run.

    ``companions``: files to store with the model, such as a tokenizer.
    """
    if fresh:
        for name in _FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
    record.write_json(folder / MARKER, settings)
    torn = [folder.glob(f".{Path(name).stem}-*") for name in (*_FILES, MARKER)]  # temporary files that a kill left
    torn += [(folder / name).glob(".*") for name in ("checkpoints", MODEL)]
    for path in itertools.chain.from_iterable(torn):
        remove(path)
    for name, text in companions.items():
        with record.atomic(folder / MODEL / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


@checked
def settings_of(folder: str | Path) -> dict[str, Any]:
    """Return the settings of a run: ``config``, ``task``, ``model`` and ``origin``, each by name."""
    path = Path(folder) / MARKER
    if not path.is_file():
        raise ArgumentError("folder", f"that of a training, with a {MARKER}", str(folder))
    expected = "the settings of a training, which the same stablessm train command writes again"
    found = record.read_json(path, expected)
    with record.reading(path, expected):
        return {**found, **{name: {**found[name]} for name in ("config", "task", "model", "origin")}}


def keep(model: nn.Module, folder: Path) -> str | None:
    """Write ``model/`` and return the SHA-256 of the weights.

    ``stablessm.load`` reads the folder. Of a module that is not from this package, only the weights are written.
    """
    weights = folder / MODEL / storage.WEIGHTS
    try:
        storage.save(model, folder / MODEL)  # type: ignore[arg-type]
    except ArgumentError:
        return _tensors.save(weights, _tensors.packed(model.state_dict()))
    return _tensors.header(weights)[1]


def check_kept(folder: Path) -> None:
    """Raise an error if the weights that ``keep`` wrote are damaged."""
    with _selecting():
        _tensors.load(folder / MODEL / storage.WEIGHTS)


def restore(model: nn.Module, folder: Path, kept: str | None) -> None:
    """Load the weights that ``keep`` wrote; ``kept`` is their SHA-256, or None if it is not known."""
    with _selecting():
        storage.restore(model, folder / MODEL / storage.WEIGHTS, [kept] if kept else [])


@contextmanager
def _selecting() -> Iterator[None]:
    try:
        yield
    except (OSError, ArgumentError) as error:
        expected = "whole weights with the best score, or 'last-good' for the weights of the last checkpoint"
        raise ArgumentError("resume", expected, error) from error
