"""Approximates convolutions by one linear layer: the number of states it needs, bounds on the error of its kernel, and
the error of its output.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stablessm.experiments.frame import Claim, Claims, Figures, Stages, computing, described, rules
from stablessm.experiments.frame.words import each, listed
from stablessm.experiments.ssm_ua.conv import stages as measured
from stablessm.report.figure import Figure, Panel, Series

GROUPS = {
    "three exponentials": "other decays",
    "stretched exponential": "other decays",
    "damped cosine": "oscillations and a shift",
    "airy": "oscillations and a shift",
    "shift": "oscillations and a shift",
}
"""Titles of panels; other kernels are power laws."""

PUBLISHED = {"direct": 2.8e-6, "softplus": 1.6e-3, "S4": 1.6e-3}
"""Losses of trained models of width 64 in StableSSM, figure 1, at β = 0."""

Found = Mapping[str, Mapping[str, np.ndarray]]
"""Results of a stage (``by_order``, ``by_tolerance`` or ``rate``) by the name of the kernel."""


def figures(config: measured.ConvConfig, stages: Stages) -> Figures:
    """Yield figures of two errors of the kernel against the number m of exponentials: the largest error, with a lower
    bound from Hankel singular values, and the L¹ error, with an upper bound from Jackson's inequality.
    """
    groups: dict[str, list[Series]] = {}
    orders = list(config.orders)
    for name, found in measured.by_order.all(config, stages).items():
        lines = groups.setdefault(GROUPS.get(name, "power laws"), [])
        lines.append(Series(name, orders, found["error"], "both", group=name))
        lines.append(Series(f"{name}, σ_(m+1)", orders, found["sigma"][orders], "dashed", group=name))
        if name == measured.PROOF:
            lines.append(Series(f"{name}, polynomials of the proof", orders, found["proof"], "dotted"))
    y_range = (1e-20, 30.0)  # leaves room for the legend
    yield Figure(
        "orders",
        f"The largest error over {config.horizon} steps of a sum of exponentials with m states, and the Hankel "
        "singular value σ_(m+1) (dashed), a lower bound of the ℓ¹ error of any sum.",
        [Panel(title, "m", "sup |ρ - ρ̂|", lines, "linear", "log", y_range) for title, lines in groups.items()],
    )
    panels = []
    for name, found in measured.rate.all(config, stages).items():
        lines = [Series("ours", config.jackson_orders, found["ours"], "both")]
        for alpha, proof, bound in zip(config.alphas, found["proof"], found["bound"], strict=True):
            group = f"α = {alpha}"
            lines.append(Series(f"polynomials, {group}", config.jackson_orders, proof, "solid", group))
            lines.append(Series(f"bound, {group}", config.jackson_orders, bound, "dashed", group))
        panels.append(Panel(name, "m", "∫ |ρ - ρ̂| dt", lines, "log", "log"))
    yield Figure(
        "jackson",
        "The L¹ error in continuous time: our sums, the polynomials in e^(-βt/(α+1)) of the proof of theorem A.3 "
        f"(β = {measured.BETA:g}), and its upper bound (dashed).",
        panels,
    )


def claims(config: measured.ConvConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on these topics: the approximation of any convolution, the number of states,
    lower and upper bounds on the error of the kernel, the error of the layer's output, and a comparison with trained
    models.
    """
    tolerances, orders = measured.by_tolerance.all(config, stages), measured.by_order.all(config, stages)
    yield universality(config, tolerances)
    yield needed(config, tolerances, orders)
    yield hankel_limit(config, orders)
    yield output(config, tolerances)
    yield from jackson_claims(config, measured.rate.all(config, stages))
    yield against_training(config, measured.trained(stages))


