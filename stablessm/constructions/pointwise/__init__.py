"""Functions of the values in a sequence as layers: one value at a time, or several at once."""

from stablessm.constructions.pointwise.elementwise import Elementwise, elementwise
from stablessm.constructions.pointwise.kolmogorov_arnold import KolmogorovArnold, kolmogorov_arnold

__all__ = ["Elementwise", "KolmogorovArnold", "elementwise", "kolmogorov_arnold"]
