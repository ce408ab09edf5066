"""The claims of the large sizes, which no record has yet, on invented stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from stablessm.experiments import catalog
from stablessm.experiments.frame.stages import Arrays

LETTERS = {
    "reproduced": "r", "partly": "p", "not reproduced": "n", "inconclusive": "i", "holds": "h", "does not hold": "d",
}  # fmt: skip


@dataclass
class Made:
    """Stages that exist in memory only."""

    arrays: Mapping[str, Mapping[str, Any]]
    kept: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Arrays:
        return Arrays({key: np.asarray(value) for key, value in self.arrays[name].items()}, name, "", set())


def verdicts(id: str, arrays: Mapping[str, Mapping[str, Any]], size: str = "large") -> str:
    experiment, stages = catalog.get(id), Made(arrays)
    config = experiment.config(size)
    assert list(experiment.figures(config, stages))
    return "".join(LETTERS[claim.verdict] for claim in experiment.claims(config, stages))


# --- table 3 ------------------------------------------------------------------------------------------------------

MAPS, WARMUPS = ("best-0.5", "exp", "softplus", "direct"), (30, 100, 300)
UNIFORM = float(np.log(8192))


def training(alive: bool, *, first: float = UNIFORM, second: float = UNIFORM, report: str = "") -> dict[str, Any]:
    """A training that ends at a low loss, or diverges at step 20."""
    losses = np.array([first, second, *[7.0] * 30])
    return {
        "losses": losses, "norms": losses, "looks": np.arange(5), "largest": np.ones(5), "typical": np.ones(5),
        "diverged": np.array(-1 if alive else 20), "report": np.array("" if alive else report or "overflow"),
        "memory": np.exp(-np.arange(64.0)), "floor": np.array(0.0), "parameters": np.array(3_000_000_000),
    }  # fmt: skip


def table3(alive: Any, **others: Any) -> dict[str, dict[str, Any]]:
    """Trainings whose fate is a function of warm-up, map and seed."""
    return {
        f"warmup-{w}-{m}-{s}": training(alive(w, m, s), **others) for w in WARMUPS for m in MAPS for s in range(3)
    }  # fmt: skip


UNSTABLE = {"report": "most to blame: mode 3, unstable"}


@pytest.mark.parametrize(
    ("expected", "arrays"),
    [
        ("hrh", table3(lambda w, m, s: m != "direct") | table3(lambda w, m, s: m == "best-0.5" and w == 30, **UNSTABLE)
         | {f"warmup-{w}-{m}-{s}": training(False) for w in WARMUPS for m in MAPS[:3] for s in range(3)}
         | {f"warmup-30-best-0.5-{s}": training(True) for s in range(3)}),
        ("hrd", table3(lambda w, m, s: m == "best-0.5" and w == 100, **UNSTABLE)),
        ("hpp", table3(lambda w, m, s: m == "best-0.5" and s == 0, **UNSTABLE)
         | {f"warmup-{w}-{m}-{s}": training(False) for w in WARMUPS for m in MAPS[1:3] for s in (0, 1)}),
        ("hni", table3(lambda w, m, s: w == 300 or m == "direct")),
        ("hii", table3(lambda w, m, s: True)),
        ("dii", table3(lambda w, m, s: True, first=UNIFORM + 0.06, second=UNIFORM)),
        ("dii", table3(lambda w, m, s: True, second=UNIFORM + 0.06)),
        ("pii", table3(lambda w, m, s: True) | {
            f"warmup-30-{m}-{s}": training(True, second=9.9) for m in MAPS for s in range(3)
        }),
    ],
)  # fmt: skip
def test_table_3(expected, arrays):
    assert verdicts("st-table3", arrays) == expected


def test_a_training_of_table_3_goes_on_until_the_rate_is_reached():
    config = catalog.get("st-table3").config("large")
    assert [config.options(warmup).steps for warmup in config.warmups] == [80, 150, 350]
    rates = config.options(300).config(config.rate, 0).rates(115_200)
    assert rates(310) == pytest.approx(1, abs=1e-4)
    assert rates(30) < 0.2
