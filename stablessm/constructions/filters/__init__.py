"""Conversion of long convolution filters to recurrences, for single filters or for a whole model."""

from stablessm.constructions.filters.convert import LongFilter, StreamingModel, convert
from stablessm.constructions.filters.from_convolution import from_convolution
from stablessm.constructions.filters.layer import RecurrentConvolution

__all__ = ["LongFilter", "RecurrentConvolution", "StreamingModel", "convert", "from_convolution"]
