"""Checks lemma 8 of LRU-UA. Let T_k be a causal map that computes the output at position k. The lemma says that one
causal map, continuous in the position, gives the outputs of all T_k. The equations of the lemma are checked as printed
and as corrected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Figures, Run, Stages, computing, described, rules, stage
from stablessm.experiments.frame.lines import lines
from stablessm.experiments.frame.words import listed
from stablessm.reconstruction import haar, uniform_ring
from stablessm.report.figure import Figure, Panel

FORMS = ("corrected", "printed")


@dataclass(frozen=True)
class LemmaConfig:
    """Settings of ``lr-lemma8``: length, seeds, steps between positions, and thresholds. The paper gives no values."""

    length: int = 24
    seeds: int = 5
    steps: tuple[float, ...] = (1e-2, 1e-3, 1e-4, 1e-5)
    """Distances h between positions t over which changes of the output are measured."""
    states: int = 64
    ring: float = 0.9
    functions: int = 8
    """Number of Haar wavelets."""
    clock: float = 0.95
    """The eigenvalue λ₀ that counts the steps."""
    exact: float = 1e-12
    proportional: float = 0.1
    """The largest change counts as proportional to h up to this relative deviation."""
    position: float = 1e-6
    """Largest error of a position that counts as recovered."""
    reconstructed: float = 1e-4
    """Largest relative error of inputs that count as reconstructed."""


def interpolated(at: Callable[[int], np.ndarray], t: float, last: int, form: str) -> np.ndarray:
    """Return the value at position t, interpolated linearly from the values ``at(k)`` at the positions k = 1 … last.
    Equations 26 and 31 of LRU-UA interpolate in this way; ``form`` selects the ``corrected`` or the ``printed``
    equation.

    >>> [float(interpolated(lambda k: np.array(10.0 * k), 2.0, 3, form)) for form in FORMS]
    [20.0, 0.0]
    >>> [float(interpolated(lambda k: np.array(10.0 * k), 1.25, 3, form)) for form in FORMS]
    [12.5, 17.5]
    """
    low, high = int(np.floor(t)), int(np.ceil(t))
    if form == "printed":
        return (high - t) * at(high) + (t - low) * at(low)
    share = t - low
    return (1 - share) * at(low) + share * at(min(low + 1, last))


def family(config: LemmaConfig, seed: int) -> Callable[[np.ndarray, int], np.ndarray]:
    """Return a function of inputs u and a position k that computes T_k[u] = tanh(A_k u_(1:k)). The random matrix A_k is
    different for every position k, so each T_k is a causal map of its own.
    """
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(config.length + 1, 3, config.length))
    return lambda u, k: np.tanh(weights[k, :, :k] @ u[:k] / np.sqrt(k))


@stage("map-{form}", over=lambda config: FORMS)
def mapped(config: LemmaConfig, run: Run, form: str) -> Mapping[str, np.ndarray]:
    """Measure three properties of the map that interpolates between the maps T_k: is it correct, continuous and causal?

    ``form`` selects the interpolation formula of the paper as ``printed`` or as ``corrected``.

    Return three arrays. ``whole``: the relative error at whole positions t = k, where the map should equal T_k.
    ``change``: the largest change of the output when t increases by h, for each h in the setting ``steps``. ``causal``:
    the largest change of the output when only inputs after t are replaced. For figures, also return the first output of
    the first seed on a grid of positions (``value`` and ``time``), and the outputs of the T_k (``target``).
    """
    last, whole, causal = config.length, 0.0, 0.0
    change, shown, target = np.zeros(len(config.steps)), np.zeros(0), np.zeros(0)
    time = np.linspace(1, last, 20 * (last - 1) + 1)
    for seed in range(config.seeds):
        T, rng = family(config, seed), np.random.default_rng([seed, 1])
        u = rng.normal(size=last)
        targets = np.array([T(u, k) for k in range(1, last + 1)])
        value = np.array([interpolated(lambda k: T(u, k), t, last, form) for t in time])  # noqa: B023
        whole = max(whole, float(np.abs(value[::20] - targets).max() / np.abs(targets).max()))
        for i, h in enumerate(config.steps):
            starts = time[:-1]
            after = np.array([interpolated(lambda k: T(u, k), t + h, last, form) for t in starts])  # noqa: B023
            change[i] = max(change[i], float(np.abs(after - value[:-1]).max()))
        for k in range(1, last):
            other = np.concatenate([u[:k], rng.normal(size=last - k)])
            early = time[time <= k]
            again = np.array([interpolated(lambda j: T(other, j), t, last, form) for t in early])  # noqa: B023
            causal = max(causal, float(np.abs(value[: len(early)] - again).max()))
        if seed == 0:
            shown, target = value[:, 0], targets[:, 0]
    numbers = {"whole": np.array(whole), "causal": np.array(causal), "change": change}
    return {**numbers, "time": time, "value": shown, "target": target}


@stage("clock")
def clock(config: LemmaConfig, run: Run) -> Mapping[str, np.ndarray]:
    """Return the positions that equation 30 of LRU-UA recovers from the state of a mode with constant input. The true
    positions are k = 1 … length.
    """
    state, states = 0.0, []
    for _ in range(config.length):
        state = config.clock * state + 1
        states.append(state)
    return {"positions": np.log(np.array(states) * (config.clock - 1) + 1) / np.log(config.clock)}


@stage("reconstruction-{form}", over=lambda config: FORMS)
def reconstruction(config: LemmaConfig, run: Run, form: str) -> Mapping[str, np.ndarray]:
    """Reconstruct the first k inputs from the state after step k, and return the relative errors (seeds, length). The
    reconstruction does not know the position k, but uses the position that :func:`clock` recovers. ``form`` selects the
    equation as ``printed`` or ``corrected``.
    """
    psi = haar(config.length, config.functions).numpy()
    positions = clock(run)["positions"]
    error = np.zeros((config.seeds, config.length))
    for seed in range(config.seeds):
        lam = uniform_ring(config.states, config.ring, seed=seed).numpy()
        powers = lam[:, None] ** np.arange(config.length)
        inverse = {
            k: np.linalg.pinv(powers[:, :k][:, ::-1] @ psi[:k], rcond=1e-12) for k in range(1, config.length + 1)
        }
        u = psi @ np.random.default_rng([seed, 2]).normal(size=psi.shape[1])
        for k in range(1, config.length + 1):
            state = powers[:, :k][:, ::-1] @ u[:k]
            t = float(np.clip(positions[k - 1], 1, config.length))
            found = psi @ (interpolated(inverse.__getitem__, t, config.length, form) @ state).real
            error[seed, k - 1] = np.linalg.norm(found[:k] - u[:k]) / np.linalg.norm(u[:k])
    return {"error": error}


def figures(config: LemmaConfig, stages: Stages) -> Figures:
    """Yield a figure of the outputs of the interpolated map against the position, and of the errors of the
    reconstructed inputs.
    """
    maps = {form: mapped(stages, form) for form in FORMS}
    steps = np.arange(1, config.length + 1)
    drawn = [lines(one["time"], {f"equation 26, {form}": one["value"]})[0] for form, one in maps.items()]
    drawn += lines(steps, {"T_k": maps["corrected"]["target"]}, "points")
    errors = {f"equation 31, {form}": reconstruction(stages, form)["error"].max(0) for form in FORMS}
    yield Figure(
        "positions",
        "Left: the first output of the interpolated map over the position t; points are the T_k that it must meet. "
        "Right: the relative error of the reconstructed inputs, the largest over the seeds.",
        [
            Panel("lemma 8", "position t", "output", drawn),
            Panel("reconstruction", "position k", "relative error", lines(steps, errors), y_scale="log"),
        ],
    )


def claims(config: LemmaConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on lemma 8 of LRU-UA and on each of its equations."""
    good, bad = mapped(stages, "corrected"), mapped(stages, "printed")
    slope = good["change"] / np.array(config.steps)
    uneven = float(slope.max() / slope.min() - 1)
    held = [
        float(good["whole"]) <= config.exact, uneven <= config.proportional, float(good["causal"]) <= config.exact,
    ]  # fmt: skip
    yield Claim(
        "interpolation gives one continuous causal map that equals T_k at t = k",
        "lemma 8",
        f"error {float(good['whole']):.1e} at whole t; change per h within {uneven:.1e} of proportional; change by "
        f"later inputs {float(good['causal']):.1e}",
        rules.some(held),
        "The corrected form: (1 - s) T_⌊t⌋ + s T_(⌊t⌋+1), s = t - ⌊t⌋.",
    )
    off, jump = float(bad["whole"]), float(bad["change"][-1])
    yield Claim(
        "equation 26 as printed equals T_k at t = k",
        "equation 26",
        f"relative error {off:.2g}; it jumps by {jump:.2g} over h = {config.steps[-1]:g}",
        rules.graded(off <= config.exact),
        "Both weights are zero at whole t, and each belongs to the other map (an erratum).",
    )
    late = np.abs(clock(stages)["positions"] - np.arange(1, config.length + 1))
    yield Claim(
        "the state of one mode gives the position",
        "equations 27 and 30",
        f"error at most {late.max():.1e} up to k = {config.length}",
        rules.graded(bool(late.max() <= config.position)),
        f"λ₀ = {config.clock:g}, float64.",
    )
    worst = {form: float(reconstruction(stages, form)["error"].max()) for form in FORMS}
    for form, note in zip(FORMS, ("interpolated correctly", "as printed"), strict=True):
        yield Claim(
            f"equation 31, {note}, reconstructs the first k inputs at every position",
            "equation 31: it reduces to the reconstruction at t = k",
            f"largest relative error {worst[form]:.2g}",
            rules.graded(worst[form] <= config.reconstructed),
            f"{config.states} states, {config.functions} wavelets, {config.seeds} seeds; errors of both forms: "
            f"{listed(worst, '.2g')}.",
        )


run = computing(mapped, clock, reconstruction)
SMOKE = LemmaConfig(length=8, seeds=1, steps=(1e-2, 1e-3), states=16, functions=4)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=LemmaConfig(), minutes=(0.05, 0.1))
