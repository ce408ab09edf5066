"""Is a model chaotic, and what does its state keep?"""

from stablessm.instruments.dynamics.lyapunov import LyapunovSpectrum, lyapunov_spectrum

__all__ = ["LyapunovSpectrum", "lyapunov_spectrum"]