def universality(config: measured.ConvConfig, tolerances: Found) -> Claim:
    """Return the claim of proposition 3.2 of SSM-UA with its verdict: one linear layer approximates any convolution."""
    met = [bool(e <= t) for f in tolerances.values() for e, t in zip(f["error"], config.tolerances, strict=True)]
    last = config.tolerances[-1]
    return Claim(
        "one linear layer approximates any convolution: sup |ρ - ρ̂| < ε for every ε (proposition 3.2, equation 14)",
        "for every kernel and ε there is an m",
        f"{sum(met)} of {len(met)} pairs of kernel and ε met; states for {last:g}: "
        f"{listed({name: found['order'][-1] for name, found in tolerances.items()}, '.0f')}",
        rules.most(sum(met), len(met)),
        f"{len(tolerances)} kernels over {config.horizon} steps, ε from {config.tolerances[0]:g} to {last:g}; weights "
        "from linear algebra, errors measured at every step.",
    )


def needed(config: measured.ConvConfig, tolerances: Found, orders: Found) -> Claim:
    """Return a claim, with its verdict, on the number of states that a layer needs to approximate a kernel. Remark 3.3
    of SSM-UA leaves this number open.
    """
    pairs = [
        (int(order), int((orders[name]["sigma"] >= tolerance).sum()))
        for name, found in tolerances.items()
        for order, tolerance in zip(found["order"], config.tolerances, strict=True)
    ]
    within, fewer = (sum(test(m, limit) for m, limit in pairs) for test in (int.__le__, int.__lt__))
    proof = ""
    if measured.PROOF in orders:
        last = orders[measured.PROOF]
        proof = (
            f" The polynomials in e^(-t) of the proof have an error of {last['proof'][-1]:.2g} for {measured.PROOF} "
            f"at m = {config.orders[-1]}, our sums {last['error'][-1]:.1e}."
        )
    return Claim(
        "a kernel needs at most as many states as it has Hankel singular values of at least ε",
        "left open (remark 3.3)",
        f"at most that many in {within} of {len(pairs)} cases, fewer in {fewer}",
        rules.ours(rules.most(within, len(pairs))),
        f"The singular values of ρ(i + j) can be computed before any fit and predict the order.{proof}",
    )


def hankel_limit(config: measured.ConvConfig, orders: Found) -> Claim:
    """Return a claim with its verdict on sums of m exponentials and the Hankel singular value σ_(m+1) of the kernel.
    The ℓ¹ error of every sum is at least σ_(m+1). For the sum that this library fits, the largest error at any time is
    at most σ_(m+1).
    """
    low, high = [], []
    for found in orders.values():
        sigma = found["sigma"][found["order"].astype(int)]
        above = sigma > config.rounding
        low += (found["l1_error"] / sigma)[above].tolist()
        high += (found["error"] / sigma)[above].tolist()
    within = sum(ratio <= 1 for ratio in high)
    return Claim(
        "m states have an ℓ¹ error of at least σ_(m+1); our sup error is at most σ_(m+1)",
        "no statement; Adamyan, Arov and Krein",
        f"ℓ¹ error at least {min(low):.3g} σ_(m+1); sup error at most {max(high):.3g} σ_(m+1), within σ_(m+1) in "
        f"{within} of {len(high)} cases, in the median {np.median(high):.2g} σ_(m+1)",
        rules.given(min(low) >= 1 - config.allowance, rules.most(within, len(high))),
        "A sum of m modes has a Hankel matrix of rank m, and the norm of the remainder is at most the ℓ¹ norm of its "
        "symbol. The sup error has no such bound and can be smaller.",
    )


def output(config: measured.ConvConfig, tolerances: Found) -> Claim:
    """Return a claim with its verdict: the error of the layer's output is at most the bound that follows from the error
    of its kernel (SSM-UA, equations 43 to 46).
    """
    names = ("layer_error", "l1_error", "rounding")
    off, certified, rounding = (np.concatenate([found[name] for found in tolerances.values()]) for name in names)
    ratios = off / (certified + rounding)
    within = int((ratios <= 1).sum())
    return Claim(
        "the output differs from the convolution by at most the bound from the kernel's error (equation 45)",
        "sup |y - ŷ| ≤ ‖ρ - ρ̂‖₁ sup |x|",
        f"within the bound in {within} of {len(ratios)} layers with an allowance for rounding, 2 eps Σ |w|/(1-|λ|)²; "
        f"in {int((off <= certified).sum())} without; at most {ratios.max():.3g} times the bound",
        rules.most(within, len(ratios)),
        "Layers with the map 'best' in double precision, on noise, a step and an impulse. The allowance is at most "
        f"{rounding.max():.1e}.",
    )


