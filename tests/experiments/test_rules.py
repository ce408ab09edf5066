"""Every rule gives every verdict of which it is capable, at its boundaries too; no other module decides one."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import stablessm.experiments
from stablessm.experiments.frame import rules
from stablessm.experiments.frame.base import Claim, Experiment, execute
from stablessm.report.claim import VERDICTS

JUST_ABOVE = math.nextafter(1.0, 2.0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (rules.graded(True, True), "reproduced"),
        (rules.graded(True, False), "reproduced"),
        (rules.graded(False, True), "partly"),
        (rules.graded(False, False), "not reproduced"),
        (rules.most(3, 3), "reproduced"),
        (rules.most(2, 3), "partly"),
        (rules.most(2, 4), "partly"),
        (rules.most(1, 3), "not reproduced"),
        (rules.most(0, 1), "not reproduced"),
        (rules.most(0, 0), "inconclusive"),
        (rules.most(0, 3), "not reproduced"),
        (rules.most(3, 5), "partly"),
        (rules.seen(0, 0, "reproduced"), "inconclusive"),
        (rules.seen(0, 1, "partly"), "partly"),
        (rules.seen(1, 3, "not reproduced"), "not reproduced"),
        (rules.seen(1, 2, "reproduced"), "inconclusive"),
        (rules.seen(2, 3, "reproduced"), "inconclusive"),
        (rules.most_seen({}), "inconclusive"),
        (rules.most_seen({"exponential": 3, "undecided": 2}), "reproduced"),
        (rules.most_seen({"exponential": 2, "none": 2, "undecided": 3}), "partly"),
        (rules.most_seen({"exponential": 1, "none": 2, "undecided": 2}), "not reproduced"),
        (rules.most_seen({"exponential": 1, "undecided": 1}), "inconclusive"),
        (rules.most_seen({"exponential": 1, "finite": 2}, "finite"), "partly"),
        (rules.most_seen({"exponential": 2, "none": 2}, unclear="none"), "inconclusive"),
        (rules.some([True]), "reproduced"),
        (rules.some([True, False, False]), "partly"),
        (rules.some([True, None]), "partly"),
        (rules.some([False]), "not reproduced"),
        (rules.some([False, None]), "not reproduced"),
        (rules.some([None]), "inconclusive"),
        (rules.some([]), "inconclusive"),
        (rules.at_most(1.0, 1.0), "reproduced"),
        (rules.at_most(JUST_ABOVE, 1.0), "not reproduced"),
        (rules.at_most(JUST_ABOVE, 1.0, 2.0), "partly"),
        (rules.at_most(2.0, 1.0, 2.0), "partly"),
        (rules.at_most(math.inf, 1.0, 2.0), "not reproduced"),
        (rules.at_most(math.nan, 1.0, 2.0), "inconclusive"),
        (rules.at_least(1.0, 1.0), "reproduced"),
        (rules.at_least(1.0, JUST_ABOVE), "not reproduced"),
        (rules.at_least(1.0, JUST_ABOVE, 1.0), "partly"),
        (rules.at_least(-math.inf, 1.0, 0.5), "not reproduced"),
        (rules.at_least(math.nan, 1.0), "inconclusive"),
        (rules.ahead([JUST_ABOVE], [1.0]), "reproduced"),
        (rules.ahead([1.0], [1.0]), "inconclusive"),
        (rules.ahead([-1.0], [1.0]), "inconclusive"),
        (rules.ahead([-JUST_ABOVE], [1.0]), "not reproduced"),
        (rules.ahead([5.0], [math.inf]), "inconclusive"),  # one seed has no spread
        (rules.ahead([3.0, 0.0], [1.0, 1.0]), "partly"),
        (rules.ahead([3.0, 0.0, 0.0], [1.0, 1.0, 1.0]), "not reproduced"),
        (rules.ahead([3.0, -3.0], [1.0, 1.0]), "partly"),
        (rules.ahead([3.0, 1.0], [1.0, 1.0]), "partly"),
        (rules.at_most(-math.inf, 1.0), "reproduced"),
        (rules.at_least(2.0, 1.0), "reproduced"),
        (rules.at_least(JUST_ABOVE, 2.0, JUST_ABOVE), "partly"),
        (rules.at_least(1.0, 2.0, JUST_ABOVE), "not reproduced"),
        (rules.given(True, "reproduced"), "reproduced"),
        (rules.given(True, "holds"), "holds"),
        (rules.given(False, "does not hold"), "does not hold"),
        (rules.given(False, "inconclusive"), "not reproduced"),
        (rules.given(False, "reproduced"), "not reproduced"),
        (rules.given(False, "holds"), "does not hold"),
        (rules.ours("reproduced"), "holds"),
        (rules.ours("partly"), "partly"),
        (rules.ours("not reproduced"), "does not hold"),
        (rules.ours("inconclusive"), "inconclusive"),
    ],
)
def test_every_verdict(found, expected):
    assert found == expected


def test_the_report_knows_the_verdicts():
    assert set(VERDICTS) == set(get_args(rules.Verdict))


def test_no_other_module_decides_a_verdict():
    root = Path(stablessm.experiments.__file__).parent
    for path in set(root.rglob("*.py")) - {root / "frame" / "rules.py"}:
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        words = {node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        assert not words & set(get_args(rules.Verdict)), path


@dataclass(frozen=True)
class Config:
    size: int = 3


def test_a_smoke_size_is_not_judged(tmp_path):
    experiment = Experiment(
        id="sum", title="a sum", source="nowhere", question="how much?", claim="three",
        configs={"smoke": Config(), "paper": Config(10)}, minutes={"smoke": 0.1, "paper": 90.0},
        run=lambda config, run: run.stage("x", lambda: {"x": np.arange(config.size)}),
        figures=lambda *_: [],
        claims=lambda _, stages: [Claim("s", "3", str(stages["x"]["x"].sum()), rules.graded(True), "Added up.")],
    )  # fmt: skip
    told = [
        (execute(experiment, size, tmp_path)[0] / "record.json").read_text(encoding="utf-8")
        for size in ("smoke", "paper")
    ]
    assert '"verdict": ""' in told[0]
    assert "Too small to judge; --size paper takes 90 minutes." in told[0]
    assert '"verdict": "reproduced"' in told[1]
