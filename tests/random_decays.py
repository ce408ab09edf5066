"""Memory curves of known decay, drawn at random, for the tests and the benchmark of ``stablessm.instruments.decay``.

Every curve is a law times a wave (a quarter of the curves), with another first value (a third), multiplicative noise
(a fifth), and a floor (half), at 8 to 5000 samples in any unit of time and value. The laws:

- exponential: one mode, a mode after up to three faster ones, modes of both signs, a repeated mode t^k e^(-βt); its
  slowest mode alone would fall e^0.3 to e^300 times within the window;
- polynomial: (t + t0)^(-p), 1/((t + t0)(t + t1)), or (t + t0)^(-p) after a faster mode, seen for 0.3 to 3000 times t0;
- stretched: exp(-(t/τ)^s) with s in 0.3-0.8 or 1.3-3, a third of them Gaussian, falling e^0.3 to e^300 times;
- none: constants, growth, and plateaus of at least 10^-3 of the law's largest value after any of the laws above;
- finite: a box, a ramp or a law that is zero from some sample on.

Definitions.

- **The class is right** if ``fit.kind`` is the kind of the law, and **wrong** if it is another kind than the law's and
  than ``undecided``.
- **The interval covers** if the truth is inside ``fit.interval``: the slowest mode's rate, p, or s. It is counted
  wherever the class is right, also where too little is seen.
- **A tenth of the range is seen** (``Curve.seen``) if the law by itself, clear of faster parts and at least ten times
  above the floor, falls at least tenfold over at least 12 samples; if a power law is seen for at least ten times t0;
  if a plateau takes at least a tenth of the window and at least 8 samples, a finite memory at least 8 samples and at
  most nine tenths of the window; and if a wave has at least 12 maxima in that range.

Floors are at most 10^-6 of the largest value (rounding, constant or random), or at most 10^-2.5 of the values after the
first and known: ``Curve.floor`` is passed to ``fit_decay``. At least four samples are a hundred times above the floor:
a decay within fewer is the same as a memory that ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stablessm.instruments.decay import DecayFit, fit_decay

KINDS = ("exponential", "polynomial", "stretched", "none", "finite")
SHARES = (0.35, 0.25, 0.15, 0.17, 0.08)
FEWEST = 12


@dataclass(frozen=True)
class Curve:
    kind: str
    time: np.ndarray
    value: np.ndarray
    truth: float
    """The rate, the exponent, the stretch or the last lag."""
    floor: float
    seen: bool
    note: str

    def fit(self) -> DecayFit:
        return fit_decay(self.time, self.value, floor=self.floor or None)


@dataclass(frozen=True)
class _Law:
    """A curve in samples, the truth, and the samples between which the law is seen by itself."""

    value: np.ndarray
    truth: float
    begin: float
    end: float
    note: str


@dataclass(frozen=True)
class Rates:
    curves: int
    seen: int
    wrong: float
    """Share of wrong classes."""
    missed: float
    """Share of wrong and undecided ones where a tenth of the range is seen."""
    covered: float
    """Share of the intervals that cover the truth."""
    confusions: dict[str, int]


def rates(curves: Iterable[Curve]) -> Rates:
    """Fit all curves and count."""
    pairs = [(curve, curve.fit()) for curve in curves]
    wrong = [f"{curve.kind} as {fit.kind}" for curve, fit in pairs if fit.kind not in (curve.kind, "undecided")]
    seen = [fit.kind == curve.kind for curve, fit in pairs if curve.seen]
    covered = [
        fit.interval[0] * (1 - 1e-6) <= curve.truth <= fit.interval[1] * (1 + 1e-6)
        for curve, fit in pairs
        if fit.kind == curve.kind and fit.interval is not None
    ]
    return Rates(
        len(pairs),
        len(seen),
        len(wrong) / len(pairs),
        1 - float(np.mean(seen)),
        float(np.mean(covered)),
        dict(Counter(wrong)),
    )


def draw(rng: np.random.Generator, kind: str | None = None) -> Curve:
    """One curve of that kind, or of any."""
    kind = kind or str(rng.choice(KINDS, p=SHARES))
    n, dt, scale = (
        int(math.exp(rng.uniform(math.log(8), math.log(5001)))),
        10 ** rng.uniform(-3, 2),
        10 ** rng.uniform(-3, 3),
    )
    floor, known, style = _floor(rng)
    k = np.arange(n, dtype=float)
    laws = {
        "exponential": _exponential,
        "polynomial": _polynomial,
        "stretched": _stretched,
        "none": _none,
        "finite": _finite,
    }
    while True:
        law = laws[kind](rng, k, 10 * floor or 1e-300)
        value, seen, note = law.value / law.value.max(), law.end - law.begin >= FEWEST, law.note
        if kind == "finite" or (value > 100 * max(floor, 1e-10)).sum() >= 4:
            break
    if rng.random() < 0.25:
        half_period = math.exp(rng.uniform(math.log(2.5), math.log(4 * n)))
        phase, depth = rng.uniform(0, math.pi), rng.choice([1.0, rng.uniform(0.3, 0.99)])
        value = value * np.sqrt((1 + depth * np.cos(2 * math.pi * k / half_period + 2 * phase)) / (1 + depth))
        seen = seen and law.end - law.begin >= 12 * half_period
        note += f", wave of {half_period:.3g} samples and depth {depth:.2g}"
    if rng.random() < 0.33:
        jump = 10 ** rng.choice([rng.uniform(0, 2), rng.uniform(-2, 0)], p=[0.8, 0.2])
        value = np.where(k == 0, jump * max(value[0], 1e-3), value)
        note += f", first value times {jump:.3g}"
    if rng.random() < 0.2:
        sigma = 10 ** rng.uniform(-4, -1.3)
        value = value * np.abs(1 + sigma * rng.standard_normal(n))
        note += f", noise {sigma:.2g}"
    if floor:
        floor *= (value[1:].max() if known else 0.0) or value.max()
        value = _raised(rng, value, floor, style)
        note += f", {style} floor {floor:.1e}{' known' if known else ''}"
    truth = {"exponential": law.truth / dt, "finite": law.truth * dt}.get(kind, law.truth)
    return Curve(kind, k * dt, scale * value, truth, scale * floor * known, bool(seen), f"n {n}, {note}")


def draw_interfering(rng: np.random.Generator) -> Curve:
    """The norm of one to three outputs of two to four damped waves, with beats or with unrelated rates and frequencies.

    The truth is the slowest rate. It is seen where the slowest waves are 1/1.1 of all and fall tenfold over 12 samples
    that are 30 times above the floor.
    """
    n, outputs, style = int(_log_uniform(rng, 60, 4000)), int(rng.integers(1, 4)), str(rng.choice(["beats", "free"]))
    k, rate = np.arange(n, dtype=float), _log_uniform(rng, 1, 200) / n
    carrier = _log_uniform(rng, 6 * math.pi / n, math.pi)
    wave, sizes, slowest = np.zeros((outputs, n)), np.zeros(n), np.zeros(n)
    for mode in range(int(rng.integers(2, 5))):
        faster, frequency = (1.0, carrier) if mode == 0 or style == "beats" else (_log_uniform(rng, 1, 10), 0.0)
        if style == "beats" and mode:
            frequency += float(rng.choice([-1, 1])) * _log_uniform(rng, 0.3 * math.pi / n, carrier)
        elif mode and rng.random() < 0.75:
            frequency = _log_uniform(rng, math.pi / n, math.pi)
        size = rng.standard_normal((outputs, 1)) * 10 ** rng.uniform(-0.5, 0.5)
        phase, decay = rng.uniform(0, 2 * math.pi, (outputs, 1)), np.exp(-faster * rate * k)
        wave += size * decay * np.cos(frequency * k + phase)
        sizes += np.linalg.norm(size) * decay
        slowest += np.linalg.norm(size) * decay * (faster == 1)
    value = np.linalg.norm(wave, axis=0)
    floor = value.max() * 10 ** rng.uniform(-12, -7) * (rng.random() < 0.5)
    alone = slowest[(slowest >= sizes / 1.1) & (slowest > 30 * floor)]
    seen = len(alone) >= FEWEST and alone.max() > 10 * alone.min()
    value = value + floor * np.abs(rng.standard_normal(n)) / 3
    return Curve("exponential", k, value, rate, 0.0, bool(seen), f"n {n}, {style}")


def _floor(rng: np.random.Generator) -> tuple[float, bool, str]:
    """(the floor as a fraction of the largest value, whether it is known, its shape)."""
    style = str(rng.choice(["rounding", "constant", "random"]))
    chance = rng.random()
    if chance < 0.5:
        return 0.0, False, style
    return (10 ** rng.uniform(-12, -6), False, style) if chance < 0.85 else (10 ** rng.uniform(-6, -2.5), True, style)


def _raised(rng: np.random.Generator, value: np.ndarray, floor: float, style: str) -> np.ndarray:
    if style == "rounding":
        return np.round(value / floor) * floor
    if style == "constant":
        return value + floor * np.clip(1 + 0.1 * rng.standard_normal(len(value)), 0, 1)
    return value + floor * np.minimum(np.abs(rng.standard_normal(len(value))) / 3, 1)


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _first(mask: np.ndarray) -> float:
    """The first sample of those, infinity if there is none."""
    return float(np.argmax(mask)) if mask.any() else math.inf


def _alone(whole: np.ndarray, law: np.ndarray, lowest: float) -> tuple[float, float]:
    """From where the law is the whole curve within a tenth, to where it reaches ``lowest``; empty if it falls less than
    tenfold there."""
    off = np.abs(whole - law) > 0.1 * law
    begin = float(len(law) - np.argmax(off[::-1])) if off.any() else 0.0
    end = min(_first(law < lowest * whole.max()), float(len(law)))
    if end - begin < 2 or law[int(begin)] < 10 * law[int(end) - 1]:
        return math.inf, end
    return begin, end


def _exponential(rng: np.random.Generator, k: np.ndarray, lowest: float) -> _Law:
    n = len(k)
    rate = _log_uniform(rng, 0.3, 300) / n
    style = str(rng.choice(["one mode", "faster modes", "signed modes", "repeated"], p=[0.35, 0.4, 0.15, 0.1]))
    slowest = np.exp(-rate * k)
    value, truth = slowest, rate
    if style == "repeated":
        power = int(rng.integers(1, 3))
        value = (k + _log_uniform(rng, 0.1, 3) * power) ** power * slowest
        begin = min(2 * power / rate, n)
        end = min(_first((value < lowest * value.max()) & (k > power / rate)), n)
        return _Law(value, truth, begin if end > begin + 2.3 / rate else math.inf, end, f"k^{power} e^-{rate:.2g}k")
    note = f"e^-{rate:.2g}k"
    if style != "one mode":
        for _ in range(int(rng.integers(1, 4))):
            faster, weight = rate * _log_uniform(rng, 1.5, 30), 10 ** rng.uniform(-1, 1.5)
            weight *= -1 if style == "signed modes" and rng.random() < 0.7 else 1
            value = value + weight * np.exp(-faster * k)
            note += f" {weight:+.2g} e^-{faster:.2g}k"
    value = np.abs(value)
    return _Law(value, truth, *_alone(value, slowest, lowest), note)


def _polynomial(rng: np.random.Generator, k: np.ndarray, lowest: float) -> _Law:
    n = len(k)
    t0 = max(n / _log_uniform(rng, 0.3, 3000), 0.3)
    p = max(_log_uniform(rng, 0.3, 4), 0.3 / math.log1p(n / t0))
    style = str(rng.choice(["power", "product", "after a mode"], p=[0.6, 0.2, 0.2]))
    law = (1 + k / t0) ** -p
    value, note = law, f"(k + {t0:.3g})^-{p:.3g}"
    if style == "product":
        t1 = t0 + _log_uniform(rng, 0.03, 1) * t0 + rng.integers(0, 2)
        p, value, note = 2.0, 1 / ((1 + k / t0) * (1 + k / t1)), f"1/((k + {t0:.3g})(k + {t1:.3g}))"
        t0, law = t1, value
    if style == "after a mode":
        faster, weight = _log_uniform(rng, 1, 100) / t0, 10 ** rng.uniform(-1, 1.5)
        value, note = law + weight * np.exp(-faster * k), f"{note} + {weight:.2g} e^-{faster:.2g}k"
    begin, end = _alone(value, law, lowest)
    return _Law(value, p, begin if end >= 10 * max(t0, begin) else math.inf, end, note)


def _stretched(rng: np.random.Generator, k: np.ndarray, lowest: float) -> _Law:
    s = float(rng.choice([2.0, rng.uniform(0.3, 0.8), rng.uniform(1.3, 3)]))
    tau = len(k) / _log_uniform(rng, 0.3, 300) ** (1 / s)
    value = np.exp(-((k / tau) ** s))
    return _Law(value, s, *_alone(value, value, lowest), f"exp(-(k/{tau:.3g})^{s:.3g})")


def _none(rng: np.random.Generator, k: np.ndarray, lowest: float) -> _Law:
    n = len(k)
    style = str(rng.choice(["constant", "growth", "plateau"], p=[0.15, 0.25, 0.6]))
    if style == "constant":
        return _Law(np.ones(n), math.nan, 0, n, style)
    if style == "growth":
        rise = _log_uniform(rng, 0.3, 30)
        shape = str(rng.choice(["exponential", "power"]))
        value = np.exp(rise * (k / n - 1)) if shape == "exponential" else ((k + 1) / n) ** (rise / 5)
        return _Law(value, math.nan, 0, n, f"{shape} growth by e^{math.log(value[-1] / value[0]):.2g}")
    level = 10 ** rng.uniform(-3, -0.3)
    falling = (_exponential, _polynomial, _stretched)[rng.integers(3)](rng, k, lowest)
    part = falling.value / falling.value.max()
    arrival = n - _first((part > 0.1 * level)[::-1])
    alone = arrival if n - arrival >= max(8, n / 10) else math.inf
    return _Law(
        level + part,
        math.nan,
        alone if alone == math.inf else min(alone, n - FEWEST),
        n,
        f"{level:.2g} + {falling.note}",
    )


def _finite(rng: np.random.Generator, k: np.ndarray, lowest: float) -> _Law:
    n = len(k)
    last = int(rng.uniform(0, n - 1))
    x = k / (last + 1)
    fall = 10 ** rng.uniform(-2, 0)
    shapes = {"box": 1 + 0 * x, "ramp": 1 - 0.95 * x, "modes": fall**x, "power": (1 + x * (fall**-0.5 - 1)) ** -2.0}
    style = str(rng.choice(list(shapes)))
    seen = last >= 8 and n - last >= max(8, n / 10) and lowest < 1e-4
    return _Law(
        np.where(k <= last, shapes[style], 0), float(last), 0 if seen else math.inf, n, f"{style} of {last} samples"
    )
