"""The claims of ``st-rates``: with which maps a language model can be trained at the largest learning rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Stage, Stages, rules
from stablessm.experiments.frame.survival import Survival
from stablessm.experiments.frame.words import listed
from stablessm.experiments.stable_ssm.gradient_ratios import correlation
from stablessm.experiments.stable_ssm.language_stability import calmest
from stablessm.experiments.stable_ssm.language_study import PAPERS

RIVALS = ("direct", "relu", "exp", "softplus")
"""The maps that the paper compares with best."""
STABLE = ("exp", "softplus", PAPERS)
Found: TypeAlias = Mapping[str, np.ndarray]


def survival(config: Any, found: Mapping[str, Found]) -> Survival:
    """Return which training runs survived: those that neither diverge nor end with a loss above the entropy of the
    tokens. ``found`` has the results of the training runs of one set, by map.
    """
    alive = {map: (one["diverged"] < 0) & (one["final"] < float(one["entropy"])) for map, one in found.items()}
    return Survival(config, found, alive)


def claims(training: Stage[Any, Any], config: Any, stages: Stages) -> Claims:
    """Yield one claim with its verdict for each hypothesis in the README of the experiment, in the same order.
    ``training`` gives access to the results of the training runs.
    """
    sets = {set: survival(config, {map: training(stages, set, map) for map in config.maps}) for set in config.sets}
    rivals = [map for map in RIVALS if map in config.maps]
    stable = [map for map in STABLE if map in config.maps]
    beats, saved = [(PAPERS, map) for map in rivals], [(map, "direct") for map in stable]
    plain, equal = sets["plain"], sets["equal"]
    yield _ahead(
        plain, beats, "best (b = 0.5) survives larger rates than each other map of the paper", "figure 6", False
    )
    yield _ahead(plain, saved, "stable maps survive larger rates than direct", "table 2: all better than direct", False)
    yield lowest(plain, rivals)
    yield calm(plain, rivals)
    yield ratio(plain)
    ours, still = "beyond the paper", "also when all maps move their time scales equally"
    yield _ahead(sets["clipped"], beats, "with clipped gradients, best survives larger rates than each other map", ours)
    yield _ahead(
        sets["recurrent"], beats, "when only the recurrent rate grows, best survives more than each other map", ours
    )
    yield _ahead(equal, saved, f"stable maps survive larger recurrent rates than direct {still}", ours)
    smooth = [(PAPERS, map) for map in stable if map != PAPERS]
    yield _ahead(equal, smooth, f"best survives larger recurrent rates than exp and softplus {still}", ours)
    yield moves(plain)
    yield at_their_best(plain)


def _ahead(found: Survival, pairs: Sequence[tuple[str, str]], statement: str, paper: str, own: bool = True) -> Claim:
    verdict = found.ahead(pairs)
    clear = [f"{a} and {b}" for a, b in pairs if found.clearly(a, b)]
    return Claim(
        statement,
        paper,
        f"largest surviving rates: {found.edges()}",
        rules.ours(verdict) if own else verdict,
        f"Median over {found.config.seeds} seeds and their range, of the rates {listed(found.config.rates, 'g')}; 0: "
        f"not even the smallest. Apart with every seed: {', '.join(clear) or 'no pair'}, of {len(pairs)} pairs.",
    )


def lowest(found: Survival, rivals: Sequence[str]) -> Claim:
    """Return a claim with its verdict: at the largest learning rate at which the training runs of at least one map
    survive with every seed, the map ``best`` has the smallest final loss (StableSSM, figure 6 c).
    """
    config, limits = found.config, found.config.limits
    alive = np.array([found.survived[map].all(1) for map in (PAPERS, *rivals)])
    last = int(np.flatnonzero(alive.any(0)).max(initial=-1))
    final = {map: float(np.median(found.found[map]["final"][last])) for map in (PAPERS, *rivals)}
    lives = {map: bool(found.survived[map][last].all()) for map in final}
    lead = min((final[map] for map in rivals if lives[map]), default=np.inf) - final[PAPERS]
    told = {map: loss for map, loss in final.items() if lives[map]}
    verdict = rules.given(lives[PAPERS], rules.graded(lead > limits.clear, lead > -limits.comparable))
    return Claim(
        "at the largest rate that a map survives, best has the smallest loss",
        "figure 6 (c): the smallest",
        f"at {config.rates[last]:g}: {listed(told, '.3f') or 'none survives'}",
        rules.seen(last < 0, 1, verdict),
        f"Median of the seeds, of maps that survive with every seed. 'Reproduced' requires a lead of {limits.clear:g} "
        f"nats, 'partly' at most {limits.comparable:g} behind.",
    )


def calm(found: Survival, rivals: Sequence[str]) -> Claim:
    """Return a claim with its verdict: counted over all learning rates, training with the map ``best`` diverges least
    often and has the fewest loss spikes.
    """
    total = {
        map: (int((found.found[map]["diverged"] >= 0).sum()), int(found.found[map]["spikes"].sum()))
        for map in (PAPERS, *rivals)
    }
    return Claim(
        "over all rates and seeds, best diverges and spikes least",
        "section 4.2: it enhances training stability",
        "; ".join(f"{map}: {lost} diverged, {spikes} spikes" for map, (lost, spikes) in total.items()),
        calmest(total[PAPERS], [total[map] for map in rivals]),
        f"Of {len(found.config.rates) * found.config.seeds} trainings per map. 'Reproduced' requires fewer than each "
        "other map, 'partly' at most as many.",
    )


def ratio(found: Survival) -> Claim:
    """Return the claim of figure 5 of StableSSM with its verdict: maps with a larger gradient-to-weight ratio fail at
    smaller learning rates.
    """
    high = {map: float(np.median(np.nanmax(one["largest"][:, 0], 0))) for map, one in found.found.items()}
    edge = np.array([np.median(found.steps[map]) for map in high])
    decides = correlation(np.array([*high.values()]), edge)
    verdict = rules.graded(*(-decides > limit for limit in found.config.breaks))
    return Claim(
        "a map with a larger |gradient| / |weight| breaks at a smaller rate",
        "figure 5: crucial for the training stability",
        f"rank correlation {decides:.2f} over {len(high)} maps",
        rules.seen(len(high) if found.undecided else 0, len(high), verdict),
        f"The largest ratio at the smallest rate, median of the seeds: {listed(high, '.2g')}. Largest surviving rates: "
        f"{found.edges()}.",
    )


def moves(found: Survival) -> Claim:
    """Return a claim with its verdict: training changes the time scales of models with the map ``best``."""
    moved = {map: np.where(found.survived[map], one["moved"][-1], 0.0).max() for map, one in found.found.items()}
    return Claim(
        "best moves its time scales at the rates that it survives",
        "beyond the paper",
        f"largest median |change of log τ|: {listed(moved, '.2g')}",
        rules.ours(rules.at_least(float(moved[PAPERS]), found.config.moves)),
        f"Over rates and seeds that survive; the median is over the modes of all layers. {found.config.moves:g} or "
        "more holds.",
    )


def at_their_best(found: Survival) -> Claim:
    """Return a claim, with its verdict, that compares the test losses of models with different maps. Each map is used
    with its best learning rate.
    """
    config, told, best = found.config, [], {}
    for map, one in found.found.items():
        score = np.where(found.survived[map], one["test"], np.inf).mean(1)
        place = int(score.argmin())
        best[map] = float(score[place])
        told.append(f"{map} {best[map]:.3f} ± {np.std(one['test'][place]):.3f} at {config.rates[place]:g}")
    with np.errstate(invalid="ignore"):
        gap = best[PAPERS] - min(best.values())
    return Claim(
        "at its best rate, best is as good as any map at its own best rate",
        "beyond the paper",
        "; ".join(told),
        rules.ours(rules.at_most(gap, config.limits.comparable)),
        f"Test loss in nats per token: mean and standard deviation over the seeds. At most "
        f"{config.limits.comparable:g} above the lowest holds.",
    )
