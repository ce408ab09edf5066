"""The claims of ``ext-gated``: with which maps a gated recurrence can be trained at the largest learning rates."""

from __future__ import annotations

from typing import Any

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Stage, Stages, rules
from stablessm.experiments.frame.words import listed

STABLE = ("exp", "softplus", "best")
OURS = "beyond the papers"


def claims(training: Stage[Any, Any], config: Any, stages: Stages) -> Claims:
    """Yield one claim with its verdict for each hypothesis in the README of the experiment, in the same order.
    ``training`` gives access to the results of the trainings.
    """
    stable = [map for map in STABLE if map in config.maps]
    edges: dict[str, dict[str, np.ndarray]] = {}
    tables: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    undecided = set()
    for task in config.tasks:
        tables[task] = {map: _table(training, config, stages, task, map) for map in config.maps}
        alive = {map: survived(config, found) for map, found in tables[task].items()}
        edges[task] = {map: np.cumprod(table, axis=0).sum(0) for map, table in alive.items()}
        every = np.stack([*alive.values()])
        if every.all() or not every.any():
            undecided.add(task)
    for task in config.tasks:
        yield _more_than_direct(config, task, stable, edges[task], task in undecided)
    yield _best(config, stable, edges, undecided)
    for task in config.tasks:
        yield _losses(config, task, stable, tables[task])
    yield _unstable(config, tables)


def _table(training: Stage[Any, Any], config: Any, stages: Stages, task: str, map: str) -> dict[str, np.ndarray]:
    """Return the results of the trainings with one map on one task: a dict from the name of a result to an array
    (rates, seeds). The entropy of the targets is an exception: it does not depend on the seed and is an array (rates,).
    """
    found = [training(stages, task, map, rate) for rate in config.rates]
    return {
        name: np.stack([one[name] for one in found]) for name in ("diverged", "final", "test", "largest", "entropy")
    }


def survived(config: Any, found: dict[str, np.ndarray]) -> np.ndarray:
    """Return a boolean array (rates, seeds): True for each training that did not fail. A training fails if it diverges,
    or if its final loss is clearly above the entropy of the targets. ``found`` is the result of :func:`_table`.
    """
    return (found["diverged"] < 0) & (found["final"] <= found["entropy"][:, None] + config.worse)


def _told(config: Any, edges: dict[str, np.ndarray]) -> str:
    """Return as text, for each map, the largest surviving learning rate: the median and the range over the seeds. The
    trainings of a seed survive up to the largest rate before the first failed training. ``edges`` is a dict from the
    name of a map to an array (seeds,), the number of these surviving rates.
    """
    rates = (0.0, *config.rates)
    parts = []
    for map, steps in edges.items():
        low, middle, high = (rates[int(q)] for q in np.quantile(steps, [0, 0.5, 1], method="lower"))
        parts.append(f"{map} {middle:g}" if low == high else f"{map} {middle:g} ({low:g} to {high:g})")
    return "; ".join(parts)


def _more_than_direct(
    config: Any, task: str, stable: list[str], edges: dict[str, np.ndarray], undecided: bool
) -> Claim:
    direct = edges["direct"]
    clear = [bool(edges[map].min() > direct.max()) for map in stable]
    no_less = all(np.median(edges[map]) >= np.median(direct) for map in stable)
    verdict = rules.graded(all(clear), any(clear) and no_less)
    return Claim(
        f"{task}: stable maps survive larger rates of the recurrent weights than direct",
        OURS,
        f"largest surviving rates: {_told(config, edges)}",
        rules.ours(rules.seen(int(undecided), 1, verdict)),
        f"{sum(clear)} of {len(clear)} stable maps are apart from direct with every seed. Rates: "
        f"{listed(config.rates, 'g')}; 0: not even the smallest; {config.seeds} seeds.",
    )


def _best(config: Any, stable: list[str], edges: dict[str, dict[str, np.ndarray]], undecided: set[str]) -> Claim:
    medians = {task: {map: float(np.median(row[map])) for map in stable} for task, row in edges.items()}
    behind = [task for task, row in medians.items() if row["best"] < max(row.values())]
    return Claim(
        "best survives no less than exp and softplus",
        OURS,
        f"behind on {', '.join(behind) or 'no task'}",
        rules.ours(rules.seen(len(undecided), len(edges), rules.graded(not behind))),
        " · ".join(f"{task}: {_told(config, {map: row[map] for map in stable})}" for task, row in edges.items()) + ".",
    )


def _losses(config: Any, task: str, stable: list[str], found: dict[str, dict[str, np.ndarray]]) -> Claim:
    """Return a claim with its verdict: each stable map, at its own best learning rate, has about the same test loss as
    the map with the smallest test loss. ``found`` is a dict from the name of a map to the result of :func:`_table`.
    """
    losses = {}
    for map, table in found.items():
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


def _unstable(config: Any, tables: dict[str, dict[str, dict[str, np.ndarray]]]) -> Claim:
    """Return a claim with its verdict: in most failed trainings with the direct map, the recurrence has become
    unstable, which means that its largest eigenvalue λ is positive. ``tables[task][map]`` is the result of
    :func:`_table`.
    """
    failed = [(row["direct"]["largest"], ~survived(config, row["direct"])) for row in tables.values()]
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
