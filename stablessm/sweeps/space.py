"""Ranges of settings to search, written as text: ``lr=log:1e-4:1e-1``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final, get_args

from stablessm._errors import ArgumentError

Kind: TypeAlias = Literal["float", "log", "int", "choice"]
_EXPECTED = "NAME=log:LOW:HIGH, float:LOW:HIGH, int:LOW:HIGH or choice:A,B,…"


@final
@dataclass(frozen=True)
class Range:
    """What one setting may be.

    >>> Range.read("--over", "lr=log:1e-4:1e-1")
    Range(name='lr', kind='log', low=0.0001, high=0.1, choices=())
    >>> Range.read("--over", "map=choice:best,exp").choices
    ('best', 'exp')
    """

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    @staticmethod
    def read(option: str, text: str) -> Range:
        """From its text."""
        match = re.fullmatch(r"\s*([^=\s]+)\s*=\s*(\w+):(.+)", text)
        if match is None or match[2] not in get_args(Kind):
            raise ArgumentError(option, _EXPECTED, repr(text))
        name, kind, rest = match[1], match[2], match[3]
        if kind == "choice":
            return Range(name, "choice", choices=tuple(part.strip() for part in rest.split(",") if part.strip()))
        number = int if kind == "int" else float
        try:
            low, high = (number(part) for part in rest.split(":"))
        except ValueError as error:
            raise ArgumentError(option, _EXPECTED, repr(text)) from error
        if not low < high or (kind == "log" and low <= 0):
            raise ArgumentError(option, "LOW below HIGH" + (", both above 0" if kind == "log" else ""), repr(text))
        return Range(name, kind, low, high)  # type: ignore[arg-type]

    def suggest(self, trial: Any) -> str:
        """A value that Optuna proposes, as text."""
        if self.kind == "choice":
            return str(trial.suggest_categorical(self.name, self.choices))
        if self.kind == "int":
            return str(trial.suggest_int(self.name, int(self.low), int(self.high)))
        return repr(trial.suggest_float(self.name, self.low, self.high, log=self.kind == "log"))


def told(values: Mapping[str, Any]) -> str:
    """Settings in one line.

    >>> told({"lr": 0.001234567, "map": "best"})
    'lr=0.001235, map=best'
    """
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())
