"""Volterra series as recurrences with powers of their outputs."""

from stablessm.constructions.series.model import VolterraSSM
from stablessm.constructions.series.volterra import volterra

__all__ = ["VolterraSSM", "volterra"]
