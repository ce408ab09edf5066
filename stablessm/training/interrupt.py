"""Delays Ctrl-C and SIGTERM (sent, for example, by a batch system) until the current training step has ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import final

from stablessm._checked import checked
from stablessm._errors import ArgumentError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@final
class Interrupted(KeyboardInterrupt):
    """Raised when a signal has stopped a training run, after a checkpoint was written; the same call
    resumes the run.
    """

    @checked
    def __init__(self, number: int, step: int) -> None:
        if number not in signal.valid_signals():
            raise ArgumentError("number", "a signal", number)
        super().__init__(f"{signal.Signals(number).name} after step {step}; the same call resumes the run")
        self.signal, self.step = number, step


@final
class Request:
    """Stores the signal, SIGINT or SIGTERM, that this process has received (None if it has received no signal)."""

    signal: int | None = None

    def note(self, number: int, _: FrameType | None) -> None:
        """Record a signal; raise KeyboardInterrupt at the second signal."""
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def requests() -> Iterator[Request]:
    """Return a context in which SIGINT and SIGTERM are recorded in a :class:`Request` instead of ending the process.

    Outside the main thread, the context has no effect.

    >>> with requests() as request:
    ...     signal.raise_signal(signal.SIGTERM)
    >>> request.signal == signal.SIGTERM
    True
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.note) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
