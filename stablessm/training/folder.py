"""The folder of a run: whose it is, and the weights that it keeps."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stablessm import record
from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm.layers import storage
from stablessm.training.checkpoint import packed, remove

MODEL = "model"
_MARKER = "training.json"
_FOLDERS, _FILES = ("checkpoints", "tensorboard", MODEL), ("metrics.jsonl", "record.json")
_WEIGHTS = "model.safetensors"


def check_folder(folder: str | Path) -> None:
    """Refuse a folder in which something else would be overwritten."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError("folder", "a folder", f"{folder}, a file")
    taken = [name for name in (*_FOLDERS, *_FILES) if (folder / name).exists()]
    if taken and not (folder / _MARKER).is_file():
        raise ArgumentError("folder", "an empty one, or that of an earlier training", f"{folder} (with {taken[0]})")


def claim(folder: Path, settings: Mapping[str, Any], companions: Mapping[str, str], *, fresh: bool) -> None:
    """Make the folder that of a run with these settings. ``fresh``: without what an earlier one left.

    ``companions``: files to go beside the model, a tokenizer say.
    """
    if fresh:
        for name in _FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
    record.write_json(folder / _MARKER, settings)
    torn = [folder.glob(f".{Path(name).stem}-*") for name in (*_FILES, _MARKER)]  # what a kill left of record.atomic
    torn += [(folder / name).glob(".*") for name in ("checkpoints", MODEL)]  # and of safetensors
    for path in itertools.chain.from_iterable(torn):
        remove(path)
    for name, text in companions.items():
        with record.atomic(folder / MODEL / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


@checked
def settings_of(folder: str | Path) -> dict[str, Any]:
    """What a run was called with: ``config``, ``task``, ``model`` and ``origin``."""
    path = Path(folder) / _MARKER
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ArgumentError("folder", f"that of a training, with a {_MARKER}", f"{folder} ({error})") from error


def keep(model: nn.Module, folder: Path) -> None:
    """Write ``model/``, which ``stablessm.load`` reads; of a module that is not ours the weights alone."""
    from safetensors.torch import save_file

    try:
        storage.save(model, folder / MODEL)  # type: ignore[arg-type]
    except ArgumentError:
        with record.atomic(folder / MODEL / _WEIGHTS) as temporary:
            save_file(packed(model.state_dict()), temporary)


@torch.no_grad()
def restore(model: nn.Module, folder: Path) -> None:
    """Load the weights that ``keep`` wrote."""
    from safetensors.torch import load_file

    model.load_state_dict(load_file(folder / MODEL / _WEIGHTS))
