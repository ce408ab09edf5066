"""The rules that turn measured numbers into the verdicts of claims. No other module decides a verdict.

The verdict on a paper's statement is ``reproduced``, ``partly`` or ``not reproduced``. The verdict on a statement of
our own is ``holds``, ``partly`` or ``does not hold`` (see :func:`ours`). Either verdict is ``inconclusive`` if the run
cannot decide the statement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

Verdict: TypeAlias = Literal["reproduced", "partly", "not reproduced", "inconclusive", "holds", "does not hold"]

_OURS: dict[Verdict, Verdict] = {"reproduced": "holds", "not reproduced": "does not hold"}


def graded(full: bool, part: bool = False) -> Verdict:
    """Return ``reproduced`` if the whole statement holds (``full``), ``partly`` if only a part of it holds (``part``),
    and ``not reproduced`` otherwise.

    >>> graded(True), graded(False, True), graded(False)
    ('reproduced', 'partly', 'not reproduced')
    """
    return "reproduced" if full else "partly" if part else "not reproduced"


def most(hits: int, total: int) -> Verdict:
    """Return ``reproduced`` if all ``total`` cases agree with the claim, ``partly`` if at least half of them agree, and
    ``inconclusive`` if there are no cases. ``hits`` is the number of cases that agree.

    >>> most(4, 4), most(2, 4), most(1, 4), most(0, 0)
    ('reproduced', 'partly', 'not reproduced', 'inconclusive')
    """
    return graded(hits == total, 2 * hits >= total) if total else "inconclusive"


def seen(unclear: int, total: int, verdict: Verdict) -> Verdict:
    """Return ``verdict``, or ``inconclusive`` if at least half of the ``total`` cases could not be classified;
    ``unclear`` is the number of such cases.

    >>> seen(1, 4, "reproduced"), seen(2, 4, "reproduced"), seen(0, 0, "partly")
    ('reproduced', 'inconclusive', 'inconclusive')
    """
    return verdict if 2 * unclear < total else "inconclusive"


def most_seen(kinds: Mapping[Any, int], kind: str = "exponential", *, unclear: str = "undecided") -> Verdict:
    """Return the verdict on the claim that all cases are of the kind ``kind``; ``kinds`` has the number of cases of
    each kind, and cases of the kind ``unclear`` are unclassified. The verdict is ``partly`` if at least half of the
    classified cases are of this kind, and ``inconclusive`` if at least half of all cases are unclassified.

    >>> most_seen({"exponential": 3, "undecided": 1}), most_seen({"exponential": 3, "undecided": 3})
    ('reproduced', 'inconclusive')
    >>> most_seen({"exponential": 1, "polynomial": 1, "undecided": 1}), most_seen({"polynomial": 1})
    ('partly', 'not reproduced')
    """
    total, missed = sum(kinds.values()), kinds.get(unclear, 0)
    return seen(missed, total, most(kinds.get(kind, 0), total - missed))


def some(held: Sequence[bool | None]) -> Verdict:
    """Return ``reproduced`` if every case agrees with the claim, ``partly`` if at least one case agrees, and ``not
    reproduced`` otherwise. ``held`` says for each case whether the case agrees.

    A case that cannot be decided is None and counts as a case that does not agree. If no case can be decided, the
    verdict is ``inconclusive``.

    >>> some([True, True]), some([True, None]), some([False, None]), some([None, None])
    ('reproduced', 'partly', 'not reproduced', 'inconclusive')
    """
    if all(case is None for case in held):
        return "inconclusive"
    return graded(all(held), any(held))


def at_most(value: float, limit: float, fair: float = -math.inf) -> Verdict:
    """Return ``reproduced`` if ``value`` is at most ``limit``, ``partly`` if it is at most ``fair``, and ``not
    reproduced`` if it is larger. Return ``inconclusive`` for NaN.

    >>> at_most(1.0, 1.0), at_most(2.0, 1.0, 2.0), at_most(2.5, 1.0, 2.0), at_most(math.nan, 1.0)
    ('reproduced', 'partly', 'not reproduced', 'inconclusive')
    """
    return "inconclusive" if math.isnan(value) else graded(value <= limit, value <= fair)


def at_least(value: float, limit: float, fair: float = math.inf) -> Verdict:
    """Return ``reproduced`` if ``value`` is at least ``limit``, ``partly`` if it is at least ``fair``, and ``not
    reproduced`` if it is smaller. Return ``inconclusive`` for NaN.

    >>> at_least(0.9, 0.9), at_least(0.5, 0.9, 0.5), at_least(0.4, 0.9, 0.5), at_least(math.nan, 0.9)
    ('reproduced', 'partly', 'not reproduced', 'inconclusive')
    """
    return at_most(-value, -limit, -fair)


def ahead(gaps: Sequence[float], margins: Sequence[float]) -> Verdict:
    """Return the verdict on the claim that all gaps are positive. A gap between -margin and +margin is a tie; the
    margin may be the spread over seeds.

    ``reproduced``: every gap is larger than its margin. ``inconclusive``: every gap is a tie. Otherwise ``partly`` if
    at least half of the gaps are positive.

    >>> ahead([2.0, 3.0], [1.0, 1.0]), ahead([2.0, -3.0], [1.0, 1.0])
    ('reproduced', 'partly')
    >>> ahead([-1.0, -3.0], [1.0, 1.0]), ahead([1.0, -1.0], [1.0, 1.0])
    ('not reproduced', 'inconclusive')
    """
    pairs = list(zip(gaps, margins, strict=True))
    if all(abs(gap) <= margin for gap, margin in pairs):
        return "inconclusive"
    return graded(all(gap > margin for gap, margin in pairs), 2 * sum(gap > 0 for gap in gaps) >= len(gaps))


def decided(able: bool, verdict: Verdict) -> Verdict:
    """Return ``verdict`` if the run can decide the statement (``able``), and ``inconclusive`` otherwise.

    >>> decided(True, "partly"), decided(False, "partly")
    ('partly', 'inconclusive')
    """
    return verdict if able else "inconclusive"


def given(condition: bool, verdict: Verdict) -> Verdict:
    """Return ``verdict`` if a necessary condition of the statement is true. Otherwise return the negative verdict:
    ``not reproduced``, or ``does not hold`` for statements of our own.

    >>> given(True, "partly"), given(False, "reproduced"), given(False, "holds")
    ('partly', 'not reproduced', 'does not hold')
    """
    if condition:
        return verdict
    return "does not hold" if verdict in _OURS.values() else "not reproduced"


def ours(verdict: Verdict) -> Verdict:
    """Translate a verdict into the words for statements that no paper makes: ``reproduced`` becomes ``holds``, ``not
    reproduced`` becomes ``does not hold``.

    >>> ours("reproduced"), ours("not reproduced"), ours("partly")
    ('holds', 'does not hold', 'partly')
    """
    return _OURS.get(verdict, verdict)
