"""Old spellings of public names still work, warn once at the line of the caller, and are read from files in silence."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import public_defaults
import pytest
import torch

import stablessm as ssm
from stablessm import _renamed, record, tasks
from stablessm.experiments.frame.run import agree
from stablessm.experiments.frame.settings import changed
from stablessm.experiments.frame.stages import Stages
from stablessm.experiments.lru_ua.fig5.experiment import Config
from stablessm.models import StackConfig
from stablessm.training import settings

ARGUMENTS: dict[str, dict[str, Any]] = {
    "LRU": {"d_input": 1, "d_state": 2, "d_output": 1, "normalise": False},
    "RealSSM": {"d_input": 1, "d_state": 2, "d_output": 1, "discretisation": "bilinear"},
    "S4D": {"d_model": 2, "discretisation": "bilinear"},
    "GradientTracker": {"model": torch.nn.Linear(1, 1), "optimiser": None},
    "MemoryCurve": {"time": np.arange(3.0), "value": np.ones(3), "maximiser": np.ones((3, 1))},
    "ArraysOptions": {"inputs": "x.npy", "standardise": False},
    "Config": {"artefacts": 0.25},
    "KolmogorovArnold": {
        "model": None, "length": 2, "base": 2, "families": 5, "error": 0.0, "rms_error": 0.0, "realisation": 0.5,
        "condition": 1.0, "widths": (1,), "seconds": 0.0,
    },
}  # fmt: skip
"""Arguments of every class with an old keyword, the old one with another value than its default."""

WORDS = (
    r"(optimis|discretis|modelling|learnt|labelled|maximis|minimis|normalis|colour|summaris|initialis|realisation"
    r"|judgement|vectoris|standardis|synchronis|centre|neighbour|artefact|recognis|favour|behaviour|honour|flavour"
    r"|parameteris|linearis|regularis|generalis|quantis|serialis|characteris|organis|tokenis|analyse|catalogue|grey"
    r"|specialis|penalis|factoris|diagonalis|symmetris|randomis|stabilis|visualis|licence|defence|programme\b)"
)


def classes() -> Iterator[type]:
    modules = [*public_defaults.modules(), importlib.import_module(Config.__module__)]
    for module in modules:
        for thing in vars(module).values():
            if inspect.isclass(thing) and "_old_names" in vars(thing) and thing.__module__ == module.__name__:
                yield thing


CASES = [pytest.param(cls, old, id=f"{cls.__name__}-{old}") for cls in classes() for old in cls._old_names]


def warned(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a call returns, and its one warning, which must name a line of this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    (warning,) = caught
    assert warning.category is DeprecationWarning
    assert warning.filename == __file__
    return result, str(warning.message)


def silent(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


def test_every_class_with_an_old_keyword_is_listed() -> None:
    assert {case.values[0].__name__ for case in CASES} == set(ARGUMENTS)


@pytest.mark.parametrize(("cls", "old"), CASES)
def test_an_old_keyword_means_the_new_one_and_warns_once(cls: type, old: str) -> None:
    new, arguments = _renamed.NAMES[old], ARGUMENTS[cls.__name__]
    result, message = warned(lambda: cls(**arguments))
    assert message == f"{cls.__name__}: {old} is now {new}; the old name will be removed"
    built = silent(lambda: cls(**{new if name == old else name: value for name, value in arguments.items()}))
    with pytest.raises(TypeError, match=f"give only {new}"):
        cls(**arguments, **{new: arguments[old]})
    if hasattr(built, new):
        assert getattr(result, new) is getattr(built, new) is arguments[old]
        value, message = warned(lambda: getattr(result, old))
        assert value is arguments[old]
        assert message == f"{cls.__name__}.{old} is now {new}; the old name will be removed"


@pytest.mark.parametrize("old", ["normalise"])
def test_an_old_attribute_can_be_set(old: str) -> None:
    layer = ssm.LRU(1, 2, 1)
    warned(lambda: setattr(layer, old, False))
    assert layer.normalize is False


@pytest.mark.parametrize(
    ("module", "old"),
    [
        ("stablessm.reconstruction", "optimised"),
        ("stablessm.experiments", "catalogue"),
        ("stablessm.instruments.modes", "Initialisation"),
        ("stablessm.tasks.text", "LanguageModelling"),
        ("stablessm.tasks.tokenizers", "learnt"),
    ],
)
def test_an_old_name_of_a_module_means_the_new_one(module: str, old: str) -> None:
    home = importlib.import_module(module)
    found, message = warned(lambda: getattr(home, old))
    assert found is getattr(home, _renamed.NAMES[old])
    assert message == f"{module}.{old} is now {_renamed.NAMES[old]}; the old name will be removed"
    with pytest.raises(AttributeError, match="nothing"):
        home.nothing  # noqa: B018


def test_options_that_are_passed_on_warn_once_too() -> None:
    config, _ = warned(lambda: StackConfig(d_input=1, n_layers=3, mixer_options={"discretisation": "bilinear"}))
    assert config.mixer_options == {"discretization": "bilinear"}
    config, _ = warned(lambda: StackConfig(d_input=1, mixer="hyena-lru", mixer_options={"normalise": False}))
    assert config.mixer_options == {"normalize": False}
    own = silent(lambda: StackConfig(d_input=1, mixer="mine", mixer_options={"normalise": False}))
    assert own.mixer_options == {"normalise": False}
    data = {"inputs": np.ones((20, 4, 1)), "targets": np.arange(20) % 2}
    task, message = warned(lambda: tasks.get("arrays", **data, standardise=False))
    assert task.options.standardize is False
    assert message == "task 'arrays': standardise is now standardize; the old name will be removed"
    assert warned(lambda: tasks.read_options("arrays", {"standardise": "false"}))[0] == {"standardize": False}
    assert warned(lambda: changed(Config(), {"artefacts": "0.5"}))[0].artifacts == 0.5


@pytest.mark.parametrize("old", ["normalise", "discretisation"])
def test_layers_and_models_saved_under_old_names_are_loaded_in_silence(old: str, tmp_path: Path) -> None:
    layer = ssm.LRU(1, 2, 1, normalize=False) if old == "normalise" else ssm.S4D(2, discretization="bilinear")
    mixer = "lru" if old == "normalise" else "s4d"
    value = getattr(layer, _renamed.NAMES[old])
    model = ssm.SequenceClassifier(2, d_input=1, d_model=4, mixer=mixer, mixer_options={_renamed.NAMES[old]: value})
    for saved in (layer, model):
        ssm.save(saved, tmp_path)
        path = tmp_path / "config.json"
        content = record.read_json(path)
        written = json.dumps(content)
        assert _renamed.NAMES[old] in written
        record.write_json(path, json.loads(written.replace(_renamed.NAMES[old], old)))
        loaded = silent(lambda: ssm.load(tmp_path))
        assert repr(loaded) == repr(saved)


def test_a_curve_saved_under_old_names_is_loaded_in_silence(tmp_path: Path) -> None:
    curve = ssm.MemoryCurve(np.arange(3.0), np.ones(3), maximizer=np.ones((3, 1)))
    curve.save(tmp_path / "curve.npz")
    meta, arrays = record.load_arrays(tmp_path / "curve.npz", "MemoryCurve")
    old = {_renamed.OLD.get(name, name): array for name, array in arrays.items()}
    assert "maximiser" in old
    record.save_arrays(tmp_path / "old.npz", "MemoryCurve", meta, old)
    assert np.array_equal(silent(lambda: ssm.MemoryCurve.load(tmp_path / "old.npz")).maximizer, curve.maximizer)


def test_settings_of_files_are_compared_under_present_names() -> None:
    before, now = {"task": {"standardise": False}}, {"task": {"standardize": False}}
    assert settings.differences(before, now) == {}
    assert settings.differences({"task": {"standardise": True}}, now) == {"task.standardize": (True, False)}
    assert settings.differences({"own": {"normalise": 1}}, {"own": {"normalise": 2}}) == {"own.normalise": (1, 2)}
    assert agree({"artefacts": 0.1}, {"artifacts": 0.1})
    assert not agree({"artefacts": 0.1}, {"artifacts": 0.2})


def test_stages_and_arrays_of_older_runs_are_found(tmp_path: Path) -> None:
    record.save_arrays(tmp_path / "optimised-8.npz", "stage", {}, {"realisation": np.array(3.0)})
    stages = Stages(tmp_path)
    assert "optimized-8" in stages
    assert "optimized-9" not in stages
    assert "realization" in stages["optimized-8"]
    assert float(stages["optimized-8"]["realization"]) == 3.0
    stages.pack()
    (tmp_path / "optimised-8.npz").unlink()
    assert float(Stages(tmp_path)["optimized-8"]["realization"]) == 3.0


def test_code_is_spelled_in_american_english() -> None:
    root = Path(ssm.__file__).parents[1]
    wrong = []
    for folder in ("stablessm", "tools", "benchmarks", "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            if path.name in ("_renamed.py", "test_renamed.py"):
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if re.search(WORDS, line, re.IGNORECASE) and not re.search(r"@renamed|module_names\(", line):
                    wrong.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    assert not wrong
