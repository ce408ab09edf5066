"""Curves of known decay as physical systems give them, drawn at random, for the tests and the benchmark of ``decay()``.

A second generator beside ``random_decays.py``, with other laws, other noise and other sampling, on which nothing was
tuned:

- exponential: one or two relaxations, damped oscillations, cascades of low passes, conductance ladders, diffusion
  between absorbing walls, a step response minus a relaxation, random linear systems;
- polynomial: (1 + t/τ)^-p, Lorentzian correlations (1 + (t/τ)²)^(-p/2), the relaxation erfcx(√(t/τ)) of order one
  half, |J₀(t/τ)|, sums of two powers, and powers with a cutoff far beyond the window;
- stretched: exp(-(t/τ)^s);
- none: constants, growth, undamped oscillations, and plateaus under each of the above;
- finite: windows, faded or with echoes.

Times are even (half of the curves), begin later than 0, jitter, are geometric, uniformly random, or have a gap; values
have another first value (30 %), multiplicative noise (half of the curves, 1e-8 to 0.3) and floors (40 %).
``Curve.seen`` is true where the law takes most of the window: see each function.
"""

from __future__ import annotations

import math

import numpy as np
from random_decays import Curve
from scipy.special import erfcx, j0

KINDS = ("exponential", "polynomial", "stretched", "none", "finite")
SHARES = (0.4, 0.25, 0.15, 0.15, 0.05)

Law = tuple[np.ndarray, float, bool, str]
"""The curve, its rate, exponent, stretch or last time, whether the law is seen, and a note."""


def draw(rng: np.random.Generator, noise: tuple[float, float] | None = None) -> Curve:
    """Return one curve; all have noise within these limits if they are given."""
    laws = dict(zip(KINDS, (_exponential, _polynomial, _stretched, _none, _finite), strict=True))
    while True:
        time, sampling = _times(rng)
        kind = str(rng.choice(KINDS, p=SHARES))
        value, truth, seen, note = laws[kind](rng, time)
        if value.max() > 0 and (value > 1e-10 * value.max()).sum() >= 6:
            break
    value = value / value.max()
    if rng.random() < 0.3:
        value[0] = max(value[0], 1e-3) * _log_uniform(rng, 0.03, 100)
    sigma = 0.0
    if noise is not None or rng.random() < 0.5:
        sigma = _log_uniform(rng, *(noise or (1e-8, 0.3)))
        value = value * np.abs(1 + sigma * rng.standard_normal(len(time)))
    if rng.random() < 0.4:
        value = _on_a_floor(rng, value, _log_uniform(rng, 1e-14, 1e-6) * value.max())
    unit = _log_uniform(rng, 1e-3, 1e3)
    truth = {"exponential": truth / unit, "finite": truth * unit}.get(kind, truth)
    note = f"n {len(time)} {sampling}, {note}, noise {sigma:.2g}"
    return Curve(kind, time * unit, value * _log_uniform(rng, 1e-3, 1e3), truth, 0.0, seen, note)


def _on_a_floor(rng: np.random.Generator, value: np.ndarray, floor: float) -> np.ndarray:
    noise, style = rng.standard_normal(len(value)), rng.integers(4)
    if style == 0:
        return np.abs(value + floor / 3 * noise)
    if style == 1:
        return value + floor
    return np.round(value / floor) * floor if style == 2 else np.abs(value + 6e-8 * value.max() * noise)


