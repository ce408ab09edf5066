"""Memory curves of named families, drawn at random, for the tests and the benchmark of ``decay()``.

A third generator beside ``random_decays.py``, whose definitions of right, wrong, covered and seen hold here too. Its
laws are families that users meet:

- exponential: sums of close rates, gamma kernels, powers of time with a cut-off within the window, damped waves (also
  with a frequency above the sampling rate), doses that are absorbed and excreted, Butterworth filters, diffusion
  between walls, logistic edges and pulses;
- polynomial: log-periodic laws t^-p (1 + a cos(ω ln t + φ)), powers with a cut-off at least ten times beyond the
  window, broken powers, Mittag-Leffler relaxations and their derivatives, ARFIMA kernels, rational quadratic
  correlations, Bessel functions, first passage times, geometric sums of exponentials;
- stretched: stretched and compressed exponentials, Gaussians around a later time;
- none: levels under each of these laws, growth, undamped and log-periodic waves;
- finite: windows of signal processing, truncated laws, sparse echoes.

A third of the curves has another first value, a sixth begins with zeros (a delay), a sixth is multiplied by a wave; a
third has multiplicative noise (``noise=`` gives all of them noise between two limits), and half have a floor: rounding
to float32, rounding to a multiple, a constant, or the absolute value of a sum with Gaussian noise. Floors above 10^-6
of the values after the first are passed to ``fit_decay``. After its maximum, a curve that falls to half of it has at
least four samples between this half and a hundred times the floor: a decay within fewer is the same as a memory that
ends. A finite memory ends at least ten times above its floor.

**Seen.** As in ``random_decays``: the law by itself falls (or grows) tenfold over at least 12 samples, clear of faster
parts and ten times above the floor, over at least 12 maxima of a wave, and a power law for at least ten times the time
at which it begins. A log-periodic wave of more than 10 % is seen through at least three periods of ln t, each of at
least five samples. A power of time times an exponential shows the exponential from twice the power over the rate on.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from random_decays import FEWEST, Curve, _alone, _first, _Law, _log_uniform
from scipy.signal import butter, get_window
from scipy.special import gammaln, j0, j1

Rng = np.random.Generator
Family = Callable[[Rng, np.ndarray, float], _Law]

KINDS = ("exponential", "polynomial", "stretched", "none", "finite")
SHARES = (0.35, 0.35, 0.12, 0.12, 0.06)


def draw(
    rng: Rng, kind: str | None = None, family: str | None = None, noise: tuple[float, float] | None = None
) -> Curve:
    """Return one curve, of that kind and family if they are given."""
    kind = kind or str(rng.choice(KINDS, p=SHARES))
    name = family or str(rng.choice(list(FAMILIES[kind])))
    n, dt, scale = int(_log_uniform(rng, 12, 5001)), _log_uniform(rng, 1e-3, 100), _log_uniform(rng, 1e-3, 1e3)
    floor, known, style = _floor(rng)
    k = np.arange(n, dtype=float)
    while True:
        law = FAMILIES[kind][name](rng, k, 10 * floor or 1e-300)
        value = law.value / law.value.max()
        fall = value[int(np.argmax(value)) :]
        if (
            kind in ("none", "finite")
            or ((fall < 0.5) & (fall > 100 * max(floor, 1e-10))).sum() >= 4
            or fall[-1] >= 0.5
        ):
            break
    seen, note, truth = law.end - law.begin >= FEWEST, law.note, law.truth
    if rng.random() < 1 / 6 and name not in WAVES:
        carrier, half_period, words = _carrier(rng, n)
        value, note = value * carrier, note + words
        seen = seen and law.end - law.begin >= 12 * half_period
    if rng.random() < 1 / 6:
        delay = int(_log_uniform(rng, 1, n / 4))
        value = np.concatenate([np.zeros(delay), value])
        truth, note = truth + delay * (kind == "finite"), f"{note}, after {delay}"
    if rng.random() < 1 / 3:
        jump = _log_uniform(rng, 0.03, 100)
        value[0], note = jump * max(value[0], 1e-3), f"{note}, first value times {jump:.3g}"
    if noise is not None or rng.random() < 1 / 3:
        sigma = _log_uniform(rng, *(noise or (1e-5, 0.05)))
        value, note = value * np.abs(1 + sigma * rng.standard_normal(len(value))), f"{note}, noise {sigma:.2g}"
    if floor:
        floor *= value[1:].max() or value.max()
        value, note = _raised(rng, value, floor, style), f"{note}, {style} floor {floor:.1e}{' known' if known else ''}"
    truth = {"exponential": truth / dt, "finite": truth * dt}.get(kind, truth)
    time = np.arange(len(value)) * dt
    return Curve(kind, time, scale * value, truth, scale * floor * known, bool(seen), f"{name}: n {n}, {note}")


def _floor(rng: Rng) -> tuple[float, bool, str]:
    chance = rng.random()
    if chance < 0.5:
        return 0.0, False, ""
    if chance < 0.65:
        return 6e-8, False, "float32"
    style = str(rng.choice(["rounding", "constant", "additive"]))
    return (
        (_log_uniform(rng, 1e-13, 1e-6), False, style)
        if chance < 0.85
        else (_log_uniform(rng, 1e-6, 3e-3), True, style)
    )


def _raised(rng: Rng, value: np.ndarray, floor: float, style: str) -> np.ndarray:
    if style == "float32":  # as the difference of two sums
        return np.abs((value + value.max()).astype(np.float32).astype(float) - np.float32(value.max()))
    if style == "rounding":
        return np.round(value / floor) * floor
    if style == "constant":
        return value + floor * rng.uniform(0.3, 1)
    return np.abs(value + floor / 3 * np.clip(rng.standard_normal(len(value)), -3, 3))


def _carrier(rng: Rng, n: int) -> tuple[np.ndarray, float, str]:
    """A wave of the sampled time with its half period, in samples: slow, fast, or faster than the samples."""
    frequency = rng.uniform(math.pi, 40) if rng.random() < 0.25 else _log_uniform(rng, math.pi / n, math.pi)
    visible = abs(frequency / math.pi - round(frequency / math.pi)) * math.pi
    part = float(rng.choice([0.0, rng.uniform(0, 0.9)]))  # of the other phase, or of another output
    phase = frequency * np.arange(n) + rng.uniform(0, 2 * math.pi)
    words = f", wave {frequency:.3g} with {part:.2g}"
    return np.hypot(np.cos(phase), part * np.sin(phase)), math.pi / max(visible, 1e-9), words


def _after(k: np.ndarray, value: np.ndarray, truth: float, begin: float, lowest: float, note: str) -> _Law:
    """The law that is alone from ``begin`` on, until its envelope reaches ``lowest``."""
    first = min(max(begin, 0), len(k))
    end = min(_first((value < lowest * value.max()) & (k > first)), float(len(k)))
    ok = end - first >= 2 and value[int(first)] > 10 * value[int(end) - 1]
    return _Law(value, truth, first if ok else math.inf, end, note)


def _close(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    rate = _log_uniform(rng, 0.5, 300) / len(k)
    rates = rate * (1 + np.concatenate([[0.0], np.exp(rng.uniform(math.log(0.02), 0.7, int(rng.integers(1, 5))))]))
    weights = np.exp(rng.normal(0, 1, len(rates)))
    value = np.exp(-np.outer(k, rates)) @ weights
    note = " + ".join(f"{w:.2g} e^-{r:.3g}k" for w, r in zip(weights, rates, strict=True))
    return _Law(value, rate, *_alone(value, weights[0] * np.exp(-rate * k), lowest), note)


def _gamma(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    power, rate = rng.uniform(-0.9, 6), _log_uniform(rng, 1, 200) / len(k)
    value = (k + (_log_uniform(rng, 0.1, 1) if power < 0 else 0.0)) ** power * np.exp(-rate * k)
    return _after(k, value, rate, 2 * abs(power) / rate, lowest, f"k^{power:.2g} e^-{rate:.3g}k")


def _cut_within(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    power, rate = _log_uniform(rng, 0.2, 3), _log_uniform(rng, 1, 100) / len(k)
    t0 = _log_uniform(rng, 0.3, len(k) / 5)
    value = (1 + k / t0) ** -power * np.exp(-rate * k)
    return _after(k, value, rate, 2 * power / rate - t0, lowest, f"(k + {t0:.3g})^-{power:.2g} e^-{rate:.3g}k")


def _damped(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    rate = _log_uniform(rng, 0.5, 200) / len(k)
    law = np.exp(-rate * k)
    begin, end = _alone(law, law, lowest)
    carrier, half_period, words = _carrier(rng, len(k))
    return _Law(
        law * carrier, rate, begin if end - begin >= 12 * half_period else math.inf, end, f"e^-{rate:.3g}k{words}"
    )


def _dose(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    rate, faster = _log_uniform(rng, 0.5, 200) / len(k), _log_uniform(rng, 1.05, 30)
    law = np.exp(-rate * k)
    value = law - np.exp(-faster * rate * (k + rng.choice([0.0, 0.5])))
    if not value.max() > 0:
        value = law
    return _Law(np.abs(value), rate, *_alone(value, law, lowest), f"e^-{rate:.3g}k - e^-{faster * rate:.3g}k")


def _butterworth(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    """The response of the slow poles, which leads where the others are a tenth; 12 maxima are rarely seen."""
    order, corner = int(rng.integers(1, 7)), min(_log_uniform(rng, 2, 300) / len(k), 1.5)
    _, poles, gain = butter(order, 1, analog=True, output="zpk")
    weights = np.array([gain / np.prod(p - np.delete(poles, i)) for i, p in enumerate(poles)])
    modes = weights * np.exp(np.outer(corner * k, poles))
    rate = -float(poles.real.max()) * corner
    slow = poles.real > -1.01 * rate / corner
    sizes = np.abs(modes).sum(1)
    begin, end = _alone(sizes, np.abs(modes[:, slow]).sum(1), lowest)
    half_period = math.pi / max(float(np.abs(poles.imag[slow]).max()) * corner, 1e-9)
    enough = order == 1 or end - begin >= 12 * half_period
    return _Law(
        np.abs(modes.sum(1).real), rate, begin if enough else math.inf, end, f"order {order}, corner {corner:.3g}"
    )


def _walls(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    rate, m = _log_uniform(rng, 0.5, 200) / len(k), np.arange(1, 300)
    at, source = rng.uniform(0.02, 0.98, 2)
    weights = np.sin(m * math.pi * at) * np.sin(m * math.pi * source)
    value = np.abs(np.exp(-np.outer(k + 0.3, rate * m**2)) @ weights)
    return _Law(value, rate, *_alone(value, abs(weights[0]) * np.exp(-rate * (k + 0.3)), lowest), f"rate {rate:.3g}")


def _logistic(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    rate = _log_uniform(rng, 1, 200) / len(k)
    x, square = rate * (k - rng.uniform(0, 0.5) * len(k)), bool(rng.integers(2))
    law = np.exp(-x)
    value = law / (1 + law) ** (1 + square)
    return _Law(value, rate, *_alone(value, law, lowest), f"{'pulse' if square else 'edge'}, rate {rate:.3g}")


def _power(rng: Rng, n: int, most: float = 3.0) -> tuple[float, float]:
    """The time t0 at which a power law begins, and its exponent."""
    t0 = max(n / _log_uniform(rng, 1, 5000), 0.3)
    return t0, max(_log_uniform(rng, 0.25, most), 0.3 / math.log1p(n / t0))


def _later(law: _Law, t0: float) -> _Law:
    """A power law is seen only for at least ten times the time at which it begins."""
    begin = law.begin if law.end >= 10 * max(t0, law.begin) else math.inf
    return _Law(law.value, law.truth, begin, law.end, law.note)


def _log_wave(rng: Rng, k: np.ndarray, t0: float) -> tuple[np.ndarray, float, str]:
    """A wave of ln t, the sample from which it is seen (infinity if through fewer than three periods), and a note."""
    n, depth = len(k), float(rng.choice([rng.uniform(0.03, 0.99), 1.0], p=[0.85, 0.15]))
    periods = _log_uniform(rng, 0.7, 20)
    omega = 2 * math.pi * periods / math.log1p(n / t0)
    phase = omega * np.log1p(k / t0) + rng.uniform(0, 2 * math.pi)
    value = 1 + depth * np.cos(phase) if depth < 1 else np.abs(np.cos(phase / 2))
    begin = max(5 / math.expm1(2 * math.pi / omega) - t0, 0.0)
    seen = depth <= 0.1 or omega * math.log((n + t0) / (begin + t0)) >= 6 * math.pi
    return value, begin if seen else math.inf, f", {periods:.2g} periods of ln t, depth {depth:.2g}"


def _log_periodic(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    t0, p = _power(rng, len(k))
    wave, begin, words = _log_wave(rng, k, t0)
    law = _later(_after(k, (1 + k / t0) ** -p, p, begin, lowest, f"(k + {t0:.3g})^-{p:.3g}{words}"), t0)
    return _Law(law.value * wave, p, law.begin, law.end, law.note)


def _cut_beyond(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    (t0, p), cut = _power(rng, len(k)), _log_uniform(rng, 1e-4, 0.1)
    law = (1 + k / t0) ** -p
    found = _after(k, law, p, 0, lowest, f"(k + {t0:.3g})^-{p:.3g}, cut off {1 / cut:.2g} windows away")
    return _later(_Law(law * np.exp(-cut * k / len(k)), p, found.begin, found.end, found.note), t0)


def _broken(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    (t0, before), (t1, p), sharp = _power(rng, len(k), 2), _power(rng, len(k)), _log_uniform(rng, 0.5, 8)
    t1 = max(t0, t1)
    value = (1 + k / t0) ** -before * (1 + ((k + t0) / t1) ** sharp) ** ((before - p) / sharp)
    law = (k + t0) ** -p * t0**before * t1 ** (p - before)
    begin, end = _alone(value, law, lowest)
    return _later(
        _Law(value, p, begin, end, f"(k + {t0:.3g})^-{before:.2g}, from {t1:.3g} on ^-{p:.3g} ({sharp:.2g})"), t1
    )


def _mittag_leffler(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    """E_α(-x^α) and -d/dx of it, as integrals over rates (Gorenflo and Mainardi)."""
    order, reach = rng.uniform(0.2, 0.95), _log_uniform(rng, 3, 1e5)
    x = (k + rng.choice([0.0, 1.0])) * reach / len(k)
    u = np.linspace(-50, 30, 1201)
    rate = np.exp(u)
    density = (
        math.sin(order * math.pi) / math.pi / (np.exp(order * u) + np.exp(-order * u) + 2 * math.cos(order * math.pi))
    )
    slope = bool(rng.integers(2)) and x[0] > 0
    value = np.exp(-np.outer(x, rate)) @ (density * (rate if slope else 1)) * (u[1] - u[0])
    p = order + slope
    law = (order if slope else 1) / math.gamma(1 - order) * (x + 1e-9) ** -p
    begin, end = _alone(value, law, lowest)
    return _later(
        _Law(value, p, begin, end, f"order {order:.2g}{', slope' if slope else ''}, reach {reach:.3g}"), len(k) / reach
    )


def _arfima(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    """The moving average of (1 - B)^-d, or its autocovariance, after an autoregression of order one."""
    d = float(rng.choice([rng.uniform(0.05, 0.49), rng.uniform(-0.45, -0.05), rng.uniform(0.5, 0.9)]))
    if rng.random() < 0.3:
        d = rng.uniform(0.1, 0.45)
        value = np.exp(gammaln(k + d) - gammaln(k + 1 - d) + gammaln(1 - d) - gammaln(d))
        p, law, note = 1 - 2 * d, math.gamma(1 - d) / math.gamma(d) * (k + 0.5) ** (2 * d - 1), f"covariance, d {d:.2g}"
        return _later(_Law(value, p, *_alone(value, law, lowest), note), 1.0)
    weights = np.cumprod(np.concatenate([[1.0], (k[1:] - 1 + d) / k[1:]]))
    root = float(rng.choice([0.0, rng.uniform(-0.9, 0.9)]))
    value = np.empty_like(weights)
    last = 0.0
    for i, w in enumerate(weights):
        value[i] = last = root * last + w
    law = abs(1 / math.gamma(d)) / (1 - root) * (k + 0.5) ** (d - 1)
    value = np.abs(value)
    return _later(_Law(value, 1 - d, *_alone(value, law, lowest), f"d {d:.2g}, root {root:.2g}"), 1.0)


def _rational(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    t0, p = _power(rng, len(k), 4)
    value = (1 + (k / t0) ** 2) ** (-p / 2)
    return _later(_Law(value, p, *_alone(value, ((k + 1e-9) / t0) ** -p, lowest), f"(k² + {t0:.3g}²)^-{p / 2:.3g}"), t0)


def _bessel(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    style, frequency = str(rng.choice(["J0", "J1", "sinc"])), _log_uniform(rng, 2 * math.pi / len(k), 2)
    x = frequency * (k + 1e-6)
    value = np.abs({"J0": j0(x), "J1": j1(x) / x, "sinc": np.sin(x) / x}[style])
    p = {"J0": 0.5, "J1": 1.5, "sinc": 1.0}[style]
    law = _after(k, (1 + k * frequency) ** -p, p, 0, lowest, f"{style}({frequency:.3g} k)")
    begin = law.begin if law.end >= 12 * math.pi / frequency else math.inf
    return _later(_Law(value, p, begin, law.end, law.note), 1 / frequency)


def _passage(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    p, t0 = float(rng.choice([0.5, 1.0, 1.5])), len(k) / _log_uniform(rng, 1, 5000)
    x = (k + 0.5) / t0
    value = x**-p * np.exp(-1 / x)
    return _later(_Law(value, p, *_alone(value, x**-p, lowest), f"x^-{p} e^(-1/x), x = k/{t0:.3g}"), t0)


def _geometric(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    """Exponentials with geometric rates, the slowest far beyond the window: a power law with ripples of ln t."""
    p, ratio = _log_uniform(rng, 0.3, 2), rng.uniform(1.5, 6)
    rates = ratio ** np.arange(math.log(0.01 / len(k)) / math.log(ratio), 1)
    value = np.exp(-np.outer(k, rates)) @ rates**p
    return _later(_after(k, value, p, 0, lowest, f"power {p:.3g}, ratio {ratio:.3g}"), 1.0)


def _kohlrausch(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    s = float(rng.choice([2.0, 0.5, rng.uniform(0.3, 0.8), rng.uniform(1.3, 4)]))
    tau = len(k) / _log_uniform(rng, 0.5, 300) ** (1 / s)
    value = np.exp(-((k / tau) ** s))
    return _Law(value, s, *_alone(value, value, lowest), f"exp(-(k/{tau:.3g})^{s:.3g})")


def _bell(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    """A Gaussian around a later time."""
    center, n = rng.uniform(0, 0.6), len(k)
    tau = n * (1 - center) / math.sqrt(_log_uniform(rng, 0.5, 300))
    value = np.exp(-(((k - center * n) / tau) ** 2))
    return _after(k, value, 2.0, center * n, lowest, f"Gaussian around {center * n:.3g}, width {tau:.3g}")


def _level(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    """A level that the law is clear of for at least a tenth of the window."""
    kind = str(rng.choice(["exponential", "polynomial", "stretched"]))
    name = str(rng.choice(list(FAMILIES[kind])))
    falling, level, n = FAMILIES[kind][name](rng, k, lowest), max(_log_uniform(rng, 1e-3, 1), lowest), len(k)
    part = falling.value / falling.value.max()
    arrival = n - _first((part > 0.1 * level)[::-1])
    begin = min(arrival, n - FEWEST) if n - arrival >= max(8, n / 10) else math.inf
    return _Law(level + part, math.nan, begin, n, f"{level:.2g} + {name} {falling.note}")


def _growth(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    x, rise = (k + 1) / len(k), _log_uniform(rng, 0.5, 20)
    shapes = {
        "power": x ** (rise / 5),
        "exponential": np.exp(rise * x),
        "saturation": 1 - np.exp(-rise * x),
        "log": np.log1p(k + 1),
    }
    style = str(rng.choice(list(shapes)))
    value = shapes[style]
    return _Law(value, math.nan, 0 if value[-1] > 10 * value[0] else math.inf, len(k), f"{style}, {rise:.3g}")


def _undamped(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    n = len(k)
    if rng.random() < 0.5:
        wave, begin, words = _log_wave(rng, k, max(n / _log_uniform(rng, 3, 3000), 0.3))
        return _Law(wave, math.nan, begin, n, words)
    wave, half_period, words = _carrier(rng, n)
    return _Law(wave, math.nan, 0 if n >= 12 * half_period else math.inf, n, words)


def _window(rng: Rng, k: np.ndarray, lowest: float) -> _Law:
    n, last = len(k), int(rng.uniform(0.02, 0.97) * len(k))
    style = str(rng.choice(["boxcar", "triang", "hann", "blackman", "parzen", "cosine", "exp", "power", "sparse"]))
    x = np.arange(last + 1) / (last + 1)
    if style in ("exp", "power", "sparse"):
        shape = (1 + 5 * x) ** -rng.uniform(0.2, 2) if style == "power" else np.exp(-rng.uniform(0.1, 4) * x)
        shape[:-1] *= np.arange(last) % int(rng.integers(2, 6)) == 0 if style == "sparse" else 1
    else:
        shape = get_window(style, 2 * last + 1 if rng.random() < 0.5 else last + 1, fftbins=False)[-(last + 1) :] + max(
            1e-3, lowest
        )
    seen = last >= 8 and n - last >= max(8, n / 10) and lowest < 1e-4
    value = np.concatenate([shape, np.zeros(n - last - 1)])
    return _Law(value, float(last), 0 if seen else math.inf, n, f"{style} of {last}")


FAMILIES: dict[str, dict[str, Family]] = {
    "exponential": {
        "close": _close, "gamma": _gamma, "cut within": _cut_within, "damped": _damped, "dose": _dose,
        "butterworth": _butterworth, "walls": _walls, "logistic": _logistic,
    },
    "polynomial": {
        "log-periodic": _log_periodic, "cut beyond": _cut_beyond, "broken": _broken, "mittag-leffler": _mittag_leffler,
        "arfima": _arfima, "rational": _rational, "bessel": _bessel, "passage": _passage, "geometric": _geometric,
    },
    "stretched": {"kohlrausch": _kohlrausch, "bell": _bell},
    "none": {"level": _level, "growth": _growth, "undamped": _undamped},
    "finite": {"window": _window},
}  # fmt: skip
WAVES = ("damped", "butterworth", "bessel", "undamped", "log-periodic")
