"""What ``fit_decay`` says of a few curves, to every digit that another machine's rounding leaves.

``python tests/decay_pins.py`` computes the fits again and writes ``decay_pins.json``; a curve joins by its name there.
The error rates of the verdicts were measured with these fits (``benchmarks/decay.py``): measure them again before a
change of the numbers is accepted.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from random_decays import Curve, draw

from stablessm.instruments.decay import DecayFit

PATH = Path(__file__).with_suffix(".json")

Pin = dict[str, str | list[float]]


def pins() -> dict[str, Pin]:
    """The fits that were written."""
    return json.loads(PATH.read_text(encoding="utf-8"))


def curve(name: str) -> Curve:
    """The curve of that name: a family and a seed."""
    family, seed = name.split()
    rng = np.random.default_rng(int(seed))
    if family == "random":
        return draw(rng)
    k = np.arange(float(rng.integers(60, 400)))
    if family == "ends":  # to zero after a short decay, sounding every few steps
        every, last = rng.integers(1, 5), rng.integers(4, 30)
        value = 3.7 * np.exp(-rng.uniform(0.01, 0.6) * k) * (k % every == rng.integers(every)) * (k < every * last)
        return Curve("finite", k, value, math.nan, 0.0, False, name)
    if family in ("noisy", "steep"):
        law = np.exp(-8 * k / len(k)) if seed < "5" else (1 + k / rng.uniform(1, 4)) ** -rng.uniform(1, 3)
        if family == "steep":
            law = np.exp(-((k / (0.6 * len(k))) ** rng.uniform(4, 9)))
        noise = rng.uniform(0.1, 0.4) if family == "noisy" else 1e-3
        return Curve("", k, 3.7 * law * np.abs(1 + noise * rng.normal(size=len(k))), math.nan, 0.0, False, name)
    if family == "waves":  # which interfere: only their envelope falls evenly
        rate = rng.uniform(0.2, 0.5)
        rates, frequencies, phases = rng.uniform([[rate], [0.03], [0]], [[1.3 * rate], [0.15], [6]], (3, 3))[..., None]
        parts = rng.normal(size=(3, 1)) * np.exp(-rates * k) * np.cos(frequencies * k + phases)
    else:  # modes of both signs, many of them
        rates = np.geomspace(rng.uniform(3, 30) / len(k), 1, int(rng.choice([3, 8, 32])))
        parts = rng.normal(size=(len(rates), 1)) * np.exp(-np.outer(rates, k))
    value = np.abs(parts.sum(0))
    floor = 3e-16 * value.max()
    return Curve("exponential", k, value + floor * rng.random(len(k)), math.nan, floor, False, name)


def pin(fit: DecayFit) -> Pin:
    """The fit as plain data."""
    parameters = (fit.rate, fit.exponent, fit.stretch, fit.timescale, fit.last_lag, *(fit.interval or ()))
    numbers = (fit.evidence, *fit.used, fit.floor, fit.log_amplitude, fit.shift, fit.power, *parameters)
    return {"kind": fit.kind, "reason": fit.reason, "numbers": [float(n) for n in numbers if n is not None]}


def main() -> None:
    """Compute and write the fits."""
    rows = (f" {json.dumps(name)}: {json.dumps(pin(curve(name).fit()), ensure_ascii=False)}" for name in pins())
    PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
