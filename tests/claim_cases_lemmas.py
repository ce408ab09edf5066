"""Invented stages of the experiments on lemmas and appendices, and the verdicts that they must give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from claim_case import Case


def above(value: float) -> float:
    """The next number."""
    return math.nextafter(value, math.inf)


def rates(value: float) -> dict[str, Any]:
    """Rates of the eight seeds of su-decay."""
    return {"rates": np.full(8, value)}


def activations(*values: float) -> dict[str, Any]:
    """Rates after tanh, relu, gelu, hardtanh and √|x|."""
    return {"activations": {"rates": np.array(values)[:, None, None] * np.ones((5, 2, 2))}}


def bound(value: float, spectral: float) -> dict[str, Any]:
    """Values of lemma A.10's form with the bound 1."""
    return {"bound-*": {"value": np.full(4, value), "entries": np.ones(4), "spectral": np.full(4, spectral)}}


def polynomial(*errors: float) -> dict[str, Any]:
    """Errors of the polynomial memory in every case."""
    return {"sums-polynomial-*": {"errors": np.array(errors)}}


def learned(kind: str, *best: float) -> dict[str, Any]:
    """Scores of ia-epochs after 10, 100 and 300 epochs."""
    return {f"training-{kind}-{n}": {"score": np.full((2, 4), b)} for n, b in zip((10, 100, 300), best, strict=True)}


def family(kind: str, growth: float) -> dict[str, Any]:
    """Families of ia-families whose errors grow with β, the faster the wider the model if ``growth`` is positive."""
    radii, widths = np.array((0.0, *(5e-4 * 4.0**k for k in range(11)))), (4, 8, 16, 32)
    return {f"{kind}-*": {"errors": np.stack([1 / m + radii * m**growth for m in widths])}}


def useless(kind: str) -> dict[str, Any]:
    """Families in which width is of no use."""
    return {f"{kind}-*": {"errors": np.ones((4, 12))}}


GROWS = 100 * np.exp(0.3 * np.array([4, 8, 12, 16, 20, 24]))
LEMMAS = {
    "ia-lemmas": [
        Case("rr.d..", polynomial(0.1, 0.1, 0.1, 0.1, 0.0901)),
        Case("pp.d..", polynomial(0.1, 0.1, 0.1, 0.1, 0.089)),
        Case("nn.d..", polynomial(0.1, 0.1, 0.1, 0.1, 0.01)),
        Case("...h..", {**polynomial(0.1, 0.1, 0.1, 0.1, 0.1), "sums-polynomial-free": {"errors": np.full(5, 0.05)}}),
        Case("..h...", {"sums-exponential-bounded": {"errors": np.full(5, 1e-3)}}),
        Case("..d...", {"sums-exponential-bounded": {"errors": np.full(5, above(1e-3))}}),
        Case("....rh", bound(1.0, 1.0)),
        Case("....nd", bound(1.1, 1.0)),
        Case("....ph", {**bound(1.1, 1.1), "bound-row": {"value": np.ones(4), "entries": np.ones(4)}}),
    ],
    "ia-families": [
        Case("rrh", {**family("exponential", 0.0), **family("polynomial", 1.0)}),
        Case("nnd", {**family("exponential", 1.0), **family("polynomial", 0.0)}),
        Case("iid", {**useless("exponential"), **useless("polynomial")}),
    ],
    "ia-epochs": [
        Case("rrh", {**learned("exponential", 1e-3, 1e-3, 1e-3), **learned("polynomial", 1.0, 0.1, 1e-3)}),
        Case("prh", {**learned("exponential", 0.1, 0.1, 0.1), **learned("polynomial", 1.0, 0.1, 1e-3)}),
        Case("nnd", {**learned("exponential", 0.11, 0.1, 0.01), **learned("polynomial", 1.0, 1.0, 0.101)}),
    ],
    "su-decay": [
        Case("rrd..", {"layer-*": rates(0.5)}),
        Case("ppd..", {"layer-*": rates(0.5), "layer-0.05": rates(0.01)}),
        Case("rnd..", {"layer-*": rates(0.4)}),
        Case("nnd..", {"layer-*": rates(0.01)}),
        Case("...rh", activations(0.485, 0.5, 0.5, np.inf, 0.25)),
        Case("...pd", activations(0.4, 0.4, 0.5, 0.5, 0.5)),
        Case("...n.", activations(0.4, 0.4, 0.4, 0.5, 0.25)),
    ],
    "lr-lemma8": [
        Case("n....", {"map-corrected": {"whole": 1.0, "causal": 1.0, "change": np.ones(4)}}),
        Case("p....", {"map-corrected": {"causal": 1.0}}),
        Case(".r...", {"map-printed": {"whole": 1e-12}}),
        Case("..n..", {"clock": {"positions": np.arange(1, 25) + 1.1e-6}}),
        Case("...rr", {"reconstruction-*": {"error": np.full((5, 24), 1e-4)}}),
        Case("...nn", {"reconstruction-*": {"error": np.full((5, 24), above(1e-4))}}),
    ],
    "st-appendix": [
        Case("rr........", {"weights-0.3": {"sizes": GROWS}}),
        Case("rn........", {"weights-0.3": {"sizes": GROWS[::-1]}}),
        Case("rp........", {"weights-0.3": {"sizes": np.array([1e2, 1e2, 1e2, 1e2, 1e2, 1e9])}}),
        Case("nn........", {"weights-0.3": {"sizes": 1e-2 / GROWS}}),
        Case("..h.......", {"weights-0.001": {"sizes": np.array([1.0, 1, 1, 1, 1, 10])}}),
        Case("..d.......", {"weights-0.001": {"sizes": np.array([1.0, 1, 1, 1, 1, 11])}}),
        Case("...nn.....", {"descent": {"fourth": np.zeros(9), "square": np.full(9, np.inf)}}),
        Case("...rr.....", {"descent": {"fourth": np.full(9, np.inf), "square": np.full(9, 9.0)}}),
        Case("...pp.....", {
            "descent": {"fourth": np.repeat([np.inf, 0], [5, 4]), "square": np.repeat([0.0, 10.0], [3, 6])},
        }),
        Case(".....p....", {"rates-exp": {"largest": np.ones(4)}}),
        Case(".....n....", {"rates-best": {"largest": np.array([1.0, 1, 1, 0.09])}}),
        Case(".....n....", {"rates-best": {"largest": np.array([1.0, 1, 1, np.nan])}}),
        Case("......n...", {"mlp": {"discrete": 1e-11}}),
        Case(".......d..", {"mlp": {"continuous": np.array([0.1, 0.01, 0.02])}}),
        Case(".......d..", {"mlp": {"continuous": np.array([1.0, 0.5, 0.11])}}),
        Case("........n.", {"derivation": {"best": np.linspace(1, 1.1, 30)}}),
        Case(".........r", {"derivation": {"printed": np.ones(30)}}),
    ],
}  # fmt: skip