def _times(rng: np.random.Generator) -> tuple[np.ndarray, str]:
    while True:
        n = int(_log_uniform(rng, 12, 3000))
        style = str(
            rng.choice(["even", "late", "jitter", "geometric", "random", "gap"], p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
        )
        time = np.arange(n, dtype=float)
        if style == "late":
            time = time + _log_uniform(rng, 0.1, 5)
        elif style == "jitter":
            time[1:] += rng.uniform(-0.4, 0.4, n - 1)
        elif style == "geometric":
            time[1:] = np.geomspace(_log_uniform(rng, 1e-3, 0.1) * n, n, n - 1)
        elif style == "random":
            time = np.sort(rng.uniform(0, n, n))
        elif style == "gap":
            begin = int(rng.integers(1, n - 3))
            time = np.delete(time, slice(begin, begin + int(rng.integers(1, max(n // 4, 2)))))
        if len(time) > 8 and (np.diff(time) > 0).all():
            return time, style


def _exponential(rng: np.random.Generator, t: np.ndarray) -> Law:
    """Seen if the slowest mode by itself falls e^2.5 to e^4 times, for an oscillation through 14 maxima."""
    end, fall = float(t[-1]), _log_uniform(rng, 2, 100)
    rate, style = fall / end, str(rng.choice(["one", "two", "damped", "cascade", "ladder", "walls", "step", "system"]))
    value, seen = np.exp(-rate * t), fall > 3
    if style == "two":
        weight, faster = _log_uniform(rng, 0.01, 10), _log_uniform(rng, 1.3, 30)
        value = value + weight * np.exp(-faster * rate * t)
        seen = fall - max(math.log(weight) + 2.3, 0) / (faster - 1) > 2.5
    elif style == "damped":
        frequency = _log_uniform(rng, 4 * math.pi / end, math.pi)
        value = np.abs(value * np.cos(frequency * t + rng.uniform(0, 6)))
        seen = fall > 3 and frequency * end > 14 * math.pi
    elif style == "cascade":
        stages = int(rng.integers(1, 4))
        value, seen = (rate * t) ** stages * value, fall > 3 * stages + 4
    elif style == "ladder":  # the response of one node to another
        size = int(rng.integers(2, 9))
        conductance, matrix = np.exp(rng.normal(0, 0.7, size)), np.zeros((size, size))
        for i in range(size - 1):
            matrix[i : i + 2, i : i + 2] += conductance[i] * np.array([[-1, 1], [1, -1]])
        matrix[-1, -1] -= conductance[-1]
        rates, modes = np.linalg.eigh(-matrix)
        rates, weights = rates * rate / rates[0], modes[0] * modes[int(rng.integers(size))]
        value = np.abs((weights * np.exp(-np.outer(t, rates))).sum(1))
        lead = [
            (math.log(abs(w / weights[0]) + 1e-30) + 2.3) / (r / rate - 1)
            for r, w in zip(rates[1:], weights[1:], strict=True)
        ]
        seen = fall - max(0.0, *lead) > 2.5
    elif style == "walls":
        n, (at, source) = np.arange(1, 400), rng.uniform(0.05, 0.95, 2)
        weights = np.sin(n * np.pi * at) * np.sin(n * np.pi * source)
        value, seen = np.abs((weights * np.exp(-np.outer(t + 1e-9 * end, rate * n**2))).sum(1)), fall > 4
    elif style == "step":
        value = np.abs(value - rng.uniform(0.1, 0.95) * np.exp(-rate * _log_uniform(rng, 1.5, 20) * t))
        seen = fall > 6
    elif style == "system":
        size = int(rng.integers(2, 12))
        poles, modes = np.linalg.eig(rng.normal(size=(size, size)))
        poles = poles - poles.real.max()
        poles = poles / np.abs(poles).max() * min(_log_uniform(rng, rate, 50 * rate), math.pi) - rate
        into = np.linalg.solve(modes, rng.normal(size=size).astype(complex))
        out = rng.normal(size=(int(rng.integers(1, 4)), size)) @ modes
        value = np.linalg.norm((np.exp(np.outer(t, poles)) @ (into * out).T).real, axis=1)
        seen = False
    return value, rate, bool(seen), f"{style}, fall {fall:.3g}"


def _polynomial(rng: np.random.Generator, t: np.ndarray) -> Law:
    """Seen if the law falls e^2.5 times within more than 30 τ."""
    style, reach = str(rng.choice(["plain", "lorentz", "half", "bessel", "sum", "cut"])), _log_uniform(rng, 0.5, 3000)
    power = 0.5 if style in ("half", "bessel") else _log_uniform(rng, 0.3, 4)
    x = t * (reach / float(t[-1]))
    value = (1 + x) ** -power
    if style == "lorentz":
        value = (1 + x**2) ** (-power / 2)
    elif style == "half":
        value = erfcx(np.sqrt(x))
    elif style == "bessel":
        reach = min(reach, math.pi / 2 * float(t[-1]))
        value = np.abs(j0(t * (reach / float(t[-1]))))
    elif style == "sum":
        value = value + rng.uniform(0.05, 1) * (1 + x) ** -(power + 1)
    elif style == "cut":
        value = value * np.exp(-t / float(t[-1]) * _log_uniform(rng, 1e-4, 3e-3))
    return value, power, reach > 30 and power * math.log(reach) > 2.5, f"{style}, power {power:.3g} to {reach:.3g}"


def _stretched(rng: np.random.Generator, t: np.ndarray) -> Law:
    """Seen if it falls e^4 times."""
    stretch = float(rng.choice([2.0, 0.5, rng.uniform(0.3, 0.8), rng.uniform(1.3, 3)]))
    fall = _log_uniform(rng, 2, 100)
    return np.exp(-fall * (t / t[-1]) ** stretch), stretch, fall > 4, f"stretch {stretch:.3g}, fall {fall:.3g}"


def _none(rng: np.random.Generator, t: np.ndarray) -> Law:
    """Seen if there is no decay, or if the rest is below a twentieth of a plateau for the last 30 % of the window."""
    style, end = str(rng.choice(["constant", "plateau", "growth", "wave"], p=[0.15, 0.6, 0.15, 0.1])), float(t[-1])
    if style == "constant":
        return np.ones_like(t), math.nan, True, style
    if style == "growth":
        return np.exp(_log_uniform(rng, 0.5, 20) * t / end), math.nan, True, style
    if style == "wave":
        frequency = _log_uniform(rng, 12 * math.pi / end, math.pi)
        return np.abs(1 + rng.uniform(0, 0.9) * np.cos(frequency * t)), math.nan, frequency * end > 14 * math.pi, style
    falling, _, _, note = (_exponential, _polynomial, _stretched)[int(rng.integers(3))](rng, t)
    level, part = _log_uniform(rng, 1e-3, 1), falling / falling.max()
    late = np.flatnonzero(part > 0.05 * level)
    seen = not len(late) or (late[-1] < 0.7 * len(t) and t[late[-1]] < 0.7 * end)
    return level + part, math.nan, bool(seen), f"plateau {level:.3g} under {note}"


def _finite(rng: np.random.Generator, t: np.ndarray) -> Law:
    """Seen if it has more than 12 samples before and after its end."""
    style, last = str(rng.choice(["box", "bell", "fade", "echo"])), rng.uniform(0.1, 0.95) * float(t[-1])
    x = t / last
    shapes = {
        "box": np.ones_like(t),
        "bell": np.cos(np.pi / 2 * np.clip(x, 0, 1)) ** 2 + 0.02,
        "fade": np.exp(-rng.uniform(0.1, 3) * x),
        "echo": (np.arange(len(t)) % int(rng.integers(2, 5)) == 0) * np.exp(-x),
    }
    value = np.where(x <= 1, shapes[style], 0.0)
    heard = np.flatnonzero(value)
    end = int(heard[-1]) if len(heard) else 0
    return value, float(t[end]), len(heard) > 12 and len(t) - end > 12, style


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))
