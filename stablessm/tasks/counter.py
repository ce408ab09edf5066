"""Counter-based random numbers: a number depends only on its key and position, not on the device or batch size."""

from __future__ import annotations

import torch
from torch import Tensor

_STEP, _FIRST, _SECOND = (
    value - 2**64 if value >= 2**63 else value for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)  # of SplitMix64 (Steele, Lea and Flood 2014), as signed numbers


def keys(parts: tuple[int, ...], numbers: Tensor) -> Tensor:
    """Return one random key for each entry of ``numbers`` (int64, any shape). The integers ``parts``, such as a seed
    and a split, select the random stream: different ``parts`` give different keys.

    >>> a, b = keys((0, 1), torch.arange(3)), keys((1, 0), torch.arange(3))
    >>> bool((a != b).all())
    True
    """
    key = torch.zeros((), dtype=torch.int64, device=numbers.device)
    for part in parts:
        key = _mixed(key * _STEP + part + 1)
    return _mixed(key + (numbers + 1) * _STEP)


def integers(key: Tensor, stream: int, count: int, below: int | Tensor) -> Tensor:
    """Return random integers from 0 to ``below`` - 1, of shape (len(key), count).

    Different values of ``stream`` give independent numbers.

    >>> integers(keys((0,), torch.arange(2)), 0, 1000, 6).unique().tolist()
    [0, 1, 2, 3, 4, 5]
    """
    high = _shifted(_bits(key, stream, count), 32)
    return _shifted(high * below, 32)


def normals(key: Tensor, stream: int, count: int) -> Tensor:
    """Return random numbers with the standard normal distribution, (len(key), count), in float64.

    Different values of ``stream`` give independent numbers.

    >>> x = normals(keys((0,), torch.arange(10)), 0, 10_000)
    >>> bool(x.mean().abs() < 0.02), bool((x.var() - 1).abs() < 0.02)
    (True, True)
    """
    uniform = (_shifted(_bits(key, stream, count), 11).double() + 0.5) * 2.0**-53
    return torch.special.ndtri(uniform)


def permutations(key: Tensor, stream: int, count: int) -> Tensor:
    """Return one random permutation of 0 … count - 1 per key, (len(key), count).

    Different values of ``stream`` give independent permutations.

    >>> permutations(keys((0,), torch.arange(1)), 0, 5)[0].sort().values.tolist()
    [0, 1, 2, 3, 4]
    """
    return _bits(key, stream, count).argsort(1)


def _bits(key: Tensor, stream: int, count: int) -> Tensor:
    places = torch.arange(1, count + 1, device=key.device) * _STEP
    return _mixed(_mixed(key + (stream + 1))[:, None] + places)


def _mixed(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Return z shifted right by ``bits`` with zeros from the left (a logical shift, which int64 lacks)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
