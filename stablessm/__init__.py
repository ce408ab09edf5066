"""Sequence models with long memory: measure it, build it stable, construct it, reproduce it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablessm import constructions, instruments, layers, reconstruction, reparam, scan, targets
    from stablessm._errors import ArgumentError, BackendUnavailableError, NumericalError
    from stablessm.instruments import (
        DecayFit,
        DivergenceError,
        GradientTracker,
        MemoryCurve,
        PerturbationCurve,
        PerturbationFamily,
        bernstein_bound,
        bernstein_check,
        check_streaming,
        fading_function,
        fit_decay,
        gradient_over_weight,
        lyapunov_certificate,
        memory_function,
        nearest_boundary,
        perturbation_error,
        report_modes,
        stability_radius,
        trace_divergence,
    )
    from stablessm.layers import (
        LRU,
        S4D,
        Bidirectional,
        ContinuousRNN,
        RealSSM,
        SequenceLayer,
        load,
        param_groups,
        save,
    )
    from stablessm.scan import linear_scan

__version__ = "0.1.0.dev0"

__all__ = [
    "LRU",
    "S4D",
    "ArgumentError",
    "BackendUnavailableError",
    "Bidirectional",
    "ContinuousRNN",
    "DecayFit",
    "DivergenceError",
    "GradientTracker",
    "MemoryCurve",
    "NumericalError",
    "PerturbationCurve",
    "PerturbationFamily",
    "RealSSM",
    "SequenceLayer",
    "bernstein_bound",
    "bernstein_check",
    "check_streaming",
    "constructions",
    "fading_function",
    "fit_decay",
    "gradient_over_weight",
    "instruments",
    "layers",
    "linear_scan",
    "load",
    "lyapunov_certificate",
    "memory_function",
    "nearest_boundary",
    "param_groups",
    "perturbation_error",
    "reconstruction",
    "reparam",
    "report_modes",
    "save",
    "scan",
    "stability_radius",
    "targets",
    "trace_divergence",
]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for: a constructed kernel streams where there is no torch."""
    if name in __all__:
        try:
            return import_module(f"stablessm.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"stablessm.{name}":
                raise
        for home in ("_errors", "scan", "layers", "instruments"):
            module = import_module(f"stablessm.{home}")
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module 'stablessm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
