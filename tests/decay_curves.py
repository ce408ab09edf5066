"""Memory curves whose kind of decay is known, drawn at random, for the tests of ``stablessm.instruments.decay``.

Every curve can be told from the others in principle. An exponential or a power law falls at least thirtyfold before
it reaches the floor, the first over at least 16 samples, the slowest mode of a sum by itself; a power law
(1 + t/t0)^(-p) is seen to at least 20 t0. A plateau, at least 10^-3 of the top, is at least a third of the curve. An
oscillation has at least 12 maxima in view, 30 on a power law. A finite memory is longer than 8 samples, ends in the
first four fifths, and there it (or the envelope of its wave) is at least 10^-3 of the top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

KINDS = ("exponential", "polynomial", "none", "finite")
SIZES = (64, 250, 1000, 10_000)
FALL = math.log(30)


@dataclass(frozen=True)
class Curve:
    kind: str
    time: np.ndarray
    value: np.ndarray
    truth: float  # the rate, the exponent or the last lag
    oscillates: bool
    note: str


def draw(rng: np.random.Generator, kind: str | None = None) -> Curve:
    """One curve with noise of 0-10 %, oscillation on a third, a floor of 1e-12 to 1e-6 on half, any time unit."""
    kind = kind or str(rng.choice(KINDS))
    n, dt, scale = int(rng.choice(SIZES)), 10 ** rng.uniform(-2, 1), 10 ** rng.uniform(-3, 3)
    floor = 10 ** rng.uniform(-12, -6) if rng.random() < 0.5 else 0.0
    k = np.arange(n, dtype=float)
    shape = {"exponential": _exponential, "polynomial": _polynomial, "none": _none, "finite": _finite}[kind]
    clean, truth, seen, note = shape(rng, k, floor or 1e-100)
    longest = seen / (30 if kind == "polynomial" else 12)
    oscillates = rng.random() < 0.45 and (longest > 2.5 or kind == "finite")
    if oscillates:
        half_period = math.exp(rng.uniform(math.log(2.5), math.log(max(longest, 2.6))))
        wave = np.abs(np.cos(math.pi * k / half_period + rng.uniform(0, math.pi)))
        clean = clean * (wave if rng.random() < 0.7 else 0.2 + 0.8 * wave)
        note += f", wave of {half_period:.1f} samples"
    sigma = rng.uniform(0, 0.1)
    value = clean * np.abs(1 + sigma * rng.standard_normal(n))
    if floor:
        bell = rng.standard_normal(n)
        value = value + floor * (np.abs(bell) if rng.random() < 0.5 else np.abs(1 + 0.1 * bell))
    truth = {"exponential": truth / dt, "polynomial": truth, "none": truth, "finite": truth * dt}[kind]
    return Curve(kind, k * dt, scale * value, truth, oscillates, f"{note}, n {n}, noise {sigma:.3f}, floor {floor:.0e}")


def _exponential(rng, k, floor):
    n, depth = len(k), -math.log(floor)
    rate = math.exp(rng.uniform(math.log(FALL / n), math.log(depth / 16)))
    seen = min(n, depth / rate)
    style = rng.choice(["one mode", "two modes", "three modes", "hump"], p=[0.5, 0.2, 0.15, 0.15])
    if style == "hump" and rate * seen > 3 * FALL and rate < 0.2:
        power = int(rng.integers(1, 3))
        with np.errstate(divide="ignore"):
            clean = np.exp(power * (np.log(rate * k / power) + 1) - rate * k)
    else:
        clean = np.exp(-rate * k)
        for _ in range({"two modes": 1, "three modes": 2}.get(style, 0)):
            faster, weight = rng.uniform(2, 20), 10 ** rng.uniform(-1, 1.5)
            takeover = math.log(weight) / (rate * (faster - 1))
            if rate * (seen - takeover) > 1.2 * FALL + math.log1p(weight):
                clean = clean + weight * np.exp(-faster * rate * k)
        clean = clean / clean.max()
    return clean, rate, seen, f"{style} of rate {rate:.2g} a sample"


def _polynomial(rng, k, floor):
    while True:
        exponent, start = rng.uniform(0.5, 4), rng.uniform(1, 10)
        seen = min(len(k), start * (floor ** (-1 / exponent) - 1))
        if seen > 20 * start and exponent * math.log1p(seen / start) > FALL:
            return (1 + k / start) ** -exponent, exponent, seen, f"(1 + k/{start:.2g})^-{exponent:.2g}"


def _none(rng, k, floor):
    n = len(k)
    style = rng.choice(["constant", "growing", "plateau after modes", "plateau after power"])
    level = 10 ** rng.uniform(-3, -0.3)
    arrival = n * rng.uniform(0.1, 0.6)  # where the falling part is a tenth of the plateau
    if style == "growing":
        clean = np.exp(rng.uniform(0.5, 5) * k / n)
    elif style == "plateau after modes":
        clean = level + np.exp(k / arrival * math.log(level / 10))
    elif style == "plateau after power":
        exponent = rng.uniform(2, 4)
        clean = level + (1 + k / arrival * ((10 / level) ** (1 / exponent) - 1)) ** -exponent
    else:
        clean = np.ones(n)
    return clean, math.nan, n, f"{style} {level:.2g}"


def _finite(rng, k, floor):
    n = len(k)
    last = int(rng.uniform(8, 0.8 * n))
    x = k / (last + 1)
    style = rng.choice(["box", "ramp", "modes", "power"])
    fall = 10 ** rng.uniform(-3, 0)
    clean = {
        "box": np.ones(n),
        "ramp": 1 - 0.95 * x,
        "modes": fall**x,
        "power": (1 + x * (fall**-0.5 - 1)) ** -2.0,
    }[str(style)]
    return np.where(k <= last, clean, 0), float(last), last, f"{style} of {last} samples"
