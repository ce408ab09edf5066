"""The claims of ``ext-precision`` on the effect of rounding recurrent weights."""

from __future__ import annotations

from itertools import product

import numpy as np

from stablessm.experiments.beyond.precision import rounding
from stablessm.experiments.frame import Claim, Claims, Stages, rules
from stablessm.experiments.frame.words import each, listed

NO_VALUE = "— (ours; the papers compute in one precision)"


def claims(config: rounding.PrecisionConfig, stages: Stages) -> Claims:
    """Yield claims, with their verdicts, on the effect of rounding on single modes, kernels, perturbation errors and
    memory functions.
    """
    yield stable_claim(config, stages)
    yield direct_claim(config, stages)
    yield from (kernel_claim(config, stages, format) for format in rounding.FORMATS)
    yield size_claim(config, stages)
    yield curve_claim(config, stages)
    yield memory_claim(config, stages)


def stable_claim(config: rounding.PrecisionConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: with stable maps, rounding makes no mode unstable."""
    lost, single = (dict.fromkeys(rounding.MAPS, 0) for _ in range(2))
    for time, map in product(rounding.TIMES, rounding.MAPS):
        lost[map] += int(rounding.whole_models(stages, time, map)["lost"].sum())
        modes = rounding.single_modes(stages, time, map)
        single[map] += sum(int(np.isinf(modes[format]).sum()) for format in rounding.FLOATS)
    return Claim(
        "a stable map keeps every mode, in every format",
        NO_VALUE,
        f"modes lost in models: {listed(lost, '')}",
        rules.ours(rules.some([lost[map] + single[map] == 0 for map in rounding.STABLE])),
        f"Of single modes up to the longest time scale, {each('{} loses {}', single.items())}.",
    )


def direct_claim(config: rounding.PrecisionConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: with direct maps, rounding makes slow modes unstable."""
    first, lost = {}, {}
    for time in rounding.TIMES:
        modes, models = rounding.single_modes(stages, time, "direct"), rounding.whole_models(stages, time, "direct")
        for format in rounding.FLOATS:
            first[f"{time} {format}"] = float(modes["scale"][np.isinf(modes[format])].min(initial=np.inf))
        for column, format in enumerate(rounding.FORMATS):
            lost[f"{time} {format}"] = int(models["lost"][-1, column])
    limits = [f"{name} from τ = {tau:.3g}" for name, tau in first.items() if np.isfinite(tau)]
    safe = [name for name, tau in first.items() if np.isinf(tau)]
    return Claim(
        "a direct map loses its slowest modes",
        NO_VALUE,
        f"of {config.widths[-1]} modes: {listed(lost, '')}",
        rules.ours(rules.some([count > 0 or np.isfinite(first.get(name, np.inf)) for name, count in lost.items()])),
        f"Single modes are lost in {', '.join(limits) or 'no format'}; up to τ = {config.longest:.0e} none in "
        f"{', '.join(safe) or 'no other'}. Relative rounding keeps the sign of λ = −1/τ, but not λ = e^(−1/τ) below 1.",
    )


def kernel_claim(config: rounding.PrecisionConfig, stages: Stages, format: str) -> Claim:
    """Return a claim with its verdict: rounding hardly changes the kernels of models with stable maps."""
    column = rounding.FORMATS.index(format)
    worst = {
        map: [float(rounding.whole_models(stages, t, map)["change"][:, column].max()) for t in rounding.TIMES]
        for map in rounding.MAPS
    }
    return Claim(
        f"{format}: a stable map keeps working (its kernel changes by at most {config.works:.0%})",
        NO_VALUE,
        listed({map: max(worst[map]) for map in rounding.STABLE}, ".2g"),
        rules.ours(rules.some([change <= config.works for map in rounding.STABLE for change in worst[map]])),
        f"Largest relative changes over widths up to {config.widths[-1]}, continuous and discrete: "
        f"{', '.join(f'{map} {a:.2g} and {b:.2g}' for map, (a, b) in worst.items())}.",
    )


def size_claim(config: rounding.PrecisionConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: a rounding error of size β changes the kernel about as much as a random
    perturbation of size β, and by no more than the theoretical bound on E(β), the largest change by a perturbation of
    size β.
    """
    ratios, below = {}, []
    for map, time in product(rounding.MAPS, rounding.TIMES):
        found = rounding.whole_models(stages, time, map)
        below.append(bool((found["change"] <= found["bound"]).all()))
        ratios[f"{map} {time}"] = found["change"] / found["random"]
    alike = [bool((r > 1 / config.alike).all() and (r < config.alike).all()) for r in ratios.values()]
    return Claim(
        "rounding acts as a random perturbation of its size β",
        NO_VALUE,
        f"below the bound of E(β) in {sum(below)} of {len(below)} families; like random draws in {sum(alike)}",
        rules.ours(rules.graded(all(below) and all(alike), all(below))),
        "Change by rounding over the largest by random draws of the same β: "
        f"{', '.join(f'{name} {r.min():.2g} to {r.max():.2g}' for name, r in ratios.items())}; within a factor "
        f"{config.alike:g} counts as alike.",
    )


def curve_claim(config: rounding.PrecisionConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: the perturbation error E(β) is the same whether it is measured in float32 or in
    float64, wherever E(β) is above the rounding error.
    """
    off, hidden = {}, {}
    for time, map in product(rounding.TIMES, rounding.CURVES):
        truth, single, half = (rounding.measured(stages, time, map, f) for f in ("float64", "float32", "bfloat16"))
        seen = (truth.lower > single.lower[0] / config.agrees) & (truth.lower < np.finfo(np.float32).max ** 0.5)
        off[f"{map} {time}"] = float(np.abs(single.lower[seen] / truth.lower[seen] - 1).max(initial=0))
        hidden[f"{map} {time}"] = (half.lower[0], float(truth.radius[truth.lower > half.lower[0]].min(initial=np.inf)))
    agree = [value <= 2 * config.agrees for value in off.values()]  # half of it may be rounding
    return Claim(
        "E_m(β) measured in float32 equals E_m(β) measured in float64",
        NO_VALUE,
        f"relative difference at most {max(off.values()):.1e} where E is {1 / config.agrees:.0f} times the rounding "
        "error",
        rules.ours(rules.some(agree)),
        f"Float32: {listed(off, '.1e')}. In bfloat16 the curve begins at its rounding error and is meaningful only "
        "from larger β on: "
        f"{', '.join(f'{name} {error:.1e} (β = {radius:.1g})' for name, (error, radius) in hidden.items())}.",
    )


def memory_claim(config: rounding.PrecisionConfig, stages: Stages) -> Claim:
    """Return a claim with its verdict: memory functions measured in low precision are correct wherever they are above
    the rounding level that the measurement reports.
    """
    worst, floors = {}, {}
    for format in rounding.FLOATS:
        pairs = [
            (rounding.memory(stages, time, map, "float64"), rounding.memory(stages, time, map, format))
            for time, map in product(rounding.TIMES, rounding.CURVES)
        ]
        worst[format] = max(float(np.abs(curve.value - truth.value).max()) / curve.floor for truth, curve in pairs)
        floors[format] = max(curve.floor for _, curve in pairs)
    return Claim(
        "a measured memory function equals the float64 one down to its stated floor",
        NO_VALUE,
        f"largest error over floor: {listed(worst, '.2g')}",
        rules.ours(rules.some([ratio <= 1 for ratio in worst.values()])),
        f"Over {config.steps} steps and {len(rounding.CURVES) * len(rounding.TIMES)} models the floors are "
        f"{each('{1:.1e} ({0})', floors.items())}.",
    )
