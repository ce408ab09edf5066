"""The folder of a training run: its settings and the selected weights."""

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
from stablessm._similar import did_you_mean
from stablessm.layers import storage
from stablessm.training.checkpoint import remove

MODEL = "model"
MARKER = "training.json"
_FOLDERS, _FILES = ("checkpoints", "tensorboard", MODEL), ("metrics.jsonl", "record.json")


def check_folder(folder: str | Path) -> None:
    """Raise an error if training in this folder would overwrite files that did not come from a training run."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError("folder", "a folder", f"{folder}, a file")
    check_links(folder)
    taken = [name for name in (*_FOLDERS, *_FILES) if (folder / name).exists()]
    if taken and not (folder / MARKER).is_file():
        raise ArgumentError(
            "folder", "an empty folder, or the folder of an earlier training", f"{folder} (with {taken[0]})"
        )


def check_links(folder: Path) -> None:
    """Raise an error if a file of a run or of one of its replicas lies outside the folder of the run because of a
    symbolic link.

    The folder itself may be a symbolic link, because the user names it.
    """
    for run in (folder, *sorted(folder.glob("replica-*"))):
        for name in (*_FOLDERS, *_FILES, MARKER):
            for path in record.inside(run / name, folder).rglob("*"):
                record.inside(path, folder)


def check_own(folder: Path) -> None:
    """Raise an error if files of a run lie outside its folder, or if its weights are not those that the run wrote.

    Weights are compared with the record of the run, unless the run was extended after the record was written.
    """
    check_links(folder)
    names = "settings", "weights"
    read = lambda found: tuple(found["results"].get(name) for name in names)  # noqa: E731
    settings, seal = record.read_side(folder / "record.json", read, (None, None), "The weights may be of another run")
    weights, marker = folder / MODEL / storage.WEIGHTS, folder / MARKER
    if seal and weights.is_file() and marker.is_file() and record.digest_of(marker) == settings:
        expected = f"the weights that this run wrote{storage.checkpoint_hint(folder / MODEL)}"
        _require_same(weights, _tensors.header(weights, expected)[1], seal, expected)


def _require_same(weights: Path, found: str | None, seal: str | None, expected: str) -> None:
    if seal is not None and found != seal:
        raise record.DamagedFileError(str(weights), expected, f"weights of another model. {record.RESTORE}")


def claim(folder: Path, settings: Mapping[str, Any], companions: Mapping[str, str], *, fresh: bool) -> None:
    """Prepare a run folder and write the settings of the run; with ``fresh``, first remove the files of an earlier run.

    Args:
        folder: Folder of the run.
        settings: Settings of the run.
        companions: Contents of files to store with the model, by name, such as a tokenizer.
        fresh: Remove the files of an earlier run.
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
    """Read the settings of a run from its folder: the dictionaries ``config``, ``task``, ``model`` and ``origin``.

    If a file of the run lies outside the folder because of a symbolic link, or if the weights in the folder are not
    the weights of the run, an error is raised.
    """
    path = Path(folder) / MARKER
    check_own(path.parent)
    if not path.is_file():
        raise ArgumentError("folder", f"the folder of a training run, with a {MARKER}", _why_not(path.parent))
    expected = "the settings of a training run, which the same stablessm train command writes again"
    found = record.read_json(path, expected)
    with record.reading(path, expected):
        return {**found, **{name: {**found[name]} for name in ("config", "task", "model", "origin")}}


def _why_not(folder: Path) -> str:
    """Return the name of a folder that is not the folder of a training run, with the reason and a hint."""
    if not folder.is_dir():
        what = "a file" if folder.is_file() else f"no such folder{did_you_mean(folder, Path.is_dir)}"
        return f"{folder} ({what})"
    inner = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{MARKER}"))[:5])
    return f"{folder} (it has no {MARKER}{f'; the training runs in this folder are {inner}' if inner else ''})"


def keep(model: nn.Module, folder: Path) -> str | None:
    """Write the weights of a model to ``model/`` in the run folder, and return their SHA-256.

    ``stablessm.load`` reads this folder. For a module that is not from this package, only the weights are written.
    """
    weights = folder / MODEL / storage.WEIGHTS
    try:
        storage.save(model, folder / MODEL)  # type: ignore[arg-type]
    except ArgumentError:
        return _tensors.save(weights, _tensors.packed(model.state_dict()))
    return _tensors.header(weights)[1]


def check_kept(folder: Path, kept: str | None) -> None:
    """Raise an error if the weights that :func:`keep` wrote are damaged, or if their SHA-256 is not ``kept``."""
    weights = folder / MODEL / storage.WEIGHTS
    with _selecting():
        _require_same(weights, _tensors.load(weights)[2], kept, "the weights that this run wrote")


def restore(model: nn.Module, folder: Path, kept: str | None) -> None:
    """Load the weights that :func:`keep` wrote into a model; ``kept`` is their expected SHA-256, or None if unknown."""
    with _selecting():
        storage.restore(model, folder / MODEL / storage.WEIGHTS, [kept] if kept else [])


@contextmanager
def _selecting() -> Iterator[None]:
    try:
        yield
    except (OSError, ArgumentError) as error:
        expected = "undamaged weights with the best score, or 'last-good' for the weights of the last checkpoint"
        raise ArgumentError("resume", expected, error) from error