def jackson_claims(config: measured.ConvConfig, rates: Found) -> Claims:
    """Yield claims, with their verdicts, on two statements in theorem A.3 of IAT: the convergence rate of the error,
    and the factor 1/β in its bound.
    """
    orders, steeper, held = np.array(config.jackson_orders), {}, []
    for name, found in rates.items():
        for alpha, bound in zip(config.alphas, found["bound"], strict=True):
            held += (found["ours"] <= bound)[orders > alpha].tolist()
        above = found["ours"] > config.rounding
        steeper[name] = float(-np.polyfit(np.log(orders[above]), np.log(found["ours"][above]), 1)[0])
    yield Claim(
        "kernels that decay exponentially with α derivatives have R(m) ≤ C(α) γ / m^α (IAT, theorem A.3)",
        f"at least as fast as m^-α, α = {listed(config.alphas, '')}",
        f"ours below the bound in {sum(held)} of {len(held)} cases; fitted slopes "
        + each("{} m^-{:.1f}", steeper.items()),
        rules.most(sum(held), len(held)) if min(steeper.values()) > max(config.alphas) else rules.graded(False, True),
        "The constant of the bound comes from Jackson's inequality for q(s) = ρ/s, s = e^(-βt/(α+1)). The rate says "
        "little here, because analytic kernels are approximated faster than any power of m.",
    )
    gammas = np.concatenate([found["gamma"] for found in rates.values()])
    moved = [float(np.abs(gammas[:, 1] / gammas[:, 0] - 1).max())]
    moved.append(max(abs(float(found["ours_in_other_unit"] / found["ours"][0]) - 1) for found in rates.values()))
    yield Claim(
        "the bound in equation 19 has the factor 1/β",
        "R(m) ≤ C(α) γ d / (β m^α), C(α) universal",
        f"with time in units of {measured.UNIT:g}, γ changes by a relative {moved[0]:.0e}, R({orders[0]}) by "
        f"{moved[1]:.0e}, β and therefore the printed bound by a factor of {1 / measured.UNIT:g}",
        rules.graded(False, max(moved) >= config.moved),
        "R and γ do not depend on the unit of time, β does: the printed bound can be made arbitrarily small by the "
        "choice of unit. Without 1/β the theorem holds (an erratum).",
    )


def against_training(config: measured.ConvConfig, found: Mapping[str, np.ndarray]) -> Claim:
    """Return a claim, with its verdict, that compares the losses of constructed exponential sums with published losses
    of trained models.
    """
    losses = {
        name: dict(zip(config.trained_orders, found[measured.slug(name)], strict=True)) for name in measured.TRAINED
    }
    best = min(PUBLISHED.values())
    firsts = {name: next((m for m, loss in row.items() if loss <= best), None) for name, row in losses.items()}
    return Claim(
        f"a few constructed states are better than 64 trained ones (ρ = 1/(1+t)^1.1, {config.trained_horizon} steps)",
        f"loss at width 64: {listed(PUBLISHED, 'g')}",
        "expected squared error at the last step under unit white noise, Σ (ρ - ρ̂)²: "
        + "; ".join(f"{name}: {each('{1:.1e} at m = {0}', row.items())}" for name, row in losses.items()),
        rules.most(sum(first is not None for first in firsts.values()), len(firsts)),
        f"Number of states that suffice for the best published loss: {each('{1} ({0})', firsts.items())}. The "
        "published loss is a weighted mean over time of squared output errors (weights taken to sum to one); the last "
        "step has the largest expectation, so ours is at least as strict. Not a sup error.",
    )


run = computing(measured.by_order, measured.by_tolerance, measured.rate, measured.trained)
SMOKE = measured.ConvConfig(
    kernels=("power 1.1", "three exponentials", "damped cosine", "shift"), horizon=160, orders=(2, 4, 8),
    tolerances=(1e-2, 1e-4), alphas=(1, 2), jackson_orders=(2, 4, 8), jackson_steps=200, trained_orders=(4, 8),
)  # fmt: skip
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=measured.ConvConfig(), minutes=(0.1, 1))
