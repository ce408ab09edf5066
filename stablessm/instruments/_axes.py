"""The Matplotlib axes on which an instrument draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from stablessm._checked import Rule

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
else:  # Matplotlib is imported when something is drawn
    Axes = Annotated[Any, Rule(lambda ax: hasattr(ax, "loglog"), "Matplotlib axes")]


def axes_or_new(ax: Axes | None, width: float = 6) -> Axes:
    """Return ``ax`` or, if ``ax`` is None, the axes of a new Matplotlib figure.

    The new figure is ``width`` inches wide. No window opens.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, 4), layout="constrained").subplots() if ax is None else ax
