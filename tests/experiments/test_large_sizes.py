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


# --- table 2 ------------------------------------------------------------------------------------------------------


def table2(**nats: float) -> dict[str, dict[str, Any]]:
    """Trainings with these train and test losses."""
    maps = {"direct": "direct", "exp": "exp", "softplus": "softplus", "best": "best-0.5"}
    return {f"training-{maps[name]}-0.005": {**training(True), "train": n, "test": n} for name, n in nats.items()}


@pytest.mark.parametrize(
    ("expected", "arrays"),
    [
        ("rrr", table2(softplus=3.0, exp=3.1, best=3.2, direct=3.3)),
        ("nnn", table2(softplus=3.3, exp=3.2, best=3.1, direct=3.0)),
        ("nii", table2(softplus=3.0, exp=3.0, best=3.0, direct=3.0)),
        ("ppp", table2(softplus=3.0, exp=3.1, best=3.2, direct=3.15)),
    ],
)
def test_table_2(expected, arrays):
    assert verdicts("st-table2", arrays) == expected


# --- tables 4 to 6 ------------------------------------------------------------------------------------------------


def scores(id: str, label: str, accuracy: Mapping[str, float], spread: float = 0.0) -> dict[str, dict[str, Any]]:
    """Scores of a grid whose maps have these accuracies, in training too, and the losses 1 - accuracy."""
    config = catalog.get(id).config("large")
    grid = getattr(config, label).grid if id == "st-table4" else config.grid if label.endswith("-1") else config.deep
    found = {}
    for seed in range(3):
        values = np.array([accuracy.get(scheme, 0.5) + spread * (seed - 1) for scheme, _ in grid.cells()])
        every = np.repeat(values[:, None], 20, 1)
        found[f"scores-{label}-{seed}-0"] = {
            "test": values, "valid": values, "test_loss": 1 - values, "accuracies": every, "losses": 1 - every,
            "diverged": np.full(len(values), -1),
        }  # fmt: skip
    return found


def recall(long: Mapping[str, float], spread: float = 0.0, **short: float) -> dict[str, dict[str, Any]]:
    found = {"best-0.5": 0.999, "exp": 0.999, "clip": 0.76, "direct": 0.67} | short
    return scores("st-table4", "short", found, spread) | scores("st-table4", "long", long, spread)


GOOD = {"best-0.5": 1.0, "exp": 1.0, "clip": 0.09, "direct": 0.06}


@pytest.mark.parametrize(
    ("expected", "arrays"),
    [
        ("rrrrnrr", recall(GOOD)),
        ("rnnnnii", recall(dict.fromkeys(GOOD, 0.5), clip=0.999, direct=0.999)),
        ("rrnnnrn", recall({"clip": 0.6, "direct": 0.6})),
        ("rrpnnrp", recall({**GOOD, "exp": 0.07, "clip": 0.5, "direct": 0.5})),
        ("rrrrnii", recall(GOOD, spread=0.7)),
        ("rrnnrri", recall(dict.fromkeys(GOOD, 0.5357))),
    ],
)
def test_table_4(expected, arrays):
    assert verdicts("st-table4", arrays) == expected


@pytest.mark.parametrize("id", ["st-table5", "st-table6"])
@pytest.mark.parametrize(
    ("columns", "accuracy", "spread"),
    [
        ("r", {"best-0.5": 0.9, "exp": 0.8, "softplus": 0.7}, 0.0),
        ("n", {"best-0.5": 0.7, "exp": 0.8, "softplus": 0.9}, 0.0),
        ("p", {"best-0.5": 0.8, "exp": 0.7, "softplus": 0.9}, 0.0),
        ("i", {"best-0.5": 0.8, "exp": 0.8, "softplus": 0.8}, 0.0),
        ("i", {"best-0.5": 0.81, "exp": 0.8, "softplus": 0.8}, 0.1),
    ],
)
def test_tables_5_and_6(id, columns, accuracy, spread):
    arrays = scores(id, "layers-1", accuracy, spread) | scores(id, "layers-6", accuracy, spread)
    steps = np.stack([np.arange(5.0), np.ones(5)], 1)
    found = verdicts(id, arrays | {"recommended": {"losses": steps, "parameters": 3, "test": 0.84}})
    assert (found[5], found[10]) == (columns, columns)
    assert len(found) == 11 + (id == "st-table6")


def test_a_seed_that_is_not_finite_loses():
    lost = scores("st-table5", "layers-1", {"best-0.5": 0.9, "exp": 0.8}) | scores("st-table5", "layers-6", {})
    schemes = [scheme for scheme, _ in catalog.get("st-table5").config("large").grid.cells()]
    at = np.array(schemes) == "best-0.5"
    one = lost["scores-layers-1-0-0"]
    one["losses"] = np.where(at[:, None], np.nan, one["losses"])
    found = verdicts("st-table5", lost)
    assert found[5] == "p"  # its loss is lost, its accuracy is ahead


def test_large_sizes_differ_from_the_others():
    assert catalog.get("ia-fig2").config("large").horizons[-1] == 1000
    assert catalog.get("ia-fig5").config("large").seeds == 10
    assert catalog.get("st-fig1").config("large").training.clip is None
