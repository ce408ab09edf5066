"""Models that apply a given function to each value, or to several consecutive values, of a sequence."""

from stablessm.constructions.pointwise.elementwise import Elementwise, elementwise
from stablessm.constructions.pointwise.kolmogorov_arnold import KolmogorovArnold, kolmogorov_arnold

__all__ = ["Elementwise", "KolmogorovArnold", "elementwise", "kolmogorov_arnold"]
