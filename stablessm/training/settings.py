"""Compares the settings of a run with stored settings, and describes tasks and models for this comparison."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import nn

from stablessm import _renamed, record, tasks
from stablessm._errors import ArgumentError


def require_same(
    argument: str, expected: str, before: Mapping[str, Any], now: Mapping[str, Any], remedy: str = ""
) -> None:
    """Raise an error if settings have changed; the error names every changed setting.

    ``argument``, ``expected`` and ``remedy`` are texts for the error message: the name of the argument at fault, what
    it should have been, and how to correct it.

    >>> require_same("resume", "the settings it began with", {"lr": 0.1, "data": {"n": 3}}, {"lr": 0.1, "data": {}})
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: resume: expected the settings it began with (data.n = 3), got data.n = null
    """
    differing = differences(before, now)
    if differing:
        was, is_ = (", ".join(f"{name} = {_short(pair[i])}" for name, pair in differing.items()) for i in range(2))
        raise ArgumentError(argument, f"{expected} ({was}){remedy}", is_)


def require_resumable(
    before: Mapping[str, Any], now: Mapping[str, Any], *, changeable: Collection[str] = (), extend: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Return the old and new value of each changed setting; raise an error for settings that must not change.

    Args:
        before: Settings with which the run began.
        now: New settings.
        changeable: Dotted names of the settings that may change if ``extend``.
        extend: Whether the run is extended; otherwise no setting may change.
    """
    changed = differences(before, now)
    allowed = changed.keys() <= set(changeable)
    if not (extend and allowed):
        require_same("resume", "the settings the run began with", before, now, " or extend=True" if allowed else "")
    return changed


def task_options(origin: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the name and the options of the task of a ``stablessm train`` run from its stored origin."""
    return str(origin["task"]), {key: str(text) for key, text in origin["options"].items()}


def task_of(settings: Mapping[str, Any]) -> tasks.Task:
    """Recreate the task of a ``stablessm train`` run from its stored settings; raise an error if its data have changed.

    Args:
        settings: The result of ``settings_of``.
    """
    origin = settings["origin"]
    if "task" not in origin:
        raise ArgumentError("folder", "a folder that stablessm train wrote", "the folder of a training run from Python")
    name, options = task_options(origin)
    with _renamed.reading_a_file():
        task = tasks.get(name, **tasks.read_options(name, options))
    before, now = settings["task"], task.describe()
    # Settings that did not exist when the run began have their present defaults.
    known = {**now, **before, "options": {**now["options"], **before["options"]}}
    if "file" in options and known.get("content") != now.get("content"):
        was, is_ = (f"content {str(each.get('content'))[:12]}…" for each in (known, now))
        changed = f"{options['file']} has changed since training"
        raise ArgumentError(changed, f"the data it was trained on ({was})", is_)
    require_same("task", "the data it was trained on", known, now)
    return task if "target_scale" not in {*now} - {*before} else task.as_trained(before)


def signature(model: nn.Module) -> dict[str, Any]:
    """Return the properties of a model that a checkpoint must match: class, options, and the shape of every tensor."""
    config = getattr(model, "config", None)
    has_options = dataclasses.is_dataclass(config) and not isinstance(config, type)
    options = dataclasses.asdict(config) if has_options else {}  # type: ignore[arg-type]
    modules = {name or "itself": f"{type(m).__name__}({m.extra_repr()})" for name, m in model.named_modules()}
    tensors = {name: f"{tuple(t.shape)} {t.dtype}".replace("torch.", "") for name, t in model.state_dict().items()}
    count = sum(parameter.numel() for parameter in model.parameters())
    return {
        "class": type(model).__name__, "parameters": count, "options": options, "modules": modules, "tensors": tensors
    }  # fmt: skip


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the old and new value of every setting that has changed, by dotted name.

    >>> differences({"lr": 0.1, "data": {"n": 3}}, {"lr": 0.1, "data": {"n": 4}})
    {'data.n': (3, 4)}
    """
    return {name: (old, new) for name, old, new in _differences(before, record.plain(now))}


def _differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        before = _renamed.as_now(before, now)
        for key in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif before != now:
        yield name, before, now


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
