"""Every result class: ``repr`` is a few lines, notebooks get a small table, and no array is printed whole.

A class that a public function of the library returns is a result. It derives from ``stablessm._display.Result`` and has
an example here; both are found by looking at the annotations of the package.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from html_structure import Structure
from torch import nn

import stablessm as ssm
from stablessm import _display
from stablessm._display import Result
from stablessm.constructions import LongFilter, convert, elementwise, exponential_sum, kolmogorov_arnold
from stablessm.instruments.modes import Initialization
from stablessm.reconstruction import Decoder
from stablessm.sweeps.search import Found
from stablessm.training.divergence import DivergenceReport
from stablessm.training.forecast import Forecast
from stablessm.training.perplexity import Perplexity
from stablessm.training.predict import Predictions
from stablessm.training.result import TrainingResult

PACKAGES = ("constructions", "instruments", "reconstruction", "training", "sweeps")
NO_RESULTS = {
    "Expression": "a kernel",
    "System": "a model",
    "Range": "settings",
    "Batch": "data",
    "BadStep": "internal",
    "Equations": "internal",
    "Checkpoint": "internal",
    "Ranks": "internal",
    "Plan": "settings",
    "Job": "internal",
    "Notes": "internal",
    "Outcome": "internal",
    "RunStatus": "a row of the table that `stablessm status` prints",
    "TrainingStatus": "a row of the table that `stablessm status` prints",
    "Swept": "a row of the table that `stablessm run` prints",
}
NASTY = "</td><script>alert(1)</script>\x1b[2J"


def returned() -> Iterator[type]:
    """Yield the dataclasses of the library that public functions and methods of public modules return."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages([str(Path(ssm.__file__).parent / package)], f"stablessm.{package}."):
            if not any(part.startswith("_") for part in module.name.split(".")):
                yield from returned_by(importlib.import_module(module.name))


def returned_by(module: Any) -> Iterator[type]:
    for name, found in vars(module).items():
        if name.startswith("_") or getattr(found, "__module__", "") != module.__name__:
            continue
        members = vars(found).items() if inspect.isclass(found) else [(name, found)]
        for key, member in members:
            function = getattr(member, "fget", member)
            if inspect.isfunction(inspect.unwrap(function)) and not key.startswith("_"):
                for word in re.findall(r"\w+", str(inspect.unwrap(function).__annotations__.get("return"))):
                    kind = vars(module).get(word)
                    if dataclasses.is_dataclass(kind) and kind.__module__.startswith("stablessm."):
                        yield kind


@cache
def _logits(tokens: torch.Tensor) -> torch.Tensor:
    """Logits of nine tokens, which depend on the sum of all earlier tokens."""
    return (tokens.cumsum(-1)[..., None] * torch.arange(9.0)).sin()


def examples() -> list[Result]:
    return [*instruments(), *constructions(), *trainings()]


def instruments() -> Iterator[Any]:
    layer = ssm.RealSSM(2, 300, 1, map="best", dt=0.1).double()
    layer(torch.randn(2, 30, 2, dtype=torch.float64))[0].square().sum().backward()
    curve = ssm.memory_function(layer, 3000, directions=torch.eye(2))
    target = ssm.targets.LinearFunctional("polynomial", exponent=1.1, dt=0.1)
    small = ssm.RealSSM(1, 8, 1, map="best", dt=0.1).double()
    radii = np.linspace(0, 1e-2, 20)
    errors = ssm.perturbation_error(small, target, radii=radii, norm="kernel_l1", search="random", samples=2)
    worse = dataclasses.replace(errors, lower=errors.lower * np.linspace(0.5, 2, 20))
    family = ssm.PerturbationFamily({8: errors, 16: worse})
    yield from (curve, curve.decay(), errors, family, *family.crossings(), family.verdict(), family.extrapolated)
    yield from (ssm.gradient_over_weight(layer), ssm.gradient_over_weight(layer)["w"])
    tracker = ssm.GradientTracker(layer)
    tracker.update()
    yield tracker.history
    report = ssm.report_modes(layer)
    yield from (report, report[3], report.intact(), Initialization(("the eigenvalues of 'a' are other ones",) * 30))
    yield ssm.lyapunov_certificate(-torch.eye(40))
    yield ssm.lyapunov_spectrum(layer, torch.randn(30, 2))
    yield ssm.effective_state_size(layer, torch.randn(30, 2))
    yield ssm.length_curve(_logits, torch.arange(99) % 9, window=7)
    yield ssm.effective_remembrance(_logits, torch.arange(99) % 9)
    yield ssm.receptive_field(layer, torch.randn(90, 2, dtype=torch.float64))
    yield ssm.information_processing_capacity(np.random.default_rng(0).normal(size=(300, 2)), np.arange(300) % 7)
    yield ssm.bernstein_check(small, np.arange(500) * 0.1)
    yield from (ssm.check_state(nn.LSTM(3, 8)), ssm.check_state(nn.LSTM(3, 8), cases=["chunks"]).cases[0])
    yield ssm.check_streaming(nn.LSTM(3, 8))
    yield ssm.check_streaming(nn.LSTM(3, 8)).differences[0]
    yield ssm.nearest_boundary(small)
    yield ssm.fit_decay(np.arange(60.0), np.exp(-0.31415926535 * np.arange(60.0)))
    yield ssm.fit_decay(np.arange(60.0), (1 + np.arange(60.0)) ** -1.7)
    with ssm.trace_divergence(layer, when="record") as trace:
        layer(torch.full((2, 30, 2), torch.nan, dtype=torch.float64))
    yield trace.report
    yield ssm.readback(small, torch.randn(40, 50, 1, dtype=torch.float64))


