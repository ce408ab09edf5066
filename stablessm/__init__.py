"""Tools for sequence models with long memory: measure the memory, build stable layers, and reproduce the papers."""

from stablessm import _current_folder  # noqa: F401, I001 (first: nothing below may come from the current folder)

from typing import TYPE_CHECKING, Any

from stablessm import _fork  # noqa: F401 (hooks that run at every fork)
from stablessm._lazy import public

if TYPE_CHECKING:
    from stablessm import (
        constructions,
        instruments,
        layers,
        models,
        parallel,
        reconstruction,
        reparam,
        scan,
        streaming,
        targets,
        tasks,
        training,
    )
    from stablessm._errors import ArgumentError, BackendUnavailableError, MissingPackageError, NumericalError
    from stablessm.instruments import (
        DecayFit,
        DivergenceError,
        GradientTracker,
        MemoryCurve,
        PerturbationCurve,
        PerturbationFamily,
        bernstein_bound,
        bernstein_check,
        check_state,
        check_streaming,
        effective_remembrance,
        effective_state_size,
        fading_function,
        fit_decay,
        gradient_over_weight,
        information_processing_capacity,
        length_curve,
        lyapunov_certificate,
        lyapunov_spectrum,
        memory_function,
        nearest_boundary,
        perturbation_error,
        receptive_field,
        report_modes,
        stability_radius,
        trace_divergence,
    )
    from stablessm.instruments.readback import Readback, readback
    from stablessm.layers import (
        HGRN,
        LRU,
        RGLRU,
        S4D,
        Bidirectional,
        ContinuousRNN,
        MinGRU,
        MinLSTM,
        RealSSM,
        SelectiveSSM,
        SequenceLayer,
        load,
        save,
    )
    from stablessm.layers.param_groups import param_groups
    from stablessm.models import LanguageModel, SequenceClassifier, SequenceRegressor, accelerate, warm_up
    from stablessm.scan import linear_scan, selective_scan, ssm_scan
    from stablessm.streaming import Streamer, export_sequence, export_step

__version__ = "0.2.0"

__all__ = [
    "HGRN",
    "LRU",
    "RGLRU",
    "S4D",
    "ArgumentError",
    "BackendUnavailableError",
    "Bidirectional",
    "ContinuousRNN",
    "DecayFit",
    "DivergenceError",
    "GradientTracker",
    "LanguageModel",
    "MemoryCurve",
    "MinGRU",
    "MinLSTM",
    "MissingPackageError",
    "NumericalError",
    "PerturbationCurve",
    "PerturbationFamily",
    "Readback",
    "RealSSM",
    "SelectiveSSM",
    "SequenceClassifier",
    "SequenceLayer",
    "SequenceRegressor",
    "Streamer",
    "accelerate",
    "bernstein_bound",
    "bernstein_check",
    "check_state",
    "check_streaming",
    "constructions",
    "effective_remembrance",
    "effective_state_size",
    "export_sequence",
    "export_step",
    "fading_function",
    "fit_decay",
    "gradient_over_weight",
    "information_processing_capacity",
    "instruments",
    "layers",
    "length_curve",
    "linear_scan",
    "load",
    "lyapunov_certificate",
    "lyapunov_spectrum",
    "memory_function",
    "models",
    "nearest_boundary",
    "parallel",
    "param_groups",
    "perturbation_error",
    "readback",
    "receptive_field",
    "reconstruction",
    "reparam",
    "report_modes",
    "save",
    "scan",
    "selective_scan",
    "ssm_scan",
    "stability_radius",
    "streaming",
    "targets",
    "tasks",
    "trace_divergence",
    "training",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    return public(__name__, name, __all__, ("_errors", "scan", "layers", "instruments", "models", "streaming"))


def __dir__() -> list[str]:
    return sorted(__all__)
