"""The few errors we raise. Each names the argument, what was expected and what came."""

from __future__ import annotations


class ArgumentError(ValueError):
    """An argument has a wrong rank, size, dtype or value.

    >>> raise ArgumentError("decay", "64 channels (as in drive)", "32 channels")
    Traceback (most recent call last):
    ...
    stablessm._errors.ArgumentError: decay: expected 64 channels (as in drive), got 32 channels
    """

    def __init__(self, argument: str, expected: str, got: object) -> None:
        super().__init__(f"{argument}: expected {expected}, got {got}")
        self.argument = argument


class BackendUnavailableError(RuntimeError):
    """A backend was asked for by name and cannot run here; says why and what to do."""


class MissingPackageError(BackendUnavailableError, ImportError):
    """An optional package is not installed or cannot be imported; says which command installs it."""


class NumericalError(ArithmeticError):
    """A computation failed numerically; carries the remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}. Remedy: {remedy}")
        self.remedy = remedy
