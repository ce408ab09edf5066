"""Progress bars."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

SILENT, SILENT_IN_LOGS = 2.0, 8.0
"""Number of seconds before progress is shown, in a terminal and in a log."""
quiet = False
"""True while a command runs with ``--quiet``."""


def bar(show: bool, **options: Any) -> Any:
    """Return a progress bar of tqdm, which is shown only in a terminal, and only if ``show`` is True."""
    from tqdm import tqdm

    return tqdm(disable=None if show else True, **options)


@contextlib.contextmanager
def working(name: str, show: bool = True) -> Iterator[Callable[[], object]]:
    """Yield a function to call after every step of long work; in a terminal, a progress bar counts the calls.

    If the output is not a terminal, a line is printed from time to time. With ``show=False``, nothing is shown.
    """
    from tqdm import tqdm

    terminal = sys.stderr is not None and sys.stderr.isatty()
    delay, interval = (SILENT, 0.1) if terminal else (SILENT_IN_LOGS, SILENT_IN_LOGS)
    hidden = quiet or not show or sys.stderr is None
    with tqdm(desc=name, unit=" steps", leave=False, disable=hidden, delay=delay, mininterval=interval) as bar:
        yield bar.update
