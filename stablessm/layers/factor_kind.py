"""The map and the options with which the factors a and g of h[t] = a h[t-1] + g u[t] are computed from the weights."""

from __future__ import annotations

from typing import Literal, NamedTuple, Self, TypeAlias

from stablessm.reparam import Reparameterization
from stablessm.reparam._built_in import BuiltIn

NAMES = {
    "continuous": ("direct", "clip", "relu", "exp", "softplus", "best"),
    "discrete": ("direct", "clip", "relu", "exp", "softplus", "tanh", "best"),
}
"""Built-in maps that the kernels of :mod:`.triton_factors` compute."""

Gain: TypeAlias = Literal["one", "variance", "average"]
"""The gain g in discrete time: 1, √(1 - |a|²) or 1 - a. In continuous time, ``average`` multiplies the gain of the
zero-order hold by -λ, which gives 1 - a."""


class Kind(NamedTuple):
    """The map and the options of a recurrence, in the form in which GPU kernels receive them."""

    map: str
    """Name of the map."""
    options: tuple[float, float]
    """Options of the map, in order, followed by zeros."""
    continuous: bool
    """Whether the eigenvalues are discretized by a zero-order hold."""
    dt: float
    """Time step, if it is not a parameter."""
    gain: Gain

    @classmethod
    def of(cls, map: Reparameterization, *, dt: float = 1.0, gain: Gain = "one") -> Self | None:
        """Return the :class:`Kind` of a recurrence with this map and these options, or None if the GPU kernels do not
        support the map.

        >>> from stablessm import reparam
        >>> Kind.of(reparam.get("best", b=2.0))
        Kind(map='best', options=(1.0, 2.0), continuous=True, dt=1.0, gain='one')
        """
        if not isinstance(map, BuiltIn) or map.name not in NAMES[map.time]:
            return None
        first, second, *_ = (*vars(map).values(), 0.0, 0.0)
        return cls(map.name, (float(first), float(second)), map.time == "continuous", dt, gain)


NO_KIND = Kind("direct", (0.0, 0.0), True, 1.0, "one")
"""Placeholder for kernels that receive the factors themselves, which then ignore the kind."""
