"""Initial weights from another run or a saved model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from stablessm import _tensors, record
from stablessm._errors import ArgumentError
from stablessm._similar import did_you_mean
from stablessm.instruments.modes import recurrent_modules
from stablessm.layers import storage
from stablessm.training import folder as run_folder
from stablessm.training.settings import signature


def warm_start(models: Sequence[nn.Module], source: str | os.PathLike[str], folder: Path) -> dict[str, Any]:
    """Load initial weights from a run or a saved model into every model; return their origin, for the record.

    Args:
        models: The models to initialize.
        source: Folder of a run, whose selected weights are loaded, or of a saved model.
        folder: Folder of the new run.
    """
    given = Path(source)
    if given.resolve().is_relative_to(folder.resolve()):
        raise ArgumentError("init_from", "the folder of another run (extend=True continues a run)", source)
    place = given if (given / storage.WEIGHTS).is_file() else given / run_folder.MODEL
    if place != given:
        run_folder.check_own(given)
    weights = place / storage.WEIGHTS
    if not weights.is_file():
        why = "" if given.is_dir() else f" (no such folder{did_you_mean(given, Path.is_dir)})"
        why += "; choose one of its replicas" if any(given.glob("replica-*")) else ""
        raise ArgumentError("init_from", f"a folder of a run or model, with {storage.WEIGHTS}", f"{source}{why}")
    shapes, seal = _tensors.header(weights)
    own = {name: tuple(tensor.shape) for name, tensor in models[0].state_dict().items()}
    wrong = sorted(name for name in own.keys() | shapes.keys() if own.get(name) != shapes.get(name))
    if wrong:
        got = f"{len(wrong)} others, {wrong[0]} {shapes.get(wrong[0], 'missing')}"
        expected = f"tensors of the model's names and shapes ({wrong[0]} {own.get(wrong[0], 'missing')})"
        raise ArgumentError("init_from", expected, f"{weights} with {got}")
    _require_same_recurrences(models[0], _modules_of(place))
    for model in models:
        storage.restore(model, weights, [])
    return {"folder": str(given), "weights": seal, **_history_of(place.parent)}


def _modules_of(place: Path) -> Mapping[str, str]:
    """Return a dict from the name of each module of a saved model to a text that describes the module; the dict is
    empty if only weights were saved.
    """
    if storage.is_saved_layer(place):
        return dict(signature(storage.load(place))["modules"])
    try:
        return dict(run_folder.settings_of(place.parent)["model"]["modules"])
    except ArgumentError:
        return {}


def _require_same_recurrences(model: nn.Module, before: Mapping[str, str]) -> None:
    """Raise an error if the saved recurrent weights belong to a recurrence of another class or with another map;
    ``before`` is the result of :func:`_modules_of` for the saved model.
    """
    now = signature(model)["modules"]
    for name, _ in recurrent_modules(model):
        was = before.get(name or "itself")
        if was is not None and was != now[name or "itself"]:
            raise ArgumentError("init_from", f"recurrent weights of {now[name or 'itself']}", f"those of {was}")


def _history_of(run: Path) -> dict[str, Any]:
    """Return the number of steps and the best score of the run that wrote the weights; an empty dict if no run wrote
    them.
    """
    read = lambda found: {name: found["results"][name] for name in ("steps", "best")}  # noqa: E731
    return record.read_side(run / "record.json", read, {}, "The number of steps of that run is not recorded")
