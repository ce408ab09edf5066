"""The claims of ``ext-gated``: with which maps a gated recurrence can be trained at the largest learning rates."""

from __future__ import annotations

from typing import Any

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Stage, Stages, rules
from stablessm.experiments.frame.survival import Survival
from stablessm.experiments.frame.words import listed

STABLE = ("exp", "softplus", "best")
OURS = "beyond the papers"


def claims(training: Stage[Any, Any], config: Any, stages: Stages) -> Claims:
    """Yield one claim with its verdict for each hypothesis in the README of the experiment, in the same order.
    ``training`` gives access to the results of the training runs.
    """
    stable = [map for map in STABLE if map in config.maps]
    found = {
        task: _survival(config, {map: _table(training, config, stages, task, map) for map in config.maps})
        for task in config.tasks
    }
    for task in config.tasks:
        yield _more_than_direct(task, stable, found[task])
    yield _best(stable, found)
    for task in config.tasks:
        yield _losses(task, stable, found[task])
    yield _unstable(found)


def _table(training: Stage[Any, Any], config: Any, stages: Stages, task: str, map: str) -> dict[str, np.ndarray]:
    """Return the results of the training runs with one map on one task: a dict from the name of a result to an array
    (rates, seeds). The entropy of the targets is an exception: it does not depend on the seed and is an array (rates,).
    """
    found = [training(stages, task, map, rate) for rate in config.rates]
    return {
        name: np.stack([one[name] for one in found]) for name in ("diverged", "final", "test", "largest", "entropy")
    }


def _survival(config: Any, found: dict[str, dict[str, np.ndarray]]) -> Survival:
    """Return which training runs survived: those that neither diverge nor end with a loss clearly above the entropy of
    the targets. ``found`` maps each map to the result of :func:`_table`.
    """
    limits = {map: one["entropy"][:, None] + config.worse for map, one in found.items()}
    alive = {map: (one["diverged"] < 0) & (one["final"] <= limits[map]) for map, one in found.items()}
    return Survival(config, found, alive)


def _more_than_direct(task: str, stable: list[str], found: Survival) -> Claim:
    pairs = [(map, "direct") for map in stable]
    return Claim(
        f"{task}: stable maps survive larger rates of the recurrent weights than direct",
        OURS,
        f"largest surviving rates: {found.edges()}",
        rules.ours(found.ahead(pairs)),
        f"{sum(found.clearly(*pair) for pair in pairs)} of {len(pairs)} stable maps are apart from direct with every "
        f"seed. Rates: {listed(found.config.rates, 'g')}; 0: not even the smallest; {found.config.seeds} seeds.",
    )


def _best(stable: list[str], found: dict[str, Survival]) -> Claim:
    behind = [task for task, one in found.items() if not all(one.no_less("best", map) for map in stable)]
    undecided = sum(one.undecided for one in found.values())
    return Claim(
        "best survives no less than exp and softplus",
        OURS,
        f"behind on {', '.join(behind) or 'no task'}",
        rules.ours(rules.seen(undecided, len(found), rules.graded(not behind))),
        " · ".join(f"{task}: {one.edges(stable)}" for task, one in found.items()) + ".",
    )


def _losses(task: str, stable: list[str], found: Survival) -> Claim:
    """Return a claim with its verdict: each stable map, at its own best learning rate, has about the same test loss as
    the map with the smallest test loss.
    """
    config, losses = found.config, {}
    for map, table in found.found.items():
        medians = np.where(np.isnan(table["test"]).any(1), np.inf, np.median(table["test"], axis=1))
        losses[map] = float(medians.min())
    gap = max(losses[map] for map in stable) - min(losses.values())
    return Claim(
        f"{task}: at its best rate, every stable map is about as good as the best of all maps",
        OURS,
        f"test losses {listed(losses, '.3f')}",
        rules.ours(rules.graded(gap <= config.close)),
        f"The largest gap is {gap:.3f} nats; up to {config.close:g} does not count. Medians over {config.seeds} seeds.",
    )


def _unstable(found: dict[str, Survival]) -> Claim:
    """Return a claim with its verdict: in most failed training runs with the direct map, the recurrence has become
    unstable, which means that its largest eigenvalue λ is positive.
    """
    failed = [(one.found["direct"]["largest"], ~one.survived["direct"]) for one in found.values()]
    count = sum(int(lost.sum()) for _, lost in failed)
    grew = sum(int(((largest > 0) | np.isnan(largest))[lost].sum()) for largest, lost in failed)
    verdict = rules.decided(count > 0, rules.graded(2 * grew >= count))
    return Claim(
        "where direct fails, its recurrence has become unstable",
        OURS,
        f"{grew} of {count} failed trainings end with a positive λ",
        rules.ours(verdict),
        "A positive λ makes the state grow at every step, whatever the gate is. At least half of the trainings count "
        "as yes.",
    )
