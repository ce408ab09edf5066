"""Declares the stages of an experiment. All stages of one kind are computed by the same function, each with a key of
its own. A format string turns the key into the name of the stage.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, final

from stablessm.experiments.frame.run import Run
from stablessm.experiments.frame.stages import Arrays, K, Stages

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
Name: TypeAlias = str | Callable[..., str]
"""Name of a stage: a format string of its key, such as ``"errors-{map}-{width}"``, or a function of the key."""
Over: TypeAlias = Callable[[Any], Iterable[Any]]
"""Function from a config to all keys: values, or tuples of values."""


@final
class Stage(Generic[P, T]):
    """All stages of one kind. One function computes them; each stage has a key, such as a map and a width. Calling an
    instance with a key reads the result of the stage with this key. ``name`` and ``over`` are as in :func:`stage`.

    Args:
        compute: ``compute(config, run, *key)`` returns the result of a stage, which is then stored.
        write: ``write(run, name, compute)`` computes and stores a stage unless it is complete; for example
            :meth:`Run.stage`.
        read: ``read(stages, name)`` returns the stored result of a stage.
    """

    def __init__(
        self,
        compute: Callable[Concatenate[Any, Any, P], R],
        name: Name,
        over: Over | None,
        write: Callable[[Run, str, Callable[[], R]], object],
        read: Callable[[Stages, str], T],
    ) -> None:
        self._compute, self._name, self._over, self._write, self._read = compute, name, over, write, read
        self._parameters = [*inspect.signature(compute).parameters][2:]
        update_wrapper(self, compute)

    def __call__(self, stages: Stages, *key: P.args, **named: P.kwargs) -> T:
        """Return the stored result of the stage with this key."""
        return self._read(stages, self.name(*key))

    def name(self, *key: Any) -> str:
        """Return the name of the stage with this key. The file of the stage has the same name."""
        if callable(self._name):
            return self._name(*key)
        return self._name.format(**dict(zip(self._parameters, key, strict=True)))

    def compute(self, config: Any, run: Run, *key: P.args, **named: P.kwargs) -> None:
        """Compute the stage with this key and write its result, unless the stage is complete."""
        self._write(run, self.name(*key), lambda: self._compute(config, run, *key, **named))

    def keys(self, config: Any) -> list[Any]:
        """Return the keys of all stages of this kind. If there is a single stage, its key is ``()``."""
        return [()] if self._over is None else list(self._over(config))

    def all(self, config: Any, stages: Stages) -> dict[Any, T]:
        """Return the results of all stages of this kind, as a dict from the key of a stage to its result."""
        return {key: self._read(stages, self.name(*_tuple(key))) for key in self.keys(config)}

    def job(self, config: Any, *key: P.args, **named: P.kwargs) -> Callable[[Run], object]:
        """Return a job that computes the stage with this key."""
        return lambda run: self.compute(config, run, *key, **named)

    def jobs(self, config: Any) -> dict[str, Callable[[Run], object]]:
        """Return a dict from the name of each stage of this kind to a job that computes it."""
        job: Callable[..., Callable[[Run], object]] = self.job
        return {self.name(*key): job(config, *key) for key in map(_tuple, self.keys(config))}


def stage(
    name: Name, over: Over | None = None
) -> Callable[[Callable[Concatenate[Any, Any, P], Mapping[str, Any]]], Stage[P, Arrays]]:
    """Return a decorator that declares stages whose results are arrays. The decorated function takes the config, the
    run and the key of a stage, and returns a dict of arrays.

    ``name`` is the name of a stage: a format string whose fields are the arguments that make up the key, or a function
    of the key. ``over`` returns the keys of all stages for a config (default: there is one stage, without a key).

    >>> import tempfile
    >>> from pathlib import Path
    >>> @stage("square-{n}", over=lambda config: range(config))
    ... def squares(config: int, run: Run, n: int) -> dict[str, int]:
    ...     return {"value": n**2}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Run(Path(folder), {}, progress=False)
    ...     computing(squares)(4, run)
    ...     run.stages(), int(squares(run, 3)["value"])
    (['square-0', 'square-1', 'square-2', 'square-3'], 9)
    """
    return lambda compute: Stage(compute, name, over, Run.stage, arrays)


def arrays(stages: Stages, name: str) -> Arrays:
    """Return the arrays of the stage with this name."""
    return stages[name]


def kept(
    kind: type[K], name: Name, over: Over | None = None
) -> Callable[[Callable[Concatenate[Any, Any, P], K]], Stage[P, K]]:
    """Return a decorator that declares stages, each of which has one object of the class ``kind`` as its result. The
    class has methods ``save`` and ``load``, as a memory curve has. The other arguments are as in :func:`stage`.
    """

    def write(run: Run, name: str, compute: Callable[[], K]) -> object:
        return run.keep(name, kind, compute)

    def read(stages: Stages, name: str) -> K:
        return stages.load(name, kind)

    return lambda compute: Stage(compute, name, over, write, read)


def computing(*declared: Stage[Any, Any]) -> Callable[[Any, Run], None]:
    """Return the function ``run(config, run)`` of an experiment that consists of these stages. The function computes
    the stages in the given order.
    """

    def compute(config: Any, run: Run) -> None:
        for each in declared:
            for job in each.jobs(config).values():
                job(run)

    return compute


def _tuple(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)
