"""What mixes a block's steps: our layers by name, and how to add one of yours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm._typing import Time
from stablessm.layers import LRU, S4D, RealSSM, initialize
from stablessm.models.hyena import Hyena
from stablessm.reparam import get as get_map

Factory: TypeAlias = Callable[..., nn.Module]
"""``factory(d_model, d_state, map, map_options, **options)``: a layer from d_model to d_model channels."""

GATED = "hyena-"
"""Before a mixer's name: that mixer between products, :class:`~stablessm.models.Hyena`."""


def _s4d(d_model: int, d_state: int, map: str, map_options: Mapping[str, float], **options: Any) -> nn.Module:
    return S4D(d_model, d_state, map=get_map(map, time="continuous", **map_options), **options)


def _lru(d_model: int, d_state: int, map: str, map_options: Mapping[str, float], **options: Any) -> nn.Module:
    return LRU(d_model, d_state, d_model, map=get_map(map, time="discrete", **map_options), **options)


def _real(
    d_model: int,
    d_state: int,
    map: str,
    map_options: Mapping[str, float],
    *,
    time: Time = "continuous",
    timescales: Sequence[float] | None = None,
    **options: Any,
) -> nn.Module:
    """``timescales``: the shortest and the longest at the start, so that every map starts from the same eigenvalues."""
    if timescales is not None:
        with torch.device("cpu"):  # known even where a model is built without its weights
            rates = -1 / initialize.timescales(d_state, *timescales)
        options["eigenvalues"] = rates if time == "continuous" else rates.exp()
    return RealSSM(d_model, d_state, d_model, map=get_map(map, time=time, **map_options), time=time, **options)


_factories: dict[str, Factory] = {"s4d": _s4d, "lru": _lru, "real": _real}


def mixer_names() -> tuple[str, ...]:
    """Every mixer's name; each can have ``hyena-`` before it.

    >>> mixer_names()[:3]
    ('s4d', 'lru', 'real')
    """
    return tuple(_factories)


@checked
def register_mixer(name: str, factory: Factory, *, overwrite: bool = False) -> None:
    """Let models be built, saved and loaded with ``mixer=name``.

    Args:
        name: a new one.
        factory: called as ``factory(d_model, d_state, map, map_options, **mixer_options)``. It returns a module from
            (B, T, d_model) to (B, T, d_model) with a layer's contract: ``y, state = m(x, state, lengths=, reset=,
            dt=)``, ``m.step(x_t, state, dt=)`` and ``m.initial_state(batch)``.
        overwrite: whether the name may be taken.

    >>> from stablessm.layers import ContinuousRNN
    >>> register_mixer("rnn", lambda d_model, d_state, map, map_options: ContinuousRNN(d_model, d_state, d_model))
    >>> type(mixer_of("rnn", 8, 4)).__name__
    'ContinuousRNN'
    >>> del _factories["rnn"]
    """
    if (name in _factories and not overwrite) or name.startswith(GATED):
        raise ArgumentError("name", f"a new one (or overwrite=True), not starting with {GATED!r}", repr(name))
    _factories[name] = factory


def map_time(name: str, options: Mapping[str, Any]) -> Time | None:
    """Which kind of eigenvalue the maps of a mixer of ours give; None for one of yours."""
    times: dict[str, Time] = {"s4d": "continuous", "lru": "discrete", "real": options.get("time", "continuous")}
    return times.get(name.removeprefix(GATED))


def mixer_of(
    name: str,
    d_model: int,
    d_state: int,
    map: str = "best",
    map_options: Mapping[str, float] | None = None,
    **options: Any,
) -> nn.Module:
    """The mixer of that name.

    >>> mixer_of("s4d", 8, 4, "best", {"b": 1.0})
    S4D(8, 4, map=best(a=1.0, b=1.0, time='continuous'), lin, zoh)
    """
    plain = name.removeprefix(GATED)
    if plain not in _factories:
        expected = f"one of {', '.join(_factories)}, with or without {GATED!r} (models.register_mixer adds one)"
        raise ArgumentError("mixer", expected, repr(name))
    try:
        mixer = _factories[plain](d_model, d_state, map, dict(map_options or {}), **options)
    except TypeError as error:
        raise ArgumentError("mixer_options", f"options of {plain!r}", f"{options} ({error})") from error
    return Hyena(d_model, mixer) if name != plain else mixer
