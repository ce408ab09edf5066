"""The Matplotlib axes on which an instrument draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def on(ax: Axes | None, width: float = 6) -> Axes:
    """Return ``ax`` or, if ``ax`` is None, the axes of a new Matplotlib figure.

    The new figure is ``width`` inches wide. No window opens.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, 4), layout="constrained").subplots() if ax is None else ax
