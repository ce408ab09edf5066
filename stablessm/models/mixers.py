"""The table of mixers (the layers inside blocks) by name, to which users can add their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from stablessm import _renamed
from stablessm._checked import checked
from stablessm._errors import ArgumentError, quoted, unknown_name
from stablessm._typing import Time
from stablessm.layers import HGRN, LRU, RGLRU, S4D, MinGRU, MinLSTM, RealSSM, SelectiveSSM, initialize
from stablessm.layers.rg_lru import SHARPNESS
from stablessm.models.hyena import Hyena
from stablessm.reparam import get as get_map

Factory: TypeAlias = Callable[..., nn.Module]
"""Function ``factory(d_model, d_state, map, map_options, **options)`` that returns a layer for d_model channels."""

SHORTEST = 2.0
"""Shortest initial time scale, in steps."""

GATED = "hyena-"
"""Prefix of a mixer's name that puts the mixer into a :class:`~stablessm.models.Hyena`."""


def _started(options: dict[str, Any], start: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Replace the option ``timescales`` of a mixer, if given, by the options that ``start(shortest,
    longest)`` returns.
    """
    scales = options.pop("timescales", None)
    return options if scales is None else {**start(*scales), **options}


def _s4d(d_model: int, d_state: int, map: str, map_options: Mapping[str, float], **options: Any) -> nn.Module:
    # a mode decays by e^(-dt/2) per step
    options = _started(options, lambda shortest, longest: {"dt_min": 2 / longest, "dt_max": 2 / shortest})
    return S4D(d_model, d_state, map=get_map(map, time="continuous", **map_options), **options)


def _lru(d_model: int, d_state: int, map: str, map_options: Mapping[str, float], **options: Any) -> nn.Module:
    options = _started(options, lambda short, long: {"r_min": math.exp(-1 / short), "r_max": math.exp(-1 / long)})
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
    if timescales is not None:
        with torch.device("cpu"):  # on the CPU even if the model is built on the meta device
            rates = -1 / initialize.timescales(d_state, *timescales)
        options["eigenvalues"] = rates if time == "continuous" else rates.exp()
    return RealSSM(d_model, d_state, d_model, map=get_map(map, time=time, **map_options), time=time, **options)


def _minimal(layer: type[nn.Module]) -> Factory:
    def factory(d_model: int, d_state: int, map: str, map_options: Mapping[str, float], **options: Any) -> nn.Module:
        return layer(d_model, d_state, d_model, map=get_map(map, time="continuous", **map_options), **options)

    return factory


def _gated(layer: type[nn.Module], factor: float) -> Factory:
    """Return a function that builds a gated layer with ``d_model`` states. If the input of the layer is zero, its decay
    per step is exp(``factor`` λ).
    """

    def factory(
        d_model: int,
        d_state: int,
        map: str,
        map_options: Mapping[str, float],
        *,
        timescales: Sequence[float] | None = None,
        **options: Any,
    ) -> nn.Module:
        if timescales is not None:
            with torch.device("cpu"):
                options["eigenvalues"] = -1 / (factor * initialize.timescales(d_model, *timescales))
        return layer(d_model, map=get_map(map, time="continuous", **map_options), **options)

    return factory


def _selective(d_model: int, d_state: int, map: str, map_options: Mapping[str, float], **options: Any) -> nn.Module:
    # the fastest of the states decays by e^(-1) in 1 / dt_max steps, the slowest in N / dt_min steps
    options = _started(options, lambda short, long: {"dt_min": 1 / long, "dt_max": 1 / (d_state * short)})
    return SelectiveSSM(d_model, d_state, map=get_map(map, time="continuous", **map_options), **options)


_GATED = {"mingru": MinGRU, "minlstm": MinLSTM, "rglru": RGLRU, "hgrn": HGRN, "selective": SelectiveSSM}
_factories: dict[str, Factory] = {
    "s4d": _s4d, "lru": _lru, "real": _real, "mingru": _minimal(MinGRU), "minlstm": _minimal(MinLSTM),
    "rglru": _gated(RGLRU, SHARPNESS / 2), "hgrn": _gated(HGRN, 1.0), "selective": _selective,
}  # fmt: skip
"""Functions that build a mixer. Each takes ``timescales``: the shortest and longest initial time scale, in steps."""
_START = {"timescales", "eigenvalues", "dt_min", "dt_max", "r_min", "r_max"}


def mixer_names() -> tuple[str, ...]:
    """Return the names of all mixers; each name can also be used with the prefix ``hyena-``.

    >>> mixer_names()[:3]
    ('s4d', 'lru', 'real')
    """
    return tuple(_factories)


@checked
def register_mixer(name: str, factory: Factory, *, overwrite: bool = False) -> None:
    """Add a mixer of your own to the table, so that models can be built, saved and loaded with ``mixer=name``.

    Args:
        name: a new name.
        factory: called as ``factory(d_model, d_state, map, map_options, **mixer_options)``. The factory returns a
            module m from (B, T, d_model) to (B, T, d_model) that is called like a layer: ``y, state = m(x, state,
            lengths=, reset=, dt=)``, ``m.step(x_t, state, dt=)`` and ``m.initial_state(batch)``.
        overwrite: whether an existing mixer of this name may be replaced.

    >>> from stablessm.layers import ContinuousRNN
    >>> register_mixer("rnn", lambda d_model, d_state, map, map_options: ContinuousRNN(d_model, d_state, d_model))
    >>> type(mixer_of("rnn", 8, 4)).__name__
    'ContinuousRNN'
    >>> del _factories["rnn"]
    """
    if (name in _factories and not overwrite) or name.startswith(GATED):
        raise ArgumentError("name", f"a new name (or overwrite=True), not starting with {GATED!r}", quoted(name))
    _factories[name] = factory


def map_time(name: str, options: Mapping[str, Any]) -> Time | None:
    """Return the kind of time of the maps that a mixer with these options uses, "continuous" or "discrete"; None for a
    mixer that a user registered.
    """
    times: dict[str, Time] = dict.fromkeys(("s4d", *_GATED), "continuous")
    times |= {"lru": "discrete", "real": options.get("time", "continuous")}
    return times.get(name.removeprefix(GATED))


def current_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a mixer, in which old names of options are replaced by present names."""
    layer: Any = {"s4d": S4D, "lru": LRU, "real": RealSSM, **_GATED}.get(name.removeprefix(GATED), object)
    return _renamed.current_options(layer, options, "mixer_options")


def within(name: str, options: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the options of a mixer. If the options do not set initial time scales, time scales of at most ``length``
    steps are added.

    Training on windows of ``length`` steps does not constrain modes with longer time scales. With such modes, a model
    whose state is carried beyond a window can be worse than chance.

    >>> within("hyena-real", {"time": "discrete"}, 128)
    {'timescales': [2.0, 128.0], 'time': 'discrete'}
    """
    if name.removeprefix(GATED) not in ("s4d", "lru", "real", *_GATED) or options.keys() & _START:
        return dict(options)
    return {"timescales": [SHORTEST, float(max(length, 2 * SHORTEST))], **options}


def mixer_of(
    name: str,
    d_model: int,
    d_state: int,
    map: str = "best",
    map_options: Mapping[str, float] | None = None,
    **options: Any,
) -> nn.Module:
    """Build the mixer with a given name from its size and options.

    >>> mixer_of("s4d", 8, 4, "best", {"b": 1.0})
    S4D(8, 4, map=best(a=1.0, b=1.0, time='continuous'), lin, zoh)
    """
    plain = name.removeprefix(GATED) if isinstance(name, str) else None
    if plain not in _factories:
        expected = f"one of {', '.join(_factories)}, with or without {GATED!r} (models.register_mixer adds one)"
        raise unknown_name("mixer", [*_factories, *(GATED + known for known in _factories)], name, expected)
    try:
        mixer = _factories[plain](d_model, d_state, map, dict(map_options or {}), **options)
    except TypeError as error:
        raise ArgumentError("mixer_options", f"options of {plain!r}", f"{options} ({error})") from error
    return Hyena(d_model, mixer) if name != plain else mixer
