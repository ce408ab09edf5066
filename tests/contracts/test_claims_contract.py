"""What ``claims`` and ``figures`` make of stages: the committed ones, and invented ones that give every verdict."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from claim_cases import CASES, NEVER, Case
from invented_stages import Invented, record_folder

from stablessm import record
from stablessm.experiments import catalog
from stablessm.instruments import decay

LONG = ("su-fig5", "ext-activations")
"""Experiments with hundreds of curves, whose fits take several seconds."""
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@pytest.fixture(autouse=True, scope="module")
def fits_are_made_once():
    """Keep the fits of curves: most curves are the same in every test here."""
    known: dict[Any, Any] = {}
    plain = decay.fit_decay

    def kept(time: np.ndarray, value: np.ndarray, *, floor: float | None = None) -> Any:
        key = time.tobytes(), value.tobytes(), floor
        if key not in known:
            known[key] = plain(time, value, floor=floor)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decay, "fit_decay", kept)
        yield


def committed(id: str) -> dict[str, Any]:
    return json.loads((record_folder(id) / "record.json").read_text(encoding="utf-8"))


def assert_text(found: str, expected: str) -> None:
    """Assert that texts are equal but for one unit in the last digit of a number: rounding of another machine."""
    assert NUMBER.sub("#", found) == NUMBER.sub("#", expected)
    for a, b in zip(NUMBER.findall(found), NUMBER.findall(expected), strict=True):
        mantissa, _, power = b.partition("e")
        unit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
        assert abs(float(a) - float(b)) <= 1.01 * unit * (a != b and not b.isdigit()), (a, b, expected)


def assert_figure(found: Any, expected: Any) -> None:
    """Assert that figures are equal but for rounding in their numbers."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            if a != b:
                assert_figure(a, b)
    else:
        assert found == (pytest.approx(expected, rel=1e-4, abs=0) if isinstance(expected, float) else expected)


@pytest.mark.parametrize("id", [pytest.param(id, marks=pytest.mark.slow if id in LONG else ()) for id in catalog.IDS])
def test_claims_and_figures_are_those_of_the_record(id):
    experiment, kept, stages = catalog.get(id), committed(id), Invented(id)
    config = experiment.config(kept["size"])
    assert record.plain(asdict(config)) == kept["config"]
    claims = [asdict(claim) for claim in experiment.claims(config, stages)]
    assert len(claims) == len(kept["claims"])
    for found, expected in zip(claims, kept["claims"], strict=True):
        assert [found["statement"], found["paper"], found["verdict"]] == [
            expected["statement"], expected["paper"], expected["verdict"]
        ]  # fmt: skip
        assert_text(found["ours"], expected["ours"])
        assert_text(found["why"], expected["why"])
    figures = list(experiment.figures(config, stages))
    assert [figure.name for figure in figures] == kept["figures"]
    for figure in figures:
        path = record_folder(id) / f"{figure.name}.json"
        assert_figure(figure.to_json(), json.loads(path.read_text(encoding="utf-8")))


LETTERS = {
    "reproduced": "r", "partly": "p", "not reproduced": "n", "inconclusive": "i", "holds": "h", "does not hold": "d",
}  # fmt: skip


def verdicts(id: str, case: Case) -> str:
    experiment = catalog.get(id)
    config = replace(experiment.config(committed(id)["size"]), **case.settings)
    return "".join(LETTERS[claim.verdict] for claim in experiment.claims(config, Invented(id, case.changes)))


@pytest.mark.parametrize(
    ("id", "case"),
    [pytest.param(id, case, id=f"{id}-{i}") for id, cases in CASES.items() for i, case in enumerate(cases)],
)
def test_invented_stages_give_the_verdict(id, case):
    found = verdicts(id, case)
    assert len(found) == len(case.verdicts)
    assert "".join("." if any == "." else one for one, any in zip(found, case.verdicts, strict=True)) == case.verdicts


@pytest.mark.parametrize("id", catalog.IDS)
def test_every_claim_can_succeed_and_fail(id):
    record = committed(id)["claims"]
    for place, claim in enumerate(record):
        seen = {case.verdicts[place] for case in CASES[id]} | {LETTERS[claim["verdict"]]}
        yes, no = ("h", "d") if seen & set("hd") else ("r", "n")
        assert {yes, no} - {NEVER.get(id, {}).get(place)} <= seen, claim["statement"]
