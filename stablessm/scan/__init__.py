"""The linear scan h[t] = a[t] h[t-1] + x[t], with several backends that give the same numbers."""

from stablessm.scan.backends import NAMES, resolve, why_not
from stablessm.scan.fft import causal_convolution, fft_scan
from stablessm.scan.linear import linear_scan
from stablessm.scan.probe import Probe, probe
from stablessm.scan.selective import selective_scan
from stablessm.scan.short_convolution import short_convolution
from stablessm.scan.ssm import ssm_scan
from stablessm.scan.vandermonde import accumulate, evaluate, powers

__all__ = [
    "NAMES", "Probe", "accumulate", "causal_convolution", "evaluate", "fft_scan", "linear_scan", "powers", "probe",
    "resolve", "selective_scan", "short_convolution", "ssm_scan", "why_not",
]  # fmt: skip
