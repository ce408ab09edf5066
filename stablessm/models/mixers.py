"""The table of mixers (the layers inside blocks) by name, to which users can add their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

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


def _rates(count: int, shortest: float, longest: float) -> Tensor:
    """Return eigenvalues (count,) in continuous time with the given time scales, on the CPU even if the model is built
    on the meta device.
    """
    with torch.device("cpu"):
        return -1 / initialize.timescales(count, shortest, longest)


@final
@dataclass(frozen=True)
class _Mixer:
    """The factory of a mixer that is a layer of this library."""

    layer: Any
    sizes: int
    """How many of the sizes d_model, d_state, d_model the constructor of the layer takes."""
    start: Callable[..., dict[str, Any]] | None = None
    """Function that returns options of the layer for initial time scales: called as ``start(d_model, d_state, time,
    shortest, longest)``. Without it, the layer has an option ``timescales`` itself.
    """

    def time(self, options: Mapping[str, Any]) -> Time:
        """Return the kind of time of the maps that the layer uses with these options."""
        if self.layer is RealSSM:
            return options.get("time", "continuous")
        return "discrete" if self.layer is LRU else "continuous"

    def __call__(
        self, d_model: int, d_state: int, map: str, map_options: Mapping[str, float], **options: Any
    ) -> nn.Module:
        time = self.time(options)
        if self.start is not None and (scales := options.pop("timescales", None)) is not None:
            options = {**self.start(d_model, d_state, time, *scales), **options}
        sizes = (d_model, d_state, d_model)[: self.sizes]
        mixer: nn.Module = self.layer(*sizes, map=get_map(map, time=time, **map_options), **options)
        return mixer


def _real_start(d_model: int, d_state: int, time: Time, shortest: float, longest: float) -> dict[str, Any]:
    rates = _rates(d_state, shortest, longest)
    return {"eigenvalues": rates if time == "continuous" else rates.exp()}


_MIXERS = {
    # a mode of S4D decays by e^(-dt/2) per step
    "s4d": _Mixer(S4D, 2, lambda d, n, time, low, high: {"dt_min": 2 / high, "dt_max": 2 / low}),
    "lru": _Mixer(LRU, 3, lambda d, n, time, low, high: {"r_min": math.exp(-1 / low), "r_max": math.exp(-1 / high)}),
    "real": _Mixer(RealSSM, 3, _real_start),
    "mingru": _Mixer(MinGRU, 3),
    "minlstm": _Mixer(MinLSTM, 3),
    # with an input of zero, the decay per step is exp(SHARPNESS / 2 λ)
    "rglru": _Mixer(RGLRU, 1, lambda d, n, time, low, high: {"eigenvalues": 2 / SHARPNESS * _rates(d, low, high)}),
    "hgrn": _Mixer(HGRN, 1, lambda d, n, time, low, high: {"eigenvalues": _rates(d, low, high)}),
    # the fastest of the states decays by e^(-1) in 1 / dt_max steps, the slowest in N / dt_min steps
    "selective": _Mixer(SelectiveSSM, 2, lambda d, n, time, low, high: {"dt_min": 1 / high, "dt_max": 1 / (n * low)}),
}
"""The mixers of this library. Each takes ``timescales``: the shortest and longest initial time scale, in steps."""
_factories: dict[str, Factory] = dict(_MIXERS)
"""Functions that build a mixer, by name: the mixers of this library and mixers that users registered."""
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
    known = _MIXERS.get(name.removeprefix(GATED))
    return None if known is None else known.time(options)


def current_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a mixer, in which old names of options are replaced by present names."""
    known = _MIXERS.get(name.removeprefix(GATED))
    return _renamed.current_options(object if known is None else known.layer, options, "mixer_options")


def within(name: str, options: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the options of a mixer. If the options do not set initial time scales, time scales of at most ``length``
    steps are added.

    Training on windows of ``length`` steps does not constrain modes with longer time scales. With such modes, a model
    whose state is carried beyond a window can be worse than chance.

    >>> within("hyena-real", {"time": "discrete"}, 128)
    {'timescales': [2.0, 128.0], 'time': 'discrete'}
    """
    if name.removeprefix(GATED) not in _MIXERS or options.keys() & _START:
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
