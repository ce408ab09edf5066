"""Every public callable, called with arguments that nobody should pass, and what became of each call.

The table of subjects follows ``__all__`` of the package and of its public parts: a new public name is fuzzed without a
row here. ``GOOD`` holds arguments that a call accepts, by subject and by parameter; a case takes these and replaces
one or more by values of :mod:`fuzz_values`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import random
import re
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fuzz_values
import numpy as np
import torch
from torch import nn

import stablessm as ssm
from stablessm import constructions, instruments, models, parallel, reconstruction, reparam, targets, tasks, training

PARTS = (
    "",
    ".constructions",
    ".instruments",
    ".layers",
    ".models",
    ".parallel",
    ".reconstruction",
    ".reparam",
    ".reparam.matrix",
    ".scan",
    ".streaming",
    ".targets",
    ".tasks",
    ".training",
)
FOREIGN = {
    "from_pretrained",
    "generate",
    "resize_token_embeddings",
    "set_input_embeddings",
    "set_output_embeddings",
    "config_class",
    "extra_repr",
}
"""Methods whose arguments go on to transformers or PyTorch."""
LIMIT = 20
"""Seconds of processor time after which a call is endless."""
OUTCOMES = ("fine", "named error", "internal exception", "endless", "crash")


def tiny_sum() -> Any:
    return constructions.ExponentialSum(np.array([-0.5, -0.1]), np.array([1.0, 0.5]), 1.0, 50)


@functools.cache
def volterra() -> Any:
    return constructions.volterra({1: lambda t: np.exp(-t)}, 20, tol=1e-2)


@functools.cache
def elementwise() -> Any:
    return constructions.elementwise(np.tanh, (-1.0, 1.0), 1e-2)


@functools.cache
def kolmogorov_arnold() -> Any:
    return constructions.kolmogorov_arnold(lambda x: x.sum(-1), 2)


class LongConvolution(nn.Module):
    """A causal convolution over time, (batch, time, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.rand(2, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ssm.scan.causal_convolution(x, self.taps.mT)


def found(name: str, module: nn.Module) -> Any:
    return constructions.LongFilter(module.taps, True) if isinstance(module, LongConvolution) else None


@functools.cache
def converted() -> Any:
    return constructions.convert(LongConvolution(), 1e-2, length=9, find=found)


def curve() -> Any:
    return ssm.MemoryCurve(np.arange(20.0), np.exp(-np.arange(20.0)))


def perturbation() -> Any:
    radius = np.linspace(0, 1, 4)
    facts = ("kernel_l1", "tensor_max", "random", ("w",), 3, 3, 20, 1.0, 0, 10)
    return ssm.PerturbationCurve(radius, radius, None, None, *facts)


def tiny_model(kind: Any = ssm.SequenceClassifier, size: int = 3) -> Any:
    return kind(size, d_input=2, d_model=4, n_layers=1, d_state=4)


def language() -> Any:
    return ssm.LanguageModel(7, d_model=4, n_layers=1, d_state=4)


def hf_config() -> Any:
    return models.StableSSMConfig(vocab_size=7, d_model=4, n_layers=1, d_state=4)


def task() -> Any:
    few = dict.fromkeys(("train_examples", "valid_examples", "test_examples"), 8)
    return tasks.get("functional", length=6, **few)


@functools.cache
def text() -> Any:
    Path("text.txt").write_text("the cat sat on the mat.\n" * 40, encoding="utf-8")
    return tasks.get("lm", text="text.txt", length=8)


def regressor() -> Any:
    return ssm.SequenceRegressor(1, d_input=1, d_model=4, n_layers=1, d_state=4)


def trained() -> Any:
    layer = ssm.RealSSM(2, 4, 3)
    layer(torch.randn(2, 5, 2))[0].sum().backward()
    return layer


INSTANCES: dict[str, Callable[[], Any]] = {
    "LRU": lambda: ssm.LRU(2, 4, 3),
    "S4D": lambda: ssm.S4D(2, 4),
    "MinGRU": lambda: ssm.MinGRU(2, 4),
    "MinLSTM": lambda: ssm.MinLSTM(2, 4),
    "RGLRU": lambda: ssm.RGLRU(2),
    "HGRN": lambda: ssm.HGRN(2),
    "SelectiveSSM": lambda: ssm.SelectiveSSM(2, 4, map="best"),
    "RealSSM": lambda: ssm.RealSSM(2, 4, 3),
    "ContinuousRNN": lambda: ssm.ContinuousRNN(2, 4, 3),
    "Bidirectional": lambda: ssm.Bidirectional(ssm.LRU(2, 4, 3)),
    "LanguageModel": language,
    "SequenceClassifier": tiny_model,
    "SequenceRegressor": lambda: tiny_model(ssm.SequenceRegressor),
    "SequenceModel": tiny_model,
    "SequenceStack": lambda: models.SequenceStack(models.StackConfig(d_input=2, d_model=4, n_layers=1, d_state=4)),
    "Streamer": lambda: ssm.Streamer(ssm.LRU(2, 4, 3), 2, backend="numpy"),
    "Block": lambda: models.Block(2, ssm.LRU(2, 4, 2)),
    "Hyena": lambda: models.Hyena(2, ssm.LRU(2, 4, 2)),
    "LinearRNNMLP": lambda: models.LinearRNNMLP(2, 4, 3, hidden=(8,)),
    "ModelConfig": lambda: models.ModelConfig(d_input=2, size=3, pool="mean", per_step=False),
    "LanguageConfig": lambda: models.LanguageConfig(vocab_size=7),
    "StackConfig": lambda: models.StackConfig(d_input=2),
    "StableSSMConfig": hf_config,
    "StableSSMForCausalLM": lambda: models.StableSSMForCausalLM(hf_config()),
    "DecayFit": lambda: curve().decay(),
    "MemoryCurve": curve,
    "GradientTracker": lambda: instruments.GradientTracker(trained()),
    "PerturbationCurve": perturbation,
    "PerturbationFamily": lambda: ssm.PerturbationFamily({2: perturbation(), 4: perturbation()}),
    "Readback": lambda: ssm.readback(ssm.LRU(1, 4, 3), torch.randn(8, 200, 1), lags=5),
    "Elementwise": elementwise,
    "ExponentialSum": tiny_sum,
    "KolmogorovArnold": kolmogorov_arnold,
    "RecurrentConvolution": lambda: constructions.from_convolution(torch.rand(2, 6), tol=1e-2),
    "StreamingModel": converted,
    "VolterraSSM": volterra,
    "BernsteinCheck": lambda: ssm.bernstein_bound([0.0, 1.0], rate=1.0, theta_max=1.0),
    "LyapunovCertificate": lambda: ssm.lyapunov_certificate(-torch.eye(2)),
    "ModeReport": lambda: ssm.report_modes(ssm.LRU(2, 4, 3)),
    "Affine": lambda: parallel.Affine(torch.rand(2, 4), torch.rand(2, 4)),
    "Decoder": lambda: reconstruction.Decoder(reconstruction.roots_of_unity(8), 4),
    "SparseDecoder": lambda: reconstruction.SparseDecoder(reconstruction.roots_of_unity(8), reconstruction.dct(6, 3)),
    "Reparameterization": lambda: reparam.get("best"),
    "MatrixMap": lambda: reparam.matrix.get("project"),
    "Kernel": lambda: targets.kernels.Exponential(),
    "LinearFunctional": lambda: targets.LinearFunctional("exponential"),
    "LotkaVolterra": targets.LotkaVolterra,
    "NonlinearFunctional": targets.NonlinearFunctional,
    "PeakHold": targets.PeakHold,
    "TeacherRNN": lambda: targets.TeacherRNN(d_state=4),
    "Volterra": lambda: targets.Volterra([["exponential"]]),
    "Batch": lambda: tasks.Batch(torch.randn(2, 5, 2), torch.randn(2, 3)),
    "Task": task,
    "Options": tasks.Options,
    "Ranks": training.Ranks,
    "TrainingConfig": training.TrainingConfig,
}
"""How to make an instance whose methods are called; classes without a row have none that take arguments."""


def sequence(*shape: int) -> Callable[[], Any]:
    return lambda: torch.randn(*shape)


SEQUENCE = {"x": sequence(2, 5, 2), "x_t": sequence(2, 2), "u": sequence(2, 5, 2), "u_t": sequence(2, 2)}
SCAN = {"decay": lambda: torch.rand(3), "drive": sequence(2, 5, 3), "initial": sequence(2, 3)}
MODEL_OPTIONS = {"d_input": 2, "d_model": 4, "n_layers": 1, "d_state": 4, "mixer": "lru", "dropout": 0.1, "map": "best"}
DEFAULTS: dict[str, Any] = {
    "d_input": 2,
    "d_state": 4,
    "d_output": 3,
    "d_model": 2,
    "vocab_size": 7,
    "size": 3,
    "batch": 2,
    "horizon": 20,
    "model": lambda: ssm.LRU(2, 4, 3),
    "module": lambda: ssm.LRU(2, 4, 3),
    "layer": lambda: ssm.LRU(2, 4, 3),
    "ahead": lambda: ssm.LRU(2, 4, 3),
    "mixer": lambda: ssm.LRU(2, 4, 2),
    "inner": lambda: ssm.LRU(2, 4, 2),
    "times": lambda: torch.linspace(0, 3, 4),
    "time": "continuous",
    "rate": 0.5,
    "theta_max": 1.0,
    "lr": 0.01,
    "value": lambda: np.exp(-np.arange(20.0)),
    "folder": "folder",
    "path": "file",
    "W": lambda: -torch.eye(3),
    "radii": [0.0, 0.1],
    "data": sequence(8, 200, 2),
    "tol": 1e-2,
    "kernel": lambda: lambda t: np.exp(-t),
    "dt": 1.0,
    "f": lambda: np.tanh,
    "domain": (-1.0, 1.0),
    "filters": lambda: torch.rand(2, 6),
    "length": 4,
    "count": 4,
    "kernels": lambda: {1: lambda t: np.exp(-t)},
    "eigenvalues": lambda: reconstruction.roots_of_unity(8),
    "x_t": sequence(2, 2),
    "basis": lambda: reconstruction.dct(6, 3),
    "w": sequence(4),
    "beta": 0.1,
    "steps": 5,
    "name": "recall",
    "r_min": 0.9,
    "functions": 3,
    "state0": lambda: torch.randn(3, dtype=torch.float64),
    "lam0": 0.9,
    "backend": "auto",
    "eps": 0.1,
    "device": lambda: torch.device("cpu"),
    "task": task,
    "config": lambda: training.TrainingConfig(steps=1),
    "split": "train",
    "batch_size": 2,
    "state": sequence(2, 4),
    "t": lambda: torch.linspace(0, 3, 4),
    "prompt": lambda: torch.tensor([1, 2]),
    "map": lambda: reparam.get("best"),
    "options": lambda: {"d_input": 2},
    "target": lambda: targets.LinearFunctional("exponential"),
    "terms": [["exponential"]],
    "factory": lambda: lambda **_: reparam.get("best"),
    "texts": lambda: {"steps": "5"},
    "own": lambda: parallel.Affine(torch.rand(2, 4), torch.rand(2, 4)),
    "gradient": sequence(2, 4),
    "models": lambda: {2: ssm.RealSSM(1, 2, 1), 4: ssm.RealSSM(1, 4, 1)},
    "signal": sequence(2, 5, 3),
    "weights": sequence(3),
    "matrix": lambda: torch.randn(3, 3),
    "output": sequence(2, 5, 1),
    "group": None,
    "values": sequence(3),
    "batches": 4,
    "inputs": sequence(2, 5, 2),
    "targets": sequence(2, 3),
    "h": sequence(2, 5, 4),
    "S": lambda: torch.randn(3, 3),
    **SEQUENCE,
}
GOOD: dict[str, dict[str, Any]] = {
    "Streamer.state": {"state": lambda: torch.randn(2, 4) + 0j},
    "linear_scan": SCAN,
    "sequence_scan": SCAN,
    "fft_scan": SCAN,
    "accumulate": SCAN | {"signal": sequence(2, 5, 3)},
    "evaluate": {"weights": sequence(3), "decay": lambda: torch.rand(3)},
    "powers": {"decay": lambda: torch.rand(3)},
    "training.evaluate": {"model": regressor, "batch_size": 2},
    "causal_convolution": {"kernel": sequence(5, 3)},
    "ssm_scan": {"decay": lambda: torch.rand(2, 4), "B": sequence(2, 4), "C": sequence(2, 4)},
    "sequence_ssm_scan": {"decay": lambda: torch.rand(2, 4), "B": sequence(2, 4), "C": sequence(2, 4)},
    "SequenceClassifier": MODEL_OPTIONS,
    "SequenceRegressor": MODEL_OPTIONS,
    "LanguageModel": {name: good for name, good in MODEL_OPTIONS.items() if name != "d_input"},
    "StackConfig": {"d_input": 2, "mixer": "s4d", "map": "best"},
    "LanguageConfig": {"vocab_size": 7, "mixer": "s4d", "map": "best"},
    "ModelConfig": {"d_input": 2, "mixer": "s4d", "map": "best", "pool": "mean", "per_step": False},
    "for_task": {"inputs": lambda: tasks.Inputs("values", 2, 5), "outputs": lambda: tasks.Outputs("classes", 3, False)},
    "SequenceModel": {"config": INSTANCES["ModelConfig"]},
    "SequenceStack": {"config": INSTANCES["StackConfig"]},
    "StableSSMForCausalLM": {"config": hf_config},
    "sample_tokens": {"model": language},
    "check_state": {"model": lambda: nn.GRU(2, 3), "cases": ["chunks"], "length": 12, "batch": 2},
    "warm_up": {"model": language, "shapes": (2, 5)},
    "check_streaming": {"batch": 2},
    "Task.steps": {"split": "train"},
    "LanguageModel.forward": {"x": lambda: torch.randint(0, 7, (2, 5))},
    "LanguageModel.predict": {"x": lambda: torch.randint(0, 7, (2, 5))},
    "LanguageModel.generate": {"prompt": lambda: torch.randint(0, 7, (2, 5)), "count": 2},
    "LanguageModel.logits": {"h": sequence(2, 5, 4)},
    "LanguageModel.sequence": {"x": lambda: torch.randint(0, 7, (2, 5))},
    "LanguageModel.step": {"x_t": lambda: torch.randint(0, 7, (2,))},
    "LanguageModel.draw": {"module": lambda: nn.Linear(2, 2)},
    "StableSSMForCausalLM.forward": {"input_ids": lambda: torch.randint(0, 7, (2, 5))},
    "LRU.forward": {"state": lambda: torch.randn(2, 4) + 0j},
    "LRU.step": {"state": lambda: torch.randn(2, 4) + 0j},
    "SelectiveSSM.forward": {"state": lambda: torch.randn(2, 2, 4)},
    "SelectiveSSM.step": {"state": lambda: torch.randn(2, 2, 4)},
    "short_convolution": {"weight": sequence(2, 3), "bias": None, "initial": None},
    "selective_scan": {
        "delta": sequence(2, 5, 2),
        "A": lambda: -torch.rand(2, 4),
        "B": sequence(2, 5, 4),
        "C": sequence(2, 5, 4),
        "D": None,
        "z": None,
        "initial": None,
        "delta_bias": None,
    },
    "S4D.forward": {"state": lambda: torch.randn(2, 2, 4) + 0j},
    "S4D.step": {"state": lambda: torch.randn(2, 2, 4) + 0j},
    "bernstein_check": {"model": lambda: ssm.RealSSM(1, 3, 1)},
    **{name: {"eigenvalues": None} for name in ("S4D", "MinGRU", "MinLSTM", "RGLRU", "HGRN", "SelectiveSSM")},
    **{
        f"{name}.{call}": {"state": lambda: torch.randn(2, 2)}
        for name in ("RGLRU", "HGRN")
        for call in ("forward", "step")
    },
    "fit_decay": {"time": np.arange(20.0)},
    "MemoryCurve": {"time": np.arange(20.0)},
    "perturbation_error": {"model": lambda: ssm.RealSSM(1, 4, 1), "samples": 2, "steps": 1, "horizon": 20},
    "lyapunov_spectrum": {"model": lambda: ssm.LRU(2, 4, 3), "inputs": sequence(9, 2), "state": None},
    "effective_state_size": {"model": lambda: ssm.LRU(2, 4, 3), "inputs": sequence(9, 2), "tol": 1e-9},
    "receptive_field": {"model": lambda: ssm.LRU(2, 4, 3), "inputs": sequence(9, 2)},
    "information_processing_capacity": {
        "states": lambda: np.random.default_rng(0).normal(size=(90, 2)),
        "inputs": lambda: np.arange(90.0) % 7,
    },
    "length_curve": {"model": language, "inputs": lambda: torch.randint(0, 7, (2, 9)), "targets": None},
    "effective_remembrance": {"model": language, "inputs": lambda: torch.randint(0, 7, (2, 9)), "contexts": [1, 2]},
    "readback": {"model": lambda: ssm.LRU(2, 4, 3), "lags": 4},
    "trace_divergence": {"model": lambda: ssm.LRU(2, 4, 3)},
    "stability_radius": {"x": lambda: -torch.eye(3)},
    "gradient_over_weight": {"model": trained},
    "nearest_boundary": {"model": trained},
    "timestamp": {"state0": lambda: torch.rand(3, dtype=torch.float64)},
    "Reparameterization.inverse": {"eigenvalues": lambda: -torch.rand(4)},
    "Reparameterization.weights": {"eigenvalues": lambda: -torch.rand(4)},
    "MatrixMap.__call__": {"M": lambda: torch.randn(3, 3)},
    "probe": {"backend": "reference"},
    "read_options": {"texts": lambda: {"length": "20"}},
    "Interrupted": {"number": 2, "step": 1},
    "MemoryCurve.save": {"path": "curve.npz"},
    "PerturbationCurve.save": {"path": "curve.npz"},
    "ExponentialSum.save": {"path": "sum.safetensors"},
    "Affine.after": {"earlier": INSTANCES["Affine"]},
    "Affine.times": {"value": sequence(2, 4)},
    "ArgumentError": {"argument": "x", "expected": "one", "got": 2},
    "PerturbationFamily": {"curves": lambda: {2: perturbation(), 4: perturbation()}},
    "VolterraSSM": {
        "layer": lambda: ssm.RealSSM(1, 2, 1),
        "orders": np.array([[0]]),
        "weights": np.array([1.0]),
        "constant": 0.0,
    },
    "RealSSM": {"time": "continuous"},
    "LRU": {"eigenvalues": None},
    "ContinuousRNN": {"eigenvalues": None},
    "exponential_sum": {"horizon": 20, "time": "discrete", "order": 2, "max_order": 4},
    "convert": {"model": lambda: LongConvolution(), "length": 9, "find": lambda: found},
    "kolmogorov_arnold": {"f": lambda: lambda x: x.sum(-1), "length": 2, "level": 1},
    "volterra": {"map": "best", "horizon": 20},
    "LongFilter": {"taps": sequence(2, 6), "finite": True},
    "incoming_state": {"x": sequence(2, 5, 2), "state": None},
    "incoming": {"initial": sequence(2, 4)},
    "decode": {"state": lambda: torch.randn(8) + 0j},
    "decode_sparse": {"state": lambda: torch.randn(8) + 0j},
    "Decoder.__call__": {"state": lambda: torch.randn(8) + 0j},
    "SparseDecoder.__call__": {"state": lambda: torch.randn(8) + 0j},
    "SparseDecoder.coefficients": {"state": lambda: torch.randn(8) + 0j},
    "required_state_size": {"length": 4, "draws": 3, "largest": 16},
    "optimized": {"count": 8, "length": 4},
    "pca": {"data": sequence(9, 6)},
    "reparam.get": {"name": "best", "time": "continuous"},
    "reparam.register": {"name": "new", "time": "continuous"},
    "matrix.get": {"name": "project"},
    "why_not": {"name": "cpu"},
    "tasks.get": {"name": "recall"},
    "tasks.register": {"name": "new", "build": lambda: task, "options": tasks.Options},
    "register_mixer": {"name": "new"},
    "LinearFunctional": {"kernel": "exponential"},
    "NonlinearFunctional": {"kernel": "exponential"},
    "PerturbationFamily.of": {"samples": 2, "horizon": 20, "steps": 1},
    "Streamer.run": {"out": sequence(2, 5, 3)},
    "MemoryCurve.of": {"name": "a"},
    "Task.loss": {"batch": lambda: task().batch("train", 2), "output": sequence(2, 6, 1)},
    "Task.score": {"batch": lambda: task().batch("train", 2), "output": sequence(2, 6, 1)},
    "Task.total_loss": {"batch": lambda: task().batch("train", 2), "output": sequence(2, 6, 1)},
    "Task.count": {"batch": lambda: task().batch("train", 2)},
    "Task.as_trained": {"description": lambda: task().describe()},
    "Batch.rows": {"part": (0, 1)},
    "perplexity": {"model": lambda: ssm.LanguageModel(text().inputs.size, d_model=4, n_layers=1), "task": text},
    "train": {
        "model": regressor,
        "progress": False,
        "config": lambda: training.TrainingConfig(steps=1, batch_size=2, device="cpu"),
    },
    "Task.lanes": {"split": "train", "batch_size": 2},
    "PeakHold": {"d_input": 1},
    "TeacherRNN": {"d_input": 1, "timescales": (1.0, 10.0)},
    "LotkaVolterra": {"start": (1.0, 0.5)},
    "LRU.with_map": {"map": "exp"},
    "S4D.with_map": {"map": "exp"},
    "RealSSM.with_map": {"map": "exp"},
    "LinearRNNMLP.set_units": {"y": sequence(2, 5, 3)},
    "Elementwise.__call__": {"x": np.linspace(-1, 1, 5)},
    "KolmogorovArnold.__call__": {"x": np.random.default_rng(0).random((3, 2))},
    "VolterraSSM.values": {"steps": np.arange(3)[:, None]},
    "VolterraSSM.forward": {"x": sequence(2, 5, 1)},
    "VolterraSSM.step": {"x_t": sequence(2, 1)},
    "RecurrentConvolution.forward": {"x": lambda: torch.randn(2, 5, 2, dtype=torch.float64)},
    "RecurrentConvolution.step": {"x_t": lambda: torch.randn(2, 2, dtype=torch.float64)},
    "ExponentialSum": {"rates": np.array([-0.5]), "weights": np.array([1.0]), "time": "discrete"},
    "BernsteinCheck.against": {"memory": lambda: torch.linspace(1, 0.1, 4)},
    "TrainingConfig": {"device": "cpu"},
    "ModelConfig.of": {"options": lambda: {"d_input": 2, "size": 3, "pool": "mean", "per_step": False}},
    "LanguageConfig.of": {"options": lambda: {"vocab_size": 7}},
    "StableSSMConfig": {"mixer": "hyena-real", "map": "best"},
    "StableSSMConfig.of": {"network": INSTANCES["LanguageConfig"]},
    "StableSSMForCausalLM.of": {"network": language},
    "Ranks.first": {"work": lambda: lambda: None},
    "Ranks.highest": {},
    "Streamer": {"model": lambda: ssm.LRU(2, 4, 3), "backend": "numpy"},
    "LinearFunctional.__call__": {"x": sequence(2, 5, 1)},
    "LotkaVolterra.__call__": {"x": sequence(2, 5, 1)},
    "NonlinearFunctional.__call__": {"x": sequence(2, 5, 1)},
    "PeakHold.__call__": {"x": sequence(2, 5, 1)},
    "TeacherRNN.__call__": {"x": sequence(2, 5, 1)},
    "Volterra.__call__": {"x": sequence(2, 5, 1)},
    "Preset": {"settings": dict, "about": "about", "parameters": 3},
}
"""Arguments that a call accepts, where those of ``DEFAULTS`` would not do. A callable makes the value."""
ALSO = {
    "why_not": ("backend",),
    "LinearFunctional.kernel": ("t",),
    "sample_tokens": ("tokens",),
    "NonlinearFunctional": ("activation",),
    "PerturbationFamily.of": ("model",),
    "reparam.get": ("map",),
    "matrix.get": ("map",),
    "tasks.get": ("task",),
    "listing": ("task",),
    "read_options": ("task",),
}
"""Other words for an argument: what is looked up by name."""
SLOW = (
    "train", "exponential_sum", "required_state_size", "optimized", "kolmogorov_arnold", "convert", "export_step",
    "export_sequence",
)  # fmt: skip
"""Left out of the quick test: a call with good arguments takes more than a few milliseconds."""


KNOWN = frozenset(DEFAULTS) | {name for good in GOOD.values() for name in good}
"""Parameters for which there is a good argument."""


@dataclass(frozen=True)
class Subject:
    """One public callable."""

    name: str
    function: Callable[[], Any]
    """Returns what is called, so that each call gets an instance of its own."""
    parameters: tuple[str, ...]
    positional: frozenset[str]
    required: frozenset[str]


@functools.cache
def subjects() -> dict[str, Subject]:
    """Every public callable by its name; a method is ``Class.method``."""
    found: dict[str, Subject] = {}
    seen: set[int] = set()
    for part in PARTS:
        module = importlib.import_module("stablessm" + part)
        for name in module.__all__:
            thing = getattr(module, name)
            if not callable(thing) or inspect.ismodule(thing) or id(thing) in seen or name == "Split":
                continue
            if getattr(thing, "_is_protocol", False):  # only describes methods, and cannot be called
                continue
            seen.add(id(thing))
            name = (
                f"{part.rpartition('.')[2]}.{name}"
                if name in ("get", "register", "names", "evaluate", "check") and part
                else name
            )
            name = name.replace("scan.evaluate", "evaluate")
            if inspect.isclass(thing):
                found.update({each.name: each for each in _class_subjects(name, thing)})
            else:
                found[name] = _subject(name, functools.partial(_itself, thing), thing)
    found["Streamer.state"] = Subject(
        "Streamer.state",
        lambda: functools.partial(setattr, INSTANCES["Streamer"](), "state"),
        ("state",),
        frozenset({"state"}),
        frozenset({"state"}),
    )
    return found


def _itself(thing: Any) -> Any:
    return thing


def _class_subjects(name: str, thing: type) -> Iterator[Subject]:
    with contextlib.suppress(ValueError):
        if not inspect.isabstract(thing):
            yield _subject(name, functools.partial(_itself, thing), thing)
    if name not in INSTANCES:
        return
    for method, function in inspect.getmembers(thing, callable):
        public = not method.startswith("_") or method == "__call__"
        if public and method not in FOREIGN and str(getattr(function, "__module__", "")).startswith("stablessm"):
            bound = functools.partial(_method, name, method)
            yield _subject(f"{name}.{method}", bound, inspect.getattr_static(thing, method))


def _method(name: str, method: str) -> Any:
    return getattr(INSTANCES[name](), method)


def _subject(name: str, function: Callable[[], Any], thing: Any) -> Subject:
    if isinstance(thing, classmethod | staticmethod):
        thing = thing.__func__
    parameters = inspect.signature(thing).parameters
    named = [
        p
        for p in parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in ("self", "cls")
    ]
    names = [p.name for p in named]
    if any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
        names += [option for option in GOOD.get(name, {}) if option not in names]
    if any(p.kind == p.VAR_POSITIONAL for p in parameters.values()):
        names.append("*" + next(p.name for p in parameters.values() if p.kind == p.VAR_POSITIONAL))
    positional = frozenset(p.name for p in named if p.kind == p.POSITIONAL_ONLY or hasattr(thing, "registry"))
    return Subject(name, function, tuple(names), positional, frozenset(p.name for p in named if p.default is p.empty))


def good_arguments(subject: Subject) -> dict[str, Any]:
    """Arguments that the call accepts: the required ones, and those that the table has."""
    good = GOOD.get(subject.name, {})
    chosen = [name for name in subject.parameters if name in subject.required or name in good]
    return {name: _made(good.get(name, DEFAULTS.get(name))) for name in chosen}


def arguments(subject: Subject, rng: random.Random) -> dict[str, Any]:
    """Good arguments, of which one (most often) or more are replaced."""
    good, made = GOOD.get(subject.name, {}), good_arguments(subject)
    if not subject.parameters:
        return made
    count = 1 if rng.random() < 0.7 else rng.randint(1, len(subject.parameters))
    for name in rng.sample(subject.parameters, count):
        known = made.get(name, _made(good.get(name, DEFAULTS.get(name))))
        made[name] = (
            fuzz_values.near(rng, known) if known is not None and rng.random() < 0.5 else fuzz_values.value(rng)
        )
    return made


def _made(good: Any) -> Any:
    return good() if callable(good) and not isinstance(good, type) else good


def outcome(subject: Subject, given: dict[str, Any]) -> tuple[str, str]:
    """Call, and return one of ``OUTCOMES`` (a crash is for whoever started this process to see) and what was raised."""
    named = {
        name: value for name, value in given.items() if not name.startswith("*") and name not in subject.positional
    }
    listed = [given[name] for name in subject.parameters if name in subject.positional and name in given]
    listed += [value for name, value in given.items() if name.startswith("*")]
    if subject.name == "Streamer.state":
        listed, named = [given["state"]], {}
    try:
        function = subject.function()
        with _limit(LIMIT), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            result = function(*listed, **named)
            if inspect.isgenerator(result):
                next(result, None)
    except TimeoutError:
        return "endless", "".join(traceback.format_exc())
    except Exception as error:
        return ("named error" if _names(error, subject) else "internal exception"), _told(error)
    return "fine", ""


def _told(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "stablessm/" in frame.filename]
    place = f"{frames[-1].filename.rpartition('stablessm/')[2]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} [{place}]"


def _names(error: Exception, subject: Subject) -> bool:
    """True for an error of ours that carries a remedy, and for a ValueError or TypeError that names an argument."""
    if isinstance(
        error, ssm.NumericalError | ssm.BackendUnavailableError | ssm.DivergenceError | reparam.ContractError
    ):
        return True
    if isinstance(error, OSError) and error.filename is not None:
        return True
    words = set(re.findall(r"\w+", str(error)))
    names = {name.lstrip("*") for name in subject.parameters} | {"options", *ALSO.get(subject.name, ())}
    kind, _, method = subject.name.partition(".")
    if method and kind in INSTANCES:  # of the instance
        names |= {method, *(() if kind not in subjects() else subjects()[kind].parameters)}
    return isinstance(error, ValueError | TypeError) and bool(words & names)


class _Endless(BaseException):
    """Nothing that is called catches it."""


@contextlib.contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise _Endless

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    except _Endless as error:
        raise TimeoutError from error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_case(name: str, seed: int) -> tuple[str, str]:
    """Run one case, the same for the same seed."""
    torch.manual_seed(seed)
    rng = random.Random(f"{name} {seed}")
    subject = subjects()[name]
    tables: list[dict[Any, Any]] = [tasks.TASKS, reparam.registry._factories, models.mixers._factories]
    before = [dict(table) for table in tables]
    try:
        return outcome(subject, arguments(subject, rng))
    finally:
        for table, entries in zip(tables, before, strict=True):  # without what was registered
            table.clear()
            table.update(entries)
