"""Models whose weights are computed from a given kernel or function instead of trained."""

from typing import TYPE_CHECKING, Any

from stablessm._lazy import public

if TYPE_CHECKING:
    from stablessm.constructions.filters.convert import LongFilter, StreamingModel, convert
    from stablessm.constructions.filters.from_convolution import from_convolution
    from stablessm.constructions.filters.layer import RecurrentConvolution
    from stablessm.constructions.pointwise.elementwise import Elementwise, elementwise
    from stablessm.constructions.pointwise.kolmogorov_arnold import KolmogorovArnold, kolmogorov_arnold
    from stablessm.constructions.series.model import VolterraSSM
    from stablessm.constructions.series.volterra import volterra
    from stablessm.constructions.sums.exponential_sum import exponential_sum
    from stablessm.constructions.sums.result import ExponentialSum, FitError

__all__ = [
    "Elementwise",
    "ExponentialSum",
    "FitError",
    "KolmogorovArnold",
    "LongFilter",
    "RecurrentConvolution",
    "StreamingModel",
    "VolterraSSM",
    "convert",
    "elementwise",
    "exponential_sum",
    "from_convolution",
    "kolmogorov_arnold",
    "volterra",
]


def __getattr__(name: str) -> Any:
    return public(__name__, name, __all__, ("sums", "series", "filters", "pointwise"))


def __dir__() -> list[str]:
    return sorted(__all__)
