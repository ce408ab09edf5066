"""The table of matrix maps, which map a trainable square matrix to a stable recurrent matrix."""

from __future__ import annotations

from stablessm._errors import ArgumentError, unknown_name
from stablessm.reparam._matrix_maps import Direct, MatrixMap, NegExp, NegSoftplus, Project, SkewMinusPSD
from stablessm.reparam.registry import build

__all__ = ["MatrixMap", "get", "names"]

_MAPS: dict[str, type[MatrixMap]] = {cls.name: cls for cls in (Direct, NegExp, NegSoftplus, Project, SkewMinusPSD)}


def get(name: str | MatrixMap, **options: float) -> MatrixMap:
    """Return the matrix map with a given name; a map object is returned unchanged.

    >>> get("project", margin=0.1)
    Project(margin=0.1)
    """
    if isinstance(name, MatrixMap):
        if options:
            raise ArgumentError(next(iter(options)), "no options beside a map already built", name)
        return name
    if not isinstance(name, str) or name not in _MAPS:
        raise unknown_name("map", _MAPS, name)
    return build(_MAPS[name], f"matrix map {name!r}", options)


def names() -> tuple[str, ...]:
    """Return the names of all matrix maps.

    >>> names()
    ('direct', 'neg_exp', 'neg_softplus', 'project', 'skew_minus_psd')
    """
    return tuple(_MAPS)
