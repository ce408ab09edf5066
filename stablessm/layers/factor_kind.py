"""What the factors of a recurrence depend on besides its weights."""

from __future__ import annotations

from typing import NamedTuple, Self

from stablessm.reparam import Reparameterization
from stablessm.reparam._built_in import BuiltIn

NAMES = {
    "continuous": ("direct", "clip", "relu", "exp", "softplus", "best"),
    "discrete": ("direct", "clip", "relu", "exp", "softplus", "tanh", "best"),
}
"""Built-in maps that the kernels of :mod:`.triton_factors` compute."""


class Kind(NamedTuple):
    """A map and the form of a recurrence, as the kernels take them."""

    map: str
    """Name of the map."""
    options: tuple[float, float]
    """Options of the map, in order, followed by zeros."""
    continuous: bool
    """Whether the eigenvalues are discretized by a zero-order hold."""
    dt: float
    """Time step, if it is not a parameter."""
    normalize: bool
    """In discrete time, whether g = √(1 - |a|²); otherwise g is 1."""

    @classmethod
    def of(cls, map: Reparameterization, *, dt: float = 1.0, normalize: bool = False) -> Self | None:
        """Return the kind of a layer with this map, or None if the kernels do not compute the map.

        >>> from stablessm import reparam
        >>> Kind.of(reparam.get("best", b=2.0))
        Kind(map='best', options=(1.0, 2.0), continuous=True, dt=1.0, normalize=False)
        """
        if not isinstance(map, BuiltIn) or map.name not in NAMES[map.time]:
            return None
        first, second, *_ = (*vars(map).values(), 0.0, 0.0)
        return cls(map.name, (float(first), float(second)), map.time == "continuous", dt, normalize)


NO_KIND = Kind("direct", (0.0, 0.0), True, 1.0, False)
"""In the place of a kind, for kernels that are given the factors themselves."""
