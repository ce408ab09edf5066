"""Volterra series as models: a linear recurrence and powers of its outputs."""

from stablessm.constructions.series.model import VolterraSSM
from stablessm.constructions.series.volterra import volterra

__all__ = ["VolterraSSM", "volterra"]
