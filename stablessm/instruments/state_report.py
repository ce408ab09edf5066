"""The result of a check of the state of a model: a table of test cases."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, final

from stablessm._display import Result

PASS, FAIL, UNSUPPORTED, UNCLEAR = "pass", "fail", "not supported", "inconclusive"


@final
@dataclass(frozen=True, repr=False)
class StateCase(Result):
    """The result of one test case of :func:`check_state`: a way of carrying the state, compared with one pass."""

    name: str
    """Name of the case, such as ``chunks`` or ``left padding``."""
    status: str
    """``pass``, ``fail``, ``not supported`` (by design; ``note`` says why) or ``inconclusive``."""
    error: float | None = None
    """Largest |difference| of the outputs relative to the largest |output|; None if nothing was compared."""
    tol: float | None = None
    """Largest error of a case that passes."""
    first: int | None = None
    """First step of a sequence whose output differs by more than ``tol``."""
    layer: str | None = None
    """First part of the model, in order of execution, whose output differs by more than ``tol``."""
    note: str = ""
    """States what was done, why the case is not supported, or the error that the model raised."""

    @property
    def passed(self) -> bool:
        """Return True unless the case failed. A case that the model does not support by design has not failed."""
        return self.status != FAIL

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the table cells of this case: name, status, error, first step, layer and note."""
        shown = ("" if value is None else value for value in (self.first, self.layer))
        return (self.name, self.status, "" if self.error is None else f"{self.error:.1e}", *map(str, shown), self.note)

    def __str__(self) -> str:
        return "  ".join(filter(None, self.cells))


@final
@dataclass(frozen=True, repr=False)
class StateReport(Result):
    """The result of :func:`check_state`: one :class:`StateCase` per way of carrying the state."""

    model: str
    """Name of the class of the model."""
    cases: tuple[StateCase, ...]

    @property
    def passed(self) -> bool:
        """Return True if no case failed."""
        return all(case.passed for case in self.cases)

    def __getitem__(self, name: str) -> StateCase:
        """Return the result of the case with the given name."""
        for case in self.cases:
            if case.name == name:
                return case
        raise KeyError(f"{name!r}; the cases are {', '.join(case.name for case in self.cases)}")

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary of plain values, for JSON."""
        cases = [{**asdict(case), "passed": case.passed} for case in self.cases]
        return {"model": self.model, "passed": self.passed, "cases": cases}

    def __str__(self) -> str:
        failed = [case.name for case in self.cases if not case.passed]
        verdict = f"wrong in {len(failed)} of {len(self.cases)} cases: {', '.join(failed)}" if failed else "right"
        head = ("case", "result", "error", "from step", "first layer", "note")
        rows = [head, *(case.cells for case in self.cases)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([f"the state of {self.model} is {verdict}", *(f"  {line}".rstrip() for line in lines)])
