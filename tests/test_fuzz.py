"""Arguments that nobody should pass give a result or an error that names the argument, and nothing else."""

from __future__ import annotations

import inspect
import json
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fuzz_cases
import fuzz_values
import numpy as np
import pytest
import torch
from fuzz_cases import SLOW

import stablessm as ssm
from stablessm import instruments, training

CASES = 200
SHARE = 0.03
"""Of internal exceptions that the quick test tolerates: its sample is small. benchmarks/fuzz.py counts many."""


def test_a_sample_of_calls_ends_well(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    names = [name for name in fuzz_cases.subjects() if not name.startswith(SLOW)]
    found = [(name, *fuzz_cases.run_case(name, seed)) for seed, name in enumerate(rng.choices(names, k=CASES))]
    counts = Counter(outcome for _, outcome, _ in found)
    bad = [row for row in found if row[1] not in ("fine", "named error")]
    assert counts["endless"] == 0, bad
    assert counts["internal exception"] <= SHARE * CASES, bad
    assert counts["named error"] > CASES / 4  # most arguments are wrong, and some are not
    assert counts["fine"] > CASES / 10


@pytest.mark.slow
def test_many_calls_end_well(tmp_path):
    script = Path(__file__).parent.parent / "benchmarks" / "fuzz.py"
    out = tmp_path / "fuzz.json"
    command = [sys.executable, str(script), "--cases", "8", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(out.read_text(encoding="utf-8"))["summary"]
    assert summary["crash"] == summary["endless"] == 0, done.stdout
    assert summary["internal exception"] <= 0.01 * summary["cases"], done.stdout


def test_good_arguments_are_accepted(tmp_path, monkeypatch):
    """The fuzzer replaces arguments of calls that work: otherwise it would test the first check of each alone."""
    monkeypatch.chdir(tmp_path)
    refused = {
        "ContinuousRNN.kernel",
        "VolterraSSM.kernel",
        "LotkaVolterra.memory",
        "TeacherRNN.memory",
        "Task.lanes",
        "timestamp",
        "accelerate",
        *(f"{name}.kernel" for name in ("MinGRU", "MinLSTM", "RGLRU", "HGRN", "SelectiveSSM")),
    }
    needs_files = (".load", ".of", "load", "settings_of", "TrainedModel", "forecast_errors")  # or a forecasting task
    refused |= {name for name in fuzz_cases.subjects() if name.endswith(needs_files)}
    for name, subject in fuzz_cases.subjects().items():
        if name in refused or name.startswith(SLOW) or not subject.parameters or subject.required - fuzz_cases.KNOWN:
            continue
        assert fuzz_cases.outcome(subject, fuzz_cases.good_arguments(subject)) == ("fine", ""), name


NUMBER = re.compile(r"(int|float|Size|Count|Seed|Finite|Positive)( \| None)?")
UNCHECKED = ("Preset", "StableSSMConfig")
"""What a preset says of itself, and a configuration whose fields transformers adds."""


def test_bools_and_text_are_no_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = 0
    for name, subject in fuzz_cases.subjects().items():
        if name.startswith((*SLOW, *UNCHECKED)) or subject.required - fuzz_cases.KNOWN or not subject.parameters:
            continue
        signature = inspect.signature(subject.function())
        for parameter in signature.parameters.values():
            if isinstance(parameter.annotation, str) and NUMBER.fullmatch(parameter.annotation):
                given = fuzz_cases.good_arguments(subject) | {parameter.name: (True, "5")[cases % 2]}
                outcome, text = fuzz_cases.outcome(subject, given)
                assert outcome == "named error", (name, given, text)
                cases += 1
    assert cases > 200
    quantized = torch.quantize_per_tensor(torch.ones(5), 0.1, 0, torch.quint8)
    for dt in (True, torch.tensor(True), torch.ones(5, dtype=torch.bool), "1", 10**400, quantized):
        with pytest.raises(ssm.ArgumentError, match=r"^dt: expected"):
            ssm.LRU(2, 4, 3)(torch.randn(2, 5, 2), dt=dt)


def _parameters(subject: fuzz_cases.Subject) -> Iterable[inspect.Parameter]:
    return inspect.signature(subject.function()).parameters.values()


def test_text_is_no_flag(tmp_path, monkeypatch):
    """A flag "no" would count as True."""
    monkeypatch.chdir(tmp_path)
    wrong, cases = [], 0
    for name, subject in fuzz_cases.subjects().items():
        if name.startswith((*SLOW, *UNCHECKED, "StableSSMForCausalLM")) or not subject.parameters:
            continue  # transformers has flags of its own
        for parameter in {} if subject.required - fuzz_cases.KNOWN else _parameters(subject):
            if parameter.annotation in ("bool", "bool | None") and parameter.kind != parameter.VAR_KEYWORD:
                given = fuzz_cases.good_arguments(subject) | {parameter.name: "no"}
                outcome, text = fuzz_cases.outcome(subject, given)
                cases += 1
                if outcome != "named error":
                    wrong.append((name, parameter.name, text))
    assert not wrong
    assert cases > 50


LOADERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("folder", ssm.load),
    ("path", ssm.MemoryCurve.load),
    ("path", ssm.PerturbationCurve.load),
    ("path", ssm.constructions.ExponentialSum.load),
    ("folder", training.TrainedModel),
    ("folder", training.settings_of),
]


@pytest.mark.parametrize(("name", "load"), LOADERS)
def test_what_is_no_path_is_not_blamed_on_a_file(name, load):
    wrong = [make() for make in fuzz_values.OTHERS] + list(fuzz_values.NUMBERS) + [None, b"ab", "a\0b", "\ud800"]
    wrong = [value for value in wrong if not hasattr(value, "__fspath__")]
    for value in wrong:
        with pytest.raises(ssm.ArgumentError, match=rf"^{name}: expected"):
            load(value)


def test_a_wrong_state_is_refused():
    layer = ssm.LRU(2, 4, 3)
    _, state = layer(torch.randn(2, 5, 2))
    for wrong in (state.real, state.imag, state.abs(), state[:1], state.to("meta"), [state], "state"):
        with pytest.raises(ssm.ArgumentError, match="state: expected"):
            layer(torch.randn(2, 5, 2), wrong)
        with pytest.raises(ssm.ArgumentError, match="state: expected"):
            layer.step(torch.randn(2, 2), wrong)
    with pytest.raises(ssm.ArgumentError, match=r"x: expected dtype torch\.float32, as the parameters"):
        layer(torch.randn(2, 5, 2, dtype=torch.float64))


EYE = -np.eye(3) + np.eye(3, k=1) / 2
NOISE = np.random.default_rng(0).standard_normal((8, 30, 2)).astype(np.float32)
ARRAYS: dict[str, tuple[Callable[[Any], Any], np.ndarray]] = {
    "lyapunov_certificate": (lambda W: ssm.lyapunov_certificate(W).P, EYE),
    "stability_radius": (lambda W: float(ssm.stability_radius(W)), EYE),
    "readback": (lambda x: instruments.readback(torch.nn.GRU(2, 4, batch_first=True), x, lags=3).explained, NOISE),
    "effective_state_size": (lambda x: instruments.effective_state_size(ssm.LRU(2, 4, 2), x).singular_values, NOISE),
    "Decoder": (lambda e: ssm.reconstruction.Decoder(e, 3)(torch.ones(8)), np.exp(1j * np.arange(1, 9))),
    "decode": (lambda h: ssm.reconstruction.decode(h, torch.tensor([0.5, 0.9]), 2), np.array([1.0, 2.0])),
    "memory": (ssm.targets.LinearFunctional("polynomial", exponent=1.1).memory, np.arange(4.0)),
}
"""Functions of an array, and an array."""


@pytest.mark.parametrize("layout", fuzz_values.LAYOUTS)
@pytest.mark.parametrize("name", ARRAYS)
def test_the_layout_of_an_array_in_memory_does_not_matter(name, layout, recwarn):
    function, array = ARRAYS[name]
    found = []
    for each in (array, fuzz_values.LAYOUTS[layout](array)):
        torch.manual_seed(0)
        found.append(torch.as_tensor(function(each)))
    assert torch.equal(*found)
    assert not [warning for warning in recwarn if "writable" in str(warning.message)]
