"""Presets of model settings by name, and the function ``for_task``, which builds a model for a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from stablessm._arguments import one_of
from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm.models import mixers
from stablessm.models.classifier import SequenceClassifier
from stablessm.models.config import LanguageConfig
from stablessm.models.language import LanguageModel
from stablessm.models.regressor import SequenceRegressor
from stablessm.models.sequence_model import SequenceModel


@final
@dataclass(frozen=True)
class Preset:
    """A named set of model settings, from which only the sizes of inputs and outputs are missing."""

    about: str
    """Purpose of the preset, and source of its numbers."""
    settings: Mapping[str, Any]
    """Settings that differ from the defaults of :class:`~stablessm.models.StackConfig`."""
    parameters: int
    """Number of parameters for one input channel and ten classes, or for 8192 tokens in a language model."""
    language: bool = False
    """Whether this is a :class:`~stablessm.models.LanguageModel`: from tokens to the next token."""


PRESETS: Mapping[str, Preset] = {
    "tiny": Preset(
        "to try things out, in seconds on a CPU",
        {"d_model": 16, "n_layers": 1, "d_state": 8},
        1_354,
    ),
    "small": Preset(
        "a first model for a new problem; the shape of StableSSM's recall models, with S4D",
        {"d_model": 64, "n_layers": 2, "d_state": 32, "dropout": 0.1},
        34_442,
    ),
    "base": Preset(
        "when small is not enough: wider, deeper, with an MLP in each block",
        {"d_model": 128, "n_layers": 4, "d_state": 32, "mlp": 2, "dropout": 0.1},
        466_186,
    ),
    "images": Preset(
        "sequential CIFAR-10 and the like, about a thousand steps: depth, post-norm and dropout of S4D's published "
        "settings (6 layers), narrower (128 channels, not 512)",
        {"d_model": 128, "n_layers": 6, "d_state": 32, "prenorm": False, "dropout": 0.1},
        301_066,
    ),
    "gated": Preset(
        "when the input decides what is kept: a minimal gated recurrent unit (MinGRU) in each block",
        {"d_model": 64, "n_layers": 2, "mixer": "mingru", "d_state": 128, "dropout": 0.1},
        67_722,
    ),
    "paper-images": Preset(
        "StableSSM, tables 5 and 6: one S4D block of 32 conjugate pairs, Im λ = πn, Re λ = -1/2, dt log-uniform in "
        "[0.001, 0.1], D ~ N(0, 1), GELU, gated 1×1 map, post-norm, mean pool, width 64. The map is the authors', "
        "-1/(w² + 0.1). The paper names no dropout; accuracies lower in training than in the test say there is some",
        {
            "d_model": 64, "n_layers": 1, "d_state": 32, "map_options": {"a": 1.0, "b": 0.1}, "prenorm": False,
            "dropout": 0.1, "mixer_options": {"init": "lin", "dt_min": 1e-3, "dt_max": 0.1}, "pool": "mean",
        },
        17_546,
    ),
    "paper-recall": Preset(
        "StableSSM, table 4: width 64, 2 Hyena blocks, 32 states, here of each channel (S4D)",
        {
            "d_model": 64, "n_layers": 2, "mixer": "hyena-s4d", "d_state": 32, "activation": "none", "gate": False,
            "mlp": 4, "mixer_options": {"init": "lin", "dt_min": 1e-3, "dt_max": 0.1}, "pool": "last",
        },
        118_666,
    ),
    "lm-tiny": Preset(
        "a language model to try things out, in seconds on a CPU",
        {"d_model": 32, "n_layers": 2, "d_state": 16, "mixer_options": {"time": "discrete"}},
        290_304,
        language=True,
    ),
    "lm-small": Preset(
        "a language model to start from: thirty million parameters, Hyena blocks with a real recurrence",
        {"d_model": 512, "n_layers": 8, "d_state": 64, "mixer_options": {"time": "discrete"}, "dropout": 0.1},
        29_976_576,
        language=True,
    ),
    "lm-paper": Preset(
        "StableSSM, figures 4 to 6 and table 2: 768 channels, 12 Hyena blocks with MLPs of 3072, 128 real states, here "
        "with dense B and C. Map and dropout are the authors'; eigenvalues start at time scales of 20 to 2000 tokens, "
        "which is Re λ = -1/2 with steps of 0.001 to 0.1",
        {
            "d_model": 768, "n_layers": 12, "d_state": 128, "map_options": {"a": 1.0, "b": 0.5}, "dropout": 0.15,
            "mixer_options": {"time": "discrete", "timescales": [20.0, 2000.0]},
        },
        93_792_768,
        language=True,
    ),
    "lm-3b": Preset(
        "StableSSM, table 3: about three billion parameters. The paper gives no other number; 3072 channels, 26 blocks",
        {
            "d_model": 3072, "n_layers": 26, "d_state": 128, "map_options": {"a": 1.0, "b": 0.5},
            "mixer_options": {"time": "discrete"},
        },
        2_991_784_448,
        language=True,
    ),
}  # fmt: skip
"""All presets by name."""


@checked
def for_task(inputs: Any, outputs: Any, preset: str = "small", **changes: Any) -> SequenceModel:
    """Build a classifier, regressor or language model whose inputs and outputs fit a task.

    Args:
        inputs: the attribute ``inputs`` of a task: ``kind`` (``values`` or ``tokens``), ``size`` (number of channels or
            tokens) and ``length``. Unless the preset or ``mixer_options`` set time scales, the initial time scales of a
            language model are at most ``length``, so that its state can be carried beyond the training windows.
        outputs: the attribute ``outputs`` of a task: ``kind`` (``classes`` or ``values``), ``size``, ``per_step``.
        preset: one of ``PRESETS``.
        **changes: settings that replace settings of the preset. If ``map`` is replaced, the preset's ``map_options``
            are dropped.

    >>> from types import SimpleNamespace as Like
    >>> digits = Like(kind="values", size=1), Like(kind="classes", size=10, per_step=False)
    >>> model = for_task(*digits, preset="paper-images", map="exp")
    >>> type(model).__name__, model.config.map, model.config.map_options
    ('SequenceClassifier', 'exp', {})
    """
    one_of("preset", preset, PRESETS)
    width = {"values": "d_input", "tokens": "vocab_size"}
    if not isinstance(getattr(inputs, "kind", None), str) or inputs.kind not in width:
        raise ArgumentError("inputs", f"the kind {' or '.join(width)}", inputs)
    model = {"classes": SequenceClassifier, "values": SequenceRegressor}
    if not isinstance(getattr(outputs, "kind", None), str) or outputs.kind not in model:
        raise ArgumentError("outputs", f"the kind {' or '.join(model)}", outputs)
    settings = dict(PRESETS[preset].settings)
    for option, its_options in (("map", "map_options"), ("mixer", "mixer_options")):
        if option in changes:
            settings.pop(its_options, None)
    for name in changes.keys() & {"size", "per_step", *width.values()}:
        raise ArgumentError(name, "no value, since the task determines it", repr(changes[name]))
    settings |= changes
    if not PRESETS[preset].language:
        settings[width[inputs.kind]] = inputs.size
        return model[outputs.kind](outputs.size, per_step=outputs.per_step, **settings)
    shape = (inputs.kind, outputs.kind, outputs.per_step, outputs.size)
    if shape != ("tokens", "classes", True, inputs.size):
        what = f"{inputs.size} {inputs.kind} in, {outputs.size} {outputs.kind} out"
        got = f"{preset!r} for {what} {'at every step' if outputs.per_step else 'of a sequence'}"
        raise ArgumentError("preset", "no language model, or a task that predicts the next token", got)
    mixer = settings.get("mixer", LanguageConfig.mixer)
    settings["mixer_options"] = mixers.within(mixer, settings.get("mixer_options", {}), inputs.length)
    return LanguageModel(inputs.size, **settings)