def constructions() -> Iterator[Any]:
    t = np.arange(300.0)
    noise = 0.01 * np.random.default_rng(0).standard_normal(300)
    yield exponential_sum("exp(-sqrt(t))", 300, order=12)
    yield exponential_sum(np.exp(-t / 40) + noise, norm="l2")
    yield exponential_sum(np.exp(-t[:, None, None] / np.arange(1, 10).reshape(3, 3)), order=9)
    yield elementwise(np.sin, (-1.0, 1.0), 1e-2)
    yield kolmogorov_arnold(lambda x: x.sum(-1), 2)
    yield LongFilter(torch.randn(20, 3000), finite=True)
    (module,) = convert(nn.Sequential(nn.Conv1d(2, 2, 400, padding=399)), tol=1e-2).converted
    yield from (module, module.fits[0])
    yield Decoder(torch.polar(torch.ones(40), torch.arange(40.0) / 7), 60).diagnosis


def trainings() -> Iterator[Any]:
    table = np.random.default_rng(0).random((500, 3))
    result = TrainingResult(
        Path(NASTY), 3, 1.5, table[:, :2], None, None, {"valid": {"accuracy": 0.5, "loss": 1.25}}, None
    )
    yield from (result, dataclasses.replace(result, replicas=(result,) * 20))
    yield Forecast(("a", NASTY, "c"), table, table - 1, table + 1, table, NASTY * 50)
    yield Predictions(tuple(map(str, range(500))), ("a", "b", "c"), table, ("a",) * 500, NASTY)
    for found in (DivergenceReport, Perplexity, Found):
        yield found(**{field.name: plain(field) for field in dataclasses.fields(found)})


def plain(field: dataclasses.Field[Any]) -> Any:
    """Return a value for a field of a plain type."""
    kinds = {"int": 7, "float": 1.23456789, "str": NASTY, "bool": True, "Path": Path(NASTY)}
    return {"x": 1} if "Mapping" in field.type or "dict" in field.type else kinds.get(field.type.partition(" ")[0])


def subclasses(kind: type) -> set[type]:
    return {other for child in kind.__subclasses__() for other in (child, *subclasses(child))}


def test_every_class_that_is_returned_is_a_result_with_an_example() -> None:
    found = set(returned())
    assert len(found) > 20
    assert {kind.__name__ for kind in found if not issubclass(kind, Result)} == set(NO_RESULTS)
    missing = subclasses(Result) - {type(example) for example in examples()}
    assert not {kind for kind in missing if kind.__module__.startswith("stablessm.")}


def test_repr_is_a_few_lines() -> None:
    for example in examples():
        text = repr(example)
        lines = text.splitlines()
        assert len(lines) <= _display.LINES, text
        assert max(map(len, lines)) <= 400, text
        assert len(text) <= 1200, text
        assert "array(" not in text
        assert "tensor(" not in text
        assert "None" not in text, text
        assert "\x1b" not in text


def test_notebooks_get_a_small_escaped_table() -> None:
    for example in examples():
        text = example._repr_html_()
        structure = Structure(text)
        assert not structure.stack, "every element is closed"
        assert len(text) < 12_000, type(example)
        assert {tag for tag, _ in structure.tags} <= {
            "div", "b", "pre", "svg", "title", "polyline", "details", "summary", "table", "tr", "th", "td",
        }  # fmt: skip
        words = "".join(structure.words)
        assert type(example).__name__ in words
        assert "\x1b" not in words
        assert all(name in words for name in example._fields())


def test_curves_are_drawn() -> None:
    drawn = [example for example in examples() if example._drawn]
    names = {"MemoryCurve", "PerturbationCurve", "Readback", "ReceptiveField", "LengthCurve", "Remembrance"}
    assert {type(example).__name__ for example in drawn} == names
    assert all("<polyline" in example._repr_html_() for example in drawn)


@pytest.mark.parametrize("size", [2, 3, 199, 200, 201, 5000])
def test_a_drawing_spans_its_values(size: int) -> None:
    x = np.linspace(3.0, 7.0, size)
    y = np.exp(-x)
    text = _display._drawing(x, y)
    points = [[float(part) for part in pair.split(",")] for pair in text.split('points="')[1].split('"')[0].split()]
    assert 2 <= len(points) <= 200
    assert points[0] == [4, 4]
    assert points[-1][0] <= 236
    assert points[-1][1] <= 86
    slopes = np.diff(points, axis=0)
    np.testing.assert_allclose(slopes[:, 1] / slopes[:, 0], 82 / 232, rtol=0.3), "e^(-x) is a straight line"


def test_a_drawing_without_positive_values_is_left_out() -> None:
    for y in ([0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [], [-1.0, -2.0]):
        assert _display._drawing([0.0, 1.0][: len(y)], y) == ""
