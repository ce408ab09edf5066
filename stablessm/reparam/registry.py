"""The table of scalar maps by name, to which users can add their own maps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar, get_args

from stablessm._checked import checked
from stablessm._errors import ArgumentError, quoted, unknown_name
from stablessm._typing import Time
from stablessm.reparam import _continuous, _discrete
from stablessm.reparam.base import Reparameterization

_T = TypeVar("_T")

_factories: dict[tuple[Time, str], Callable[..., Reparameterization]] = {
    (cls.time, cls.name): cls for cls in (*_continuous.MAPS, *_discrete.MAPS)
}


def get(name: str | Reparameterization, time: Time = "continuous", **options: float) -> Reparameterization:
    """Return the scalar map with a given name; a map object for the same kind of time is returned unchanged.

    >>> get("best", time="discrete", b=2.0)
    best(a=1.0, b=2.0, time='discrete')
    >>> get("exp", a=1.0)
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: a: expected no options for map 'exp' (continuous), got 1.0
    """
    known = names(time)
    if isinstance(name, Reparameterization):
        if name.time != time:
            raise ArgumentError("map", f"a {time}-time map", name)
        if options:
            raise ArgumentError(next(iter(options)), "no options beside a map already built", name)
        return name
    if not isinstance(name, str) or name not in known:
        other: Time = "discrete" if time == "continuous" else "continuous"
        hint = f", or time={other!r}" if str(name) in names(other) else ""
        raise unknown_name("map", known, name, f"one of {', '.join(known)} ({time}){hint}")
    built = build(_factories[time, name], f"map {name!r} ({time})", options)
    if not isinstance(built, Reparameterization) or built.time != time:
        raise ArgumentError("map", f"a {time}-time map from the factory registered as {name!r}", built)
    return built


def names(time: Time = "continuous") -> tuple[str, ...]:
    """Return the names of all scalar maps in continuous or discrete time.

    >>> names("discrete")
    ('direct', 'clip', 'relu', 'exp', 'softplus', 'tanh', 'best')
    """
    if not isinstance(time, str) or time not in get_args(Time):
        raise ArgumentError("time", " or ".join(map(repr, get_args(Time))), quoted(time))
    return tuple(name for kind, name in _factories if kind == time)


@checked
def register(name: str, factory: Callable[..., Reparameterization], *, time: Time, overwrite: bool = False) -> None:
    """Add a map to the table, so that ``get(name, time, **options)`` returns ``factory(**options)``.

    With ``overwrite``, the map may replace an existing map of this name.
    """
    if not isinstance(name, str) or (name in names(time) and not overwrite):
        raise ArgumentError("name", f"a new {time} name (or overwrite=True)", quoted(name))
    if not callable(factory) or getattr(factory, "time", time) != time:
        raise ArgumentError("factory", f"a class or function that returns a {time}-time map", quoted(factory))
    _factories[time, name] = factory


def build(factory: Callable[..., _T], what: str, options: Mapping[str, float]) -> _T:
    """Return ``factory(**options)``; raise an error that names any option that the factory does not accept.

    ``what`` describes the factory in the error message, such as "map 'exp' (continuous)".
    """
    parameters = inspect.signature(factory).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for option in options.keys() - parameters.keys():
            allowed = f"one of the options {', '.join(parameters)}" if parameters else "no options"
            raise ArgumentError(option, f"{allowed} for {what}", options[option])
    return factory(**options)
